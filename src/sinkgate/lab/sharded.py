"""One arm that outgrows a device: a piece of the text task trained by several processes, with FSDP2.

    torchrun --nproc-per-node 8 -m sinkgate.lab.sharded piece.json OUT --device cuda

Every process holds a part of every parameter and of Adam's moments, gathers a block when it needs it, and reads its share
of each batch's rows: the batch, the start, the schedule, the clipping and the files are those of one process. What
differs is the order of sums, so the result is that of one process to rounding. A checkpoint holds whole tensors: any number of
processes, one too, goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from sinkgate.errors import ArgumentError, RecordError, SinkgateError, UnsupportedError
from sinkgate.lab.checkpoint import History, RunFolder, Snapshot
from sinkgate.lab.pieces import Piece, Progress, begin, keep_record, train_piece
from sinkgate.lab.provenance import environment
from sinkgate.lab.tasks.base import Found
from sinkgate.lab.tasks.language import LanguageExperiment
from sinkgate.lab.together import Alone, Files

__all__ = ["Processes", "ShardedExperiment", "main", "run_sharded"]

T = TypeVar("T")


class Processes(Alone):
    """Those of the default process group, over which parameters are sharded; the first one has the files."""

    def __init__(self) -> None:
        self.first = dist.get_rank() == 0

    def by_first(self, call: Callable[[], T]) -> T:
        """What ``call`` gives in the first process, in all of them; and so with an error of ours."""
        box: list[Any] = [None]
        if self.first:
            try:
                box = [(call(), None)]
            except SinkgateError as err:
                box = [(None, err)]
        dist.broadcast_object_list(box, src=0)
        found, error = box[0]
        if error is not None:
            raise error
        return found

    def open(self, folder: str | os.PathLike[str], run: dict[str, dict[str, Any]], resume: bool) -> Files:
        """The run's folder in the first process; what it holds, without the numbers of its tensors, in the others."""
        mine: list[RunFolder] = []

        def outline() -> tuple[Any, ...]:
            mine.append(RunFolder(folder, run, resume=resume))
            there = mine[0].snapshot
            about = {} if there is None else {n: _outline(x) for n, x in there.tensors.items()}
            return there is not None and (there.step, there.log_bytes), about, mine[0].history.steps

        found, tensors, lines = self.by_first(outline)
        if mine:
            return mine[0]
        empty = {n: torch.full(shape, value, dtype=dtype) for n, (shape, dtype, value) in tensors.items()}
        return _Elsewhere(Snapshot(found[0], empty, found[1]) if found else None, History(lines))

    def agree(self, logged: dict[str, float]) -> dict[str, float]:
        """The mean over processes; of ``tokens`` the sum."""
        values = torch.tensor(list(logged.values()), dtype=torch.float64)
        dist.all_reduce(values)
        return {
            n: x if n == "tokens" else x / dist.get_world_size() for n, x in zip(logged, values.tolist(), strict=True)
        }

    def number(self, x: Tensor) -> float:
        """Of a sharded tensor too."""
        return (x.full_tensor() if isinstance(x, DTensor) else x).item()

    def whole(self, x: Tensor) -> Tensor:
        """The gathered tensor, on the CPU, in the first process; nothing in the others."""
        full = x.full_tensor() if isinstance(x, DTensor) else x
        return full.cpu() if self.first else full.new_empty(0)

    def share(self, x: Tensor, like: Tensor) -> Tensor:
        """Dealt out by the first process; a single number (Adam's count) is for all."""
        if x.ndim == 0 or not isinstance(like, DTensor):
            return x.to(like.device)
        return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=0)


def _outline(x: Tensor) -> tuple[list[int], torch.dtype, float]:
    return list(x.shape), x.dtype, x.item() if x.ndim == 0 else 0


class _Elsewhere:
    """A run's folder as seen by a process that does not write it."""

    def __init__(self, snapshot: Snapshot | None, history: History) -> None:
        self.snapshot, self.history = snapshot, history

    def append(self, line: dict[str, Any]) -> None:
        self.history.steps.append(line)

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """The first process does."""

    def __enter__(self) -> _Elsewhere:
        return self

    def __exit__(self, *_: object) -> None: ...


class ShardedExperiment:
    """An experiment of the text task, its blocks and the rest of its decoder sharded.

    Args:
        experiment: made with the same seed in every process, on the CPU; changed in place.
        mesh: of one dimension.

    Raises:
        ArgumentError: the batch does not deal out evenly.
    """

    def __init__(self, experiment: LanguageExperiment, mesh: DeviceMesh) -> None:
        self.whole, self.model = experiment, experiment.model
        self.rank, self.size = mesh.get_rank(), mesh.size()
        if experiment.spec.rows % self.size:
            raise ArgumentError(
                f"a batch of {experiment.spec.rows} sequences does not deal out evenly to {self.size} processes; choose another"
            )
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        register_fsdp_forward_method(self.model, "loss")
        with torch.no_grad():  # the first pass tells FSDP what its root is; a block met before it would be its own
            self.model(torch.zeros(1, 2, dtype=torch.long, device=mesh.device_type))
        self.model.reshard()  # type: ignore[operator]
        self._parameters = dict(self.model.named_parameters())

    def parameters(self) -> dict[str, nn.Parameter]:
        """All of the model's, as DTensors."""
        return self._parameters

    def batch(self, step: int) -> Tensor:
        """This process's rows of the batch."""
        return self.whole.batch(step)[self.rank :: self.size].contiguous()

    def loss(self, batch: Tensor, step: int) -> dict[str, Tensor]:
        """Of these rows. FSDP averages gradients over processes; with equally many rows in each that is the batch's."""
        return self.whole.loss(batch, step)

    def project(self) -> None:
        """Nothing is bounded."""

    def evaluate(self, step: int) -> dict[str, float]:
        """In every process the same numbers, of all rows."""
        with self._gathered():
            return self.whole.evaluate(step)

    def final(self, split: str) -> Found:
        """Likewise."""
        with self._gathered():
            return self.whole.final(split)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Embedding, last norm and head are whole inside; blocks gather themselves when they are called."""
        self.model.unshard()  # type: ignore[operator]
        try:
            yield
        finally:
            self.model.reshard()  # type: ignore[operator]


def run_sharded(
    piece: Piece, folder: str | os.PathLike[str], *, device: str = "cpu", progress: Sequence[Progress] = ()
) -> dict[str, Any] | None:
    """:func:`~sinkgate.lab.pieces.run_piece` by all processes of the default process group, which each call this.

    Args:
        piece: of the text task; its batch is a multiple of the number of processes.
        folder: the first process reads and writes it, no other.
        device: ``cpu``, or ``cuda``: the current one of each process.
        progress: called in the first process.

    Returns:
        The record, in the first process (its ``environment`` says how many there were; ``cost.bytes`` are of one process, without
        activations); None in the others.

    Raises:
        UnsupportedError: a piece of another task.
        ArgumentError: the batch does not deal out evenly.
        RecordError: what is in the folder is of another piece.
        OutputError: the folder cannot be written.
    """
    folder, together = Path(folder), Processes()
    kept, attempts = together.by_first(lambda: begin(piece, folder))
    if kept is not None:
        return kept if together.first else None
    experiment = piece.task.make(piece.arm, piece.seed)
    if not isinstance(experiment, LanguageExperiment):
        raise UnsupportedError(
            f"only pieces of the text task are trained by several processes, not of {piece.task.name!r}"
        )
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    sharded = ShardedExperiment(experiment, mesh)
    ended = train_piece(piece, sharded, folder, progress=progress if together.first else (), together=together)
    if not together.first:
        return None
    bytes_ = sum(p.to_local().nbytes for p in sharded.parameters().values())
    memory = {"parameters": bytes_, "optimizer": 2 * bytes_, "activations": None}
    if device == "cuda":
        memory["peak"] = torch.cuda.max_memory_allocated()
    where = environment(device) | {"processes": dist.get_world_size()}
    return keep_record(piece, folder, sharded, ended, attempts, memory, where)


def main(argv: Sequence[str] | None = None) -> int:
    """What ``torchrun -m sinkgate.lab.sharded`` starts in every process; returns the exit code."""
    parser = argparse.ArgumentParser(prog="torchrun … -m sinkgate.lab.sharded", description=__doc__.splitlines()[0])
    parser.add_argument("piece", metavar="PIECE.json", help="Piece.to_json() of a piece of the text task")
    parser.add_argument("out", metavar="OUT", help="its folder: piece.json, run/log.jsonl, run/checkpoint.safetensors")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args(argv)
    try:
        if "RANK" not in os.environ:
            raise ArgumentError(
                "start this with torchrun, such as: torchrun --nproc-per-node 2 -m sinkgate.lab.sharded …"
            )
        if args.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo")
        record = run_sharded(_read(args.piece), args.out, device=args.device)
        dist.destroy_process_group()
    except SinkgateError as err:
        if os.environ.get("RANK", "0") == "0":
            print(f"sinkgate: {err}", file=sys.stderr)
        return err.exit_code
    if record is not None:
        print(f"{record['arm']}: {record['steps']} steps, {Path(args.out) / 'piece.json'}")
    return 0


def _read(path: str) -> Piece:
    try:
        return Piece.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as err:
        if isinstance(err, SinkgateError):
            raise
        raise RecordError(f"{path} is not a readable piece ({err!r}); save Piece.to_json() there") from err


if __name__ == "__main__":
    sys.exit(main())
