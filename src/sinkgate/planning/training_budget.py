"""From a budget of time to arms and steps: arithmetic, no clocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sinkgate.errors import ArgumentError

__all__ = [
    "LEAST_ARMS",
    "LEAST_SEEDS",
    "LEAST_STEPS",
    "RESERVE",
    "Allotment",
    "BudgetError",
    "Cost",
    "allot",
    "as_seconds",
]

LEAST_SEEDS = 3  # fewer say too little about spread
LEAST_ARMS = 2  # one arm has nothing to be compared with
LEAST_STEPS = 50  # of a pilot whose length the budget decides, or the whole recipe's steps if they are fewer
RESERVE = 0.1  # share of a budget that is not planned with: a machine does other things too


class BudgetError(ArgumentError):
    """The compute budget is too small for a comparison that could say anything."""


@dataclass(frozen=True)
class Cost:
    """What an arm costs, in seconds.

    Args:
        arm: its name.
        step: of one update.
        pilot: what every pilot costs beside its steps: building, measuring, writing.
        once: what the arm costs once, however many pilots it has.
    """

    arm: str
    step: float
    pilot: float
    once: float = 0.0

    def seconds(self, seeds: int, steps: int) -> float:
        """Of all its pilots."""
        return self.once + seeds * (self.pilot + steps * self.step)


@dataclass(frozen=True)
class Allotment:
    """What a budget buys.

    Args:
        steps: of every pilot.
        arms: that are tried, in the order given.
        dropped: the others, with the reason.
        seconds: that the pilots are expected to take.
    """

    steps: int
    arms: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    seconds: float


def as_seconds(minutes: float) -> float:
    """A budget in seconds.

    Raises:
        ArgumentError: not a positive finite number.
    """
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes < math.inf:
        raise ArgumentError(f"minutes must be a positive number, got {minutes!r}")
    return 60.0 * minutes


def allot(
    costs: Sequence[Cost], *, seconds: float, spent: float, seeds: int, most: int, steps: int | None = None
) -> Allotment:
    """Which arms fit, and how many steps each pilot gets: the same for all arms, whatever a step of theirs costs.

    Arms are dropped from the end of the list until the rest fits with pilots of the least length (``steps``, if given);
    what is then left goes into longer pilots, up to ``most``.

    Args:
        costs: by arm, in the order of the list.
        seconds: the budget.
        spent: of it, on measuring the costs.
        seeds: pilots per arm.
        most: steps of the whole recipe.
        steps: the length of a pilot, where it is decided already.

    Raises:
        BudgetError: two arms do not fit; says the least budget that would do.
    """
    least = min(LEAST_STEPS, most) if steps is None else steps
    left = seconds * (1 - RESERVE) - spent
    need = lambda kept, length: math.fsum(c.seconds(seeds, length) for c in kept)  # noqa: E731
    kept = list(costs)
    while kept and need(kept, least) > left:
        kept.pop()
    if len(kept) < LEAST_ARMS:
        enough = math.ceil((need(costs[:LEAST_ARMS], least) + spent) / (1 - RESERVE) / 6) / 10
        names = " and ".join(c.arm for c in costs[:LEAST_ARMS])
        raise BudgetError(
            f"a budget of {seconds / 60:.3g} minutes does not hold two arms ({names}) with {seeds} seeds and {least} steps each; "
            f"give at least {enough:.1f} minutes" + (", or fewer steps" if steps is not None else "")
        )
    length = least
    per_step = seeds * math.fsum(c.step for c in kept)
    if steps is None:
        room = math.inf if per_step == 0 else (left - need(kept, 0)) / per_step
        length = max(least, min(most, math.floor(min(room, most))))
    dropped = []
    used = need(kept, least)
    for cost in costs[len(kept) :]:
        used += cost.seconds(seeds, least)
        dropped.append((
            cost.arm, f"with it {seeds} seeds of {least} steps would take {used / 60:.3g} of the {left / 60:.3g} minutes left for pilots",
        ))  # fmt: skip
    return Allotment(length, tuple(c.arm for c in kept), tuple(dropped), need(kept, length))
