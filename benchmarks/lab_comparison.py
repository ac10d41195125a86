"""What a comparison of three short arms costs over their three trainings alone."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import write
from sinkgate.lab.arms import as_arm
from sinkgate.lab.comparison import compare
from sinkgate.lab.loop import train
from sinkgate.lab.tasks import as_task


def comparison(folder: Path, rounds: int = 5) -> dict[str, Any]:
    """Seconds of a comparison of three arms over the seconds of their three trainings alone."""
    settings: dict[str, Any] = {"preset": "tiny", "tokenizer": "bpe:2048"}
    spec, arms, steps = as_task("text", **settings), ("softmax", "softmax+g1_head", "softpick"), 300
    spec.corpus()  # type: ignore[attr-defined]
    ratios = []
    for turn in range(rounds):
        start = time.perf_counter()
        for arm in arms:
            experiment = spec.make(as_arm(arm), 0)
            train(experiment, spec.loop(steps, None, 0))
            experiment.final("select")
            experiment.final("test")
        alone = time.perf_counter() - start
        start = time.perf_counter()
        compare(spec, arms, seeds=1, steps=steps, out=folder / f"comparison{turn}")
        ratios.append((time.perf_counter() - start) / alone)
    return {
        "arms": len(arms),
        "steps": steps,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(x, 3) for x in ratios],
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write("lab_comparison", comparison(Path(name)))


if __name__ == "__main__":
    main()
