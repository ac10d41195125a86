"""What a policy is: a small frozen value that says which tokens each key-value head keeps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["Earned", "Keep", "Part", "Pinned", "Policy", "Storage", "Sum", "whole"]

MOST = 10**8  # tokens; also the largest token id that is believed


@dataclass(frozen=True)
class Storage:
    """How a bank stores what it keeps; ``bits=None``: as the model computes it."""

    bits: int | None = None
    group: int = 32
    tail: int = 0
    keep_sinks: bool = True


@dataclass(frozen=True)
class Keep:
    """What one bank of key-value heads does.

    Args:
        kv: which key-value heads of the layer.
        recent: the last so many tokens, the current one counted; None: all.
        parts: what is kept besides.
        storage: how.
        rule: of a :class:`~sinkgate.cache.dynamic.Dynamic` policy.
    """

    kv: tuple[int, ...]
    recent: int | None
    parts: tuple[Part, ...] = ()
    storage: Storage = Storage()
    rule: Any = None

    @property
    def pinned(self) -> tuple[Pinned, ...]:
        """Parts that choose a token when it comes."""
        return tuple(p for p in self.parts if isinstance(p, Pinned))

    @property
    def earned(self) -> tuple[Earned, ...]:
        """Parts that choose a token when it leaves the recent ones."""
        return tuple(p for p in self.parts if isinstance(p, Earned))

    @property
    def budget(self) -> int | None:
        """The most tokens a head holds after a call; None: no bound."""
        return None if self.recent is None else self.recent + sum(p.slots for p in self.parts)


@dataclass(frozen=True)
class Policy:
    """Which tokens are kept. Policies add: ``Recent(1020) + Sinks(4)``; equal policies print alike."""

    name: ClassVar[str] = ""

    def __add__(self, other: Policy) -> Policy:
        """Both: the union of what they keep."""
        if not isinstance(other, Policy):
            return NotImplemented
        return Sum.of(self, other)

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """The banks of a layer: every key-value head is in exactly one.

        Raises:
            ArgumentError: the policy names a layer or head that is not there, or keeps no recent token.
        """
        raise NotImplementedError

    @property
    def kinds(self) -> list[Keep]:
        """The banks that any layer could have, without saying for which heads: what is true of all is true of the policy."""
        return self.keeps(0, 1, 1)

    @property
    def layers_named(self) -> frozenset[int]:
        """Layers that it speaks of by number: each has to be there."""
        inside = [value for _, value in self._given() if isinstance(value, Policy)]
        return frozenset().union(*(p.layers_named for p in inside))

    @property
    def budget(self) -> int | None:
        """The most tokens any head holds after a call; None: no bound."""
        return max_budget([k.budget for k in self.kinds])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; :func:`sinkgate.cache.registry.from_json` reads them."""
        return {"policy": self.name, **{name: _plain(value) for name, value in self._given()}}

    def __str__(self) -> str:
        first = dataclasses.fields(self)[0].name if dataclasses.fields(self) else ""
        parts = [_text(value) if name == first else f"{name}={_text(value)}" for name, value in self._given()]
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    def _given(self) -> list[tuple[str, Any]]:
        """The first field and those that are not as they are by default."""
        pairs = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        return [(f.name, x) for i, (f, x) in enumerate(pairs) if i == 0 or x != f.default]


@dataclass(frozen=True)
class Part(Policy):
    """A policy that keeps a fixed number of tokens besides the recent ones."""

    @property
    def slots(self) -> int:
        """How many."""
        raise NotImplementedError

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """Alone it keeps no recent token, and a query must at least see its own."""
        raise ArgumentError(f"{self} keeps no recent token, and every query sees at least its own: add recent(n)")


@dataclass(frozen=True)
class Pinned(Part):
    """A part that chooses a token when it comes, by where or what it is; what it chose stays."""

    def pins(self, positions: Int[Tensor, "b c"], ids: Int[Tensor, "b c"] | None) -> Bool[Tensor, "b c"]:
        """True at the tokens it wants; the first ``slots`` of them in each row are kept."""
        raise NotImplementedError

    @property
    def wants_ids(self) -> bool:
        """Whether it has to know the tokens' ids."""
        return False

    @property
    def by_count(self) -> bool:
        """Whether the count of tokens alone says what it holds: the first ones, or none of the text."""
        return False


@dataclass(frozen=True)
class Earned(Part):
    """A part that chooses among tokens when they leave the recent ones, by the attention they got."""

    def replaces(
        self, mass: Float[Tensor, "b kv"], held: Float[Tensor, "b kv n"], positions: Int[Tensor, "b kv n"]
    ) -> Int[Tensor, "b kv"]:
        """The slot that the leaving token takes, −1 where it is dropped.

        Args:
            mass: the accumulated mass of the leaving token.
            held: that of the tokens in the slots.
            positions: theirs; −1 where a slot is empty.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Sum(Policy):
    """Several policies at once: one :class:`Recent` and parts beside it.

    A token that one part keeps does not count for the next: the first tokens come before those with certain ids.
    """

    name: ClassVar[str] = "sum"
    of_: tuple[Policy, ...] = ()

    @classmethod
    def of(cls, *policies: Policy) -> Policy:
        """Their sum, flat; one alone is itself.

        Raises:
            ArgumentError: policies that cannot be added.
        """
        flat: list[Policy] = []
        for p in policies:
            flat += p.of_ if isinstance(p, Sum) else [p]
        if len(flat) < 2:
            if not flat:
                raise ArgumentError("a sum of no policies keeps nothing: add recent(n)")
            return flat[0]
        kinds = [type(p) for p in flat if not isinstance(p, Pinned) or p.by_count]
        for p in flat:
            if not isinstance(p, Part) and p.name != "recent":
                raise ArgumentError(f"{p} says all that is kept and cannot be added to; put the sum inside it")
            if getattr(p, "folded", ()) and sum(isinstance(x, Pinned) for x in flat) > 1:
                raise ArgumentError(f"a folded sink stands alone, got {' + '.join(map(str, flat))}")
            if kinds.count(type(p)) > 1 or flat.count(p) > 1:
                raise ArgumentError(f"{' + '.join(map(str, flat))} names {p.name} twice; say one number")
        order = sorted(flat, key=lambda p: (p.name != "recent", p.name, not getattr(p, "by_count", True), str(p)))
        return cls(tuple(order))

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """One bank for all heads."""
        recent = [p for p in self.of_ if p.name == "recent"]
        parts = tuple(p for p in self.of_ if isinstance(p, Part))
        if not recent:
            raise ArgumentError(f"{self} keeps no recent token, and every query sees at least its own: add recent(n)")
        return [Keep(tuple(range(kv_heads)), recent[0].n, parts)]  # type: ignore[attr-defined]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"policy": "sum", "of": [p.to_json() for p in self.of_]}

    def __str__(self) -> str:
        return " + ".join(map(str, self.of_))


def max_budget(budgets: list[int | None]) -> int | None:
    """The largest; None is larger than any number."""
    return None if any(b is None for b in budgets) else max(b for b in budgets if b is not None)


def whole(what: str, value: Any, least: int = 1) -> None:
    """Check a count.

    Raises:
        ArgumentError: it is no whole number of at least ``least``, or more than a cache could ever hold.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise ArgumentError(f"{what} must be a whole number of at least {least} (and at most {MOST:,}), got {value!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, Policy):
        return value.to_json()
    if isinstance(value, tuple | list):
        return [_plain(x) for x in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, Policy | int | float) else repr(value)
