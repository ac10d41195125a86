"""``sinkgate advise MODEL``: one page for the person who just wants to know."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sinkgate.cli.diagnose import read_texts, writable
from sinkgate.cli.generate import model_flags, noted
from sinkgate.cli.plan import progress_line

__all__ = ["arguments", "run"]

INTERRUPTED = "what was measured for the plan is kept: the same command goes on from there"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    model_flags(add)
    add("--text", nargs="+", metavar="FILE", help="text files, - for standard input (default: the demo speeches)")
    add("--budget", metavar="BYTES", help="of keys and values at --context: 64MiB")
    add("--max-ppl-increase", metavar="X", help="of the perplexity: 1%% or 0.01 (default without --budget: 2%%)")
    add("--context", metavar="N", help="tokens: 8192, 8k (default: as many as the model was trained for)")
    add(
        "--effort",
        choices=["quick", "default", "thorough"],
        default="quick",
        help="how much is measured (default: %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the search and the choice of texts (default: %(default)s)")
    add("--out", metavar="DIR", help="write the diagnosis, effects.json, plan.json and report.html here")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from sinkgate.cache.sizes import parse_count
    from sinkgate.planning.request import parse_bytes, parse_increase

    asked: dict[str, Any] = {
        "budget": None if args.budget is None else parse_bytes(args.budget),
        "max_increase": None if args.max_ppl_increase is None else parse_increase(args.max_ppl_increase),
        "context": None if args.context is None else parse_count(args.context),
        "effort": args.effort, "seed": args.seed,
    }  # fmt: skip
    out = None if args.out is None else writable(Path(args.out))
    texts = read_texts(args.text)
    from sinkgate.planning.advise import advise

    with noted(), progress_line() as progress:
        found = advise(
            args.model, texts=texts, dtype=args.dtype, device=args.device, trust_remote_code=args.trust_remote_code, progress=progress,
            **asked,
        )  # fmt: skip
    if out is not None:
        from sinkgate.report.pages import write_pages

        found.save(out)
        name = found.plan.meta["model"]["name"]
        write_pages([(name, r) for r in (found.plan, found.record, found.effects)], out / "report.html")
    print(json.dumps(found.to_json(), ensure_ascii=False, indent=1) if args.json else found)
    if out is not None:
        print(f"\nWrote {out / 'report.html'} and the records beside it.", file=sys.stderr)
    return 0
