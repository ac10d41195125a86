"""Our names in transformers' attention interface, each with its mask.

``sinkgate_fused`` and ``sinkgate_eager`` compute exactly what transformers' ``sdpa`` and the model's own eager attention
compute; ``sinkgate_<weighting>`` computes with a weighting of ours. Under any of them, what stands at a module (an act, a
swap, an outlet: :mod:`sinkgate.hf.place`) is honoured, and a reading that is open on the model is shown every call. No
name contains "sdpa", "flash" or "flex": models and transformers look for these words.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from sinkgate.call import SOFTMAX
from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.call import arguments
from sinkgate.hf.place import at, attend, extended, gated, is_aside, weighted
from sinkgate.weighting import Weighting, as_weighting, names

__all__ = ["OUR_NAMES", "STREAM", "is_ours", "listen", "register", "stop_listening"]

# implementation that makes the output -> our name for it
OUR_NAMES = {"sdpa": "sinkgate_fused", "eager": "sinkgate_eager"}
STREAM = "sinkgate_stream"  # the name under sg.streaming, which builds visibility itself


class Listener(Protocol):
    """What is shown every attention call."""

    def attend(self, function: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Make the call with ``function`` and return what it returned."""


_listeners: dict[int, Listener] = {}  # id of an attention module or of any of a model's modules -> who listens


def listen(model: torch.nn.Module, listener: Listener) -> None:
    """Show every attention call inside ``model`` to ``listener``, until :func:`stop_listening`."""
    if any(id(module) in _listeners for module in model.modules()):
        raise UnsupportedError("this model is already being read; close the first reading before a second one")
    for module in model.modules():
        _listeners[id(module)] = listener


def stop_listening(model: torch.nn.Module) -> None:
    """Forget it again."""
    for module in model.modules():
        _listeners.pop(id(module), None)


def is_ours(name: str | None) -> bool:
    """Whether an attention implementation is one that :func:`register` made known."""
    return name is not None and name.startswith("sinkgate_")


def register() -> None:
    """Make our attention names known to transformers. Idempotent; importing sinkgate does not do it.

    After it, ``from_pretrained(…, attn_implementation="sinkgate_softpick")`` works for every registered weighting; call
    it again after :func:`sinkgate.register_weighting`. A weighting whose own name contains "sdpa", "flash" or "flex" gets
    no such name (transformers would take it for another kernel); :func:`sinkgate.swap` takes it all the same.
    """
    attention, masks = compat.interfaces()
    ours: dict[str, tuple[Callable[..., Any], str]] = {
        OUR_NAMES["sdpa"]: (_fused, "sdpa"),
        OUR_NAMES["eager"]: (_eager, "eager"),
    }
    for name in names():
        if not any(word in name for word in ("sdpa", "flash", "flex")):
            ours[f"sinkgate_{name}"] = (partial(_named, name), "sdpa")
    for name, (function, mask) in ours.items():
        if name not in attention.valid_keys():
            attention.register(name, function)
        if name not in masks.valid_keys():
            masks.register(name, masks[mask])
    if STREAM not in attention.valid_keys():
        attention.register(STREAM, _streamed)
        masks.register(STREAM, _no_mask)


def _fused(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return _attend(_stock, SOFTMAX, module, *args, **kwargs)


def _eager(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return _attend(compat.eager_function(module), SOFTMAX, module, *args, **kwargs)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """A stream knows what each query sees from the slots' own positions."""


def _streamed(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Attention through the cache of the stream that stands at the module."""
    place, outlet = at(module)
    if is_aside():  # a sink token alone
        if outlet is not None and outlet.adds_key:
            extended(outlet, args, kwargs)
        return _stock(module, *args, **kwargs)
    if place is not None:
        raise UnsupportedError("acts and swaps do not know a stream's slots: leave them before the model streams")
    if id(module) in _listeners:
        raise UnsupportedError(
            "a stream's attention cannot be read while it runs: diagnose the model outside sg.streaming"
        )
    if outlet is not None and outlet.adds_key:
        kwargs = extended(outlet, args, kwargs)
    query, key, value, _, rest = arguments(args, kwargs)
    if STREAM not in module.__dict__:
        raise UnsupportedError(
            f"{type(module).__name__} shares its config with a model that streams: give each model a config of its own "
            "(copy.deepcopy(model.config))"
        )
    result = module.__dict__[STREAM].attend(module, query, key, value, **rest)
    return result if outlet is None else gated(outlet, result)


def _named(name: str, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    weighting = as_weighting(name)
    return _attend(partial(weighted, weighting, compat.stock_function("sdpa")), weighting, module, *args, **kwargs)


def _stock(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """transformers' own ``sdpa``."""
    if kwargs.get("s_aux") is not None:
        raise UnsupportedError(
            f"{type(module).__name__} has learned sinks (s_aux), which sdpa would drop without a word; "
            "load the model with attn_implementation='eager' or 'sinkgate_softmax'"
        )
    return compat.stock_function("sdpa")(module, *args, **kwargs)


def _attend(
    function: Callable[..., Any], weighting: Weighting, module: torch.nn.Module, *args: Any, **kwargs: Any
) -> Any:
    """``function`` computes ``weighting``; what stands at the module may want something else."""
    place, outlet = at(module)
    adds = outlet is not None and outlet.adds_key
    if is_aside():
        if adds:
            extended(outlet, args, kwargs)  # it notes its token's key and value
        return function(module, *args, **kwargs)
    if adds:
        kwargs = extended(outlet, args, kwargs)
    if place is not None or adds:
        function = partial(attend, place, function, weighting)
    listener = _listeners.get(id(module))
    if listener is None:
        result = function(module, *args, **kwargs)
    else:
        result = listener.attend(function, module, *args, **kwargs)
    return result if outlet is None else gated(outlet, result)
