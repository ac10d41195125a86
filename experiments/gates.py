"""(c) Gates, sinks and weightings side by side: on Bigram-backcopy, and five of them on text: ``python -m experiments.gates``."""

from __future__ import annotations

import sys

from experiments.comparisons import interval, keep, of_arms, ran
from experiments.recipes import SINKING
from sinkgate.lab.arms import split_arms
from sinkgate.lab.comparison import Plan
from sinkgate.lab.tasks import as_task

ARMS = (
    "softmax, softmax+wider(g1), softmax+g1, softmax+g1_head, softmax+g2, softmax+g1_constant, sink_softmax, softmax1, sigmoid, "
    "softpick, softmax+head_norm"
)
ON_TEXT = "softmax, softmax+g1, softmax+g1_head, sink_softmax, softpick"

PLANS = {
    "backcopy": Plan(as_task("backcopy"), tuple(split_arms(ARMS)), (0, 1, 2), (3e-3, 1e-2, 3e-2), 2000),
    "text": Plan(
        as_task("text", **SINKING, lengths=(1, 2, 4, 8), yarn=True, held_out=256),
        tuple(split_arms(ON_TEXT)), (0, 1, 2), (2.5e-3, 5e-3), 2500,
    ),
    # for a card: not run here
    "gpu": Plan(as_task("text", preset="large", tokenizer="bpe:32768"), tuple(split_arms(ARMS)), (0, 1, 2), (2e-4, 4e-4, 8e-4)),
}  # fmt: skip
NUMBERS = (
    "loss", "first_mass", "first_null", "first_share", "sink_rate", "strongest_head", "mass", "max_activation", "kurtosis",
    "gate_mean", "gate_closed", "dead_heads", "entropy",
)  # fmt: skip
BACKCOPY = ("excess_loss", "bigram_loss", "backcopy_loss", "dormant_mass", "active_mass", "back_mass", *NUMBERS)


def main(which: str = "backcopy") -> None:
    """Run one of the plans and write its result."""
    record = ran(f"gates_{which}", PLANS[which])
    names = BACKCOPY if which == "backcopy" else (*NUMBERS, "recall", "recall_chance")
    base, headline = record.arms[0], record.meta["headline"]
    smallest = {}
    for arm in record.arms[1:]:
        found = interval(record.difference(arm))
        smallest[arm] = (found["high"] - found["low"]) / 2
    keep(
        f"gates_{which}",
        {"plan": record.meta["plan"], "baseline": base, "headline": headline, "arms": of_arms(record, names),
         "smallest_difference": smallest, "sentences": record.sentences(),
         "sweep": {arm: {f"{lr:g}": x for lr, x in record.sweep(arm).items()} for arm in record.arms}},
        record,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:2])
