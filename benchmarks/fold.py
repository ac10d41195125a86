"""A sink folded into parameters: its loss beside eviction, kept tokens and the untouched model; SmolLM2 and Gemma 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import write

ARMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("smollm2-135m", {}),
    ("smollm2-135m", {"distance": 256}),
    ("gemma3-270m", {}),
)


def main() -> None:
    import sinkgate as sg

    arms = []
    for name, settings in ARMS:
        loaded = sg.load(name)
        _, found = sg.fold_sink(loaded.model, loaded.tokenizer, samples=6, **settings)
        print(found, flush=True)
        rows = {}
        for way, losses in found.rows.items():
            change = found.change(way)
            rows[way] = {
                "perplexity": round(float(np.exp(np.mean(losses))), 2), "change": round(float(change.mean), 4),
                "low": round(float(change.low), 4), "high": round(float(change.high), 4),
            }  # fmt: skip
        arms.append({"model": name, "distance": found.distance, "tokens": found.tokens, "parameters": found.parameters,
                     "settings": found.settings, "rows": rows})  # fmt: skip
        write("fold", {"arms": arms})


if __name__ == "__main__":
    main()
