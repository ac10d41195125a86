"""Curves as plain SVG: lines that are told apart without colour, readable axes, a name at the end of each line.

The picture needs no script; one beside it (``drawn.js``) only shows the numbers under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.report.text import clean, number, plain, tick, ticks

__all__ = ["Chart", "Line", "data", "svg", "swatch"]

WIDTH, HEIGHT = 1000, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 200, 14, 48
COLOURS, DASHES = 5, ("", "8 4", "2 4")  # five colours, then the same ones dashed, then dotted
FEW = 40  # points of the longest line up to which all are marked one by one
CHARACTER = 6.7  # pixels of one, on average
NEAR = 90  # pixels from the right edge within which a line counts as drawn to the end
MARK = 90  # pixels that the name of a marked place takes
STEP = 16  # pixels from one name to the next


@dataclass(frozen=True)
class Line:
    """One curve.

    Args:
        name: at its end.
        x: places, ascending.
        y: values; None or NaN leaves a gap.
        low: of each value's interval, if it has one; NaN: not here.
        high: the same.
        band: intervals are an area behind the curve, not a whisker at each point.
        hollow: points drawn as rings.
        note: of each point, for whoever points at it.
        strands: thin curves in the same colour, (places, values) each; they set no scale.
        events: marked single points, (place, value, kind): ``"spike"`` or ``"lost"``; without a value at the upper edge.
        reference: something to compare with and no result: thin, grey, behind.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hollow: Sequence[bool] = ()
    note: Sequence[str] = ()
    band: bool = False
    strands: Sequence[tuple[Sequence[float], Sequence[float | None]]] = ()
    events: Sequence[tuple[float, float | None, str]] = ()
    reference: bool = False


@dataclass(frozen=True)
class Chart:
    """One figure.

    Args:
        title: above it.
        x_label: below the axis.
        y_label: above the axis.
        lines: what is drawn.
        x_log: whether places stand on a log scale.
        y_log: whether values do.
        x_range: fixed ends of the axis; None: of the places.
        y_range: the same of the other one.
        percent: values are shares.
        marks: places that are marked, with their names.
        column: names of places for whoever points at them; None: numbers.
        width: of the drawing, in its own pixels.
        height: the same.
        names: how much of the width is for the names of the lines.
        whole: places are whole numbers.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_log: bool = False
    y_log: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    percent: bool = False
    marks: Sequence[tuple[float, str]] = ()
    column: Sequence[str] | None = None
    width: int = WIDTH
    height: int = HEIGHT
    names: int = RIGHT
    whole: bool = False

    @property
    def edge(self) -> int:
        """The right end of the plane."""
        return self.width - self.names

    @property
    def floor(self) -> int:
        """The lower end of the plane."""
        return self.height - BOTTOM


class _Scale:
    """Values to pixels."""

    def __init__(self, low: float, high: float, begin: float, end: float, log: bool) -> None:
        self.low, self.high, self.begin, self.end, self.log = low, high, begin, end, log

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.log
            else (self.low, self.high, value)
        )
        return round(self.begin + (self.end - self.begin) * (at - low) / (high - low), 1)

    def inside(self, value: float) -> float:
        """The same, at the edge for what is beyond it."""
        return self(min(max(value, self.low), self.high))


def _scales(chart: Chart) -> tuple[_Scale, _Scale]:
    xs = [x for line in chart.lines for x in line.x] or [0.0, 1.0]
    ys = [y for line in chart.lines for y in _finite(line.y) if y is not None and (y > 0 or not chart.y_log)] or [1.0]
    low, high = (min(xs) / 1.2, max(xs) * 1.2) if chart.x_log else (0.0, max(xs) or 1.0)
    low, high = chart.x_range or (low, high)
    bottom, top = min(ys), max(ys)
    if chart.y_log:
        bottom, top = bottom / 1.06, top * 1.06
    else:
        pad = 0.06 * (top - bottom) or 0.5
        bottom, top = bottom - pad, top + pad
    bottom, top = chart.y_range or (bottom, top)
    return (
        _Scale(low, high, LEFT, chart.edge, chart.x_log),
        _Scale(bottom, top, chart.floor, TOP, chart.y_log),
    )


def _finite(values: Sequence[float | None]) -> list[float | None]:
    return [None if v is None or not math.isfinite(v) else v for v in values]


def svg(chart: Chart, ident: str) -> str:
    """The picture; lines are numbered by their place in the chart."""
    x, y = _scales(chart)
    parts = [
        f'<svg id="{ident}" viewBox="0 0 {chart.width} {chart.height}" role="img" tabindex="0" aria-label="{clean(chart.title)}">',
        *_axes(chart, x, y),
    ]
    named = -math.inf
    for value, name in sorted(chart.marks):
        if x.low <= value <= x.high:
            parts.append(f'<path class="mark-line" d="M{x(value)} {TOP}V{chart.floor}"/>')
            if x(value) - named > MARK:  # a name on another would be neither
                parts.append(f'<text class="halo" x="{x(value) + 4}" y="{TOP + 10}">{clean(name, 28)}</text>')
                named = x(value)
    few = max((len(line.x) for line in chart.lines), default=0) <= FEW
    behind = sorted(enumerate(chart.lines), key=lambda known: not known[1].reference)
    parts += [_behind(line, i, x, y) for i, line in behind]
    parts += [_drawn(line, i, x, y, few) for i, line in behind]
    parts += [_event(at, value, kind, i, x, y) for i, line in enumerate(chart.lines) for at, value, kind in line.events]
    parts += _names(chart, x, y)
    parts.append(f'<path class="cross" d="M0 {TOP}V{chart.floor}" visibility="hidden"/></svg>')
    return "".join(parts)


def _axes(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    down = max(4, round((chart.floor - TOP) / 52))
    across = max(4, round((chart.edge - LEFT) / 92))
    for value in ticks(y.low, y.high, down, log=y.log):
        shown = f"{100 * value:.0f}%" if chart.percent else tick(value)
        parts.append(f'<path class="gridline" d="M{LEFT} {y(value)}H{chart.edge}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{shown}</text>')
    for value in ticks(x.low, x.high, across, log=x.log):
        if chart.whole and value != round(value):
            continue
        parts.append(f'<path class="axis" d="M{x(value)} {chart.floor}v5"/>')
        parts.append(f'<text x="{x(value)}" y="{chart.floor + 19}" text-anchor="middle">{tick(value)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {chart.floor}H{chart.edge}"/>')
    middle, half = (LEFT + chart.edge) / 2, (TOP + chart.floor) / 2
    parts.append(f'<text x="{middle}" y="{chart.height - 8}" text-anchor="middle">{clean(chart.x_label)}</text>')
    parts.append(
        f'<text transform="translate(14 {half}) rotate(-90)" text-anchor="middle">{clean(chart.y_label)}</text>'
    )
    return parts


def _style(i: int, *, reference: bool = False) -> str:
    if reference:
        return 'class="series reference"'
    dash = DASHES[i // COLOURS % len(DASHES)]
    return f'class="series a{i % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _drawn(line: Line, i: int, x: _Scale, y: _Scale, few: bool) -> str:
    runs: list[list[str]] = [[]]
    dots = []
    values = _finite(line.y)
    for k, (at, value) in enumerate(zip(line.x, values, strict=True)):
        if value is None:
            runs.append([])
            continue
        runs[-1].append(f"{x(at)} {y.inside(value)}")
        if line.low and not line.band and math.isfinite(line.low[k]):
            dots.append(
                f'<path class="whisker a{i % COLOURS}" d="M{x(at) + 4 * i - 4} {y(line.low[k])}V{y(line.high[k])}"/>'
            )
        if few and not line.reference:
            ring = bool(line.hollow) and line.hollow[k]
            dots.append(
                f'<circle class="{"ring-" if ring else "dot-"}a{i % COLOURS}" cx="{x(at)}" cy="{y.inside(value)}" r="3.4"/>'
            )
    if not few:  # a point between two gaps has no line
        dots += [f'<circle class="dot-a{i % COLOURS}" cx="{r[0].split()[0]}" cy="{r[0].split()[1]}" r="2"/>'
                 for r in runs if len(r) == 1]  # fmt: skip
    style = _style(i, reference=line.reference)
    paths = "".join(f'<path {style} d="M{"L".join(run)}"/>' for run in runs if len(run) > 1)
    return f"<g>{paths}{''.join(dots)}</g>"


def _behind(line: Line, i: int, x: _Scale, y: _Scale) -> str:
    """Areas and thin curves."""
    parts = []
    if line.band:
        spans: list[list[int]] = [[]]
        for k, (low, high) in enumerate(zip(line.low, line.high, strict=True)):
            if math.isfinite(low) and math.isfinite(high):
                spans[-1].append(k)
            elif spans[-1]:
                spans.append([])
        for span in spans:
            there = [f"{x(line.x[k])} {y.inside(line.high[k])}" for k in span]
            back = [f"{x(line.x[k])} {y.inside(line.low[k])}" for k in reversed(span)]
            if len(span) > 1:
                parts.append(f'<path class="band dot-a{i % COLOURS}" d="M{"L".join(there + back)}Z"/>')
    for places, values in line.strands:
        runs: list[list[str]] = [[]]
        for at, value in zip(places, _finite(values), strict=True):
            if value is None:
                runs.append([])
            else:
                runs[-1].append(f"{x(at)} {y.inside(value)}")
        parts += [f'<path class="strand a{i % COLOURS}" d="M{"L".join(run)}"/>' for run in runs if len(run) > 1]
    return "".join(parts)


def _event(at: float, value: float | None, kind: str, i: int, x: _Scale, y: _Scale) -> str:
    """A triangle for a spike, a cross for a run that was lost."""
    side, up = x.inside(at), TOP + 5.0 if value is None or not math.isfinite(value) else y.inside(value)
    if kind == "lost":
        side += 3 * i if value is None else 0  # several at one place of the edge
        return f'<g><title>diverged</title><path class="lost a{i % COLOURS}" d="M{side - 4:.1f} {up - 4:.1f}l8 8m-8 0l8 -8"/></g>'
    return f'<g><title>spike</title><path class="dot-a{i % COLOURS}" d="M{side - 4:.1f} {up - 4:.1f}h8l-4 7z"/></g>'


def _names(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    """A name where each line ends: beside the picture, or in it where a line stops early; none over another."""
    ends = []
    for i, line in enumerate(chart.lines):
        known = [(x(a), y(v)) for a, v in zip(line.x, _finite(line.y), strict=True) if v is not None]
        if known:
            ends.append((i, *known[-1]))
    edge, fits = chart.edge, int((chart.names - 22) / CHARACTER)
    groups: dict[int, list[tuple[int, float, float]]] = {}
    for end in ends:
        groups.setdefault(10**6 if end[1] > edge - NEAR else round(end[1] / 150), []).append(end)
    parts = []
    for group in groups.values():
        group.sort(key=lambda e: e[2])
        at = [e[2] for e in group]
        for k in range(1, len(at)):
            at[k] = max(at[k], at[k - 1] + STEP)
        lowest = chart.floor - 2.0
        for k in reversed(range(len(at))):
            at[k] = min(at[k], lowest - STEP * (len(at) - 1 - k))
        for (i, end_x, end_y), label_y in zip(group, at, strict=True):
            label_x = edge + 22 if end_x > edge - NEAR else end_x + 22
            name = chart.lines[i].name
            colour = "reference" if chart.lines[i].reference else f"a{i % COLOURS}"
            parts.append(f'<path class="leader {colour}" d="M{end_x + 4} {end_y}L{label_x - 4} {label_y}"/>')
            parts.append(
                f'<text class="strong halo" x="{label_x}" y="{label_y + 4}">{clean(name, fits)}<title>{clean(name)}</title></text>'
            )
    return parts


def swatch(i: int, *, reference: bool = False) -> str:
    """A short piece of a line, for a table or a legend."""
    return f'<svg class="swatch" width="26" height="10" aria-hidden="true"><path {_style(i, reference=reference)} d="M1 5H25"/></svg>'


def data(chart: Chart, ident: str) -> dict[str, Any]:
    """What the script shows under the pointer."""
    x, _ = _scales(chart)
    places = sorted({p for line in chart.lines for p in line.x})
    rows = []
    for line in chart.lines:
        known = dict(zip(line.x, _finite(line.y), strict=True))
        notes = dict(zip(line.x, line.note, strict=True)) if line.note else {}
        shown = {p: f"{100 * v:.0f}%" if chart.percent else number(v) for p, v in known.items() if v is not None}
        rows.append({"name": plain(line.name), "text": [
            None if p not in shown else f"{shown[p]} {notes.get(p, '')}".strip() for p in places
        ], "value": [known.get(p) for p in places]})  # fmt: skip
    named = chart.column or [f"{p:,.0f}" for p in places]
    return {"id": ident, "x": [x(p) for p in places], "place": list(named), "unit": chart.x_label, "lines": rows}
