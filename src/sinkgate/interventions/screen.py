"""What acting on each head alone would do, for all heads at once: one forward and one backward pass.

To first order the loss changes by ``Σ_t ⟨∂L/∂o_t, o'_t − o_t⟩``, with ``o'`` what the act makes of a head's output (Nanda
2023, 'Attribution patching'). An estimate: the strongest heads are then acted on for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.hf.place import attend
from sinkgate.interventions.acting import acting

__all__ = ["screen"]


def screen(
    model: nn.Module,
    ids: Int[Tensor, " t"],
    act: Any,
    *,
    start: int,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> dict[int, Float[Tensor, " h"]]:
    """Layer → estimated change of the loss under ``act`` on each head alone, float64.

    Args:
        model: stays what it is; its parameters get no gradients.
        ids: one text.
        act: with ``attend(call, run)``.
        start: the loss counts predictions from here on.
        loss: of ``(logits [t, V], ids)``; default: next-token cross entropy, mean.
    """
    listener = _Screen({id(layer.module): layer.layer for layer in attention_layers(model)})
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with evaluating(model), torch.enable_grad(), acting(model, act), reading(model, listener):
            logits = forward(model, ids[None])[0]
            if loss is None:
                wide = logits[start:-1].to(torch.promote_types(logits.dtype, torch.float32))
                value = nn.functional.cross_entropy(wide, ids[start + 1 :])
            else:
                value = loss(logits, ids)
            gradients = torch.autograd.grad(value, [e for _, e, _ in listener.probes])
    finally:
        for p in wanted:
            p.requires_grad_(True)
    found: dict[int, Tensor] = {}
    for (layer, _, change), gradient in zip(listener.probes, gradients, strict=True):
        estimate = (gradient.double() * change.double()).sum((0, 1, 3))  # [b, t, h, dv] → [h]
        found[layer] = found.get(layer, torch.zeros_like(estimate)) + estimate
    return found


class _Screen:
    """Runs every attention call without the act, which stands innermost at each place, and notes what it would change.

    A zero is added to the output, whose gradient is then asked for.
    """

    def __init__(self, modules: dict[int, int]) -> None:
        self.modules = modules
        self.probes: list[tuple[int, Tensor, Tensor]] = []

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The listener's part: make the call without the act, and note what the act changes."""
        layer = self.modules.get(id(module))
        if layer is None:
            return function(module, *args, **kwargs)
        place, base, weighting = function.args  # of `attend`: the place, and what the model computes itself
        out, rest = attend(place.having(acts=place.acts[:-1]), base, weighting, module, *args, **kwargs)
        with torch.no_grad():
            change = function(module, *args, **kwargs)[0] - out
        zero = torch.zeros_like(out, requires_grad=True)
        self.probes.append((layer, zero, change))
        return out + zero, rest
