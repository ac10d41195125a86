"""What a page may ask the lab for: checked against a list of what is allowed before anything is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["MOST_ARMS", "MOST_SEEDS", "TASKS", "Order"]

# task → least, most and usual steps of a small comparison
TASKS: dict[str, tuple[int, int, int]] = {
    "backcopy": (20, 3000, 500),
    "trigger": (20, 5000, 1000),
    "text": (20, 600, 200),
}
PRESET = "tiny"  # of the text task
MOST_SEEDS, MOST_ARMS, MOST_TEXT, MOST_SINK_TOKENS = 5, 6, 400, 16


@dataclass(frozen=True)
class Order:
    """A small comparison.

    Args:
        task: of ``TASKS``.
        arms: as the lab writes them, the first one the baseline.
        seeds: how many.
        budget: steps of every piece.
    """

    task: str
    arms: tuple[str, ...]
    seeds: int
    budget: int

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Order:
        """From what a page sent, or a state file holds.

        Raises:
            ArgumentError: something is missing, unknown or out of bounds; the message says what there is.
        """
        from sinkgate.lab.arms import split_arms

        if unknown := sorted(str(key)[:40] for key in said.keys() - {"task", "arms", "seeds", "budget"}):
            raise ArgumentError(f"a comparison has task, arms, seeds and budget; {unknown[0]!r} is not known")
        task, arms = said.get("task"), said.get("arms")
        if not isinstance(task, str) or task not in TASKS:
            raise ArgumentError(f"task must be one of {', '.join(TASKS)}, got {str(task)[:40]!r}")
        if isinstance(arms, list) and all(isinstance(arm, str) for arm in arms):
            arms = ", ".join(arms)
        if not isinstance(arms, str) or not arms.strip():
            raise ArgumentError('arms must be a text such as "softmax, softmax + g1"')
        if len(arms) > MOST_TEXT:
            raise ArgumentError(f"the arms are {len(arms)} characters long; at most {MOST_TEXT}")
        found = split_arms(arms)
        if len(found) > MOST_ARMS:
            raise ArgumentError(
                f"{len(found)} arms are more than the {MOST_ARMS} of a small comparison: sinkgate compare has no limit"
            )
        if large := next((arm for arm in found if arm.sink_tokens > MOST_SINK_TOKENS), None):
            raise ArgumentError(
                f"sink_token({large.sink_tokens}) is more than the {MOST_SINK_TOKENS} of a small comparison"
            )
        least, most, _ = TASKS[task]
        return cls(
            task, tuple(str(arm) for arm in found), _whole("seeds", said.get("seeds"), 1, MOST_SEEDS),
            _whole(f"budget of {task}", said.get("budget"), least, most),
        )  # fmt: skip

    def words(self, out: str) -> list[str]:
        """The arguments of ``sinkgate``, the folder named so."""
        preset = ["--preset", PRESET] if self.task == "text" else []
        return ["compare", "--task", self.task, *preset, "--arms", ", ".join(self.arms), "--seeds", str(self.seeds),
                "--budget", str(self.budget), "--no-cost", "--out", out]  # fmt: skip

    def command(self, out: Path, *, resume: bool) -> list[str]:
        """What is started."""
        return [sys.executable, "-m", "sinkgate", *self.words(str(out)), *(["--resume"] if resume else [])]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"task": self.task, "arms": list(self.arms), "seeds": self.seeds, "budget": self.budget}


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ArgumentError(f"{name} must be a whole number from {least} to {most}, got {str(value)[:40]!r}")
    return value
