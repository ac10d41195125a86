"""``sinkgate compare``: train arms on a task, paired by seed, and say what differs."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["INTERRUPTED", "arguments", "run"]

INTERRUPTED = "what --out holds stays: go on with --resume"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    add(
        "--task",
        default="backcopy",
        metavar="NAME",
        help="trigger, backcopy or text (default: %(default)s; see sinkgate ls)",
    )
    add("--arms", metavar="LIST", help='what is compared, the first one the baseline: "softmax, softmax+g1, softpick, '
        'softmax+window(128), softmax+sink_token"')  # fmt: skip
    add("--weightings", metavar="a,b,c", help="short for arms that are weightings alone")
    add("--out", required=True, metavar="DIR", help="gets the plan, every piece's record, record.json, report.html")
    add(
        "--seeds", type=int, default=3, metavar="N", help="of start and data, shared by all arms (default: %(default)s)"
    )
    add(
        "--lrs",
        metavar="a,b,c",
        help="peak learning rates; each arm is reported at its own best (default: the task's one)",
    )
    add(
        "--sweep-seeds",
        type=int,
        default=1,
        metavar="N",
        help="seeds that a rate is chosen with (default: %(default)s)",
    )
    add("--budget", metavar="STEPS", help="steps of every piece, or tokens as in 2M-tokens (default: the task's)")
    add(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        dest="settings",
        help="the task's settings, such as layers=2",
    )
    add(
        "--loop",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="of the training loop, such as weight_decay=0.5 clip=none",
    )
    add("--preset", metavar="NAME", help="of the text task: tiny, mini, small, base, medium, large")
    add("--text", nargs="+", metavar="FILE", help="of the text task: files, or hf:DATASET (default: the demo speeches)")
    add("--tokenizer", metavar="T", help="of the text task: bytes, bpe:SIZE, or a folder with a tokenizer.json")
    add("--resume", action="store_true", help="go on in --out")
    add("--device", default="cpu", help="cpu, cuda, cuda:1")
    add(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="spread the pieces with Ray (its cluster's address, or this machine)",
    )
    add("--log-to", action="append", default=[], metavar="MODULE", help="also send the log to wandb or trackio")
    add("--project", default="sinkgate", help="its project there (default: %(default)s)")
    add("--no-cost", action="store_true", help="do not measure what a step costs")
    add("--json", action="store_true", help="print JSON instead of the table")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if (args.arms is None) == (args.weightings is None):
        raise ArgumentError('give --arms "softmax, softmax+g1" or, for weightings alone, --weightings softmax,softpick')
    settings = dict(_setting(text) for text in args.settings)
    for name, value in (("preset", args.preset), ("texts", args.text), ("tokenizer", args.tokenizer)):
        if value is not None:
            if args.task != "text":
                raise ArgumentError(f"--{name.rstrip('s')} belongs to --task text, not to {args.task}")
            settings[name] = value
    from sinkgate.lab.arms import split_arms
    from sinkgate.lab.comparison import compare
    from sinkgate.lab.tasks import as_task

    task = as_task(args.task, **settings)
    arms = split_arms(args.arms or args.weightings)
    if args.weightings is not None and (more := [str(a) for a in arms if "+" in str(a)]):
        raise ArgumentError(f"--weightings takes weightings alone, got {more[0]!r}; use --arms")
    out = Path(args.out)
    loggers = [_logger(name, args.project, out.name) for name in args.log_to]
    with _bar() as bar:
        record = compare(
            task, arms, seeds=args.seeds, lrs=_rates(args.lrs), steps=_steps(args.budget, task), sweep=args.sweep_seeds,
            loop_changes=dict(_setting(text, "--loop") for text in args.loop), out=out, resume=args.resume, device=args.device, runner=_runner(args), cost_rounds=0 if args.no_cost else None,
            progress=[*bar, *loggers],
        )  # fmt: skip
    page = record.to_html(out / "report.html")
    if args.json:
        print(json.dumps(summary(record), ensure_ascii=False, indent=1))
    else:
        print(record)
    print(f"\nWrote {out / 'record.json'} and {page}.", file=sys.stderr)
    return 0


def summary(record: Any) -> dict[str, Any]:
    """What ``--json`` prints."""
    from dataclasses import asdict

    from sinkgate.files import jsonable

    names = [record.meta["headline"], *record.meta["shown"]]
    arms = {
        arm: {
            "best_lr": record.meta["best_lr"][arm],
            **{name: float(record.interval(arm, name).mean) for name in names},
            "difference": {k: float(v) for k, v in asdict(record.difference(arm)).items()},
            "told": "baseline" if arm == record.arms[0] else record.told_apart(arm),
            "diverged": len(record.diverged(arm)),
        }
        for arm in record.arms
    }
    return jsonable({"headline": record.meta["headline"], "arms": arms, "says": record.sentences()})


# ---- private -----------------------------------------------------------------------------------------------------


def _setting(text: str, flag: str = "--set") -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ArgumentError(f"{flag} takes NAME=VALUE such as layers=2, got {text!r}")
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        found = {"true": True, "false": False, "none": None}.get(value.lower(), value)
    return name, found


def _rates(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(x) for x in text.split(",")]
    except ValueError:
        raise ArgumentError(f"--lrs takes numbers such as 1e-3,3e-3, got {text!r}") from None


def _steps(text: str | None, task: Any) -> int | None:
    """Steps, or the steps that so many tokens make; the same for every arm, whatever its speed."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)(?:[- ]?(steps|tokens))?", text)
    if not found:
        raise ArgumentError(
            f"--budget takes steps (2000) or tokens (2M-tokens), got {text!r}; a time would give a faster arm more steps"
        )
    count = float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[found[2]]
    if found[3] == "tokens":
        if not hasattr(task, "tokens_per_step"):
            raise ArgumentError(f"the task {task.name!r} has no tokens to count: give --budget in steps")
        count /= task.tokens_per_step
    return max(1, round(count))


def _runner(args: argparse.Namespace) -> Any:
    if args.ray is None:
        return None
    from sinkgate.lab.spread import ray_runner

    return ray_runner(args.ray or None, gpus=1 if args.device.startswith("cuda") else 0)


def _logger(name: str, project: str, group: str) -> Any:
    from sinkgate.lab.loggers import api_logger

    return api_logger(name, project, group=group)


@contextmanager
def _bar() -> Iterator[list[Any]]:
    """A bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield []
        return
    from tqdm import tqdm

    with tqdm(unit="step", leave=False) as bar:

        def progress(piece: Any, line: dict[str, Any]) -> None:
            bar.total = piece.loop.steps
            bar.n = line["step"] + 1
            bar.set_description(
                f"{piece.arm}, lr {piece.lr:g}, seed {piece.seed}: loss {line['loss'] or float('nan'):.3f}"
            )

        yield [progress]
