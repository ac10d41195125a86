"""The tokens that got most attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkgate.cache.base import Earned, whole

__all__ = ["HeavyHitters"]


@dataclass(frozen=True)
class HeavyHitters(Earned):
    """Per key-value head, the ``n`` tokens with the most accumulated attention (H2O, Zhang et al. 2023, arXiv 2306.14048).

    The mass of a key is summed over the queries since it came and over the query heads that share it. A token that leaves
    the recent ones takes the slot of the held one with the least mass, if it has more; what is dropped cannot come back.
    """

    name: ClassVar[str] = "heavy"
    n: int

    def __post_init__(self) -> None:
        whole("heavy(n): n", self.n)

    @property
    def slots(self) -> int:
        """How many tokens."""
        return self.n

    def replaces(
        self, mass: Float[Tensor, "b kv"], held: Float[Tensor, "b kv n"], positions: Int[Tensor, "b kv n"]
    ) -> Int[Tensor, "b kv"]:
        """An empty slot, or the one with the least mass if that is less."""
        least, slot = held.masked_fill(positions < 0, -1.0).min(-1)
        return torch.where(mass > least, slot, -1)
