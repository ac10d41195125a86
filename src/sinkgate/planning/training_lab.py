"""Pilots of a lab recipe: short trainings of every arm, by the lab's own comparison."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm, as_arm, split_arms
from sinkgate.lab.comparison import Plan, run_plan
from sinkgate.lab.comparison_record import Comparison
from sinkgate.lab.cost import TIMED
from sinkgate.lab.pieces import Piece, run_piece
from sinkgate.lab.tasks.base import Specification
from sinkgate.planning.training_budget import Cost

__all__ = ["ARMS", "Pilots", "Recipe"]

# The first one is what the others are compared with; a budget that is too small drops from the end.
ARMS = (
    "softmax, sink_softmax, softmax + g1_head, softmax1, softmax + g1, softmax + g1_head(preserve=2), "
    "sink_softmax + outlet_lr(3), softmax + g1_head + outlet_lr(3), softmax + g1_head(preserve=4), "
    "softmax + g1_head + outlet_lr(0.3)"
)
STEPS = 12  # that an arm is timed with
COST_ROUNDS = 5  # of timing at the end, arms in turns: what another process takes would else decide which is cheaper
NO_EVALUATION = {"evaluate_every": 0}  # curves are not what a pilot is for
Progress = Callable[[str, dict[str, Any]], None]
Pilots = list[dict[str, Any]]  # by arm: extra, seconds, values by seed, of those that were tried


class Recipe:
    """A task of the lab as what is planned for.

    Args:
        task: the task.
        arms: texts or values, the first one the reference; None: :data:`ARMS`.
        loop_changes: fields of ``LoopConfig`` that differ from the task's own.
        device: where to train.
        progress: called with the pilot's name and each line of its log.

    Raises:
        ArgumentError: an arm is malformed or there twice, or cannot be built for this task.
    """

    kind = "recipe"

    def __init__(
        self, task: Specification, arms: Any, loop_changes: dict[str, Any], device: str, progress: Progress | None
    ) -> None:
        self.task, self.device, self.progress = task, device, progress
        given = ARMS if arms is None else arms
        self.arms: list[Arm] = split_arms(given) if isinstance(given, str) else [as_arm(arm) for arm in given]
        self.changes = {**NO_EVALUATION, **loop_changes}
        loop = self.piece(self.arms[0], 0, None).loop if self.arms else task.loop(None, None, 0)
        self.most, self.lr, self.name = loop.steps, loop.lr, task.name
        self.headline, self.higher, self.unit = task.headline, task.higher, ""
        self.notes = [
            f"every arm was tried at the recipe's one learning rate, {self.lr:g}: none was given a best one of its own"
        ]
        plain = self._size(Arm())
        self.extra = {str(arm): self._size(arm) - plain for arm in self.arms}

    def request(self) -> dict[str, Any]:
        """What the pilots are a function of; plain JSON types."""
        return {"task": self.task.to_json(), "loop_changes": self.changes, "lr": self.lr}

    def configs(self) -> dict[str, dict[str, Any]]:
        """Each arm as JSON."""
        return {str(arm): arm.to_json() for arm in self.arms}

    def piece(self, arm: Arm, seed: int, steps: int | None) -> Piece:
        """One pilot."""
        loop = self.task.loop(steps, None, seed)
        return Piece(self.task, arm, loop.lr, seed, steps, self.changes)

    def cost(self, arm: str, seed: int) -> Cost:
        """Of one arm, by training it for a few steps in a folder that is thrown away."""
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            steps = min(STEPS, self.most)
            record = run_piece(self.piece(self._arm(arm), seed, steps), Path(folder), device=self.device)
        step = float(record["cost"]["seconds_per_step"] or 0.0)
        rest = max(0.0, time.perf_counter() - began - record["steps"] * step)
        return Cost(arm, step, rest, once=(COST_ROUNDS + 1) * TIMED * step)

    def pilots(self, arms: Sequence[str], seeds: Sequence[int], steps: int, folder: Path) -> Pilots:
        """Every arm with every seed, on from what is in the folder."""
        lr = self.piece(self._arm(arms[0]), seeds[0], steps).lr
        plan = Plan(
            self.task, tuple(self._arm(arm) for arm in arms), tuple(seeds), (lr,), steps, len(seeds), dict(self.changes)
        )
        note = self.progress
        told = [] if note is None else [lambda piece, line: note(f"{piece.arm}, seed {piece.seed}", line)]
        found: Comparison = run_plan(
            plan, folder, resume=True, device=self.device, cost_rounds=COST_ROUNDS, progress=told
        )
        return [
            {"arm": arm, "extra": self.extra[arm], "seconds": found.meta["cost"][arm]["seconds_per_step"],
             "values": [float(x) for x in found.values(arm, self.headline)]}
            for arm in found.arms
        ]  # fmt: skip

    # ---- private ------------------------------------------------------------------------------------------------

    def _arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if str(arm) == name)

    def _size(self, arm: Arm) -> int:
        try:
            experiment = self.task.make(arm, 0)
        except ArgumentError as err:
            raise ArgumentError(f"the arm {str(arm)!r} cannot be tried on the task {self.task.name!r}: {err}") from err
        return sum(p.numel() for p in experiment.parameters().values())
