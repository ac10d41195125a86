"""Recall by distance on SmolLM2: everything kept, a window, sinks in both position schemes, heavy hitters."""

from __future__ import annotations

from typing import Any

from benchmarks.common import write

WINDOW, SINKS, PER_DISTANCE, SEEDS = 256, 4, 16, (0, 1)
ARMS: tuple[Any, ...] = (
    ("dense", "dense", "original"),
    ("window", f"recent({WINDOW})", "slots"),
    ("4 sinks", f"recent({WINDOW - SINKS}) + sinks({SINKS})", "slots"),
    ("4 sinks", f"recent({WINDOW - SINKS}) + sinks({SINKS})", "original"),
    ("heavy hitters", f"heavy(124) + recent(128) + sinks({SINKS})", "original"),
)


def main() -> None:
    import sinkgate as sg
    from sinkgate.evaluate.recall_run import recall

    loaded = sg.load("smollm2-135m")
    run = recall(
        loaded.model, loaded.tokenizer, ARMS, window=WINDOW, per_distance=PER_DISTANCE, seeds=SEEDS, name="smollm2-135m",
        progress=lambda arm, done, of: print(arm.name, arm.positions, done, of, flush=True),
    )  # fmt: skip
    print(run)
    kind = run.kinds[0]
    columns = sorted({i for arm in run.arms for i in run.cells(arm, kind)})
    rows: dict[str, Any] = {}
    for arm in run.arms:
        cells = run.cells(arm, kind)
        rows[f"{arm.name}, {arm.positions}"] = {
            "name": arm.name, "policy": arm.policy, "positions": arm.positions, "note": arm.note,
            "right": [cells[i].right if i in cells else None for i in columns],
            "of": [cells[i].n if i in cells else None for i in columns],
            "place": [cells[i].place if i in cells else None for i in columns],
            "chance": [round(cells[i].chance, 3) if i in cells else None for i in columns],
        }  # fmt: skip
    write(
        "recall", {"window": WINDOW, "seeds": list(SEEDS), "distances": [run.column(i) for i in columns], "rows": rows}
    )


if __name__ == "__main__":
    main()
