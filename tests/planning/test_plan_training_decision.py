"""The rule of a training plan on numbers made for it, against Student's t of scipy and Holm's steps by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sinkgate.planning.training_budget import LEAST_STEPS, RESERVE, BudgetError, Cost, allot, as_seconds
from sinkgate.planning.training_decision import Candidate, cheapest, decide, half_width, p_value

BASE = np.array([1.00, 1.10, 0.90])


def candidates(**shifts: Any) -> list[Candidate]:
    """``name=(extra, differences from BASE)``; softmax stands first with none."""
    found = [Candidate("softmax", BASE, 0, 1.0)]
    return found + [Candidate(n, BASE + np.array(d, float), extra, 1.0) for n, (extra, d) in shifts.items()]


def test_the_numbers_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for n in (3, 4, 9):
        a, b = rng.normal(size=n), rng.normal(size=n) + 0.4
        assert p_value(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-12)
        low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
        assert half_width(a - b, 0.05) == pytest.approx((high - low) / 2, rel=1e-12)
    assert p_value(np.zeros(3)) == 1.0
    assert p_value(np.full(3, 0.5)) == 0.0


def test_a_clear_winner() -> None:
    found = decide(candidates(gate=(8, [-0.50, -0.51, -0.49]), z=(1, [0.02, -0.03, 0.01])))
    assert (found.answer, found.cheapest, found.best) == ("gate", "softmax", "gate")
    assert found.told == {"gate": "better", "z": "not distinguishable"}
    assert found.tied == ("gate",)
    assert found.comparisons == 2
    assert found.p["gate"] == pytest.approx(stats.ttest_1samp([-0.50, -0.51, -0.49], 0).pvalue)
    t = stats.t.ppf(1 - 0.05 / 2 / 2, 2)  # two comparisons
    assert found.visible == pytest.approx(t * 0.01 / math.sqrt(3))
    more = decide(candidates(gate=(8, [0.50, 0.51, 0.49])), higher=True)
    assert (more.answer, more.told["gate"]) == ("gate", "better")
    less = decide(candidates(gate=(8, [0.50, 0.51, 0.49])))
    assert (less.answer, less.told["gate"], less.best) == ("softmax", "worse", "gate")


def test_overlap_goes_to_the_cheapest() -> None:
    found = decide(candidates(gate=(8, [-0.5, -0.1, 0.3]), z=(1, [-0.2, 0.1, 0.0])))
    assert (found.answer, found.best, found.tied) == ("softmax", "gate", ())
    assert set(found.told.values()) == {"not distinguishable"}


def test_a_tie_goes_to_the_cheapest() -> None:
    found = decide(candidates(gate=(8, [0, 0, 0])))
    assert (found.answer, found.told["gate"], found.p["gate"], found.visible) == (
        "softmax",
        "not distinguishable",
        1.0,
        0.0,
    )


def test_many_arms_are_corrected_for() -> None:
    """A difference that one comparison would call significant is not, when it is one of ten."""
    gain = [-0.52, -0.38, -0.45]
    assert 0.05 / 10 < stats.ttest_1samp(gain, 0).pvalue < 0.05
    alone = decide(candidates(gate=(8, gain)))
    assert alone.answer == "gate"
    noise = {f"n{i}": (8, [0.3, -0.1, -0.2]) for i in range(9)}
    among = decide(candidates(gate=(8, gain), **noise))
    assert (among.answer, among.told["gate"], among.comparisons) == ("softmax", "not distinguishable", 10)


def test_holm_goes_on_behind_a_smaller_p() -> None:
    """The second of two needs 5%, once the first was under 2.5%: Bonferroni would have stopped it."""
    second = [-0.50, -0.34, -0.42]
    p = stats.ttest_1samp(second, 0).pvalue
    wide = [-0.55, -0.30, -0.40]
    q = stats.ttest_1samp(wide, 0).pvalue
    assert p < 0.025 < q < 0.05
    both = decide(candidates(a=(8, second), b=(9, wide)))
    assert both.told == {"a": "better", "b": "better"}
    # and where the first does not pass, the second, which alone would, is not asked
    other = [-0.56, -0.29, -0.40]
    r = stats.ttest_1samp(other, 0).pvalue
    assert 0.025 < q < r < 0.05
    neither = decide(candidates(a=(8, wide), b=(9, other)))
    assert neither.told == {"a": "not distinguishable", "b": "not distinguishable"}


def test_of_those_that_are_better_the_cheapest_that_the_best_is_not_told_apart_from() -> None:
    dear, cheap = [-0.52, -0.49, -0.50], [-0.50, -0.50, -0.48]
    found = decide(candidates(dear=(100, dear), cheap=(2, cheap)))
    assert (found.best, found.answer, found.tied) == ("dear", "cheap", ("cheap", "dear"))
    assert p_value(np.array(dear) - np.array(cheap)) > 0.05
    apart = decide(candidates(dear=(100, [-0.52, -0.49, -0.50]), cheap=(2, [-0.22, -0.19, -0.20])))
    assert (apart.best, apart.answer, apart.tied) == ("dear", "dear", ("dear",))
    assert apart.told["cheap"] == "better"


def test_a_better_mean_that_is_not_found_better_does_not_win() -> None:
    found = decide(candidates(loud=(5, [-2.0, 0.5, -1.0]), sure=(8, [-0.50, -0.51, -0.49])))
    assert (found.answer, found.told["loud"]) == ("sure", "not distinguishable")


def test_what_did_not_train_is_not_considered() -> None:
    nan = math.nan
    found = decide([Candidate("softmax", np.array([1, nan, 1]), 0), *candidates(gate=(8, [-0.50, -0.51, -0.49]))[1:]])
    assert found.told == {"softmax": "diverged"}
    assert (found.answer, found.cheapest, found.best) == ("gate", "gate", None)
    assert math.isnan(found.visible)
    nobody = decide([Candidate("a", np.array([nan] * 3), 0), Candidate("b", np.array([1, 2, nan]), 1)])
    assert (nobody.answer, nobody.told) == (None, {"a": "diverged", "b": "diverged"})


def test_the_cheapest() -> None:
    make = lambda name, extra, seconds: Candidate(name, BASE, extra, seconds)  # noqa: E731
    assert cheapest([make("a", 3, 0.1), make("b", 0, 9.0)]).arm == "b"  # parameters first
    assert cheapest([make("a", 0, 2.0), make("b", 0, 1.0)]).arm == "b"
    assert cheapest([make("a", 0, 1.1), make("b", 0, 1.0)]).arm == "a"  # no difference that time could tell
    assert cheapest([make("a", 0, None), make("b", 0, 1.0)]).arm == "a"


# ---- the budget ---------------------------------------------------------------------------------------------------

COSTS = [Cost("a", 0.1, 1.0), Cost("b", 0.2, 1.0, once=2.0), Cost("c", 0.4, 2.0)]


def test_what_is_left_goes_into_longer_pilots() -> None:
    seconds = 1000.0
    found = allot(COSTS, seconds=seconds, spent=30.0, seeds=3, most=10**6)
    fixed = 3 * (1 + 1 + 2) + 2.0
    assert found.steps == math.floor((seconds * (1 - RESERVE) - 30 - fixed) / (3 * 0.7))
    assert found.arms == ("a", "b", "c")
    assert found.dropped == ()
    assert found.seconds == pytest.approx(fixed + 3 * 0.7 * found.steps)
    assert found.seconds <= seconds * (1 - RESERVE) - 30
    assert allot(COSTS, seconds=1e9, spent=0, seeds=3, most=700).steps == 700  # no longer than the recipe
    free = [Cost("a", 0.0, 0.0), Cost("b", 0.0, 0.0)]
    assert allot(free, seconds=1, spent=0, seeds=3, most=80).steps == 80


def test_arms_are_dropped_from_the_end() -> None:
    need = sum(c.seconds(3, LEAST_STEPS) for c in COSTS[:2])
    found = allot(COSTS, seconds=(need + 1) / (1 - RESERVE), spent=0, seeds=3, most=1000)
    assert found.arms == ("a", "b")
    assert [name for name, _ in found.dropped] == ["c"]
    assert f"3 seeds of {LEAST_STEPS} steps" in found.dropped[0][1]
    given = allot(COSTS, seconds=600, spent=0, seeds=3, most=1000, steps=300)
    assert (given.steps, given.arms) == (300, ("a", "b"))
    every = sum(c.seconds(3, 300) for c in COSTS)
    assert allot(COSTS, seconds=every / (1 - RESERVE) + 1, spent=0, seeds=3, most=1000, steps=300).arms == (
        "a",
        "b",
        "c",
    )


def test_too_little_for_two_arms_names_the_least_that_would_do() -> None:
    with pytest.raises(
        BudgetError, match=r"0.1 minutes does not hold two arms \(a and b\) with 3 seeds and 50 steps"
    ) as caught:
        allot(COSTS, seconds=6.0, spent=4.0, seeds=3, most=1000)
    enough = float(str(caught.value).split("at least ")[1].split()[0])
    need = (sum(c.seconds(3, LEAST_STEPS) for c in COSTS[:2]) + 4.0) / (1 - RESERVE) / 60
    assert need <= enough <= need + 0.1
    assert allot(COSTS, seconds=60 * enough, spent=4.0, seeds=3, most=1000).arms == ("a", "b")
    with pytest.raises(BudgetError, match="or fewer steps"):
        allot(COSTS, seconds=60, spent=0, seeds=3, most=1000, steps=500)


@pytest.mark.parametrize("minutes", [0, -1, math.nan, math.inf, True, "3", None])
def test_a_budget_is_a_positive_number(minutes: Any) -> None:
    with pytest.raises(ValueError, match="minutes must be a positive number"):
        as_seconds(minutes)
    assert as_seconds(0.5) == 30
