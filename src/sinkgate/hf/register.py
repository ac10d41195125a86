"""Our names in transformers' attention interface: one per function that makes the output, each with its mask.

A model under such a name computes exactly what it computes under the function behind it. While a
:class:`~sinkgate.hf.reading.Reading` is open on it, every attention call is shown to the reading as well.
No name contains "sdpa", "flash" or "flex": models and transformers look for these words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat

__all__ = ["READ_NAMES", "listen", "register", "stop_listening"]

# implementation that makes the output -> our name for reading it
READ_NAMES = {"sdpa": "sinkgate_read_fused", "eager": "sinkgate_read_eager"}


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


def register() -> None:
    """Make our attention names known to transformers. Idempotent; importing sinkgate does not do it.

    ``sinkgate_read_fused`` runs transformers' own ``sdpa`` with its mask, ``sinkgate_read_eager`` the model's
    own eager attention with its mask.
    """
    attention, masks = compat.interfaces()
    for stock, name in READ_NAMES.items():
        if name not in attention.valid_keys():
            attention.register(name, _read_fused if stock == "sdpa" else _read_eager)
        if name not in masks.valid_keys():
            masks.register(name, masks[stock])


def _read_fused(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("s_aux") is not None:
        raise UnsupportedError(
            f"{type(module).__name__} has learned sinks (s_aux), which sdpa would drop without a word; "
            "load the model with attn_implementation='eager'"
        )
    return _attend(compat.stock_function("sdpa"), module, *args, **kwargs)


def _read_eager(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return _attend(compat.eager_function(module), module, *args, **kwargs)


def _attend(function: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    listener = _listeners.get(id(module))
    if listener is None:
        return function(module, *args, **kwargs)
    return listener.attend(function, module, *args, **kwargs)
