"""The tables of a comparison: findings, measures, costs, every run, and what was configured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sinkgate.lab.comparison_record import Comparison
from sinkgate.record import Interval
from sinkgate.report.curves import swatch
from sinkgate.report.metrics import METRICS, metric
from sinkgate.report.tables import facts, table
from sinkgate.report.text import clean, finite, number

__all__ = ["all_numbers", "all_runs", "configurations", "costs", "findings", "mean_text", "measured", "minus"]

HEADS = {
    "arm": "arm", "lr": "learning rate", "difference [95%]": "difference [95% interval]", "told": "finding",
    "spikes": "loss spikes", "diverged": "runs that diverged", "parameters": "parameters", "time": "time per step, × baseline",
}  # fmt: skip
SHORT = 24  # characters of a cell that is not broken
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def minus(text: str) -> str:
    """Numbers below zero with the sign that is made for them."""
    return re.sub(r"(?<![^\s\[(±])-(?=\d)", "−", text)


def mean_text(found: Interval) -> str:
    """A mean with half its interval, as the record writes it."""
    mean, low, high = (float(x) for x in (found.mean, found.low, found.high))
    return _four(mean) if math.isnan(low) else f"{_four(mean)} ±{_four((high - low) / 2)}"


def findings(record: Comparison) -> str:
    """The record's own table, without what is measured beside."""
    columns, rows = record.table()
    kept = [*range(columns.index("told") + 1), *range(columns.index("spikes"), len(columns))]
    heads = [clean(HEADS.get(columns[k], metric(columns[k]).full)) for k in kept]
    body = [[_arm(i, row[0]), *(_cell(row[k]) for k in kept[1:])] for i, row in enumerate(rows)]
    return _dense(table("Each arm at its best learning rate: mean ± half the 95% interval over seeds", heads, body))


def measured(record: Comparison) -> str:
    """What was measured beside the headline."""
    columns, _ = record.table()
    names = columns[columns.index("told") + 1 : columns.index("spikes")]
    if not names:
        return ""
    heads = ["arm", *(_head(name) for name in names)]
    rows = [
        [_arm(i, arm), *(_stacked(record.interval(arm, name)) for name in names)] for i, arm in enumerate(record.arms)
    ]
    return _dense(table("Measured beside, on the same held-out data", heads, rows))


def costs(record: Comparison) -> str:
    """Time and memory of a step."""
    rows = []
    timed = any(record.meta["cost"].get(arm) for arm in record.arms)
    ratios = [finite(record.meta["cost"].get(arm, {}).get("ratio")) for arm in record.arms]
    longest = max([x for x in ratios if math.isfinite(x)], default=1.0)
    peak = any("peak" in p["cost"].get("bytes", {}) for p in record.pieces)
    for i, arm in enumerate(record.arms):
        pieces, cost = record.at_best(arm), record.meta["cost"].get(arm, {})
        held = pieces[0]["cost"].get("bytes", {}) if pieces else {}
        seconds = cost.get("seconds_per_step")
        rows.append([
            _arm(i, arm), "—" if seconds is None else f"{number(1000 * seconds)} ms",
            "—" if not math.isfinite(ratios[i]) else f"{ratios[i]:.2f}{_bar(i, ratios[i] / longest)}",
            str(cost.get("rounds", "—")), f"{pieces[0]['parameters']:,}" if pieces else "—",
            *(_bytes(held.get(name)) for name in ("parameters", "optimizer", "activations", *(["peak"] if peak else []))),
        ])  # fmt: skip
    heads = ["arm", "time per step", "× baseline", "rounds", "parameters", "of parameters", "of the optimizer", "kept for the backward pass",
             *(["peak on the device"] if peak else [])]  # fmt: skip
    said = (
        "A step is data, forward, backward and update; arms take turns, medians of paired rounds after one to warm up."
        if timed
        else "The time of a step was not measured."
    )
    return _dense(table("Time and memory of one step", heads, rows)) + f'<p class="note">{said}</p>'


def all_numbers(record: Comparison) -> str:
    """Every number that was measured at the end."""
    tests = [p["test"] for arm in record.arms for p in record.at_best(arm)]
    there = {name for test in tests for name, x in test.items() if not isinstance(x, list | dict | str)}
    known = [name for name in METRICS if name in there]
    names = [
        n
        for n in (*known, *sorted(there - set(known)))
        if np.isfinite([record.values(a, n) for a in record.arms]).any()
    ]
    if not names:
        return ""
    rows = [[_head(name), *(_stacked(record.interval(arm, name)) for arm in record.arms)] for name in names]
    inside = table("Mean ± half the 95% interval over seeds", ["", *(clean(arm) for arm in record.arms)], rows)
    return _more(f"All {len(names)} numbers measured at the end", inside)


def all_runs(record: Comparison) -> str:
    """One row per piece."""
    headline = record.meta["headline"]
    rows = []
    for p in sorted(record.pieces, key=lambda p: (record.arms.index(p["arm"]), p["piece"]["lr"], p["piece"]["seed"])):
        why = "" if not p["diverged"] else f"diverged at step {p['diverged'].get('step')}: {p['diverged'].get('why')}"
        cost, env = p["cost"], p.get("environment", {})
        seconds = cost.get("seconds_per_step")
        rows.append([
            f"<bdi>{clean(p['arm'])}</bdi>", f"{p['piece']['lr']:g}", str(p["piece"]["seed"]),
            f"{p['steps']:,}{' (rule met)' if p.get('ended_early') else ''}", _four(finite(p["select"].get(headline))),
            _four(finite(p["test"].get(headline))), str(len(p["spikes"])), "—" if seconds is None else f"{number(1000 * seconds)} ms",
            str(cost.get("attempts", "—")), f"<span class='mono'>{clean(env.get('code', '—'))}</span>", clean(why),
        ])  # fmt: skip
    label = clean(metric(headline).label)
    heads = ["arm", "learning rate", "seed", "steps", f"{label}, choosing", f"{label}, reported", "spikes", "time per step", "attempts",
             "code", ""]  # fmt: skip
    return _more(f"All {len(rows)} runs", _dense(table("Every run", heads, rows, wide=10)))


def configurations(record: Comparison) -> str:
    """The task, the machine, and each arm, in full."""
    plan = record.meta["plan"]
    parts = [
        _more("Task", facts(_flat(plan["task"]))),
        _more("Machine and versions", facts(_flat(record.meta["environment"]))),
    ]
    for i, arm in enumerate(record.arms):
        pieces = record.at_best(arm)
        settings = plan["arms"][i] if i < len(plan["arms"]) else {}
        loop = pieces[0]["loop"] if pieces else {}
        rows = [*_flat({"arm": settings}), *_flat({"training": {k: v for k, v in loop.items() if k != "seed"}})]
        parts.append(_more(f"Arm: {arm}", facts(rows)))
    return "".join(parts)


# ---- parts ------------------------------------------------------------------------------------------------------


def _arm(i: int, name: str) -> str:
    return f"{swatch(i)}<bdi>{clean(name)}</bdi>"


def _head(name: str) -> str:
    known = metric(name)
    return f"{clean(known.label)}<small>{clean(known.unit)}</small>" if known.unit else clean(known.label)


def _cell(text: str) -> str:
    """Text of the record; one that is short stays on one line."""
    shown = clean(minus(text)) or "—"
    return f'<span class="whole">{shown}</span>' if len(text) < SHORT else shown


def _stacked(found: Interval) -> str:
    """A mean, and below it half its interval."""
    mean, low, high = (float(x) for x in (found.mean, found.low, found.high))
    half = (high - low) / 2
    half = half if half > 1e-6 * abs(mean) else half * 0  # what rounding left is no spread
    return minus(_four(mean)) + (f"<small>±{_two(half)}</small>" if math.isfinite(half) else "")


def _dense(inside: str) -> str:
    return f'<div class="dense">{inside}</div>'


def _more(title: str, inside: str) -> str:
    return f'<details class="more"><summary>{clean(title)}</summary>{inside}</details>'


def _bar(i: int, share: float) -> str:
    return f'<svg class="bar-in" width="60" height="8" aria-hidden="true"><rect class="dot-a{i % 5}" width="{60 * share:.1f}" height="8"/></svg>'


def _four(x: float) -> str:
    return "—" if not math.isfinite(x) else f"{x:.4g}" if abs(x) < 1e4 else f"{x:.2e}"


def _two(x: float) -> str:
    return f"{x:,.0f}" if 100 <= x < 1e6 else f"{x:.2g}"


def _bytes(n: Any) -> str:
    if not isinstance(n, int | float):
        return "—"
    power = min(int(math.log2(n)) // 10, 4) if n >= 1 else 0
    return f"{n / 2 ** (10 * power):.4g} {UNITS[power]}"


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings, one line each."""
    if isinstance(value, dict) and value:
        for name, inside in value.items():
            yield from _flat(inside, f"{at}.{name}" if at else str(name))
    else:
        shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        yield at, shown if not isinstance(value, list) else ", ".join(map(str, value)) or "none"
