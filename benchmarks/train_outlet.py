"""Can an outlet take over from token 0? SmolLM2, each outlet beside the same one on random other heads.

One arm at a time; a finished arm is kept at once and not run again (``python -m benchmarks.train_outlet again`` does).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, write

STEPS, TOKENS, SAMPLES = 150, 512, 8  # about twenty minutes of two cores with its control
SHORT = {"steps": 60, "tokens": 256}  # the others, to be seen beside each other
ARMS: dict[str, dict[str, Any]] = {
    "kv_bias": {"outlet": "kv_bias"},
    "sink_logit": {"outlet": "sink_logit", **SHORT},
    "gate": {"outlet": "gate", "lr": 0.005, **SHORT},
    "key_bias": {"outlet": "key_bias", **SHORT},
    "kv_bias, short": {"outlet": "kv_bias", **SHORT},
    "sink_token": {"outlet": "sink_token", **SHORT},
}


def main() -> None:
    path = RESULTS / "train_outlet.json"
    done = json.loads(path.read_text(encoding="utf-8"))["arms"] if path.exists() and "again" not in sys.argv else {}
    for name, settings in ARMS.items():
        if name not in done:
            done[name] = arm(settings)
            write("train_outlet", {"steps": STEPS, "tokens": TOKENS, "samples": SAMPLES, "arms": done})


def arm(settings: dict[str, Any]) -> dict[str, Any]:
    import sinkgate as sg

    start = time.perf_counter()
    steps, tokens = settings.get("steps", STEPS), settings.get("tokens", TOKENS)
    found = sg.train_outlet(
        "smollm2-135m", outlet=settings["outlet"], samples=SAMPLES,
        loop=sg.LoopConfig(steps=steps, lr=settings.get("lr", 0.02), warmup=5, save_every=0),
        task=sg.OutletConfig(tokens=tokens),
    )  # fmt: skip
    print(found, flush=True)
    minutes = round((time.perf_counter() - start) / 60, 1)
    return {"minutes": minutes, "steps": steps, "tokens": tokens, "lr": settings.get("lr", 0.02), **summary(found)}


def summary(found: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, m in (("before", found.before), ("after", found.after), ("control", found.control)):
        if m is not None:
            cost, change = found.cost(m), found.change(m)
            rows[name] = {
                "loss": round(float(np.mean(m.loss)), 4), "evicted": round(float(np.mean(m.evicted)), 4),
                "cost": round(float(cost.mean), 4), "cost_low": round(float(cost.low), 4), "cost_high": round(float(cost.high), 4),
                "change": round(float(change.mean), 4), "change_low": round(float(change.low), 4),
                "change_high": round(float(change.high), 4), "first_mass": round(float(np.mean(m.first_mass)), 4),
                "outlet_mass": round(float(np.mean(m.outlet_mass)), 4), "taken_over": round(found.taken_over(m), 3),
            }  # fmt: skip
    return {
        "parameters": found.meta["parameters"],
        "heads": len(found.meta["heads"] or []),
        "rows": rows,
        "verdict": found.verdict(),
    }


if __name__ == "__main__":
    main()
