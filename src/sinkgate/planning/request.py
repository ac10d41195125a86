"""What is asked of a plan, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["EFFORTS", "GOALS", "Effort", "Request", "parse_bytes", "parse_increase"]

GOALS = ("memory", "latency", "quality")
SHORTEST = 16  # tokens of a context that is worth a plan
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


@dataclass(frozen=True)
class Effort:
    """How much is measured; every count is of texts, tokens or trials, so that a search is the same on any machine.

    Args:
        trials: settings measured by the search, at most; those that the search can decide without measuring are not counted.
        tune: texts that a setting is tuned on.
        looks: texts read when the verification is looked at; it may give up at each, and decides at the last.
        tokens: of one text at most; a longer context is promised for texts of so many tokens, and the plan says so.
        screen: tokens of the text on which each layer is tried alone.
        recall: questions for each distance.
        arms: texts on which fewer bits are compared.
    """

    trials: int
    tune: int
    looks: tuple[int, ...]
    tokens: int
    screen: int
    recall: int
    arms: int


EFFORTS = {
    "quick": Effort(8, 2, (6,), 1024, 256, 3, 2),
    "default": Effort(10, 3, (6, 12), 2048, 512, 4, 3),
    "thorough": Effort(60, 6, (12, 24, 48), 16384, 1024, 20, 12),
}


@dataclass(frozen=True)
class Request:
    """What a plan is to do.

    Args:
        budget: bytes of keys and values at ``context`` × ``batch``; None: no limit.
        max_increase: of the perplexity, relative: 0.01 is 1%; None: no limit.
        context: tokens; None: as many as the model was trained for.
        batch: sequences of that length at once.
        weight_budget: bytes of the weights; None: they stay as they are.
        goal: what is made small: ``memory``, ``latency``, or the loss (``quality``); None: the loss where only a budget is
            given, else memory.
        effort: of ``EFFORTS``.
        seed: of the search and of the choice of texts.

    Raises:
        ArgumentError: a value out of range, or neither a budget nor a tolerance.
    """

    budget: int | None = None
    max_increase: float | None = None
    context: int | None = None
    batch: int = 1
    weight_budget: int | None = None
    goal: str | None = None
    effort: str = "default"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("budget", "weight_budget", "context", "batch"):
            value = getattr(self, name)
            if value is None and name != "batch":
                continue
            least = SHORTEST if name == "context" else 1
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's too
        tolerance = self.max_increase
        if tolerance is not None:
            if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not math.isfinite(tolerance):
                raise ArgumentError(f"max_increase must be a number such as 0.01 for 1%, got {tolerance!r}")
            if tolerance <= 0:
                raise ArgumentError(
                    f"a perplexity increase of at most {tolerance:.3g} leaves nothing to choose: every change moves it a "
                    "little. Give a tolerance above 0, such as 1%"
                )
            if tolerance >= 1:
                raise ArgumentError(
                    f"max_increase={tolerance:g} would allow the perplexity to double; write 0.01 or '1%' for one per cent"
                )
        if self.budget is None and tolerance is None and self.weight_budget is None:
            raise ArgumentError(
                "say what the plan has to keep to: a budget of bytes (64MiB), a tolerance (1%), or both"
            )
        if self.goal is not None and self.goal not in GOALS:
            raise ArgumentError(f"goal must be one of {', '.join(GOALS)}, got {self.goal!r}")
        if self.effort not in EFFORTS:
            raise ArgumentError(f"effort must be one of {', '.join(EFFORTS)}, got {self.effort!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, numbers.Integral) or self.seed < 0:
            raise ArgumentError(f"seed must be a whole number of at least 0, got {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))

    @property
    def aim(self) -> str:
        """The goal, also where none was said."""
        return self.goal or ("quality" if self.max_increase is None else "memory")

    @property
    def nats(self) -> float | None:
        """The tolerance as a difference of losses: ``ln(1 + increase)``."""
        return None if self.max_increase is None else math.log1p(self.max_increase)

    @property
    def much(self) -> Effort:
        """What the effort means."""
        return EFFORTS[self.effort]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Request:
        """The inverse of :meth:`to_json`.

        Raises:
            ArgumentError: a value out of range.
        """
        return cls(**data)


def parse_bytes(text: str, name: str = "budget") -> int:
    """Bytes as people write them: ``64MiB``, ``1.5 GiB``, ``200MB`` (10⁶), ``1048576``.

    Raises:
        ArgumentError: it is none of these, or not at least one byte.

    >>> parse_bytes("64MiB"), parse_bytes("1.5 GiB"), parse_bytes("200MB"), parse_bytes("4096")
    (67108864, 1610612736, 200000000, 4096)
    """
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    unit = None if found is None else _UNITS.get(found[2])
    value = 0 if found is None or unit is None else math.floor(float(found[1]) * unit)
    if not 1 <= value <= 2**60:
        raise ArgumentError(f"{name} must be bytes such as 64MiB, 1.5GiB or 4096, got {text!r}")
    return value


def parse_increase(text: str) -> float:
    """A relative increase: ``1%`` or ``0.01``.

    Raises:
        ArgumentError: it is neither.

    >>> parse_increase("1%"), parse_increase("0.02")
    (0.01, 0.02)
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        raise ArgumentError(f"the tolerance must be a number such as 1% or 0.01, got {text!r}") from None
    return value / 100 if text.strip().endswith("%") else value
