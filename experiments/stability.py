"""(d) Which arms still train at high learning rates: ``python -m experiments.stability``."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.comparisons import keep, ran
from sinkgate.lab.arms import split_arms
from sinkgate.lab.comparison import Plan
from sinkgate.lab.tasks import as_task

ARMS = "softmax, softmax+g1, softmax+g1_head, sink_softmax, softpick, softmax+qk_norm"
RATES = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# no clipping: it would hide what is asked for
PLAN = Plan(
    as_task("backcopy"),
    tuple(split_arms(ARMS)),
    (0, 1, 2),
    RATES,
    800,
    3,
    {"clip": None, "weight_decay": 0.0, "evaluate_every": 400},
)


def main() -> None:
    """Run it and write the result: by arm and rate, how many of the seeds diverged, and the loss of the others."""
    record = ran("stability", PLAN, cost_rounds=0)
    arms: dict[str, Any] = {}
    for arm in record.arms:
        rates = {}
        for lr in RATES:
            pieces = [p for seed in PLAN.seeds if (p := record.piece(arm, lr, seed))]
            losses = [p["test"]["excess_loss"] for p in pieces if not p["diverged"]]
            rates[f"{lr:g}"] = {
                "diverged": sum(bool(p["diverged"]) for p in pieces), "of": len(pieces),
                "spikes": float(np.mean([len(p["spikes"]) for p in pieces])),
                "excess_loss": float(np.median(losses)) if losses else None,
                "max_activation": float(np.median([p["test"]["max_activation"] for p in pieces if not p["diverged"]])) if losses else None,
                "grad_norm": float(np.median([max(x["grad_norm"] or 0 for x in p["curve"]) for p in pieces])),
            }  # fmt: skip
        arms[arm] = rates
    keep("stability", {"plan": PLAN.to_json(), "arms": arms, "sentences": record.sentences()}, record)


if __name__ == "__main__":
    main()
