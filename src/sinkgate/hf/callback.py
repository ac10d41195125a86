"""What a ``Trainer`` says to a callback, handed to a watch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from transformers import TrainerCallback

from sinkgate.hf import compat

__all__ = ["TrainerWatch", "Watch"]


class Watch(Protocol):
    """Who is told."""

    every: int

    def step(self, step: int) -> dict[str, Any] | None:
        """So many updates are made; what there is to be logged."""

    def loss(self, step: int, loss: float) -> Any:
        """A loss that the Trainer logged."""

    def remember(self, step: int, loss: float, *, reported: bool) -> None:
        """A loss of before the start."""

    def close(self) -> None:
        """The training is over."""


class TrainerWatch(TrainerCallback):
    """A callback that opens a watch when training begins, and brings what it finds to the Trainer's own log.

    The Trainer hands a callback everything but itself, and integrations (TensorBoard, W&B …) are called before the callbacks
    a user gives, so that numbers added to ``logs`` in ``on_log`` would come too late for them. So this calls
    ``Trainer.log``, which is the documented way in: it reaches ``log_history`` and every integration. The Trainer is found
    as the object that is calling (:func:`sinkgate.hf.compat.trainer_of`), or given by :meth:`set_trainer`.
    """

    def __init__(self) -> None:
        self._trainer: Any = None
        self._watch: Watch | None = None

    def open(self, model: nn.Module, tokenizer: Any, folder: Path, step: int) -> Watch:
        """The watch of a training that stands at ``step``."""
        raise NotImplementedError

    def scalars(self, line: dict[str, Any]) -> dict[str, float]:
        """What of a line is logged."""
        raise NotImplementedError

    def set_trainer(self, trainer: Any) -> None:
        """Whose ``log`` is to be called, where it is not found."""
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the model, open the file, read the start; what cannot be read or written is refused here."""
        if self._watch is not None:
            self._watch.close()
        self._trainer = compat.trainer_of(self) or self._trainer
        if self._trainer is None:
            warnings.warn(
                "the Trainer that calls this callback was not found, so its loggers get no readings (the file does); call "
                "callback.set_trainer(trainer)",
                stacklevel=2,
            )
        tokenizer = kwargs.get("processing_class")
        self._watch = self.open(kwargs["model"], tokenizer, Path(args.output_dir), state.global_step)
        read = state.global_step - state.global_step % self._watch.every
        for entry in state.log_history:  # of a resumed training; a step's loss is logged after its reading
            if "loss" in entry:
                self._watch.remember(entry["step"], entry["loss"], reported=entry["step"] < read)
        self._read(state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A reading where one is due."""
        self._read(state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The losses the Trainer logs are what spikes are looked for in."""
        if self._watch is not None and logs and "loss" in logs:
            self._watch.loss(state.global_step, logs["loss"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the file."""
        if self._watch is not None:
            self._watch.close()
        self._watch = self._trainer = None

    def _read(self, state: Any, control: Any) -> None:
        line = None if self._watch is None else self._watch.step(state.global_step)
        if line is None or self._trainer is None:
            return
        due = control.should_log
        self._trainer.log(self.scalars(line))
        control.should_log = due  # a log in between would swallow the one that is due
