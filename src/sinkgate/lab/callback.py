"""The watch of a training as a callback of transformers' ``Trainer``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sinkgate.hf.callback import TrainerWatch
from sinkgate.lab.reading import scalars
from sinkgate.lab.watch import SinkWatch
from sinkgate.probe.text import Text

__all__ = ["SinkCallback"]


class SinkCallback(TrainerWatch):
    """``Trainer(…, callbacks=[sg.SinkCallback(texts, tokenizer)])``: sinks every 100 steps, to a file and the Trainer's log.

    The model is looked at when training begins: one that cannot be read is refused there. A training resumed at step s cuts
    the file's lines after s. Spikes are looked for in the losses the Trainer logs, means over ``logging_steps``.

    Args:
        batch: the held-out batch, texts or token ids; see :class:`sinkgate.SinkWatch`.
        tokenizer: for texts; default: the Trainer's ``processing_class``.
        every: steps between readings.
        path: the JSON-lines file; default: ``sinks.jsonl`` in the Trainer's ``output_dir``.
        options: of :class:`sinkgate.SinkWatch`.
    """

    def __init__(
        self,
        batch: Tensor | Mapping[str, Any] | Iterable[str | Text] | str,
        tokenizer: Any = None,
        every: int = 100,
        path: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        again = isinstance(batch, Tensor | Mapping | str)
        self.batch = batch if again else list(batch)  # an iterator ends, a callback may go on
        self.tokenizer, self.every, self.path, self.options = tokenizer, every, path, options

    def open(self, model: nn.Module, tokenizer: Any, folder: Path, step: int) -> SinkWatch:
        """See the base."""
        path = folder / "sinks.jsonl" if self.path is None else self.path
        found = self.tokenizer if self.tokenizer is not None else tokenizer
        return SinkWatch(model, self.batch, found, every=self.every, path=path, start=step, **self.options)

    def scalars(self, line: dict[str, Any]) -> dict[str, float]:
        """See the base."""
        return scalars(line)
