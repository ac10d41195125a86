"""Attention a block of query rows at a time, in plain PyTorch: any weighting, any device, any dtype, no compiler.

A block's scores are recomputed in the backward pass. Peak memory beyond inputs and outputs: a few blocks of
``b × h × rows × keys`` numbers, and for half precision a float32 copy of k and v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sinkgate.ops.bands import Bands
from sinkgate.ops.reference import attend, mass_of, visible_and_bias
from sinkgate.ops.request import Mass, Request
from sinkgate.weighting import Weighting

__all__ = ["refuses", "run"]

summary = "blocks of rows in PyTorch: any weighting, device and dtype; no compiler"

BLOCK = 2**21  # scores held at once


def refuses(request: Request) -> str | None:
    """Nothing but what has to be traced."""
    if torch.compiler.is_compiling():
        return "its loop over blocks depends on the data and cannot be traced by torch.compile"
    return None


def blocks(bands: Bands, heads: int) -> Iterator[tuple[int, int, Tensor | None, int, int]]:
    """Rows ``i0:i1``, and the keys they see: a run ``k0:k1``, or an index where the first keys lie apart."""
    t, s = bands.lo.shape[1], bands.keys
    rows = max(16, min(512, BLOCK // max(heads * s, 1)))
    for i0 in range(0, t, rows):
        i1 = min(i0 + rows, t)
        part = slice(i0, i1)
        k0, k1 = max(int(bands.lo[:, part].min()), 0), min(int(bands.hi[:, part].max()), s)
        index = None
        if bands.first_lo is not None and bands.first_hi is not None:
            f0, f1 = int(bands.first_lo[:, part].min()), int(bands.first_hi[:, part].max())
            if f0 < f1 and f1 < k0:
                keys = [torch.arange(f0, f1), torch.arange(k0, max(k0, k1))]
                index = torch.cat(keys).to(bands.lo.device)
            elif f0 < f1:
                k0, k1 = min(f0, k0), max(f1, k1)
        if index is not None or k0 < k1:
            yield i0, i1, index, k0, k1


def open_blocks(r: Request, q: Tensor) -> Iterator[tuple[int, int, Tensor | None, int, int]]:
    """The blocks that have a query whose gate is open."""
    for part in blocks(r.bands, q.shape[0] * q.shape[1]):
        if r.open is None or bool(r.open[:, :, part[0] : part[1]].any()):
            yield part


class Blocked(torch.autograd.Function):
    """Forward block by block; backward recomputes each block under autograd."""

    @staticmethod
    def forward(ctx: Any, r: Request, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *tensors: Tensor) -> Any:
        """Output and total mass."""
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        total = torch.zeros(q.shape[:3], dtype=accumulate(q.dtype), device=q.device)
        k32, v32 = (x.to(accumulate(q.dtype)) for x in (k, v))
        ctx.finite = all(bool(torch.isfinite(x).all()) for x in (q, k, v))
        for part in open_blocks(r, q):
            rows = slice(part[0], part[1])
            keys = keys_of(part)
            y, weights = one_block(
                r, q[:, :, rows], k32[:, :, keys], v32[:, :, keys], mask, r.weighting, part, ctx.finite
            )
            out[:, :, rows] = y
            if r.return_mass:
                total[:, :, rows] = weights.sum(-1)
        ctx.request = r
        ctx.save_for_backward(q, k, v, mask, *tensors)
        ctx.mark_non_differentiable(total)
        return out, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor, _: Tensor) -> Any:
        """Gradients of q, k, v, the mask and the weighting's tensors."""
        q, k, v, mask, *tensors = ctx.saved_tensors
        r, names = ctx.request, list(ctx.request.weighting.tensors())
        wide = accumulate(q.dtype)
        k32, v32 = (x.detach().to(wide) for x in (k, v))
        dq = torch.zeros_like(q)
        dk, dv = torch.zeros_like(k32), torch.zeros_like(v32)
        learned = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
        dlearned = [torch.zeros_like(x) if x.is_floating_point() else None for x in tensors]
        dmask = torch.zeros_like(mask) if mask is not None and ctx.needs_input_grad[4] else None
        weighting = r.weighting.with_tensors(**dict(zip(names, learned, strict=True))) if names else r.weighting
        for block in open_blocks(r, q):
            i0, i1 = block[:2]
            keys = keys_of(block)
            leaves = [x[:, :, keys].detach().requires_grad_() for x in (k32, v32)]
            with torch.enable_grad():
                rows = q[:, :, i0:i1].detach().requires_grad_()
                part = None if mask is None else mask.detach()
                if dmask is not None and part is not None:
                    part.requires_grad_()
                y, _ = one_block(r, rows, leaves[0], leaves[1], part, weighting, block, ctx.finite)
            wanted = [rows, *leaves, *[x for x in learned if x.requires_grad], *([part] if dmask is not None else [])]
            found = torch.autograd.grad(y, wanted, dout[:, :, i0:i1], allow_unused=True)
            found = tuple(torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted, strict=True))
            dq[:, :, i0:i1] = found[0]
            dk[:, :, keys] += found[1]  # an index holds no key twice
            dv[:, :, keys] += found[2]
            rest = list(found[3:])
            for total in dlearned:
                if total is not None:
                    total += rest.pop(0)
            if dmask is not None:
                dmask += rest.pop(0)
        return None, dq, dk.to(k.dtype), dv.to(v.dtype), dmask, *dlearned


def keys_of(part: tuple[int, int, Tensor | None, int, int]) -> Any:
    """What takes a block's keys out of all keys."""
    return slice(part[3], part[4]) if part[2] is None else part[2]


def accumulate(dtype: torch.dtype) -> torch.dtype:
    """What scores and sums are kept in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def one_block(
    r: Request,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    weighting: Weighting,
    part: tuple[int, int, Tensor | None, int, int],
    finite: bool,
) -> tuple[Tensor, Tensor]:
    """Output and weights of one block's queries over its keys; ``part`` is one of :func:`blocks`."""
    i0, i1 = part[:2]
    keys = keys_of(part)
    visible, bias = visible_and_bias(
        r.bands.dense(i0, i1)[..., keys], None if mask is None else mask[:, :, i0:i1, keys]
    )
    weighting = weighting.for_rows(i0, i1, r.q.shape[2])
    bias = None if bias is None else bias.to(k.dtype)
    q = q.to(k.dtype)
    if not finite:
        k, v = (x.repeat_interleave(r.group, dim=1) for x in (k, v))
        out, weights = attend(q, k, v, weighting, visible, bias, r.scale, r.softcap)
    else:  # the same with fewer passes over the block: nothing to keep apart, no key repeated
        scores = grouped(q * r.scale, k.transpose(-1, -2), r.group)
        if r.softcap:
            scores = r.softcap * torch.tanh(scores / r.softcap)
        if bias is not None:
            scores = scores + bias
        weights = weighting.weights(scores, None if mask is None and bool(visible.all()) else visible)
        out = grouped(weights, v, r.group)
    if r.open is not None:
        out = out.masked_fill(~r.open[:, :, i0:i1, None], 0.0)
    return out.to(r.q.dtype), weights


def grouped(x: Tensor, y: Tensor, group: int) -> Tensor:
    """``x [b, h, r, m] @ y [b, hkv, m, n]`` with each of y's heads for a group of x's."""
    if group == 1:
        return x @ y
    rows = x.shape[2]
    x = x.unflatten(1, (-1, group)).flatten(2, 3)
    return (x @ y).unflatten(2, (group, rows)).flatten(1, 2)


def run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    out, total = Blocked.apply(r, r.q, r.k, r.v, r.mask, *r.weighting.tensors().values())
    mass = None
    if r.return_mass:
        mass = mass_of(total, r.weighting)
        if r.open is not None:
            mass = Mass(*(x.masked_fill(~r.open, 0.0) for x in mass))
    return out, mass
