"""Attention written out: the law that every other implementation is held to.

Any device, any dtype (half precision is computed in float32), any weighting, every argument; O(T²) memory.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkgate.masks import HIDDEN
from sinkgate.ops.request import Mass, Request
from sinkgate.weighting import Weighting

__all__ = ["attend", "refuses", "run", "visible_and_bias"]

summary = "eager PyTorch, the law; holds T×T"


def refuses(request: Request) -> str | None:
    """Nothing is refused."""
    return None


def visible_and_bias(seen: Bool[Tensor, "b 1 t s"], mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What is seen by structure and by mask, and the additive part of the mask where it is seen."""
    if mask is None:
        return seen, None
    if mask.dtype == torch.bool:
        return seen & mask, None
    seen = seen & ~(mask <= HIDDEN)  # a NaN is not hidden: it shows
    return seen, mask.masked_fill(~seen, 0.0)


def attend(
    q: Float[Tensor, "b h t d"], k: Float[Tensor, "b h s d"], v: Float[Tensor, "b h s dv"],
    weighting: Weighting, visible: Bool[Tensor, (b #h t s
)], bias: Tensor | None, scale: float, softcap: float,
) -> tuple[Float[Tensor, "b h t dv"], Float[Tensor, "b h t s"]]:  # fmt: skip
    """Output and weights. What is not finite makes NaN of its own row (q) or of the rows that see it (k, v)."""
    broken = ~(torch.isfinite(k).all(-1) & torch.isfinite(v).all(-1))
    k, v = (x.masked_fill(broken[..., None], 0.0) for x in (k, v))  # else 0·NaN would reach the rows that do not
    lost = ~torch.isfinite(q).all(-1, keepdim=True) & visible.any(-1, keepdim=True)
    lost = lost | (visible & broken[..., None, :]).any(-1, keepdim=True)

    scores = scale * (q @ k.transpose(-1, -2))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    weights = weighting.weights(scores, visible)
    out = weights @ v
    return out + torch.zeros_like(out).masked_fill(lost, torch.nan), weights


def run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    dtype = torch.float32 if r.q.dtype in (torch.float16, torch.bfloat16) else r.q.dtype
    q, k, v = (x.to(dtype) for x in (r.q, r.k, r.v))
    k, v = (x.repeat_interleave(r.group, dim=1) for x in (k, v))
    visible, bias = visible_and_bias(r.bands.dense(), r.mask)
    if bias is not None:
        bias = bias.to(dtype)
    out, weights = attend(q, k, v, r.weighting, visible, bias, r.scale, r.softcap)
    mass = None
    if r.return_mass:
        with torch.no_grad():
            mass = mass_of(weights.sum(-1), r.weighting)
    if r.open is not None:
        out = out.masked_fill(~r.open[..., None], 0.0)
        mass = None if mass is None else Mass(*(x.masked_fill(~r.open, 0.0) for x in mass))
    return out.to(r.q.dtype), mass


def mass_of(total: Tensor, weighting: Weighting) -> Mass:
    """The mass, and what a sink logit took: the rest of 1 (all of it where nothing was seen)."""
    sink = torch.zeros_like(total)
    if weighting.name in ("sink_softmax", "softmax1"):
        z = torch.as_tensor(getattr(weighting, "z", 0.0), device=total.device)
        there = z > -math.inf  # a sink of −∞ is none
        sink = (1 - total) * (there[:, None] if there.ndim else there)
    return Mass(total, sink)
