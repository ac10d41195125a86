"""One HTML file from a stream's record, or from a recall's: curves, the table under them, and what they do not say.

It is drawn here, so it can be read without a script; it loads nothing.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.evaluate.recall_record import RecallRun
from sinkgate.evaluate.stream_record import StreamArm, StreamRecord, labels
from sinkgate.report.curves import Chart, Line, swatch
from sinkgate.report.drawn import page, write_page
from sinkgate.report.recall import heading, recall_page
from sinkgate.report.tables import common_notes, facts, figure, items, settings, table
from sinkgate.report.text import clean, number

__all__ = ["render", "verdict", "write"]

SAMPLED = 30  # predictions that make one drawn point where only some are made
DRAWN = 100  # points of a curve at most; the table has all of them
SAID = 4  # arms that are spoken of; the table has all of them
LARGEST = 700.0  # nats whose exponential is still a number


def write(record: StreamRecord | RecallRun, path: str | os.PathLike[str]) -> Path:
    """The page of a record as a file, written beside and renamed.

    Raises:
        OutputError: it cannot be written.
    """
    return write_page(render(record), path)


def render(record: StreamRecord | RecallRun) -> str:
    """The whole page; the same record always gives the same text."""
    if isinstance(record, StreamRecord):  # two position schemes of one policy are told apart by name
        arms = [replace(arm, name=name) for arm, name in zip(record.arms, labels(record.arms), strict=True)]
        record = StreamRecord(record.meta, arms)
    if isinstance(record, StreamRecord):
        kind, (charts, body) = "stream report", _stream(record)
    else:
        kind, (charts, body) = "recall report", recall_page(record)
    return page(_title(record), kind, charts, body)


def _title(record: StreamRecord | RecallRun) -> str:
    name = record.meta["model"]["name"]
    if isinstance(record, StreamRecord):
        return f"{name} along {record.meta['tokens']:,} tokens"
    return heading(record)


# ---- perplexity along a stream --------------------------------------------------------------------------------------


def verdict(record: StreamRecord) -> list[str]:
    """What was found, in words."""
    said = []
    for arm in record.arms:
        whole = arm.tokens == record.meta["tokens"] - 1 or arm.at is not None
        extent = "" if whole else f" over its first {arm.tokens:,} tokens"
        said.append(f"{arm.name} {number(arm.perplexity)}{extent}")
    lines = [f"Perplexity along {record.meta['text']}: {', '.join(said)}." if said else "Nothing was read."]
    base = _base(record)
    for arm in [a for a in record.arms if a is not base][:SAID]:
        change = None if base is None else record.change(arm, base)
        if change is not None and math.isfinite(change.low):
            lines.append(
                f"{arm.name} against {base.name if base else ''}: {_signed(change.mean)} nats a token (95% interval {_signed(change.low)} to "
                f"{_signed(change.high)}, over stretches of this one text)."
            )
    held = [f"{arm.name} {arm.held:,} tokens in {_bytes(arm.cache_bytes)}" for arm in record.arms[:SAID] if arm.held]
    return [*lines, *([f"Held at the end: {'; '.join(held)}."] if held else [])]


def _base(record: StreamRecord) -> StreamArm | None:
    return next((arm for arm in record.arms if arm.at is None and arm.tokens), None)


def _stream(record: StreamRecord) -> tuple[list[tuple[str, Chart]], str]:
    meta, base = record.meta, _base(record)
    every = next((arm.every for arm in record.arms), meta["every"])
    longest = max((len(arm.sums) for arm in record.arms), default=0)
    together = max(1, -(-longest // DRAWN))
    whole = (0.0, float(max((len(arm.sums) * arm.every for arm in record.arms), default=1)))
    whole = (0.0, min(whole[1], float(meta["tokens"])))
    stretches = Chart(
        f"Perplexity of each stretch of {every * together:,} tokens", "tokens", "perplexity",
        [_points(arm, together) for arm in record.arms], x_range=whole, y_log=True,
    )  # fmt: skip
    running = Chart(
        "Perplexity of everything so far",
        "tokens",
        "perplexity",
        [_running(arm) for arm in record.arms],
        x_range=whole,
        y_log=True,
    )
    sampled = [arm.name for arm in record.arms if arm.at is not None]
    extra = f" {', '.join(sampled)}: sampled, {SAMPLED} predictions or more to a point." if sampled else ""
    rows = []
    for i, arm in enumerate(record.arms):
        change = record.change(arm, base) if base is not None and arm is not base else None
        apart = change is not None and math.isfinite(change.mean)
        resident = "—" if len(arm.resident) < 2 else f"{_bytes(arm.resident[0])} → {_bytes(arm.resident[-1])}"
        rows.append(
            [
                f"{swatch(i)}<bdi>{clean(arm.name)}</bdi>",
                f"<code>{clean(arm.policy)}</code>" if arm.policy else "every window afresh",
                clean(arm.positions),
                number(arm.perplexity),
                f"{_signed(change.mean)} [{_signed(change.low)}, {_signed(change.high)}]"
                if apart and change is not None
                else "—",
                f"{arm.tokens:,}",
                number(arm.tokens_per_second),
                _bytes(arm.cache_bytes) if arm.cache_bytes else "—",
                f"{arm.held:,}" if arm.held else "—",
                resident,
                clean(f"{arm.note}{'' if arm.complete or arm.note else 'not to the end'}"),
            ]
        )
    columns = [
        "arm", "keeps", "positions", "perplexity", f"nats against {clean(base.name) if base else '—'}", "predictions", "tokens/s",
        "cache", "held", "memory of the process", "",
    ]  # fmt: skip
    charts = [("stretches", stretches), ("running", running)]
    body = (
        f'<div id="head"><div class="lede"><h1>{clean(_title(record))}</h1>{items("verdict", verdict(record))}{items("notes", _notes(record))}</div>'
        f"{facts(settings(meta))}</div>"
        f"<section><h2>Along the stream</h2>{figure('stretches', stretches, 'Lower is better; both ends of the scale are those of the data.' + clean(extra))}"
        f"{figure('running', running, 'The mean over all predictions up to here, exponentiated.')}</section>"
        f"<section><h2>In numbers</h2>{table('What each arm cost', columns, rows, wide=10)}{_all_points(record)}</section>"
    )
    return charts, body


def _notes(record: StreamRecord) -> list[str]:
    apart = len({arm.tokens for arm in record.arms if arm.at is None}) > 1
    more = "Some arms read less of the text than others: their means are not of the same tokens, the curves are."
    return [
        *common_notes(record.meta),
        *([more] if apart else []),
        "Intervals are over stretches of one text, which are no independent samples: they speak of this text.",
    ]


def _groups(arm: StreamArm, together: int) -> list[list[int]]:
    """Stretches that make one drawn point: ``together`` of them, or more where too few predictions were made."""
    least = 1 if arm.at is None else SAMPLED
    groups: list[list[int]] = [[]]
    for k in range(len(arm.sums)):
        if len(groups[-1]) >= together and sum(arm.counts[i] for i in groups[-1]) >= least:
            groups.append([])
        groups[-1].append(k)
    if len(groups) > 1 and sum(arm.counts[i] for i in groups[-1]) < least:
        rest = groups.pop()
        groups[-1] += rest
    return [g for g in groups if sum(arm.counts[i] for i in g)]


def _points(arm: StreamArm, together: int) -> Line:
    """The curve, a point in the middle of each group of stretches."""
    x, y = [], []
    for group in _groups(arm, together):
        count = sum(arm.counts[k] for k in group)
        last = arm.counts[group[-1]] if arm.at is None else arm.every
        x.append((group[0] * arm.every + group[-1] * arm.every + last) / 2)
        y.append(math.exp(min(sum(arm.sums[k] for k in group) / count, LARGEST)))
    return Line(arm.name, x, y)


def _running(arm: StreamArm) -> Line:
    counts = np.cumsum(arm.counts)
    sums = np.cumsum(arm.sums)
    least = 1 if arm.at is None else SAMPLED
    chosen = [k for k in range(len(counts)) if counts[k] >= least and arm.counts[k]]
    ends = [(k + 1) * arm.every if arm.at is not None else k * arm.every + arm.counts[k] for k in chosen]
    return Line(arm.name, ends, [math.exp(min(float(sums[k] / counts[k]), LARGEST)) for k in chosen])


def _all_points(record: StreamRecord) -> str:
    longest = max((len(arm.sums) for arm in record.arms), default=0)
    rows = []
    for k in range(longest):
        cells = [f"{k * record.arms[0].every:,}"]
        for arm in record.arms:
            known = k < len(arm.sums) and arm.counts[k] > 0
            cells.append(number(math.exp(min(arm.sums[k] / arm.counts[k], LARGEST))) if known else "—")
        rows.append(cells)
    inside = table("Perplexity by stretch", ["from token", *(clean(arm.name) for arm in record.arms)], rows)
    return f'<details class="more lines"><summary>All {longest} points</summary>{inside}</details>'


def _change(change: Any) -> str:
    span = f" [{_signed(change.low)}, {_signed(change.high)}]" if math.isfinite(change.low) else ""
    return _signed(change.mean) + span


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−") if math.isfinite(value) else "—"


def _bytes(n: float) -> str:
    power = min(int(math.log2(n)) // 10, 4) if n >= 1 else 0
    return f"{n / 2 ** (10 * power):.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
