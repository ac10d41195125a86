"""Keeping records: JSON + safetensors on disk, and putting records together."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.errors import OutputError, RecordError
from sinkgate.files import jsonable, read_json, write_atomically
from sinkgate.files import typed as typed_in
from sinkgate.record import Array, Diagnosis, top_massive
from sinkgate.schema import FORMAT, INTEGER_ROWS, SCHEMA, VERSION, Settings, bins, required

__all__ = ["load", "merge", "save"]

MOST_BYTES = 4 << 30  # of a record's tensors


def save(d: Diagnosis, directory: Path) -> Path:
    """See :meth:`Diagnosis.save`."""
    import safetensors.numpy

    tensors = {k: np.ascontiguousarray(v) for k, v in d.arrays.items()}
    data = safetensors.numpy.save(tensors)
    digest = hashlib.sha256(data).hexdigest()
    name = f"record-{digest[:12]}.safetensors"
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "tensors": {"file": name, "sha256": digest},
        **d.meta,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        old = {p for p in directory.glob("record-*.safetensors") if p.name != name}
        write_atomically(directory / name, data)
        text = json.dumps(jsonable(meta), ensure_ascii=False, allow_nan=False, indent=1)
        write_atomically(directory / "record.json", text.encode())
        for path in old:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise OutputError(
            f"cannot write the record to {directory}: {err.strerror or err}; choose another --out"
        ) from err
    return directory


def load(directory: Path) -> Diagnosis:
    """See :meth:`Diagnosis.load`."""
    import safetensors
    import safetensors.numpy

    path = directory / "record.json" if directory.is_dir() else directory
    try:
        meta = read_json(path, "a readable record")
    except FileNotFoundError:
        raise RecordError(f"no record at {directory}: expected a folder with record.json in it") from None
    if not isinstance(meta, dict) or meta.pop("format", None) != FORMAT:
        raise RecordError(f"{path} is not a sinkgate diagnosis")
    version = meta.pop("version", None)
    if version != VERSION or isinstance(version, bool):
        raise RecordError(f"{path} is a record of version {version!r}; this sinkgate reads version {VERSION}")
    tensors = meta.pop("tensors", None)
    name = tensors.get("file") if isinstance(tensors, dict) else None
    if not isinstance(name, str) or not re.fullmatch(r"record-[0-9a-f]{12}\.safetensors", name):
        raise RecordError(f"{path} does not name its tensors file; the record is damaged")
    if Path(os.path.realpath(path.parent / name)).parent != Path(os.path.realpath(path.parent)):
        raise RecordError(f"{path.parent / name} is a link that leaves its folder; put a copy of the file there")
    try:
        with (path.parent / name).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as err:
        raise RecordError(f"{path} names {name}, which cannot be read ({err.strerror})") from err
    if len(data) > MOST_BYTES:
        raise RecordError(f"{path.parent / name} is larger than the {MOST_BYTES >> 30} GiB that are read")
    if hashlib.sha256(data).hexdigest() != tensors.get("sha256"):
        raise RecordError(f"{path.parent / name} is damaged: its SHA-256 is not the recorded one")
    try:
        arrays = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as err:  # the latter: a dtype numpy lacks
        raise RecordError(f"{path.parent / name} is damaged: {err}") from err
    _check(path, meta, arrays)
    return Diagnosis(meta, arrays)


def merge(d: Diagnosis, other: Diagnosis) -> Diagnosis:
    """See :meth:`Diagnosis.merge`."""
    for name, label in (("fingerprint", "model"),):
        if d.meta["model"][name] != other.meta["model"][name]:
            raise RecordError(
                f"these records are of different {label}s: {d.meta['model']['name']} "
                f"({d.meta['model'][name]}) and {other.meta['model']['name']} ({other.meta['model'][name]})"
            )
    if d.meta["settings"] != other.meta["settings"]:
        different = [k for k, v in d.meta["settings"].items() if other.meta["settings"].get(k) != v]
        raise RecordError(f"these records were made with different settings: {', '.join(different)}")
    if d.shape != other.shape or d.arrays.keys() != other.arrays.keys():
        raise RecordError(f"these records do not have the same layers and heads: {d.shape} and {other.shape}")
    both = {s["id"] for s in d.meta["samples"]} & {s["id"] for s in other.meta["samples"]}
    if both:
        raise RecordError(f"{len(both)} sample(s) are in both records and would count twice; merge distinct texts")
    samples = d.meta["samples"] + other.meta["samples"]
    order = sorted(range(len(samples)), key=lambda i: samples[i]["id"])
    arrays = {}
    for name in d.arrays:
        a, b = d.arrays[name], other.arrays[name]
        if SCHEMA[name][0].startswith("S"):
            arrays[name] = np.concatenate([a, b])[order]
        else:
            arrays[name] = _add_padded(a, b)
    meta = dict(d.meta)
    meta["model"] = min(d.meta["model"], other.meta["model"], key=lambda m: json.dumps(m, sort_keys=True, default=str))
    meta["samples"] = [samples[i] for i in order]
    meta["massive"] = top_massive(d.meta["massive"] + other.meta["massive"])
    meta["notes"] = sorted(set(d.meta["notes"]) | set(other.meta["notes"]))
    meta["strip"] = min(d.meta["strip"], other.meta["strip"], key=lambda s: s["id"])
    meta["created"] = max(d.meta["created"], other.meta["created"])
    return Diagnosis(meta, arrays)


def _add_padded(a: Array, b: Array) -> Array:
    shape = tuple(max(x, y) for x, y in zip(a.shape, b.shape, strict=True))
    total = np.zeros(shape, dtype=np.int64)
    for array in (a, b):
        total[tuple(slice(n) for n in array.shape)] += array
    return total


_NUMBER = (int, float)
_SHOWN = ("class", "parameters", "dtype", "device", "kv_heads", "head_dim", "attention", "bos")  # of a model, if known
_SETTINGS = {"detail": str, "threshold": _NUMBER, "local_window": int, "min_queries": int, "tokens": int, "bos": str}
_TEXT_OR_NONE = (str, type(None))
# what stands in the lists of a record's text; a wrong type here would only show while drawing
_LAYER = {
    "index": int,
    "name": str,
    "kind": str,
    "reason": _TEXT_OR_NONE,
    "write_reason": _TEXT_OR_NONE,
    "learned_sink": bool,
}
_SAMPLE = {"id": str, "source": str, "bos": bool, "length": int, "sinks": list, "tokens_at": dict}
_SINK = {"position": int, "token": str, "kind": str, "mass": _NUMBER, "heads": _NUMBER, "top": _NUMBER,
         "write": (*_NUMBER, type(None)), "secondary": bool}  # fmt: skip
_MASSIVE = {"layer": int, "dimension": int, "position": int, "value": _NUMBER, "token": str, "sample": str}
_META = {"model": dict, "settings": dict, "samples": list, "layers": list, "notes": list, "massive": list, "strip": dict,
         "created": str}  # fmt: skip


def _check(path: Path, meta: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Refuse a record whose parts do not go together, before anything is drawn from it."""

    def damaged(what: str) -> RecordError:
        return RecordError(f"{path} is damaged: {what}")

    def typed(where: str, value: Any, kinds: dict[str, Any]) -> None:
        try:
            typed_in(where, value, kinds)
        except RecordError as err:
            raise damaged(str(err)) from err

    typed("its text", meta, _META)
    typed("model", meta["model"], {"name": str, "fingerprint": str})
    try:
        settings = Settings(**meta["settings"])
    except (TypeError, ValueError) as err:
        raise damaged(f"settings: {err}") from err
    typed("settings", vars(settings), _SETTINGS)
    for kind, items, kinds in (("layer", meta["layers"], _LAYER), ("sample", meta["samples"], _SAMPLE),
                               ("massive activation", meta["massive"], _MASSIVE)):  # fmt: skip
        for i, item in enumerate(items):
            typed(f"{kind} {i}", item, kinds)
    for i, sample in enumerate(meta["samples"]):
        for sink in sample["sinks"]:
            typed(f"sample {i}: a sink", sink, _SINK)
        if not all(isinstance(token, str) for token in sample["tokens_at"].values()):
            raise damaged(f"sample {i}: a token is not text")
    for name in _SHOWN:
        if isinstance(meta["model"].get(name), dict | list):
            raise damaged(f"model: {name!r} is neither text nor a number")
    if not all(isinstance(note, str) for note in meta["notes"]):
        raise damaged("a note is not text")
    if any(not 0 <= item["layer"] <= len(meta["layers"]) for item in meta["massive"]):
        raise damaged("a massive activation is in a layer that there is not")
    if meta["strip"]:
        typed("strip", meta["strip"], {"id": str, "tokens": list, "mass": list, "null": list})
        strip = meta["strip"]
        if not len(strip["tokens"]) == len(strip["mass"]) == len(strip["null"]):
            raise damaged("strip: tokens, mass and null are not of one length")
        if not all(isinstance(token, str) for token in strip["tokens"]) or not all(
            x is None or (isinstance(x, _NUMBER) and not isinstance(x, bool)) for x in (*strip["mass"], *strip["null"])
        ):
            raise damaged("strip: a token is not text, or a mass is not a number")
    missing = required(settings.detail) - set(arrays)
    if missing:
        raise damaged(f"its tensors lack {', '.join(sorted(missing)[:3])}")
    if arrays["first_sum"].ndim != 3:
        raise damaged("first_sum is not [sample, layer, head]")
    samples, layers, heads = arrays["first_sum"].shape
    if samples != len(meta["samples"]) or layers != len(meta["layers"]):
        raise damaged("its tensors and its text disagree on samples or layers")
    sizes = {"S": samples, "L": layers, "H": heads, "R": layers + 1, "4": 4, "5": 5}
    if "key_n" in arrays:
        sizes["T"] = arrays["key_n"].shape[-1]
    for name, array in arrays.items():
        if name not in SCHEMA:
            raise damaged(f"unknown array {name!r}")
        axes = SCHEMA[name][0]
        expected = [bins(name) if axis == "B" else sizes[axis] for axis in axes]
        if list(array.shape) != expected:
            raise damaged(f"{name} has shape {list(array.shape)}, expected {expected} for the axes {axes}")
        whole = name in INTEGER_ROWS or not axes.startswith("S")
        if array.dtype != (np.int64 if whole else np.float64):
            raise damaged(f"{name} holds {array.dtype}, expected {'int64' if whole else 'float64'}")
