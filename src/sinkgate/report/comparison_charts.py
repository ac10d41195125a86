"""The curves of a comparison: over steps, over learning rates, by length, position, depth and layer."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sinkgate.lab.comparison_record import Comparison
from sinkgate.report.curves import RIGHT, WIDTH, Chart, Line
from sinkgate.report.metrics import metric
from sinkgate.report.text import finite, number

__all__ = ["BANDS", "Drawn", "by_place", "over_rates", "over_steps"]

DRAWN = 100  # points of a curve at most
BANDS = 6  # arms at most whose areas can lie over each other and still be seen
SPIKES = 40  # marked ones of an arm at most
LOG = 30  # largest over smallest value from which a log scale shows more
WANTED = ("loss", "first_mass", "sink_rate", "max_activation", "kurtosis", "grad_norm", "gate_mean", "back_mass")
SMALL, NAMES = 600, 170  # width of a chart beside another, and of its names
PLACES = {
    "layer": "layer, counted from 0",
    "length": "tokens of context",
    "position": "position of the token",
    "depth": "where the string lies, as a share of the context",
}
STREAM = "before layer, counted from 0; last: after all"


@dataclass(frozen=True)
class Drawn:
    """A chart with what has to be said below it."""

    chart: Chart
    note: str


# ---- over steps -------------------------------------------------------------------------------------------------


def over_steps(record: Comparison) -> list[Drawn]:
    """The headline first, then whatever else was logged and is of use."""
    logged = {name for arm in record.arms for p in record.at_best(arm) for line in p["curve"] for name in line}
    headline = record.meta["headline"]
    first = "held_out" if headline == "loss" or headline not in logged else headline
    others = ["loss", *record.meta["shown"], *WANTED, *(n for n in ("mass", "dead_heads") if _varies(record, n))]
    names = list(dict.fromkeys([first, *others]))
    found = [_steps(record, name, large=name == first) for name in names if name in logged]
    return [drawn for drawn in found if drawn is not None]


def _steps(record: Comparison, name: str, *, large: bool) -> Drawn | None:
    arms = [(arm, record.at_best(arm)) for arm in record.arms]
    logged = [line for _, pieces in arms for p in pieces for line in p["curve"]]
    each = name in ("loss", "grad_norm") or not any("held_out" in line or name not in line for line in logged)
    last = max((line["step"] for line in logged), default=0)
    width = max(1, -(-(last + 1) // DRAWN)) if each else 1
    lines = _calm([_arm_line(arm, pieces, name, width) for arm, pieces in arms])
    if not any(line.x or line.strands for line in lines):
        return None
    places = sorted({x for line in lines for x in line.x})
    if name == "first_mass":
        lines += _nulls(record, places or [0.0, float(last)])
    known = metric(name)
    low, high, log = _span(lines, share=known.share, apart=_spikes(record, width) if name == "loss" else set())
    chart = Chart(
        "Training loss" if name == "loss" else known.title, "step", f"{known.unit or known.label}{' (log scale)' if log else ''}", lines,
        whole=True, x_range=(0.0, float(max(last, 1))), y_range=(low, high), y_log=log,
        column=[f"{x:,.0f}" if width == 1 else f"{x - (width - 1) / 2:,.0f}–{x + (width - 1) / 2:,.0f}" for x in places],
        height=_height(lines, large), width=WIDTH if large else SMALL, names=RIGHT if large else NAMES,
    )  # fmt: skip
    return Drawn(chart, " ".join(_said(record, name, lines, width, each)))


def _said(record: Comparison, name: str, lines: Sequence[Line], width: int, each: bool) -> Iterable[str]:
    known = metric(name)
    if name == "loss":
        yield "Loss of the batches that were trained on."
    else:
        yield known.says
        if each and name not in ("grad_norm", "loss"):
            yield "Of the batches that were trained on."
    if name == record.meta["headline"] or name == "held_out":
        yield f"{'Higher' if record.meta['higher'] else 'Lower'} is better."
    if any(line.events and any(kind == "spike" for *_, kind in line.events) for line in lines):
        count = sum(len(p["spikes"]) for arm in record.arms for p in record.at_best(arm))
        yield f"Triangles: {count} spikes, losses far over the median of those before (at most {SPIKES} drawn per arm; they do not set the scale)."
    if any(kind == "lost" for line in lines for *_, kind in line.events):
        yield "Crosses: where a run diverged; it is drawn thin and is in no mean."
    if width > 1:
        yield f"A point is the mean of what was logged in {width:,} steps."


def _arm_line(arm: str, pieces: Sequence[dict[str, Any]], name: str, width: int) -> Line:
    """Mean over the seeds that did not diverge, as far as all of them go."""
    found = [(p, _binned(p, name, width)) for p in pieces]
    alive = [values for p, values in found if not p["diverged"] and values]
    common = sorted(set.intersection(*(set(v) for v in alive))) if alive else []
    table = np.array([[values[x] for x in common] for values in alive]).reshape(len(alive), len(common))
    spread = len(alive) > 1
    strands: list[tuple[list[float], list[float]]] = []
    events: list[tuple[float, float | None, str]] = []
    for p, values in found:
        lost = bool(p["diverged"])
        rest = sorted(values) if lost or not common else [x for x in sorted(values) if x >= common[-1]]
        if len(rest) > 1:
            strands.append((rest, [values[x] for x in rest]))
        if lost:
            end = sorted(values)[-1] if values else float(p["diverged"].get("step") or 0)
            events.append((end, values.get(end), "lost"))
        if name == "loss":
            losses = {line["step"]: line.get("loss") for line in p["curve"]}
            spikes = p["spikes"][: SPIKES - sum(kind == "spike" for *_, kind in events)]
            events += [(float(s), losses.get(s), "spike") for s in spikes]
    return Line(
        arm, common, table.mean(0).tolist() if len(alive) else [],
        table.min(0).tolist() if spread else (), table.max(0).tolist() if spread else (), band=spread,
        note=[f"({number(a)} to {number(b)})" for a, b in zip(table.min(0), table.max(0), strict=True)] if spread else (),
        strands=strands, events=events,
    )  # fmt: skip


def _binned(piece: dict[str, Any], name: str, width: int) -> dict[float, float]:
    """Mean of what was logged in each stretch of so many steps, by the stretch's middle."""
    groups: dict[float, list[float]] = {}
    for line in piece["curve"]:
        if math.isfinite(value := finite(line.get(name))):
            groups.setdefault(line["step"] // width * width + (width - 1) / 2, []).append(value)
    return {x: math.fsum(values) / len(values) for x, values in groups.items()}


def _nulls(record: Comparison, places: Sequence[float]) -> list[Line]:
    """What uniform attention gives the first key: once, or for each arm that sees other keys."""
    found: dict[str, list[str]] = {}
    values: dict[str, float] = {}
    for arm in record.arms:
        known = [finite(x.get("first_null")) for p in record.at_best(arm) for x in (*p["curve"], p["test"])]
        known = [x for x in known if math.isfinite(x)]
        if known:
            value = float(np.median(known))
            found.setdefault(f"{value:.6g}", []).append(arm)
            values[f"{value:.6g}"] = value
    most = max(found, key=lambda key: len(found[key]), default="")
    return [
        Line("uniform" if key == most else f"uniform: {', '.join(arms)}", places, [values[key]] * len(places), reference=True)
        for key, arms in found.items()
    ]  # fmt: skip


# ---- over learning rates ----------------------------------------------------------------------------------------


def over_rates(record: Comparison) -> Drawn | None:
    """The headline by learning rate, on the data that chose; None where there was one rate."""
    known = metric(record.meta["headline"])
    sweeps = {arm: record.sweep(arm) for arm in record.arms}
    rates = sorted({lr for sweep in sweeps.values() for lr in sweep})
    if len(rates) < 2:
        return None
    lines, said = [], []
    for arm, sweep in sweeps.items():
        x, y, low, high, events = [], [], [], [], []
        for lr, values in sorted(sweep.items()):
            there = [v for v in values if math.isfinite(v)]
            x.append(lr)
            whole = bool(there) and len(there) == len(values)
            y.append(math.fsum(there) / len(there) if whole else math.nan)
            low.append(min(there) if whole and len(there) > 1 else math.nan)
            high.append(max(there) if whole and len(there) > 1 else math.nan)
            if values and not whole:
                events.append((lr, None, "lost"))
                said.append(f"{arm} at {lr:g} ({len(values) - len(there)} of {len(values)})")
        best = record.meta["best_lr"][arm]
        lines.append(
            Line(arm, x, y, low, high, [lr != best for lr in x], ["chosen" if lr == best else "" for lr in x],
                 band=True, events=events)
        )  # fmt: skip
    bottom, top, log = _span(lines, share=known.share)
    chart = Chart(
        f"{known.title} by learning rate", "peak learning rate (log scale)",
        f"{known.unit or known.label}{' (log scale)' if log else ''}", lines, x_log=True, y_range=(bottom, top), y_log=log,
        column=[f"{lr:g}" for lr in rates], height=_height(lines, True) - 70,
    )  # fmt: skip
    lost = f" Crosses at the upper edge, diverged: {'; '.join(said)}." if said else " No run diverged."
    return Drawn(
        chart, f"On the data that chooses, not on those that are reported. Filled: the rate that was chosen.{lost}"
    )


# ---- by length, position, depth, layer --------------------------------------------------------------------------


def by_place(record: Comparison) -> list[Drawn]:
    """Every list of numbers that is by length, position, depth or layer, and longer than one."""
    tests = {arm: [p["test"] for p in record.at_best(arm) if not p["diverged"]] for arm in record.arms}
    names = dict.fromkeys(n for each in tests.values() for test in each for n, x in test.items() if isinstance(x, list))
    found = {}
    for name in names:
        what, by, place = name.rpartition("_by_")
        if by and place in PLACES and (drawn := _list(record, name, what, place, tests)) is not None:
            found[name] = drawn
    pair = ("loss_by_length", "yarn_loss_by_length")
    if all(name in found for name in pair):  # beside each other, on one scale
        ranges = [found[name].chart.y_range or (0, 1) for name in pair]
        both = (min(low for low, _ in ranges), max(high for _, high in ranges))
        for name in pair:
            found[name] = Drawn(replace(found[name].chart, y_range=both), found[name].note)
    order = {place: k for k, place in enumerate(("length", "position", "depth", "layer"))}
    return [found[n] for n in sorted(found, key=lambda n: order[n.rpartition("_by_")[2]])]


def _list(record: Comparison, name: str, what: str, place: str, tests: dict[str, list[dict[str, Any]]]) -> Drawn | None:
    lines: list[Line] = []
    columns: dict[float, str] = {}
    for arm, each in tests.items():
        rows = [test[name] for test in each if isinstance(test.get(name), list) and test[name]]
        size = min((len(row) for row in rows), default=0)
        table = np.array([[finite(x) for x in row[:size]] for row in rows]).reshape(len(rows), size)
        x, labels = _places(each, what, place, size)
        if place == "position":
            table, x, labels = _together(table)
        columns |= dict(zip(x, labels, strict=True))
        spread = len(rows) > 1
        lines.append(
            Line(arm, x, table.mean(0).tolist() if rows else [], table.min(0).tolist() if spread else (),
                 table.max(0).tolist() if spread else (), band=spread)
        )  # fmt: skip
    lines, places = _calm(lines), sorted(columns)
    if len(places) < 2 or not any(math.isfinite(y) for line in lines for y in line.y):  # type: ignore[arg-type]
        return None
    if what in ("recall", "first_mass"):
        lines += _references(record, what, places)
    known, log_x = metric(name), place in ("length", "position")
    low, high, log = _span(lines, share=known.share)
    where = STREAM if what in ("max_activation", "kurtosis") else PLACES[place]
    chart = Chart(
        known.title, f"{where}{' (log scale)' if log_x else ''}",
        f"{known.unit or known.label}{' (log scale)' if log else ''}", lines, x_log=log_x, y_range=(low, high), y_log=log,
        x_range=(0.0, 1.0) if place == "depth" else None, column=[columns[x] for x in places],
        height=_height(lines, False), whole=place == "layer", width=SMALL, names=NAMES,
    )  # fmt: skip
    more = " Later positions are taken together." if any("–" in shown for shown in columns.values()) else ""
    return Drawn(chart, known.says + more)


def _places(each: list[dict[str, Any]], what: str, place: str, size: int) -> tuple[list[float], list[str]]:
    """Where the numbers of a list stand: as the record says, or counted."""
    said = next((test[n] for test in each for n in (place, f"{what}_{place}") if isinstance(test.get(n), list)), None)
    if said is not None and len(said) == size:
        x = [float(v) for v in said]
        return x, [f"{v:.0%}" if place == "depth" else f"{v:,g}" for v in x]
    first = 1 if place == "position" else 0
    return [float(k + first) for k in range(size)], [str(k + first) for k in range(size)]


def _together(table: np.ndarray) -> tuple[np.ndarray, list[float], list[str]]:
    """Positions from 1 in stretches that grow."""
    size = table.shape[1]
    edges = (
        np.unique(np.round(np.geomspace(1, size + 1, min(DRAWN // 2, size + 1))).astype(int)) if size else np.array([1])
    )
    spans = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    means = np.array([[row[a - 1 : b - 1].mean() for a, b in spans] for row in table]).reshape(len(table), len(spans))
    return means, [math.sqrt(a * (b - 1)) for a, b in spans], [str(a) if b - a == 1 else f"{a:,}–{b - 1:,}" for a, b in spans]  # fmt: skip


def _references(record: Comparison, what: str, places: Sequence[float]) -> list[Line]:
    if what == "first_mass":
        return _nulls(record, places)
    chance = np.concatenate([record.values(arm, "recall_chance") for arm in record.arms])
    chance = chance[np.isfinite(chance)]
    return [Line("by chance", places, [float(chance.mean())] * len(places), reference=True)] if len(chance) else []


# ---- scales and areas -----------------------------------------------------------------------------------------------------


def _spikes(record: Comparison, width: int) -> set[float]:
    """The stretches with a spike in any run: they do not set the scale, and are drawn at its edge."""
    return {
        s // width * width + (width - 1) / 2 for arm in record.arms for p in record.at_best(arm) for s in p["spikes"]
    }


def _span(lines: Sequence[Line], *, share: bool, apart: Container[float] = ()) -> tuple[float, float, bool]:
    """Ends of the value axis, and whether it is a log scale."""
    known = [
        v
        for line in lines
        for values in (line.y, line.low, line.high)
        for x, v in zip(line.x, values, strict=False)
        if v is not None and math.isfinite(v) and x not in apart
    ]
    if not [v for line in lines if not line.reference for v in line.y if v is not None and math.isfinite(v)]:
        known += [
            v for line in lines for _, values in line.strands for v in values if v is not None and math.isfinite(v)
        ]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if share and low >= 0:
        top = high or 0.1
        return -0.02 * top, 1.06 * top, False
    if low > 0 and high / low > LOG:
        return low / 1.06, high * 1.06, True
    pad = 0.06 * (high - low) or 0.06 * abs(high) or 0.5
    return low - pad, high + pad, False


def _calm(lines: list[Line]) -> list[Line]:
    """Without areas, where there would be too many of them."""
    return [replace(line, low=(), high=(), band=False) for line in lines] if len(lines) > BANDS else lines


def _height(lines: Sequence[Line], large: bool) -> int:
    """Enough for every name beside the picture."""
    return max(430 if large else 300, 16 * len(lines) + 70)


def _varies(record: Comparison, name: str) -> bool:
    found = np.concatenate([record.values(arm, name) for arm in record.arms])
    found = found[np.isfinite(found)]
    return bool(len(found)) and bool(np.ptp(found) > 1e-3)
