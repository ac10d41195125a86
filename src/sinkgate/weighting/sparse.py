"""Sparsemax and entmax: projections that reach the boundary of the simplex."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkgate.weighting.base import Value, learnable, per_head

__all__ = ["Entmax", "Sparsemax"]


@dataclass(frozen=True, eq=False)
class Sparsemax(Value):
    """Euclidean projection of the scores on the simplex: ``argmax p·s − ½‖p‖²``.

    Keys a gap of 1 under the largest score get exactly nothing, however many they are.
    """

    name: ClassVar[str] = "sparsemax"
    formula: ClassVar[str] = "max(s_j − τ, 0), τ such that Σ = 1"
    source: ClassVar[str] = "Martins and Astudillo 2016, arXiv 1602.02068, eq. 3 and algorithm 1"
    exact_zeros: bool = True

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        if visible is not None:
            scores = scores.masked_fill(~visible, -math.inf)
        top = scores.detach().amax(-1, keepdim=True)
        scores = scores - torch.where(top == -math.inf, 0.0, top)
        ordered = scores.detach().sort(-1, descending=True).values.clamp_min(-1.0)  # a gap of 1 is out already
        rank = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
        count = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
        least = ordered.gather(-1, (count - 1).clamp_min(0))
        support = (scores >= least) & (scores > -math.inf)
        size = support.sum(-1, keepdim=True).clamp_min(1)
        tau = (torch.where(support, scores, 0.0).sum(-1, keepdim=True) - 1) / size
        return torch.where(support, scores - tau, 0.0).clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Entmax(Value):
    """α-entmax: softmax as α → 1, sparsemax at α = 2; one-hot from a gap of ``1/(α−1)``, whatever n.

    Args:
        alpha: above 1, a number or one per head; learned through ``∂p/∂α``.
    """

    alpha: float | Tensor = learnable(1.5)

    name: ClassVar[str] = "entmax"
    formula: ClassVar[str] = "max((α−1)s_j − τ, 0)^{1/(α−1)}, τ such that Σ = 1"
    source: ClassVar[str] = "Peters et al. 2019, arXiv 1905.05702; ∂p/∂α: Correia et al. 2019, arXiv 1909.00015"
    exact_zeros: bool = True

    def __post_init__(self) -> None:
        self.checked("alpha", lambda a: (a > 1) & (a < math.inf), "above 1 (1 itself is softmax)")

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`.

        The threshold is found by bisection, without gradients; one Newton step from there, with gradients, is the
        implicit function theorem written out: it moves τ by nothing and carries ∂τ/∂s and ∂τ/∂α.
        """
        alpha = torch.as_tensor(per_head(self.alpha, scores, "alpha"), dtype=scores.dtype, device=scores.device)
        if visible is not None:
            scores = scores.masked_fill(~visible, -math.inf)
        top = scores.detach().amax(-1, keepdim=True)
        gap = scores - torch.where(top == -math.inf, 0.0, top)
        gap = gap.clamp_min(torch.finfo(gap.dtype).min / 4)  # finite: −∞ · 0 would be the gradient of α
        x = (alpha - 1) * gap  # the largest is 0, so τ in [−1, 0)
        power = 1 / (alpha - 1)

        low, high = torch.full_like(top, -1.0), torch.zeros_like(top)
        with torch.no_grad():
            for _ in range(2 + int(-math.log2(torch.finfo(x.dtype).eps))):
                middle = (low + high) / 2
                enough = (x - middle).clamp_min(0).pow(power).sum(-1, keepdim=True) >= 1
                low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)

        seen = top > -math.inf
        support = (x.detach() > low) & seen
        over = torch.where(support, x - low, 1.0)
        p = over.pow(power)
        slope = torch.where(support, p / over, 0.0).sum(-1, keepdim=True) * power
        excess = torch.where(support, p, 0.0).sum(-1, keepdim=True) - 1
        step = excess / torch.where(slope == 0, 1.0, slope)
        support = support & (x.detach() > low + step.detach())
        moved = torch.where(support, x - (low + step), 1.0)
        return torch.where(support, moved.pow(power), 0.0)
