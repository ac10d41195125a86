"""From measured effects to a sentence: the rules, and the table that shows what they rest on.

With E the change of the loss under eviction, S under the scalar gate, C under the constant gate, T under a transplant:

* inert: E's interval reaches 0, or E < ``INERT`` nats, or E is not above its control;
* content: T ≥ ``CONTENT``·E: another text's token does not do, so what stands there matters;
* gate-like: S ≤ ``PART``·E: what the sink writes does not matter, only the weight that it takes;
* bias-like (broadcast): S ≥ (1 − ``PART``)·E: what it writes is what is missed;
* part gate, part bias: between.
"""

from __future__ import annotations

import math
from typing import Any

from sinkgate.interventions.effects import Effects, Row

__all__ = ["CONTENT", "INERT", "PART", "kind", "text", "verdict"]

INERT = 0.01  # nats per token
CONTENT = 0.5
PART = 0.25


def _found(effects: Effects, label: str) -> Row | None:
    return next((r for r in effects.rows if r.label == label and r.kind == "act"), None)


def kind(effects: Effects) -> str:
    """``inert``, ``content``, ``gate-like``, ``bias-like (broadcast)``, ``part gate, part bias`` or ``unknown``."""
    evict = _found(effects, "evict")
    if evict is None:
        return "unknown"
    change, excess = effects.change(evict), effects.excess(evict)
    e = float(change.mean)
    if e < INERT or float(change.low) <= 0 or (excess is not None and float(excess.low) <= 0):
        return "inert"
    transplant, gate = _found(effects, "transplant: another text"), _found(effects, "scalar gate")
    if transplant is not None and float(effects.change(transplant).mean) >= CONTENT * e:
        return "content"
    if gate is None:
        return "unknown"
    share = float(effects.change(gate).mean) / e
    if share <= PART:
        return "gate-like"
    return "bias-like (broadcast)" if share >= 1 - PART else "part gate, part bias"


def verdict(effects: Effects) -> list[str]:
    """Sentences, each with its numbers."""
    evict, lines = _found(effects, "evict"), []
    if evict is None:
        return ["Nothing was evicted, so there is no verdict."]
    target, found = effects.meta.get("target", "the sink"), kind(effects)
    control = effects.control(evict)
    beside = "" if control is None else f"; a random other key evicted the same way: {_nats(effects.change(control))}"
    n = len(evict.loss)
    lines.append(
        f"Evicting {target} from query {effects.meta['settings']['burn_in']} on changes the loss by "
        f"{_nats(effects.change(evict))} (perplexity {_ppl(effects.untouched)} → {_ppl(evict)}, {n} texts){beside}."
    )
    e = float(effects.change(evict).mean)
    if n < 2:
        lines.append("One text gives no interval, so there is no verdict: read at least two.")
        return lines
    if found == "inert":
        lines.append(
            f"The sink is inert here: this is not told apart from no effect (under {INERT} nats, or within its interval, or "
            "no more than the control)."
        )
        return lines
    gate, constant = _found(effects, "scalar gate"), _found(effects, "constant gate")
    transplant = _found(effects, "transplant: another text")
    if found == "content":
        assert transplant is not None
        lines.append(
            f"Content: with another text's token in its place the loss changes by {_nats(effects.change(transplant))}, "
            f"{float(effects.change(transplant).mean) / e:.0%} of what eviction costs, so what stands there matters."
        )
        return lines
    if gate is not None:
        share = float(effects.change(gate).mean) / e
        lines.append(
            f"{found[0].upper() + found[1:]}: keeping the sink's weight and dropping what it writes (v_s = 0) costs "
            f"{_nats(effects.change(gate))}, {share:.0%} of what eviction costs."
        )
    if constant is not None:
        share = float(effects.change(constant).mean) / e
        depends = "depends on the query" if float(effects.change(constant).low) > 0 and share > 0.1 else (
            "is not seen to depend on the query"
        )  # fmt: skip
        lines.append(
            f"A constant gate (g at its mean) costs {_nats(effects.change(constant))}, {share:.0%}: the gate {depends}."
        )
    if transplant is not None:
        change = effects.change(transplant)
        sentence = f"With key and value of an unrelated text's first token the loss changes by {_nats(change)}"
        if float(change.mean) < 0.05 * e:
            sentence += ": nothing but the constant matters, and it can be folded into parameters (sg.fold_sink)"
        lines.append(sentence + ".")
    start = _found(effects, "masked from the start")
    if start is not None:
        lines.append(
            f"Masked from the start instead, which only makes the next token the first one: {_nats(effects.change(start))}."
        )
    for name, correlation in effects.rank_correlations().items():
        lines.append(
            f"Over {correlation['n']} heads acted on one by one, {name} and the measured KL have rank correlation "
            f"{correlation['rho']:.2f} (p = {correlation['p']:.2g})."
        )
    return lines


def text(effects: Effects) -> str:
    """The table and the verdict, for a terminal."""
    meta, lines = effects.meta, []
    lines.append(f"{meta['model']['name']}: {len(effects.untouched.loss)} texts of {meta['settings']['tokens']} tokens, "
                 f"predictions from position {meta['settings']['scored_from']} on")  # fmt: skip
    lines.append("")
    lines += [*effects.verdict(), ""]
    head = f"{'act':38} {'ppl':>8} {'loss change, nats [95%]':>28} {'KL':>8} {'same top':>9}"
    metric = any(row.metric for row in effects.rows)
    lines.append(head + (f" {'metric':>10}" if metric else "") + ("  kept" if meta.get("corrupted_metric") else ""))
    for row in effects.rows:
        s = effects.summary(row)
        label = ("  control: " if row.kind == "control" else "") + row.label
        change = "" if row.kind == "untouched" else _nats(effects.change(row), unit="")
        line = f"{label[:38]:38} {s['perplexity']:8.2f} {change:>28} {s['kl']:8.4f} {s['agreement']:9.1%}"
        if metric:
            line += f" {s.get('metric', math.nan):10.4g}"
        lines.append(line + (f"  {s['kept']:.0%}" if "kept" in s else ""))
    if effects.heads:
        lines += [
            "",
            f"{'head':>8} {'chosen':>7} {'KL':>9} {'loss change [95%]':>28} {'screened':>9} {'1/(1−p_s)':>10} {'sink write':>10}",
        ]
        for h in effects.heads:
            change = f"{h.loss:+.4f} [{h.low:+.4f}, {h.high:+.4f}]"
            lines.append(
                f"{h.layer:>5}.{h.head:<2} {h.chosen:>7} {h.kl:9.5f} {change:>28} {h.screened:+9.4f} {h.amplification:10.3g} "
                f"{h.sink_write:10.3g}"
            )
    if meta["notes"]:
        lines += ["", *(f"Note: {note}" for note in meta["notes"])]
    return "\n".join(lines)


def _ppl(row: Row) -> str:
    return f"{math.exp(sum(row.loss) / len(row.loss)):.1f}"


def _nats(interval: Any, unit: str = " nats") -> str:
    mean, low, high = (float(x) for x in (interval.mean, interval.low, interval.high))
    if math.isnan(low):
        return f"{mean:+.3f}{unit}"
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]{unit}"
