"""Attention weights a block of rows at a time: the one place where weights are ever held.

Peak memory is ``group × rows × s`` floats, twice (weights and their logarithms), whatever the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.masks import Span
from sinkgate.site import Site

__all__ = ["Block", "has_log_sum_exp", "head_output", "weight_blocks"]

# A tile of weights: rows (all query heads of a group counted) by keys. 768 × 512 float32 is 1.5 MB: with its logarithms
# it stays close to two cores from the product through every sum over it, and is large enough that the operations, not
# the calls, are what costs (docs/log.md has the sizes that were tried).
ROWS, KEYS = 768, 512

LOG2E = math.log2(math.e)

# Stands for −inf where −inf·0 would be NaN: exp of it is exactly 0.
NEVER = -1e30


@dataclass
class Block:
    """The weights of the query heads ``h0:h0+g`` of batch row ``b``, for the rows and keys of ``span``.

    ``weights`` and ``log2_weights`` live in a buffer that the next block overwrites; a consumer may write to
    them. Where a key is hidden or a row is padding the weight is exactly 0 and its logarithm finite. Logarithms
    are to base 2: on CPUs ``exp2`` runs at nearly three times the speed of ``exp`` (docs/log.md).
    """

    b: int
    h0: int
    span: Span
    weights: Float[Tensor, "g r c"]
    log2_weights: Float[Tensor, "g r c"] | None
    log2_sink: Float[Tensor, "g r"] | None  # of a learned sink logit or an outlet's key


def has_log_sum_exp(site: Site) -> bool:
    """Whether the kernel's log-sum-exp is there and normalises the plain scores (a bias is known and added)."""
    return site.lse is not None and site.softcap is None and site.sink_logit is None


def weight_blocks(site: Site, *, rows: int | None = None, logs: bool = True) -> Iterator[Block]:
    """Every weight of a site, a tile of rows and keys of one key-value head at a time, in float32.

    The kernel's log-sum-exp is used where the site carries one; otherwise it is computed here, from the same
    scores, and a tile is as wide as its rows. Softcap, additive masks, windows, padding and learned sinks are
    honoured.

    Args:
        site: the layer.
        rows: query rows per tile and head.
        logs: whether the logarithms are wanted; without them one buffer does, and the tile is twice as wide.
    """
    rows = rows or max(32, ROWS // site.group)
    fused = has_log_sum_exp(site)
    sink = None if site.sink_logit is None else site.sink_logit.float() * LOG2E
    spans = list(site.visibility.spans(rows))
    widest = max((span.k1 - span.k0 for span in spans), default=0)
    keys = KEYS if logs else 2 * KEYS
    widest = min(widest, keys) if fused else widest
    buffers = torch.empty(2 if logs or not fused else 1, site.group * rows * widest, device=site.q.device)
    rows_seen = site.visibility.counts > 0  # per head too: a row may be empty in one head alone
    for b, kv, h0 in site.kv_heads():
        heads = slice(h0, h0 + site.group)
        q = site.q[b, heads].float() * (site.factor * LOG2E if fused else site.factor)
        k = site.k[b, kv].float()
        empty = ~_row(rows_seen, b, heads)
        hidden = empty if bool(empty.any()) else None
        if hidden is not None:  # whatever stands in a padding query, NaN included, must not reach a sum
            q = q.masked_fill(hidden[..., None], 0)
        if fused:
            # the row's log-sum-exp rides along as one more dimension, so the product is the log weights
            assert site.lse is not None
            lse = site.lse[b, heads].float() * LOG2E
            if hidden is not None:
                lse = lse.masked_fill(hidden, -NEVER)
            q = torch.cat([q, -lse.unsqueeze(-1)], -1)
            k = torch.cat([k, torch.ones_like(k[:, :1])], -1)
        for whole in spans:
            for span in whole.tiles(keys) if fused else (whole,):
                shape = (site.group, span.i1 - span.i0, span.k1 - span.k0)
                size = shape[0] * shape[1] * shape[2]
                scores, weights = buffers[0][:size].view(shape), buffers[-1][:size].view(shape)
                left = q[:, span.i0 : span.i1].reshape(shape[0] * shape[1], -1)
                torch.mm(left, k[span.k0 : span.k1].T, out=scores.view(-1, shape[2]))
                _finish(site, b, heads, span, scores, LOG2E if fused else 1.0)
                log2_sink = None
                if not fused:
                    scores.mul_(LOG2E)
                    top = scores.amax(-1, keepdim=True)
                    here = None if sink is None else _sinks(sink, b, heads, span)
                    if here is not None:  # the maximum must know the sink, or a large z overflows
                        top = torch.maximum(top, here)
                    total = torch.exp2(torch.sub(scores, top, out=weights), out=weights).sum(-1, keepdim=True)
                    if here is not None:
                        total += torch.exp2(here - top)
                    lse = (top + total.log2()).squeeze(-1)
                    if hidden is not None:
                        lse = lse.masked_fill(hidden[..., span.i0 : span.i1], -NEVER)
                    if here is not None:
                        log2_sink = here.squeeze(-1) - lse
                    scores -= lse.unsqueeze(-1)
                torch.exp2(scores, out=weights)
                yield Block(b, h0, span, weights, scores if logs else None, log2_sink)


def _finish(site: Site, b: int, heads: slice, span: Span, raw: Tensor, unit: float) -> None:
    """Softcap, additive bias and visibility, in place, in the order the models apply them.

    ``unit`` is what a natural logarithm counts in ``raw``.
    """
    if site.softcap is not None:
        raw.div_(site.softcap).tanh_().mul_(site.softcap)
    bias = site.visibility.bias(span)
    if bias is not None:
        raw.add_(_row(bias, b, heads).float().clamp_min(NEVER), alpha=unit)
    for c0, c1, seen in span.parts:
        raw[..., c0 - span.k0 : c1 - span.k0].masked_fill_(~_row(seen, b, heads), NEVER)


def _sinks(sink: Tensor, b: int, heads: slice, span: Span) -> Float[Tensor, "g r 1"]:
    """The sink logits of a block, one per head or one per query."""
    if sink.ndim == 1:
        return sink[heads, None, None]
    return sink[b, heads, span.i0 : span.i1, None].clamp_min(NEVER)


def _row(x: Tensor, b: int, heads: slice) -> Tensor:
    """One batch row of a tensor whose batch and head axes may be shared."""
    x = x[b if x.shape[0] > 1 else 0]
    return x[heads] if x.shape[0] > 1 else x


def head_output(site: Site) -> Float[Tensor, "b h t dv"]:
    """``Σ_j a_j v_j`` from the blocks a probe reads, float32: what the reading says the layer computed."""
    out = torch.zeros(*site.q.shape[:-1], site.v.shape[-1], device=site.q.device)
    for block in weight_blocks(site):
        span, heads = block.span, slice(block.h0, block.h0 + site.group)
        values = site.v[block.b, block.h0 // site.group, span.k0 : span.k1].float()
        bad = ~torch.isfinite(values)
        result = block.weights @ values.masked_fill(bad, 0)
        if bool(bad.any()):  # 0 · NaN is NaN: what a row does not see must not reach it
            result[((block.weights > 0).float() @ bad.float()) > 0] = float("nan")
        if site.sink_value is not None and block.log2_sink is not None:
            written = site.sink_value[block.b if site.sink_value.shape[0] > 1 else 0, block.h0 // site.group].float()
            result = result + block.log2_sink.exp2().unsqueeze(-1) * written
        out[block.b, heads, span.i0 : span.i1] = result
    return out
