"""Bounds on means over texts: against scipy by hand, and how often a promise is kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import nct, t, ttest_1samp

from sinkgate.planning.promise import AHEAD, SPLIT, ahead, factor, mean_of, needed
from sinkgate.planning.verify import HEAVIER, ROOM


def test_intervals_against_scipy() -> None:
    x = np.random.default_rng(0).normal(0.01, 0.004, 9)
    found = mean_of(list(x))
    two = ttest_1samp(x, 0).confidence_interval(0.95)
    one = ttest_1samp(x, 0, alternative="less").confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((two.low, two.high), rel=1e-12)
    assert found.upper == pytest.approx(one.high, rel=1e-12)
    assert found.sd == pytest.approx(x.std(ddof=1), rel=1e-12)


def test_one_text_has_no_interval() -> None:
    found = mean_of([0.5])
    assert (found.mean, found.low, found.high, found.upper, found.n) == (0.5, None, None, None, 1)


def test_the_bound_where_everything_before_is_known() -> None:
    """With endless verified texts only the later sample varies: k is a quantile of a noncentral t, by scipy."""
    a = t.ppf(0.95, AHEAD - 1)
    # P(mean' + a s'/√m ≤ k) with σ = 1: −(z − k√m)/s' ≥ a  ⇔  a noncentral t
    k = factor(10**6)
    assert nct.cdf(-a, AHEAD - 1, -k * math.sqrt(AHEAD)) == pytest.approx(0.95, abs=2e-3)
    assert ahead([0.01, 0.03, 0.02], share=1 / 8) > ahead([0.01, 0.03, 0.02])
    x = [0.01, 0.03, 0.02, 0.04]
    assert ahead(x) == pytest.approx(0.025 + np.std(x, ddof=1) * factor(4), rel=1e-12)


@pytest.mark.parametrize("n", [4, 6, 12])
def test_a_promise_is_kept_as_often_as_it_says(n: int) -> None:
    """A later sample's own upper bound lies within the promise in at least 95% of draws, and not in nearly all."""
    rng = np.random.default_rng(1)
    draws = 4000
    kept = 0
    for _ in range(draws):
        bound = ahead(rng.normal(0.01, 0.005, n))
        later = mean_of(rng.normal(0.01, 0.005, AHEAD)).upper
        kept += later is not None and later <= bound
    assert 0.94 <= kept / draws <= 0.96


def test_the_error_is_shared_out_whole() -> None:
    assert sum(SPLIT) == pytest.approx(1.0)
    assert len(SPLIT) == 1 + HEAVIER + 1
    assert list(SPLIT) == sorted(SPLIT, reverse=True)


@pytest.mark.parametrize("step", [0.0, 0.0005, 0.002])
def test_candidates_one_after_the_other_keep_the_promise_too(step: float) -> None:
    """Lighter ones while they pass, heavier ones where the first does not: true means ``step`` apart, near the tolerance."""
    rng = np.random.default_rng(2)
    tolerance, spread, n, draws = 0.01, 0.003, 12, 4000
    k = [factor(n, share) for share in SPLIT]
    a = t.ppf(0.95, AHEAD - 1) / math.sqrt(AHEAD)
    for first in (0.0065, 0.008, 0.009, 0.0095):
        broken = taken = 0
        for _ in range(draws):
            shared = rng.normal(0, spread, n)
            mean, scatter = shared.mean(), shared.std(ddof=1)

            def passes(true: float, share: int, mean: float = mean, scatter: float = scatter) -> bool:
                return bool(true + mean + k[share] * scatter <= tolerance)

            last = None
            if passes(first, 0):
                last = first
                while last + mean + k[0] * scatter <= ROOM * tolerance and passes(last + max(step, 1e-4), 0):
                    last += max(step, 1e-4)
            else:
                last = next((first - i * step for i in (1, 2) if passes(first - i * step, i)), None)
            if last is not None:
                later = rng.normal(last, spread, AHEAD)
                broken += later.mean() + a * later.std(ddof=1) > tolerance
                taken += 1
        assert broken / draws <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / draws)
        assert taken > 0


def test_the_number_of_texts_that_would_do() -> None:
    x = [0.004, 0.012, 0.006, 0.010]
    n = needed(x, 0.0125)
    assert n is not None
    s = np.std(x, ddof=1)

    def bound(k: int) -> float:
        return float(0.008 + s * factor(k))

    assert bound(n) <= 0.0125 < bound(n - 1)
    assert needed(x, 0.008) is None  # no number of texts brings a bound below its mean
