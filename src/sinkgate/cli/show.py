"""``sinkgate show DIR``: a saved record, read again without the model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from sinkgate.errors import RecordError

__all__ = ["arguments", "run"]

NAMES = (
    "record.json",
    "stream.json",
    "recall.json",
)  # of a diagnosis or a comparison, of a stream's perplexity, of its recall


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("record", metavar="DIR", help=f"a folder with {', '.join(NAMES)}, or such a file")
    parser.add_argument("--html", metavar="FILE", help="write the report here")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    path = _file(Path(args.record))
    kind = _format(path)
    if kind in ("sinkgate.stream", "sinkgate.recall_run"):
        return _stream(args, path, kind)
    if kind == "sinkgate.comparison":
        from sinkgate.lab.comparison_record import Comparison

        return _shown(args, Comparison.load(path))
    from sinkgate.cli.diagnose import summary
    from sinkgate.record import Diagnosis

    d = Diagnosis.load(path)
    if args.html:
        d.to_html(args.html)
    print(json.dumps(summary(d), ensure_ascii=False, indent=1) if args.json else d)
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


def _format(path: Path) -> str | None:
    """What a record says it is; None where that cannot be told."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data.get("format") if isinstance(data, dict) else None
