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


def comparison(folder: Path, rounds: int = 6) -> dict[str, Any]:
    """Seconds of a comparison of three arms over the seconds of their three trainings alone.

    Which of the two goes first alternates from round to round: a side takes half a minute, and the machine drifts in that time.
    """
    settings: dict[str, Any] = {"preset": "tiny", "tokenizer": "bpe:2048"}
    spec, arms, steps = as_task("text", **settings), ("softmax", "softmax+g1_head", "softpick"), 100
    spec.corpus()  # type: ignore[attr-defined]

    def alone(_: int) -> None:
        for arm in arms:
            experiment = spec.make(as_arm(arm), 0)
            train(experiment, spec.loop(steps, None, 0))
            experiment.final("select")
            experiment.final("test")

    def compared(turn: int) -> None:
        compare(spec, arms, seeds=1, steps=steps, out=folder / f"comparison{turn}")

    ratios = []
    for turn in range(rounds):
        seconds = {}
        for side in (alone, compared) if turn % 2 else (compared, alone):
            start = time.perf_counter()
            side(turn)
            seconds[side.__name__] = time.perf_counter() - start
        ratios.append(seconds["compared"] / seconds["alone"])
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
