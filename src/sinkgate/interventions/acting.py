"""``with sg.acting(model, act):`` a model under an act."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import own_name
from sinkgate.hf.layers import chosen, decoder_blocks
from sinkgate.hf.place import Acted, Batch, at, placed
from sinkgate.hf.register import OUR_NAMES, register

__all__ = ["acting"]


@contextmanager
def acting(
    model: nn.Module,
    act: Any,
    *,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
) -> Iterator[nn.Module]:
    """Inside the ``with``, the model runs under an act; outside it is bit for bit what it was, after an exception too.

    Acts nest (the inner one sees what the outer one leaves), and stand beside a swap or an outlet. Padding in front is
    followed where the model is given its ``attention_mask``; cached decoding keeps the tokens' positions.

    Args:
        model: a transformers model.
        act: :class:`Evict`, :class:`ScalarGate`, :class:`ConstantGate`, :class:`Transplant`, :class:`MeanValue`,
            :class:`SetMassive`, or any object with ``attend(call, run)``.
        layers: only these.
        heads: only these ``(layer, head)`` pairs.

    Raises:
        ArgumentError: no such layer or head, or an act that is not for heads.
        UnsupportedError: the model's attention does not go through transformers' interface.

    >>> with sg.acting(model, sg.Evict(positions=0), heads=[(5, 3)]):     # doctest: +SKIP
    ...     logits = model(ids).logits
    """
    if hasattr(act, "stream"):
        if layers is not None or heads is not None:
            raise ArgumentError(f"{act.name} changes the residual stream behind one layer; it takes no layers or heads")
        blocks = decoder_blocks(model)
        if not 0 <= act.layer < len(blocks):
            raise ArgumentError(f"layer must be 0 to {len(blocks) - 1} in this model, got {act.layer}")
        hook = blocks[act.layer].register_forward_hook(_streaming(act))
        try:
            yield model
        finally:
            hook.remove()
        return
    if not hasattr(act, "attend"):
        raise ArgumentError(
            f"act must be an object with attend(call, run), such as sg.Evict(); got {type(act).__name__}"
        )
    register()
    batch = Batch()
    entries = []
    for layer, some in chosen(model, layers, heads):
        place = at(layer.module)[0]
        if place is not None and place.batch is not None:
            batch = place.batch
        entries.append((layer.module, layer.layer, Acted(act, some)))
    with ExitStack() as stack:
        stack.enter_context(placed(model, entries, lambda name: own_name(name) or OUR_NAMES["sdpa"], batch))
        for module in compat.told(model):
            stack.callback(module.register_forward_pre_hook(batch.told, with_kwargs=True, prepend=True).remove)
        yield model


def _streaming(act: Any) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (act.stream(output[0]), *output[1:])
        return act.stream(output) if isinstance(output, torch.Tensor) else output

    return hook
