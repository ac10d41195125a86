"""Text and numbers as a page shows them: without what cannot be seen, escaped, with as many digits as are of use."""

from __future__ import annotations

import html
import math
import unicodedata
from typing import Any

__all__ = ["clean", "finite", "number", "plain", "tick", "ticks"]

MANTISSAS: tuple[tuple[float, ...], ...] = (
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8),
    (1, 1.5, 2, 3, 5, 7),
    (1, 2, 5),
    (1, 3),
    (1,),
)


def plain(text: Any, limit: int = 400) -> str:
    """Text without control and direction characters, cut."""
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    kept = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in unseen else c for c in str(text))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


def clean(text: Any, limit: int = 400) -> str:
    """The same for a page: escaped."""
    return html.escape(plain(text, limit))


def finite(value: Any) -> float:
    """A number of a record; NaN for whatever is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


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
