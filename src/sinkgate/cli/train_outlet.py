"""``sinkgate train-outlet MODEL``: give a model an outlet, train it, say what it took over."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkgate.cli.diagnose import DEFAULT_MODEL, read_texts, writable
from sinkgate.errors import ArgumentError

__all__ = ["INTERRUPTED", "arguments", "run"]

INTERRUPTED = "what --out holds stays: go on with --resume"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    add("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL", help=f"as in diagnose (default: {DEFAULT_MODEL})")
    add("--outlet", default="kv_bias", metavar="NAME", help="sink_logit, gate, key_bias, kv_bias or sink_token "
        "(default: %(default)s)")  # fmt: skip
    add("--heads", nargs="+", default=["sinks"], metavar="WHICH", help="sinks, all, or heads such as 5.3 7.1 "
        "(default: the sink heads)")  # fmt: skip
    add(
        "--data",
        nargs="+",
        metavar="FILE",
        help="text files to train on, - for standard input (default: the demo speeches)",
    )
    add("--held-out", nargs="+", metavar="FILE", help="text files to report on (default: the last third of the data)")
    add("--out", metavar="DIR", help="write the outlet, logs and checkpoints, trained.json")
    add("--resume", action="store_true", help="go on with the run in --out")
    add("--steps", type=int, default=150, metavar="N", help="updates (default: %(default)s)")
    add("--lr", type=float, default=0.02, help="peak learning rate (default: %(default)s)")
    add("--schedule", default="cosine", help="constant, cosine, linear or wsd (default: %(default)s)")
    add("--warmup", type=int, default=5, metavar="N", help="steps before the peak (default: %(default)s)")
    add("--save-every", type=int, default=25, metavar="N", help="steps between checkpoints (default: %(default)s)")
    add("--tokens", type=int, default=512, metavar="N", help="tokens per text (default: %(default)s)")
    add("--samples", type=int, default=8, metavar="N", help="held-out texts at most (default: %(default)s)")
    add(
        "--text-weight",
        type=float,
        default=1.0,
        metavar="W",
        help="weight of the next-token loss (default: %(default)s)",
    )
    add("--distill", type=float, default=1.0, metavar="W", help="weight of KL to the original (default: %(default)s)")
    add("--evict", type=float, default=0.5, metavar="SHARE", help="share of steps with the first token evicted "
        "(default: %(default)s)")  # fmt: skip
    add("--burn-in", type=int, default=64, metavar="N", help="queries that still see it (default: %(default)s)")
    add(
        "--also", nargs="+", default=[], metavar="PATTERN", help="train these parameters too, such as '*.o_proj.weight'"
    )
    add(
        "--lr-multiplier",
        type=float,
        default=1.0,
        metavar="M",
        help="aid: learning rate of the sink heads, over the rest's",
    )
    add("--entropy", type=float, default=0.0, metavar="L", help="aid: +L sharpens attention, -L spreads it")
    add("--progressive", type=int, metavar="N", help="aid: begin with texts of N tokens, double up to --tokens")
    add("--no-control", action="store_true", help="leave out the same outlet on random other heads")
    add("--threshold", type=float, default=0.3, metavar="EPS", help="of a sink head (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the order of texts and the control's heads")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--device", default="cpu", help="cpu, cuda, cuda:1 or auto")
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.resume and args.out is None:
        raise ArgumentError("--resume goes on with the run in --out DIR; name it")
    texts = None if args.data is None else read_texts(args.data)
    held = None if args.held_out is None else read_texts(args.held_out)
    heads = _heads(args.heads)
    out = None if args.out is None else writable(Path(args.out))
    from sinkgate.files import jsonable
    from sinkgate.lab.loop import LoopConfig
    from sinkgate.lab.outlet import OutletConfig
    from sinkgate.lab.train_outlet import train_outlet

    loop = LoopConfig(
        steps=args.steps, lr=args.lr, schedule=args.schedule, warmup=min(args.warmup, args.steps - 1),
        save_every=args.save_every, seed=args.seed,
    )  # fmt: skip
    task = OutletConfig(
        tokens=args.tokens, text=args.text_weight, distill=args.distill, evict=args.evict, burn_in=args.burn_in,
        also=tuple(args.also), entropy=args.entropy, context=args.progressive, multiplier=args.lr_multiplier,
        seed=args.seed,
    )  # fmt: skip
    with _progress(args.steps) as progress:
        result = train_outlet(
            args.model, None, texts, held_out=held, outlet=args.outlet, heads=heads, loop=loop, task=task,
            samples=args.samples, control=not args.no_control, threshold=args.threshold, out=out, resume=args.resume,
            progress=progress, dtype=args.dtype, device=args.device, trust_remote_code=args.trust_remote_code,
        )  # fmt: skip
    if args.json:
        from dataclasses import asdict

        print(json.dumps(jsonable({**asdict(result), "verdict": result.verdict()}), ensure_ascii=False, indent=1))
    else:
        print(result)
    if out is not None:
        print(f"\nWrote the outlet, its logs and trained.json to {out}.", file=sys.stderr)
    return 0


def _heads(words: list[str]) -> Any:
    if words in (["sinks"], ["all"]):
        return words[0]
    pairs = []
    for word in words:
        layer, dot, head = word.partition(".")
        if not (dot and layer.isdigit() and head.isdigit()):
            raise ArgumentError(f"--heads takes sinks, all, or LAYER.HEAD such as 5.3, got {word!r}")
        pairs.append((int(layer), int(head)))
    return pairs


@contextmanager
def _progress(steps: int) -> Iterator[Any]:
    """A bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=steps, unit="step", leave=False) as bar:

        def progress(which: str, line: dict[str, Any]) -> None:
            bar.set_description(f"{which} loss {line['loss']:.3f}")
            bar.update(line["step"] + 1 - bar.n)

        yield progress
