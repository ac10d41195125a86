"""A whole attention layer: projections, rotation, grouped heads, any weighting, any gate, a cache for decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.gate import Gate
from sinkgate.nn.gate import OutputGate
from sinkgate.ops.attention import attention
from sinkgate.rope import rotate
from sinkgate.weighting import Weighting, as_weighting
from sinkgate.weighting.base import field_names

__all__ = ["GatedAttention", "KVCache", "Seen"]


EPS = 1e-6  # of the norm over a head's output


@dataclass
class KVCache:
    """Keys (after rotation) and values of what was read so far, ``[b, kv_heads, s, d]``; grows with every call."""

    k: Tensor | None = None
    v: Tensor | None = None
    seen: int = field(default=0)  # tokens so far: the next one's position

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Everything so far with the new ones behind it."""
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        self.seen += k.shape[2]
        return self.k, self.v


@dataclass(frozen=True, eq=False)
class Seen:
    """One call of a :class:`GatedAttention`, as shown to whoever watches it.

    Args:
        module: the layer.
        q: queries after norm and rotation, ``[b, heads, t, d]``.
        k: keys, likewise, ``[b, kv_heads, s, d]``.
        v: values, ``[b, kv_heads, s, d]``.
        heads: what enters the output projection, ``[b, heads, t, d]``: behind a gate at G1 and a norm.
        gate: values of a gate, shaped like what it gates (or 1 where it is shared); None without one.
    """

    module: GatedAttention
    q: Float[Tensor, "b h t d"]
    k: Float[Tensor, "b kv s d"]
    v: Float[Tensor, "b kv s d"]
    heads: Float[Tensor, "b h t d"]
    gate: Tensor | None


class GatedAttention(nn.Module):
    """Causal attention whose weights need not sum to one, to drop into a model of one's own.

    Args:
        dim: size of the hidden state.
        heads: query heads.
        kv_heads: key-value heads; default ``heads``.
        head_dim: default ``dim // heads``.
        weighting: a registered name or a value. A learnable field that holds a float (z, bias, α) becomes a parameter
            per head if ``learn`` names it; sink_softmax's z is learned unless said otherwise.
        gate: a gate, or None.
        theta: base of the rotation; None: no positions.
        window: see :func:`sinkgate.attention`; and so are the next three.
        keep_first: first keys that stay visible under the window.
        softcap: of the scores.
        impl: which implementation.
        qk_norm: RMS-normalise queries and keys per head before the rotation (sigmoid needs it early in training).
        head_norm: RMS-normalise each head's output before the output projection, with a gain per component
            (arXiv 2605.06611); before a gate at G1, which a norm behind it would undo.
        bias: biases in the four projections.
        learn: names of the weighting's fields to learn; None: z of sink_softmax, nothing else.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        weighting: str | Weighting = "softmax",
        gate: Gate | None = None,
        theta: float | None = 10000.0,
        window: int | None = None,
        keep_first: int = 0,
        softcap: float | None = None,
        impl: str = "auto",
        qk_norm: bool = False,
        head_norm: bool = False,
        bias: bool = False,
        learn: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if head_dim is None:
            if dim % heads:
                raise ArgumentError(f"heads must divide dim={dim}, or give head_dim; got heads={heads}")
            head_dim = dim // heads
        if kv_heads < 1 or heads % kv_heads:
            raise ArgumentError(f"kv_heads must divide heads={heads}, got {kv_heads}")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.theta, self.window, self.keep_first, self.softcap, self.impl = theta, window, keep_first, softcap, impl
        # (keys, values, mask, document_ids) → keys and values to attend to: all that lie in the cache, after rotation
        self.kv_map: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]] | None = None
        self.q_proj = nn.Linear(dim, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=bias)
        self.q_norm = nn.RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.head_gain = nn.Parameter(torch.ones(heads, 1, head_dim)) if head_norm else None
        self.watcher: Callable[[Seen], None] | None = None  # is shown every call
        self.gate = None if gate is None else OutputGate(dim, heads, kv_heads, head_dim, gate)
        self._weighting = as_weighting(weighting)
        self.learned = nn.ParameterDict()
        if learn is None:
            learn = ("z",) if self._weighting.name == "sink_softmax" else ()
        for name in learn:
            if name not in field_names(self._weighting):
                raise ArgumentError(f"{self._weighting.name} has no field {name!r} that can be learned")
            start = getattr(self._weighting, name)
            if start is None:
                raise ArgumentError(f"{name} of {self._weighting.name} must have a number to start from, got None")
            self.learned[name] = nn.Parameter(torch.as_tensor(start, dtype=torch.float32).expand(heads).clone())

    @property
    def weighting(self) -> Weighting:
        """The weighting with its learned fields."""
        return self._weighting.with_tensors(**self.learned) if len(self.learned) else self._weighting

    def extra_repr(self) -> str:
        """The weighting."""
        return f"heads={self.heads}, kv_heads={self.kv_heads}, weighting={self._weighting}"

    def forward(
        self,
        x: Float[Tensor, "b t D"],
        *,
        cache: KVCache | None = None,
        positions: Int[Tensor, "b t"] | None = None,
        rotation: tuple[Float[Tensor, "t half"], Float[Tensor, "t half"]] | None = None,
        mask: Tensor | None = None,
        document_ids: Int[Tensor, "b t"] | None = None,
        skip_below: float | None = None,
        return_mass: bool = False,
    ) -> Any:
        """``[b, t, D]`` → the same, and with ``return_mass`` the mass of every row.

        Args:
            x: hidden states (normed, where the model norms before attention).
            cache: what was read before; it is extended.
            positions: of the t tokens; default: what follows the cache.
            rotation: cosines and sines of the t tokens' angles, for all rows alike, in place of ``theta`` and
                ``positions``: a model computes them once for all layers.
            mask: see :func:`sinkgate.attention`, over everything in the cache.
            document_ids: see there.
            skip_below: see there; for a multiplicative gate at G1.
            return_mass: see there.
        """
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, -1))).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, -1))).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        at = None if self.gate is None else self.gate.gate.position
        if at == "G2":
            v = self.gate(v, x)  # type: ignore[misc]
        elif at == "G3":
            k = self.gate(k, x)  # type: ignore[misc]
        elif at == "G4":
            q = self.gate(q, x)  # type: ignore[misc]
        if rotation is not None:
            q, k = (_turned(y, *rotation) for y in (q, k))
        elif self.theta is not None:
            if positions is None:
                start = 0 if cache is None else cache.seen
                positions = torch.arange(start, start + t, device=x.device)[None]
            q, k = (rotate(y, positions[:, None], theta=self.theta) for y in (q, k))
        if cache is not None:
            k, v = cache.update(k, v)
        if self.kv_map is not None:
            k, v = self.kv_map(k, v, mask, document_ids)
        inside = at == "G1" and self.head_gain is None and not self.gate.gate.additive  # type: ignore[union-attr]
        if skip_below is not None and not inside:
            raise ArgumentError(
                "skip_below leaves out what a multiplicative gate at G1 closes; this layer has none, or a norm before it"
            )
        found = attention(
            q, k, v, weighting=self.weighting, window=self.window, keep_first=self.keep_first, mask=mask,
            document_ids=document_ids, softcap=self.softcap, impl=self.impl, return_mass=return_mass,
            gate=self.gate.value(x) if inside else None, skip_below=skip_below,  # type: ignore[union-attr]
        )  # fmt: skip
        y, mass = found if return_mass else (found, None)
        if self.head_gain is not None:
            y = nn.functional.rms_norm(y, (self.head_dim,), eps=EPS) * self.head_gain.to(y.dtype)
        if at == "G1" and not inside:
            y = self.gate(y, x)  # type: ignore[misc]
        if self.watcher is not None:
            self.watcher(Seen(self, q, k, v, y, None if self.gate is None else self.gate.value(x)))
        y = self.o_proj(y.transpose(1, 2).reshape(b, t, -1))
        if at == "G5":
            y = self.gate(y, x)  # type: ignore[misc]
        return (y, mass) if return_mass else y


def _turned(x: Tensor, cos: Float[Tensor, "t half"], sin: Float[Tensor, "t half"]) -> Tensor:
    """Pairs ``(x_i, x_{i + d/2})`` turned by given angles, in x's dtype."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
