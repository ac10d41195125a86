"""``sinkgate merge A B … --out DIR``: records of one model as one, to the same bits in any order."""

from __future__ import annotations

import argparse
from functools import reduce
from pathlib import Path

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("records", nargs="+", metavar="DIR", help="folders with record.json")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the merged record and its report go")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from sinkgate.cli.diagnose import writable
    from sinkgate.record import Diagnosis

    out = writable(Path(args.out))
    merged = reduce(Diagnosis.merge, [Diagnosis.load(path) for path in args.records])
    merged.save(out)
    merged.to_html(out / "report.html")
    print(merged)
    return 0
