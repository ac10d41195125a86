"""Arms side by side: the same data order, start and steps for every one, paired by seed, each at its own best rate.

A comparison is pieces (arm × learning rate × seed) that know nothing of each other. First every arm is tried at every
rate with the first seeds, and its best one chosen on the part of the data that is for choosing; then all seeds run at
that rate, and what they find on the part for reporting is what the record says.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, OutputError, RecordError
from sinkgate.files import save_json
from sinkgate.lab.arms import Arm, as_arm, split_arms
from sinkgate.lab.comparison_record import Comparison
from sinkgate.lab.cost import TIMED, cost_per_step
from sinkgate.lab.pieces import Piece, Progress, multipliers, run_piece
from sinkgate.lab.provenance import environment
from sinkgate.lab.tasks import as_task, from_json
from sinkgate.lab.tasks.base import Specification

__all__ = ["Plan", "Runner", "compare", "in_turn"]

CONFIG, RECORD = "comparison.json", "record.json"

# Runs pieces in folders and gives their records in that order; the default is one after the other.
Runner = Callable[[Sequence[tuple[Piece, Path]], str, Sequence[Progress]], list[dict[str, Any]]]


@dataclass(frozen=True)
class Plan:
    """What is compared.

    Args:
        task: of the registry, with its settings.
        arms: the first one is what the others are compared with.
        seeds: of start and data order.
        lrs: peak learning rates to choose from, per arm; None: the task's own, for all.
        steps: updates of every piece; None: the task's own number.
        sweep: with how many of the seeds a rate is chosen.
        loop_changes: fields of :class:`~sinkgate.lab.config.LoopConfig` that differ from the task's own, for every arm.

    Raises:
        ArgumentError: nothing to compare, or a number out of range.
    """

    task: Specification
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0,)
    lrs: tuple[float, ...] | None = None
    steps: int | None = None
    sweep: int = 1
    loop_changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.arms:
            raise ArgumentError("there are no arms to compare; give at least one, such as softmax")
        names = [str(arm) for arm in self.arms]
        if len(set(names)) < len(names):
            raise ArgumentError(f"an arm is there twice: {', '.join(names)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ArgumentError(f"seeds must be different whole numbers, at least one; got {list(self.seeds)}")
        if self.lrs is not None and (not self.lrs or len(set(self.lrs)) < len(self.lrs)):
            raise ArgumentError(f"learning rates must be different numbers, at least one; got {list(self.lrs)}")
        if not 1 <= self.sweep <= len(self.seeds):
            raise ArgumentError(f"sweep must be from 1 to the number of seeds, {len(self.seeds)}; got {self.sweep}")
        for lr in self.rates:
            _ = self.piece(self.arms[0], lr, self.seeds[0]).loop  # says what is wrong with a number

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates that are tried."""
        return self.lrs or (self.task.loop(self.steps, None, self.seeds[0]).lr,)

    def piece(self, arm: Arm, lr: float, seed: int) -> Piece:
        """One of them."""
        return Piece(self.task, arm, lr, seed, self.steps, self.loop_changes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "task": self.task.to_json(), "arms": [arm.to_json() for arm in self.arms], "seeds": list(self.seeds),
            "lrs": None if self.lrs is None else list(self.lrs), "steps": self.steps, "sweep": self.sweep,
        } | ({"loop_changes": self.loop_changes} if self.loop_changes else {})  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """The inverse of :meth:`to_json`.

        Raises:
            ArgumentError: not a plan.
        """
        try:
            return cls(
                from_json(data["task"]), tuple(Arm.from_json(a) for a in data["arms"]), tuple(data["seeds"]),
                None if data["lrs"] is None else tuple(data["lrs"]), data["steps"], data["sweep"], data.get("loop_changes", {}),
            )  # fmt: skip
        except (KeyError, TypeError) as err:
            raise ArgumentError(f"this is no plan of a comparison: {err} is missing or malformed") from None


def compare(
    task: str | Specification,
    arms: str | Iterable[str | Arm] = ("softmax",),
    *,
    seeds: int | Sequence[int] = 1,
    lrs: Sequence[float] | None = None,
    steps: int | None = None,
    sweep: int = 1,
    loop_changes: dict[str, Any] | None = None,
    out: str | os.PathLike[str],
    resume: bool = False,
    device: str = "cpu",
    runner: Runner | None = None,
    cost_rounds: int | None = None,
    progress: Sequence[Progress] = (),
    **settings: Any,
) -> Comparison:
    """Train arms on a task and say what differs, and what cannot be told apart.

    Args:
        task: a name (``trigger``, ``backcopy``, ``text``) with ``settings``, or a value.
        arms: texts such as ``"softmax, softmax + g1, softpick"``, or values; the first is the baseline.
        seeds: how many, from 0, or which.
        lrs: peak learning rates to choose from, per arm; None: the task's own.
        steps: updates of every piece.
        sweep: seeds that a rate is chosen with.
        loop_changes: fields of ``LoopConfig`` for every arm, such as ``{"weight_decay": 0.5}``.
        out: a folder: ``comparison.json`` (the plan), ``pieces/``, ``record.json``.
        resume: go on in a folder that holds the same plan.
        device: where to train.
        runner: what runs pieces; None: one after the other in this process. ``sinkgate.lab.spread.ray_runner`` is another.
        cost_rounds: paired rounds in which the time of a step is measured at the end; 0: not; None: five, or as few as
            cost 2% of the training, at least one.
        progress: called with (piece, line of the log).

    Returns:
        The record, also saved.

    Raises:
        ArgumentError: the task, an arm or a number is wrong.
        OutputError: ``out`` cannot be written, or holds a comparison and ``resume`` is False.
        RecordError: ``out`` holds another comparison; the message names what differs.
        TextError: the corpus is missing or too small.
    """
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds < 1:
        raise ArgumentError(f"seeds must be at least 1, got {seeds}")
    plan = Plan(
        as_task(task, **settings),
        tuple(split_arms(arms) if isinstance(arms, str) else map(as_arm, arms)),
        tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        None if lrs is None else tuple(float(x) for x in lrs), steps, sweep, loop_changes or {},
    )  # fmt: skip
    return run_plan(plan, out, resume=resume, device=device, runner=runner, cost_rounds=cost_rounds, progress=progress)


def run_plan(
    plan: Plan,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    device: str = "cpu",
    runner: Runner | None = None,
    cost_rounds: int | None = None,
    progress: Sequence[Progress] = (),
) -> Comparison:
    """:func:`compare` of a plan."""
    folder = Path(out)
    _claim(folder, plan, resume)
    for arm in plan.arms:  # what cannot be built is said now, not after hours
        multipliers(plan.task, arm, plan.task.make(arm, plan.seeds[0]), plan.seeds[0])
    run = runner or in_turn
    place = lambda piece: folder / "pieces" / piece.key  # noqa: E731
    tries = [plan.piece(arm, lr, seed) for arm in plan.arms for lr in plan.rates for seed in plan.seeds[: plan.sweep]]
    done = {
        (p.arm, p.lr, p.seed): r
        for p, r in zip(tries, run([(p, place(p)) for p in tries], device, progress), strict=True)
    }
    best = {
        arm: best_rate(plan, [done[arm, lr, s] for lr in plan.rates for s in plan.seeds[: plan.sweep]])
        for arm in plan.arms
    }
    rest = [plan.piece(arm, best[arm], seed) for arm in plan.arms for seed in plan.seeds[plan.sweep :]]
    done |= {
        (p.arm, p.lr, p.seed): r
        for p, r in zip(rest, run([(p, place(p)) for p in rest], device, progress), strict=True)
    }
    kept = folder / "cost.json"
    if kept.exists():
        cost = json.loads(kept.read_text(encoding="utf-8"))
    else:
        if cost_rounds is None:
            steps = sum(record["steps"] for record in done.values())
            cost_rounds = max(1, min(5, round(0.02 * steps / (len(plan.arms) * TIMED))))
        cost = (
            cost_per_step(plan.task, plan.arms, plan.seeds[0], rounds=cost_rounds, device=device) if cost_rounds else {}
        )
        save_json(kept, cost)
    record = Comparison(
        {"plan": plan.to_json(), "environment": environment(device), "headline": plan.task.headline,
         "higher": plan.task.higher, "shown": list(plan.task.shown), "arms": [str(a) for a in plan.arms],
         "best_lr": {str(a): best[a] for a in plan.arms}, "cost": cost},
        list(done.values()),
    )  # fmt: skip
    record.save(folder / RECORD)
    return record


def in_turn(pieces: Sequence[tuple[Piece, Path]], device: str, progress: Sequence[Progress]) -> list[dict[str, Any]]:
    """One piece after the other, in this process."""
    return [run_piece(piece, folder, device=device, progress=progress) for piece, folder in pieces]


def best_rate(plan: Plan, records: Sequence[dict[str, Any]]) -> float:
    """The rate with the best headline on the part for choosing, mean over the sweep's seeds.

    One where any seed diverged is not chosen; if all did, the lowest.
    """
    found: dict[float, list[float]] = {}
    for record in records:
        value = None if record["diverged"] else record["select"].get(plan.task.headline)
        bad = -math.inf if plan.task.higher else math.inf
        found.setdefault(record["piece"]["lr"], []).append(bad if value is None else value)
    sign = -1 if plan.task.higher else 1
    return min(sorted(found), key=lambda lr: sign * math.fsum(found[lr]) / len(found[lr]))


def _claim(folder: Path, plan: Plan, resume: bool) -> None:
    """The folder is ours: new, or of the same plan and to be resumed."""
    path = folder / CONFIG
    mine = json.loads(json.dumps(plan.to_json()))
    if path.exists():
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise RecordError(f"{path} is not a readable plan: {err}; choose another folder") from err
        if differences := list(_differences(there, mine)):
            raise RecordError(f"{folder} holds another comparison: {'; '.join(differences[:4])}; choose another folder")
        if not resume:
            raise OutputError(f"{folder} already holds this comparison: resume it, or choose another folder")
        return
    if folder.exists() and any(folder.iterdir()):
        raise OutputError(f"{folder} is not empty and holds no comparison; choose another folder")
    save_json(path, mine, indent=1)


def _differences(there: Any, here: Any, at: str = "") -> Iterable[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted(there.keys() | here.keys()):
            yield from _differences(there.get(name, "absent"), here.get(name, "absent"), f"{at}.{name}" if at else name)
    elif there != here:
        yield f"{at} is {json.dumps(there)} there and {json.dumps(here)} here"
