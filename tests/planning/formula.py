"""A measurer whose losses are a formula, so that a search can be followed by hand; and a space of a real tiny model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from models import tiny
from sinkgate.planning.cost import Shape
from sinkgate.planning.measure import Loss
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import Space
from sinkgate.probe.text import Piece


@functools.cache
def shape(name: str = "llama") -> Shape:
    return Shape.of(tiny(name))


def space(context: int = 256, **changes: Any) -> Space:
    given: dict[str, Any] = {
        "shape": shape(), "context": context, "sinks": ("", "sinks(1)", "sinks(4)"),
        "heads": ((1, 0), (0, 1), (2, 0), (0, 0), (1, 1), (2, 1)), "layers": (1, 0, 2), "positions": ("slots", "original"),
    }  # fmt: skip
    return Space(**{**given, **changes})


def piece(i: int) -> Piece:
    return Piece(f"piece {i}", f"text {i}[0:256]", [1] * 256, ["a"] * 256, bos=False)


@dataclass
class Formula:
    """Loss differences by a function of (setting, text number)."""

    f: Callable[[Setting, int], float]
    asked: list[tuple[str, str]] = field(default_factory=list)

    def difference(self, setting: Setting, text: Piece) -> tuple[float, tuple[float, ...]]:
        self.asked.append((setting.key, text.id))
        value = self.f(setting, int(text.id.split()[1]))
        return value, (value,) * 4

    def differences(self, setting: Setting, texts: Sequence[Piece]) -> list[tuple[float, tuple[float, ...]]]:
        return [self.difference(setting, text) for text in texts]

    def loss(self, setting: Setting, text: Piece) -> Loss:
        value = 3.0 + self.f(setting, int(text.id.split()[1]))
        return Loss(value, (value,) * 4, 0.0)


def window(setting: Setting) -> int:
    """Recent tokens of the bank that keeps least."""
    return min(k.recent or 10**9 for k in setting.value.kinds)
