"""One pass over a site's weights: what each query and each key gets, never more than a block at a time.

Where the compiled kernels are there and the layer is a plain one (causal, with or without a window, no padding, the
kernel's log-sum-exp at hand) they do the pass; everything else is read in PyTorch, tile by tile. Both give the same
numbers to float32's accuracy, and :func:`reader` says which one it will be.

Peak memory is one tile (:mod:`sinkgate.blocks`), a packed copy of the keys, and a handful of ``[b, heads, t]`` and
``[b, heads, s]`` float32 tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.blocks import NEVER, has_log_sum_exp, weight_blocks
from sinkgate.ops.bands import bands
from sinkgate.ops.native.build import Unavailable, library
from sinkgate.ops.native.call import DTYPES, run_read
from sinkgate.site import Site

LN2 = math.log(2)

# A stock kernel's log-sum-exp is right to about 1e-4 where scores are large (seen: a row of 1 − p = 2.4e-4 off by
# its own size). The full pass sums the other weights instead and has no such floor.
RESOLUTION = 1e-3

__all__ = ["Rows", "read_first_keys", "read_rows", "reader"]


@dataclass
class Rows:
    """What one pass found. ``h`` counts query heads; None where the pass was not asked for it.

    ``rest`` is summed over the other keys (and the learned sink), not taken as ``1 − first``: it keeps its
    digits when the sink holds nearly everything.
    """

    log_first: Float[Tensor, "b h t"]  # log weight on the first token (large negative where unseen)
    rest: Float[Tensor, "b h t"]  # Σ of everything else in the row: other keys and the learned sink
    learned: Float[Tensor, "b h t"] | None  # weight of the learned sink logit
    first_keys: Float[Tensor, "b h 4"]  # Σ over real queries of the weight on each of the first four tokens
    columns: Float[Tensor, "b h s"] | None = None  # Σ over real queries of the weight on every key
    entropy: Float[Tensor, "b h t"] | None = None
    local: Float[Tensor, "b h"] | None = None  # Σ over real queries
    previous: Float[Tensor, "b h"] | None = None
    own: Float[Tensor, "b h"] | None = None

    @property
    def first(self) -> Float[Tensor, "b h t"]:
        """Weight on the first token."""
        return self.log_first.exp()


def _log_first_keys(site: Site, count: int) -> Float[Tensor, "b h t n"]:
    """Log weights on the first ``count`` tokens from the kernel's log-sum-exp: one small product."""
    assert site.lse is not None
    last = site.k.shape[2] - 1
    index = site.first[:, None] + torch.arange(count, device=site.k.device)
    rows = torch.arange(site.k.shape[0], device=site.k.device)[:, None]
    keys = site.k[rows, :, index.clamp_max(last)].permute(0, 2, 3, 1).float() * site.factor  # [b, kv, d, n]
    queries = site.q.float().unflatten(1, (-1, site.group)).flatten(2, 3)  # [b, kv, group·t, d]
    logs = (queries @ keys).unflatten(2, (site.group, -1)).flatten(1, 2) - site.lse.float().unsqueeze(-1)
    seen = torch.stack([site.visibility.sees(i.clamp_max(last)) & (i <= last)[:, None, None] for i in index.T], -1)
    return logs.masked_fill(~(seen & site.real[:, None, :, None]), NEVER)


def read_first_keys(site: Site) -> Rows | None:
    """The first four tokens alone, from the kernel's log-sum-exp: O(t). None where there is no log-sum-exp."""
    if not has_log_sum_exp(site) or site.visibility.has_bias:
        return None
    hidden = ~site.real[:, None]
    four = _log_first_keys(site, 4)
    first = four[..., 0]
    # 1 − p has no more digits than the kernel's log-sum-exp: under RESOLUTION it is unknown, not small
    rest = -torch.expm1(first.clamp_max(0))
    alone = (site.visibility.counts == 1) & (first > NEVER)  # nothing but the first token to see
    rest = rest.masked_fill((rest < RESOLUTION) & ~alone, float("nan")).masked_fill(alone, 0)
    return Rows(log_first=first, rest=rest.masked_fill(hidden, 0), learned=None, first_keys=four.exp().sum(-2))


def reader() -> str:
    """What reads the plain layers here: ``"compiled"``, or ``"torch (why not compiled)"``."""
    try:
        library()
    except Unavailable as reason:
        return f"torch ({reason})"
    return "compiled"


def _compiled(site: Site, local_window: int, full: bool) -> Rows | None:
    """The pass by the compiled kernels; None where the layer is not a plain one or there are no kernels."""
    seen = site.visibility
    plain = seen.causal and seen.mask is None and seen.real is None and has_log_sum_exp(site)
    if not plain or site.q.device.type != "cpu" or site.q.dtype not in DTYPES or site.k.dtype != site.q.dtype:
        return None
    try:
        kernels = library()
    except Unavailable:
        return None
    assert site.lse is not None
    structure = bands(
        seen.queries, seen.keys, batch=site.q.shape[0], causal=True, window=seen.window, keep_first=0, cu_seqlens=None,
        document_ids=None, device=site.q.device,
    )  # fmt: skip
    window = local_window if full else 0
    found = run_read(kernels, site.q, site.k, structure, site.factor, site.lse, site.first, window)
    first = found["log_first"].clamp_min(NEVER)
    rows = Rows(
        log_first=first,
        rest=found["rest"],
        learned=None,
        first_keys=torch.zeros(*site.q.shape[:2], 4),
        columns=found["columns"],
    )
    if full:
        rows.entropy = found["entropy"] - rows.first * rows.log_first
        rows.local, rows.previous, rows.own = found["local"], found["previous"], found["own"]
    rows.first_keys = _first_columns(site, found["columns"])
    return rows


def _first_columns(site: Site, columns: Tensor) -> Float[Tensor, "b h 4"]:
    """The sums of the first four tokens among all columns."""
    b, h, s = columns.shape
    four = torch.zeros(b, h, 4, device=columns.device)
    for j in range(min(4, s)):
        index = (site.first + j).clamp_max(s - 1)
        four[..., j] = columns.gather(-1, index[:, None, None].expand(b, h, 1)).squeeze(-1)
    return four


def read_rows(site: Site, *, local_window: int = 64, full: bool = True) -> Rows:
    """All keys of all queries.

    Args:
        site: the layer.
        local_window: how many last tokens, the query's own included, count as local.
        full: entropy, local, previous and own mass too.
    """
    compiled = _compiled(site, local_window, full)
    if compiled is not None:
        return compiled
    b, h, t, s = site.q.shape[0], site.q.shape[1], site.q.shape[2], site.k.shape[2]
    new = lambda *shape: torch.zeros(*shape, device=site.q.device)  # noqa: E731
    rows = Rows(
        log_first=torch.full((b, h, t), NEVER, device=site.q.device),
        rest=new(b, h, t),
        learned=None if site.sink_logit is None else new(b, h, t),
        first_keys=new(b, h, 4),
        columns=new(b, h, s),
    )
    if full:
        rows.entropy = new(b, h, t)
        rows.local, rows.previous, rows.own = new(b, h), new(b, h), new(b, h)
    assert rows.columns is not None
    first = site.first.tolist()
    bands: dict[tuple[int, ...], Tensor] = {}
    need_logs = full or not has_log_sum_exp(site) or site.visibility.has_bias
    if not need_logs:
        rows.log_first = _log_first_keys(site, 1)[..., 0]
    for block in weight_blocks(site, logs=need_logs):
        span, weights, logs = block.span, block.weights, block.log2_weights
        heads = slice(block.h0, block.h0 + weights.shape[0])
        at = (block.b, heads, slice(span.i0, span.i1))
        diagonal = s - t + span.i0 - span.k0  # the column of the first row's own key
        if full and diagonal - local_window < weights.shape[-1]:
            assert rows.local is not None
            assert rows.previous is not None
            assert rows.own is not None
            rows.own[block.b, heads].add_(weights.diagonal(diagonal, 1, 2).sum(-1))
            rows.previous[block.b, heads].add_(weights.diagonal(diagonal - 1, 1, 2).sum(-1))
            c0 = max(0, diagonal - local_window + 1)
            near = weights[..., c0:]
            key = (near.shape[-2], near.shape[-1], diagonal - c0)
            if key not in bands:
                row = torch.arange(near.shape[-2], device=near.device)[:, None] + diagonal - c0
                distance = row - torch.arange(near.shape[-1], device=near.device)
                bands[key] = ((distance >= 0) & (distance < local_window)).float()
            rows.local[block.b, heads].add_((near * bands[key]).sum((1, 2)))
        column = first[block.b] - span.k0
        if 0 <= column < weights.shape[-1]:
            if logs is not None:
                rows.log_first[at] = logs[..., column] * LN2
            rows.columns[block.b, heads, first[block.b]].add_(weights[..., column].sum(-1))
            weights[..., column] = 0  # so that the sums below are of everything else
        rows.rest[at].add_(weights.sum(-1))
        rows.columns[block.b, heads, span.k0 : span.k1].add_(weights.sum(1))
        if rows.entropy is not None and logs is not None:
            rows.entropy[at].sub_(logs.mul_(weights).sum(-1), alpha=LN2)
        if block.log2_sink is not None:
            assert rows.learned is not None
            share = block.log2_sink.exp2()
            rows.learned[at] = share
            if rows.entropy is not None:
                rows.entropy[at].sub_(torch.where(share > 0, block.log2_sink * share, 0), alpha=LN2)
    if rows.entropy is not None:
        rows.entropy -= rows.first * rows.log_first
    if rows.learned is not None:
        rows.rest += rows.learned
    rows.first_keys = _first_columns(site, rows.columns)
    return rows
