"""A quantization spec in torchao's words: as plain JSON, and as the object itself where torchao is installed.

torchao is imported when the object is asked for, not before. What it cannot say is listed with the reason.
"""

from __future__ import annotations

import importlib
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from sinkgate.errors import ArgumentError, RecordError, UnsupportedError
from sinkgate.files import typed
from sinkgate.planning.quantization_spec import ActivationSpec, KVSpec, Spec, WeightSpec
from sinkgate.quantization import Quantization

__all__ = ["build_torchao", "torchao_config"]

INT4_GROUPS = (32, 64, 128, 256)  # what Int4WeightOnlyConfig takes
Config = dict[str, Any]


def torchao_config(spec: Spec, model: nn.Module | None = None) -> dict[str, Any]:
    """The spec for ``torchao.quantization.quantize_``, as plain JSON.

    Args:
        spec: of an arm.
        model: to leave out layers that torchao does not know as linear (GPT-2's ``Conv1D``); without it none is looked at.

    Returns:
        ``config``: ``{"class", "arguments"}``, of a ``ModuleFqnToConfig`` ``{"class", "modules": {name: config}}``, in which a
        module that is not named stays as it is; None where torchao says nothing of this. ``left_out``: what it cannot say, and
        why. ``notes``: where its numbers are not those that were measured.
    """
    left: list[dict[str, str]] = []
    notes = ["torchao's whole numbers reach one further below 0 (−128 to 127), so that its steps are a little finer than those "
             "that were measured (−127 to 127)"]  # fmt: skip
    if isinstance(spec, KVSpec):
        left.append({"what": spec.policy, "why": "torchao quantises weights and activations, not this cache: "
                     f"use sg.streaming(model, {spec.policy!r}, positions={spec.positions!r})"})  # fmt: skip
        return {"config": None, "left_out": left, "notes": []}
    configs: dict[str, Config] = {}
    known = None if model is None else dict(model.named_modules())
    named = spec.modules if isinstance(spec, WeightSpec) else tuple((name, spec.weights) for name in spec.modules)
    cut = {p.module for p in spec.parts} if isinstance(spec, WeightSpec) else set()
    for name, how in named:
        module = None if known is None else known.get(name)
        config = _weight(how) if isinstance(spec, WeightSpec) else _both(spec, how)
        if known is not None and not isinstance(module, nn.Linear):
            left.append({"what": name, "why": f"torchao quantises nn.Linear, this is {type(module).__name__}"})
        elif config is None:
            left.append({"what": name, "why": f"torchao has no configuration for {_asked(spec, how)}"})
        else:
            configs[name] = config
    for name in sorted(cut):
        left.append({"what": f"rows or columns of {name} in other bits", "why": "torchao quantises a weight as a whole: here "
                     "it is all in the bits of its larger part"})  # fmt: skip
    if isinstance(spec, WeightSpec):
        if spec.prefix:
            left.append({"what": f"keys and values of the first {spec.prefix} tokens in full precision", "why": "torchao does "
                         "not know the cache: read them with the full-precision model and hand its cache on"})  # fmt: skip
        if any(c["class"] == "Int4WeightOnlyConfig" for c in configs.values()):
            notes.append(
                "Int4WeightOnlyConfig counts from a zero point; measured were symmetric numbers in the same groups"
            )
    else:
        _activation_notes(spec, left)
    config = {"class": "ModuleFqnToConfig", "modules": configs} if configs else None
    return {"config": config, "left_out": left, "notes": notes}


def _activation_notes(spec: ActivationSpec, left: list[dict[str, str]]) -> None:
    if spec.tokens:
        left.append({"what": f"inputs of {' + '.join(map(str, spec.tokens))} as they are", "why": "torchao takes one range of "
                     "all tokens: read these first, unquantised, and hand the cache on"})  # fmt: skip
    if spec.channels:
        left.append({"what": f"{len(spec.channels)} layers' outlier channels as they are", "why": "torchao quantises all "
                     "channels of an input alike"})  # fmt: skip
    if spec.heads:
        left.append({"what": f"a scale per head at {len(spec.heads)} output projections", "why": "torchao has a scale per "
                     "tensor or per token"})  # fmt: skip


def _weight(how: Quantization) -> Config | None:
    """Symmetric weights, per channel or in groups."""
    if not how.symmetric or how.granularity not in ("channel", "group"):
        return None
    if how.bits == 4 and how.group in INT4_GROUPS:
        return {"class": "Int4WeightOnlyConfig", "arguments": {"group_size": how.group}}
    if how.bits == 8 and how.group is None:
        return {"class": "Int8WeightOnlyConfig", "arguments": {}}
    per = {"class": "PerAxis", "arguments": {"axis": 0}} if how.group is None else {
        "class": "PerGroup", "arguments": {"group_size": how.group}}  # fmt: skip
    return {"class": "IntxWeightOnlyConfig", "arguments": {"weight_dtype": f"torch.int{how.bits}", "granularity": per}}


def _both(spec: ActivationSpec, how: Quantization) -> Config | None:
    """Weights per channel, inputs per tensor or token, both in 8 bits."""
    kinds = {"tensor": "PerTensor", "token": "PerRow"}
    inputs = spec.inputs
    if (how.bits, how.granularity, inputs.bits) != (8, "channel", 8) or inputs.granularity not in kinds:
        return None
    if not (how.symmetric and inputs.symmetric):
        return None
    granularity = [{"class": kinds[inputs.granularity], "arguments": {}}, {"class": "PerRow", "arguments": {}}]
    return {"class": "Int8DynamicActivationInt8WeightConfig", "arguments": {"granularity": granularity}}


def _asked(spec: Spec, how: Quantization) -> str:
    return f"{how} weights with {spec.inputs} inputs" if isinstance(spec, ActivationSpec) else f"{how} weights"


# ---- the object itself --------------------------------------------------------------------------------------------------

_CLASSES = {
    "Int4WeightOnlyConfig": {"group_size"}, "Int8WeightOnlyConfig": set(), "IntxWeightOnlyConfig": {"weight_dtype", "granularity"},
    "Int8DynamicActivationInt8WeightConfig": {"granularity"}, "PerAxis": {"axis"}, "PerGroup": {"group_size"}, "PerTensor": set(),
    "PerRow": set(),
}  # fmt: skip


def build_torchao(exported: dict[str, Any]) -> Any:
    """The torchao object of an export, for ``quantize_(model, config, filter_fn=None)``.

    Args:
        exported: what :func:`torchao_config` gave, through JSON or not.

    Raises:
        ArgumentError: it has no configuration; says what was left out.
        RecordError: it is damaged, or names a class or argument that no export has.
        UnsupportedError: torchao is not installed, or its version lacks a class.
    """
    typed("a torchao export", exported, {"config": (dict, type(None)), "left_out": list})
    config = exported["config"]
    if config is None:
        why = "; ".join(str(entry.get("why")) for entry in exported["left_out"] if isinstance(entry, dict))
        raise ArgumentError(f"torchao has nothing to do here: {why or 'the export is empty'}"[:400])
    typed("a torchao configuration", config, {"class": str, "modules": dict})
    if config["class"] != "ModuleFqnToConfig":
        raise RecordError(f"a torchao export holds a ModuleFqnToConfig, got {config['class'][:80]!r}")
    try:
        ao = importlib.import_module("torchao.quantization")
    except ModuleNotFoundError as err:
        raise UnsupportedError("torchao is not installed: pip install torchao, or use the export's JSON") from err
    modules = OrderedDict((name, _made(ao, entry)) for name, entry in config["modules"].items())
    return _class(ao, "ModuleFqnToConfig")(modules)


def _made(ao: Any, entry: Any) -> Any:
    typed("a torchao configuration", entry, {"class": str, "arguments": dict})
    known = _CLASSES.get(entry["class"])
    if known is None or set(entry["arguments"]) - known:
        raise RecordError(
            f"no export has a {entry['class'][:80]!r} with {', '.join(map(str, entry['arguments']))[:80]}"
        )
    return _class(ao, entry["class"])(**{n: _argument(ao, n, x) for n, x in entry["arguments"].items()})


def _argument(ao: Any, name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _made(ao, value)
    if isinstance(value, list):
        return [_argument(ao, name, x) for x in value]
    if name == "weight_dtype":
        found = getattr(torch, str(value).removeprefix("torch."), None)
        if value not in {f"torch.int{n}" for n in range(2, 9)} or found is None:
            raise RecordError(f"weight_dtype must be torch.int2 to torch.int8, got {value!r}"[:200])
        return found
    if isinstance(value, bool) or not isinstance(value, int):
        raise RecordError(f"{name} must be a whole number, got {value!r}"[:200])
    return value


def _class(ao: Any, name: str) -> Any:
    """A class of torchao; granularities have moved between its versions."""
    found = getattr(ao, name, None)
    if found is None:
        try:
            found = getattr(importlib.import_module("torchao.quantization.granularity"), name, None)
        except ModuleNotFoundError:
            found = None
    if found is None:
        raise UnsupportedError(f"this torchao has no {name}: pip install -U torchao")
    return found
