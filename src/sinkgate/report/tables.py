"""Lists, facts, figures and tables of a page that is drawn without a script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sinkgate.report.curves import WIDTH, Chart, Line, svg, swatch
from sinkgate.report.text import clean, plain

__all__ = ["common_notes", "facts", "figure", "items", "keys", "settings", "table"]

GONE = (
    "A bounded cache is no memory: what it evicts is gone, and nothing that the model writes later can draw on it. Perplexity "
    "says that it goes on speaking as well as its window lets it, not that it remembers."
)


def common_notes(meta: dict[str, Any]) -> list[str]:
    """What every page of a bounded cache has to say."""
    why = meta.get("stopped")
    stopped = [f"Not complete: this is what there was until it stopped ({why})."] if why else []
    return [GONE, *stopped, *(plain(note) for note in meta.get("notes", []))]


def settings(meta: dict[str, Any]) -> list[tuple[str, str]]:
    """The model and how it was read."""
    model = meta["model"]
    rows = [("model", model["name"]), ("class", model["class"]), ("weights", model["fingerprint"]), ("dtype", meta["dtype"]),
            ("first token", model["bos"])]  # fmt: skip
    for name, label in (
        ("text", "text"), ("tokens", "tokens"), ("window", "window"), ("sinks", "sinks"), ("chunk", "tokens per pass"),
        ("every", "tokens per point"), ("seed", "seed"), ("threads", "threads"),
    ):  # fmt: skip
        if name in meta:
            rows.append((label, f"{meta[name]:,}" if isinstance(meta[name], int) else str(meta[name])))
    return rows


def keys(lines: Iterable[Line]) -> str:
    """Which line is whose."""
    each = (
        f"<li>{swatch(i, reference=line.reference)}<bdi>{clean(line.name)}</bdi></li>" for i, line in enumerate(lines)
    )
    return f'<ul class="keys">{"".join(each)}</ul>'


def figure(ident: str, chart: Chart, note: str, *, legend: bool = True) -> str:
    """A chart with its title and what it shows.

    Args:
        ident: of the picture, for the script.
        chart: what is drawn.
        note: below it, markup already.
        legend: False where one legend stands over many charts.
    """
    small = " small" if chart.width < WIDTH else ""
    return (
        f'<figure class="curve{small}"><figcaption><span class="t">{clean(chart.title)}</span></figcaption>'
        f'{keys(chart.lines) if legend else ""}<div class="scroll plot">{svg(chart, ident)}</div><p class="note">{note}</p></figure>'
    )


def items(kind: str, lines: Iterable[str]) -> str:
    """A list of sentences."""
    return f'<ul class="{kind}">{"".join(f"<li>{clean(line, 2000)}</li>" for line in lines)}</ul>'


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    inside = "".join(f"<dt>{clean(name)}</dt><dd><bdi>{clean(value)}</bdi></dd>" for name, value in rows)
    return f'<dl class="facts">{inside}</dl>'


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, wide: int | None = None) -> str:
    """A table; columns and cells are markup already, and a column of numbers stands to the right.

    Args:
        caption: over it.
        columns: their names; ``wide`` is that of sentences.
        rows: cells.
        wide: a column of sentences.
    """
    plain = [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in rows]
    kinds = []
    for k in range(len(columns)):
        cells = [row[k] for row in plain if row[k] not in ("—", "")]
        numeric = bool(cells) and all(re.match(r"[+−\-]?\d", cell) for cell in cells)
        kinds.append("n" if numeric and k else "wide" if k == wide else "")
    head = "".join(f'<th scope="col"{_class(kind)}>{name}</th>' for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td{_class(kind)}>{cell}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table tablewrap"><div class="scroll"><table><caption>{clean(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
