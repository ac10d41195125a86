"""The pieces of a comparison as Ray tasks: arms, rates and seeds over a machine's cores or a cluster.

A piece is the same bits in a worker as in one process, as long as the number of threads is the same: a worker computes
with ``cpus`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sinkgate.errors import RecordError, UnsupportedError
from sinkgate.lab.checkpoint import History
from sinkgate.lab.comparison import Runner
from sinkgate.lab.pieces import Piece, Progress, run_piece
from sinkgate.lab.provenance import code_digest
from sinkgate.workers import check_device, check_workers, connected, outcomes, ray_package, settle

__all__ = ["ray_runner"]


def ray_runner(address: str | None = None, cpus: int = 1, gpus: float = 0, retries: int = 2) -> Runner:
    """What runs the pieces of :func:`sinkgate.compare` in Ray workers: ``compare(…, runner=ray_runner())``.

    The folder of the comparison must be one that every worker sees. A piece keeps its record there when it ends. If its
    worker is lost (killed, out of memory, a machine gone), Ray begins it again elsewhere, it goes on from its
    checkpoint, and its record counts the attempts (``cost.attempts``). ``progress`` is not called from the workers: it
    gets the new lines of a piece, all of them, when the piece has ended. ``cost.seconds_per_step`` is what a worker took
    beside others.

    Args:
        address: of a cluster (as in ``ray.init``); None: the Ray this process is connected to, else one that is found or
            started; only what was started is stopped.
        cpus: Ray's ``num_cpus`` of a piece, and the threads it computes with.
        gpus: Ray's ``num_gpus`` of a piece; a part of one lets pieces share it.
        retries: Ray's ``max_retries``: how often a piece is begun again whose worker was lost.

    Returns:
        A runner. It raises :class:`~sinkgate.errors.WorkerError` when a worker was lost at every attempt, naming arm, rate
        and seed, and what a piece itself raised; both after all other pieces have ended, so that their records are kept.

    Raises:
        ArgumentError: ray is not installed, or a number is out of range.
    """
    check_workers(cpus, gpus, retries)
    ray_package()

    def run(pieces: Sequence[tuple[Piece, Path]], device: str, progress: Sequence[Progress]) -> list[dict[str, Any]]:
        check_device(device, gpus)
        if not pieces:
            return []
        before = [len(_lines(folder)) for _, folder in pieces]

        def ended(i: int, _: Any) -> None:
            piece, folder = pieces[i]
            for line in _lines(folder)[before[i] :] if progress else ():
                for each in progress:
                    each(piece, line)

        with connected(address, cpus=cpus, gpus=gpus) as ray:
            remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_run)
            at, code = str(Path.cwd()), code_digest()
            tasks = [remote.remote(piece, str(folder.resolve()), device, cpus, code, at) for piece, folder in pieces]
            names = [f"{piece.arm} at learning rate {piece.lr:g}, seed {piece.seed}" for piece, _ in pieces]
            return outcomes(ray, tasks, names, retries=retries, ended=ended)

    return run


def _run(piece: Piece, folder: str, device: str, cpus: int, code: str, at: str) -> dict[str, Any]:
    """In the worker."""
    if (mine := code_digest()) != code:
        import socket

        raise UnsupportedError(
            f"the worker on {socket.gethostname()} has another sinkgate (code {mine}) than the caller ({code}); install "
            "the same one on every machine"
        )
    settle(cpus, at)
    return run_piece(piece, folder, device=device)


def _lines(folder: Path) -> list[dict[str, Any]]:
    """What is logged of a piece so far."""
    try:
        return History.load(folder / "run").steps
    except RecordError:  # none yet, or no longer; a damaged log is for the worker to report
        return []
