"""One arm, seed and task of an experiment: trained once, its record kept outside the repository, not trained again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import environment
from platformdirs import user_cache_dir

from sinkgate.errors import NonFiniteError
from sinkgate.files import save_json
from sinkgate.lab.arms import Arm
from sinkgate.lab.loop import train
from sinkgate.lab.tasks.base import Specification

RESULTS = Path(__file__).parent / "results"
PLACE = Path(user_cache_dir("sinkgate")) / "experiments"


def described(task: Specification, arm: Arm, seed: int, steps: int | None, lr: float | None = None) -> dict[str, Any]:
    """All that decides what a piece gives, but for the code; as it will come back from JSON."""
    loop = task.loop(steps, lr, seed).to_json()
    return json.loads(json.dumps({"task": task.to_json(), "arm": arm.to_json(), "seed": seed, "loop": loop}))


def kept(run: dict[str, Any], place: Path) -> tuple[Path, dict[str, Any] | None]:
    """Where a piece lives, and its record if it has one."""
    folder = place / hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / "piece.json"
    if not path.exists():
        return folder, None
    record = json.loads(path.read_text(encoding="utf-8"))
    return folder, record if record["run"] == run else None


def piece(
    task: Specification, arm: Arm, seed: int, place: Path, *, steps: int | None = None, lr: float | None = None
) -> dict[str, Any]:
    """``{"run": …, "found": … or None, "failed": … or None, "commit": …}``, kept or made now.

    A training that was killed goes on from its checkpoint; one that diverged is a piece too, with nothing found.
    """
    run = described(task, arm, seed, steps, lr)
    folder, record = kept(run, place)
    if record is not None:
        return record
    experiment = task.make(arm, seed)
    found, failed = None, None
    try:
        train(experiment, task.loop(steps, lr, seed), folder / "training", resume=True)
        found = experiment.final("test")
    except NonFiniteError as err:
        failed = str(err)
    record = {"run": run, "found": found, "failed": failed, "commit": environment()["commit"]}
    path = save_json(folder / "piece.json", record, indent=1)
    shutil.rmtree(folder / "training", ignore_errors=True)  # the record is safe; the checkpoints are large
    return json.loads(path.read_text(encoding="utf-8"))


def write(name: str, result: dict[str, Any], pieces: Iterable[dict[str, Any]], folder: Path = RESULTS) -> Path:
    """Keep a result beside its environment, and say which commits its pieces were trained at."""
    commits = sorted({piece["commit"] for piece in pieces})
    return save_json(folder / f"{name}.json", {"environment": environment(), "commits": commits, **result}, indent=1)
