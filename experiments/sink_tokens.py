"""(e) StreamingLLM's rows: trained plainly, with a zero sink, with a learnable sink token; then read with a window and
the first 0, 1, 2 or 4 tokens kept: ``python -m experiments.sink_tokens``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.comparisons import interval, keep, ran
from experiments.recipes import SINKING
from experiments.trained import load, losses
from sinkgate.lab.arms import split_arms
from sinkgate.lab.comparison import Plan
from sinkgate.lab.tasks import as_task
from sinkgate.record import student_interval

ARMS = "softmax, softmax1, softmax+sink_token"
WINDOW = 16
KEPT = (0, 1, 2, 4)
TASK = as_task("text", **SINKING, bos=False, held_out=256)
PLAN = Plan(TASK, tuple(split_arms(ARMS)), (0, 1, 2), (5e-3,), 2500)


def main() -> None:
    """Run it and write the perplexity behind the window, by arm and tokens kept."""
    record = ran("sink_tokens", PLAN, cost_rounds=0)
    arms: dict[str, Any] = {}
    for arm in record.arms:
        rows: dict[str, list[float]] = {}
        for piece in record.at_best(arm):
            experiment = load("sink_tokens", piece)
            for kept in (None, *KEPT):
                # the sink token itself stands in the cache like any kept token: "1" is that token alone
                loss = losses(experiment, "test", window=None if kept is None else WINDOW, kept=kept or 0)
                rows.setdefault("whole" if kept is None else str(kept), []).append(float(loss[:, 2 * WINDOW :].mean()))
        arms[arm] = {name: interval(student_interval(np.array(values))) for name, values in rows.items()}
    keep("sink_tokens", {"plan": PLAN.to_json(), "window": WINDOW, "kept": list(KEPT), "loss": arms,
                         "first_mass": {a: interval(record.interval(a, "first_mass")) for a in record.arms}}, record)  # fmt: skip


if __name__ == "__main__":
    main()
