"""One call of attention, its arguments checked and put into one form for every implementation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkgate.ops.bands import Bands
from sinkgate.weighting import Weighting

__all__ = ["Mass", "Request"]


class Mass(NamedTuple):
    """Σ of each row's weights, ``[b, h, t]`` float32 (float64 for float64 inputs); carries no gradient.

    ``sink`` is the share of a sink logit, 0 for weightings without one. For a mass that is trained, append a column
    of ones to ``v``.
    """

    total: Float[Tensor, "b h t"]
    sink: Float[Tensor, "b h t"]


@dataclass(frozen=True, eq=False)
class Request:
    """What an implementation is asked for.

    Args:
        q: ``[b, h, t, d]``.
        k: ``[b, hkv, s, d]``; hkv divides h, query head j uses key head ``j // (h / hkv)``.
        v: ``[b, hkv, s, dv]``.
        weighting: scores → weights.
        bands: visibility by structure.
        mask: bool or additive, a view of ``[b, h, t, s]`` (broadcast dimensions have stride 0), or None.
        plain: how the structure was asked for, ``"causal"`` (t = s), ``"all"``, or None for anything else.
        scale: multiplies q·k.
        softcap: 0 for none.
        open: bool ``[b, h, t]``: the queries to compute, or None for all.
        return_mass: whether the mass is wanted.
        precision: ``"exact"`` or ``"fast"``.
    """

    q: Float[Tensor, "b h t d"]
    k: Float[Tensor, "b hkv s d"]
    v: Float[Tensor, "b hkv s dv"]
    weighting: Weighting
    bands: Bands
    mask: Tensor | None
    plain: str | None
    scale: float
    softcap: float
    open: Bool[Tensor, "b h t"] | None
    return_mass: bool
    precision: str

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def learns(self) -> bool:
        """Whether gradients will be asked for."""
        tensors = [self.q, self.k, self.v, *self.weighting.tensors().values()]
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
