"""A policy that looks at the attention and decides: which heads need everything, or which queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sinkgate.cache.base import Keep, Policy, whole
from sinkgate.errors import ArgumentError

__all__ = ["Dynamic"]

RULES = ("head", "query")


@dataclass(frozen=True)
class Dynamic(Policy):
    """``base`` where that is enough, everything elsewhere.

    ``rule="head"``: everything is kept for ``after`` tokens while the mass that falls outside ``base`` is measured; then a
    key-value head with at most ``share`` of it outside goes over to ``base`` for good, which frees its bytes.

    ``rule="query"``: everything stays (an evicted key cannot come back), so no byte is saved; a query whose sinks take more
    than ``1 − share`` of its mass within ``base`` reads no more than ``base``. What that saves is reads.

    Args:
        base: with sinks, for ``rule="query"``.
        rule: ``head`` or ``query``.
        share: of the mass, 0 to 1.
        after: tokens before the heads are told apart.
    """

    name: ClassVar[str] = "dynamic"
    base: Policy
    rule: str = "head"
    share: float = 0.1
    after: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.base, Policy):
            raise ArgumentError(f"dynamic(base, …) needs a policy, got {self.base!r}")
        if self.rule not in RULES:
            raise ArgumentError(f"dynamic: rule must be 'head' or 'query', got {self.rule!r}")
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 <= self.share <= 1:
            raise ArgumentError(f"dynamic: share must be between 0 and 1, got {self.share!r}")
        whole("dynamic: after", self.after, 2)
        for keep in self.base.kinds:
            if keep.recent is None or keep.earned or keep.storage.bits is not None or keep.rule is not None:
                raise ArgumentError(f"dynamic: base must be recent(n) with sinks, got {self.base}")
            if len(keep.pinned) > 1 or any(not p.by_count or getattr(p, "folded", ()) for p in keep.pinned):
                raise ArgumentError(f"dynamic: the base's sinks are the first tokens of the text, got {self.base}")
            if self.rule == "query" and not keep.pinned:
                raise ArgumentError("dynamic(rule='query') judges a query by its sinks: add sinks(n) to the base")
            if self.rule == "head" and self.after <= keep.recent:
                raise ArgumentError(f"dynamic: after={self.after} must reach behind the base's recent({keep.recent})")

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """The banks of the base, whose heads may part later."""
        return [replace(keep, rule=self) for keep in self.base.keeps(layer, heads, kv_heads)]

    @property
    def kinds(self) -> list[Keep]:
        """Those of the base, told apart later."""
        return [replace(keep, rule=self) for keep in self.base.kinds]

    @property
    def budget(self) -> int | None:
        """None: nobody knows before."""
        return None
