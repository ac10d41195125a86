"""A run's folder: the log, one JSON line per step, and the one file a killed run goes on from.

The checkpoint remembers how long the log was when it was made. To go on is to cut the log to that length, so that a
run killed at any moment and resumed leaves the files of one that was never killed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from sinkgate.errors import OutputError, RecordError
from sinkgate.files import write_atomically

__all__ = ["History", "RunFolder", "Snapshot"]

CONFIG, LOG, CHECKPOINT = "config.json", "log.jsonl", "checkpoint.safetensors"
FORMAT, VERSION = "sinkgate.training", 1
WAY_OUT = "resume with the same, or train into another folder"


@dataclass(frozen=True)
class History:
    """What was logged: one dict per step, in order; a number that was not finite is None."""

    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def final_step(self) -> int:
        """The last step that was logged, from 0; −1 if none was."""
        return int(self.steps[-1]["step"]) if self.steps else -1

    @property
    def spikes(self) -> list[int]:
        """The steps whose loss the detector called a spike."""
        return [line["step"] for line in self.steps if line.get("spike")]

    def column(self, name: str) -> list[Any]:
        """One entry per step; None where the step did not log it or it was not finite."""
        return [line.get(name) for line in self.steps]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> History:
        """Read a folder's log, of a run that goes on, ended or was killed (half a last line is left out).

        Raises:
            RecordError: there is no log, or it is damaged.
        """
        path = Path(folder) / LOG
        try:
            data = path.read_bytes()
        except OSError as err:
            raise RecordError(
                f"no training log at {path} ({err.strerror}): expected the folder of a training run"
            ) from err
        return cls(_lines(path, data[: data.rfind(b"\n") + 1]))


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint: how many steps were done, every tensor by name, and how long the log was."""

    step: int
    tensors: dict[str, Tensor]
    log_bytes: int


class RunFolder:
    """The files of one run, open for writing; closes the log when left.

    Args:
        path: made if it is not there.
        run: what has to be the same for a resume: sections (config, parameters, multipliers) of named plain values.
        resume: go on from the checkpoint, or from the start if the run was killed before there was one.

    Raises:
        OutputError: the folder cannot be written, or holds a run and ``resume`` is False.
        RecordError: what is there is damaged or of another run.
    """

    def __init__(self, path: str | os.PathLike[str], run: dict[str, dict[str, Any]], *, resume: bool) -> None:
        self.path = Path(path)
        self.run = json.loads(json.dumps(run))  # as it will come back
        with self._access():
            there = [name for name in (CHECKPOINT, LOG, CONFIG) if (self.path / name).exists()]
            if there and not resume:
                raise OutputError(f"{self.path} already holds {there[0]}: resume that run, or choose another folder")
            self.snapshot = self._load()
            self.history = self._kept_history()
            self.path.mkdir(parents=True, exist_ok=True)
            for litter in self.path.glob(f".{CHECKPOINT}.*"):  # of a run killed while it wrote
                litter.unlink()
            write_atomically(self.path / CONFIG, json.dumps(self.run["config"], indent=1).encode())
            self._log: IO[bytes] = (self.path / LOG).open("ab")
            self._log.truncate(self.snapshot.log_bytes if self.snapshot else 0)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def append(self, line: dict[str, Any]) -> None:
        """One more line of the log, handed to the system at once: a killed process loses none."""
        with self._access():
            self._log.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
            self._log.flush()
        self.history.steps.append(line)

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """The checkpoint after ``step`` steps, in place of the one before: the file is always one or the other."""
        import safetensors.torch

        with self._access():
            self._log.flush()
            os.fsync(self._log.fileno())  # the log first: the checkpoint speaks of these bytes
            whole = torch.contiguous_format  # strides too: one number expanded and cloned has a stride of 0
            tensors = {name: x.detach().cpu().clone(memory_format=whole) for name, x in tensors.items()}
            size = os.fstat(self._log.fileno()).st_size
            about = {"version": VERSION, "step": step, "log_bytes": size, "run": self.run}
            about["sha256"] = _digest(about, tensors)
            header = {FORMAT: json.dumps(about)}  # one entry: safetensors writes several in no fixed order
            write_atomically(self.path / CHECKPOINT, safetensors.torch.save(tensors, metadata=header))

    # ---- private ------------------------------------------------------------------------------------------------

    def _load(self) -> Snapshot | None:
        """The checkpoint, checked; None where the run was killed before there was one."""
        path = self.path / CHECKPOINT
        if not path.exists():
            self._check_config()
            return None
        tensors, header = _read(path)
        if FORMAT not in header:
            raise RecordError(f"{path} is no checkpoint of a training run; {WAY_OUT}")
        try:
            about = json.loads(header[FORMAT])
            sound = about.pop("sha256") == _digest(about, tensors)
        except (ValueError, KeyError):
            sound = False
        if not sound:
            raise RecordError(f"{path} is damaged: its content does not have the recorded SHA-256; {WAY_OUT}")
        if about["version"] != VERSION:
            raise RecordError(f"{path} has version {about['version']}; this sinkgate reads version {VERSION}")
        self._same(path, about["run"])
        return Snapshot(about["step"], tensors, about["log_bytes"])

    def _check_config(self) -> None:
        """A folder without a checkpoint is ours only if its configuration is this run's and nothing was logged."""
        path, log = self.path / CONFIG, self.path / LOG
        if log.exists() and log.stat().st_size:
            raise RecordError(f"{log} has lines but {CHECKPOINT} is missing; train into another folder")
        if path.exists():
            try:
                config = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as err:
                raise RecordError(f"{path} is not a readable configuration: {err}") from err
            self._same(path, {**self.run, "config": config if isinstance(config, dict) else {}})

    def _same(self, path: Path, there: dict[str, dict[str, Any]]) -> None:
        for section, here in self.run.items():
            for name in sorted(here.keys() | there[section].keys()):
                a, b = there[section].get(name, "absent"), here.get(name, "absent")
                if a != b:
                    raise RecordError(
                        f"{path} is of another run: {section}: {name} is {a} there and {b} here; {WAY_OUT}"
                    )

    def _kept_history(self) -> History:
        """The log up to the checkpoint."""
        if self.snapshot is None or self.snapshot.log_bytes == 0:
            return History()
        path, size = self.path / LOG, self.snapshot.log_bytes
        data = path.read_bytes()[:size] if path.exists() else b""
        lines = _lines(path, data)
        if len(data) < size or len(lines) != self.snapshot.step:
            raise RecordError(f"{path} is damaged: it lacks lines that {CHECKPOINT} counts; train into another folder")
        return History(lines)

    @contextmanager
    def _access(self) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            raise OutputError(f"cannot use the folder {self.path}: {err.strerror or err}; choose another") from err


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt") as f:
            return {name: f.get_tensor(name).clone() for name in f.keys()}, f.metadata() or {}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as err:
        raise RecordError(f"{path} is damaged or cannot be read ({err}); {WAY_OUT}") from err


def _digest(about: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Of everything a checkpoint says, so that a flipped bit is found."""
    found = hashlib.sha256(json.dumps(about).encode())
    for name, x in sorted(tensors.items()):
        found.update(f"{name} {x.dtype} {list(x.shape)}".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _lines(path: Path, data: bytes) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in data.splitlines()]
    except ValueError as err:
        raise RecordError(f"{path} is damaged: {err}") from err
    if any(not isinstance(line, dict) or line.get("step") != i for i, line in enumerate(lines)):
        raise RecordError(f"{path} is damaged: its lines are not the steps 0, 1, 2, …")
    return lines
