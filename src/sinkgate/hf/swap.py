"""Another weighting in a model that was trained with softmax (or not): for a while, or to stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.layers import Attention, chosen
from sinkgate.hf.place import OUTLET, STOCK, Swapped, at, placed, put, take
from sinkgate.hf.register import OUR_NAMES, is_ours, register
from sinkgate.weighting import Weighting, as_weighting
from sinkgate.weighting.softmax import Softmax

__all__ = ["set_weighting", "swap"]


@contextmanager
def swap(
    model: nn.Module,
    weighting: str | Weighting,
    *,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
    learned_sinks: str = "keep",
) -> Iterator[nn.Module]:
    """Inside the ``with``, the model attends with another weighting; outside it is bit for bit what it was.

    Nested swaps add up: the innermost that names a head counts for it. Training, gradient checkpointing, padding,
    packed position ids, windows, softcap and cached decoding work as they do with softmax. The backward pass belongs inside
    the ``with`` too: gradient checkpointing computes layers again there.

    Args:
        model: a transformers model.
        weighting: a registered name, or a value; its tensors (one entry per head of the model) may be learned.
        layers: only these.
        heads: only these ``(layer, head)`` pairs.
        learned_sinks: what becomes of a model's own sink logits (``s_aux``) under a weighting that has no place for
            them: ``"keep"`` refuses when it runs, ``"drop"`` leaves them out.

    Raises:
        ArgumentError: no such weighting, layer or head, or a field of the wrong length.
        UnsupportedError: the model's attention does not go through transformers' interface.
    """
    entries = _entries(model, weighting, layers, heads, learned_sinks)
    register()
    with placed(model, entries, _fused):
        yield model


def set_weighting(
    model: nn.Module,
    weighting: str | Weighting | None,
    *,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
    learned_sinks: str = "keep",
) -> None:
    """A swap that stays, until ``set_weighting(model, None)`` undoes all of them. See :func:`swap`.

    It stays with the object and its copies; ``save_pretrained`` writes weights, not weightings: load again and set again.
    """
    register()
    holder = ("weighting", id(model))
    if weighting is None:
        if layers is not None or heads is not None:
            raise ArgumentError("set_weighting(model, None) undoes every swap that stays; it takes no layers or heads")
        for module in model.modules():
            take(module, lambda entry: isinstance(entry, Swapped) and entry.stays)
        for config in compat.configs(model):
            compat.release(config, holder, {} if _needed(model) else STOCK)
        return
    entries = _entries(model, weighting, layers, heads, learned_sinks, stays=True)
    for config in compat.configs(model):
        compat.hold(config, holder, _fused)
    for module, layer, entry in entries:
        put(module, layer, entry)


def _needed(model: nn.Module) -> bool:
    """Whether anything of ours still stands in a model."""
    return any(at(module)[0] is not None or OUTLET in module._modules for module in model.modules())


def _fused(name: str | None) -> str:
    """Ours as it is; else ``sdpa`` with its mask: a layer that is swapped is computed by us, the others by it."""
    return name if name is not None and is_ours(name) else OUR_NAMES["sdpa"]


def _entries(
    model: nn.Module, weighting: str | Weighting, layers: int | Iterable[int] | None,
    heads: Iterable[Sequence[int]] | None, learned_sinks: str, *, stays: bool = False,
) -> list[tuple[nn.Module, int, Swapped]]:  # fmt: skip
    if learned_sinks not in ("keep", "drop"):
        raise ArgumentError(f"learned_sinks must be 'keep' or 'drop', got {learned_sinks!r}")
    found = as_weighting(weighting)
    entries = []
    for layer, some in chosen(model, layers, heads):
        _check(found, layer)
        if layer.module._modules.get(OUTLET) is not None and type(found) is not Softmax:
            raise UnsupportedError(
                f"{layer.name} has an outlet, which was fitted to softmax; remove it before a swap (sg.remove_outlet)"
            )
        entries.append((layer.module, layer.layer, Swapped(found, some, learned_sinks == "drop", stays)))
    if all(is_ours(compat.implementation(config)) for config in compat.configs(model)):
        return entries
    swapped = {id(module) for module, _, _ in entries}
    for layer, _ in chosen(model, None, None):  # the others run as they were, learned sinks and softcap included
        if id(layer.module) not in swapped and at(layer.module)[0] is None:
            entries.append((layer.module, layer.layer, Swapped(Softmax(), None, False, stays)))
    return entries


def _check(weighting: Weighting, layer: Attention) -> None:
    for name, x in weighting.tensors().items():
        if isinstance(x, Tensor) and x.ndim >= 1 and x.shape[0] not in (layer.heads,) and x.is_floating_point():
            raise ArgumentError(
                f"{name} must be a number or have one entry per head ({layer.heads}) of {layer.name}, got {list(x.shape)}"
            )
