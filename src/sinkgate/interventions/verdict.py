"""From measured effects to a sentence: the rules, and what is said.

With E the change of the loss under eviction, X its excess over the control, S the change under the scalar gate, and R
that with a constant in the sink's place (another text's first token; further in, the mean value of other texts' sinks):

* inert: the 95% interval of E or of X lies under ``INERT`` nats;
* not settled: E or X reaches 0, or E is under ``INERT``: more text is needed;
* content: R ≥ ``CONTENT``·E: a constant does not do, so what stands there matters (not asked where every text begins
  with the same beginning-of-text token, which is a constant already);
* gate-like: S ≤ ``PART``·E: what the sink writes does not matter, only the weight that it takes;
* bias-like (broadcast): S ≥ (1 − ``PART``)·E: what it writes is what is missed;
* part gate, part bias: between.

Where eviction lowers the loss by more than ``INERT``, none of these is said. A kind whose border lies within the
interval of its share is said with that reservation.
"""

from __future__ import annotations

import math

import numpy as np

from sinkgate.interventions.effects import Effects, Row
from sinkgate.record import Interval, student_interval

__all__ = ["CONTENT", "INERT", "PART", "kind", "nats", "verdict"]

INERT = 0.01  # nats per token: 1% of perplexity
CONTENT = 0.5
PART = 0.25
FOLD = 0.05  # of what eviction costs: a constant that costs less can stand for the sink


def kind(effects: Effects) -> str:
    """``inert``, ``content``, ``gate-like``, ``bias-like (broadcast)``, ``part gate, part bias`` or why there is none.

    The latter are ``unknown`` (not evicted, not gated, or one text), ``not settled`` and ``lowers the loss``.
    """
    evict = _found(effects, "evict")
    if evict is None or effects.samples < 2:
        return "unknown"
    change = effects.change(evict)
    excess = effects.excess(evict) or change
    if float(change.high) < 0 and float(change.mean) <= -INERT:
        return "lowers the loss"
    if min(float(change.high), float(excess.high)) < INERT:
        return "inert"
    if float(change.low) <= 0 or float(excess.low) <= 0 or float(change.mean) < INERT:
        return "not settled"
    constant, gate = _constant(effects), _found(effects, "scalar gate")
    if constant is not None and _share(effects, constant) >= CONTENT:
        return "content"
    if gate is None:
        return "unknown"
    share = _share(effects, gate)
    if share <= PART:
        return "gate-like"
    return "bias-like (broadcast)" if share >= 1 - PART else "part gate, part bias"


def verdict(effects: Effects) -> list[str]:
    """Sentences, each with its numbers."""
    evict = _found(effects, "evict")
    if evict is None:
        return ["Nothing was evicted, so there is no verdict."]
    found = kind(effects)
    lines = [_evicted(effects, evict)]
    if effects.samples < 2:
        lines.append("One text gives no interval, so there is no verdict: read at least two.")
    elif found == "lowers the loss":
        lines.append("Without it the model predicts better here: it is neither gate nor bias, and not inert.")
    elif found == "inert":
        lines.append(
            f"The sink is inert here: the 95% interval of that, or of its excess over the control, lies under {INERT} nats."
        )
    elif found == "not settled":
        lines.append(
            f"That is not told apart from no effect, nor shown to be under {INERT} nats: no verdict without more text."
        )
    else:
        lines += _what_it_is(effects, found)
    start = _found(effects, "masked from the start")
    if start is not None:
        lines.append(
            "Masked from the start instead, which is no eviction"
            + (" but makes the next token the first one" if not any(effects.meta["targets"]) else " (it never forms)")
            + f": {nats(effects.change(start))}."
        )
    if found_ranks := effects.rank_correlations():
        n = max(int(r["n"]) for r in found_ranks.values())
        lines.append(
            f"Over {n} heads evicted one by one (the top of the screening, and random ones), the rank correlation with the "
            "measured KL is "
            + ", ".join(f"{r['rho']:+.2f} for {name} (p = {r['p']:.2g})" for name, r in found_ranks.items())
            + "."
        )
    return lines


def nats(interval: Interval, unit: str = " nats") -> str:
    """A mean with its interval, signed."""
    mean, low, high = (float(x) for x in (interval.mean, interval.low, interval.high))
    return f"{mean:+.3f}{unit}" if math.isnan(low) else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]{unit}"


def _evicted(effects: Effects, evict: Row) -> str:
    control, where = effects.control(evict), effects.meta["where"]
    beside = "" if control is None else f"; a random other key evicted the same way: {nats(effects.change(control))}"
    here = "" if where == "everywhere" else f" in {len(where)} head{'s' if len(where) > 1 else ''}"
    return (
        f"Evicting {effects.meta['target']}{here} from query {effects.meta['settings']['burn_in']} on changes the loss by "
        f"{nats(effects.change(evict))} (perplexity {_ppl(effects.untouched)} → {_ppl(evict)}, {effects.samples} "
        f"text{'s' if effects.samples > 1 else ''}){beside}."
    )


def _what_it_is(effects: Effects, found: str) -> list[str]:
    gate, constant, mean_gate = _found(effects, "scalar gate"), _constant(effects), _found(effects, "constant gate")
    lines = []
    if found == "content":
        assert constant is not None
        return [
            f"Content: with {_what(constant)} in its place the loss changes by {nats(effects.change(constant))}, "
            f"{_share(effects, constant):.0%} of what eviction costs, so what stands there matters"
            f"{_reserved(effects, constant, CONTENT)}."
        ]
    if gate is not None:
        lines.append(
            f"{found[0].upper() + found[1:]}: keeping the sink's weight and dropping what it writes (v_s = 0) costs "
            f"{nats(effects.change(gate))}, {_share(effects, gate):.0%} of what eviction costs"
            f"{_reserved(effects, gate, PART, 1 - PART)}."
        )
    if mean_gate is not None:
        share = _share(effects, mean_gate)
        seen = float(effects.change(mean_gate).low) > 0 and float(effects.change(mean_gate).mean) >= INERT
        lines.append(
            f"A constant gate (g at its mean) costs {nats(effects.change(mean_gate))}, {share:.0%}: the gate "
            + ("depends on the query." if seen else "is not seen to depend on the query.")
        )
    if constant is not None:
        sentence = f"With {_what(constant)} in its place the loss changes by {nats(effects.change(constant))}"
        if _share(effects, constant, bound="high") < FOLD:
            sentence += ": nothing but the constant matters"
            sentence += (
                "" if constant.label == "mean value" else ", and it can be folded into parameters (sg.fold_sink)"
            )
        lines.append(sentence + ".")
    other = _found(effects, "transplant: another text")
    if effects.meta["bos"] and other is not None:
        lines.append(
            "The sink is the same beginning-of-text token in every text, a constant that can be folded into parameters "
            f"(sg.fold_sink); with another text's first token in its place the loss changes by {nats(effects.change(other))}: "
            + (
                "it is this token, not its place."
                if _share(effects, other) >= CONTENT
                else "it is the place, not the token."
            )
        )
    return lines


def _found(effects: Effects, label: str) -> Row | None:
    return next((r for r in effects.rows if r.label == label and r.kind == "act"), None)


def _constant(effects: Effects) -> Row | None:
    """The arm with a constant in the sink's place; None where the sink is one."""
    if effects.meta["bos"]:
        return None
    return _found(effects, "transplant: another text") or _found(effects, "mean value")


def _what(constant: Row) -> str:
    return (
        "the mean value of other texts' sinks"
        if constant.label == "mean value"
        else "key and value of another text's first token"
    )


def _share(effects: Effects, row: Row, bound: str = "mean") -> float:
    """Of what eviction costs on average: the mean, or the upper bound of its interval."""
    evict = _found(effects, "evict")
    assert evict is not None
    return float(getattr(effects.change(row), bound)) / float(effects.change(evict).mean)


def _reserved(effects: Effects, row: Row, *borders: float) -> str:
    """Says so if a border lies within the interval: if ``row − border·evict``, text by text, is not told apart from 0."""
    evict = _found(effects, "evict")
    assert evict is not None
    untouched, acted, gone = (np.asarray(r.loss) for r in (effects.untouched, row, evict))
    for border in borders:
        left = student_interval((acted - untouched) - border * (gone - untouched))
        if float(left.low) < 0 < float(left.high):
            return f" (with {effects.samples} texts not told apart from {border:.0%})"
    return ""


def _ppl(row: Row) -> str:
    return f"{math.exp(sum(row.loss) / len(row.loss)):.1f}"
