"""Which arm to take: the cheapest, unless another is told apart from it over paired seeds.

The question is one-sided in spirit (is the dearer arm worth it?), the tests are two-sided: paired t over seeds. Many
arms are compared at once, so what decides is corrected: Holm's steps against the cheapest arm, and Bonferroni's share
over all pairs of those that were found better. Each of the two holds 5% for all of its comparisons together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

__all__ = ["Candidate", "Decision", "cheapest", "decide", "half_width", "p_value"]

ALPHA = 0.05
SAME_TIME = (
    0.25  # times per step nearer than this share of the least are called equal: a busy machine's noise decides nothing
)


@dataclass(frozen=True)
class Candidate:
    """An arm as the decision sees it.

    Args:
        arm: its name.
        values: one per seed, the same seeds in the same order for all arms; NaN where it diverged.
        extra: parameters beside those of the unchanged model.
        seconds: per step; None: not known, or nothing is trained.
    """

    arm: str
    values: Float[np.ndarray, " seeds"] = field(repr=False)
    extra: int
    seconds: float | None = None


@dataclass(frozen=True)
class Decision:
    """What follows from the pilots.

    Args:
        answer: the arm to take; None: every arm diverged somewhere.
        cheapest: of those that trained with every seed.
        best: the arm with the best mean, of those found better than the cheapest, or else of all the others.
        told: by arm, against the cheapest: ``"better"``, ``"worse"``, ``"not distinguishable"`` or ``"diverged"``.
        p: by arm, of the paired t test against the cheapest, before any correction.
        tied: arms found better than the cheapest that the best was not told apart from, the answer first.
        comparisons: with the cheapest: what Holm's steps are counted over.
        visible: half the interval of ``best`` against the cheapest at the level that decides: a smaller difference
            could not have been seen. NaN with nothing to compare.
    """

    answer: str | None
    cheapest: str | None
    best: str | None
    told: dict[str, str]
    p: dict[str, float]
    tied: tuple[str, ...]
    comparisons: int
    visible: float


def cheapest(candidates: Sequence[Candidate]) -> Candidate:
    """Least extra parameters, then least time per step, then first in the list."""
    few = min(c.extra for c in candidates)
    few_of = [c for c in candidates if c.extra == few]
    least = min(c.seconds or 0.0 for c in few_of)
    return next(c for c in few_of if (c.seconds or 0.0) <= least * (1 + SAME_TIME))


def p_value(differences: Float[np.ndarray, " n"]) -> float:
    """Two-sided, of Student's t test that the mean is 0: 1 for differences that are all 0, 0 for others all alike."""
    from scipy.stats import t

    n = len(differences)
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    if spread == 0:
        return float(mean == 0)
    return float(2 * t.sf(abs(mean) / (spread / math.sqrt(n)), n - 1))


def half_width(differences: Float[np.ndarray, " n"], alpha: float) -> float:
    """Half of Student's interval of the mean at level ``1 − alpha``."""
    from scipy.stats import t

    n = len(differences)
    return float(t.ppf(1 - alpha / 2, n - 1) * differences.std(ddof=1) / math.sqrt(n))


def decide(candidates: Sequence[Candidate], *, higher: bool = False) -> Decision:
    """The cheapest arm, or the cheapest of those that are better than it and not worse than the best of them.

    Args:
        candidates: in the order of the list.
        higher: whether more is better.
    """
    trained = [c for c in candidates if np.isfinite(c.values).all()]
    told = {c.arm: "diverged" for c in candidates if c not in trained}
    if not trained:
        return Decision(None, None, None, told, {}, (), 0, math.nan)
    base = cheapest(trained)
    others = [c for c in trained if c is not base]
    sign = 1.0 if higher else -1.0
    gains = {c.arm: sign * (c.values - base.values) for c in others}
    p = {arm: p_value(gain) for arm, gain in gains.items()}
    open_ = True
    for i, arm in enumerate(sorted(p, key=lambda arm: p[arm])):  # Holm: the first that fails ends it
        open_ = open_ and p[arm] <= ALPHA / (len(p) - i)
        told[arm] = "not distinguishable" if not open_ else "better" if gains[arm].mean() > 0 else "worse"
    mean = lambda c: float(gains[c.arm].mean())  # noqa: E731
    winners = [c for c in others if told[c.arm] == "better"]
    best = max(winners or others, key=mean, default=None)
    visible = math.nan if best is None else half_width(gains[best.arm], ALPHA / len(others))
    if not winners or best is None:
        return Decision(base.arm, base.arm, None if best is None else best.arm, told, p, (), len(others), visible)
    pairs = len(winners) * (len(winners) - 1) / 2
    level = [c for c in winners if c is best or p_value(gains[best.arm] - gains[c.arm]) > ALPHA / pairs]
    answer = cheapest(level)
    tied = (answer.arm, *(c.arm for c in level if c is not answer))
    return Decision(answer.arm, base.arm, best.arm, told, p, tied, len(others), visible)
