"""``sinkgate show DIR…``: saved records, read again without the model; several become one page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, RecordError

__all__ = ["arguments", "run"]

NAMES = (
    "record.json",
    "stream.json",
    "recall.json",
    "effects.json",
    "plan.json",
)  # of a diagnosis or a comparison, of a stream's perplexity, of its recall, of what acts did, of a plan


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "record",
        nargs="+",
        metavar="DIR",
        help=f"a folder with {', '.join(NAMES)}, or such a file; several make one page",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write the report here; with several records: the pages over all of them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    paths = [_file(Path(record)) for record in args.record]
    if len(paths) > 1:
        return _several(args, paths)
    from sinkgate.report.pages import format_of

    path, kind = paths[0], format_of(paths[0])
    if kind in ("sinkgate.stream", "sinkgate.recall_run"):
        return _stream(args, path, kind)
    if kind == "sinkgate.comparison":
        from sinkgate.lab.comparison_record import Comparison

        return _shown(args, Comparison.load(path))
    if kind == "sinkgate.effects":
        return _effects(args, path)
    if kind == "sinkgate.plan":
        return _plan(args, path)
    from sinkgate.cli.diagnose import summary
    from sinkgate.record import Diagnosis

    d = Diagnosis.load(path)
    if args.html:
        d.to_html(args.html)
    print(json.dumps(summary(d), ensure_ascii=False, indent=1) if args.json else d)
    return 0


def _several(args: argparse.Namespace, paths: list[Path]) -> int:
    """One page over all of them, or each in turn as text."""
    if args.json:
        raise ArgumentError("--json prints one record; name one, or write the page of several with --html FILE")
    from sinkgate.report.pages import open_record, write_pages

    records = [open_record(path) for path in paths]
    if args.html:
        write_pages(zip([path.parent.name or str(path) for path in paths], records, strict=True), args.html)
    else:
        print("\n\n".join(str(record) for record in records))
    return 0


def _effects(args: argparse.Namespace, path: Path) -> int:
    from sinkgate.cli.intervene import summary
    from sinkgate.interventions import Effects

    if args.html:
        raise ArgumentError(
            "effects are shown beside a diagnosis of the same model: sinkgate show DIAGNOSIS EFFECTS --html FILE"
        )
    effects = Effects.load(path)
    print(json.dumps(summary(effects), ensure_ascii=False, indent=1) if args.json else effects)
    return 0


def _plan(args: argparse.Namespace, path: Path) -> int:
    from sinkgate.planning.record import Plan
    from sinkgate.report.pages import write_pages

    plan = Plan.load(path)
    if args.html:
        write_pages([(plan.meta["model"]["name"], plan)], args.html)
    print(json.dumps(plan.to_json(), ensure_ascii=False, indent=1) if args.json else plan)
    return 0


def _stream(args: argparse.Namespace, path: Path, kind: str) -> int:
    from sinkgate.evaluate.recall_record import RecallRun
    from sinkgate.evaluate.stream_record import StreamRecord
    from sinkgate.files import jsonable
    from sinkgate.report.stream import write

    record: Any = StreamRecord.load(path) if kind == "sinkgate.stream" else RecallRun.load(path)
    if args.html:
        write(record, args.html)
    print(json.dumps(jsonable(record.to_json()), ensure_ascii=False, indent=1) if args.json else record)
    return 0


def _shown(args: argparse.Namespace, record: Any) -> int:
    """A record that knows its page, its JSON and its text."""
    from sinkgate.files import jsonable

    if args.html:
        record.to_html(args.html)
    print(json.dumps(jsonable(record.to_json()), ensure_ascii=False, indent=1) if args.json else record)
    return 0


def _file(path: Path) -> Path:
    """The record in a folder; the path itself where there is none, so that it is refused by name."""
    found = [path / name for name in NAMES if (path / name).is_file()]
    if len(found) > 1:
        raise RecordError(f"{path} holds {' and '.join(p.name for p in found)}; name one: {found[0]}")
    return found[0] if found else path
