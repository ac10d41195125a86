"""When a loss is a spike."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sinkgate.errors import ArgumentError

__all__ = ["SpikeDetector", "Spikes", "is_spike"]


@dataclass(frozen=True)
class Spikes:
    """The rule: a loss is a spike if it is over ``factor`` times the median of the ``window`` losses before it.

    So many losses there have to be, and their median must be positive. A loss that is not finite is always one.

    Raises:
        ArgumentError: a value is out of range.
    """

    window: int = 20
    factor: float = 2.0

    def __post_init__(self) -> None:
        if type(self.window) is not int or self.window < 1:
            raise ArgumentError(f"window must be a whole number of at least 1, got {self.window!r}")
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ArgumentError(f"factor must be above 1, got {self.factor!r}")


def is_spike(before: Sequence[float], loss: float, window: int, factor: float) -> bool:
    """Whether ``loss`` is a spike after the losses ``before``, the last ``window`` that there were.

    >>> is_spike([1.0, 3.0, 2.0], 4.1, 3, 2.0), is_spike([1.0, 3.0, 2.0], 4.0, 3, 2.0), is_spike([1.0], 9.0, 3, 2.0)
    (True, False, False)
    """
    if len(before) < window:
        return False
    middle = statistics.median(before)
    return middle > 0 and loss > factor * middle


class SpikeDetector:
    """The rule applied to losses as they come.

    Args:
        rule: what a spike is.
    """

    def __init__(self, rule: Spikes) -> None:
        self.rule = rule
        self._before: deque[float] = deque(maxlen=rule.window)

    @property
    def median(self) -> float | None:
        """Of the losses in the window; None before the first."""
        return statistics.median(self._before) if self._before else None

    def see(self, loss: float) -> bool:
        """One more loss; whether it is a spike. One that is not finite does not enter the window."""
        if not math.isfinite(loss):
            return True
        found = is_spike(list(self._before), loss, self.rule.window, self.rule.factor)
        self._before.append(loss)
        return found
