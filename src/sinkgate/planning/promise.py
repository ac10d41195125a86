"""When a tolerance counts as kept: bounds on the mean of paired differences over texts.

A promise is about *other* texts: "over ``AHEAD`` held-out texts, the upper 95% bound of the mean increase is within the
tolerance". So what is verified has to be far enough below it that other texts keep it too. With n verified differences of mean m
and standard deviation s, the bound is ``m + k·s``, with k such that for normal differences

    P( m' + t(.95, AHEAD−1) · s' / √AHEAD  ≤  m + k·s ) = 1 − α

where m' and s' are those of the later texts: both samples' means and standard deviations are random (a prediction bound, as in
Hahn & Meeker, *Statistical Intervals*, ch. 4; k by integration over both standard deviations). α is .05, shared out (``SPLIT``):
half goes to the setting that the search found, and with it to lighter ones that are tried in a fixed order while each passes (the
first bad one among them has to pass by chance, so they need one share together: a fixed sequence); the rest to heavier ones that are
tried where it does not pass. Looks before the last text may only give a candidate up, which costs nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

__all__ = ["AHEAD", "SPLIT", "Mean", "ahead", "factor", "mean_of", "needed"]

AHEAD = 20  # texts that a promise is about
# of the 5%: the search's setting and lighter ones while they pass; a heavier one; a much heavier one; recent + sinks of the same
# bytes, where it is better
SPLIT = (0.5, 0.35, 0.1, 0.05)
LEVEL = 0.95
POINTS = 400  # of each standard deviation, in the integration


@dataclass(frozen=True)
class Mean:
    """A mean over texts.

    Args:
        mean: of the values.
        low: two-sided 95% Student t interval; None with one text.
        high: likewise.
        upper: one-sided 95% upper bound.
        n: texts.
        sd: standard deviation over texts.
    """

    mean: float
    low: float | None
    high: float | None
    upper: float | None
    n: int
    sd: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    def map(self, f: Any) -> Mean:
        """Of an increasing function of the mean and its bounds; the standard deviation is not carried over."""
        low, high, upper = (None if x is None else f(x) for x in (self.low, self.high, self.upper))
        return Mean(f(self.mean), low, high, upper, self.n, None)


def mean_of(values: Sequence[float]) -> Mean:
    """Mean, interval and bound.

    >>> found = mean_of([1.0, 2.0, 3.0])
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3), round(found.upper, 3)
    (2.0, -0.484, 4.484, 3.686)
    """
    x = np.asarray(values, float)
    n = len(x)
    if n < 2:
        return Mean(float(x.mean()), None, None, None, n, None)
    sd = float(x.std(ddof=1))
    two, one = (_t(level, n - 1) * sd / math.sqrt(n) for level in ((1 + LEVEL) / 2, LEVEL))
    m = float(x.mean())
    return Mean(m, m - two, m + two, m + one, n, sd)


def ahead(values: Sequence[float], share: float = 1.0, texts: int = AHEAD) -> float:
    """The bound of the module's formula.

    Args:
        values: differences of losses, one per text; at least two.
        share: of the 5%.
        texts: the later sample's size.
    """
    x = np.asarray(values, float)
    return float(x.mean() + x.std(ddof=1) * factor(len(x), share, texts))


@functools.cache
def factor(n: int, share: float = 1.0, texts: int = AHEAD) -> float:
    """k of the module's formula.

    >>> round(factor(10**6), 2)  # the first sample known for certain: only the later one varies
    0.77
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr
    from scipy.stats import chi2

    middle = (np.arange(POINTS) + 0.5) / POINTS
    first, later = (np.sqrt(chi2.ppf(middle, m - 1) / (m - 1)) for m in (n, texts))
    spread = math.sqrt(1 / n + 1 / texts)
    bound = _t(LEVEL, texts - 1) / math.sqrt(texts) * later

    def missed(k: float) -> float:
        return float(ndtr((bound[None] - k * first[:, None]) / spread).mean()) - (1 - LEVEL) * share

    return float(brentq(missed, -10.0, 1e5))


def needed(
    values: Sequence[float], tolerance: float, share: float = 1.0, texts: int = AHEAD, most: int = 10**5
) -> int | None:
    """Verified texts with which :func:`ahead` would be within the tolerance, were mean and spread as here; None: no number."""
    x = np.asarray(values, float)
    m, sd = float(x.mean()), float(x.std(ddof=1))

    def enough(n: int) -> bool:
        return m + sd * factor(n, share, texts) <= tolerance

    if not enough(most):
        return None
    low, high = 2, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _t(level: float, df: int) -> float:
    from scipy.stats import t

    return float(t.ppf(level, df))
