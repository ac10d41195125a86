"""(f) Contexts longer than the trained one, with and without a gate, plain and with YaRN: ``python -m experiments.length``.

Reads what ``python -m experiments.gates text`` trained.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.comparisons import interval, keep, ran
from experiments.gates import PLANS
from sinkgate.record import student_interval


def main() -> None:
    """Write the losses at 1, 2, 4 and 8 times the trained context, by arm, and their differences from softmax."""
    record = ran("gates_text", PLANS["text"])
    arms: dict[str, Any] = {}
    base: dict[str, np.ndarray] = {}
    for arm in record.arms:
        pieces = [p for p in record.at_best(arm) if not p["diverged"]]
        found: dict[str, Any] = {"length": pieces[0]["test"]["length"]}
        for name in ("loss_by_length", "yarn_loss_by_length"):
            values = np.array([p["test"][name] for p in pieces])
            base.setdefault(name, values)
            found[name] = [interval(student_interval(column)) for column in values.T]
            if arm != record.arms[0] and values.shape == base[name].shape:
                found[f"{name}_difference"] = [interval(student_interval(c)) for c in (values - base[name]).T]
        arms[arm] = found
    keep("length", {"plan": record.meta["plan"], "arms": arms}, record)


if __name__ == "__main__":
    main()
