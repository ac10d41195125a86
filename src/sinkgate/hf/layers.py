"""The attention layers of a model, found by one short pass, and the layers and heads a caller names."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import _layers, _nothing, _Watch, forward, reading

__all__ = ["Attention", "attention_layers", "chosen", "decoder_blocks", "evaluating"]


@dataclass(frozen=True, eq=False)
class Attention:
    """One layer that attends through transformers' interface."""

    layer: int
    name: str
    module: nn.Module
    block: nn.Module
    heads: int
    kv_heads: int
    rotary: bool  # whether it is given cosines and sines of positions


Parts = tuple[list[Attention], list[nn.Module]]
_found: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[int, ...], Parts]] = weakref.WeakKeyDictionary()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, every module is in eval mode; outside, each in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def attention_layers(model: nn.Module) -> list[Attention]:
    """Every layer that calls the attention interface; remembered, and looked for again if a module is replaced.

    Raises:
        UnsupportedError: there is none; names what was seen instead.
    """
    return _parts(model)[0]


def decoder_blocks(model: nn.Module) -> list[nn.Module]:
    """Every decoder layer in order, whatever it mixes tokens with."""
    return _parts(model)[1]


def _parts(model: nn.Module) -> Parts:
    modules = tuple(id(module) for module in model.modules())
    known = _found.get(model)
    if known is not None and known[0] == modules:
        return known[1]
    watch = _Watch(model)
    ids = torch.arange(2, 6, device=compat.input_device(model))[None]
    with evaluating(model), torch.no_grad(), reading(model, watch), watch.watching():
        forward(model, ids)
    layers, _ = _layers(model, watch)
    if not watch.calls:
        raise _nothing(model, layers)
    sizes: dict[int, Any] = {}
    for call in watch.calls:
        sizes.setdefault(id(call.module), (call.q.shape[1], call.k.shape[1]))
    found = []
    for layer in layers:
        if layer.attention is not None:
            rotary = watch.inputs[id(layer.attention)][1].get("position_embeddings") is not None
            heads, kv_heads = sizes.pop(id(layer.attention), (0, 0))
            found.append(Attention(layer.index, layer.name, layer.attention, layer.block, heads, kv_heads, rotary))
    if sizes:  # cross-attention, another stack: what is not known as a layer would be left as it is without a word
        others = [name for name, module in model.named_modules() if id(module) in sizes]
        raise UnsupportedError(
            f"{type(model).__name__} attends in {', '.join(others[:3])} too, which is no decoder layer's own attention; only "
            "models with one stack of layers, each attending once, can be changed"
        )
    parts = (found, [layer.block for layer in layers])
    _found[model] = (modules, parts)
    return parts


def chosen(
    model: nn.Module, layers: int | Iterable[int] | None, heads: Iterable[Sequence[int]] | None
) -> list[tuple[Attention, tuple[int, ...] | None]]:
    """The layers a caller means, each with its heads (None: all of them).

    Args:
        model: any transformers model whose attention goes through the interface.
        layers: numbers of layers; None: all.
        heads: ``(layer, head)`` pairs; instead of ``layers``.

    Raises:
        ArgumentError: there is no such layer or head, or the layer does not attend through the interface.
    """
    found = {layer.layer: layer for layer in attention_layers(model)}
    there = f"this model's attention layers are {_ranges(sorted(found))}"
    if layers is not None and heads is not None:
        raise ArgumentError("give layers or heads, not both: heads=[(layer, head), …] names its layers")
    if heads is None:
        wanted = list(found) if layers is None else [layers] if isinstance(layers, int) else list(layers)
        missing = [layer for layer in wanted if layer not in found]
        if missing or not wanted:
            raise ArgumentError(f"no attention in layer {missing[0] if missing else wanted}; {there}")
        return [(found[layer], None) for layer in dict.fromkeys(wanted)]
    by_layer: dict[int, list[int]] = {}
    for pair in heads:
        if isinstance(pair, int) or len(pair) != 2:
            raise ArgumentError(f"heads must be (layer, head) pairs such as [(5, 3)], got {pair!r}")
        layer, head = int(pair[0]), int(pair[1])
        if layer not in found:
            raise ArgumentError(f"no attention in layer {layer}; {there}")
        if not 0 <= head < found[layer].heads:
            raise ArgumentError(f"layer {layer} has heads 0 to {found[layer].heads - 1}, got {head}")
        if head not in by_layer.setdefault(layer, []):
            by_layer[layer].append(head)
    if not by_layer:
        raise ArgumentError("heads is empty: name at least one (layer, head), or give None for all")
    return [(found[layer], tuple(sorted(by_layer[layer]))) for layer in sorted(by_layer)]


def _ranges(numbers: list[int]) -> str:
    if numbers and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
