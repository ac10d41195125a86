"""A diagnosis in words and in one table: every number with its null, its interval or its count."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sinkgate.record import Diagnosis
from sinkgate.report.chinese import say, translated

__all__ = ["strongest", "text", "verdict"]

NO_OP, BROADCAST = 0.2, 0.5  # sink write ratio under which a sink is called a no-op, over which a broadcast


def verdict(d: Diagnosis, language: str = "en") -> list[str]:
    """What was found, strongest statement first, in English (``en``) or Chinese (``zh``).

    Raises:
        ArgumentError: another language.
    """
    t = functools.partial(say, language)
    eps = d.settings.threshold
    measured = d.measured
    null = float(d.null_mass[measured].mean())
    over = (d.first_token_mass > eps) & measured
    total = int(measured.sum())
    low, high = d.excess().low, d.excess().high
    lines = [
        t("{over} of {total} heads ({share:.0%}) give the first token more than {eps:g} of their attention; over all heads it gets {mean}, where attention that ignores the text would give it {null:.3f}.",
          over=int(over.sum()), total=total, share=over.sum() / total, eps=eps, mean=_interval(d.mean_mass(), t), null=null)
    ]  # fmt: skip
    if over.any():
        lines += _writes(d, over, t)
    lengths = _lengths(d, t)
    if d.samples > 1:
        sure, under = int((low[measured] > 0).sum()), int((high[measured] < 0).sum())
        lines.append(
            t("How sure: {samples} samples of {lengths} tokens; the 95% interval of the excess over uniform attention is above 0 in {sure} heads, below 0 in {under}, and cannot tell in {open}.",
              samples=d.samples, lengths=lengths, sure=sure, under=under, open=total - sure - under)
        )  # fmt: skip
    else:
        lines.append(
            t("How sure: one sample of {lengths} tokens, so there is no interval; give more text or --samples.", lengths=lengths)
        )  # fmt: skip
    learned = d.learned_mass[measured]
    if (learned > 0).any():
        lines.append(
            t("A learned sink logit takes {mean:.3f} of the attention on average (up to {top:.3f}): these rows sum to one minus that over the tokens.",
              mean=learned.mean(), top=learned.max())
        )  # fmt: skip
    if d.settings.detail != "first":
        lines += _elsewhere(d, over, t)
    if d.settings.detail == "full":
        lines += _massive(d, t)
    missing = [layer for layer in d.layers if layer["reason"]]
    if missing:
        reasons = sorted({layer["reason"] for layer in missing})[:2]
        lines.append(
            t("{missing} of {total} layers cannot be measured ({which}): {reasons}.", missing=len(missing), total=len(d.layers),
              which=_ranges([m["index"] for m in missing]), reasons="; ".join(_kept(r, language) for r in reasons))
        )  # fmt: skip
    return lines


def _kept(text: str, language: str) -> str:
    """A sentence of the record in a language, where it is known there."""
    return text if language == "en" else translated(text) or text


def _interval(mean: Any, t: Any) -> str:
    if np.isfinite(mean.low):
        return str(t("{mean:.3f} on average (95% interval {low:.3f} to {high:.3f})", mean=mean.mean, low=mean.low, high=mean.high))  # fmt: skip
    return str(t("{mean:.3f} on average", mean=mean.mean))


def _lengths(d: Diagnosis, t: Any = None) -> str:
    t = t or functools.partial(say, "en")
    lengths = [s["length"] for s in d.meta["samples"]]
    if len(set(lengths)) == 1:
        return str(lengths[0])
    return str(t("{low} to {high}", low=min(lengths), high=max(lengths)))


def _writes(d: Diagnosis, over: np.ndarray, t: Any) -> list[str]:
    if d.settings.detail != "full":
        return []
    ratio = d.sink_write_ratio[over]
    known = ratio[np.isfinite(ratio)]
    eviction = t(
        "Evicting that token would multiply the rest of these heads' mix by {amplification:.3g} (median, predicted, 1/(1 − p)).",
        amplification=float(np.median(d.amplification[over])),
    )
    if not known.size:
        reason = next((layer["write_reason"] for layer in d.layers if layer["write_reason"]), None)
        why = t("unknown") if reason is None else _kept(reason, t.args[0])
        return [t("What these sinks write cannot be told: {reason}.", reason=why), eviction]
    no_op, broadcast = int((known < NO_OP).sum()), int((known > BROADCAST).sum())
    return [
        t("Attention is not contribution: what these {known} heads write for that token is {median:.2f} of what they write in all (median). {no_op} are near no-ops (under {low}); in {broadcast} it is most of what is written (over {high}): a constant that is broadcast, or a head that writes little else.",
          known=known.size, median=np.median(known), no_op=no_op, low=NO_OP, broadcast=broadcast, high=BROADCAST),
        eviction,
    ]  # fmt: skip


def _elsewhere(d: Diagnosis, over: np.ndarray, t: Any) -> list[str]:
    """Sinks that are not the first token, and, where the first token is none, where the attention went."""
    lines = []
    others = [s for s in d.sinks if s.position > 0]
    if others:
        named = ", ".join(t("{token!r} at {position}", token=s.token, position=s.position) for s in others[:3])
        kinds = {k: sum(s.kind == k for s in others) for k in ("delimiter", "other")}
        kinds |= {"secondary": sum(s.secondary for s in others), "others": len(others)}
        sentence = (
            "1 other position takes more than {eps:g} in some head ({delimiter} delimiters, {other} other tokens; {secondary} with a hidden state like the first token's); most: {named}."
            if len(others) == 1
            else "{others} other positions take more than {eps:g} in some head ({delimiter} delimiters, {other} other tokens; {secondary} with a hidden state like the first token's); most: {named}."
        )  # fmt: skip
        lines.append(t(sentence, eps=d.settings.threshold, named=named, **kinds))
    if over.sum() < 0.05 * d.measured.sum() and d.settings.detail == "full":
        kinds_found, counts = np.unique(d.head_kind[d.measured], return_counts=True)
        ordered = sorted(zip(kinds_found, counts, strict=True), key=lambda x: -x[1])
        listed = ", ".join(t("{count} {kind}", count=c, kind=t(str(k))) for k, c in ordered)
        top = d.top_other_mass[np.isfinite(d.top_other_mass)]
        where: dict[str, Any] = {
            "local": np.nanmean(d.local_mass),
            "window": d.settings.local_window,
            "null": np.nanmean(d.local_null),
        }
        lines.append(
            t("The first token is no sink here. Instead {local:.2f} of the attention stays within the last {window} tokens (uniform: {null:.2f}), and a head's strongest other key takes {top:.2f} on average. Head kinds: {kinds}.",
              top=top.mean(), kinds=listed, **where)
            if top.size
            else t("The first token is no sink here. Instead {local:.2f} of the attention stays within the last {window} tokens (uniform: {null:.2f}); no other key is seen by enough queries to say what it takes. Head kinds: {kinds}.",
                   kinds=listed, **where)
        )  # fmt: skip
    return lines


def _massive(d: Diagnosis, t: Any) -> list[str]:
    if not d.massive or "stream_histogram" not in d.arrays:
        return []
    median = d.stream_median
    top = max(d.massive, key=lambda m: abs(m["value"]))
    ratio = abs(top["value"]) / median[top["layer"]]
    sentence = (
        "A massive activation: {value:.4g} in dimension {dimension} at token {token!r} (position {position}) before layer {layer}, {ratio:,.0f} times the median there."
        if abs(top["value"]) > 100 and ratio > 1000
        else "The largest activation: {value:.4g} in dimension {dimension} at token {token!r} (position {position}) before layer {layer}, {ratio:,.0f} times the median there."
    )  # fmt: skip
    names = ("value", "dimension", "token", "position", "layer")
    return [t(sentence, ratio=ratio, **{name: top[name] for name in names})]


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
