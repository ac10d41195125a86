"""The closed forms of the sink as a gate, with their worked numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkgate.geometry import amplification, harmonic, margin, required_margin, sink_share, uniform_null

fixed = settings(derandomize=True, deadline=None, max_examples=100, database=None)


def exact(n: int) -> Fraction:
    return sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0))


@pytest.mark.parametrize("n", [0, 1, 2, 9, 64, 1000])
def test_harmonic_numbers(n: int) -> None:
    assert float(harmonic(n)) == pytest.approx(float(exact(n)), rel=1e-14)


def test_harmonic_of_an_array_is_that_of_its_entries() -> None:
    n = np.array([[3, 0], [64, 1]])
    np.testing.assert_array_equal(harmonic(n), [[harmonic(3), 0.0], [harmonic(64), 1.0]])


@fixed
@given(st.integers(1, 300), st.data())
def test_the_null_is_the_mean_weight_of_a_key_under_uniform_attention(length: int, data: st.DataObject) -> None:
    key = data.draw(st.integers(1, length))
    rows = [Fraction(1, i) for i in range(key, length + 1)]  # the queries that see it, and what each gives
    assert uniform_null(length, key) == pytest.approx(float(sum(rows) / len(rows)), rel=1e-12)


def test_worked_nulls() -> None:
    assert uniform_null(64) == pytest.approx(0.0741, abs=5e-5)
    assert uniform_null(64) == pytest.approx(float(exact(64) / 64), rel=1e-14)
    assert all((uniform_null(t) > 0.3) == (t <= 9) for t in range(1, 40))
    assert [uniform_null(t, t) for t in (1, 7, 64)] == pytest.approx([1, 1 / 7, 1 / 64], rel=1e-12)


@pytest.mark.parametrize(("length", "key"), [(64, 0), (64, 65), (64, -1), (0, 1)])
def test_a_key_outside_the_text_has_no_null(length: int, key: int) -> None:
    with pytest.raises(ValueError, match="key must be between 1 and length"):
        uniform_null(length, key)


@fixed
@given(st.floats(-700, 30))
def test_margin_and_share_are_inverses(m: float) -> None:
    """Over 0 the share comes near 1, where a float holds 1 − p only to 1e-16: the margin then loses e^m of that."""
    share = float(sink_share(m))
    assert 0 < share < 1
    assert float(margin(share)) == pytest.approx(m, rel=1e-13, abs=4e-16 * (1 + math.exp(max(m, 0))))


@fixed
@given(st.floats(0, 1, exclude_min=True, exclude_max=True, allow_subnormal=False))
def test_share_and_margin_are_inverses(share: float) -> None:
    assert float(sink_share(margin(share))) == pytest.approx(share, rel=1e-12)


def test_share_and_margin_at_their_ends() -> None:
    assert sink_share(0.0) == 0.5
    assert float(sink_share(-np.inf)) == 0
    assert float(sink_share(np.inf)) == 1
    assert float(margin(0.0)) == -np.inf
    assert float(margin(1.0)) == np.inf
    assert float(amplification(1.0)) == np.inf
    assert float(sink_share(1e308)) == 1


@fixed
@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8), st.floats(-30, 30))
def test_the_share_of_a_score_is_sigma_of_its_margin(content: list[float], score: float) -> None:
    top = max(*content, score)
    weights = [math.exp(s - top) for s in (score, *content)]
    lse = max(content) + math.log(sum(math.exp(s - max(content)) for s in content))
    assert float(sink_share(score - lse)) == pytest.approx(weights[0] / sum(weights), rel=1e-11)
    assert float(amplification(sink_share(score - lse))) == pytest.approx(sum(weights) / sum(weights[1:]), rel=1e-2)


@pytest.mark.parametrize(
    ("n", "share", "delta"),
    [(4096, 0.5, 8.3175), (4096, 0.9, 10.5147), (4096, 0.99, 12.9126), (131072, 0.5, 11.784), (131072, 0.9, 13.981),
     (131072, 0.99, 16.379)],
)  # fmt: skip
def test_the_score_that_holds_a_share(n: int, share: float, delta: float) -> None:
    ours = float(required_margin(n, share))
    assert ours == pytest.approx(delta, abs=6e-4)
    assert math.exp(ours) / (math.exp(ours) + n - 1) == pytest.approx(share, rel=1e-12)


def test_required_margins_of_arrays() -> None:
    shares, n = np.array([0.5, 0.9]), np.array([[4096], [131072]])
    expected = [[required_margin(int(a[0]), float(b)) for b in shares] for a in n]
    np.testing.assert_allclose(required_margin(n, shares), expected, rtol=1e-15)


def test_deleting_a_sink_of_ninety_per_cent_multiplies_by_ten() -> None:
    """The content (2, 4) with shares (.75, .25) is 2.5; behind a zero-value sink at 90% it is 0.25."""
    assert float(amplification(0.9)) == pytest.approx(10, rel=1e-14)
    content = 0.75 * 2 + 0.25 * 4
    assert content == 2.5
    weights = 0.9, (1 - 0.9) * 0.75, (1 - 0.9) * 0.25
    assert weights == pytest.approx((0.9, 0.075, 0.025))
    gated = weights[1] * 2 + weights[2] * 4
    assert gated == pytest.approx(0.25, rel=1e-14)
    assert float(amplification(0.9)) * gated == pytest.approx(content, rel=1e-14)


def test_there_is_no_negative_harmonic_number() -> None:
    with pytest.raises(ValueError, match="-1"):
        harmonic(-1)
