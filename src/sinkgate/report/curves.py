"""Curves as plain SVG: lines that are told apart without colour, readable axes, a name at the end of each line.

The picture needs no script; one beside it (``stream.js``) only shows the numbers under the pointer.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Chart", "Line", "clean", "data", "number", "plain", "svg", "swatch", "tick", "ticks"]

WIDTH, HEIGHT = 1000, 430
LEFT, RIGHT, TOP, BOTTOM = 62, 200, 14, 48
COLOURS, DASHES = 5, ("", "8 4", "2 4")  # five colours, then the same ones dashed, then dotted
FEW = 40  # points of the longest line up to which all are marked one by one
NAME = 28  # characters of a name that fit beside the picture
NEAR = 90  # pixels from the right edge within which a line counts as drawn to the end
MARK = 90  # pixels that the name of a marked place takes
STEP = 16  # pixels from one name to the next
MANTISSAS: tuple[tuple[float, ...], ...] = (
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 5, 7),
    (1, 2, 5),
    (1, 3),
    (1,),
)


@dataclass(frozen=True)
class Line:
    """One curve.

    Args:
        name: at its end.
        x: places, ascending.
        y: values; None or NaN leaves a gap.
        low: of each value's interval, if it has one.
        high: the same.
        hollow: points drawn as rings.
        note: of each point, for whoever points at it.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hollow: Sequence[bool] = ()
    note: Sequence[str] = ()


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


def plain(text: Any, limit: int = 400) -> str:
    """Text without control and direction characters, cut."""
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    kept = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in unseen else c for c in str(text))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def clean(text: Any, limit: int = 400) -> str:
    """The same for a page: escaped."""
    return html.escape(plain(text, limit))


def number(value: float) -> str:
    """Three digits, thousands with commas, powers of ten beyond a million."""
    if not math.isfinite(value):
        return "—"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:#.3g}"
    return _power(f"{value:.1e}")


def tick(value: float) -> str:
    """A round number with the digits it has."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.0f}" if value == round(value) else f"{value:.10g}"
    return _power(f"{value:.10e}")


def _power(text: str) -> str:
    digits, _, power = text.partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def ticks(low: float, high: float, count: int, *, log: bool = False) -> list[float]:
    """Round numbers from low to high, at most ``count``.

    >>> ticks(0, 100_000, 6), ticks(12, 30, 6, log=True), ticks(3, 40_000, 6, log=True)
    ([0.0, 20000.0, 40000.0, 60000.0, 80000.0, 100000.0], [12.0, 15.0, 20.0, 25.0, 30.0], [10.0, 100.0, 1000.0, 10000.0])
    """
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for mantissas in MANTISSAS:
            found = [
                m * 10.0**p for p in powers for m in mantissas if low <= m * 10.0**p * (1 + 1e-9) <= high * (1 + 2e-9)
            ]
            if 3 <= len(found) <= count:
                return found
        if len(found) > count:
            return found[:: -(-len(found) // count)]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [
        float(f"{(first + i) * step:.10g}") for i in range(count + 1) if (first + i) * step <= high + 1e-9 * abs(high)
    ]


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
        _Scale(low, high, LEFT, WIDTH - RIGHT, chart.x_log),
        _Scale(bottom, top, HEIGHT - BOTTOM, TOP, chart.y_log),
    )


def _finite(values: Sequence[float | None]) -> list[float | None]:
    return [None if v is None or not math.isfinite(v) else v for v in values]


def svg(chart: Chart, ident: str) -> str:
    """The picture; lines are numbered by their place in the chart."""
    x, y = _scales(chart)
    parts = [
        f'<svg id="{ident}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{clean(chart.title)}">',
        *_axes(chart, x, y),
    ]
    named = -math.inf
    for value, name in sorted(chart.marks):
        if x.low <= value <= x.high:
            parts.append(f'<path class="mark-line" d="M{x(value)} {TOP}V{HEIGHT - BOTTOM}"/>')
            if x(value) - named > MARK:  # a name on another would be neither
                parts.append(f'<text class="halo" x="{x(value) + 4}" y="{TOP + 10}">{clean(name, NAME)}</text>')
                named = x(value)
    few = max((len(line.x) for line in chart.lines), default=0) <= FEW
    parts += [_drawn(line, i, x, y, few) for i, line in enumerate(chart.lines)]
    parts += _names(chart, x, y)
    parts.append(f'<path class="cross" d="M0 {TOP}V{HEIGHT - BOTTOM}" visibility="hidden"/></svg>')
    return "".join(parts)


def _axes(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    parts = []
    for value in ticks(y.low, y.high, 7, log=y.log):
        shown = f"{100 * value:.0f}%" if chart.percent else tick(value)
        parts.append(f'<path class="gridline" d="M{LEFT} {y(value)}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{shown}</text>')
    for value in ticks(x.low, x.high, 8, log=x.log):
        parts.append(f'<path class="axis" d="M{x(value)} {HEIGHT - BOTTOM}v5"/>')
        parts.append(f'<text x="{x(value)}" y="{HEIGHT - BOTTOM + 19}" text-anchor="middle">{tick(value)}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    middle, half = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{clean(chart.x_label)}</text>')
    parts.append(
        f'<text transform="translate(14 {half}) rotate(-90)" text-anchor="middle">{clean(chart.y_label)}</text>'
    )
    return parts


def _style(i: int) -> str:
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
        runs[-1].append(f"{x(at)} {y(value)}")
        if line.low:
            dots.append(
                f'<path class="whisker a{i % COLOURS}" d="M{x(at) + 4 * i - 4} {y(line.low[k])}V{y(line.high[k])}"/>'
            )
        if few:
            ring = bool(line.hollow) and line.hollow[k]
            dots.append(
                f'<circle class="{"ring-" if ring else "dot-"}a{i % COLOURS}" cx="{x(at)}" cy="{y(value)}" r="3.4"/>'
            )
    if not few:  # a point between two gaps has no line
        dots += [f'<circle class="dot-a{i % COLOURS}" cx="{r[0].split()[0]}" cy="{r[0].split()[1]}" r="2"/>'
                 for r in runs if len(r) == 1]  # fmt: skip
    paths = "".join(f'<path {_style(i)} d="M{"L".join(run)}"/>' for run in runs if len(run) > 1)
    return f"<g>{paths}{''.join(dots)}</g>"


def _names(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    """A name where each line ends: beside the picture, or in it where a line stops early; none over another."""
    ends = []
    for i, line in enumerate(chart.lines):
        known = [(x(a), y(v)) for a, v in zip(line.x, _finite(line.y), strict=True) if v is not None]
        if known:
            ends.append((i, *known[-1]))
    edge = WIDTH - RIGHT
    groups: dict[int, list[tuple[int, float, float]]] = {}
    for end in ends:
        groups.setdefault(10**6 if end[1] > edge - NEAR else round(end[1] / 150), []).append(end)
    parts = []
    for group in groups.values():
        group.sort(key=lambda e: e[2])
        at = [e[2] for e in group]
        for k in range(1, len(at)):
            at[k] = max(at[k], at[k - 1] + STEP)
        lowest = HEIGHT - BOTTOM - 2.0
        for k in reversed(range(len(at))):
            at[k] = min(at[k], lowest - STEP * (len(at) - 1 - k))
        for (i, end_x, end_y), label_y in zip(group, at, strict=True):
            label_x = edge + 22 if end_x > edge - NEAR else end_x + 22
            name = chart.lines[i].name
            parts.append(f'<path class="leader a{i % COLOURS}" d="M{end_x + 4} {end_y}L{label_x - 4} {label_y}"/>')
            parts.append(
                f'<text class="strong halo" x="{label_x}" y="{label_y + 4}">{clean(name, NAME)}<title>{clean(name)}</title></text>'
            )
    return parts


def swatch(i: int) -> str:
    """A short piece of a line, for a table or a legend."""
    return f'<svg class="swatch" width="26" height="10" aria-hidden="true"><path {_style(i)} d="M1 5H25"/></svg>'


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
