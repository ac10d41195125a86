"""(h) Over all arms, rates and seeds: does the sink rate go with recall, speed, gradient variance or the cost of eight bits?
``python -m experiments.correlations``. Reads what ``python -m experiments.gates`` trained.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from scipy import stats

import sinkgate as sg
from experiments.comparisons import keep, ran
from experiments.gates import PLANS
from experiments.quantization import SCHEMES
from experiments.trained import load
from sinkgate.lab.comparison_record import Comparison

RESAMPLED = 2000
EIGHT = "W8A8, per tensor"
# In circulation without a source that could be checked; set beside ours, never as facts.
UNVERIFIED = {"recall": -0.62, "speed": 0.45, "stability": 0.71, "quantization": -0.68}


@torch.no_grad()
def rows(name: str, record: Comparison) -> list[dict[str, Any]]:
    """One per piece that did not diverge, at every rate."""
    found = []
    for piece in record.pieces:
        if piece["diverged"]:
            continue
        experiment = load(name, piece)
        plain = experiment.final("test")
        with sg.quantized(experiment.model, **SCHEMES[EIGHT]):
            eight = experiment.final("test")["loss"] - plain["loss"]
        norms = [line["grad_norm"] for line in piece["curve"] if line["grad_norm"] is not None]
        late = np.array(norms[len(norms) // 2 :])
        cost = record.meta["cost"].get(piece["arm"], {}).get("seconds_per_step")
        found.append({
            "arm": piece["arm"], "lr": piece["piece"]["lr"], "seed": piece["piece"]["seed"], "first_mass": plain["first_mass"],
            "sink_rate": plain["sink_rate"], "recall": plain.get("recall"), "recall_loss": plain.get("recall_loss", plain.get("backcopy_loss")),
            "tokens_per_second": None if cost is None else 1 / cost, "gradient_variance": float(late.var() / late.mean() ** 2),
            "eight_bits": eight,
        })  # fmt: skip
    return found


def rank(table: list[dict[str, Any]], x: str, y: str, seed: int = 0) -> dict[str, Any]:
    """Spearman's ρ, with an interval from resampling arms (pieces of one arm are no independent samples)."""
    there = [r for r in table if r[x] is not None and r[y] is not None and np.isfinite([r[x], r[y]]).all()]
    if len(there) < 4 or len({r[x] for r in there}) < 2 or len({r[y] for r in there}) < 2:
        return {"rho": None, "low": None, "high": None, "n": len(there), "arms": len({r["arm"] for r in there})}
    by_arm: dict[str, list[dict[str, Any]]] = {}
    for r in there:
        by_arm.setdefault(r["arm"], []).append(r)
    rho = lambda of: float(stats.spearmanr([r[x] for r in of], [r[y] for r in of]).statistic)  # noqa: E731
    maker, names, drawn = np.random.default_rng(seed), list(by_arm), []
    for _ in range(RESAMPLED):
        of = [r for i in maker.integers(0, len(names), len(names)) for r in by_arm[names[i]]]
        if len({r[x] for r in of}) > 1 and len({r[y] for r in of}) > 1:
            drawn.append(rho(of))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {"rho": rho(there), "low": float(low), "high": float(high), "n": len(there), "arms": len(by_arm)}


def main(*which: str) -> None:
    """Write the correlations on each task that was trained."""
    result: dict[str, Any] = {"unverified": UNVERIFIED, "resampled": RESAMPLED}
    for name in which or ("backcopy", "text"):
        record = ran(f"gates_{name}", PLANS[name])
        table = rows(f"gates_{name}", record)
        result[name] = {
            "rows": table,
            "against": {x: {y: rank(table, x, y) for y in ("recall", "recall_loss", "tokens_per_second", "gradient_variance", "eight_bits")}
                        for x in ("sink_rate", "first_mass")},
        }  # fmt: skip
    keep("correlations", result, record)


if __name__ == "__main__":
    main(*sys.argv[1:])
