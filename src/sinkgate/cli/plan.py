"""``sinkgate plan MODEL --budget … | --max-ppl-increase …``: a verified setting with its reasons, or "leave it"."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkgate.cli.diagnose import read_texts, writable
from sinkgate.cli.generate import model_flags, noted
from sinkgate.errors import ArgumentError, OutputError

__all__ = ["arguments", "progress_line", "run"]

INTERRUPTED = "what was measured is kept: the same command goes on from there"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    model_flags(add)
    add("--budget", metavar="BYTES", help="of keys and values at --context × --batch: 64MiB, 1.5GiB, 4096")
    add("--max-ppl-increase", metavar="X", help="of the perplexity on held-out text: 1%% or 0.01")
    add("--context", metavar="N", help="tokens: 8192, 8k (default: as many as the model was trained for)")
    add("--batch", type=int, default=1, metavar="N", help="sequences of that length at once (default: %(default)s)")
    add("--weight-budget", metavar="BYTES", help="of the weights of linear layers (default: they stay as they are)")
    add("--goal", choices=["memory", "latency", "quality"],
        help="what is made small (default: the loss where only --budget is given, else memory)")  # fmt: skip
    add(
        "--text",
        nargs="+",
        metavar="FILE",
        help="texts to tune and verify on, - for standard input (default: the demo speeches)",
    )
    add("--record", metavar="DIR", help="a diagnosis of this model (default: one is made)")
    add(
        "--effort",
        choices=["quick", "default", "thorough"],
        default="default",
        help="how much is measured (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the search and the choice of texts (default: %(default)s)")
    add("--no-recall", action="store_true", help="do not measure recall by distance")
    add("--no-quantization", action="store_true", help="do not measure the four arms of fewer bits")
    add(
        "--out",
        metavar="FILE",
        help="write the plan here, as plan.json, and report.html beside it "
        "(of a training: a folder for pilots and plan)",
    )
    add("--json", action="store_true", help="print JSON instead of text")
    add = parser.add_argument_group(
        "a training plan", "which outlet to train with, from short paired pilots: MODEL is a task of the lab or a model"
    ).add_argument
    add("--training", action="store_true", help="plan a training instead")
    add("--minutes", type=float, metavar="M", help="the budget: arms are timed, then pilots are as long as fits")
    add("--steps", type=int, metavar="N", help="the length of every pilot, instead or as well")
    add("--seeds", type=int, metavar="N", help="how many; at least 3 (default: 3)")
    add("--arms", metavar="ARMS", help="separated by commas, the first the reference (default: a list of ten)")


TRAINING = ("minutes", "steps", "seeds", "arms")
CACHE = ("budget", "max_ppl_increase", "context", "weight_budget", "goal", "record")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    wrong = [name for name in (CACHE if args.training else TRAINING) if getattr(args, name) is not None]
    if wrong:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        raise ArgumentError(f"{flags} {'does not belong to' if args.training else 'belongs to'} --training")
    return _training(args) if args.training else _cache(args)


def _training(args: argparse.Namespace) -> int:
    from sinkgate.lab.tasks import TASKS
    from sinkgate.planning.training import plan_training

    given: dict[str, Any] = {} if args.arms is None else {"arms": args.arms}
    if args.model not in TASKS:
        given |= {"text": read_texts(args.text), "dtype": args.dtype, "trust_remote_code": args.trust_remote_code}
    elif args.text is not None:
        raise ArgumentError("--text is for a model; a task of the lab has its own")
    found = plan_training(
        args.model, minutes=args.minutes, steps=args.steps, seeds=3 if args.seeds is None else args.seeds, device=args.device,
        out=args.out, **given,
    )  # fmt: skip
    print(json.dumps(found.to_json(), ensure_ascii=False, indent=1) if args.json else f"{found}\n\n{found.settings()}")
    return 0


def _cache(args: argparse.Namespace) -> int:
    from sinkgate.cache.sizes import parse_count
    from sinkgate.planning.request import Request, parse_bytes, parse_increase

    asked: dict[str, Any] = {
        "budget": None if args.budget is None else parse_bytes(args.budget),
        "max_increase": None if args.max_ppl_increase is None else parse_increase(args.max_ppl_increase),
        "context": None if args.context is None else parse_count(args.context),
        "batch": args.batch,
        "weight_budget": None if args.weight_budget is None else parse_bytes(args.weight_budget, "weight budget"),
        "goal": args.goal, "effort": args.effort, "seed": args.seed,
    }  # fmt: skip
    Request(**asked)  # refused before anything is fetched
    out = None if args.out is None else _out(Path(args.out))
    texts = read_texts(args.text)
    record = None
    if args.record is not None:
        from sinkgate.record import Diagnosis

        record = Diagnosis.load(args.record)
    from sinkgate.planning.make import plan

    with noted(), progress_line() as progress:
        found = plan(
            args.model, texts=texts, record=record, recall=not args.no_recall, quantization=not args.no_quantization,
            dtype=args.dtype, device=args.device, trust_remote_code=args.trust_remote_code, progress=progress, **asked,
        )  # fmt: skip
    if out is not None:
        from sinkgate.files import save_json
        from sinkgate.report.pages import write_pages

        found.save(out)
        if found.weights is not None:
            save_json(out.with_name("torchao.json"), found.torchao(), indent=1)
        save_json(out.with_name("keep.json"), found.keep_list(), indent=1)
        write_pages([(found.meta["model"]["name"], found)], out.with_name("report.html"))
    print(json.dumps(found.to_json(), ensure_ascii=False, indent=1) if args.json else found)
    if out is not None:
        also = "torchao.json, " if found.weights is not None else ""
        print(f"\nWrote {out}, {also}keep.json and report.html beside it.", file=sys.stderr)
    return 0


def _out(path: Path) -> Path:
    """Where the plan goes: a file, or ``plan.json`` in a folder that is there."""
    path = path / "plan.json" if path.is_dir() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise OutputError(f"cannot write {path}: {err.strerror or err}; choose another --out") from err
    if path.suffix != ".json":
        raise ArgumentError(f"--out is a file for the plan, such as plan.json, got {str(path)!r}")
    writable(path.parent)
    return path


@contextmanager
def progress_line() -> Iterator[Callable[[str, int, int], None]]:
    """One line on a terminal, nothing in a pipe."""
    from tqdm import tqdm

    form = "{desc} {n_fmt}/{total_fmt} [{elapsed}]"
    with tqdm(leave=False, disable=not sys.stderr.isatty(), bar_format=form) as bar:

        def progress(what: str, done: int, of: int) -> None:
            bar.total, bar.n = of, done
            bar.set_description_str(what[:100], refresh=True)

        yield progress
