"""One HTML file from a comparison's record: what was found, in which numbers, along which curves, at what cost.

It is drawn here, so it can be read without a script; it loads nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.lab.comparison_record import Comparison
from sinkgate.record import Interval
from sinkgate.report.comparison_charts import BANDS, Drawn, by_place, over_rates, over_steps
from sinkgate.report.comparison_tables import (
    all_numbers,
    all_runs,
    configurations,
    costs,
    findings,
    mean_text,
    measured,
    minus,
)
from sinkgate.report.curves import Chart
from sinkgate.report.drawn import page, write_page
from sinkgate.report.forest import Difference, forest
from sinkgate.report.metrics import METRICS, metric
from sinkgate.report.tables import facts, figure, items, keys
from sinkgate.report.text import clean

__all__ = ["render", "write"]


def write(record: Comparison, path: str | os.PathLike[str]) -> Path:
    """The page of a comparison as a file, written beside and renamed.

    Raises:
        OutputError: it cannot be written.
    """
    return write_page(render(record), path)


def render(record: Comparison) -> str:
    """The whole page; the same record always gives the same text."""
    many = f"{len(record.arms)} arms side by side" if len(record.arms) > 1 else "one arm"
    title = f"{record.meta['plan']['task']['name']}: {many}"
    steps, rates, places = over_steps(record), over_rates(record), by_place(record)
    charts: list[tuple[str, Chart]] = []

    def drawn(found: Iterable[Drawn], *, legend: bool = False) -> list[str]:
        figures = []
        for each in found:
            charts.append((f"c{len(charts)}", each.chart))
            figures.append(figure(charts[-1][0], each.chart, clean(each.note, 4000), legend=legend))
        return figures

    parts = [
        f'<div id="head"><div class="lede"><h1>{clean(title)}</h1>{items("verdict", _verdict(record))}'
        f"{items('notes', _notes(record))}</div><div>{facts(_facts(record))}{items('notes', _runs(record))}</div></div>",
        _section("In numbers", findings(record), measured(record)),
        _section("Differences from the baseline", *_differences(record)),
    ]
    if steps:
        first, *others = drawn(steps)
        parts.append(
            _section("Along the training", f'<p class="note">{clean(_reading(record))}</p>', keys(steps[0].chart.lines),
                     first, f'<div class="few">{"".join(others)}</div>' if others else "")
        )  # fmt: skip
    if rates:
        parts.append(_section("Learning rates", *drawn([rates], legend=True)))
    if places:
        inside = "".join(drawn(places))
        lines = keys(line for line in places[0].chart.lines if not line.reference)
        parts.append(_section("By length, position, depth, layer", lines, f'<div class="few">{inside}</div>'))
    parts += [
        _section("What it costs", costs(record)),
        _section("All of it", all_numbers(record), all_runs(record), configurations(record), _words(record)),
    ]
    return page(title, "comparison report", charts, "".join(parts))


def _section(title: str, *inside: str) -> str:
    body = "".join(inside)
    return f"<section><h2>{clean(title)}</h2>{body}</section>" if body else ""


# ---- words ------------------------------------------------------------------------------------------------------


def _verdict(record: Comparison) -> list[str]:
    """What can be said of each arm against the first."""
    name = record.meta["headline"]
    if len(record.arms) > 1:
        return [minus(line) for line in record.sentences()[: len(record.arms) - 1]]  # one for each, then about runs
    arm = record.arms[0]
    found = record.interval(arm, name)
    value = "it diverged" if math.isnan(float(found.mean)) else f"{name} {minus(mean_text(found))}"
    return [f"{arm}: {value}, {_count(range(found.samples), 'seed')}. One arm: there is nothing to compare it with."]


def _notes(record: Comparison) -> list[str]:
    """What was held the same, and how it was chosen."""
    plan, known = record.meta["plan"], metric(record.meta["headline"])
    rates = sorted({p["piece"]["lr"] for p in record.pieces})
    chosen = f"with {plan['sweep']} of {_count(plan['seeds'], 'seed')}"
    which = (
        f"Every arm at its own best learning rate of {len(rates)}, chosen {chosen} on held-out data that nothing else is reported on."
        if len(rates) > 1
        else f"One learning rate for all, {rates[0]:g}: nothing was chosen, and another might suit an arm better."
        if rates
        else "Nothing was trained."
    )
    return [
        f"Compared is {_said(known)} {'Higher' if record.meta['higher'] else 'Lower'} is better.",
        "Held the same for every arm: the task, the seeds, the steps, the order of the data, and the start of all parameters that "
        "arms have in common.",
        which,
        "Intervals are Student's, 95%, over seeds; differences are paired by seed, and each interval stands for itself: of many, "
        "some leave out zero by chance.",
    ]


def _runs(record: Comparison) -> list[str]:
    """What went wrong, and what a reader may trip over."""
    name, seeds = record.meta["headline"], len(record.meta["plan"]["seeds"])
    lines = [minus(line) for line in record.sentences()[len(record.arms) - 1 :]]
    for arm in record.arms:
        there = int(np.isfinite(record.values(arm, name)).sum())
        if not there:
            lines.append(f"{arm} has no {name}: no run at its rate came to its end.")
        elif there < seeds:
            lines.append(f"{arm} has no {name} for {seeds - there} of {seeds} seeds at its best rate; its mean is over the others.")  # fmt: skip
    differ = sorted(
        key
        for key in ("code", "torch", "device", "cpu", "threads")
        if len({str(p.get("environment", {}).get(key)) for p in record.pieces}) > 1
    )
    if differ:
        lines.append(f"Not all pieces were run alike: they differ in {', '.join(differ)} (see all runs).")
    return lines


def _count(things: Any, word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _said(known: Any) -> str:
    """A metric within a sentence, ending with a full stop."""
    name = known.label if known.label == known.name else f"{known.label} ({known.name})"
    return f"{name}{f', in {known.unit}' if known.unit else ''}. {known.says}".rstrip()


def _facts(record: Comparison) -> list[tuple[str, str]]:
    plan, env = record.meta["plan"], record.meta["environment"]
    steps = sorted({p["steps"] for p in record.pieces})
    rates = sorted({p["piece"]["lr"] for p in record.pieces})
    rows = [
        ("task", plan["task"]["name"]),
        ("baseline", record.arms[0]),
        ("arms", f"{len(record.arms)}"),
        ("seeds", ", ".join(map(str, plan["seeds"]))),
        ("steps", " to ".join(f"{s:,}" for s in dict.fromkeys((*steps[:1], *steps[-1:])))),
        ("learning rates", ", ".join(f"{lr:g}" for lr in rates)),
        ("runs", f"{len(record.pieces)}"),
        ("device", env.get("device")),
        ("processor", env.get("cpu")),
        ("threads", env.get("threads")),
        ("torch", env.get("torch")),
        ("sinkgate", env.get("sinkgate")),
        ("code", env.get("code")),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _reading(record: Comparison) -> str:
    many = len(record.arms) > BANDS
    seeds = len(record.meta["plan"]["seeds"])
    if seeds < 2:
        return "One seed: what the curves would do with another one is not known."
    area = (
        "under the pointer: the lowest and the highest seed" if many else "areas: from the lowest to the highest seed"
    )
    return f"Each arm at its best rate. Lines: the mean over seeds, as far as all of them go; {area}; thin: seeds that went on alone."


# ---- differences ------------------------------------------------------------------------------------------------


def _differences(record: Comparison) -> list[str]:
    if len(record.arms) < 2:
        return []
    headline = record.meta["headline"]
    better = ("worse", "better") if record.meta["higher"] else ("better", "worse")
    parts = [_forest(record, headline, sides=better, wide=True)]
    others = [n for n in record.meta["shown"] if n != headline and _known(record, n)]
    small = "".join(_forest(record, name, sides=("lower", "higher"), wide=False) for name in others)
    return [*parts, f'<div class="few">{small}</div>' if small else ""]


def _forest(record: Comparison, name: str, *, sides: tuple[str, str], wide: bool) -> str:
    known, base = metric(name), record.arms[0]
    rows = []
    for k, arm in enumerate(record.arms[1:], 1):
        found = record.difference(arm, name)
        points = record.values(arm, name) - record.values(base, name)
        told = record.told_apart(arm, None if name == record.meta["headline"] else name)
        seeds = f", {_count(range(found.samples), 'seed')}" if found.samples > 1 else ""
        rows.append(
            Difference(arm, k, float(found.mean), float(found.low), float(found.high), [float(x) for x in points],
                       minus(signed(found)), f"{told}{seeds}" if wide else _short(told))
        )  # fmt: skip
    title = f"{known.title}: arm − {base}"
    unit = f"difference in {known.unit}" if known.unit else "difference"
    picture = forest(title, rows, unit, sides=sides, wide=wide)
    note = (
        "Large dots: mean and 95% interval, filled where it leaves out zero; small ones: single seeds." if wide else ""
    )
    return (
        f'<figure class="curve{"" if wide else " small"}"><figcaption><span class="t">{clean(title)}</span></figcaption>'
        f'<div class="scroll plot">{picture}</div><p class="note">{clean(note or known.says)}</p></figure>'
    )


def _short(told: str) -> str:
    return told.split(":")[0].split(" (")[0]


def _known(record: Comparison, name: str) -> bool:
    return any(np.isfinite(record.values(arm, name)).any() for arm in record.arms)


def signed(found: Interval) -> str:
    """A difference as the record writes it."""
    mean, low, high = (float(x) for x in (found.mean, found.low, found.high))
    if math.isnan(mean):
        return "—"
    return f"{mean:+.3g}" if math.isnan(low) else f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]"


# ---- glossary ---------------------------------------------------------------------------------------------------


def _words(record: Comparison) -> str:
    """What each number is, of those that this record has."""
    there = {name for p in record.pieces for part in ("test", "curve") for name in _names(p[part])}
    rows = [(known.label, name, known.says) for name, known in METRICS.items() if name in there]
    if not rows:
        return ""
    inside = "".join(
        f"<dt>{clean(label)}<br><code>{clean(name)}</code></dt><dd>{clean(says)}</dd>" for label, name, says in rows
    )
    return f'<details class="glossary"><summary>What each number is</summary><dl>{inside}</dl></details>'


def _names(part: Any) -> Sequence[str]:
    return list(part) if isinstance(part, dict) else [name for line in part for name in line]
