"""The first token as parameters: its key and value, which nothing in the text moves, become an outlet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.first_token import alone, before_text
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.hf.outlet import Outlets, add_outlet
from sinkgate.outlet import ExtraKey, KVBias

__all__ = ["fold"]


@torch.no_grad()
def fold(
    model: nn.Module,
    tokens: Sequence[int],
    *,
    distance: int | None = None,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
) -> Outlets:
    """Give a model its own first token's key and value as an outlet (a ``kv_bias`` that is scored as it is).

    With ``distance=None`` the folded key stands at position −1: where positions are rotations, the model then computes on any
    text exactly what it would compute with that token in front. Where they are learned (GPT-2, OPT) it stands at their first,
    which the text's own first token has too: near that, not exactly. Layers with a sliding window are left out unless ``layers`` names them: there the
    first token leaves the window by itself.

    Args:
        model: a transformers model.
        tokens: first tokens; with more than one, the mean of their keys and of their values.
        distance: score the key as if it stood so many tokens before every query, wherever the stream is.
        layers: fold only here.
        heads: fold only for these ``(layer, head)`` pairs.

    Raises:
        ArgumentError: no tokens, or a distance that is none.
        UnsupportedError: learned positions or an unknown rotation with a ``distance``; what :func:`add_outlet` refuses.
    """
    rows = [int(t) for t in tokens]
    if not rows:
        raise ArgumentError("tokens is empty: name the first token(s) to fold")
    found = add_outlet(model, KVBias(start=None, distance=distance), layers=_full(model, layers, heads), heads=heads)
    table = model.get_input_embeddings()  # type: ignore[operator]
    embeddings = table(torch.tensor(rows, device=compat.input_device(model)))  # asked, not read: Gemma scales them
    keys = {layer: outlet for layer, outlet in found.layers.items() if isinstance(outlet, ExtraKey)}
    for outlet in keys.values():  # the token is to be seen as the model without an outlet makes it
        outlet.recording = True
    try:
        constants = alone(model, embeddings, before_text(model) if distance is None else -distance)
    finally:
        for outlet in keys.values():
            outlet.recording, outlet.made = False, None
    for layer, outlet in keys.items():
        key, value = constants[layer]
        outlet.key.copy_(key.double().mean(0))
        assert isinstance(outlet.value, nn.Parameter)
        outlet.value.copy_(value.double().mean(0))
    return found


def _full(model: nn.Module, layers: Any, heads: Any) -> Any:
    """The layers without a window, unless the caller names some."""
    if layers is not None or heads is not None:
        return layers
    windows = _windows(model)
    full = [layer for layer, window in windows.items() if window is None]
    if not full:
        raise UnsupportedError(
            "every layer of this model has a sliding window, which the first token leaves by itself; name layers=[…] to fold "
            "it all the same"
        )
    return None if len(full) == len(windows) else full


def _windows(model: nn.Module) -> dict[int, int | None]:
    modules = {id(a.module): a.layer for a in attention_layers(model)}
    found: dict[int, int | None] = {}

    class Look:
        def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(module) in modules:
                found[modules[id(module)]] = kwargs.get("sliding_window") or None
            return function(module, *args, **kwargs)

    with evaluating(model), reading(model, Look()):
        forward(model, torch.tensor([[2, 3]], device=compat.input_device(model)))
    return found
