"""Different policies for different layers or heads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from sinkgate.cache.base import Keep, Policy
from sinkgate.cache.recent import Dense
from sinkgate.errors import ArgumentError

__all__ = ["PerHead", "PerLayer"]


@dataclass(frozen=True)
class PerHead(Policy):
    """Streaming heads and retrieval heads (DuoAttention, Xiao et al. 2024, arXiv 2410.10819).

    Query heads that share a key-value head share its cache: one of them in ``heads`` takes the others along.

    Args:
        base: of all other heads.
        heads: ``(layer, query head)`` pairs.
        other: the policy of these heads.
    """

    name: ClassVar[str] = "per_head"
    base: Policy
    heads: tuple[tuple[int, int], ...]
    other: Policy = Dense()

    def __post_init__(self) -> None:
        for p in (self.base, self.other):
            if not isinstance(p, Policy):
                raise ArgumentError(f"per_head(base, heads, other) needs policies, got {p!r}")
        object.__setattr__(self, "heads", _pairs(self.heads))

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """The banks of both."""
        group = max(1, heads // kv_heads)
        wrong = [h for i, h in self.heads if i == layer and not 0 <= h < heads]
        if wrong:
            raise ArgumentError(f"layer {layer} has heads 0 to {heads - 1}; {self.name} names head {wrong[0]}")
        chosen = sorted({h // group for i, h in self.heads if i == layer})
        rest = [j for j in range(kv_heads) if j not in chosen]
        return [*_on(self.base, layer, heads, kv_heads, rest), *_on(self.other, layer, heads, kv_heads, chosen)]

    @property
    def kinds(self) -> list[Keep]:
        """Those of both."""
        return [*self.base.kinds, *self.other.kinds]

    @property
    def layers_named(self) -> frozenset[int]:
        """Those of the heads."""
        return super().layers_named | {layer for layer, _ in self.heads}


@dataclass(frozen=True)
class PerLayer(Policy):
    """Another policy for some layers.

    Args:
        base: of all other layers.
        layers: which.
        other: their policy.
    """

    name: ClassVar[str] = "per_layer"
    base: Policy
    layers: tuple[int, ...]
    other: Policy = Dense()

    def __post_init__(self) -> None:
        for p in (self.base, self.other):
            if not isinstance(p, Policy):
                raise ArgumentError(f"per_layer(base, layers, other) needs policies, got {p!r}")
        if not isinstance(self.layers, Iterable) or not all(map(_index, self.layers)):
            raise ArgumentError(f"per_layer: layers must be numbers from 0, got {self.layers!r}")
        object.__setattr__(self, "layers", tuple(sorted(set(self.layers))))

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """The banks of the one that is meant."""
        return (self.other if layer in self.layers else self.base).keeps(layer, heads, kv_heads)

    @property
    def kinds(self) -> list[Keep]:
        """Those of both."""
        return [*self.base.kinds, *self.other.kinds]

    @property
    def layers_named(self) -> frozenset[int]:
        """Those with the other policy."""
        return super().layers_named | set(self.layers)


def _on(policy: Policy, layer: int, heads: int, kv_heads: int, chosen: list[int]) -> list[Keep]:
    """A policy's banks, for the chosen key-value heads only."""
    found = []
    for keep in policy.keeps(layer, heads, kv_heads):
        kv = tuple(j for j in keep.kv if j in chosen)
        if kv:
            found.append(replace(keep, kv=kv))
    return found


def _index(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _pairs(heads: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    found = set()
    for pair in heads if isinstance(heads, Iterable) else (heads,):
        given = tuple(pair) if isinstance(pair, Iterable) else (pair,)
        if len(given) != 2 or not all(map(_index, given)):
            raise ArgumentError(f"per_head: heads must be (layer, head) pairs such as [[5, 3]], got {pair!r}")
        found.add((given[0], given[1]))
    return tuple(sorted(found))
