"""Several records in one HTML file: opened by what they say they are, each with the pages that draw its kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinkgate.errors import RecordError
from sinkgate.files import read_json
from sinkgate.report.drawn import write_page
from sinkgate.report.html import Entry, document
from sinkgate.report.payloads import payload_of

__all__ = ["FILES", "KINDS", "format_of", "open_record", "write_pages"]

FILES = (
    "record.json",
    "stream.json",
    "recall.json",
    "effects.json",
    "plan.json",
)  # what a folder's record may be called
KINDS = {
    "sinkgate.diagnosis": "diagnosis",
    "sinkgate.comparison": "comparison",
    "sinkgate.stream": "stream",
    "sinkgate.recall_run": "recall",
    "sinkgate.effects": "effects",
    "sinkgate.plan": "plan",
}


def format_of(path: Path) -> str | None:
    """What a record says it is; None where that cannot be told."""
    try:
        data = read_json(path, "a readable record")
    except (RecordError, FileNotFoundError):
        return None
    said = data.get("format") if isinstance(data, dict) else None
    return said if isinstance(said, str) else None


def open_record(path: Path) -> Any:
    """A record of whichever kind, by its file.

    Raises:
        RecordError: there is none, it is damaged, or of a kind or version that is not known here.
    """
    kind = KINDS.get(format_of(path) or "")
    if kind == "comparison":
        from sinkgate.lab.comparison_record import Comparison

        return Comparison.load(path)
    if kind == "stream":
        from sinkgate.evaluate.stream_record import StreamRecord

        return StreamRecord.load(path)
    if kind == "recall":
        from sinkgate.evaluate.recall_record import RecallRun

        return RecallRun.load(path)
    if kind == "effects":
        from sinkgate.interventions.effects import Effects

        return Effects.load(path)
    if kind == "plan":
        from sinkgate.planning.record import Plan

        return Plan.load(path)
    from sinkgate.record import Diagnosis

    return Diagnosis.load(path)  # and what is no record at all is refused there, by name


def write_pages(records: Iterable[tuple[str, Any]], path: str | os.PathLike[str]) -> Path:
    """The pages over named records as one file that loads nothing.

    Raises:
        RecordError: a record that the pages cannot draw; none at all.
        OutputError: the file cannot be written.
    """
    entries = [Entry(str(i), _kind(record), name, payload_of(record)) for i, (name, record) in enumerate(records)]
    if not entries:
        raise RecordError("there is no record to show; name at least one")
    return write_page(document(entries, title="sinkgate: " + ", ".join(entry.name for entry in entries)), path)


def _kind(record: Any) -> str:
    names = {
        "Diagnosis": "diagnosis",
        "Comparison": "comparison",
        "StreamRecord": "stream",
        "RecallRun": "recall",
        "Effects": "effects",
        "Plan": "plan",
    }
    return names[type(record).__name__]
