"""Whether a plan that somebody else may have written holds what its readers and its page go by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkgate.errors import RecordError
from sinkgate.evaluate.recall_record import RecallRun
from sinkgate.files import typed

__all__ = ["check_parts"]

LARGEST = 700  # nats whose exponential is still a number
_NUMBER, _MAYBE = (int, float), (int, float, type(None))
_MEAN = {"mean": _NUMBER, "low": _MAYBE, "high": _MAYBE, "upper": _MAYBE, "n": int}
_TEXT = {"id": str, "source": str, "tokens": int}
_MEASURED = {
    "promise": _MAYBE, "bytes": int, "dense_bytes": int, "predicted_bytes": int, "milliseconds": _NUMBER, "dense_milliseconds": _NUMBER,
    "predicted_ratio": _NUMBER, "length": int, "looked": list, "nats": list,
}  # fmt: skip
_META = {
    "texts": dict,
    "forgetting": dict,
    "versions": dict,
    "threads": int,
    "record": dict,
    "seconds": _NUMBER,
    "reused": int,
}


def check_parts(data: Mapping[str, Any]) -> None:
    """Refuse what is there and is not what it should be; what was not measured may be missing.

    Args:
        data: a plan's JSON, whose outermost fields are known to be of their types.

    Raises:
        RecordError: names the part.
    """
    _meta(data["meta"])
    predicted, measured, baseline = data["predicted"], data["measured"], data["baseline"]
    for name in ("milliseconds", "dense_milliseconds"):
        _there("its prediction", predicted, {name: _MAYBE})
    for name in ("bytes", "dense_bytes"):
        _positive(f"its prediction: {name}", predicted[name])
    _mean("its prediction: increase", predicted.get("increase"))
    _there("its measurement", measured, _MEASURED)
    for name in ("bytes", "dense_bytes"):
        _positive(f"its measurement: {name}", measured.get(name, 0))
    _numbers("its measurement: nats", measured.get("nats", []))
    for name in ("increase", "late", "kl", "agreement", "ratio"):
        _mean(f"its measurement: {name}", measured.get(name))
    if baseline is not None:
        typed(
            "its baseline",
            baseline,
            {"setting": dict, "bytes": int, "difference": dict, "increase": dict, "taken": bool},
        )
        typed("its baseline's setting", baseline["setting"], {"policy": str, "positions": str})
        _positive("its baseline: bytes", baseline["bytes"])
        for name in ("difference", "increase"):
            _mean(f"its baseline: {name}", baseline[name])
    for given in data["trials"]:
        typed("a trial", given, {"milliseconds": _MAYBE, "bytes": int, "setting": dict, "choice": dict})
        _positive("a trial: bytes", given["bytes"])
        for name in ("nats", "late"):
            _numbers(f"a trial: {name}", given[name])
    if data["recall"] is not None:
        try:
            recall = RecallRun.from_json(data["recall"])
        except RecordError as err:
            raise RecordError(f"the plan is damaged: its recall: {err}") from err
        if not all(o.distance >= 0 and 0 <= o.chance <= 1 for arm in recall.arms for o in arm.result.outcomes):
            raise RecordError("the plan is damaged: its recall: a distance below 0, or a chance that is none")


def _meta(meta: Mapping[str, Any]) -> None:
    typed("its meta", dict(meta), {"context": int})
    _positive("its meta: context", meta["context"])
    _there("its meta", meta, _META)
    for part in ("tune", "verify"):
        for text in _list("its texts", meta.get("texts", {}), part):
            typed(f"a text to {part} on", text, _TEXT)
    for layer, nats in meta.get("forgetting", {}).items():
        if not layer.isdecimal() or len(layer) > 5:
            raise RecordError(f"the plan is damaged: {layer[:40]!r} is no layer that could forget")
        typed("its forgetting layers", {layer: nats}, {layer: _NUMBER})
    for name, version in meta.get("versions", {}).items():
        typed("its versions", {name: version}, {name: str})
    _there("its record", meta.get("record", {}), {"samples": int, "tokens": int, "sinks": str})


def _there(where: str, value: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Those fields that are there, each of its type."""
    for name, kind in kinds.items():
        if name in value:
            typed(where, dict(value), {name: kind})


def _mean(where: str, value: Any) -> None:
    if value is not None:
        typed(where, value, _MEAN)


def _list(where: str, value: Mapping[str, Any], name: str) -> list[Any]:
    _there(where, value, {name: list})
    found: list[Any] = value.get(name, [])
    return found


def _numbers(where: str, values: list[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
            raise RecordError(f"the plan is damaged: {where} holds something that is no number of nats")


def _positive(where: str, value: int) -> None:
    if value < 0:
        raise RecordError(f"the plan is damaged: {where} is {value}")
