"""What a step of each arm costs, measured in turns so that a noisy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from sinkgate.lab.arms import Arm
from sinkgate.lab.loop import train
from sinkgate.lab.pieces import multipliers
from sinkgate.lab.tasks.base import Specification

__all__ = ["TIMED", "cost_per_step"]

STEPS = 4  # in a round
TIMED = STEPS + 1  # with the one before the first mark


def cost_per_step(
    task: Specification, arms: Sequence[Arm], seed: int, *, rounds: int = 5, device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Seconds per step of every arm, and its ratio to the first arm's, the median of paired rounds after one to warm up.

    Whole steps of the real loop: data, forward, backward, update; without evaluations and files.
    """
    experiments, rates = {}, {}
    for arm in arms:
        experiments[str(arm)] = task.make(arm, seed)
        rates[str(arm)] = multipliers(task, arm, experiments[str(arm)], seed)
        experiments[str(arm)].model.to(device)
    config = task.loop(TIMED, None, seed)
    quiet = type(config).from_json({**config.to_json(), "evaluate_every": 0, "save_every": 0})
    seconds: dict[str, list[float]] = {name: [] for name in experiments}
    for turn in range(rounds + 1):
        for name, experiment in experiments.items():
            marks: list[float] = []
            note = lambda _line, marks=marks: marks.append(_now(device))  # noqa: E731
            train(experiment, quiet, multipliers=rates[name], progress=note)
            if turn:
                seconds[name].append((marks[-1] - marks[0]) / STEPS)
    first = seconds[str(arms[0])]
    return {
        name: {
            "seconds_per_step": statistics.median(times),
            "ratio": statistics.median(a / b for a, b in zip(times, first, strict=True)),
            "rounds": len(times),
        }
        for name, times in seconds.items()
    }


def _now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()
