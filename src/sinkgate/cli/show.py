"""``sinkgate show DIR``: a saved record, read again without the model."""

from __future__ import annotations

import argparse
import json

__all__ = ["arguments", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("record", metavar="DIR", help="a folder with record.json")
    parser.add_argument("--html", metavar="FILE", help="write the report here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from sinkgate.cli.diagnose import summary
    from sinkgate.record import Diagnosis

    d = Diagnosis.load(args.record)
    if args.html:
        d.to_html(args.html)
    print(json.dumps(summary(d), ensure_ascii=False, indent=1) if args.json else d)
    return 0
