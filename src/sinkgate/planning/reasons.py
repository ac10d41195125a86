"""Sentences: why a setting was chosen, and what could not be promised. Numbers come from the evidence alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sinkgate.cache.sizes import human
from sinkgate.planning.promise import mean_of
from sinkgate.planning.request import Request
from sinkgate.planning.search import Search
from sinkgate.planning.texts import Split
from sinkgate.planning.verify import Verdict
from sinkgate.record import Diagnosis

__all__ = ["chosen", "none_kept", "none_verified", "not_promised", "recalled"]


def none_kept(it: Search) -> str:
    """No setting kept the tolerance on the tuning texts."""
    measured = it.measured
    what = f"None of the {len(measured)} settings that were measured" if measured else "No setting"
    failed = [t for t in it.trials if t.state in ("failed", "out of memory")]
    if not measured and failed:
        return f"None of the {len(failed)} settings that were tried could be measured ({failed[0].why}): leave it."
    if not measured:
        return f"{what} was lighter than the model as it is and fit the request: leave it."
    best = min(measured, key=lambda t: mean_of(t.nats).mean)
    increase = math.expm1(mean_of(best.nats).mean)
    if it.request.nats is not None and mean_of(best.nats).mean <= it.request.nats:
        return (
            f"{what} kept the tolerance with room for other texts; the mildest, {best.setting}, raised the perplexity of the tuning "
            f"texts by {increase:.2%}: leave it."
        )
    return f"{what} kept the tolerance on the tuning texts; the mildest, {best.setting}, raised the perplexity by {increase:.2%}: leave it."


def none_verified(verdicts: Sequence[Verdict], request: Request) -> str:
    """Those that were tuned to the tolerance could not be verified."""
    assert request.max_increase is not None
    tried = "; ".join(
        f"{v.setting} {v.increase.mean:+.2%} over {len(v.nats)} texts, promised for others {math.expm1(v.bound or 0.0):+.2%}"
        for v in verdicts
    )
    return f"No setting could be promised to stay within {request.max_increase:.2%} on other texts ({tried}): leave it."


def not_promised(verdicts: Sequence[Verdict], texts: Split, request: Request) -> list[str]:
    """Where more text would have decided."""
    found = []
    for v in verdicts:
        if v.more is not None and v.more > len(v.nats):
            more = (
                f"The text is too short for this tolerance: {v.setting} would need about {v.more} verification texts of {texts.length:,} "
                f"tokens ({v.more * texts.length:,} tokens; {len(v.nats)} were read)"
            )
            found.append(
                more + ("." if texts.short or request.effort == "thorough" else "; effort 'thorough' reads more.")
            )
    return found


def chosen(
    plan: Any, it: Search, verdict: Verdict, verdicts: Sequence[Verdict], record: Diagnosis, part: str
) -> list[str]:
    """Why this one."""
    saved = plan.predicted["bytes"] / plan.predicted["dense_bytes"]
    lines = [
        f"{plan.setting} keeps {human(plan.predicted['bytes'])} of {human(plan.predicted['dense_bytes'])} ({saved:.0%}) at "
        f"{plan.meta['context']:,} tokens."
    ]
    increase = verdict.increase
    spread = "" if increase.low is None else f" (95% interval {increase.low:+.2%} to {increase.high:+.2%})"
    lines.append(
        f"On {increase.n} texts that the search never saw the perplexity rises by {increase.mean:+.2%}{spread}."
    )
    if verdict.bound is not None and plan.request.max_increase is not None:
        lines.append(
            f"For other texts like these it is promised to stay within {plan.request.max_increase:.2%}: the bound is "
            f"{math.expm1(verdict.bound):+.2%}."
        )
    rate, heads = record.sink_rate(), int(record.measured.sum())
    lines.append(
        f"The record: {rate:.0%} of {heads} heads give the first token over {record.settings.threshold:g} of their weight; "
        + (f"sinks that recur in its texts: {part}." if part else "no sink recurs in its texts.")
    )
    lines += _sinks(it)
    lines += _positions(it)
    costs = plan.meta["forgetting"]
    if len(costs) > 1:
        worst = sorted(costs, key=lambda i: -costs[i])[:3]
        total = sum(costs.values())
        if total > 0:
            share = sum(costs[i] for i in worst) / total
            lines.append(
                f"Of what single layers lose when they alone forget, layers {', '.join(worst)} lose {share:.0%}."
            )
    missed = sum(not v.kept for v in verdicts)
    if missed:
        lines.append(f"{missed} other setting{'s' * (missed > 1)} could not be verified to keep the tolerance.")
    if plan.baseline is not None:
        lines.append(_baseline(plan))
    states = [t.state for t in it.trials]
    lines.append(
        f"{len(it.trials)} settings were proposed: {len(it.measured)} measured ({states.count('refuted')} refuted), "
        f"{states.count('skipped')} decided by what was known, {states.count('out of memory')} ran out of memory, "
        f"{states.count('failed')} failed."
    )
    return lines


def _pairs(it: Search, name: str) -> list[tuple[Any, Any, float]]:
    """Trials that differ in one thing alone: (its value here, there, difference of their means over shared texts)."""
    found = []
    measured = it.measured
    for i, a in enumerate(measured):
        for b in measured[i + 1 :]:
            if a.choice[name] != b.choice[name] and {**a.choice, name: 0} == {**b.choice, name: 0}:
                n = min(len(a.nats), len(b.nats))
                found.append((a.choice[name], b.choice[name], float(np.mean(a.nats[:n]) - np.mean(b.nats[:n]))))
    return found


def _sinks(it: Search) -> list[str]:
    """What keeping sinks was worth, where two trials differ in that alone."""
    lines = []
    for one, other, change in _pairs(it, "sinks"):
        a, b = (it.space.sinks[i] or "no sinks" for i in (one, other))
        lines.append(f"With all else equal, {a} instead of {b} changes the tuned loss by {change:+.4f} nats.")
    return lines[:2]


def _positions(it: Search) -> list[str]:
    return [
        f"With all else equal, positions by {one} instead of {other} change the tuned loss by {change:+.4f} nats."
        for one, other, change in _pairs(it, "positions")[:1]
    ]


def _baseline(plan: Any) -> str:
    other, d = plan.baseline["setting"], plan.baseline["difference"]
    if plan.baseline["taken"]:
        return f"{other['policy']}, of no more bytes, was better than what the search found, beyond the interval, and is the plan."
    words = "not told apart"
    if d["high"] is not None and d["high"] < 0:
        words = "better beyond the interval"
    elif d["low"] is not None and d["low"] > 0:
        words = "worse beyond the interval, but the other could not be verified to keep the tolerance"
    spread = "" if d["low"] is None else f" [{d['low']:+.4f}, {d['high']:+.4f}]"
    return f"Beside {other['policy']} of the same bytes the plan loses {d['mean']:+.4f}{spread} nats: {words}."


def recalled(run: Any) -> list[str]:
    """What is recalled, since perplexity alone can hide a dead memory."""
    return [f"Recall, {arm.name}: {run.cliff(arm)}." for arm in run.arms]
