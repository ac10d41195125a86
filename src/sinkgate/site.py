"""One attention layer as seen while it runs.

A site is what every probe reads, whoever made it: the Hugging Face adapter, the lab's model, or a user's own
code that fills in the tensors (``sg.Site(layer=0, q=q, k=k, v=v, out=o, visibility=...)``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.masks import Visibility

__all__ = ["OutputMap", "Site"]


@dataclass(frozen=True, eq=False)
class OutputMap:
    """How a head's output becomes what is written to the residual stream, as a length.

    ``‖W_O^h x‖² = xᵀ G_h x`` with the Gram matrix ``G_h = W_O^h W_O^hᵀ`` (rows of ``W_O^h`` belong to head h's
    ``dv`` inputs), so a length costs dv², not dv·D. An output bias belongs to no head and is left out.

    Args:
        gram: ``[heads, dv, dv]`` float32.
        gated: the model multiplies the head output by a gate of its own before the map; the site then
            carries ``mapped``, what really entered the map.
        frozen_norm: a norm follows the map; ``gram`` holds its gain and the site carries its per-token factor.
    """

    gram: Float[Tensor, "h dv dv"]
    gated: bool = False
    frozen_norm: bool = False

    @staticmethod
    def from_weight(weight: Float[Tensor, "h*dv D"], heads: int) -> OutputMap:
        """From a weight with one row per input: ``y = x @ weight`` (the transpose of ``nn.Linear.weight``)."""
        if weight.ndim != 2 or weight.shape[0] % heads:
            raise ArgumentError(f"an output weight must be [heads*dv, D] with heads={heads}; got {list(weight.shape)}")
        rows = weight.detach().float().unflatten(0, (heads, -1))
        with torch.autocast(rows.device.type, enabled=False):
            return OutputMap(rows @ rows.transpose(-1, -2))

    def length(self, x: Float[Tensor, "b h t dv"]) -> Float[Tensor, "b h t"]:
        """``‖W_O^h x‖`` for head outputs x, float32."""
        x = x.float()
        gram = self.gram.to(x.device)
        return ((x @ gram) * x).sum(-1).clamp_min(0).sqrt()


@dataclass(eq=False)
class Site:
    """One attention layer, one forward pass.

    Args:
        layer: which layer, from 0.
        q: queries after rotation, ``[b, heads, t, d]``.
        k: keys after rotation, ``[b, kv_heads, s, d]``; kv_heads divides heads.
        v: values, ``[b, kv_heads, s, dv]``.
        out: the head outputs the model computed, ``[b, heads, t, dv]``.
        visibility: which keys each query sees.
        scale: multiplies q·k; default ``d ** -0.5``.
        softcap: scores become ``softcap * tanh(scores / softcap)`` before the mask.
        sink_logit: a learned sink logit per head ``[heads]`` (``s_aux`` in transformers), not scaled; or, of an outlet's
            key, one per query ``[b, heads, t]``.
        sink_value: what that key writes, ``[b or 1, kv_heads, dv]``; None: nothing.
        lse: log Σ exp of the scores (and the sink logit) ``[b, heads, t]`` if the kernel gave it.
        output_map: how a head output is written; None where it is not known, with ``no_map_reason``.
        mapped: what entered the output map, ``[b, heads, t, dv]``, where it is not ``out`` (a gate).
        write_scale: ``[b, t]`` factor of a norm after the map, frozen at this token.
    """

    layer: int
    q: Float[Tensor, "b h t d"]
    k: Float[Tensor, "b kv s d"]
    v: Float[Tensor, "b kv s dv"]
    out: Float[Tensor, "b h t dv"]
    visibility: Visibility
    scale: float | None = None
    softcap: float | None = None
    sink_logit: Tensor | None = None
    sink_value: Float[Tensor, "b kv dv"] | None = None
    lse: Float[Tensor, "b h t"] | None = None
    output_map: OutputMap | None = None
    no_map_reason: str | None = None
    mapped: Float[Tensor, "b h t dv"] | None = None
    write_scale: Float[Tensor, "b t"] | None = None
    group: int = field(init=False)
    factor: float = field(init=False)  # what multiplies q·k

    def __post_init__(self) -> None:
        for name in ("q", "k", "v"):
            if getattr(self, name).ndim != 4:
                raise ArgumentError(
                    f"{name} must be [batch, heads, length, dim], got {list(getattr(self, name).shape)}"
                )
        heads, kv = self.q.shape[1], self.k.shape[1]
        if heads % kv or self.v.shape[:3] != self.k.shape[:3] or self.q.shape[-1] != self.k.shape[-1]:
            raise ArgumentError(
                "q, k and v do not go together: heads must be a multiple of kv_heads, k and v must share batch, "
                f"heads and length, q and k their last dimension; got q {list(self.q.shape)}, "
                f"k {list(self.k.shape)}, v {list(self.v.shape)}"
            )
        if self.sink_logit is not None and tuple(self.sink_logit.shape) not in ((heads,), tuple(self.q.shape[:3])):
            raise ArgumentError(
                f"sink_logit must be [{heads}], one per head, or {list(self.q.shape[:3])}, one per query; "
                f"got {list(self.sink_logit.shape)}"
            )
        mask, real = self.visibility.mask, self.visibility.real
        batch = self.q.shape[0]
        if mask is not None and not (mask.shape[0] in (1, batch) and mask.shape[1] in (1, heads)):
            raise ArgumentError(
                f"mask must be [1 or {batch}, 1 or {heads}, t, s] for q {list(self.q.shape)}, got {list(mask.shape)}"
            )
        if real is not None and real.shape[0] != batch:
            raise ArgumentError(f"real must have one row per sample ({batch}), got {real.shape[0]}")
        if real is not None and bool(((real[:, 1:] & ~real[:, :-1]).sum(-1) + real[:, 0] > 1).any()):
            raise ArgumentError("real must be one run of True per sample: padding stands on the left or on the right")
        if (self.q.shape[-2], self.k.shape[-2]) != (self.visibility.queries, self.visibility.keys):
            raise ArgumentError(
                f"visibility is for {self.visibility.queries} queries and {self.visibility.keys} keys, "
                f"but q has {self.q.shape[-2]} and k {self.k.shape[-2]}"
            )
        self.group = heads // kv
        self.factor = float(self.q.shape[-1] ** -0.5 if self.scale is None else self.scale)

    @property
    def first(self) -> Tensor:
        """The first key that is no padding, ``[b]``."""
        return self.visibility.first.expand(self.q.shape[0])

    @property
    def real(self) -> Bool[Tensor, "b t"]:
        """True at queries that are no padding and see something."""
        return (self.visibility.counts > 0).any(1).expand(self.q.shape[0], -1)

    def key(self, index: Tensor) -> Float[Tensor, "b h 1 d"]:
        """One key per batch row, repeated for the query heads, float32."""
        return self._at(self.k, index)

    def value(self, index: Tensor) -> Float[Tensor, "b h 1 dv"]:
        """One value per batch row, repeated for the query heads, float32."""
        return self._at(self.v, index)

    def _at(self, x: Tensor, index: Tensor) -> Tensor:
        rows = x[torch.arange(x.shape[0], device=x.device), :, index.to(x.device)]
        return rows.repeat_interleave(self.group, dim=1).unsqueeze(-2).float()

    def kv_heads(self) -> Iterator[tuple[int, int, int]]:
        """(batch row, kv head, first query head of its group)."""
        for b in range(self.k.shape[0]):
            for h in range(self.k.shape[1]):
                yield b, h, h * self.group
