"""One arm, one learning rate, one seed: a piece of a comparison that trains on its own and whose record is kept."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sinkgate.errors import ArgumentError, NonFiniteError, OutputError, RecordError
from sinkgate.files import jsonable, save_json
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import LoopConfig
from sinkgate.lab.loop import History, train
from sinkgate.lab.provenance import environment
from sinkgate.lab.tasks import from_json
from sinkgate.lab.tasks.base import Experiment, Specification
from sinkgate.lab.together import ALONE, Alone

__all__ = ["Piece", "multipliers", "run_piece", "slug"]

FORMAT, VERSION = "sinkgate.piece", 1
POINTS = 200  # of a curve, at most; the log has every step
LAST = 0.05  # the share of the steps whose mean loss is the final training loss
Progress = Callable[["Piece", dict[str, Any]], None]


@dataclass(frozen=True)
class Piece:
    """What is trained.

    Args:
        task: the task.
        arm: what attends.
        lr: peak learning rate.
        seed: of start and data.
        steps: updates; None: the task's own number.
        loop_changes: fields of :class:`~sinkgate.lab.config.LoopConfig` that differ from the task's own.
    """

    task: Specification
    arm: Arm
    lr: float
    seed: int
    steps: int | None = None
    loop_changes: dict[str, Any] = field(default_factory=dict)

    @property
    def loop(self) -> LoopConfig:
        """How it is trained."""
        config = self.task.loop(self.steps, self.lr, self.seed)
        return LoopConfig.from_json({**config.to_json(), **self.loop_changes}) if self.loop_changes else config

    @property
    def key(self) -> str:
        """Its folder's name."""
        return f"{slug(str(self.arm))}/lr{self.lr:g}/seed{self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "task": self.task.to_json(), "arm": self.arm.to_json(), "lr": self.lr, "seed": self.seed, "steps": self.steps,
        } | ({"loop_changes": self.loop_changes} if self.loop_changes else {})  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Piece:
        """The inverse of :meth:`to_json`."""
        return cls(
            from_json(data["task"]),
            Arm.from_json(data["arm"]),
            data["lr"],
            data["seed"],
            data["steps"],
            data.get("loop_changes", {}),
        )


def slug(text: str) -> str:
    """A text as a file name."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", text.replace(" + ", "+").replace("+", "_")).strip("-")


def multipliers(task: Specification, arm: Arm, experiment: Experiment, seed: int) -> dict[str, float | Tensor]:
    """``arm.outlet_lr`` by parameter, for those of the experiment that plain softmax has none of the same name of.

    Raises:
        ArgumentError: the arm adds no parameters whose rate could differ.
    """
    if arm.outlet_lr == 1:
        return {}
    plain = task.make(Arm(), seed).parameters().keys()
    added: dict[str, float | Tensor] = {n: float(arm.outlet_lr) for n in experiment.parameters() if n not in plain}
    if not added:
        raise ArgumentError(
            f"outlet_lr({arm.outlet_lr:g}) has no meaning in {str(arm)!r}: it adds no parameters to softmax"
        )
    return added


def run_piece(
    piece: Piece, folder: str | os.PathLike[str], *, device: str = "cpu", progress: Sequence[Progress] = ()
) -> dict[str, Any]:
    """Train it in ``folder``, or go on there, or give the record that is there already.

    A loss that is not finite ends the piece, which is then recorded as diverged; whatever else is raised is raised.

    Args:
        piece: what.
        folder: gets ``piece.json`` when it ends, and ``run/`` (log, checkpoint) on the way.
        device: where to train.
        progress: called with every step's line.

    Returns:
        The record: ``piece``, ``loop``, ``parameters``, ``steps``, ``diverged`` (None, or step and reason), ``select`` and
        ``test`` (what was found, empty if it diverged), ``curve``, ``spikes``, ``cost`` (the one part that is not the
        same in every run), ``environment``.

    Raises:
        RecordError: what is in the folder is of another piece.
        OutputError: the folder cannot be written.
    """
    folder = Path(folder)
    kept, attempts = begin(piece, folder)
    if kept is not None:
        return kept
    experiment = piece.task.make(piece.arm, piece.seed)
    experiment.model.to(device)
    ended = train_piece(piece, experiment, folder, progress=progress)
    return keep_record(piece, folder, experiment, ended, attempts, _memory(experiment, device), environment(device))


def begin(piece: Piece, folder: Path) -> tuple[dict[str, Any] | None, int]:
    """The record that is there already, or None and which attempt this one is.

    Raises:
        RecordError: what is in the folder is of another piece.
        OutputError: the folder cannot be written.
    """
    if (kept := _kept(folder, piece)) is not None:
        return kept, 0
    try:
        (folder / "run").mkdir(parents=True, exist_ok=True)
        with (folder / "attempts").open("a") as f:  # a worker that was lost left its line here
            f.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()))
        return None, len((folder / "attempts").read_text().splitlines())
    except OSError as err:
        raise OutputError(f"cannot write to {folder}: {err.strerror or err}; choose another --out") from err


@dataclass(frozen=True)
class Ended:
    """What a piece's training came to: log, divergence, what was found, seconds of each step."""

    history: History
    diverged: dict[str, Any] | None
    found: dict[str, Any]
    times: list[float]


def train_piece(
    piece: Piece, experiment: Experiment, folder: Path, *, progress: Sequence[Progress] = (), together: Alone = ALONE
) -> Ended:
    """Train and measure, on from what is in ``folder/run``; a loss that is not finite ends it."""
    times: list[float] = []
    last = time.perf_counter()

    def note(line: dict[str, Any]) -> None:
        nonlocal last
        times.append(time.perf_counter() - last)
        for each in progress:
            each(piece, line)
        last = time.perf_counter()

    diverged = None
    try:
        history = train(
            experiment, piece.loop, folder / "run", resume=True, progress=note, together=together,
            multipliers=multipliers(piece.task, piece.arm, experiment, piece.seed),
        )  # fmt: skip
    except NonFiniteError as err:
        history = History.load(folder / "run") if together.first else History()
        diverged = {"step": history.final_step, "why": str(err)}
    found: dict[str, Any] = {"select": {}, "test": {}}
    if diverged is None:
        try:
            found = {part: experiment.final(part) for part in found}
        except NonFiniteError as err:
            diverged = {"step": history.final_step, "why": str(err)}
    return Ended(history, diverged, found, times)


def keep_record(
    piece: Piece,
    folder: Path,
    experiment: Experiment,
    ended: Ended,
    attempts: int,
    memory: dict[str, Any],
    where: dict[str, Any],
) -> dict[str, Any]:
    """The record of :func:`run_piece`, saved."""
    history, times = ended.history, ended.times
    record = jsonable({
        "format": FORMAT, "version": VERSION, "piece": piece.to_json(), "arm": str(piece.arm), "loop": piece.loop.to_json(),
        "parameters": sum(p.numel() for p in experiment.parameters().values()),
        "steps": history.final_step + 1, "ended_early": bool(history.steps[-1].get("done", False)),
        "diverged": ended.diverged or _unlearned(history), **ended.found, "curve": curve(history), "spikes": history.spikes,
        "cost": {"seconds_per_step": statistics.median(times) if times else None, "timed_steps": len(times),
                 "attempts": attempts, "bytes": memory},
        "environment": where,
    })  # fmt: skip
    save_json(folder / "piece.json", record, indent=None)
    return record


def curve(history: History, points: int = POINTS) -> list[dict[str, Any]]:
    """The log thinned: at most so many steps, and those with an evaluation or a spike, whole."""
    every = max(1, -(-len(history.steps) // points))
    usual = {"step", "loss", "lr", "grad_norm", "tokens"}
    return [
        line
        for line in history.steps
        if line["step"] % every == 0 or line is history.steps[-1] or line.get("spike") or line.keys() - usual - {"linf"}
    ]


# ---- private -----------------------------------------------------------------------------------------------------


def _kept(folder: Path, piece: Piece) -> dict[str, Any] | None:
    path = folder / "piece.json"
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = record["format"] == FORMAT and record["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise RecordError(f"{path} is damaged ({err}); remove it, and the piece is trained again") from err
    if not same or record["piece"] != json.loads(json.dumps(piece.to_json())):
        raise RecordError(f"{path} is the record of another piece; choose another --out")
    return record


def _unlearned(history: History) -> dict[str, Any] | None:
    """A run that ends where it began, or above, has diverged too: finite, but nothing was learned or it was lost."""
    losses = [line["loss"] for line in history.steps if line["loss"] is not None]
    count = max(1, round(LAST * len(losses)))
    if len(losses) < 20 or statistics.fmean(losses[-count:]) < statistics.fmean(losses[:count]):
        return None
    return {"step": history.final_step, "why": "the training loss ended no lower than it began"}


def _memory(experiment: Any, device: str) -> dict[str, int]:
    """Bytes of parameters, of Adam's two moments, and of what one step keeps for its backward pass."""
    import torch

    kept: dict[int, int] = {}

    def pack(x: Any) -> Any:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()  # and not x: an output would hold itself

    parameters = sum(p.numel() * p.element_size() for p in experiment.parameters().values())
    own = {p.untyped_storage().data_ptr() for p in experiment.parameters().values()}
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = experiment.loss(experiment.batch(0), 0)["loss"]
    activations = sum(size for place, size in kept.items() if place not in own)
    del loss
    return {"parameters": parameters, "optimizer": 2 * parameters, "activations": activations} | (
        {"peak": torch.cuda.max_memory_allocated(device)} if device.startswith("cuda") else {}
    )


def mean(values: Sequence[float | None]) -> float:
    """Of those that are there."""
    there = [x for x in values if x is not None and math.isfinite(x)]
    return statistics.fmean(there) if there else math.nan
