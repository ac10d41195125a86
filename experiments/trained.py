"""Models that an experiment trained, opened again from its pieces' checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from experiments.pieces import PLACE
from sinkgate.lab.checkpoint import CHECKPOINT
from sinkgate.lab.pieces import Piece

__all__ = ["load", "losses", "reading_with"]


def load(name: str, record: dict[str, Any]) -> Any:
    """The experiment of a piece with its last parameters."""
    piece = Piece.from_json(record["piece"])
    experiment = piece.task.make(piece.arm, piece.seed)
    tensors = safetensors.torch.load_file(PLACE / name / "pieces" / piece.key / "run" / CHECKPOINT)
    with torch.no_grad():
        for key, p in experiment.parameters().items():
            p.copy_(tensors[f"parameter/{key}"])
    return experiment


@contextmanager
def reading_with(experiment: Any, window: int | None, kept: int) -> Iterator[None]:
    """Inside, every layer sees the last ``window`` keys and the first ``kept``."""
    layers = [block.attention for block in experiment.model.blocks]
    before = [(layer.window, layer.keep_first) for layer in layers]
    for layer in layers:
        layer.window, layer.keep_first = window, kept if window is not None else 0
    try:
        yield
    finally:
        for layer, (w, k) in zip(layers, before, strict=True):
            layer.window, layer.keep_first = w, k


@torch.no_grad()
def losses(experiment: Any, split: str, *, window: int | None = None, kept: int = 0) -> Tensor:
    """``[rows, length]`` nats on a held-out part, in float32."""
    spec, context = experiment.spec, experiment.config.context
    ids = experiment.corpus.held_out(split, spec.held_out, context + 1, bos=spec.bos)
    with reading_with(experiment, window, kept):
        return torch.cat([experiment.model.loss(part, reduction="none") for part in ids.split(16)])
