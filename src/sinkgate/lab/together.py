"""What the loop asks of the process, or processes, that train: alone by default."""

from __future__ import annotations

import os
from typing import Any, Protocol

from torch import Tensor

from sinkgate.lab.checkpoint import History, RunFolder, Snapshot

__all__ = ["ALONE", "Alone", "Files"]


class Files(Protocol):
    """A run's folder as the loop sees it: :class:`~sinkgate.lab.checkpoint.RunFolder`, or a stand-in that writes nothing."""

    snapshot: Snapshot | None
    history: History

    def append(self, line: dict[str, Any]) -> None:
        """One more line of the log."""
        ...

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """The checkpoint after ``step`` steps."""
        ...

    def __enter__(self) -> Files: ...

    def __exit__(self, *_: object) -> None: ...


class Alone:
    """One process: its numbers are the numbers, its tensors are whole. Several of them override these."""

    first = True  # it writes, and is asked where only one is

    def open(self, folder: str | os.PathLike[str], run: dict[str, dict[str, Any]], resume: bool) -> Files:
        """The run's folder."""
        return RunFolder(folder, run, resume=resume)

    def agree(self, logged: dict[str, float]) -> dict[str, float]:
        """What is logged of a step's micro-batches, of all processes."""
        return logged

    def number(self, x: Tensor) -> float:
        """A scalar of parameters or gradients."""
        return x.item()

    def whole(self, x: Tensor) -> Tensor:
        """A tensor to be saved."""
        return x

    def share(self, x: Tensor, like: Tensor) -> Tensor:
        """What this process holds of a tensor that was saved, where ``like`` is."""
        return x.to(like.device)


ALONE = Alone()
