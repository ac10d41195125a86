"""What a key-value cache keeps, how it stores it, and how many bytes that is. Knows no model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "Dense": "recent",
    "Dynamic": "dynamic",
    "HeavyHitters": "heavy",
    "PerHead": "per_head",
    "PerLayer": "per_head",
    "Policy": "base",
    "Quantized": "quantized",
    "Recent": "recent",
    "Sinks": "sinks",
    "as_policy": "registry",
    "budget": "registry",
}

__all__ = list(_WHERE)

if TYPE_CHECKING:
    from sinkgate.cache.base import Policy as Policy
    from sinkgate.cache.dynamic import Dynamic as Dynamic
    from sinkgate.cache.heavy import HeavyHitters as HeavyHitters
    from sinkgate.cache.per_head import PerHead as PerHead
    from sinkgate.cache.per_head import PerLayer as PerLayer
    from sinkgate.cache.quantized import Quantized as Quantized
    from sinkgate.cache.recent import Dense as Dense
    from sinkgate.cache.recent import Recent as Recent
    from sinkgate.cache.registry import as_policy as as_policy
    from sinkgate.cache.registry import budget as budget
    from sinkgate.cache.sinks import Sinks as Sinks


def __getattr__(name: str) -> Any:
    if name in _WHERE:  # sizes are computed without torch, policies are not
        return getattr(importlib.import_module(f"sinkgate.cache.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'sinkgate.cache' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_WHERE)
