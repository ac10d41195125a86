"""What one arm of a quantization plan does, as plain values: to JSON, back, onto a model, and as a list of what stays whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from sinkgate.cache.registry import as_policy
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, RecordError
from sinkgate.files import BROKEN, typed
from sinkgate.hf.quantized import QuantizedModel
from sinkgate.hf.quantized_mixed import Inputs, Part, quantized_mixed
from sinkgate.quantization import Quantization

__all__ = ["ActivationSpec", "KVSpec", "Spec", "WeightSpec", "apply_quantization", "keep_list", "spec_from_json"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class KVSpec:
    """Keys and values in a packed cache.

    Args:
        policy: of :func:`sinkgate.streaming`, as text.
        positions: ``slots`` or ``original``.
        tokens: whose keys and values stay as the model computes them.
        heads: (layer, key-value head) that have more bits.
    """

    place: ClassVar[str] = "kv"
    policy: str
    positions: str = "slots"
    tokens: tuple[Sinks, ...] = ()
    heads: tuple[Pair, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"place": self.place, "policy": self.policy, "positions": self.positions, "tokens": _tokens(self.tokens),
                "heads": [list(pair) for pair in self.heads]}  # fmt: skip


@dataclass(frozen=True)
class WeightSpec:
    """Weights of linear layers, each in its own kind of numbers.

    Args:
        modules: (name, how); a linear layer that is not named stays as it is.
        parts: rows or columns of them that are quantised by themselves.
        prefix: the first so many tokens go through the weights as they were.
        heads: (layer, key-value head) whose parts these are.
    """

    place: ClassVar[str] = "weights"
    modules: tuple[tuple[str, Quantization], ...]
    parts: tuple[Part, ...] = ()
    prefix: int = 0
    heads: tuple[Pair, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; modules are listed under what they are quantised to."""
        groups: dict[str, list[str]] = {}
        for name, how in self.modules:
            groups.setdefault(str(how), []).append(name)
        parts = [
            {"module": p.module, "axis": p.axis, "spans": [list(s) for s in p.spans], "how": str(p.how)} for p in self.parts
        ]  # fmt: skip
        return {"place": self.place, "modules": groups, "parts": parts, "prefix": self.prefix,
                "heads": [list(pair) for pair in self.heads]}  # fmt: skip


@dataclass(frozen=True)
class ActivationSpec:
    """Inputs of linear layers, with their weights.

    Args:
        modules: names of the linear layers.
        weights: how their weights are quantised.
        inputs: how their inputs are.
        tokens: whose inputs stay as they are.
        channels: (name, channels of its input that stay as they are).
        heads: (name, its input is so many heads, each with a scale of its own).
    """

    place: ClassVar[str] = "activations"
    modules: tuple[str, ...]
    weights: Quantization
    inputs: Quantization
    tokens: tuple[Sinks, ...] = ()
    channels: tuple[tuple[str, tuple[int, ...]], ...] = ()
    heads: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; names are listed under their channels."""
        groups: dict[tuple[int, ...], list[str]] = {}
        for name, channels in self.channels:
            groups.setdefault(channels, []).append(name)
        return {
            "place": self.place, "modules": list(self.modules), "weights": str(self.weights), "inputs": str(self.inputs),
            "tokens": _tokens(self.tokens), "heads": dict(self.heads),
            "channels": [{"channels": list(c), "modules": names} for c, names in groups.items()],
        }  # fmt: skip


Spec = KVSpec | WeightSpec | ActivationSpec


def spec_from_json(data: Any) -> Spec:
    """The way back from ``to_json``.

    Raises:
        RecordError: it is damaged, or of no known place.
    """
    typed("a quantization spec", data, {"place": str})
    read = _READ.get(data["place"])
    if read is None:
        raise RecordError(f"a quantization spec is for {', '.join(_READ)}, got {data['place'][:80]!r}")
    where = f"the spec for {data['place']}"
    try:
        return read(where, data)
    except RecordError:
        raise
    except BROKEN as err:  # an ArgumentError of what is inside is a ValueError
        raise RecordError(f"{where} is damaged: {str(err)[:200]}") from err


def _kv(where: str, data: dict[str, Any]) -> KVSpec:
    typed(where, data, {"policy": str, "positions": str, "tokens": list, "heads": list})
    if data["positions"] not in ("slots", "original"):
        raise RecordError(f"{where}: positions must be slots or original, got {data['positions'][:80]!r}")
    as_policy(data["policy"])
    return KVSpec(data["policy"], data["positions"], _sinks(where, data["tokens"]), _pairs(where, data["heads"]))


def _weights(where: str, data: dict[str, Any]) -> WeightSpec:
    typed(where, data, {"modules": dict, "parts": list, "prefix": int, "heads": list})
    for part in data["parts"]:
        typed(f"{where}, a part", part, {"module": str, "axis": str, "spans": list, "how": str})
    if data["prefix"] < 0:
        raise RecordError(f"{where}: prefix must be at least 0, got {data['prefix']}")
    modules = tuple((name, _how(how)) for how, names in data["modules"].items() for name in _names(where, names))
    parts = tuple(Part(p["module"], p["axis"], _pairs(where, p["spans"]), _how(p["how"])) for p in data["parts"])
    return WeightSpec(modules, parts, data["prefix"], _pairs(where, data["heads"]))


def _activations(where: str, data: dict[str, Any]) -> ActivationSpec:
    kinds = {"modules": list, "weights": str, "inputs": str, "tokens": list, "channels": list, "heads": dict}
    typed(where, data, kinds)
    channels = []
    for entry in data["channels"]:
        typed(f"{where}, its channels", entry, {"channels": list, "modules": list})
        numbers = tuple(_whole(where, c) for c in entry["channels"])
        channels += [(name, numbers) for name in _names(where, entry["modules"])]
    heads = tuple((name, _whole(where, n, 1)) for name, n in data["heads"].items())
    return ActivationSpec(
        tuple(_names(where, data["modules"])), _how(data["weights"]), Quantization.from_text(data["inputs"]).at("activations"),
        _sinks(where, data["tokens"]), tuple(channels), heads,
    )  # fmt: skip


_READ: dict[str, Callable[[str, dict[str, Any]], Spec]] = {"kv": _kv, "weights": _weights, "activations": _activations}


def _how(text: str) -> Quantization:
    return Quantization.from_text(text).at("weights")


def _names(where: str, names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise RecordError(f"{where}: modules must be a list of names")
    return names


def _whole(where: str, x: Any, least: int = 0) -> int:
    if isinstance(x, bool) or not isinstance(x, int) or x < least:
        raise RecordError(f"{where}: a whole number of at least {least} was expected, got {x!r}"[:200])
    return x


def _pairs(where: str, pairs: Any) -> tuple[Pair, ...]:
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise RecordError(f"{where}: pairs of whole numbers were expected")
    return tuple((_whole(where, a), _whole(where, b)) for a, b in pairs)


def _tokens(sinks: tuple[Sinks, ...]) -> list[dict[str, Any]]:
    return [{"first": s.n} if s.by_count else {"ids": list(s.token_ids), "most": s.n} for s in sinks]


def _sinks(where: str, entries: list[Any]) -> tuple[Sinks, ...]:
    found = []
    for entry in entries:
        if isinstance(entry, dict) and "first" in entry:
            found.append(Sinks(_whole(where, entry["first"], 1)))
        else:
            typed(f"{where}, its tokens", entry, {"ids": list, "most": int})
            found.append(Sinks(entry["most"], token_ids=tuple(_whole(where, i) for i in entry["ids"])))
    return tuple(found)


# ---- what it is good for ------------------------------------------------------------------------------------------------


@contextmanager
def apply_quantization(model: nn.Module, spec: Spec | dict[str, Any]) -> Iterator[QuantizedModel]:
    """Inside the ``with``, the model's weights or activations are as the spec says; outside it is bit for bit what it was.

    Args:
        model: the transformers model of the plan.
        spec: of an arm, or its JSON.

    Raises:
        ArgumentError: a spec of keys and values, or one that names layers this model does not have.
        RecordError: JSON that is damaged.
        UnsupportedError: see :func:`sinkgate.hf.quantized_mixed.quantized_mixed`.
    """
    spec = spec_from_json(spec) if isinstance(spec, dict) else spec
    if isinstance(spec, KVSpec):
        raise ArgumentError(
            f"keys and values are quantised by a cache: with sg.streaming(model, {spec.policy!r}, "
            f"positions={spec.positions!r}) as cache: model(ids, cache=cache)"
        )
    if isinstance(spec, WeightSpec):
        with quantized_mixed(model, dict(spec.modules), spec.parts, prefix=spec.prefix) as done:
            yield done
        return
    inputs = Inputs(spec.inputs, spec.tokens, dict(spec.channels), dict(spec.heads))
    with quantized_mixed(model, dict.fromkeys(spec.modules, spec.weights), inputs=inputs) as done:
        yield done


def keep_list(spec: Spec, model: nn.Module | None = None) -> dict[str, Any]:
    """What stays in full precision, and what is kept in more bits, as plain JSON.

    Args:
        spec: of an arm.
        model: to name also the linear layers that are not quantised at all; without it ``modules`` is None.

    Returns:
        ``tokens`` (``first``, or ``ids`` and how many of them at most), ``channels`` and ``modules`` in full precision;
        ``more_bits``: heads, modules and parts of modules in more bits than the rest, with how.
    """
    tokens: tuple[Sinks, ...] = ()
    more: dict[str, Any] = {"heads": [], "modules": {}, "parts": []}
    data = spec.to_json()
    modules = None
    if not isinstance(spec, KVSpec) and model is not None:
        from sinkgate.hf.linears import find_linears

        named = {name for name, _ in spec.modules} if isinstance(spec, WeightSpec) else set(spec.modules)
        modules = [layer.name for layer in find_linears(model, lm_head=True).linears if layer.name not in named]
    if isinstance(spec, WeightSpec):
        tokens = (Sinks(spec.prefix),) if spec.prefix else ()
        least = min((how.bits for _, how in spec.modules), default=0)
        more["modules"] = {name: str(how) for name, how in spec.modules if how.bits > least}
        more["parts"] = data["parts"]
    else:
        tokens = spec.tokens
    if not isinstance(spec, ActivationSpec):
        more["heads"] = data["heads"]
    return {"place": spec.place, "tokens": _tokens(tokens), "channels": data.get("channels", []), "modules": modules,
            "more_bits": more}  # fmt: skip
