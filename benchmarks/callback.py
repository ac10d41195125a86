"""What watching a training costs: a reading of 4 × 256 held-out tokens over 100 steps of a small Llama."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.common import write

ROUNDS, STEPS_A_ROUND, EVERY = 7, 2, 100
SHAPE = {"layers": 6, "dim": 256, "heads": 8, "kv_heads": 4, "vocabulary": 8192, "tokens": 256, "batch": 8}
BOUND = 0.01


def main() -> None:
    rows = {"plain": arm(False), "checkpointed": arm(True)}
    for name, row in rows.items():
        print(f"{name}: a reading takes {row['reading']:.2f} s, a step {row['step']:.2f} s: {row['share']:.2%}")
    result = {"model": SHAPE, "held_out": "4 x 256", "every": EVERY, "rounds": ROUNDS, "bound": BOUND, "rows": rows}
    write("callback", result)


def arm(checkpointing: bool) -> dict[str, Any]:
    """Steps and readings in turn; the share is taken round by round, and its median is what is quoted."""
    import torch

    import sinkgate as sg

    model = network().train()
    if checkpointing:
        model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)

    def ids(rows: int) -> Any:
        return torch.randint(0, SHAPE["vocabulary"], (rows, SHAPE["tokens"]), generator=generator)

    def step() -> None:
        x = ids(SHAPE["batch"])
        model(x, labels=x, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    watch = sg.SinkWatch(model, ids(4), every=1)
    step()
    watch.step(0)  # the kernels are compiled and loaded
    readings, steps = [], []
    for i in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS_A_ROUND):
            step()
        steps.append((time.perf_counter() - start) / STEPS_A_ROUND)
        start = time.perf_counter()
        watch.step(i + 1)
        readings.append(time.perf_counter() - start)
    shares = [a / (EVERY * b) for a, b in zip(readings, steps, strict=True)]
    return {
        "step": round(statistics.median(steps), 4),
        "reading": round(statistics.median(readings), 4),
        "share": round(statistics.median(shares), 5),
        "steps_worth": round(EVERY * statistics.median(shares), 3),
        "shares": [round(s, 5) for s in shares],
    }


def network() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    return AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=SHAPE["vocabulary"], hidden_size=SHAPE["dim"], num_hidden_layers=SHAPE["layers"],
            num_attention_heads=SHAPE["heads"], num_key_value_heads=SHAPE["kv_heads"], intermediate_size=4 * SHAPE["dim"],
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
