"""A small language model to read and to train: RMSNorm, RoPE, SwiGLU, grouped heads; any arm's attention.

Pre-norm blocks ``x + attention(norm(x))``, ``x + mlp(norm(x))``, a last norm, and a head that may be tied to the
embedding. What an arm changes is in :class:`~sinkgate.nn.GatedAttention` and, for sink tokens and a wider MLP, here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import step_seed
from sinkgate.lab.head_loss import head_loss
from sinkgate.lab.tasks.base import whole
from sinkgate.nn import GatedAttention
from sinkgate.nn.attention import Seen
from sinkgate.rope import frequencies, yarn

__all__ = ["PRESETS", "Decoder", "DecoderConfig", "initialise"]


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder.

    Args:
        vocab: entries of the embedding.
        dim: of the hidden state.
        layers: blocks.
        heads: query heads, each ``dim / heads`` wide.
        kv_heads: key-value heads; None: as many.
        hidden: width of the MLP; None: ``8/3·dim``, rounded up to a multiple of 16.
        context: tokens it is trained on at a time; more can be read, see ``yarn``.
        theta: base of the rotation.
        tied: the head is the embedding.
        yarn: how many times ``context`` the rotation is stretched for (YaRN); 1: not.
        std: of the normal start; maps into the residual stream start at ``std / √(2·layers)``.

    Raises:
        ArgumentError: a value is out of range; the message names it.
    """

    vocab: int
    dim: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    context: int = 256
    theta: float = 10000.0
    tied: bool = True
    yarn: float = 1.0
    std: float = 0.02

    def __post_init__(self) -> None:
        whole(self, vocab=2, dim=2, layers=1, heads=1, context=2)
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.hidden is None:
            object.__setattr__(self, "hidden", -(-8 * self.dim // (3 * 16)) * 16)
        whole(self, kv_heads=1, hidden=1)
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise ArgumentError(
                f"heads must divide dim={self.dim} into even parts (for the rotation), got {self.heads}"
            )
        if not (math.isfinite(self.yarn) and self.yarn >= 1):
            raise ArgumentError(f"yarn must be a number of at least 1, got {self.yarn!r}")

    def parameters(self) -> int:
        """How many, without what an arm adds."""
        kv = self.dim // self.heads * self.kv_heads  # type: ignore[operator]
        block = 2 * self.dim**2 + 2 * self.dim * kv + 3 * self.dim * self.hidden + 2 * self.dim  # type: ignore[operator]
        return self.vocab * self.dim * (1 if self.tied else 2) + self.layers * block + self.dim

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; ``DecoderConfig(**config)`` is the way back."""
        return dataclasses.asdict(self)


# Sizes for a vocabulary of 4,096 (small ones) and 32,768 (from ``base`` on: for a GPU; not run here).
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"dim": 64, "layers": 4, "heads": 4, "context": 128},
    "mini": {"dim": 128, "layers": 4, "heads": 4, "context": 256},
    "small": {"dim": 256, "layers": 6, "heads": 8, "context": 256},
    "base": {"dim": 384, "layers": 8, "heads": 6, "context": 512},
    "medium": {"dim": 512, "layers": 8, "heads": 8, "context": 1024},
    "large": {"dim": 768, "layers": 12, "heads": 12, "context": 2048},
}


class Block(nn.Module):
    """One layer: what attention adds, then what the MLP adds."""

    def __init__(self, config: DecoderConfig, arm: Arm) -> None:
        super().__init__()
        dim, hidden = config.dim, config.hidden
        assert hidden is not None
        if arm.wider is not None:  # the gate's parameters, spent on the three matrices of the MLP
            spent = arm.wider.parameters(dim, config.heads, config.kv_heads or 1, dim // config.heads)
            hidden += round(spent / (3 * dim))
        self.attention_norm = nn.RMSNorm(dim, eps=1e-6)
        self.attention = GatedAttention(
            dim, config.heads, config.kv_heads, weighting=arm.weighting, gate=arm.gate, theta=None, window=arm.window,
            keep_first=arm.keep, qk_norm=arm.qk_norm, head_norm=arm.head_norm,
        )  # fmt: skip
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-6)
        self.mlp_gate = nn.Linear(dim, hidden, bias=False)
        self.mlp_up = nn.Linear(dim, hidden, bias=False)
        self.mlp_down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Float[Tensor, "b t D"], rotation: tuple[Tensor, Tensor]) -> Float[Tensor, "b t D"]:
        x = x + self.attention(self.attention_norm(x), rotation=rotation)
        y = self.mlp_norm(x)
        return x + self.mlp_down(F.silu(self.mlp_gate(y)) * self.mlp_up(y))


class Decoder(nn.Module):
    """The model of one arm.

    Args:
        config: its sizes.
        arm: its attention.
        seed: of the start: every parameter's is a function of the seed and its name, so arms share what they have in
            common.
    """

    def __init__(self, config: DecoderConfig, arm: Arm | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config, self.arm = config, arm or Arm()
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.sink = nn.Parameter(torch.empty(self.arm.sink_tokens, config.dim)) if self.arm.sink_tokens else None
        self.blocks = nn.ModuleList(Block(config, self.arm) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, eps=1e-6)
        self.head = nn.Linear(config.dim, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.stretch: float = config.yarn
        self._rotation: tuple[Any, tuple[Tensor, Tensor]] | None = None
        initialise(self, seed, config.std, narrow=("o_proj.weight", "mlp_down.weight"), by=math.sqrt(2 * config.layers))

    def forward(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t V"]:
        """Logits of the next token."""
        return self.head(self.hidden(ids))

    def loss(self, ids: Int[Tensor, "b t+1"], *, reduction: str = "mean") -> Tensor:
        """Cross entropy of each token from those before it, in nats, in float32; the first one is only read.

        Args:
            ids: t + 1 tokens per row.
            reduction: ``"mean"``: a scalar; ``"none"``: ``[b, t]``.
        """
        hidden, targets = self.hidden(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        if reduction == "mean":
            return head_loss(hidden, self.head.weight, targets)
        losses = F.cross_entropy(self.head(hidden).float(), targets, reduction=reduction)
        return losses.unflatten(0, (ids.shape[0], -1))

    def hidden(self, ids: Int[Tensor, "b t"], stream: Callable[[Tensor], None] | None = None) -> Float[Tensor, "b t D"]:
        """The last hidden states, normed.

        Args:
            ids: tokens.
            stream: is shown the residual stream before each block and after the last; sink tokens included.
        """
        x = self.embedding(ids)
        sinks = 0 if self.sink is None else len(self.sink)
        if self.sink is not None:
            x = torch.cat([self.sink.expand(len(ids), -1, -1).to(x.dtype), x], 1)
        rotation = self.rotation(x.shape[1], x.device)
        for block in self.blocks:
            if stream is not None:
                stream(x)
            x = block(x, rotation)
        if stream is not None:
            stream(x)
        return self.norm(x[:, sinks:])

    def rotation(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions, ``[length, dim / heads / 2]`` each; kept for the next call."""
        key = (length, device, self.stretch)
        if self._rotation is None or self._rotation[0] != key:
            width = self.config.dim // self.config.heads
            omega, scale = frequencies(width, self.config.theta, device), 1.0
            if self.stretch > 1:
                omega, scale = yarn(width, self.config.theta, self.stretch, self.config.context, device)
            angle = torch.arange(length, device=device)[:, None].float() * omega
            self._rotation = key, (angle.cos() * scale, angle.sin() * scale)
        return self._rotation[1]

    @contextmanager
    def stretched(self, factor: float) -> Iterator[None]:
        """Inside, the rotation is YaRN's for ``factor`` times the trained context (1: as trained)."""
        before, self.stretch = self.stretch, max(1.0, factor)
        try:
            yield
        finally:
            self.stretch = before

    @contextmanager
    def watched(self, see: Callable[[int, Seen], None]) -> Iterator[None]:
        """Inside, ``see(layer, call)`` is shown every attention call."""
        layers: list[GatedAttention] = [block.attention for block in self.blocks]  # type: ignore[misc]
        for i, layer in enumerate(layers):
            layer.watcher = lambda seen, i=i: see(i, seen)
        try:
            yield
        finally:
            for layer in layers:
                layer.watcher = None


@torch.no_grad()
def initialise(model: nn.Module, seed: int, std: float, *, narrow: tuple[str, ...] = (), by: float = 1.0) -> None:
    """Normal start for every matrix from a generator of its own (seed and name); gains and logits keep theirs.

    Args:
        model: changed in place.
        seed: of the run.
        std: of the normal.
        narrow: endings of names whose matrices start narrower.
        by: how much.
    """
    for name, p in model.named_parameters():
        if p.ndim != 2:
            continue
        maker = torch.Generator().manual_seed(step_seed(seed, 0) ^ _number(name))
        start = torch.randn(p.shape, generator=maker) * (std / by if name.endswith(narrow) else std)
        p.copy_(start)


def _number(name: str) -> int:
    """63 bits of a name."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
