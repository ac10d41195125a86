"""A cache in 8 and 4 bits, with the sinks kept as they are or not: with the same tokens, and with the same bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import write
from benchmarks.stream_steps import text_ids

TOKENS, WINDOW, SINKS, GROUP = 3_000, 256, 4, 32


def main() -> None:
    import sinkgate as sg
    from sinkgate.evaluate.stream import follow
    from sinkgate.evaluate.stream_record import StreamArm
    from sinkgate.record import student_interval

    loaded = sg.load("smollm2-135m")
    ids = text_ids(loaded.tokenizer, TOKENS + 1)
    base = f"recent({WINDOW - SINKS}) + sinks({SINKS})"
    arms: dict[str, str] = {"32 bits": base}
    budget = allocated(loaded.model, base)
    for bits in (8, 4):
        for keep in (True, False):
            name = f"{bits} bits, sinks {'kept' if keep else 'quantised'}"
            arms[f"{name}, same tokens"] = quantized(WINDOW - SINKS, bits, keep)
            arms[f"{name}, same bytes"] = quantized(fitting(loaded.model, budget, bits, keep), bits, keep)
    rows: dict[str, Any] = {}
    plain: np.ndarray | None = None
    for name, policy in arms.items():
        arm, nats = StreamArm(name, policy, "slots", GROUP, 500), list[float]()
        follow(loaded.model, ids, policy, "slots", arm, nats=nats)
        blocks = np.array(nats[WINDOW:]).reshape(-1)[: (len(nats) - WINDOW) // 250 * 250].reshape(-1, 250).mean(1)
        plain = blocks if plain is None else plain
        change = student_interval(blocks - plain)
        rows[name] = {
            "policy": policy, "cache_kib": round(arm.cache_bytes / 1024, 1), "held": arm.held,
            "perplexity": round(float(np.exp(np.mean(nats))), 3), "change": round(float(change.mean), 4),
            "low": round(float(change.low), 4), "high": round(float(change.high), 4), "blocks": len(blocks),
        }  # fmt: skip
        print(name, rows[name], flush=True)
        write(
            "stream_quantized", {"tokens": TOKENS, "group": GROUP, "positions": "slots", "chunk": GROUP, "arms": rows}
        )


def quantized(recent: int, bits: int, keep: bool) -> str:
    return f"quantized(recent({recent}) + sinks({SINKS}), bits={bits}, keep_sinks={str(keep).lower()}, group={GROUP})"


def allocated(model: Any, policy: str) -> int:
    """Bytes of a cache once its sinks are in it."""
    import torch

    import sinkgate as sg

    with sg.streaming(model, policy) as cache, torch.no_grad():
        model(torch.tensor([[5] * (SINKS + 2)]), cache=cache)
        model(torch.tensor([[5]]), cache=cache)
        return cache.nbytes()


def fitting(model: Any, budget: int, bits: int, keep: bool) -> int:
    """The most recent tokens, in whole groups, that fit into the bytes."""
    recent = WINDOW - SINKS
    while allocated(model, quantized(recent + GROUP, bits, keep)) <= budget:
        recent += GROUP
    return recent


if __name__ == "__main__":
    main()
