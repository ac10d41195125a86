"""What stands at an attention module of a transformers model: a swapped weighting, acts, an outlet.

A place hangs on the module itself, so a copied model keeps its swap; a model without any is what it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkgate.call import EXTRA, SOFTMAX, Call, Extra, with_sink
from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.weighting import Weighting
from sinkgate.weighting.softmax import Softmax

__all__ = [
    "OUTLET",
    "Act",
    "Batch",
    "Place",
    "Swapped",
    "at",
    "attend",
    "extended",
    "gated",
    "placed",
    "put",
    "take",
    "to_call",
    "weighted",
]

PLACE, OUTLET = "_sinkgate_place", "sinkgate_outlet"

# Keyword tensors that a call honours or that say nothing about its scores. Others of three dimensions or more (a position
# bias, an index of chosen keys) would change the scores; smaller ones (the loss's num_items_in_batch) pass through.
_KNOWN = {"s_aux", "position_ids", "cache_position", EXTRA}

Run = Callable[[Call], Tensor]


class Act(Protocol):
    """Something done to an attention layer while it runs.

    One with an attribute ``first = True`` comes before the others, however the ``with`` are nested: it changes what there is
    to read, and sees the whole call.
    """

    def attend(self, call: Call, run: Run) -> Tensor:
        """The head outputs ``[b, h, t, dv]`` under the act; ``run`` computes a call without it."""
        ...


@dataclass(eq=False)
class Batch:
    """What the forward pass was told of its padding; one for all layers of a model."""

    first: Tensor | None = None  # [b], the first token of each row that is no padding
    past: int = 0  # tokens that the cache had seen before

    def told(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes where each row begins, and how many tokens a cache holds already: a hook before a forward pass."""
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        self.first, self.past = None, compat.cached_tokens(kwargs)
        if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask[:, 0].all()):
            self.first = mask.bool().int().argmax(-1)


@dataclass(frozen=True, eq=False)
class Swapped:
    """A weighting for some heads (None: all).

    Args:
        weighting: scores → weights.
        heads: of the layer.
        drop: whether a learned sink logit is left out by a weighting that has no place for it.
        stays: until :func:`sinkgate.set_weighting` undoes it, not for a ``with``.
    """

    weighting: Weighting
    heads: tuple[int, ...] | None = None
    drop: bool = False
    stays: bool = False


@dataclass(frozen=True, eq=False)
class Acted:
    """An act on some heads (None: all)."""

    act: Act
    heads: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Place:
    """What stands at one attention module.

    Args:
        layer: which layer it is.
        weightings: in the order of swapping; the last that names a head counts.
        acts: the innermost ``with`` last.
        batch: shared by the model's places.
    """

    layer: int
    weightings: tuple[Swapped, ...] = ()
    acts: tuple[Acted, ...] = ()
    batch: Batch | None = None

    def having(self, **changes: Any) -> Place:
        """The same with some parts replaced."""
        return dataclasses.replace(self, **changes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _known_here()


def _known_here() -> None:
    """A model that is unpickled names us in its config: transformers has to know us then."""
    from sinkgate.hf.register import register

    register()


def at(module: nn.Module) -> tuple[Place | None, Any]:
    """The place and the outlet of a module, or None (as for an outlet that is not active)."""
    outlet = module._modules.get(OUTLET)
    return module.__dict__.get(PLACE), outlet if outlet is not None and outlet.active else None


def to_call(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kwargs: dict[str, Any],
            layer: int) -> Call:  # fmt: skip
    """The arguments of an attention function as a call; the weighting is softmax.

    A mask says everything; None means causal where the module is (a prompt into an empty static cache: the first keys).

    Raises:
        UnsupportedError: an argument that a call cannot honour.
    """
    unknown = sorted(n for n, x in kwargs.items() if isinstance(x, Tensor) and x.ndim >= 3 and n not in _KNOWN)
    if unknown or kwargs.get("dropout"):
        what = ", ".join(unknown) or f"dropout={kwargs['dropout']}"
        raise UnsupportedError(
            f"{type(module).__name__} passes {what} to its attention, which sinkgate's attention cannot honour"
            + ("" if unknown else "; set the model's attention dropout to 0")
        )
    causal = kwargs.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal) and mask is None
    t, s = q.shape[2], k.shape[2]
    if mask is not None:
        mask = mask[..., :s]
    elif causal and 1 < t < s:
        k, v = k[:, :, :t], v[:, :, :t]
    elif t == 1:
        causal = True
    return Call(
        layer, q, k, v, SOFTMAX, causal=causal, mask=mask, scale=kwargs.get("scaling"), softcap=kwargs.get("softcap"),
        extra=kwargs.get(EXTRA),
    )  # fmt: skip


def weighted(
    weighting: Weighting, stock: Callable[..., Any], module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """An attention function with a weighting; plain softmax is transformers' own ``sdpa``, given as ``stock``."""
    sinks = kwargs.get("s_aux")
    if type(weighting) is Softmax and sinks is None and kwargs.get("softcap") is None:
        return stock(module, query, key, value, attention_mask, **kwargs)
    call = to_call(module, query, key, value, attention_mask, kwargs, 0)
    out = call.having(weighting=with_sink(weighting, _flat(sinks), type(module).__name__)).run()
    return out.transpose(1, 2).contiguous(), None


def attend(
    place: Place | None, base: Callable[..., Any], weighting: Weighting, module: nn.Module, query: Tensor, key: Tensor,
    value: Tensor, attention_mask: Tensor | None, **kwargs: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """An attention call as the place and an outlet want it; ``base`` is what the model would do, with ``weighting``."""
    extra: Extra | None = kwargs.get(EXTRA)
    if extra is None and (place is None or not (place.weightings or place.acts)):
        return base(module, query, key, value, attention_mask, **kwargs)
    place = place if place is not None else Place(0)
    sinks, cap = kwargs.get("s_aux"), kwargs.get("softcap")
    softmax = type(weighting) is Softmax and all(type(w.weighting) is Softmax for w in place.weightings)
    if softmax and extra is None and not place.acts and sinks is None and cap is None:
        return base(module, query, key, value, attention_mask, **kwargs)  # a swap to what it is: no more than that
    call = to_call(module, query, key, value, attention_mask, kwargs, place.layer)
    if place.batch is not None:  # a cache that keeps a window holds the last tokens only
        gone = max(0, place.batch.past + query.shape[2] - key.shape[2])
        call = call.having(first=place.batch.first, gone=gone)
    sinks = _flat(sinks)
    what = type(module).__name__
    call = call.having(weighting=with_sink(weighting, sinks, what))
    swapped = any(w.weighting.tensors() or w.weighting != weighting for w in place.weightings)

    def untouched(asked: Call) -> Tensor:
        if swapped:
            return _by_head(asked, place, sinks, what)
        # what the model would do itself, unless a swap to softmax sent us here past the model's own function
        own = len(place.weightings) == 0 or (sinks is None and not call.softcap)
        if asked is call and extra is None and own:
            return base(module, query, key, value, attention_mask, **kwargs)[0].transpose(1, 2)
        return asked.run()

    run: Run = untouched
    for acted in sorted(place.acts, key=lambda a: getattr(a.act, "first", False)):  # the last one is asked first
        run = partial(_acted, acted.act, acted.heads, run)
    return run(call).transpose(1, 2).contiguous(), None


def _acted(act: Act, heads: tuple[int, ...] | None, run: Run, call: Call) -> Tensor:
    """``act`` on the heads it is for, ``run`` on the others."""
    if heads is None:
        return act.attend(call, run)
    chosen = [i for i, head in enumerate(call.query_heads) if head in heads]
    if len(chosen) == len(call.query_heads):
        return act.attend(call, run)
    out = run(call)
    if chosen:
        out = out.clone()
        out[:, chosen] = act.attend(call.heads(chosen), run)
    return out


def _by_head(call: Call, place: Place, sinks: Tensor | None, what: str) -> Tensor:
    """Each head with the last weighting that names it."""
    of = [-1] * len(call.query_heads)
    for i, swapped in enumerate(place.weightings):
        heads = swapped.heads
        of = [i if heads is None or head in heads else now for head, now in zip(call.query_heads, of, strict=True)]

    def run(part: Call, index: int) -> Tensor:
        if index < 0:  # as the model has it
            return part.run()
        weighting, drop = place.weightings[index].weighting, place.weightings[index].drop
        if weighting.tensors():
            rows = torch.tensor(part.query_heads, device=part.q.device)
            weighting = weighting.with_tensors(
                **{n: x[rows.to(x.device)] if x.ndim == 1 else x for n, x in weighting.tensors().items()}
            )
        z = None if sinks is None or (drop and type(weighting) is not Softmax) else sinks[list(part.query_heads)]
        return part.having(weighting=with_sink(weighting, z, what)).run()

    if len(set(of)) == 1:
        return run(call, of[0])
    out: Tensor | None = None
    for index in sorted(set(of)):
        chosen = [i for i, now in enumerate(of) if now == index]
        part = run(call.heads(chosen), index)
        if out is None:
            out = part.new_empty(part.shape[0], len(of), *part.shape[2:])
        out = out.index_copy(1, torch.tensor(chosen, device=part.device), part)
    assert out is not None
    return out


def _flat(sinks: Tensor | None) -> Tensor | None:
    return None if sinks is None else sinks.reshape(-1)


def extended(outlet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of an attention call with the outlet's key among them, if it adds one."""
    q, k, v = (*args[:3], *(kwargs[n] for n in ("query", "key", "value")[len(args[:3]) :]))
    scale = kwargs.get("scaling")
    extra = outlet.extra(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale)
    return kwargs if extra is None else {**kwargs, EXTRA: extra}


def gated(outlet: Any, result: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    """The head outputs ``[b, t, h, dv]`` behind an outlet's gate at G1."""
    out = outlet.gate_output(result[0])
    return (out, result[1])


# ---- a pass that nobody watches -----------------------------------------------------------------------------------

_aside: list[nn.Module] = []  # models that run a pass of an outlet's own just now


@contextmanager
def aside(model: nn.Module) -> Iterator[None]:
    """Inside, passes of ``model`` are an outlet's own business: no reading is shown them, no act concerns them."""
    _aside.append(model)
    try:
        yield
    finally:
        _aside.remove(model)


def is_aside() -> bool:
    """Whether such a pass is under way."""
    return bool(_aside)


# ---- putting places there -------------------------------------------------------------------------------------------


STOCK = {"sinkgate_fused": "sdpa", "sinkgate_eager": "eager"}  # for a copied model, whose config nobody holds
Entry = Swapped | Acted


def put(module: nn.Module, layer: int, entry: Entry, batch: Batch | None = None) -> None:
    """Add a swap or an act to what stands at a module."""
    place = at(module)[0] or Place(layer)
    if isinstance(entry, Swapped):
        place = place.having(weightings=(*place.weightings, entry))
    else:
        place = place.having(acts=(*place.acts, entry))
    module.__dict__[PLACE] = place.having(batch=place.batch or batch)


def take(module: nn.Module, gone: Callable[[Entry], bool]) -> None:
    """Take entries away; a place without any goes too."""
    place = at(module)[0]
    if place is None:
        return
    weightings = tuple(w for w in place.weightings if not gone(w))
    acts = tuple(a for a in place.acts if not gone(a))
    if weightings or acts:
        module.__dict__[PLACE] = place.having(weightings=weightings, acts=acts)
    else:
        del module.__dict__[PLACE]


@contextmanager
def placed(
    model: nn.Module, entries: Sequence[tuple[nn.Module, int, Entry]], name: Callable[[str | None], str | None],
    batch: Batch | None = None,
) -> Iterator[None]:  # fmt: skip
    """Inside, these entries stand at their modules and the configs name us; left in any order, others' entries stay."""
    holder, configs = object(), compat.configs(model)
    mine = {id(entry) for _, _, entry in entries}
    try:
        for config in configs:
            compat.hold(config, holder, name)
        for module, layer, entry in entries:
            put(module, layer, entry, batch)
        yield
    finally:
        for module, _, _ in entries:
            take(module, lambda entry: id(entry) in mine)
        for config in configs:
            compat.release(config, holder, STOCK)
