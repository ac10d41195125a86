"""What the experiments that are comparisons share: run or go on, and what is kept of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.common import environment

from experiments.pieces import PLACE, RESULTS
from sinkgate.files import save_json
from sinkgate.lab.comparison import Plan, run_plan
from sinkgate.lab.comparison_record import Comparison
from sinkgate.record import Interval

__all__ = ["interval", "keep", "of_arms", "ran"]


def ran(name: str, plan: Plan, *, cost_rounds: int | None = None) -> Comparison:
    """The comparison, from the cache folder as far as it is there."""

    def say(piece: Any, line: dict[str, Any]) -> None:
        if line["step"] + 1 == piece.loop.steps:
            print(f"{name}: {piece.arm}, lr {piece.lr:g}, seed {piece.seed}: loss {line['loss']}", flush=True)

    return run_plan(plan, PLACE / name, resume=True, cost_rounds=cost_rounds, progress=[say])


def interval(found: Interval) -> dict[str, Any]:
    """A mean with its interval, for JSON."""
    return {"mean": float(found.mean), "low": float(found.low), "high": float(found.high), "n": found.samples}


def of_arms(record: Comparison, names: Sequence[str]) -> dict[str, Any]:
    """By arm: its rate, each number with its interval over seeds, and its difference from the baseline."""
    found = {}
    for arm in record.arms:
        pieces = record.at_best(arm)
        found[arm] = {
            "lr": record.meta["best_lr"][arm],
            "parameters": pieces[0]["parameters"],
            "diverged": sorted({p["piece"]["lr"] for p in record.diverged(arm)}),
            "spikes": sum(len(p["spikes"]) for p in pieces),
            "cost": record.meta["cost"].get(arm, {}).get("ratio"),
            "told": None if arm == record.arms[0] else record.told_apart(arm),
            "numbers": {name: interval(record.interval(arm, name)) for name in names},
            "differences": {} if arm == record.arms[0] else {name: interval(record.difference(arm, name)) for name in names},
        }  # fmt: skip
    return found


def keep(name: str, result: dict[str, Any], record: Comparison | None = None) -> None:
    """Write the result, with where it ran and the code that its pieces were trained by."""
    codes = [] if record is None else sorted({p["environment"]["code"] for p in record.pieces})
    save_json(RESULTS / f"{name}.json", {"environment": environment(), "trained_by": codes, **result}, indent=1)
    print(f"wrote {name}.json")
