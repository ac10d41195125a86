"""``sinkgate generate MODEL --prompt …``: text as it is written, in bounded memory."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sinkgate.cli.diagnose import DEFAULT_MODEL, read_texts
from sinkgate.errors import ArgumentError, TextError

__all__ = [
    "arguments", "asked_cache", "cache_flags", "loaded", "model_flags", "noted", "one_line_report", "run", "sampling_flags",
    "stoppable",
]  # fmt: skip

BUDGET = "recent(1020) + sinks(4)"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    model_flags(add)
    add("--prompt", metavar="TEXT", help="what to go on from (default: standard input, if something is piped in)")
    add("--prompt-file", metavar="FILE", help="the same from a file, - for standard input; of any length")
    cache_flags(add)
    sampling_flags(add, 128)
    add("--ignore-end", action="store_true", help="go on past the token that ends a text, up to --max-new-tokens")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    prompt = _prompt(args)
    if args.max_new_tokens < 1:
        raise ArgumentError(f"--max-new-tokens must be at least 1, got {args.max_new_tokens}")
    from sinkgate.hf.writing import Sampling, Writer
    from sinkgate.probe.text import bos_prefix

    streaming = asked_cache(args)  # refused before anything is fetched
    sampling = Sampling(args.temperature, args.top_p, args.top_k, args.seed)
    with noted():
        found = loaded(args)
        tokenizer = found.tokenizer
        ids = [
            *bos_prefix(tokenizer, "auto")[0],
            *tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"],
        ]
        if not ids:
            raise TextError("the prompt has no tokens; give at least one")
        with streaming(found.model) as cache:
            ends: set[int] | None = set() if args.ignore_end else None
            writer = Writer(found.model, tokenizer, cache, sampling, stop=args.stop, ends=ends)
            with stoppable() as asked:
                read = writer.read(ids, asked)
                if not asked():
                    for piece in writer.write(args.max_new_tokens, asked):
                        print(piece, end="", flush=True)
                    print(flush=True)
                interrupted = asked()
            report = one_line_report(cache.report())
    speed = writer.written / writer.write_seconds if writer.write_seconds else 0.0
    prompted = f"{read:,} tokens read at {read / max(writer.read_seconds, 1e-9):,.1f}/s"
    print(f"sinkgate: {prompted}, {writer.written:,} written at {speed:,.1f}/s; {report}", file=sys.stderr)
    if interrupted:
        print("sinkgate: interrupted; what was written stands", file=sys.stderr)
        return 130
    return 0


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None and args.prompt_file is not None:
        raise ArgumentError("give --prompt or --prompt-file, not both")
    if args.prompt is not None:
        if not args.prompt:
            raise TextError("the prompt is empty; give at least one word")
        return str(args.prompt)
    texts = read_texts(None if args.prompt_file is None else [args.prompt_file])
    if texts is None:
        raise ArgumentError("nothing to go on from: give --prompt TEXT or --prompt-file FILE, or pipe a text in")
    return str(texts[0].content)


# ---- shared with stream and chat ----------------------------------------------------------------------------------


def model_flags(add: Callable[..., Any]) -> None:
    """Which model, and how it is loaded."""
    add("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL",
        help=f"known name (smollm2-135m, gemma3-270m), directory, .gguf file or Hub id; default: {DEFAULT_MODEL}")  # fmt: skip
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto")
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")


def cache_flags(add: Callable[..., Any]) -> None:
    """What a writing model keeps."""
    add("--policy", metavar="POLICY", help=f"what the cache keeps (default: {BUDGET}; see sinkgate ls policies)")
    add("--positions", choices=["slots", "original"],
        help="counted inside the cache, or those of the text (default: slots)")  # fmt: skip
    add("--plan", metavar="FILE", help="instead of both: a plan that sinkgate plan made for this model")
    add("--chunk", type=int, default=512, metavar="N", help="tokens read at once (default: %(default)s)")


def asked_cache(args: argparse.Namespace) -> Callable[[Any], Any]:
    """What :func:`cache_flags` ask for: a function that makes a model stream so.

    Raises:
        ArgumentError: a policy that cannot be read, or a policy beside a plan.
        RecordError: no plan; when the function is called, a plan of another model.
    """
    if args.plan is None:
        from sinkgate.cache.registry import as_policy
        from sinkgate.hf.streaming import streaming

        policy = as_policy(BUDGET if args.policy is None else args.policy)
        return lambda model: streaming(model, policy, positions=args.positions or "slots", chunk=args.chunk)
    if args.policy is not None or args.positions is not None:
        raise ArgumentError(
            "give --plan, which says the policy and the positions, or --policy and --positions, not both"
        )
    from sinkgate.planning.record import Plan

    plan = Plan.load(args.plan)

    @contextmanager
    def planned(model: Any) -> Iterator[Any]:
        with plan.apply(model), plan.streaming(model, chunk=args.chunk) as cache:
            yield cache

    return planned


def sampling_flags(add: Callable[..., Any], most: int) -> None:
    """How it writes."""
    add("--max-new-tokens", type=int, default=most, metavar="N", help="tokens at most (default: %(default)s)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0: always the most likely (default: %(default)s)")
    add("--top-p", type=float, default=1.0, metavar="P", help="only the most likely with this probability together")
    add("--top-k", type=int, default=0, metavar="K", help="only so many of the most likely; 0: all")
    add("--seed", type=int, default=0, metavar="N", help="of the sampling (default: %(default)s)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text (repeatable)")


def loaded(args: argparse.Namespace) -> Any:
    """The model of :func:`model_flags`."""
    from sinkgate.hf.load import load

    return load(args.model, dtype=args.dtype, device=args.device, trust_remote_code=args.trust_remote_code)


@contextmanager
def noted() -> Iterator[list[str]]:
    """Warnings as one line each on standard error, without a path; they are collected too."""
    notes: list[str] = []

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        text = " ".join(str(message).split())
        if text not in notes:
            notes.append(text)
            print(f"sinkgate: note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield notes


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C only makes the yielded function true, so that a pass through the cache ends whole; a second one raises."""
    asked = False

    def handle(*_: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        before = signal.signal(signal.SIGINT, handle)
    except ValueError:  # not the main thread: nobody sends it a Ctrl-C
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def one_line_report(report: dict[str, Any]) -> str:
    """A cache in one line."""
    from sinkgate.cache.sizes import human

    return (
        f"{report['seen']:,} tokens seen, {report['held']:,} held in {human(report['bytes'])} ({report['policy']}, "
        f"positions: {report['positions']})"
    )
