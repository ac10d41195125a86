"""A stream on disk: everything it holds, to go on from there in another process."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
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
                banks[str(i)].append({"meta": bank.meta(), "tensors": {n: list(x.shape) for n, x in state.items()}})
    if cache.counts is not None:
        tensors["counts"] = cache.counts
    if (ids := cache.ids) is not None:
        tensors["ids"] = ids
    meta = {
        "format": FORMAT, "version": VERSION, "policy": cache.policy.to_json(), "positions": cache.positions,
        "fingerprint": cache.fingerprint, "rollback": cache.rollback, "padding": cache.padding, "passes": [x if isinstance(x, int) else x.long().tolist() for x in cache.passes], "banks": banks,
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
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or meta.get("version") != VERSION:
        raise RecordError(f"{path} is no stream of version {VERSION}")
    for what, mine in (
        ("fingerprint", cache.fingerprint), ("policy", cache.policy.to_json()), ("positions", cache.positions),
        ("rollback", cache.rollback),
    ):  # fmt: skip
        theirs = meta.get(what)
        if mine != theirs:
            name = "model" if what == "fingerprint" else what
            raise ArgumentError(f"{path} holds a stream of another {name}: {theirs}, and this one has {mine}")
    cache.reset()
    try:
        with torch.inference_mode(False):
            _fill(cache, meta, tensors)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as err:
        cache.reset()
        raise RecordError(f"{path} is damaged: {type(err).__name__} {err}") from err
    return cache


def _fill(cache: StreamingCache, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    where = cache.device()
    cache.padding = int(meta["padding"])
    cache.passes = [x if isinstance(x, int) else torch.tensor(x, dtype=torch.bool) for x in meta["passes"]]
    cache.padded = any(isinstance(x, Tensor) for x in cache.passes)
    if "counts" not in tensors:  # nothing has gone through
        return
    cache.counts = tensors["counts"].to(where)
    cache.tracks = Tracks(len(cache.counts), cache.rollback, where)
    cache.history = [tensors["ids"]] if "ids" in tensors else []
    for i, parts in meta["banks"].items():
        layer = cache.layers[int(i)]
        prefix = f"layers.{i}."
        mine = {n.removeprefix(prefix): x.to(where) for n, x in tensors.items() if n.startswith(prefix)}
        if not isinstance(layer, StreamingLayer):
            compat.set_linear_state(layer, mine, parts)
            continue
        layer.layer, layer.is_initialized = cache._made.layer(int(i), cache.tracks), True
        for j, bank in enumerate(layer.layer.banks):
            state = {n.removeprefix(f"{j}."): x for n, x in mine.items() if n.startswith(f"{j}.")}
            if sorted(state) != sorted(parts[j]["tensors"]):
                raise ValueError(f"layer {i} has {sorted(state)}, not {sorted(parts[j]['tensors'])}")
            for name, shape in parts[j]["tensors"].items():
                if list(state[name].shape) != shape:
                    raise ValueError(f"{name} of layer {i} has shape {list(state[name].shape)}, not {shape}")
            bank.track.resume(state.pop("track"))
            bank.load(state, parts[j]["meta"])
    if len(meta["banks"]) != len(cache.layers):
        raise ValueError(f"{len(meta['banks'])} of {len(cache.layers)} layers are there")
