"""From one site to the numbers a record keeps of it (the names are those of ``record.SCHEMA``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkgate.errors import UnsupportedError
from sinkgate.probe.rows import Rows, read_first_keys, read_rows
from sinkgate.schema import CURVE_BINS, FIXED, SHARE_BINS, Settings, curve_edges
from sinkgate.site import Site

__all__ = ["INTERIM", "PER_KEY", "summarise"]

PER_KEY = ("columns", "column_n", "column_null", "key_writes")
INTERIM = (*PER_KEY, "n4", "null4", "all_write")

_TINY = 1e-38  # floor of a share whose logarithm is taken


def summarise(site: Site, settings: Settings) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """One dict with a leading sample axis, one of integer sums over the samples; see ``record.SCHEMA``.

    The names in :data:`INTERIM` are per key and for the caller: they become ``key_mass`` and the list of sinks.
    """
    rows = read_first_keys(site) if settings.detail == "first" else None
    if rows is None:
        rows = read_rows(site, local_window=settings.local_window, full=settings.detail == "full")
    batch, heads, queries = rows.rest.shape
    visibility = site.visibility
    real = site.real
    seen = (visibility.sees(site.first) & real[:, None]).any(1)  # [b, t]
    if bool((visibility.counts != visibility.counts[:, :1]).any()):
        raise UnsupportedError(
            f"the heads of layer {site.layer} see different keys, so they have different nulls; measure them one by one"
        )
    position = torch.arange(site.k.shape[2] - queries, site.k.shape[2], device=real.device) - site.first[:, None]
    later = seen & (position > 0)
    first = rows.first.double() * seen[:, None]
    counts = visibility.counts[:, 0].expand(batch, queries)
    uniform = visibility.uniform[:, 0].expand(batch, queries)

    one: dict[str, Tensor] = {}
    one["first_sum"] = first.sum(-1)
    own = seen & (position == 0)  # the first token's own query, where it is among these
    one["first_query0"] = (first * own[:, None]).sum(-1)
    one["first_query0_n"] = own.sum(-1)
    one["null_query0"] = (uniform * own).sum(-1)
    one["first_n"] = seen.sum(-1)
    one["null_sum"] = (uniform * seen).sum(-1)
    one["queries"] = real.sum(-1)
    one["learned_sum"] = torch.zeros_like(one["first_sum"])
    if rows.learned is not None:
        one["learned_sum"] = (rows.learned.double() * real[:, None]).sum(-1)
    log_rest = rows.rest.double().clamp_min(_TINY).log()
    margin = torch.where(later[:, None], rows.log_first.double() - log_rest, 0)
    one["margin_sum"] = margin.sum(-1)
    one["amplification_sum"] = torch.where(later[:, None], -log_rest, 0).sum(-1)
    one["margin_n"] = later.sum(-1)

    lengths = real.sum(-1)
    four = torch.arange(4, device=real.device)
    column_n, column_null = (x[:, 0].expand(batch, -1) for x in visibility.columns)
    index = (site.first[:, None] + four).clamp_max(site.k.shape[2] - 1)
    n4 = column_n.gather(1, index)
    if rows.columns is not None:
        one["columns"], one["column_n"], one["column_null"] = rows.columns.double(), column_n, column_null
    inside = four < lengths[:, None]
    alpha = rows.first_keys.double() / n4.clamp_min(1)[:, None]
    one["alpha4"] = alpha.masked_fill(~(inside & (n4 > 0))[:, None], float("nan"))
    one["n4"], one["null4"] = n4 * inside, column_null.gather(1, index) / n4.clamp_min(1)

    if rows.entropy is not None:
        assert rows.local is not None
        assert rows.previous is not None
        assert rows.own is not None
        entropy = rows.entropy.double() * real[:, None]
        choices = counts + (rows.learned is not None)  # the learned sink is one more
        more = real & (choices > 1)
        one["entropy_sum"] = entropy.sum(-1)
        one["entropy_ratio_sum"] = (entropy / choices.clamp_min(2).double().log()[:, None] * more[:, None]).sum(-1)
        one["entropy_n"] = more.sum(-1)
        one["local_sum"], one["previous_sum"], one["self_sum"] = (
            rows.local.double(),
            rows.previous.double(),
            rows.own.double(),
        )
        one["local_null_sum"] = (visibility.local_counts(settings.local_window)[:, 0] * uniform).sum(-1)
        _writes(site, rows, seen, one)
        _geometry(site, real, one)

    sums = _sums(first, None if settings.detail == "first" else margin, uniform, seen, later, position, heads)
    return {k: v.cpu().numpy() for k, v in one.items()}, sums


def _sums(
    first: Tensor,
    margin: Tensor | None,
    uniform: Tensor,
    seen: Tensor,
    later: Tensor,
    position: Tensor,
    heads: int,
) -> dict[str, np.ndarray]:
    edges = torch.from_numpy(curve_edges()).to(position.device)
    bins = (torch.bucketize(position.clamp_min(0).double(), edges, right=True) - 1).clamp_max(CURVE_BINS - 1)
    sums: dict[str, Any] = dict.fromkeys(("curve_mass", "curve_null", "curve_n", "share_histogram"), 0)
    if margin is not None:
        sums["curve_margin"] = 0
    for b in range(first.shape[0]):
        keep = seen[b]
        index = bins[b][keep]

        def binned(x: Tensor, index: Tensor = index) -> np.ndarray:
            total = torch.zeros(*x.shape[:-1], CURVE_BINS, dtype=torch.float64, device=x.device)
            return np.rint(total.index_add_(-1, index, x).cpu().numpy() * FIXED).astype(np.int64)

        sums["curve_mass"] += binned(first[b][:, keep])
        if margin is not None:
            sums["curve_margin"] += binned(margin[b][:, keep])
        sums["curve_null"] += binned(uniform[b][keep].double())
        sums["curve_n"] += torch.bincount(index, minlength=CURVE_BINS).cpu().numpy()
        share = (first[b][:, later[b]] * SHARE_BINS).long().clamp(0, SHARE_BINS - 1)
        share += SHARE_BINS * torch.arange(heads, device=share.device)[:, None]
        sums["share_histogram"] += (
            torch.bincount(share.flatten(), minlength=heads * SHARE_BINS).view(heads, SHARE_BINS).cpu().numpy()
        )
    return sums


def _writes(site: Site, rows: Rows, seen: Tensor, one: dict[str, Tensor]) -> None:
    """What the sink, the rest, and the whole head write to the residual stream (maths.md §2)."""
    if site.output_map is None:
        nothing = torch.full_like(one["first_sum"], float("nan"))
        one["sink_write"] = one["head_write"] = one["content_write"] = one["all_write"] = nothing
        return
    output = site.output_map
    whole = site.out.float() if site.mapped is None else site.mapped.float()
    value = site.value(site.first)
    if site.mapped is None:
        sink_length = output.length(value)  # [b, h, 1]
        gated_value = value
    else:
        gate = torch.where(site.out == 0, 0, site.mapped.float() / site.out.float())
        gated_value = gate * value
        sink_length = output.length(gated_value)
    first = rows.first * seen[:, None]
    factor = seen[:, None].float()
    if site.write_scale is not None:
        factor = factor * site.write_scale.float()[:, None]
    one["sink_write"] = (first * sink_length * factor).double().sum(-1)
    length = output.length(whole)
    one["head_write"] = (length * factor).double().sum(-1)
    one["all_write"] = (
        (length * site.real[:, None]).double().sum(-1)
    )  # over queries that do not see the first token too
    one["content_write"] = (output.length(whole - first.unsqueeze(-1) * gated_value) * factor).double().sum(-1)
    if site.mapped is None and site.write_scale is None:
        lengths = torch.cat([output.length(v.repeat_interleave(site.group, 1)) for v in site.v.split(1024, dim=2)], -1)
        assert rows.columns is not None
        one["key_writes"] = rows.columns.double() * lengths.double()


def _geometry(site: Site, real: Tensor, one: dict[str, Tensor]) -> None:
    """Norms of keys and values, and the cosine of the mean query with the first token's key."""
    keys_real = site.visibility.real
    mask = torch.ones_like(site.k[:, 0, :, 0], dtype=torch.bool) if keys_real is None else keys_real.clone()
    mask[torch.arange(mask.shape[0]), site.first] = False
    n = mask.sum(-1).clamp_min(1)[:, None]
    for name, x in (("value", site.v), ("key", site.k)):
        norms = x.float().norm(dim=-1).double()
        at = norms.gather(-1, site.first[:, None, None].expand(*norms.shape[:2], 1)).squeeze(-1)
        rest = norms.masked_fill(~mask[:, None], 0).sum(-1) / n
        one[f"{name}_first"] = at.repeat_interleave(site.group, 1)
        one[f"{name}_rest"] = rest.repeat_interleave(site.group, 1)
    queries = site.q if bool(real.all()) else site.q.masked_fill(~real[:, None, :, None], 0)
    mean_query = queries.sum(-2, dtype=torch.float64)
    key = site.key(site.first).squeeze(-2).double()
    one["query_key_cosine"] = torch.nn.functional.cosine_similarity(mean_query, key, dim=-1)
