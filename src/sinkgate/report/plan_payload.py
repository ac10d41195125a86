"""What a plan's page draws: the plan's own JSON without what was only counted, and its sentences in Chinese."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

from sinkgate.files import jsonable
from sinkgate.planning.promise import mean_of
from sinkgate.planning.record import Plan
from sinkgate.planning.search import Trial
from sinkgate.report.plan_chinese import in_chinese

__all__ = ["plan_payload"]

MOST = 64  # arms of fewer bits of one place


def plan_payload(plan: Plan) -> dict[str, Any]:
    """The plan in plain JSON types.

    Trials that were decided without measuring are counted (``counts``: state → how many); each of the others says whether it is
    on the frontier and whether it is the chosen one, and has the mean of its texts' last quarters (``lately``).
    ``quantization`` is a list of places with their arms, or None.
    """
    data: dict[str, Any] = jsonable(plan.to_json())
    frontier = set(plan.frontier)
    data["trials"] = [
        _trial(i, t, plan, i in frontier) for i, t in enumerate(plan.trials) if t.nats or t.state != "skipped"
    ]
    data["counts"] = dict(Counter(t.state for t in plan.trials))
    data["quantization"] = _places(plan.quantization) or None
    sentences = [*plan.reasons, *plan.refused, *plan.notes, *(t["why"] for t in data["trials"])]
    data["chinese"] = {text: chinese for text in sentences if (chinese := in_chinese(text)) is not None}
    return data


def _trial(i: int, trial: Trial, plan: Plan, best: bool) -> dict[str, Any]:
    lately = mean_of(trial.late).map(_increase).to_json() if trial.late else None
    data: dict[str, Any] = jsonable(trial.to_json())
    for name in ("choice", "nats", "late"):
        del data[name]
    return data | {
        "index": i,
        "texts": len(trial.nats),
        "lately": jsonable(lately),
        "frontier": best,
        "chosen": trial.setting == plan.setting,
    }


def _increase(nats: float) -> float:
    return math.expm1(nats) if nats < 700 else math.inf


# ---- arms of fewer bits -------------------------------------------------------------------------------------------------


def _places(found: Any) -> list[dict[str, Any]]:
    """Places with their arms, of a record of arms in one list or by place; what cannot be read is left out."""
    if not isinstance(found, dict):
        return []
    by_place: dict[str, dict[str, Any]] = {}
    for place, given, more in _given(found):
        here = by_place.setdefault(place, {"place": place, "arms": [], "won": None, "skipped": []})
        here["won"] = more.get("won") if isinstance(more.get("won"), str) else None
        for arm in given[:MOST]:
            if isinstance(arm, dict) and isinstance(arm.get("name"), str):
                here["arms"].append(_arm(arm))
        base = next((arm for arm in given if isinstance(arm, dict) and _numbers(arm.get("rises"))), None)
        for made, arm in zip(
            here["arms"], (a for a in given if isinstance(a, dict) and isinstance(a.get("name"), str)), strict=False
        ):
            if made["beside"] is None and base is not None and arm is not base:
                made["beside"] = _paired(arm.get("rises"), base["rises"])
    skipped = found.get("skipped")
    for place, reasons in skipped.items() if isinstance(skipped, dict) else ():
        if isinstance(reasons, dict):
            here = by_place.setdefault(str(place), {"place": str(place), "arms": [], "won": None, "skipped": []})
            here["skipped"] = [[str(name), str(why)] for name, why in list(reasons.items())[:MOST]]
    return [here for here in by_place.values() if here["arms"] or here["skipped"]]


def _given(found: dict[str, Any]) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    places, arms = found.get("places"), found.get("arms")
    if isinstance(places, dict):
        for name, place in places.items():
            if isinstance(place, dict) and isinstance(place.get("arms"), list):
                yield str(name), place["arms"], place
    if isinstance(arms, list):
        grouped: dict[str, list[Any]] = {}
        for arm in arms:
            if isinstance(arm, dict) and isinstance(arm.get("place"), str):
                grouped.setdefault(arm["place"], []).append(arm)
        for name, several in grouped.items():
            yield name, several, {}


def _arm(arm: dict[str, Any]) -> dict[str, Any]:
    """One arm: a mean of nats over its texts where it says each, what it says itself elsewhere."""
    rises, kls = arm.get("rises"), arm.get("kls")
    how = next((arm[key] for key in ("how", "words") if isinstance(arm.get(key), str)), "")
    size, unit = next(((arm[key], key) for key in ("bytes", "bits", "size") if _number(arm.get(key))), (None, ""))
    if unit == "size":
        unit = "bits" if arm.get("place") == "activations" else "bytes"
    kl: Any = arm.get("kl")
    if isinstance(kl, dict):
        kl = kl.get("mean")
    return {
        "name": arm["name"], "how": how, "size": size, "unit": unit,
        "increase": mean_of(rises).to_json() if _numbers(rises) else _mean(arm.get("increase")),
        "beside": _mean(arm.get("to_uniform")), "kl": sum(kls) / len(kls) if _numbers(kls) else kl if _number(kl) else None,
    }  # fmt: skip


def _paired(ours: Any, theirs: Sequence[float]) -> dict[str, Any] | None:
    if not _numbers(ours) or len(ours) != len(theirs):
        return None
    return mean_of([a - b for a, b in zip(ours, theirs, strict=True)]).to_json()


def _mean(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or not _number(value.get("mean")):
        return None
    return {name: value.get(name) if _number(value.get(name)) else None for name in ("mean", "low", "high", "n")}


def _number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e300
    )


def _numbers(values: Any) -> TypeGuard[Sequence[float]]:
    return isinstance(values, list | tuple) and bool(values) and all(_number(v) for v in values)
