"""A diagnosis in words and in one table: every number with its null, its interval or its count."""

from __future__ import annotations

from typing import Any

import numpy as np

from sinkgate.record import Diagnosis

__all__ = ["strongest", "text", "verdict"]

NO_OP, BROADCAST = 0.2, 0.5  # sink write ratio under which a sink is called a no-op, over which a broadcast


def verdict(d: Diagnosis) -> list[str]:
    """What was found, strongest statement first."""
    eps = d.settings.threshold
    measured = d.measured
    mean = d.mean_mass()
    null = float(d.null_mass[measured].mean())
    over = (d.first_token_mass > eps) & measured
    total = int(measured.sum())
    low, high = d.excess().low, d.excess().high
    lines = [
        f"{int(over.sum())} of {total} heads ({over.sum() / total:.0%}) give the first token more than {eps:g} of their "
        f"attention; over all heads it gets {_interval(mean)}, where attention that ignores the text would give it {null:.3f}."
    ]
    if over.any():
        lines += _writes(d, over)
    if d.samples > 1:
        sure, under = int((low[measured] > 0).sum()), int((high[measured] < 0).sum())
        lines.append(
            f"How sure: {d.samples} samples of {_lengths(d)} tokens; the 95% interval of the excess over uniform attention is "
            f"above 0 in {sure} heads, below 0 in {under}, and cannot tell in {total - sure - under}."
        )
    else:
        lines.append(
            f"How sure: one sample of {_lengths(d)} tokens, so there is no interval; give more text or --samples."
        )
    learned = d.learned_mass[measured]
    if (learned > 0).any():
        lines.append(
            f"A learned sink logit takes {learned.mean():.3f} of the attention on average (up to {learned.max():.3f}): "
            "these rows sum to one minus that over the tokens."
        )
    if d.settings.detail != "first":
        lines += _elsewhere(d, over)
    if d.settings.detail == "full":
        lines += _massive(d)
    missing = [layer for layer in d.layers if layer["reason"]]
    if missing:
        reasons = "; ".join(sorted({layer["reason"] for layer in missing})[:2])
        lines.append(
            f"{len(missing)} of {len(d.layers)} layers cannot be measured ({_ranges([m['index'] for m in missing])}): {reasons}."
        )
    return lines


def _interval(mean: Any) -> str:
    if np.isfinite(mean.low):
        return f"{mean.mean:.3f} on average (95% interval {mean.low:.3f} to {mean.high:.3f})"
    return f"{mean.mean:.3f} on average"


def _lengths(d: Diagnosis) -> str:
    lengths = [s["length"] for s in d.meta["samples"]]
    return str(lengths[0]) if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"


def _writes(d: Diagnosis, over: np.ndarray) -> list[str]:
    if d.settings.detail != "full":
        return []
    ratio = d.sink_write_ratio[over]
    known = ratio[np.isfinite(ratio)]
    amplification = float(np.median(d.amplification[over]))
    eviction = f"Evicting that token would multiply the rest of these heads' mix by {amplification:.3g} (median, predicted, 1/(1 − p))."
    if not known.size:
        reason = next((layer["write_reason"] for layer in d.layers if layer["write_reason"]), "unknown")
        return [f"What these sinks write cannot be told: {reason}.", eviction]
    no_op, broadcast = int((known < NO_OP).sum()), int((known > BROADCAST).sum())
    return [
        f"Attention is not contribution: what these {known.size} heads write for that token is {np.median(known):.2f} of what they "
        f"write in all (median). {no_op} are near no-ops (under {NO_OP}); in {broadcast} it is most of what is written (over "
        f"{BROADCAST}): a constant that is broadcast, or a head that writes little else.",
        eviction,
    ]


def _elsewhere(d: Diagnosis, over: np.ndarray) -> list[str]:
    """Sinks that are not the first token, and, where the first token is none, where the attention went."""
    eps = d.settings.threshold
    lines = []
    others = [s for s in d.sinks if s.position > 0]
    if others:
        named = ", ".join(f"{s.token!r} at {s.position}" for s in others[:3])
        kinds = {k: sum(s.kind == k for s in others) for k in ("delimiter", "other")}
        secondary = sum(s.secondary for s in others)
        lines.append(
            f"{len(others)} other position{'s take' if len(others) > 1 else ' takes'} more than {eps:g} in some head "
            f"({kinds['delimiter']} delimiters, {kinds['other']} other tokens; {secondary} with a hidden state like the first "
            f"token's); most: {named}."
        )
    if over.sum() < 0.05 * d.measured.sum() and d.settings.detail == "full":
        kinds_found, counts = np.unique(d.head_kind[d.measured], return_counts=True)
        listed = ", ".join(f"{c} {k}" for k, c in sorted(zip(kinds_found, counts, strict=True), key=lambda x: -x[1]))
        lines.append(
            f"The first token is no sink here. Instead {np.nanmean(d.local_mass):.2f} of the attention stays within the last "
            f"{d.settings.local_window} tokens (uniform: {np.nanmean(d.local_null):.2f}), and a head's strongest other key takes "
            f"{np.nanmean(d.top_other_mass):.2f} on average. Head kinds: {listed}."
        )
    return lines


def _massive(d: Diagnosis) -> list[str]:
    if not d.massive or "stream_histogram" not in d.arrays:
        return []
    median = d.stream_median
    top = max(d.massive, key=lambda m: abs(m["value"]))
    ratio = abs(top["value"]) / median[top["layer"]]
    word = "A massive activation" if abs(top["value"]) > 100 and ratio > 1000 else "The largest activation"
    return [
        f"{word}: {top['value']:.4g} in dimension {top['dimension']} at token {top['token']!r} (position {top['position']}) before "
        f"layer {top['layer']}, {ratio:,.0f} times the median there."
    ]


def _ranges(indices: list[int]) -> str:
    """0, 1, 2, 5 → "0–2, 5"."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][-1] + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def strongest(d: Diagnosis, count: int = 10) -> list[dict[str, Any]]:
    """The heads with most mass on the first token, as rows of one table."""
    flat = np.where(d.measured, d.first_token_mass, -1).reshape(-1)
    order = np.argsort(-flat, kind="stable")[:count]
    low, high = d.excess().low, d.excess().high
    rows = []
    for layer, head in zip(*np.unravel_index(order, d.shape), strict=True):
        if not d.measured[layer, head]:
            continue
        at = (layer, head)
        row: dict[str, Any] = {
            "layer": int(layer),
            "head": int(head),
            "mass": float(d.first_token_mass[at]),
            "null": float(d.null_mass[at]),
            "excess_low": float(low[at]),
            "excess_high": float(high[at]),
            "margin": float(d.margin[at]),
            "amplification": float(d.amplification[at]),
        }
        if d.settings.detail == "full":
            row |= {
                "write_ratio": float(d.sink_write_ratio[at]),
                "value_ratio": float(d.value_norm_ratio[at]),
                "kind": str(d.head_kind[at]),
            }
        rows.append(row)
    return rows


def text(d: Diagnosis, count: int = 10) -> str:
    """The verdict and the table, plain text at most 100 columns wide."""
    import textwrap

    model, settings = d.meta["model"], d.settings
    lines = [printable(f"{model['name']}: where its attention goes")]
    sizes = (
        f"{len(d.layers)} layers × {d.shape[1]} heads, {d.samples} × {_lengths(d)} tokens; "
        f"beginning-of-text token: {model.get('bos', 'unknown')}"
    )
    lines += textwrap.wrap(printable(sizes), 98)
    lines.append("")
    for sentence in verdict(d) + [f"Note: {note}" for note in d.meta["notes"]]:
        lines += textwrap.wrap(printable(sentence), 98, initial_indent="• ", subsequent_indent="  ")
    lines += [
        "",
        f"Strongest heads (first token; α over {settings.threshold:g} sinks; [..] 95% interval of mass − null):",
    ]
    rows = strongest(d, count)
    full = settings.detail == "full"
    header = f"{'layer.head':>10}  {'mass':>6}  {'null':>6}  {'excess':>16}  {'margin':>7}  {'1/(1-p)':>8}"
    lines.append(header + (f"  {'writes':>6}  {'|v|/rest':>8}  kind" if full else ""))
    for r in rows:
        interval = f"[{r['excess_low']:.3f}, {r['excess_high']:.3f}]" if np.isfinite(r["excess_low"]) else "–"
        place = f"{r['layer']}.{r['head']}"
        line = f"{place:>10}  {r['mass']:6.3f}  {r['null']:6.3f}  {interval:>16}  {r['margin']:7.2f}  {r['amplification']:8.3g}"
        if full:
            line += f"  {_number(r['write_ratio'])}  {r['value_ratio']:8.2f}  {r['kind']}"
        lines.append(line)
    if full:
        lines.append("writes: what the sink writes over what the head writes. High attention is not high contribution.")
    return "\n".join(lines)


def _number(x: float) -> str:
    return f"{x:6.2f}" if np.isfinite(x) else f"{'–':>6}"


def printable(text: str) -> str:
    """Text from a model or a file with control and direction characters shown, not obeyed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
