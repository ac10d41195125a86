"""Records of comparisons made by hand: every number is a formula of arm, rate and seed; nothing is trained."""

from __future__ import annotations

import math
from typing import Any

from sinkgate.lab.comparison_record import Comparison

ENVIRONMENT = {
    "cpu": "a processor", "cores": 2, "threads": 1, "device": "cpu", "python": "3.11", "torch": "2.13.0", "sinkgate": "0.1.0",
    "code": "0123456789ab",
}  # fmt: skip
SHOWN = ["first_mass", "sink_rate", "max_activation", "kurtosis", "own_metric"]


def loss(arm: int, rate: int, seed: int) -> float:
    """Of a finished piece; arm 1 is better by 0.2, arm 2 not to be told from arm 0."""
    return 3 + (-0.2, 0.01, 0.3)[(arm - 1) % 3] * (arm > 0) + 0.05 * rate + 0.02 * math.sin(7 * seed + arm * (arm != 1))


def piece(arm: int, name: str, rate: int, lr: float, seed: int, **options: Any) -> dict[str, Any]:
    """One record, as :func:`sinkgate.lab.pieces.run_piece` gives it."""
    steps, spikes, lost = options["steps"], options["spikes"], options["lost"](arm, rate, seed)
    ended = options["ended"](arm, seed) or steps
    curve: list[dict[str, Any]] = []
    for step in range(min(ended, steps // 2 if lost else steps)):
        wave = 0.05 * math.sin(step + seed)
        line = {"step": step, "loss": 3 + 5 * math.exp(-step / 20) + wave + 0.1 * arm, "lr": lr, "grad_norm": 1 + wave}
        if step in spikes:
            line |= {"loss": 20.0 + arm, "spike": True}
        if (step + 1) % max(1, steps // 20) == 0:
            line |= {
                "held_out": 3 + 5 * math.exp(-step / 20) + 0.1 * arm + 0.01 * seed, "first_mass": 0.5 * step / steps / (1 + arm),
                "first_null": 0.05, "sink_rate": 0.25 * (arm == 0), "max_activation": 10.0 ** (3 * step / steps) * (1 + seed),
                "kurtosis": 3.0 + arm, "gate_mean": 0.4 if arm % 2 else None, "mass": 1 - 0.1 * (arm % 3),
            }  # fmt: skip
        curve.append(line)
    if lost:
        curve[-1]["loss"] = None
    test = {
        "loss": loss(arm, rate, seed), "first_mass": 0.5 / (1 + arm) + 0.01 * seed, "first_null": 0.05, "sink_rate": 0.25 * (arm == 0),
        "max_activation": 1000.0 * (1 + seed), "kurtosis": 3.0 + arm, "gate_mean": 0.4 if arm % 2 else None, "own_metric": -1.5 * arm,
        "mass": 1 - 0.1 * (arm % 3), "nothing": None, "first_mass_by_layer": [0.1, 0.2 + 0.01 * seed, None],
        "first_mass_by_head": [[0.1, 0.2]], "loss_by_position": [4 - 0.01 * k + seed for k in range(200)], "length": [64.0, 128.0],
        "loss_by_length": [3.0 + arm, 4.0 + arm], "yarn_loss_by_length": [3.0 + arm, 3.2 + arm], "recall_depth": [0.1, 0.9],
        "recall_by_depth": [0.5, 0.25 * (seed % 2)], "recall_chance": 0.125,
    }  # fmt: skip
    return {
        "format": "sinkgate.piece", "version": 1, "arm": name,
        "piece": {"task": {"name": "text"}, "arm": {"weighting": {"name": name}}, "lr": lr, "seed": seed, "steps": steps},
        "loop": {"steps": steps, "lr": lr, "betas": [0.9, 0.95], "clip": None, "seed": seed}, "parameters": 1000 + arm,
        "steps": len(curve), "ended_early": ended < steps, "diverged": {"step": len(curve) - 1, "why": "loss is NaN"} if lost else None,
        "select": {} if lost else {**test, "loss": test["loss"] + 0.5}, "test": {} if lost else test, "curve": curve,
        "spikes": [s for s in spikes if s < len(curve)],
        "cost": {"seconds_per_step": 0.01 * (1 + arm), "timed_steps": 10, "attempts": 1,
                 "bytes": {"parameters": 4096, "optimizer": 8192, "activations": 3 << 20}},
        "environment": dict(ENVIRONMENT),
    }  # fmt: skip


def comparison(
    arms: int | list[str] = 3, seeds: int = 3, rates: tuple[float, ...] = (1e-3, 3e-3), *, steps: int = 60, sweep: int = 1,
    cost: bool = True, lost: Any = lambda arm, rate, seed: False, ended: Any = lambda arm, seed: None, spikes: tuple[int, ...] = (),
) -> Comparison:  # fmt: skip
    """A record of so many arms, seeds and rates; the lowest rate is the best one."""
    names = [f"arm {i}" for i in range(arms)] if isinstance(arms, int) else arms
    options = {"steps": steps, "spikes": spikes, "lost": lost, "ended": ended}
    pieces = [
        piece(i, name, k, lr, seed, **options)
        for i, name in enumerate(names)
        for k, lr in enumerate(rates)
        for seed in range(sweep if k else seeds)
    ]
    meta = {
        "plan": {"task": {"name": "text", "context": 256, "texts": []}, "arms": [{"weighting": {"name": n}} for n in names],
                 "seeds": list(range(seeds)), "lrs": list(rates), "steps": steps, "sweep": sweep},
        "environment": dict(ENVIRONMENT), "headline": "loss", "higher": False, "shown": list(SHOWN), "arms": names,
        "best_lr": dict.fromkeys(names, rates[0]),
        "cost": {n: {"seconds_per_step": 0.01 * (1 + i), "ratio": 1.0 + i, "rounds": 5} for i, n in enumerate(names)} if cost else {},
    }  # fmt: skip
    return Comparison(meta, pieces)
