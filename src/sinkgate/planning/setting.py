"""A setting of a cache: what it keeps, and how positions are counted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sinkgate.cache.base import Policy
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError

__all__ = ["LEAVE", "Setting"]

SCHEMES = ("slots", "original")


@dataclass(frozen=True)
class Setting:
    """What :func:`sinkgate.streaming` is given.

    Args:
        policy: as text; equal policies print alike.
        positions: ``slots`` or ``original``.

    Raises:
        ArgumentError: a policy that cannot be read, or another scheme.
    """

    policy: str
    positions: str = "slots"

    def __post_init__(self) -> None:
        if self.positions not in SCHEMES:
            raise ArgumentError(f"positions must be 'slots' or 'original', got {self.positions!r}")
        object.__setattr__(self, "policy", str(as_policy(self.policy)))

    @cached_property
    def value(self) -> Policy:
        """The policy itself."""
        return as_policy(self.policy)

    @property
    def key(self) -> str:
        """One text for both."""
        return f"{self.policy} @ {self.positions}"

    @property
    def dense(self) -> bool:
        """Whether it changes nothing."""
        return self.policy == "dense"

    def within(self, tokens: int) -> Setting:
        """What does the same to a text of so many tokens: no window is longer, so no room is made that stays empty."""
        shorter = re.sub(r"\brecent\((\d+)\)", lambda found: f"recent({min(int(found[1]), tokens)})", self.policy)
        return Setting(shorter, self.positions)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"policy": self.policy, "positions": self.positions}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Setting:
        """The inverse of :meth:`to_json`."""
        return cls(str(data["policy"]), str(data["positions"]))

    def __str__(self) -> str:
        return self.policy if self.dense else f"{self.policy}, positions: {self.positions}"


LEAVE = Setting("dense", "original")
