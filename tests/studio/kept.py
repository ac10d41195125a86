"""Small true records of every kind, and the ways in which somebody else's may be wrong."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report.comparisons import comparison
from sinkgate.evaluate.recall_record import RecallArm, RecallRun
from sinkgate.evaluate.recall_score import Outcome, RecallResult
from sinkgate.evaluate.stream_record import StreamArm, StreamRecord
from studio.plans import change
from studio.records import diagnosis as drawn
from studio.records import effects

KINDS = ("diagnosis", "comparison", "stream", "recall", "effects", "plan")
NAMES = {
    "diagnosis": "record.json", "comparison": "record.json", "stream": "stream.json", "recall": "recall.json", "effects": "effects.json",
    "plan": "plan.json",
}  # fmt: skip


@functools.cache
def diagnosis() -> Any:
    """A tiny model's, with every section."""
    import torch

    import sinkgate as sg
    from models import tiny, tokenizer, words

    torch.manual_seed(0)
    return sg.diagnose(tiny("llama"), tokenizer(), [words(110, seed) for seed in range(2)], tokens=96, samples=2)


def stream() -> StreamRecord:
    arms = [
        StreamArm("dense", "", "recomputed", 1, 50, [150.0, 140.0], [50, 49], None, 2.0, 0, 99, [1000, 1100], True),
        StreamArm("window", "recent(32)", "slots", 1, 50, [160.0, 300.0], [50, 49], None, 1.0, 4096, 32, [1000, 1001], True),
        StreamArm("again", "", "recomputed", 1, 50, [9.0, 12.0], [3, 4], [10, 30, 40, 60, 70, 80, 90], 1.0, 0, 0, [], False, "stopped"),
    ]  # fmt: skip
    meta = {
        "model": {"name": "tiny", "class": "LlamaForCausalLM", "parameters": 1000}, "tokens": 100, "text": "a text", "every": 50,
        "settings": {"window": 32, "sinks": 4}, "wanted": ["dense", "window", "again"], "notes": ["one note"],
    }  # fmt: skip
    return StreamRecord(meta, arms)


def recall() -> RecallRun:
    outcomes = tuple(Outcome("stream", 20 * k, 20 * k + 9, k < 3, -0.1 * k, 0.1, 0.01, False) for k in range(1, 6))
    meta = {
        "model": {"name": "tiny"}, "edges": [40, 80], "distances": [20, 60, 100], "texts": [{"tokens": 200, "questions": 5}],
        "tasks": ["stream"], "seeds": [0],
    }  # fmt: skip
    return RecallRun(
        meta,
        [
            RecallArm("window", "recent(64)", "slots", RecallResult(outcomes, 64), 1.0, 200, True),
            RecallArm("dense", "", "slots", RecallResult(outcomes), 1.0, 200, True),
        ],
    )


def keep(kind: str, folder: Path) -> Path:
    """Write one, and return its JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "diagnosis":
        return Path(diagnosis().save(folder)) / "record.json"
    made: Any = {
        "comparison": lambda: comparison(2, 2, (1e-3,), steps=20), "stream": stream, "recall": recall, "effects": lambda: effects(drawn()), "plan": change,
    }[kind]()  # fmt: skip
    return Path(made.save(folder / NAMES[kind]))


# what may stand where something else should
WRONG: dict[str, Any] = {
    "null": None, "true": True, "minus one": -1, "zero": 0, "huge": 10**18, "huge float": 1e308, "text": "x", "empty text": "",
    "a list": [], "nested": [[[{"a": [None]}]]], "an object": {}, "texts": ["x"], "numbers": [1, 2.5],
}  # fmt: skip


def mutations(data: Any, most: int = 400, seed: int = 0) -> Iterator[tuple[str, str]]:
    """(what was done, JSON) of `data` with one field gone or wrong: every field near the top, some of those below."""
    text = json.dumps(data)
    every = [(path, what) for path in _paths(data) for what in ("gone", *WRONG)]
    random.Random(seed).shuffle(every)
    every.sort(key=lambda each: len(each[0]) > 2)
    for path, what in every[:most]:
        changed = json.loads(text)
        at = changed
        for step in path[:-1]:
            at = at[step]
        if what == "gone":
            del at[path[-1]]
        else:
            at[path[-1]] = WRONG[what]
        yield f"{'.'.join(map(str, path))}: {what}", json.dumps(changed)


def _paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key in value:
            yield (*here, key)
            yield from _paths(value[key], (*here, key))
    elif isinstance(value, list) and value:
        for i in sorted({0, len(value) - 1}):
            yield (*here, i)
            yield from _paths(value[i], (*here, i))
