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

from sinkgate.call import Call
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.hf.place import to_call

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
    listener = _Screen({id(layer.module): layer.layer for layer in attention_layers(model)}, act)
    wanted = [p for p in model.parameters() if p.requires_grad]
    for p in wanted:
        p.requires_grad_(False)
    try:
        with evaluating(model), torch.enable_grad(), reading(model, listener):
            logits = forward(model, ids[None])[0]
            if loss is None:
                value = nn.functional.cross_entropy(logits[start:-1].float(), ids[start + 1 :])
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
    """Adds a zero to every attention output, whose gradient is asked for, and notes what the act would change."""

    def __init__(self, modules: dict[int, int], act: Any) -> None:
        self.modules, self.act = modules, act
        self.probes: list[tuple[int, Tensor, Tensor]] = []

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        out, rest = function(module, *args, **kwargs)
        layer = self.modules.get(id(module))
        if layer is None:
            return out, rest
        with torch.no_grad():
            names = ("query", "key", "value", "attention_mask")
            q, k, v, mask = (*args, *(kwargs[n] for n in names[len(args) :]))
            others = {n: x for n, x in kwargs.items() if n not in names}
            call = self._as_the_model_has_it(module, to_call(module, q, k, v, mask, others, layer), others)
            change = self.act.attend(call, Call.run).transpose(1, 2) - out
        zero = torch.zeros_like(out, requires_grad=True)
        self.probes.append((layer, zero, change))
        return out + zero, rest

    @staticmethod
    def _as_the_model_has_it(module: nn.Module, call: Call, kwargs: dict[str, Any]) -> Call:
        from sinkgate.call import with_sink

        sinks = kwargs.get("s_aux")
        z = None if sinks is None else sinks.reshape(-1)
        return call.having(weighting=with_sink(call.weighting, z, type(module).__name__))
