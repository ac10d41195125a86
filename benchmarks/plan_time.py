"""How long a whole plan takes on this machine: default effort, the model's own context, arms and recall included.

Each model in a process of its own, with a cache that holds nothing but the converted model and the compiled kernels. Where the
time goes is told by the plan's own progress. The passes that calibrate (each layer forgetting alone, the model as it is on every
text) are the same whatever is asked and are kept, so a second plan of the model does without them: their seconds are told apart.
``SINKGATE_PLAN_MODELS`` names the models, as in :mod:`benchmarks.plan`; the machine should be quiet.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, environment, in_process, write

MODELS = ("smollm2-135m", "gemma3-270m")
ALLOWED = 0.01
STAGES = {
    "diagnosis": "diagnosis", "one layer forgets": "each layer alone", "time of a step": "time of a step", "trial": "search",
    "verifying": "verification", "beside the model": "beside the model as it is", "beside": "beside recent + sinks(4)",
    "fewer bits": "fewer bits", "recall": "recall",
}  # fmt: skip
TOLD_FIRST = ("diagnosis", "time of a step", "beside the model as it is", "beside recent + sinks(4)")


def one(name: str) -> dict[str, Any]:
    """In this process, with the cache that the environment names."""
    import sinkgate as sg
    from sinkgate.hf.fetch import cache_dir

    seconds: dict[str, float] = {}
    start = last = time.perf_counter()
    under_way = "loading"  # a stage that told its beginning

    def say(what: str, done: int, of: int) -> None:
        nonlocal last, under_way
        stage = next((words for begin, words in STAGES.items() if what.startswith(begin)), "the rest")
        now = time.perf_counter()
        seconds[under_way or stage] = seconds.get(under_way or stage, 0.0) + now - last
        last, under_way = now, stage if stage in TOLD_FIRST and done < of else ""

    plan = sg.plan(name, max_increase=ALLOWED, progress=say)
    whole = time.perf_counter() - start
    untouched = 0.0
    for path in (cache_dir() / "plans").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            key, value = json.loads(line)
            untouched += value["seconds"] if key.startswith("loss|dense @") else 0.0
    return {
        "seconds": whole, "stages": seconds, "untouched": untouched,
        "calibration": untouched + seconds.get("each layer alone", 0.0),
        "answer": plan.answer, "setting": plan.setting.to_json(),
        "trials": sum(bool(t.nats) for t in plan.trials), "verified": len(plan.measured.get("nats", [])),
        "environment": environment(),
    }  # fmt: skip


def main() -> None:
    path = RESULTS / "plan_time.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"models": {}}
    found.pop("environment", None)
    ours = Path(os.environ.get("SINKGATE_CACHE", Path.home() / ".cache" / "sinkgate"))
    for name in os.environ.get("SINKGATE_PLAN_MODELS", ",".join(MODELS)).split(","):
        with tempfile.TemporaryDirectory() as cache:
            for part in ours.iterdir():
                if part.name not in ("plans", "benchmarks"):
                    (Path(cache) / part.name).symlink_to(part)
            before = os.environ.get("SINKGATE_CACHE")
            os.environ["SINKGATE_CACHE"] = cache
            try:
                found["models"][name] = in_process("benchmarks.plan_time", name)
            finally:
                os.environ.pop("SINKGATE_CACHE") if before is None else os.environ.update(SINKGATE_CACHE=before)
        print(name, json.dumps(found["models"][name])[:300], flush=True)
        write("plan_time", {"allowed": ALLOWED, "asked_seconds": 900, **found})


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1])))
