"""(b) When a sink emerges, and what learning rate and weight decay do to it (Gu et al., ICLR 2025): on Bigram-backcopy,
and the recipes tried on natural text: ``python -m experiments.emergence [backcopy | text]``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from experiments.comparisons import interval, keep, ran
from experiments.recipes import SINKING
from sinkgate.lab.arms import as_arm
from sinkgate.lab.comparison import Plan
from sinkgate.lab.comparison_record import Comparison
from sinkgate.lab.tasks import as_task
from sinkgate.record import student_interval

SOFTMAX = (as_arm("softmax"),)
STEPS = 2000
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
DECAYS = (0.0, 0.1, 0.5, 2.0, 5.0)
# what was tried on natural text; Gu et al. trained on billions of tokens
TEXT: dict[str, Plan] = {
    "short": Plan(
        as_task("text", **SINKING, held_out=64),
        SOFTMAX, (0,), (5e-3,), 20_000,
    ),
    "deep": Plan(
        as_task("text", preset="tiny", layers=12, tokenizer="bpe:2048", batch=8, watched=4, held_out=32), SOFTMAX, (0,), (6e-3,), 8_000,
    ),
    "bytes": Plan(
        as_task("text", preset="tiny", tokenizer="bytes", batch=16, watched=8, held_out=64), SOFTMAX, (0,), (6e-3,), 12_000,
    ),
    # for a card: not run here
    "gpu": Plan(as_task("text", preset="base", tokenizer="bpe:32768", context=1024, weight_decay=0.5), SOFTMAX, (0,), (4e-4, 8e-4), 20_000),
}  # fmt: skip
SHOWN = ("first_mass", "sink_rate", "strongest_head", "max_activation", "kurtosis")


def backcopy() -> None:
    """The grid on Bigram-backcopy."""
    task = as_task("backcopy")
    rates = ran("emergence_rates", Plan(task, SOFTMAX, (0, 1, 2), RATES, STEPS, 3), cost_rounds=0)
    decays = {wd: ran(f"emergence_decay_{wd:g}", Plan(task, SOFTMAX, (0, 1, 2), (1e-2,), STEPS, 3, {"weight_decay": wd}), cost_rounds=0)
              for wd in DECAYS}  # fmt: skip
    found: dict[str, Any] = {
        "plan": {"task": task.to_json(), "steps": STEPS, "seeds": [0, 1, 2]},
        "lr": {},
        "weight_decay": {},
    }
    for lr in RATES:
        found["lr"][f"{lr:g}"] = _of(rates, lr)
    for wd, record in decays.items():
        found["weight_decay"][f"{wd:g}"] = _of(record, 1e-2)
    keep("emergence_backcopy", found, rates)


def _of(record: Comparison, lr: float) -> dict[str, Any]:
    pieces = [p for p in record.pieces if p["piece"]["lr"] == lr]
    there = [p for p in pieces if not p["diverged"]]
    numbers: dict[str, Any] = {"seeds": len(pieces), "diverged": len(pieces) - len(there)}
    for name in ("excess_loss", "dormant_mass", "active_mass", "first_mass", "max_activation", "kurtosis"):
        numbers[name] = interval(student_interval(np.array([p["test"][name] for p in there]))) if there else None
    numbers["curve"] = [
        {"step": line["step"] + 1, "dormant_mass": line["dormant_mass"], "backcopy_loss": line["backcopy_loss"]}
        for line in (there[0]["curve"] if there else []) if "dormant_mass" in line
    ]  # fmt: skip
    return numbers


def text(names: list[str]) -> None:
    """Each recipe's curve on natural text."""
    found: dict[str, Any] = {}
    records = {name: ran(f"emergence_text_{name}", TEXT[name], cost_rounds=0) for name in names}
    for name, record in records.items():
        piece = record.pieces[0]
        found[name] = {
            "plan": record.meta["plan"], "parameters": piece["parameters"], "steps": piece["steps"],
            "tokens": piece["steps"] * TEXT[name].task.tokens_per_step,  # type: ignore[attr-defined]
            "seconds_per_step": piece["cost"]["seconds_per_step"], "test": {n: piece["test"][n] for n in ("loss", "first_null", *SHOWN)},
            "by_layer": piece["test"]["strongest_head_by_layer"],
            "curve": [{"step": line["step"] + 1, "held_out": line["held_out"], **{n: line[n] for n in SHOWN}}
                      for line in piece["curve"] if "held_out" in line],
        }  # fmt: skip
    keep("emergence_text", {"recipes": found}, next(iter(records.values())))


if __name__ == "__main__":
    if sys.argv[1:2] != ["text"]:
        backcopy()
    if sys.argv[1:2] != ["backcopy"]:
        text(sys.argv[2:] or ["short"])
