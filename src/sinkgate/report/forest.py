"""Differences with their intervals, one row each, around a line at zero; every number is written beside its row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sinkgate.report.curves import COLOURS
from sinkgate.report.text import clean, tick, ticks

__all__ = ["Difference", "forest"]

ROW, TOP, BOTTOM = 36, 26, 46
CHARACTER = 6.7  # pixels of one, on average


@dataclass(frozen=True)
class Difference:
    """One row.

    Args:
        name: what differs.
        place: its number among the arms, for its colour.
        mean: of the difference; NaN: there is none.
        low: of the interval; NaN: there is none.
        high: the same.
        points: the single differences.
        value: mean and interval as text.
        said: what follows from them.
    """

    name: str
    place: int
    mean: float
    low: float
    high: float
    points: Sequence[float]
    value: str
    said: str


def forest(
    title: str, rows: Sequence[Difference], x_label: str, *, sides: tuple[str, str] = ("", ""), wide: bool = True
) -> str:
    """The picture.

    Args:
        title: what it is, for who cannot see it.
        rows: from above.
        x_label: below the axis, with its unit.
        sides: what is left and right of zero.
        wide: for the whole width of a page.
    """
    width, names, values = (1000, 200, 230) if wide else (640, 150, 216)
    edge, height = width - values, TOP + ROW * len(rows) + BOTTOM
    floor = height - BOTTOM
    x = _scale(rows, names, edge)
    said = "; ".join(f"{row.name}: {row.value}, {row.said}" for row in rows)
    parts = [
        f'<svg class="forest" viewBox="0 0 {width} {height}" role="img" aria-label="{clean(f"{title}. {said}", 2000)}">'
    ]
    for at in ticks(x.low, x.high, max(3, round((edge - names) / 80))):
        parts.append(f'<path class="gridline" d="M{x(at)} {TOP}V{floor}"/>')
        parts.append(
            f'<text x="{x(at)}" y="{floor + 19}" text-anchor="middle">{tick(at).replace("-", "−", 1) if at < 0 else tick(at)}</text>'
        )
    parts.append(f'<path class="zero" d="M{x(0)} {TOP - 6}V{floor}"/>')
    if sides[0] and x(0) - names > 50:
        parts.append(f'<text x="{x(0) - 8}" y="{TOP - 10}" text-anchor="end">← {clean(sides[0])}</text>')
    if sides[1] and edge - x(0) > 50:
        parts.append(f'<text x="{x(0) + 8}" y="{TOP - 10}">{clean(sides[1])} →</text>')
    for k, row in enumerate(rows):
        parts.append(_row(row, TOP + ROW * k + ROW / 2, x, names, edge))
    parts.append(f'<text x="{(names + edge) / 2}" y="{height - 8}" text-anchor="middle">{clean(x_label)}</text></svg>')
    return "".join(parts)


class _scale:
    def __init__(self, rows: Sequence[Difference], begin: int, end: int) -> None:
        known = [v for row in rows for v in (row.mean, row.low, row.high, *row.points) if math.isfinite(v)]
        low, high = min([0.0, *known]), max([0.0, *known])
        pad = 0.05 * (high - low) or 0.5
        self.low, self.high, self.begin, self.end = low - pad, high + pad, begin, end

    def __call__(self, value: float) -> float:
        return round(self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low), 1)


def _row(row: Difference, y: float, x: _scale, names: int, edge: int) -> str:
    colour = row.place % COLOURS
    parts = [
        f'<text class="strong" x="0" y="{y + 4}">{clean(row.name, int(names / CHARACTER) - 1)}<title>{clean(row.name)}</title></text>',
        f'<text class="strong" x="{edge + 14}" y="{y - 2}">{clean(row.value)}</text>'
        f'<text x="{edge + 14}" y="{y + 12}">{clean(row.said)}</text>',
    ]
    parts += [
        f'<circle class="seed dot-a{colour}" cx="{x(value)}" cy="{y + 10}" r="2"/>'
        for value in row.points
        if math.isfinite(value)
    ]
    if math.isfinite(row.low) and math.isfinite(row.high):
        parts.append(
            f'<path class="interval a{colour}" d="M{x(row.low)} {y}H{x(row.high)}M{x(row.low)} {y - 5}v10M{x(row.high)} {y - 5}v10"/>'
        )
    if math.isfinite(row.mean):  # filled only where the interval does not touch zero
        apart = math.isfinite(row.low) and not row.low <= 0 <= row.high
        parts.append(f'<circle class="{"dot" if apart else "ring"}-a{colour}" cx="{x(row.mean)}" cy="{y}" r="4.5"/>')
    return f"<g>{''.join(parts)}</g>"
