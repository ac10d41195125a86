"""Outlets on disk: a safetensors file and a small JSON, beside the model or alone."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from sinkgate.errors import ModelError, OutputError, RecordError
from sinkgate.files import write_atomically
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.layers import attention_layers
from sinkgate.hf.outlet import Outlets, add_outlet, describe, outlets, remove_outlet
from sinkgate.hf.place import OUTLET
from sinkgate.outlet import from_json

__all__ = ["attach", "load_outlet", "save_outlet"]

FORMAT, VERSION = "sinkgate.outlet", 1
JSON, TENSORS = "sinkgate_outlet.json", "sinkgate_outlet.safetensors"
TOKEN = "sinkgate_token"


def save_outlet(model: nn.Module, directory: str | os.PathLike[str]) -> Path:
    """Write the model's outlets: ``sinkgate_outlet.safetensors`` and ``sinkgate_outlet.json``, a few kilobytes to megabytes.

    ``model.save_pretrained`` keeps them too, among the weights; this is for an outlet without its model.

    Raises:
        ArgumentError: the model has none.
        OutputError: they cannot be written.
    """
    directory = Path(directory)
    data = safetensors.torch.save(_tensors(model))
    meta = {
        "format": FORMAT, "version": VERSION, **describe(model), "model": fingerprint(model, outlets=False),
        "class": type(model).__name__, "sha256": hashlib.sha256(data).hexdigest(),
    }  # fmt: skip
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / TENSORS, data)
        write_atomically(directory / JSON, json.dumps(meta, indent=1).encode())
    except OSError as err:
        raise OutputError(f"cannot write the outlet to {directory}: {err.strerror or err}") from err
    return directory


def load_outlet(model: nn.Module, directory: str | os.PathLike[str], *, force: bool = False) -> Outlets:
    """Add a saved outlet to its model.

    Args:
        model: the model it was fitted to, without an outlet.
        directory: what :func:`save_outlet` wrote, or ``save_pretrained`` of a model with outlets.
        force: add it to weights that are not the same (another dtype, say).

    Raises:
        RecordError: there is none, or it is damaged.
        ModelError: it was fitted to another model.
        UnsupportedError: the model has an outlet already.
    """
    directory = Path(directory)
    path = directory / JSON
    if not path.exists():
        return _from_model_folder(model, directory)
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        data = (directory / TENSORS).read_bytes()
    except (OSError, ValueError) as err:
        raise RecordError(f"the outlet in {directory} cannot be read: {err}") from err
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or meta.get("version") != VERSION:
        raise RecordError(f"{path} is no outlet of version {VERSION}")
    if hashlib.sha256(data).hexdigest() != meta.get("sha256"):
        raise RecordError(f"{directory / TENSORS} is damaged: its SHA-256 is not the recorded one")
    mine = fingerprint(model, outlets=False)
    if meta.get("model") != mine and not force:
        raise ModelError(
            f"this outlet was fitted to {meta.get('class')} with fingerprint {meta.get('model')}, this model is "
            f"{type(model).__name__} {mine}; load the model it belongs to, or force=True where only the dtype differs"
        )
    return attach(model, meta, safetensors.torch.load(data), str(directory))


def attach(model: nn.Module, described: Any, tensors: dict[str, Tensor], label: str) -> Outlets:
    """Build the outlets that ``described`` speaks of and fill in their tensors.

    Raises:
        RecordError: the description and the tensors or the model do not go together.
    """
    try:
        spec = from_json(described["outlet"])
        heads = {int(layer): tuple(some) for layer, some in described["heads"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise RecordError(f"the outlet in {label} is damaged: {err}") from err
    sizes = {a.layer: a for a in attention_layers(model)}
    if not set(heads) <= set(sizes):
        raise ModelError(f"the outlet in {label} is for layers {sorted(heads)}, this model has {sorted(sizes)}")
    for layer, some in heads.items():
        if not all(isinstance(h, int) and 0 <= h < sizes[layer].heads for h in some):
            raise RecordError(f"the outlet in {label} is damaged: layer {layer} has no heads {list(some)}")
    found = add_outlet(model, spec, layers=sorted(heads))
    wanted = _tensors(model)
    if {k: v.shape for k, v in wanted.items()} != {k: v.shape for k, v in tensors.items()}:
        remove_outlet(model)
        different = sorted(set(wanted) ^ set(tensors)) or [k for k in wanted if wanted[k].shape != tensors[k].shape]
        raise RecordError(f"the outlet in {label} does not fit: {', '.join(different[:3])}")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])
        for outlet in found.layers.values():
            outlet.everywhere = bool(outlet.on.all())
    setattr(compat.config(model), OUTLET, describe(model))
    return outlets(model)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """``layer.name`` → tensor (parameters and the levels they count from), and a sink token's embedding."""
    found = outlets(model)
    tensors = {f"{i}.{n}": t.detach() for i, o in found.layers.items() for n, t in o.state_dict().items()}
    if found.token is not None:
        tensors[TOKEN] = found.token.detach()
    return tensors


def _from_model_folder(model: nn.Module, directory: Path) -> Outlets:
    """The outlets that ``save_pretrained`` kept among the weights."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise RecordError(f"no outlet in {directory}: expected {JSON}, or a model saved with its outlets") from err
    described = config.get(OUTLET)
    if not isinstance(described, dict):
        raise RecordError(f"the model in {directory} was saved without an outlet, and {JSON} is not there")
    names = {f"{a.name}.{OUTLET}.": a.layer for a in attention_layers(model)}
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safetensors.safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - a safetensors file is no dict
                layer = next((layer for prefix, layer in names.items() if key.startswith(prefix)), None)
                if layer is not None:
                    tensors[f"{layer}.{key.split(f'.{OUTLET}.', 1)[1]}"] = file.get_tensor(key)
                elif key == TOKEN:
                    tensors[TOKEN] = file.get_tensor(key)
    compat.config(model).__dict__.pop(OUTLET, None)  # add_outlet writes it again
    return attach(model, described, tensors, str(directory))


def is_outlet_key(name: str) -> bool:
    """Whether a weight's name is one of an outlet's."""
    return f".{OUTLET}." in name or name == TOKEN
