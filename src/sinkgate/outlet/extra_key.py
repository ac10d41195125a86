"""A key that belongs to no token: with or without a value, learned, folded, or made by a learned token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkgate.call import Extra
from sinkgate.outlet.base import START, Level, Sizes, StartsAtNothing

__all__ = ["ExtraKey", "KVBias", "KeyBias", "SinkToken"]


@dataclass(frozen=True)
class KeyBias:
    """A learned key per key-value head with value zero: a sink logit that depends on the query (Gu et al., ICLR 2025).

    Args:
        start: the largest share before training; the score is ``c_h + ln w_h + scale·q·k``, with k from 0.
    """

    start: float = START


@dataclass(frozen=True)
class KVBias:
    """A learned key and value per key-value head.

    Args:
        start: the largest share before training; None: the key is scored as it is (a folded sink).
        distance: score it as if it stood so many tokens before every query; None: as if it stood before the text.
    """

    start: float | None = START
    distance: int | None = None


@dataclass(frozen=True)
class SinkToken:
    """A learned token in front of every text (Xiao et al. 2024), which takes no position of the text.

    In a causal model its keys and values depend on nothing but its embedding, so a pass over that one token makes them
    and every layer is given its own: exactly the token put in front, its weight multiplied by w.

    Args:
        start: w before training; None: the token as it is.
    """

    start: float | None = START


class ExtraKey(StartsAtNothing):
    """The key (and value) at one layer.

    Args:
        sizes: see the base.
        heads: see the base.
        level: see the base.
        spec: which kind.
    """

    def __init__(
        self, sizes: Sizes, heads: Sequence[int] | None, level: Level, spec: KeyBias | KVBias | SinkToken
    ) -> None:
        super().__init__(sizes, heads, level, 1.0 if spec.start is None else spec.start)
        self.spec = spec
        if spec.start is None:  # scored as it is: nothing to weigh it with
            del self.w
        self.made: tuple[Tensor, Tensor] | None = None  # a sink token's key and value, made in this pass
        self.recording = False
        if not isinstance(spec, SinkToken):
            self.key = nn.Parameter(torch.zeros(sizes.kv_heads, sizes.head_dim))
            if isinstance(spec, KVBias):
                self.value = nn.Parameter(torch.zeros(sizes.kv_heads, sizes.value_dim))

    def extra(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Extra | None:
        """The key's score for every query, and its value."""
        if self.recording:  # the pass over a sink token alone
            self.made = (k[0, :, 0], v[0, :, 0])
            return None
        key: Tensor
        value: Tensor | None
        if isinstance(self.spec, SinkToken):
            if self.made is None:
                return None
            key, value = self.made
        else:
            key, value = self.key, getattr(self, "value", None)
        if self.spec.start is None and getattr(self.spec, "distance", None) is None and self.everywhere:
            return Extra(key=key[None], value=None if value is None else value[None])
        wide = torch.promote_types(q.dtype, torch.float32)
        turned = q.to(wide)
        if getattr(self.spec, "distance", None) is not None:
            rotation, self.seen.rotation = self.seen.rotation, None
            turned = unrotated(turned, rotation)
        grouped = turned.unflatten(1, (self.sizes.kv_heads, -1))
        logit = torch.einsum("bkgtd,kd->bkgt", grouped, key.to(wide)).flatten(1, 2) * scale
        if self.spec.start is not None:
            logit = logit + self.logit().to(wide)[None, :, None]
        elif not self.everywhere:
            logit = logit.masked_fill(~self.on[None, :, None], float("-inf"))
        return Extra(logit=logit, value=None if value is None else value[None])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": None}


def unrotated(q: Float[Tensor, "b h t d"], rotation: tuple[Tensor, Tensor] | None) -> Float[Tensor, "b h t d"]:
    """Queries turned back from their positions, length kept (cos and sin may carry a scale, as YaRN's do).

    The half-split layout of Llama; :func:`sinkgate.fold_sink` checks that the model's is this one.
    """
    if rotation is None:
        raise RuntimeError("the attention module was given no position_embeddings")
    cos, sin = (x[:, None].to(q.dtype) for x in rotation)
    size = (cos.square() + sin.square()).sqrt()
    turned, rest = q[..., : cos.shape[-1]], q[..., cos.shape[-1] :]
    a, b = turned.chunk(2, dim=-1)
    back = (turned * cos - torch.cat([-b, a], -1) * sin) / size
    return torch.cat([back, rest], -1) if rest.shape[-1] else back
