"""Weightings where each key is weighed by its own score: sigmoid and rectified."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.weighting.base import Mass, Value, learnable, per_head, row_count

__all__ = ["Relu", "Sigmoid"]


def check_n(n: int | None) -> None:
    """Raise unless ``n`` is None or a positive number."""
    if n is not None and (isinstance(n, bool) or not isinstance(n, int | float) or not 0 < n < math.inf):
        raise ArgumentError(f"n must be None (the row's own key count) or a positive number, got {n!r}")


@dataclass(frozen=True, eq=False)
class Sigmoid(Value):
    """Each key's own yes or no; the weights of n keys sum to anything from 0 to n.

    Args:
        bias: added to every score, a number or one per head. None is ``−ln n``, so that equal scores of 0 start
            with a mass near 1.
        n: the count in that default bias. None is the number of keys the row sees, which is the same in
            prefill and in cached decoding; a number is a fixed training length.
    """

    bias: float | Tensor | None = learnable(None)
    n: int | None = None

    name: ClassVar[str] = "sigmoid"
    formula: ClassVar[str] = "σ(s_j + b), b = −ln n"
    source: ClassVar[str] = "Ramapuram et al. 2024, arXiv 2409.04431"
    mass: Mass = "free"
    shift_invariant: bool = False

    def __post_init__(self) -> None:
        check_n(self.n)
        if self.bias is not None:
            if self.n is not None:
                raise ArgumentError(f"give bias or n, not both: n={self.n} is only the count in the default bias −ln n")
            self.checked("bias", torch.isfinite, "finite")

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        if self.bias is not None:
            bias = per_head(self.bias, scores, "bias")
        else:
            n = row_count(scores, visible) if self.n is None else self.n
            bias = -torch.log(n) if isinstance(n, Tensor) else -math.log(n)
        if visible is not None:
            scores = scores.masked_fill(~visible, -math.inf)
        return torch.sigmoid(scores + bias)


@dataclass(frozen=True, eq=False)
class Relu(Value):
    """The positive part of the score over the number of keys; a row can be exactly zero.

    Args:
        normalize: divide by n; False leaves the sum as it is.
        n: None is the number of keys the row sees, a number is a fixed length.
        squared: the square of the positive part.
    """

    normalize: bool = True
    n: int | None = None
    squared: bool = False

    name: ClassVar[str] = "relu"
    formula: ClassVar[str] = "max(s_j, 0) / n"
    source: ClassVar[str] = "Wortsman et al. 2023, arXiv 2309.08586; squared: So et al. 2021, arXiv 2109.08668"
    mass: Mass = "free"
    shift_invariant: bool = False
    exact_zeros: bool = True

    def __post_init__(self) -> None:
        check_n(self.n)
        if self.n is not None and not self.normalize:
            raise ArgumentError(f"n={self.n} has no use with normalize=False")

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)
        w = torch.relu(scores)
        if self.squared:
            w = w * w
        if not self.normalize:
            return w
        return w / (row_count(scores, visible) if self.n is None else self.n)
