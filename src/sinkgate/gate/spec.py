"""What a gate is, as a value: where it stands, what it multiplies or adds, what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["ACTIVATIONS", "POSITIONS", "Gate"]

# position → what is gated there
POSITIONS = {
    "G1": "the head outputs, before the output projection",
    "G2": "the values",
    "G3": "the keys",
    "G4": "the queries",
    "G5": "what is written, after the output projection",
}

# name → the gate's value from its logit
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "half_sigmoid": lambda x: 0.5 + 0.5 * torch.sigmoid(x),  # never closes: the paper's control
    "centred_sigmoid": lambda x: torch.sigmoid(x) - 0.5,  # for additive gates: 0 at 0
}


@cache
def start(activation: str, preserve: float, dtype: torch.dtype) -> tuple[float, float]:
    """b₀ and act(b₀) as numbers that this dtype holds, so that the gate is exactly 1 at W = 0."""
    bias = torch.tensor(preserve, dtype=dtype)
    return bias.item(), ACTIVATIONS[activation](bias).item()


@dataclass(frozen=True)
class Gate:
    """``Y ⊙ act(X W)``, or ``Y + act(X W)`` where ``additive``; X is the layer's (pre-normed) hidden state.

    Args:
        position: ``"G1"`` to ``"G5"``.
        elementwise: one value per component; else one per head (G5: one per token).
        shared: the same values for all heads.
        activation: a name in ``ACTIVATIONS``.
        additive: add instead of multiply.
        input_dependent: False: the logits are parameters that no input moves, a distinct and weaker thing (mean
            first-token attention .364 against .048 in the paper).
        preserve: b₀: the gate is ``act(b₀ + XW) / act(b₀)``, which is exactly 1 at W = 0: fits a trained model without
            changing it, and still has a gradient for a moderate b₀.
    """

    position: str = "G1"
    elementwise: bool = True
    shared: bool = False
    activation: str = "sigmoid"
    additive: bool = False
    input_dependent: bool = True
    preserve: float | None = None

    def __post_init__(self) -> None:
        if self.position not in POSITIONS:
            raise ArgumentError(f"position must be one of {', '.join(POSITIONS)}, got {self.position!r}")
        if self.activation not in ACTIVATIONS:
            raise ArgumentError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.preserve is not None and self.additive:
            raise ArgumentError("preserve=b₀ stands for act(b₀ + XW)/act(b₀): it needs additive=False")
        if self.preserve is not None and ACTIVATIONS[self.activation](torch.tensor(float(self.preserve))).abs() < 1e-30:
            raise ArgumentError(
                f"preserve={self.preserve} divides by {self.activation}({self.preserve}), which is 0; use 2.0"
            )

    def heads(self, heads: int, kv_heads: int) -> int:
        """How many heads the gated tensor has (G5: 1)."""
        return {"G1": heads, "G2": kv_heads, "G3": kv_heads, "G4": heads, "G5": 1}[self.position]

    def features(self, dim: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Logits per token."""
        width = dim if self.position == "G5" else head_dim
        count = 1 if self.shared else self.heads(heads, kv_heads)
        return count * (width if self.elementwise else 1)

    def parameters(self, dim: int, heads: int, kv_heads: int, head_dim: int) -> int:
        """Parameters per layer.

        >>> Gate().parameters(2048, 32, 4, 128) == 2048 * 32 * 128
        True
        >>> Gate(elementwise=False).parameters(2048, 32, 4, 128) == 2048 * 32
        True
        >>> Gate("G2").parameters(2048, 32, 4, 128) == 2048 * 4 * 128
        True
        >>> Gate("G5").parameters(2048, 32, 4, 128) == 2048**2
        True
        """
        return self.features(dim, heads, kv_heads, head_dim) * (dim if self.input_dependent else 1)

    def value(self, logits: Tensor) -> Tensor:
        """The gate's values from its logits, any shape."""
        if self.preserve is not None:
            act = ACTIVATIONS[self.activation]
            if torch.compiler.is_compiling():
                bias = torch.tensor(self.preserve, dtype=logits.dtype, device=logits.device)
                return act(logits + bias) / act(bias)
            shift, size = start(self.activation, self.preserve, logits.dtype)
            return act(logits + shift) / size
        return ACTIVATIONS[self.activation](logits)

    def apply(self, y: Tensor, logits: Tensor) -> Tensor:
        """``y`` gated; logits broadcast to it."""
        value = self.value(logits)
        return y + value if self.additive else y * value

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; ``Gate(**config)`` is the way back."""
        return dataclasses.asdict(self)
