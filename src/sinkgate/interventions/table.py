"""Effects for a terminal: the verdict, then every number it rests on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sinkgate.interventions.effects import Effects, HeadEffect, Row
from sinkgate.interventions.repeated import Repeated
from sinkgate.interventions.verdict import nats
from sinkgate.record import Interval

__all__ = ["text"]


def text(effects: Effects) -> str:
    """Everything, 120 columns wide where no metric is asked for."""
    meta = effects.meta
    lines = [
        f"{meta['model']['name']}: {effects.samples} text{'s' if effects.samples > 1 else ''} of up to "
        f"{meta['settings']['tokens']} tokens, predictions from position {meta['settings']['scored_from']} on",
        "", *effects.verdict(), "", *_rows(effects),
    ]  # fmt: skip
    if effects.heads:
        lines += ["", *_heads(effects)]
    if "repeated" in meta:
        lines += ["", str(Repeated.from_json(meta["repeated"]))]
    if meta["notes"]:
        lines += ["", *(f"Note: {note}" for note in meta["notes"])]
    return "\n".join(lines)


def _rows(effects: Effects) -> list[str]:
    metric = bool(effects.untouched.metric)
    kept = any(effects.kept(row) is not None for row in effects.rows)
    lines = [
        f"{'act':33} {'ppl':>9}  {'loss change, nats [95%]':>25}  {'KL, nats [95%]':>22}  {'same top [95%]':>20}"
        + (f"  {'metric':>10}" if metric else "") + (f"  {'kept [95%]':>20}" if kept else "")
    ]  # fmt: skip
    for row in effects.rows:
        label = "    its control" if row.kind == "control" else row.label
        line = f"{label[:33]:33} {math.exp(sum(row.loss) / len(row.loss)):9.2f}  " + (
            "" if row.kind == "untouched" else _measured(effects, row)
        )
        if metric:
            line = f"{line:113}  {float(effects.mean(row, 'metric').mean):10.4g}"
        if kept:
            share = effects.kept(row)
            line += f"  {'' if share is None else _percent(share):>20}"
        lines.append(line.rstrip())
    return lines


def _heads(effects: Effects) -> list[str]:
    lines = [
        f"{'head':>6} {'chosen':>7} {'1/(1−p_s)':>10} {'sink write':>10} {'screened':>9}  {'loss change, nats [95%]':>25}  "
        f"{'KL, nats [95%]':>22}  {'same top [95%]':>20}"
    ]
    for h in effects.heads:
        lines.append(
            f"{f'{h.layer}.{h.head}':>6} {h.chosen:>7} {h.amplification:10.3g} {h.sink_write:10.3g} {h.screened:+9.4f}  "
            + _measured(effects, h)
        )
    return lines


def _measured(effects: Effects, row: Row | HeadEffect) -> str:
    kl = effects.mean(row, "kl")
    mean, low, high = (float(x) for x in (kl.mean, kl.low, kl.high))
    divergence = f"{mean:.4f}" if math.isnan(low) else f"{mean:.4f} [{max(low, 0.0):.4f}, {high:.4f}]"
    same = effects.mean(row, "agreement")
    agreement = _percent(replace(same, low=np.maximum(same.low, 0), high=np.minimum(same.high, 1)))  # a share
    return f"{nats(effects.change(row), unit=''):>25}  {divergence:>22}  {agreement:>20}"


def _percent(interval: Interval) -> str:
    mean, low, high = (100 * float(x) for x in (interval.mean, interval.low, interval.high))
    return f"{mean:.1f}%" if math.isnan(low) else f"{mean:.1f}% [{low:.1f}, {high:.1f}]"
