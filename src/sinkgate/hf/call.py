"""One attention call of a transformers model, turned into a site."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkgate.call import EXTRA, extra_logits
from sinkgate.masks import Visibility
from sinkgate.site import OutputMap, Site

__all__ = ["arguments", "call_visibility", "to_site"]


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Queries, keys, values, mask and the rest of a call, however they were given."""
    names = ("query", "key", "value", "attention_mask")
    rest = {n: x for n, x in kwargs.items() if n not in names}
    return (*args[:4], *(kwargs[n] for n in names[len(args[:4]) :]), rest)


def call_visibility(module: torch.nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any],
               real: Tensor | None) -> Visibility:  # fmt: skip
    """What a call's mask means.

    A 4-D mask says everything. None means causal over all keys where the module is causal (a window is given as
    a mask as soon as it hides something), and everything visible for a single query or a non-causal module.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if mask is not None:
        return Visibility(queries, keys, causal=False, mask=mask[..., :keys], real=real)
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return Visibility(queries, keys, causal=bool(causal), real=real, device=q.device)


def to_site(
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    seen: Visibility,
    kwargs: dict[str, Any],
    *,
    lse: Tensor | None = None,
    output_map: OutputMap | None = None,
    no_map_reason: str | None = None,
) -> Site:
    """A site from the arguments of an attention function (its output comes as ``[b, t, heads, dv]``)."""
    if lse is not None and lse.shape != q.shape[:3]:
        lse = None
    sinks, written = kwargs.get("s_aux"), None
    extra = kwargs.get(EXTRA)
    if extra is not None:
        sinks, written = extra_logits(extra, q, k, kwargs.get("scaling")), extra.value
    elif sinks is not None:
        sinks = sinks.reshape(-1)
    return Site(
        layer=layer, q=q, k=k, v=v, out=out.transpose(1, 2), visibility=seen, scale=kwargs.get("scaling"),
        softcap=kwargs.get("softcap"), sink_logit=sinks, sink_value=written, lse=lse,
        output_map=output_map, no_map_reason=no_map_reason,
    )  # fmt: skip
