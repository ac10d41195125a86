"""What swaps and gates cost on SmolLM2's shapes, in training and in decoding: ratios to the ungated stack, paired.

Alternates small units (one layer stack's step) so that a machine that slows down slows both sides.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import paired, write

TRAIN_TOKENS, PROMPT, DECODED, ROUNDS = 512, 256, 24, 9
LAYERS = 10  # of the 30, in training: the same shapes in a third of the time


def main() -> None:
    import sinkgate as sg

    whole = sg.load("smollm2-135m").model
    ids = torch.randint(0, 49152, (1, TRAIN_TOKENS), generator=torch.Generator().manual_seed(0))
    decode = decoding(variants_of(whole), ids[:, :PROMPT])
    whole.model.layers = whole.model.layers[:LAYERS]
    whole.config.num_hidden_layers = LAYERS
    train = paired({n: training(m, ids) for n, m in variants_of(whole).items()}, rounds=ROUNDS, base="sdpa")
    d, layer = 576, 576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536
    write("outlets", {
        "layers": LAYERS, "train_tokens": TRAIN_TOKENS, "prompt": PROMPT, "rounds": ROUNDS,
        "share_of_a_layer_s_multiplications": {"G1 per head": round(d * 9 / layer, 4), "G1 elementwise": round(d * d / layer, 4)},
        "training": train, "decoding": decode,
    })  # fmt: skip


def variants_of(model: Any) -> dict[str, Any]:
    """The model, and copies with gates and a swap."""
    import sinkgate as sg

    found = {"sdpa": model}
    for name, elementwise in (("G1 per head", False), ("G1 elementwise", True)):
        found[name] = copy.deepcopy(model)
        sg.add_outlet(found[name], sg.Gate("G1", elementwise=elementwise, preserve=2.0))
    found["swapped softmax"] = copy.deepcopy(model)
    sg.set_weighting(found["swapped softmax"], "softmax")
    return found


def training(model: Any, ids: torch.Tensor) -> Callable[[], Any]:
    """One forward and backward pass of everything."""

    def step() -> None:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()

    return step


@torch.no_grad()
def decoding(variants: dict[str, Any], prompt: torch.Tensor) -> dict[str, Any]:
    """Token by token; the variants take turns at every token."""
    import statistics

    caches = {n: m(prompt, use_cache=True).past_key_values for n, m in variants.items()}
    token = prompt[:, :1]
    ratios: dict[str, list[float]] = {n: [] for n in variants}
    seconds: dict[str, list[float]] = {n: [] for n in variants}
    for i in range(DECODED * ROUNDS):
        times = {}
        names = list(variants)
        for n in names[i % len(names) :] + names[: i % len(names)]:
            start = time.perf_counter()
            variants[n](token, cache=caches[n], use_cache=True)
            times[n] = time.perf_counter() - start
        for n in variants if i >= DECODED else ():
            ratios[n].append(times[n] / times["sdpa"])
            seconds[n].append(times[n])
    return {
        n: {"seconds": round(statistics.median(seconds[n]), 5), "ratio": round(statistics.median(ratios[n]), 3)}
        for n in variants
    }


if __name__ == "__main__":
    main()
