"""Each training aid beside none of them: the same outlet on all heads, the same seed, steps and texts."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks.common import RESULTS, write
from benchmarks.train_outlet import summary

STEPS, TOKENS, SAMPLES = 40, 256, 6
ARMS: dict[str, dict[str, Any]] = {
    "none": {},
    "lr of sink heads × 3": {"multiplier": 3.0},
    "lr of sink heads × 0.3": {"multiplier": 0.3},
    "entropy + 0.02 (sharpens)": {"entropy": 0.02},
    "entropy − 0.02 (spreads)": {"entropy": -0.02},
    "context 128 → 256": {"context": 128},
}


def main() -> None:
    path = RESULTS / "aids.json"
    done = json.loads(path.read_text(encoding="utf-8"))["arms"] if path.exists() and "again" not in sys.argv else {}
    for name, settings in ARMS.items():
        if name not in done:
            done[name] = arm(settings)
            write("aids", {"steps": STEPS, "tokens": TOKENS, "samples": SAMPLES, "outlet": "kv_bias", "arms": done})


def arm(settings: dict[str, Any]) -> dict[str, Any]:
    import sinkgate as sg

    found = sg.train_outlet(
        "smollm2-135m", outlet="kv_bias", heads="all", control=False, samples=SAMPLES,
        loop=sg.LoopConfig(steps=STEPS, lr=0.02, warmup=5, save_every=0),
        task=sg.OutletConfig(tokens=TOKENS, **settings),
    )  # fmt: skip
    print(found, flush=True)
    return summary(found)


if __name__ == "__main__":
    main()
