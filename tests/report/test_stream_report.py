"""The page of a stream and of a recall: offline, readable with one arm or ten, honest about what is missing."""

from __future__ import annotations

import importlib.resources
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinkgate.errors import OutputError
from sinkgate.evaluate.recall import Outcome, RecallResult
from sinkgate.evaluate.recall_record import RecallArm, RecallRun
from sinkgate.evaluate.stream_record import StreamArm, StreamRecord
from sinkgate.report.curves import Chart, Line, svg
from sinkgate.report.stream import render, verdict, write
from sinkgate.report.text import clean, number, tick, ticks

EVERY = 256
MODEL = {"name": "tiny", "class": "LlamaForCausalLM", "fingerprint": "0123456789ab", "bos": "none was added"}


def stream(arms: int = 3, points: int = 10, **meta: Any) -> StreamRecord:
    """Losses 3 + 0.1 per arm, wavy; the second arm stops half way, the third is sampled."""
    made = []
    for i in range(arms):
        n = points if i != 1 else max(1, points // 2)
        losses = [3 + 0.1 * i + 0.2 * math.sin(k) for k in range(n)]
        counts = [EVERY] * n if i != 2 else [3] * n
        made.append(
            StreamArm(
                f"arm {i}", f"recent({252 + i}) + sinks(4)" if i != 2 else "", "slots", 256, EVERY,
                [x * c for x, c in zip(losses, counts, strict=True)], counts, list(range(3 * n)) if i == 2 else None,
                12.5, 1 << 20, 256, [10**8 + k for k in range(n)], i != 1, "stopped early" if i == 1 else "",
            )
        )  # fmt: skip
    whole = {
        "model": MODEL, "text": "speeches", "tokens": points * EVERY + 1, "window": 256, "sinks": 4, "chunk": 256,
        "every": EVERY, "seed": 0, "threads": 1, "dtype": "float32",
    }  # fmt: skip
    return StreamRecord(whole | meta, made)


def recall(arms: int = 2, **meta: Any) -> RecallRun:
    distances = [16, 64, 256, 1024]
    made = []
    for i in range(arms):
        window = None if i == 0 else 250
        outcomes = [
            Outcome("stream", d - 1, d + 20, window is None or d + 20 <= window, -1.0, 0.1, 1e-5, False)
            for d in distances for _ in range(5)
        ]  # fmt: skip
        result = RecallResult(tuple(outcomes), window)
        made.append(RecallArm(f"arm {i}", f"recent({250 + i})", "slots", result, 2.0, 500, True))
    whole = {
        "model": MODEL, "texts": [{"task": "stream", "seed": 0, "tokens": 500, "questions": 20}], "tasks": ["stream"],
        "seeds": [0], "window": 256, "sinks": 4, "chunk": 256, "distances": distances, "edges": [32, 128, 512],
        "per_distance": 5, "threads": 1, "dtype": "float32",
    }  # fmt: skip
    return RecallRun(whole | meta, made)


class Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "path", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def figures(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="payload">(.*?)</script>', page, flags=re.S)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("record", [stream(), recall(), stream(1), stream(10, 400), stream(0), stream(2, 1), recall(10), recall(0)])  # fmt: skip
def test_nothing_is_loaded_and_every_tag_is_closed(record: Any) -> None:
    page = render(record)
    parsed = Page(page)
    assert "://" not in page
    assert not re.search(r"@import|\burl\(|\bfetch\(|XMLHttpRequest|innerHTML|localStorage", page)
    policies = [a["content"] for t, a in parsed.tags if t == "meta" and a.get("http-equiv")]
    assert policies == [
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    ]
    for tag, attributes in parsed.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
        assert not [n for n in attributes if n.startswith("on") or n in ("src", "href")]
    drawn = [a["id"] for t, a in parsed.tags if t == "svg" and "id" in a]
    assert drawn == [figure["id"] for figure in figures(page)]
    assert "what it evicts is gone" in parsed.text
    assert not re.search(r"\bnan\b|\binf\b", page, flags=re.I)
    assert page == render(record)


def test_the_numbers_of_a_stream_are_on_the_page() -> None:
    record = stream()
    text = Page(render(record)).text
    for shown in (
        "tiny along 2,561 tokens", "recent(252) + sinks(4)", "20.9", "every window afresh", "stopped early", "1 MiB",
        "95.37 MiB", "0123456789ab", "float32", "sampled, 30 predictions", "tokens per pass",
        "Some arms read less of the text", "no independent samples",
    ):  # fmt: skip
        assert shown in text, shown
    assert "Not complete" not in text
    stopped = Page(render(stream(stopped="interrupted", notes=["a warning <b>"]))).text
    assert "Not complete: this is what there was until it stopped (interrupted)." in stopped
    assert "a warning <b>" in stopped
    lines = verdict(record)
    assert lines[0].startswith("Perplexity along speeches: arm 0 20.9, arm 1 ")
    assert "over its first 1,280 tokens" in lines[0]
    assert lines[1].startswith("arm 1 against arm 0: +0.100 nats a token (95% interval ")
    assert (
        lines[-1] == "Held at the end: arm 0 256 tokens in 1 MiB; arm 1 256 tokens in 1 MiB; arm 2 256 tokens in 1 MiB."
    )
    assert len(verdict(stream(10))) < 8, "ten arms are not all spoken of"


def test_the_curves_are_the_record() -> None:
    record = stream()
    stretches, running = figures(render(record))
    assert [line["name"] for line in stretches["lines"]] == ["arm 0", "arm 1", "arm 2"]
    first = [v for v in stretches["lines"][0]["value"] if v is not None]
    np.testing.assert_allclose(first, np.exp(record.arms[0].curve()), rtol=1e-9)
    assert len([v for v in stretches["lines"][1]["value"] if v is not None]) == 5
    sampled = [v for v in stretches["lines"][2]["value"] if v is not None]
    assert len(sampled) == 1, "three predictions a stretch: thirty make one point"
    assert sampled[0] == pytest.approx(record.arms[2].perplexity)
    assert running["lines"][0]["value"][-1] == pytest.approx(record.arms[0].perplexity)
    assert running["place"][-1] == "2,560"


def test_many_points_are_drawn_together_and_all_are_in_the_table() -> None:
    record = stream(2, 400)
    page = render(record)
    assert "Perplexity of each stretch of 1,024 tokens" in page
    values = [v for v in figures(page)[0]["lines"][0]["value"] if v is not None]
    assert len(values) == 100
    np.testing.assert_allclose(values, np.exp(record.arms[0].curve().reshape(100, 4).mean(1)), rtol=1e-9)
    assert "All 400 points" in page
    assert page.count("<tr>") > 400
    assert len(render(stream(10, 400)).encode()) < 1_000_000


def labels(picture: str) -> list[tuple[float, float, str]]:
    return [(float(x), float(y), name) for x, y, name in
            re.findall(r'<text class="strong halo" x="([\d.]+)" y="([\d.]+)">([^<]*)<', picture)]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 10, 20])
def test_names_stand_at_the_ends_and_never_on_each_other(count: int) -> None:
    lines = [Line(f"arm {i}", [0, 50, 100], [20, 21, 22 + i * 1e-3]) for i in range(count)]
    lines.append(Line("short", [0, 20], [30, 30]))
    found = labels(svg(Chart("t", "x", "y", lines, y_log=True), "a"))
    beside = sorted(y for x, y, name in found if name != "short")
    assert len(beside) == count
    assert all(b - a >= 15 for a, b in itertools.pairwise(beside))
    assert all(14 <= y <= 400 for y in beside)
    ((x, _, _),) = [f for f in found if f[2] == "short"]
    assert x < 300, "a line that stops early has its name where it stops"


def test_lines_are_told_apart_without_colour() -> None:
    picture = svg(Chart("t", "x", "y", [Line(str(i), [0, 1], [1, 2]) for i in range(12)]), "a")
    looks = re.findall(r'<path class="series (a\d)"(?: stroke-dasharray="([^"]+)")?', picture)
    assert len(looks) == len(set(looks)) == 12


def _colours() -> list[list[str]]:
    css = importlib.resources.files("sinkgate.report").joinpath("drawn.css").read_text()
    return [re.findall(r"--a\d: (#[0-9a-f]{6})", line) for line in css.splitlines() if "--a0:" in line]


# Machado, Oliveira and Fernandes (2009), severity 1
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def _linear(code: str) -> np.ndarray:
    c = np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _oklab(linear: np.ndarray) -> np.ndarray:
    to_cone = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
    to_lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip
    return np.array(to_lab) @ np.cbrt(np.array(to_cone) @ linear.clip(0, 1))


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_are_told_apart_by_everybody(kind: str) -> None:
    light, dark, chosen = _colours()
    assert dark == chosen
    assert len(light) == len(dark) == 5
    for theme, paper in ((light, "#fbfaf7"), (dark, "#131619")):
        seen = [_oklab(np.array(BLINDNESS[kind]) @ _linear(c)) for c in theme]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.12
        back = float(_linear(paper) @ [0.2126, 0.7152, 0.0722])
        for code in theme:
            low, high = sorted((back, float(_linear(code) @ [0.2126, 0.7152, 0.0722])))
            assert (high + 0.05) / (low + 0.05) >= 3, "of a line against its paper (WCAG 1.4.11)"


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0, 1, False), (0, 3000, False), (-0.03, 1.06, False), (20, 22, True), (19, 21000, True), (25, 90, True), (3, 9, True),
     (1, 1e9, True), (21.01, 21.05, True), (13, 1331, True)],
)  # fmt: skip
def test_axes_have_a_few_round_numbers(low: float, high: float, log: bool) -> None:
    found = ticks(low, high, 7, log=log)
    assert 3 <= len(found) <= 8
    assert found == sorted(set(found))
    assert all(low - 1e-9 <= x <= high * (1 + 1e-6) for x in found)
    assert len({tick(x) for x in found}) == len(found)


def test_gaps_and_lone_points() -> None:
    picture = svg(Chart("t", "x", "y", [Line("a", [0, 1, 2, 3], [1.0, None, float("nan"), 2.0])]), "a")
    assert picture.count("<circle") == 2
    assert 'class="series' not in picture
    many = Line("a", range(100), [None if k % 2 else 1.0 + k for k in range(100)])
    assert svg(Chart("t", "x", "y", [many]), "a").count("<circle") == 50
    assert "nan" not in picture


def test_marked_places_are_named_where_there_is_room() -> None:
    line = Line("a", [1, 1000], [0, 1])
    picture = svg(
        Chart("t", "x", "y", [line], x_log=True, marks=[(250, "two"), (240, "one"), (20, "early"), (9e9, "beyond")]),
        "a",
    )
    assert picture.count('class="mark-line"') == 3
    assert re.findall(r'<text class="halo"[^>]*>(\w+)<', picture) == ["early", "one"]


def test_numbers() -> None:
    assert [number(x) for x in (0, 1, 21.04, 20.96, 123.4, 4321, 2.5e6, 0.0123, 1e-5)] == [
        "0", "1", "21.0", "21.0", "123", "4,321", "2.5e6", "0.0123", "1e-5"
    ]  # fmt: skip
    assert number(float("nan")) == "—"
    assert [tick(x) for x in (0, 0.2, 2.5, 21.01, 30.0, 20000, 3e6, 1e9)] == [
        "0", "0.2", "2.5", "21.01", "30", "20,000", "3e6", "1e9"
    ]  # fmt: skip


def test_a_recall_shows_its_cliff() -> None:
    page = render(recall())
    parsed = Page(page)
    for shown in ("arm 1: still kept 100% [72%, 100%] of 10", "evicted 0% [0%, 28%] of 10", "any distance 100%", "window 250",
                  "5 of 5", "0 of 5", "guessing", "1 of 500 tokens, 20 questions", "Wilson"):  # fmt: skip
        assert shown in parsed.text, shown
    (figure,) = figures(page)
    assert figure["place"] == ["16", "64", "256", "1,024"]
    assert figure["lines"][1]["value"] == [1.0, 1.0, 0.0, 0.0]
    assert figure["lines"][1]["text"][-1] == "0% (0 of 5, evicted)"
    assert figure["lines"][2]["value"] == [0.1] * 4
    assert page.count('class="ring-a1"') == 2
    assert page.count('class="whisker') == 8
    assert 'class="whisker' not in render(recall(4)), "the intervals of many would hide each other"


def test_two_schemes_of_one_policy_are_told_apart() -> None:
    run = recall()
    run.arms[0].name, run.arms[0].positions = "arm 1", "original"
    assert [line["name"] for line in figures(render(run))[0]["lines"]] == [
        "arm 1, original",
        "arm 1, slots",
        "guessing",
    ]
    assert "arm 1, original: any distance 100%" in str(run)


HOSTILE = "</script><script>alert(1)</script>\u202e{{body}}<!--\x00\ud800"


@pytest.mark.parametrize("make", [stream, recall])
def test_what_comes_from_outside_is_data(make: Any) -> None:
    record = make(model={**MODEL, "name": HOSTILE}, text=HOSTILE, notes=[HOSTILE])
    record.arms[0].name = record.arms[0].policy = record.arms[0].note = HOSTILE
    page = render(record)
    page.encode()
    assert page.count("<script") == 2
    assert "alert(1)</script>" not in page
    assert not set("\u202e\x00") & set(page)
    assert page.count("<h1>") == 1
    Page(page)
    assert figures(page)[0]["lines"][0]["name"].startswith("</script><script>")


def test_a_page_is_written_beside_and_renamed(tmp_path: Path) -> None:
    path = write(stream(), tmp_path / "deep" / "report.html")
    assert path.read_text() == render(stream())
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(OutputError, match="cannot write the report"):
        write(stream(), path / "below.html")


def test_clean_cuts_what_is_too_long() -> None:
    assert clean("a" * 500, 10) == "a" * 9 + "…"
    assert clean("<&'") == "&lt;&amp;&#x27;"
