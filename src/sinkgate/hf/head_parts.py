"""Which rows and columns of which weights belong to a head: found by running the model, not by names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import _Watch, forward, reading, trace
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.hf.projections import find_columns

__all__ = ["LayerParts", "Spans", "layer_parts"]

Spans = tuple[tuple[int, int], ...]
TOKENS = 8


@dataclass(frozen=True)
class LayerParts:
    """One attention layer.

    Args:
        layer: its number among the decoder layers.
        heads: query heads.
        kv_heads: heads with keys and values of their own.
        kv_numbers: of one token's keys and values.
        window: tokens that the model lets it see; None: all.
        made: for queries, keys and values the module that makes them, and for each head its rows there; empty if unknown.
        output: the module that takes the head outputs; None if unknown.
        output_width: numbers of a token that it takes, head by head.
        reason: why something is unknown.
    """

    layer: int
    heads: int
    kv_heads: int
    kv_numbers: int
    window: int | None = None
    made: tuple[tuple[str, tuple[Spans, ...]], ...] = ()
    output: str | None = None
    output_width: int = 0
    reason: str | None = None


def layer_parts(model: nn.Module) -> list[LayerParts]:
    """The parts of every attention layer of a transformers model.

    A layer whose queries, keys or values are not made by one module says so in ``reason``.

    Raises:
        UnsupportedError: the model cannot be read.
    """
    names = {id(m): n for n, m in model.named_modules()}
    ids = torch.arange(2, 2 + TOKENS, device=compat.input_device(model))[None]
    found = []
    with evaluating(model):
        anatomy = trace(model, ids).by_attention()
        watch = _Watch(model)
        with torch.no_grad(), reading(model, watch), watch.watching():
            forward(model, ids)
        calls = {id(call.module): call for call in watch.calls}
        for attention in attention_layers(model):
            call, layer = calls[id(attention.module)], anatomy.get(id(attention.module))
            numbers = (call.k.shape[-1] + call.v.shape[-1]) * call.k.shape[1]
            output = None if layer is None or layer.output_module is None else names.get(id(layer.output_module))
            made: list[tuple[str, tuple[Spans, ...]]] = []
            reason = (
                None if output is not None else getattr(layer, "no_map_reason", None) or "its output map is unknown"
            )
            args, kwargs = watch.inputs[id(attention.module)]
            try:
                for which in (0, 1, 2):
                    columns = find_columns(model, attention.module, args, kwargs, which, attention.name)
                    made.append((names[id(columns.module)], tuple(_spans(row) for row in columns.index)))
            except UnsupportedError as err:
                made, reason = [], str(err)
            found.append(
                LayerParts(attention.layer, call.q.shape[1], call.k.shape[1], numbers,
                           call.kwargs.get("sliding_window") or None, tuple(made), output,
                           call.q.shape[1] * call.v.shape[-1], reason)
            )  # fmt: skip
    return found


def _spans(index: Tensor) -> Spans:
    """Sorted numbers as (first, one behind the last)."""
    found: list[list[int]] = []
    for i in sorted(index.tolist()):
        if found and found[-1][1] == i:
            found[-1][1] = i + 1
        else:
            found.append([i, i + 1])
    return tuple((a, b) for a, b in found)
