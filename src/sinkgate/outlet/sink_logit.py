"""A learned logit per head that takes a share and writes nothing (as in gpt-oss)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sinkgate.call import Extra
from sinkgate.outlet.base import START, StartsAtNothing

__all__ = ["SinkLogit", "SinkLogitOutlet"]


@dataclass(frozen=True)
class SinkLogit:
    """A sink logit per head: the denominator gets ``e^z``, ``z = c_h + ln w_h``.

    Args:
        start: the largest share of any row before training.
    """

    start: float = START


class SinkLogitOutlet(StartsAtNothing):
    """See :class:`SinkLogit`."""

    def extra(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Extra | None:
        """A logit that is the same for every query."""
        return Extra(logit=self.logit()[None, :, None])
