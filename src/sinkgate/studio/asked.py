"""What a request asks for, checked before anything is done with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["choice", "number", "only", "text", "whole"]


def only(said: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse what is not known: nothing that was asked for is left out in silence.

    Raises:
        ArgumentError: another name.
    """
    for name in said:
        if name not in names:
            raise ArgumentError(f"the request has {name[:40]!r}; it may have {', '.join(names)}")


def whole(said: Mapping[str, Any], name: str, lo: int, hi: int, other: int) -> int:
    """A whole number from ``lo`` to ``hi``; ``other`` where nothing is said.

    Raises:
        ArgumentError: it is none, or out of range.
    """
    value = said.get(name, other)
    value = other if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not lo <= value <= hi:
        raise ArgumentError(f"{name} must be a whole number from {lo:,} to {hi:,}, got {_short(value)}")
    return value


def number(said: Mapping[str, Any], name: str, lo: float, hi: float, other: float) -> float:
    """A number from ``lo`` to ``hi``; ``other`` where nothing is said.

    Raises:
        ArgumentError: it is none, or out of range.
    """
    value = said.get(name, other)
    value = other if value is None else value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (math.isfinite(value) and lo <= value <= hi)
    ):
        raise ArgumentError(f"{name} must be a number from {lo:g} to {hi:g}, got {_short(value)}")
    return float(value)


def text(said: Mapping[str, Any], name: str, most: int) -> str | None:
    """A text of at most so many characters; None where nothing is said.

    Raises:
        ArgumentError: it is no text, or longer.
    """
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"{name} must be text, got {_short(value)}")
    if value is not None and len(value) > most:
        raise ArgumentError(f"{name} has {len(value):,} characters; the studio takes {most:,} at most")
    return value


def choice(said: Mapping[str, Any], name: str, known: Collection[str]) -> str:
    """One of some words; the first where nothing is said.

    Raises:
        ArgumentError: another.
    """
    value = said.get(name)
    value = next(iter(known)) if value is None else value
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} must be one of {', '.join(known)}, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else said[:59] + "…"
