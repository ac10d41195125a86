"""A comparison's record → what the Lab page draws: the record's own words, table and intervals, and its curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sinkgate.lab.comparison_record import Comparison
from sinkgate.record import Interval
from sinkgate.report.metrics import metric
from sinkgate.report.text import finite

__all__ = ["LAB_VERSION", "lab_payload", "lines_to_series", "metrics_of"]

LAB_VERSION = 1
SHORT, MOST_POINTS = 60, 40_000  # numbers of all curves together; a record with more has them thinned
DULL = frozenset({"step", "lr", "tokens", "spike", "done"})  # no curve is drawn of these
TEXTS = 200  # characters of a reason


def lab_payload(record: Comparison) -> dict[str, Any]:
    """The payload of a comparison, in plain JSON types; the same record always gives the same one.

    ``said`` are the sentences of ``sinkgate compare`` with their gaps, ``table`` its table, ``differences`` and
    ``intervals`` by number and arm (95%, Student's t, differences paired by seed), ``pieces`` the curves of each arm at
    its best rate, ``runs`` every piece without its curve.
    """
    headline, plan = record.meta["headline"], record.meta["plan"]
    columns, rows = record.table()
    names = [
        n for n in (headline, *record.meta["shown"]) if any(np.isfinite(record.values(a, n)).any() for a in record.arms)
    ]
    pieces = [_piece(i, p) for i, arm in enumerate(record.arms) for p in record.at_best(arm)]
    _thin(pieces)
    by_layer = {
        n for p in record.pieces for n, x in p["test"].items() if n.endswith("_by_layer") and isinstance(x, list)
    }
    known = {headline, *names, *columns, *by_layer, *(n for p in pieces for n in p["series"])}
    return {
        "version": LAB_VERSION,
        "title": f"{plan['task']['name']}: {', '.join(record.arms)}",
        "task": plan["task"]["name"], "arms": record.arms, "seeds": list(plan["seeds"]), "headline": headline, "higher": record.meta["higher"],
        "steps": max((p["loop"].get("steps", p["steps"]) for p in record.pieces), default=0),
        "best_lr": [record.meta["best_lr"][arm] for arm in record.arms],
        "code": record.meta["environment"].get("code"), "device": record.meta["environment"].get("device"),
        "metrics": metrics_of(known),
        "said": [[sentence, values] for sentence, values in record.said()],
        "table": {"columns": columns, "rows": rows},
        "intervals": {n: [_interval(record.interval(arm, n)) for arm in record.arms] for n in names},
        "differences": {n: [_difference(record, arm, n) for arm in record.arms[1:]] for n in names},
        "layers": {n: [[p["test"][n] for p in record.at_best(arm) if isinstance(p["test"].get(n), list)] for arm in record.arms] for n in sorted(by_layer)},
        "pieces": pieces,
        "runs": [_run(record, p) for p in record.pieces],
    }  # fmt: skip


def metrics_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What is known of numbers: label, unit, one sentence, whether it is a share."""
    found = {name: metric(name) for name in sorted(names)}
    return {n: {"label": m.label, "unit": m.unit, "says": m.says, "share": m.share} for n, m in found.items()}


def lines_to_series(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Lines of a log as columns: name → steps and values, where it was logged. What is not finite is None."""
    series: dict[str, dict[str, list[Any]]] = {}
    for line in lines:
        for name, value in line.items():
            if name in DULL or not (value is None or isinstance(value, int | float)):
                continue
            column = series.setdefault(name, {"x": [], "y": []})
            column["x"].append(line["step"])
            column["y"].append(value if value is None or math.isfinite(value) else None)
    return {name: column for name, column in series.items() if any(v is not None for v in column["y"])}


# ---- private ------------------------------------------------------------------------------------------------------


def _piece(arm: int, piece: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "arm": arm, "seed": piece["piece"]["seed"], "lr": piece["piece"]["lr"], "steps": piece["steps"], "ended": True,
        "diverged": _diverged(piece["diverged"]), "spikes": list(piece["spikes"]), "series": lines_to_series(piece["curve"]),
    }  # fmt: skip


def _diverged(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if not found else {"step": found.get("step"), "why": str(found.get("why", ""))[:TEXTS]}


def _thin(pieces: Sequence[dict[str, Any]]) -> None:
    """Every n-th point of the long columns, in place; spikes and the last point stay."""
    points = sum(len(c["x"]) for p in pieces for c in p["series"].values())
    every = -(-points // MOST_POINTS)
    if every < 2:
        return
    for p in pieces:
        spikes = set(p["spikes"])
        for column in p["series"].values():
            if len(column["x"]) <= SHORT:  # evaluations
                continue
            kept = [i for i, x in enumerate(column["x"]) if i % every == 0 or x in spikes or i + 1 == len(column["x"])]
            column["x"], column["y"] = [column["x"][i] for i in kept], [column["y"][i] for i in kept]


def _interval(found: Interval) -> dict[str, Any]:
    return {"mean": float(found.mean), "low": float(found.low), "high": float(found.high), "samples": found.samples}


def _difference(record: Comparison, arm: str, name: str) -> dict[str, Any]:
    points = record.values(arm, name) - record.values(record.arms[0], name)
    told = record.told_apart(arm, None if name == record.meta["headline"] else name)
    return {**_interval(record.difference(arm, name)), "told": told, "points": [finite(x) for x in points]}


def _run(record: Comparison, piece: Mapping[str, Any]) -> dict[str, Any]:
    headline = record.meta["headline"]
    return {
        "arm": record.arms.index(piece["arm"]), "lr": piece["piece"]["lr"], "seed": piece["piece"]["seed"], "steps": piece["steps"],
        "chosen": piece["piece"]["lr"] == record.meta["best_lr"][piece["arm"]], "select": piece["select"].get(headline),
        "test": piece["test"].get(headline), "spikes": len(piece["spikes"]), "diverged": _diverged(piece["diverged"]),
    }  # fmt: skip
