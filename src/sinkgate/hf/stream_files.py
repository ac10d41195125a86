"""A stream on disk: everything it holds, to go on from there in another process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from sinkgate.cache.layer import Tracks
from sinkgate.errors import ArgumentError, OutputError, RecordError, UnsupportedError
from sinkgate.files import write_atomically
from sinkgate.hf import compat
from sinkgate.hf.streaming_cache import StreamingCache, StreamingLayer

__all__ = ["load_stream", "save_stream"]

FORMAT, VERSION = "sinkgate.cache", "1"


def save_stream(cache: StreamingCache, path: str | os.PathLike[str]) -> Path:
    """Write a stream as safetensors: beside, then renamed.

    Args:
        cache: of :func:`sinkgate.streaming`.
        path: the file.

    Raises:
        UnsupportedError: a cache made alone, or one whose last pass failed half way.
        OutputError: it cannot be written.
    """
    from safetensors.torch import save

    if cache.alone or cache.broken:
        raise UnsupportedError("only a whole stream of sg.streaming can be saved")
    tensors: dict[str, Tensor] = {}
    banks: dict[str, Any] = {}
    for i, layer in enumerate(cache.layers):
        if not isinstance(layer, StreamingLayer):
            found, flags = compat.linear_state(layer)
            tensors.update({f"layers.{i}.{name}": x for name, x in found.items()})
            banks[str(i)] = flags
        elif layer.layer is not None:
            banks[str(i)] = []
            for j, bank in enumerate(layer.layer.banks):
                state = {**bank.state(), "track": bank.track.pos.clone()}
                tensors.update({f"layers.{i}.{j}.{name}": x for name, x in state.items()})
                banks[str(i)].append(bank.meta())
    if cache.counts is not None:
        tensors["counts"] = cache.counts
    if (ids := cache.ids) is not None:
        tensors["ids"] = ids
    meta = {
        "format": FORMAT, "version": VERSION, "policy": cache.policy.to_json(), "positions": cache.positions,
        "fingerprint": cache.fingerprint, "rollback": cache.rollback, "padding": cache.padding, "banks": banks,
    }  # fmt: skip
    data = save({n: x.detach().contiguous().cpu() for n, x in tensors.items()}, {"sinkgate": json.dumps(meta)})
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, data)
    except OSError as err:
        raise OutputError(f"cannot write {target}: {err.strerror or err}") from err
    return target


def load_stream(cache: StreamingCache, path: str | os.PathLike[str]) -> StreamingCache:
    """Fill a cache of :func:`sinkgate.streaming` with a saved stream, and return it.

    Args:
        cache: of the same model, policy and positions; what it held is forgotten.
        path: the file.

    Raises:
        RecordError: no such file, or a damaged one.
        ArgumentError: a stream of another model, policy or scheme.
    """
    from safetensors import SafetensorError, safe_open

    if cache.alone:
        raise ArgumentError("a saved stream goes on under sg.streaming, not in a cache alone")
    try:
        with safe_open(os.fspath(path), "pt") as f:
            meta = json.loads((f.metadata() or {}).get("sinkgate", "{}"))
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as err:
        raise RecordError(f"{path} is not a readable stream: {err}") from err
    if meta.get("format") != FORMAT or meta.get("version") != VERSION:
        raise RecordError(f"{path} is no stream of version {VERSION}")
    for what, mine, theirs in (
        ("model", cache.fingerprint, meta["fingerprint"]), ("policy", cache.policy.to_json(), meta["policy"]),
        ("positions", cache.positions, meta["positions"]), ("rollback", cache.rollback, meta["rollback"]),
    ):  # fmt: skip
        if mine != theirs:
            raise ArgumentError(f"{path} holds a stream of another {what}: {theirs}, and this one has {mine}")
    cache.reset()
    cache.padding = int(meta["padding"])
    where = cache.device()
    if "counts" in tensors:
        cache.counts = tensors["counts"].to(where)
        cache.tracks = Tracks(len(cache.counts), cache.rollback, where)
    if "ids" in tensors:
        cache.history = [tensors["ids"]]
    for i, parts in meta["banks"].items():
        layer = cache.layers[int(i)]
        prefix = f"layers.{i}."
        mine = {n.removeprefix(prefix): x.to(where) for n, x in tensors.items() if n.startswith(prefix)}
        if not isinstance(layer, StreamingLayer):
            compat.set_linear_state(layer, mine, parts)
            continue
        assert cache.tracks is not None
        layer.layer, layer.is_initialized = cache._made.layer(int(i), cache.tracks), True
        for j, bank in enumerate(layer.layer.banks):
            state = {n.removeprefix(f"{j}."): x for n, x in mine.items() if n.startswith(f"{j}.")}
            bank.track.resume(state.pop("track"))
            bank.load(state, parts[j])
    return cache
