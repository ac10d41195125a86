"""Softpick: softmax moved down by one, its negative part kept in the denominator only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.weighting.base import Mass, Value

__all__ = ["Softpick"]


@dataclass(frozen=True, eq=False)
class Softpick(Value):
    """Rectified softmax: a score of 0 or less gets no weight but still counts against the others.

    Not a top-k softmax, as is sometimes said: there is no k. Discontinuous where all scores are 0.

    Args:
        eps: added to the denominator.
    """

    eps: float = 1e-6

    name: ClassVar[str] = "softpick"
    formula: ClassVar[str] = "max(e^{s_j}−1, 0) / (Σ_i |e^{s_i}−1| + ε)"
    source: ClassVar[str] = "Zuhri et al. 2025, arXiv 2504.20966"
    mass: Mass = "at most one"
    shift_invariant: bool = False
    exact_zeros: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.eps < math.inf:
            raise ArgumentError(f"eps must be a number of 0 or more, got {self.eps}")

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)  # e^0 − 1 = 0: neither above nor below the line
        top = scores.detach().amax(-1, keepdim=True).clamp_min(0.0)
        # (e^s − 1)·e^{−m}: by expm1 near 0, where the difference would have no digits; by the difference above
        small = torch.expm1(scores.clamp_max(1.0)) * torch.exp(-top)
        x = torch.where(scores > 1.0, torch.exp(scores - top) - torch.exp(-top), small)
        total = x.abs().sum(-1, keepdim=True) + self.eps * torch.exp(-top)
        return torch.relu(x) / torch.where(total == 0, 1.0, total)
