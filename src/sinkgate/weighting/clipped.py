"""Clipped softmax: stretched over [0, 1] and cut, so that exact zeros need no infinite scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.weighting.base import Mass, Value, row_count
from sinkgate.weighting.elementwise import check_n
from sinkgate.weighting.softmax import divide, exponentials

__all__ = ["ClippedSoftmax"]


@dataclass(frozen=True, eq=False)
class ClippedSoftmax(Value):
    """``clip((ζ−γ)·softmax + γ, 0, 1)``.

    Args:
        zeta: 1 or more; at 1 the mass is at most 1.
        gamma: 0 or less. None is ``−strength/n``: a key needs more than about ``strength`` times its uniform
            share to be heard.
        strength: 2 to 4 in the paper.
        n: None is the number of keys the row sees, a number is a fixed length.
    """

    zeta: float = 1.0
    gamma: float | None = None
    strength: float = 3.0
    n: int | None = None

    name: ClassVar[str] = "clipped_softmax"
    formula: ClassVar[str] = "clip((ζ−γ)·softmax_j + γ, 0, 1), γ = −strength/n"
    source: ClassVar[str] = "Bondarenko et al. 2023, arXiv 2306.12929, eq. 4"
    exact_zeros: bool = True

    def __post_init__(self) -> None:
        check_n(self.n)
        if not self.zeta > 0:
            raise ArgumentError(f"zeta must be a positive number, got {self.zeta}")
        if self.gamma is not None and not self.gamma <= 0:
            raise ArgumentError(f"gamma must be 0 or less, got {self.gamma}")
        if not self.strength >= 0:
            raise ArgumentError(f"strength must be 0 or more, got {self.strength}")

    @property
    def mass(self) -> Mass:  # type: ignore[override]
        """At most 1 if ζ ≤ 1, else free."""
        return "at most one" if self.zeta <= 1 else "free"

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        p = divide(*exponentials(scores, visible))
        n = row_count(scores, visible) if self.n is None else self.n
        gamma = self.gamma if self.gamma is not None else -self.strength / n
        w = (self.zeta - gamma) * p + gamma
        return torch.clamp(w, 0.0, 1.0)
