"""Softmax over the k largest scores of a row."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.weighting.base import Mass, Value, per_row
from sinkgate.weighting.softmax import divide, exponentials

__all__ = ["TopKSoftmax"]


@dataclass(frozen=True, eq=False)
class TopKSoftmax(Value):
    """Softmax over the k largest scores, zero elsewhere, with an optional constant in the denominator.

    Scores equal to the k-th are all kept, so that the order of the keys does not matter. A row that sees fewer
    than k keys uses them all.

    Args:
        k: how many, an int, or an integer tensor per head ``[h]`` or per row ``[…, h, t]``.
        delta: added to the denominator (the same as a sink logit ``ln δ``).
        keep_rest: divide *every* score by the sum over the top k. Then the mass can exceed 1.
    """

    k: int | Tensor
    delta: float = 0.0
    keep_rest: bool = False

    name: ClassVar[str] = "topk_softmax"
    formula: ClassVar[str] = "e^{s_j} / (Σ_{i in top k} e^{s_i} + δ) on the top k, 0 elsewhere"
    source: ClassVar[str] = "Gupta et al. 2021, arXiv 2106.06899 (δ = 0)"

    def __post_init__(self) -> None:
        if isinstance(self.k, list):  # from JSON
            object.__setattr__(self, "k", torch.tensor(self.k))
        whole = not self.k.is_floating_point() if isinstance(self.k, Tensor) else isinstance(self.k, int)
        if isinstance(self.k, bool) or not whole:
            raise ArgumentError(f"k must be a whole number or an integer tensor, got {self.k!r}")
        self.checked("k", lambda k: k >= 1, "at least 1")
        if not 0 <= self.delta < math.inf:
            raise ArgumentError(f"delta must be a number of 0 or more, got {self.delta}")

    @property
    def mass(self) -> Mass:  # type: ignore[override]
        """Σ of a row's weights: 1, less with δ, anything with ``keep_rest``."""
        return "free" if self.keep_rest else "at most one" if self.delta else "one"

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Only without δ."""
        return self.delta == 0

    @property
    def exact_zeros(self) -> bool:  # type: ignore[override]
        """Off the top k, unless the rest is kept."""
        return not self.keep_rest

    def for_rows(self, i0: int, i1: int, rows: int) -> TopKSoftmax:
        """A k per row goes along with its rows."""
        if isinstance(self.k, Tensor) and self.k.ndim >= 2 and self.k.shape[-1] == rows:
            return dataclasses.replace(self, k=self.k[..., i0:i1])
        return self

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        hidden = scores.detach() if visible is None else scores.detach().masked_fill(~visible, -math.inf)
        k = per_row(self.k, scores, "k")
        n = scores.shape[-1]
        most = min(n, int(k.max()) if isinstance(k, Tensor) else k)
        largest = hidden.topk(most, dim=-1).values
        if isinstance(k, Tensor):
            index = (k.clamp_max(most) - 1).to(torch.long).expand(*hidden.shape[:-1], 1)
            least = largest.gather(-1, index)
        else:
            least = largest[..., -1:]
        top = hidden >= least
        if visible is not None:
            top = top & visible
        z = math.log(self.delta) if self.delta else None
        e, total = exponentials(scores, top, z)
        if self.keep_rest:
            # every e^s over the same sum; the shift is the row's maximum either way
            e = exponentials(scores, visible, z)[0]
        return divide(e, total)
