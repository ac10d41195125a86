"""Weightings: how the scores of one query become the weights of its keys.

One file per family; one line here makes a weighting known to everything: :func:`sinkgate.attention`, the
conformance suite, the table in the docs, ``sinkgate ls``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.weighting.base import Weighting

__all__ = ["REGISTRY", "Weighting", "as_weighting", "from_json", "names", "register_weighting"]

# name → module:class, and the arguments that the bare name stands for
_OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax:Softmax", {}),
    "sink_softmax": ("softmax:SinkSoftmax", {}),
    "softmax1": ("softmax:Softmax1", {}),
    "sigmoid": ("elementwise:Sigmoid", {}),
    "relu": ("elementwise:Relu", {}),
    "softpick": ("softpick:Softpick", {}),
    "topk_softmax": ("topk:TopKSoftmax", {"k": 64}),
    "sparsemax": ("sparse:Sparsemax", {}),
    "entmax": ("sparse:Entmax", {}),
    "clipped_softmax": ("clipped:ClippedSoftmax", {}),
}


def _load(where: str) -> Callable[..., Weighting]:
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(f"sinkgate.weighting.{module}"), attribute)


REGISTRY: dict[str, tuple[Callable[..., Weighting], dict[str, Any]]] = {
    name: (_load(where), defaults) for name, (where, defaults) in _OURS.items()
}


def names() -> list[str]:
    """Every registered name, in the order of registration."""
    return list(REGISTRY)


def kind(name: str) -> Callable[..., Weighting]:
    """The class (or factory) behind a registered name."""
    if name not in REGISTRY:
        raise ArgumentError(f"weighting {name!r} is not registered; there are {', '.join(REGISTRY)}")
    return REGISTRY[name][0]


def as_weighting(weighting: str | Weighting) -> Weighting:
    """A registry name or a weighting, as a weighting.

    Raises:
        ArgumentError: the name is not registered, or the object lacks a part of the protocol.
    """
    if isinstance(weighting, str):
        return kind(weighting)(**REGISTRY[weighting][1])
    if isinstance(weighting, type):
        raise ArgumentError(
            f"weighting must be a value, got the class {weighting.__name__}: write {weighting.__name__}(…)"
        )
    missing = [
        part
        for part in ("name", "mass", "shift_invariant", "exact_zeros", "weights", "tensors", "with_tensors", "for_rows")
        if not hasattr(weighting, part)
    ]
    if missing:
        raise ArgumentError(
            f"weighting must be a registered name ({', '.join(REGISTRY)}) or an object of the Weighting protocol; "
            f"{type(weighting).__name__} lacks {', '.join(missing)}"
        )
    return weighting


def register_weighting(name: str, factory: Callable[..., Weighting], **defaults: Any) -> None:
    """Make a weighting of one's own known by name.

    Args:
        name: the name, not taken yet.
        factory: its class, or any callable that returns a weighting.
        **defaults: arguments that the bare name stands for.

    Raises:
        ArgumentError: the name is taken by another factory, or what the factory makes is no weighting.
    """
    if name in REGISTRY and REGISTRY[name] != (factory, defaults):
        raise ArgumentError(f"weighting {name!r} is registered already; choose another name")
    as_weighting(factory(**defaults))
    REGISTRY[name] = (factory, defaults)


def from_json(config: dict[str, Any]) -> Weighting:
    """The weighting that ``to_json`` described."""
    if not isinstance(config, dict) or "name" not in config:
        raise ArgumentError(f"a weighting's configuration is an object with a name, got {config!r}")
    fields = {key: value for key, value in config.items() if key != "name"}
    try:
        return kind(config["name"])(**fields)
    except TypeError as error:
        raise ArgumentError(f"weighting {config['name']!r} cannot be built from {fields}: {error}") from None
