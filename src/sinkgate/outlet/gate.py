"""An output gate at one layer of a trained model, at G1 to G5."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sinkgate.errors import ArgumentError
from sinkgate.gate import ACTIVATIONS, Gate
from sinkgate.gate.spec import start
from sinkgate.nn.gate import OutputGate
from sinkgate.outlet.base import LayerOutlet, Sizes

__all__ = ["GateOutlet", "check_start"]


def check_start(gate: Gate) -> None:
    """Refuse a gate that would change a trained model before it is trained.

    Raises:
        ArgumentError: says which setting keeps the model.
    """
    if gate.additive and gate.activation not in ("silu", "centred_sigmoid"):
        raise ArgumentError(
            f"an additive {gate.activation} gate adds a constant at W = 0; use activation='silu' or 'centred_sigmoid', which "
            "are 0 there"
        )
    if not gate.additive and gate.preserve is None:
        raise ArgumentError(
            f"a bare {gate.activation} gate multiplies a trained layer's output by its value at W = 0; give preserve=2.0, "
            "which divides by that value"
        )


class GateOutlet(LayerOutlet):
    """``Y ⊙ act(b₀ + XW)/act(b₀)`` or ``Y + act(XW)``, with W = 0 before training.

    At G1 it gates inside the attention function; at G2 to G5 :mod:`sinkgate.hf.outlet` hooks it to the modules that make
    values, keys, queries and what is written.

    Args:
        sizes: see the base.
        heads: see the base (key-value heads at G2 and G3).
        spec: the gate.
    """

    adds_key = False

    def __init__(self, sizes: Sizes, heads: Sequence[int] | None, spec: Gate) -> None:
        check_start(spec)
        super().__init__(sizes, None)
        self.spec = spec
        width = {"G1": sizes.value_dim, "G2": sizes.value_dim}.get(spec.position, sizes.head_dim)
        self.gate = OutputGate(sizes.dim, sizes.heads, sizes.kv_heads, width, spec, zero_init=True)
        count = spec.heads(sizes.heads, sizes.kv_heads)
        on = torch.zeros(count, dtype=torch.bool)
        on[list(range(count)) if heads is None else list(heads)] = True
        self.register_buffer("on", on)
        self.everywhere = bool(on.all())
        self._shift: Tensor | None = None  # b₀ for every logit, made when it is first needed

    def apply_to(self, y: Tensor, heads: int) -> Tensor:
        """``y`` ``[b, t, heads, width]`` (``heads`` 1 at G5) behind the gate."""
        x, self.seen.x = self.seen.x, None  # used once a pass: not kept alive until the next
        assert x is not None
        gate = self.gate
        if self.seen.show is not None:
            self.seen.show(self.values(x))
        few = self.spec.preserve is not None and self.everywhere and gate.proj is not None
        if few and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return y * self._value(x, heads)
        flat = gate.proj(x) if gate.proj is not None else gate.logits.expand(*x.shape[:2], -1)  # type: ignore[union-attr]
        logits = flat.unflatten(-1, (1 if self.spec.shared else heads, -1))
        gated = self.spec.apply(y, logits)
        return gated if self.everywhere else torch.where(self.on[:, None], gated, y)

    def values(self, x: Tensor) -> Tensor:
        """What it multiplies with (or adds), of the heads it is for: ``[b, t, heads or 1, width or 1]``."""
        gate = self.gate
        flat = gate.proj(x) if gate.proj is not None else gate.logits.expand(*x.shape[:2], -1)  # type: ignore[union-attr]
        value = self.spec.value(flat.unflatten(-1, (1 if self.spec.shared else len(self.on), -1)))
        return value if self.spec.shared else value[:, :, self.on]

    def _value(self, x: Tensor, heads: int) -> Tensor:
        """The gate's values in few operations, for decoding: b₀ as the projection's bias, the rest in place."""
        assert self.gate.proj is not None
        weight = self.gate.proj.weight
        shift, size = start(self.spec.activation, float(self.spec.preserve or 0.0), weight.dtype)
        if self._shift is None or self._shift.dtype != weight.dtype or self._shift.device != weight.device:
            self._shift = torch.full((weight.shape[0],), shift, dtype=weight.dtype, device=weight.device)
        value = ACTIVATIONS[self.spec.activation](F.linear(x, weight, self._shift)).div_(size)
        return value.view(*x.shape[:2], 1 if self.spec.shared else heads, -1)

    def gate_output(self, out: Tensor) -> Tensor:
        """See the base."""
        return self.apply_to(out, out.shape[2]) if self.spec.position == "G1" else out
