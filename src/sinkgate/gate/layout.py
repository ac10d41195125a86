"""Where a fused projection keeps queries and gate: same shape, different order in the wild."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["LAYOUTS", "join_query_and_gate", "split_query_and_gate"]

LAYOUTS = {
    "per_head": "q and gate of one head side by side (Qwen3-Next in transformers)",
    "per_group": "all q of one key-value group, then all its gates (the authors' code)",
}


def split_query_and_gate(
    x: Float[Tensor, "*b f"], *, heads: int, kv_heads: int, head_dim: int, elementwise: bool = True, layout: str
) -> tuple[Float[Tensor, "*b h d"], Float[Tensor, "*b h g"]]:
    """Queries ``[…, heads, head_dim]`` and gate logits ``[…, heads, head_dim or 1]`` of one fused projection."""
    width = head_dim if elementwise else 1
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if heads % kv_heads:
        raise ArgumentError(f"kv_heads must divide heads, got {heads} and {kv_heads}")
    if x.shape[-1] != heads * (head_dim + width):
        raise ArgumentError(f"x must have {heads * (head_dim + width)} features, got {x.shape[-1]}")
    if layout == "per_head":
        both = x.unflatten(-1, (heads, head_dim + width))
        return both[..., :head_dim], both[..., head_dim:]
    group = heads // kv_heads
    both = x.unflatten(-1, (kv_heads, group * (head_dim + width)))
    q, gate = both.split([group * head_dim, group * width], dim=-1)
    return q.reshape(*x.shape[:-1], heads, head_dim), gate.reshape(*x.shape[:-1], heads, width)


def join_query_and_gate(
    q: Float[Tensor, "*b h d"], gate: Float[Tensor, "*b h g"], *, kv_heads: int, layout: str
) -> Float[Tensor, "*b f"]:
    """The inverse of :func:`split_query_and_gate`; also turns one layout of a weight's rows into the other."""
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if layout == "per_head":
        return torch.cat([q, gate], -1).flatten(-2)
    heads = q.shape[-2]
    parts = [x.unflatten(-2, (kv_heads, heads // kv_heads)).flatten(-2) for x in (q, gate)]
    return torch.cat(parts, -1).flatten(-2)
