"""Ray, met only when asked for: a cluster to run tasks on, and what became of them.

Everything is Ray's own: where a task runs, what it may use, and that one is begun again whose worker was lost.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, SinkgateError, WorkerError

__all__ = ["check_device", "check_workers", "connected", "outcomes", "ray_package", "settle"]


def ray_package() -> Any:
    """The ``ray`` package.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        import ray
    except ModuleNotFoundError as err:
        raise ArgumentError("spreading over workers needs the ray package: pip install 'sinkgate[ray]'") from err
    return ray


def check_workers(cpus: float, gpus: float, retries: int) -> None:
    """Raise unless a task may ask for this.

    Raises:
        ArgumentError: a number is out of range.
    """
    if not (math.isfinite(cpus) and cpus >= 1 and cpus == int(cpus)):
        raise ArgumentError(f"cpus must be a whole number of at least 1 (it is the threads of a task), got {cpus!r}")
    if not (math.isfinite(gpus) and gpus >= 0):
        raise ArgumentError(f"gpus must be a number of at least 0, got {gpus!r}")
    if type(retries) is not int or retries < 0:
        raise ArgumentError(f"retries must be a whole number of at least 0, got {retries!r}")


def check_device(device: str, gpus: float) -> None:
    """Raise unless a worker with so many GPUs has the device; it sees no others, and numbers them from 0.

    Raises:
        ArgumentError: it has not.
    """
    if device != "cpu" and not (device == "cuda" and gpus):
        raise ArgumentError(f"in a Ray worker device is cpu, or cuda with gpus above 0; got {device!r} and gpus={gpus}")


@contextmanager
def connected(address: str | None = None, *, cpus: float = 1, gpus: float = 0) -> Iterator[Any]:
    """Ray, ready for tasks; what was started here is stopped at the end, and nothing else.

    Args:
        address: of a cluster, as in ``ray.init``; None: a Ray that this process is already connected to, else what
            ``ray.init()`` finds (``RAY_ADDRESS``, a cluster on this machine) or starts on this machine.
        cpus: what one task will ask for: a local Ray that has not as much would wait for ever.
        gpus: likewise.

    Raises:
        ArgumentError: ray is missing, the address is another cluster's, or this machine has too little.
        WorkerError: the cluster cannot be reached.
    """
    ray = ray_package()
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address, logging_level=logging.WARNING)
        except (ConnectionError, RuntimeError, ValueError) as err:
            where = "started here" if address is None else f"reached at {address}"
            raise WorkerError(f"Ray cannot be {where}: {_line(err)}") from err
    elif address not in (None, "auto", (there := ray.get_runtime_context().gcs_address)):
        raise ArgumentError(
            f"this process is already connected to the Ray at {there}, not {address}; ray.shutdown() first"
        )
    try:
        if ours and address is None:
            has = ray.cluster_resources()
            if has.get("CPU", 0) < cpus or has.get("GPU", 0) < gpus:
                raise ArgumentError(
                    f"a task asks for {cpus:g} CPUs and {gpus:g} GPUs and Ray has {has.get('CPU', 0):g} and "
                    f"{has.get('GPU', 0):g} here; ask for less, or give the address of a cluster that has them"
                )
        yield ray
    finally:
        if ours:
            ray.shutdown()


def outcomes(
    ray: Any, tasks: Sequence[Any], names: Sequence[str], *, retries: int, ended: Callable[[int, Any], None]
) -> list[Any]:
    """What tasks gave, in their order, when all have ended.

    Args:
        ray: the package.
        tasks: what ``remote`` returned.
        names: of the tasks, for messages.
        retries: how often Ray was told to begin one again.
        ended: called with a task's number and result as each one ends.

    Raises:
        WorkerError: tasks whose worker was lost at every attempt; the others ended first.
        SinkgateError: raised by a task (of several, the first); the others ended first.
    """
    found: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    lost: dict[int, str] = {}
    waiting = {task: i for i, task in enumerate(tasks)}
    try:
        while waiting:
            (task, *_), _ = ray.wait(list(waiting), num_returns=1)
            i = waiting.pop(task)
            try:
                found[i] = ray.get(task)
            except ray.exceptions.RayTaskError as err:  # raised by what ran there
                failed[i] = err.cause if isinstance(err.cause, SinkgateError) else err
            except ray.exceptions.RayError as err:
                lost[i] = _line(err)
            else:
                ended(i, found[i])
    finally:
        for task in waiting:  # an interrupt, or `ended` raised
            ray.cancel(task, force=True)
    if lost:
        of = "; ".join(f"{names[i]} ({why})" for i, why in sorted(lost.items()))
        raise WorkerError(
            f"the worker was lost at each of {retries + 1} attempts of: {of}. What the others found is kept: see to the "
            "workers (memory?), then resume"
        )
    if failed:
        raise failed[min(failed)]
    return [found[i] for i in range(len(tasks))]


def settle(cpus: int, folder: str) -> None:
    """Inside a worker: as many threads as CPUs, whatever the environment says, for bits depend on their number; and
    relative names are meant from the caller's folder, if it is there.
    """
    import torch

    torch.set_num_threads(int(cpus))
    if Path(folder).is_dir():
        os.chdir(folder)


def _line(err: BaseException) -> str:
    return next((line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__).rstrip(".")
