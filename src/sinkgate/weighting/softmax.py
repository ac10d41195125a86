"""Softmax, with or without a logit that takes a share and writes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinkgate.weighting.base import Mass, Value, learnable, per_head

__all__ = ["SinkSoftmax", "Softmax", "Softmax1", "exponentials"]


def exponentials(scores: Tensor, visible: Tensor | None, z: float | Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``e^{s−m}`` and its row sum with ``e^{z−m}``, where ``m = max(s, z)``; 0 at hidden keys.

    The maximum has to include z: else z = +100 over scores of 0 overflows. The sum of an empty row is 0.
    """
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    top = scores.detach().amax(-1, keepdim=True)
    if z is not None:
        z = torch.as_tensor(z, dtype=scores.dtype, device=scores.device)
        top = torch.maximum(top, z.detach())
    top = torch.where(top == -math.inf, 0.0, top)
    e = torch.exp(scores - top)
    total = e.sum(-1, keepdim=True)
    return e, total if z is None else total + torch.exp(z - top)


def divide(e: Tensor, total: Tensor) -> Tensor:
    """``e / total``, 0 in an empty row."""
    return e / torch.where(total == 0, 1.0, total)


@dataclass(frozen=True, eq=False)
class Softmax(Value):
    """Softmax: the weights of a row sum to 1, whether or not there is something to read."""

    name: ClassVar[str] = "softmax"
    formula: ClassVar[str] = "e^{s_j} / Σ_i e^{s_i}"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762"

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        return divide(*exponentials(scores, visible))


@dataclass(frozen=True, eq=False)
class SinkSoftmax(Value):
    """Softmax with one more logit per head that takes a share and has no value.

    Args:
        z: the logit, a number or one per head; not multiplied by ``scale``. ``0`` is softmax1, ``ln n`` is
            softmax_n, ``−inf`` is softmax.
    """

    z: float | Tensor = learnable(0.0)

    name: ClassVar[str] = "sink_softmax"
    formula: ClassVar[str] = "e^{s_j} / (e^z + Σ_i e^{s_i})"
    source: ClassVar[str] = "gpt-oss 2025, arXiv 2508.10925; Xiao et al. 2024, arXiv 2309.17453 (z = 0)"
    mass: Mass = "at most one"

    def __post_init__(self) -> None:
        self.checked("z", lambda z: z < math.inf, "a number below infinity (−inf is softmax)")

    @property
    def shift_invariant(self) -> bool:  # type: ignore[override]
        """Only without a sink, at z = −∞."""
        return not isinstance(self.z, Tensor) and self.z == -math.inf

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        return divide(*exponentials(scores, visible, per_head(self.z, scores, "z")))


@dataclass(frozen=True, eq=False)
class Softmax1(Value):
    """Softmax with a 1 added to its denominator: :class:`SinkSoftmax` with z = 0."""

    name: ClassVar[str] = "softmax1"
    formula: ClassVar[str] = "e^{s_j} / (1 + Σ_i e^{s_i})"
    source: ClassVar[str] = "Miller 2023, 'Attention is off by one'"
    mass: Mass = "at most one"
    shift_invariant: bool = False

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        return divide(*exponentials(scores, visible, 0.0))
