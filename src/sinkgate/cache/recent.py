"""The last tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sinkgate.cache.base import Keep, Policy, whole

__all__ = ["Dense", "Recent"]


@dataclass(frozen=True)
class Recent(Policy):
    """The last ``n`` tokens, the current one counted."""

    name: ClassVar[str] = "recent"
    n: int

    def __post_init__(self) -> None:
        whole("recent(n): n", self.n)

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """One bank for all heads."""
        return [Keep(tuple(range(kv_heads)), self.n)]


@dataclass(frozen=True)
class Dense(Policy):
    """Everything: an ordinary cache, which grows."""

    name: ClassVar[str] = "dense"

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """One bank for all heads."""
        return [Keep(tuple(range(kv_heads)), None)]
