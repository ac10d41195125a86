"""The page of a recall: what is answered by the distance of the fact, with the cliff where it was evicted."""

from __future__ import annotations

from collections.abc import Sequence

from sinkgate.evaluate.recall_record import RecallRun
from sinkgate.evaluate.stream_record import labels
from sinkgate.report.curves import Chart, Line
from sinkgate.report.tables import common_notes, facts, figure, items, settings, table
from sinkgate.report.text import clean, number

__all__ = ["heading", "recall_page"]

SAID = 8  # arms that are spoken of; the table has all of them


def heading(run: RecallRun) -> str:
    """Of the page."""
    return f"What {run.meta['model']['name']} recalls, by distance"


def recall_page(run: RecallRun) -> tuple[list[tuple[str, Chart]], str]:
    """The charts, and the page's inside."""
    meta = run.meta
    charts, figures, tables = [], [], []
    for n, kind in enumerate(run.kinds):
        lines, rows = _by_distance(run, kind)
        windows = sorted({arm.result.window for arm in run.arms if arm.result.window is not None})
        marks = [(float(w), f"window {w:,}") for w in windows[:3]]
        chart = Chart(
            f"{kind}: answers that are right", "tokens between the fact and its question", "answered exactly", lines,
            x_log=True, y_range=(-0.03, 1.06), percent=True, marks=marks,
        )  # fmt: skip
        ident = f"recall{n}"
        charts.append((ident, chart))
        figures.append(
            figure(
                ident,
                chart,
                "Filled: the fact is still kept when it is asked for; rings: it is evicted, wholly or in part.",
            )
        )
        spans = [run.column(i) for i in _columns(run, kind)]
        tables.append(table(f"{kind}: right, of how many, by distance", ["arm", *spans], rows))
    whole = [
        [f"<bdi>{clean(arm.name)}</bdi>", f"<code>{clean(arm.policy)}</code>" if arm.policy else "every window afresh",
         clean(arm.positions), *_places(run, i), number(arm.tokens / arm.seconds) if arm.seconds else "—",
         clean(f"{arm.note}{'' if arm.complete or arm.note else 'not every question'}")]
        for i, arm in enumerate(run.arms)
    ]  # fmt: skip
    columns = ["arm", "keeps", "positions", "still kept", "in part", "evicted", "no window", "tokens/s", ""]
    texts = meta["texts"]
    known = [
        *settings(meta),
        (
            "texts",
            f"{len(texts)} of {sum(t['tokens'] for t in texts):,} tokens, {sum(t['questions'] for t in texts)} questions",
        ),
        ("tasks", ", ".join(meta["tasks"])),
        ("seeds", ", ".join(map(str, meta["seeds"]))),
    ]
    said = list(zip(labels(run.arms), run.arms, strict=True))[:SAID]
    found = [f"{name}: {run.cliff(arm)}." for name, arm in said] or ["Nothing was read."]
    notes = [*common_notes(meta), "Intervals are Wilson's 95%, as if the questions were independent."]
    body = (
        f'<div id="head"><div class="lede"><h1>{clean(heading(run))}</h1>{items("verdict", found)}{items("notes", notes)}</div>{facts(known)}</div>'
        f"<section><h2>By distance</h2>{''.join(figures)}</section>"
        f"<section><h2>In numbers</h2>{table('Right [95% interval] of n', columns, whole, wide=8)}{''.join(tables)}</section>"
    )
    return charts, body


def _columns(run: RecallRun, kind: str) -> list[int]:
    return sorted({i for arm in run.arms for i in run.cells(arm, kind)})


def _by_distance(run: RecallRun, kind: str) -> tuple[list[Line], list[list[str]]]:
    columns, places = _columns(run, kind), run.meta["distances"]
    lines, rows = [], []
    chance: dict[int, float] = {}
    for arm, name in zip(run.arms, labels(run.arms), strict=True):
        cells = run.cells(arm, kind)
        chance |= {i: cell.chance for i, cell in cells.items()}
        few = len(run.arms) <= 3  # intervals of more would hide each other
        known = list(cells.items())
        lines.append(
            Line(
                name,
                [float(places[i]) for i, _ in known],
                [c.right / c.n for _, c in known],
                [c.interval[0] for _, c in known] if few else (),
                [c.interval[1] for _, c in known] if few else (),
                [c.place in ("outside", "across") for _, c in known],
                [
                    f"({c.right} of {c.n}{', evicted' * (c.place == 'outside')}{', in part' * (c.place == 'across')})"
                    for _, c in known
                ],
            )
        )
        rows.append([clean(name), *(f"{cells[i].right} of {cells[i].n}" if i in cells else "—" for i in columns)])
    guess = sorted(chance.items())
    lines.append(Line("guessing", [float(places[i]) for i, _ in guess], [c for _, c in guess]))
    rows.append(["guessing", *(f"{chance[i]:.0%}" for i in columns)])
    return lines, rows


def _places(run: RecallRun, i: int) -> Sequence[str]:
    result = run.arms[i].result
    found = []
    for place in ("inside", "across", "outside", "any"):
        if not any(result.place(o) == place for o in result.outcomes):
            found.append("—")
            continue
        share, (low, high), n = result.accuracy(place)
        found.append(f"{share:.0%} [{low:.0%}, {high:.0%}] of {n}")
    return found
