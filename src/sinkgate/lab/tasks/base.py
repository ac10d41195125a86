"""What a task of the lab is: a value that makes, for an arm and a seed, something the loop can train and that says at
the end what came out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from torch import nn

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import LoopConfig
from sinkgate.lab.loop import Task

__all__ = ["Experiment", "Found", "Specification", "whole"]

Found = dict[str, Any]  # a name → a number (NaN: not to be had), or a list of numbers, by layer, position or seed


class Experiment(Task, Protocol):
    """A task for :func:`~sinkgate.lab.loop.train` with a model of its own and a last measurement.

    The same seed gives every arm the same data in the same order, and the same start to every parameter that arms have
    in common. The optional ``done(line) -> bool`` ends the training before the last step.
    """

    model: nn.Module

    def final(self, split: str) -> Found:
        """What came out, on text that training never saw: ``"select"`` chooses learning rates, ``"test"`` reports.

        Without gradients; leaves the model as it was.
        """
        ...


@runtime_checkable
class Specification(Protocol):
    """A task as a frozen value with a JSON round trip; :class:`Value` gives the round trip to a dataclass.

    Class attributes:
        name: in the registry.
        headline: the entry of :meth:`Experiment.final` that is compared.
        higher: whether more of it is better.
        shown: further entries for the table, in this order.
    """

    name: ClassVar[str]
    headline: ClassVar[str]
    higher: ClassVar[bool]
    shown: ClassVar[tuple[str, ...]]

    def loop(self, steps: int | None, lr: float | None, seed: int) -> LoopConfig:
        """How it is trained; None: the task's own number."""
        ...

    def make(self, arm: Arm, seed: int) -> Experiment:
        """The experiment of one arm and seed."""
        ...

    def to_json(self) -> dict[str, Any]:
        """``{"name": …, field: value, …}``."""
        ...


class Value:
    """Base of our specifications: a JSON round trip for a dataclass."""

    name: ClassVar[str]
    higher: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """``{"name": …, field: value, …}``; plain JSON types."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"name": self.name} | {n: list(x) if isinstance(x, tuple) else x for n, x in fields.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_json`; fields with a default may be left out.

        Raises:
            ArgumentError: a key is unknown or missing, or a value out of range.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        given = {n: tuple(x) if isinstance(x, list) else x for n, x in data.items() if n != "name"}
        if data.get("name", cls.name) != cls.name:
            raise ArgumentError(f"this is a description of the task {data['name']!r}, not of {cls.name!r}")
        if unknown := sorted(given.keys() - fields.keys()):
            raise ArgumentError(
                f"the task {cls.name!r} has no {', '.join(unknown)}; there are {', '.join(fields) or 'no settings'}"
            )
        if missing := [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in given]:
            raise ArgumentError(f"the task {cls.name!r} must be given {', '.join(missing)}")
        return cls(**given)


def whole(spec: Any, **least: int) -> None:
    """Raise unless each named field is a whole number of at least so much."""
    for name, minimum in least.items():
        value = getattr(spec, name)
        if type(value) is not int or value < minimum:
            raise ArgumentError(f"{name} must be a whole number of at least {minimum}, got {value!r}")
