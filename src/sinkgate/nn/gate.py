"""The output gate as a module: it owns W (or the input-independent logits)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.gate import Gate

__all__ = ["OutputGate"]


class OutputGate(nn.Module):
    """A gate over attention, every option of :class:`~sinkgate.gate.Gate`.

    Args:
        dim: size of the hidden state X.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: size of what is gated per head (G2: the values' size).
        gate: the specification.
        bias: add a learned bias to the logits (with ``gate.preserve`` there is b₀ already, fixed).
        zero_init: start with W = 0. With ``preserve`` this leaves a trained model exactly as it is; a bare sigmoid at
            W = 0 would halve its output.
    """

    def __init__(
        self, dim: int, heads: int, kv_heads: int, head_dim: int, gate: Gate | None = None, *, bias: bool = False,
        zero_init: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.gate = Gate() if gate is None else gate
        self.dim, self.head_dim = dim, head_dim
        self.heads = self.gate.heads(heads, kv_heads)
        features = self.gate.features(dim, heads, kv_heads, head_dim)
        zero = self.gate.preserve is not None if zero_init is None else zero_init
        self.proj: nn.Linear | None = None
        self.logits: nn.Parameter | None = None
        if self.gate.input_dependent:
            self.proj = nn.Linear(dim, features, bias=bias)
            if zero:
                nn.init.zeros_(self.proj.weight)
            if bias:
                nn.init.zeros_(self.proj.bias)
        else:
            self.logits = nn.Parameter(torch.zeros(features))

    def extra_repr(self) -> str:
        """The specification."""
        return repr(self.gate)

    def raw(self, x: Float[Tensor, "b t D"]) -> Tensor:
        """Logits, shaped like what is gated: ``[b, heads or 1, t, width or 1]`` (G5: ``[b, t, D or 1]``)."""
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ArgumentError(f"x must be [batch, length, {self.dim}], got {list(x.shape)}")
        flat = self.proj(x) if self.proj is not None else self.logits.expand(*x.shape[:2], -1)  # type: ignore[union-attr]
        if self.gate.position == "G5":
            return flat
        count = 1 if self.gate.shared else self.heads
        return flat.unflatten(-1, (count, -1)).transpose(1, 2)

    def value(self, x: Float[Tensor, "b t D"]) -> Tensor:
        """The gate's values: what :func:`sinkgate.attention` takes as ``gate=`` at G1 (expanded over the heads)."""
        value = self.gate.value(self.raw(x))
        return value if self.gate.position == "G5" else value.expand(-1, self.heads, -1, -1)

    def forward(self, y: Tensor, x: Float[Tensor, "b t D"]) -> Tensor:
        """``y`` gated: ``[b, heads, t, head_dim]``, or ``[b, t, D]`` at G5."""
        return self.gate.apply(y, self.raw(x))
