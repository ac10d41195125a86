"""The report page: data stays data, nothing is loaded, and what cannot be drawn is refused by name."""

from __future__ import annotations

import html
import html.parser
import importlib.resources
import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from payloads import HOSTILE, payload

from sinkgate.errors import RecordError
from sinkgate.report.html import page_sources, render, render_frame

VOID = {"meta", "br", "wbr", "input", "link", "img", "hr"}


class Outline(html.parser.HTMLParser):
    """The tags, attributes and texts of a page, as a parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def embedded(page: str) -> Any:
    found = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', page, flags=re.S)
    assert len(found) == 1
    return json.loads(found[0])["records"][0]["payload"]


def source(name: str) -> str:
    return importlib.resources.files("sinkgate.report").joinpath("page", name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page() -> str:
    return render(payload(series=True))


@pytest.fixture(scope="module")
def hostile() -> str:
    return render(payload(layers=4, heads=4, kv_heads=4, hostile=True, unmeasured=(1,), windows=(2,)))


# ---- what comes from a model or a text stays data ----


def test_hostile_text_adds_no_element(page: str, hostile: str) -> None:
    assert Counter(tag for tag, _ in Outline(hostile).tags) == Counter(tag for tag, _ in Outline(page).tags)
    assert hostile.count("</script") == page.count("</script") == 3


def test_every_element_is_closed(hostile: str) -> None:
    assert Outline(hostile).open == []


def test_no_markup_and_no_separator_inside_the_data(hostile: str) -> None:
    data = hostile.split('id="payload">')[1].split("</script>")[0]
    assert data.isascii()
    assert not set(data) & set("<>&\u2028\u2029")
    assert "\\u003c/script\\u003e" in data
    assert "\\u2028" in data
    assert "\\u202e" in data


def test_tokens_come_back_unchanged(hostile: str) -> None:
    tokens = embedded(hostile)["strip"]["tokens"]
    for expected in HOSTILE:
        if len(expected) <= 200:
            assert expected in tokens


def test_a_long_token_is_cut_once_with_its_length_kept(hostile: str) -> None:
    assert {"text": "x" * 200, "length": 5000} in embedded(hostile)["strip"]["tokens"]
    assert "x" * 201 not in hostile


def test_title_is_escaped_and_shows_no_direction_mark(hostile: str) -> None:
    title = re.search(r"<title>(.*?)</title>", hostile)
    assert title is not None
    assert "&lt;/title&gt;&lt;script&gt;" in title[1]
    assert not set(title[1]) & set("\u202e\u2028<>'")


def test_the_name_of_a_slot_in_the_data_stays_data(hostile: str) -> None:
    assert "{{script}}" in embedded(hostile)["strip"]["tokens"]
    assert hostile.count('id="payload"') == 1


def test_lone_surrogates_can_be_written(hostile: str) -> None:
    assert hostile.encode("utf-8")


# ---- numbers ----


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_what_is_not_finite_becomes_null(bad: float) -> None:
    made = payload(layers=2, heads=2, kv_heads=2)
    made["metrics"][0]["values"][0][1] = bad
    made["heads"]["0.0"]["split"]["v_sink"] = bad
    got = embedded(render(made))
    assert got["metrics"][0]["values"][0][1] is None
    assert got["heads"]["0.0"]["split"]["v_sink"] is None


def test_numpy_numbers_are_written_as_numbers() -> None:
    made = payload(layers=2, heads=2, kv_heads=2)
    made["metrics"][0]["values"][0] = [np.float32(0.25), np.int64(3)]
    assert embedded(render(made))["metrics"][0]["values"][0] == [0.25, 3]


def test_five_digits_are_kept() -> None:
    made = payload(layers=2, heads=2, kv_heads=2)
    made["metrics"][0]["values"][0] = [0.123456789, 123456.789]
    assert embedded(render(made))["metrics"][0]["values"][0] == [0.12346, 123460.0]


def test_the_same_payload_gives_the_same_page(page: str) -> None:
    assert render(payload(series=True)) == page


def test_the_payload_is_left_as_it_was() -> None:
    made = payload(layers=2, heads=2, kv_heads=2, hostile=True)
    render(made)
    assert made == payload(layers=2, heads=2, kv_heads=2, hostile=True)


def test_size_of_a_small_model_with_full_curves(page: str) -> None:
    curves = [head["curve"] for head in embedded(page)["heads"].values()]
    assert len(curves) == 270
    assert all(len(curve["t"]) == 64 for curve in curves)
    assert len(page.encode()) < 3_000_000


# ---- nothing is loaded ----


def test_policy_forbids_every_request(page: str) -> None:
    policies = [
        a["content"]
        for tag, a in Outline(page).tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == [
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:; img-src data: blob:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    ]


def test_no_element_names_an_address_or_a_handler(page: str) -> None:
    for tag, attributes in Outline(page).tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
        for name in attributes:
            assert name not in {"src", "href", "action", "srcset", "data", "poster", "xlink:href"}
            assert not name.startswith("on")


SCRIPTS = page_sources()
ASKS = "sinkgate/lib/server.js"  # the one module that may ask, and only the server it came from


@pytest.mark.parametrize("name", ["page.html", "page.css", *SCRIPTS])
def test_sources_hold_no_address(name: str) -> None:
    text = SCRIPTS.get(name) or source(name)
    if name == ASKS:
        text = text.replace("await fetch(path, {", "")
    assert "://" not in text
    assert not re.search(r"@import|@font-face|\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon", text)
    assert not re.search(r"\bimport\s*\(|importScripts|new Worker|new Image\b", text)
    # The only url() is a pattern of the drawing itself.
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_write_no_markup(name: str) -> None:
    text = SCRIPTS[name]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"localStorage|sessionStorage|document\.cookie", text)


@pytest.mark.parametrize("name", ["page.css", *SCRIPTS])
def test_sources_cannot_close_their_own_element(name: str) -> None:
    assert not re.search(r"</(script|style)|<!--", SCRIPTS.get(name) or source(name), flags=re.I)


# ---- what the page promises its reader ----


def test_published_definition_is_cited_as_text(page: str) -> None:
    text = " ".join("".join(parts) for parts in Outline(page).text.values())
    assert "arXiv 2410.10781" in text


def test_every_label_and_control_of_the_frame_is_named(page: str) -> None:
    outline = Outline(page)
    ids = {a["id"] for _, a in outline.tags if "id" in a}
    for tag, attributes in outline.tags:
        if "aria-labelledby" in attributes and attributes["aria-labelledby"] != "panel-h":
            assert attributes["aria-labelledby"] in ids
        if "data-go" in attributes:
            assert attributes["data-go"] in ids
        assert tag != "html" or attributes == {"lang": "en"}


def test_both_themes_define_the_same_names() -> None:
    blocks = re.findall(r"color-scheme: (?:light|dark);(.*?)\}", source("page.css"), flags=re.S)
    names = [set(re.findall(r"(--[a-z-]+):", block)) for block in blocks]
    assert len(names) == 3
    assert names[1] == names[2]
    assert names[0] - names[1] == {"--sans", "--serif", "--mono", "--touch"}


def _luminance(text: str) -> float:
    code = [int(text[i : i + 2], 16) for i in (1, 3, 5)] if text[0] == "#" else [int(v) for v in text.split()]
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in code]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize(
    ("ink", "paper"),
    [("ink", "bg"), ("muted", "bg"), ("accent", "bg"), ("other", "bg"), ("ink", "hot"), ("ink", "cold"),
     ("tip-ink", "tip-bg")],
)  # fmt: skip
def test_text_contrast_is_aa(theme: int, ink: str, paper: str) -> None:
    block = re.findall(r"color-scheme: (?:light|dark);(.*?)\}", source("page.css"), flags=re.S)[theme]
    values = dict(re.findall(r"--([a-z-]+): ([^;]+);", block))
    low, high = sorted(_luminance(values[name]) for name in (ink, paper))
    assert (high + 0.05) / (low + 0.05) >= 4.5


# ---- payloads that cannot be drawn ----


@pytest.mark.parametrize("key", list(payload(layers=1, heads=1, kv_heads=1)))
def test_a_missing_section_is_refused(key: str) -> None:
    made = payload(layers=1, heads=1, kv_heads=1)
    del made[key]
    with pytest.raises(RecordError, match=f"no '{key}'"):
        render(made)


@pytest.mark.parametrize(
    ("section", "key"),
    [("model", "heads"), ("settings", "bos"), ("strip", "null"), ("residual", "massive"), ("series", "lo")],
)
def test_a_missing_field_is_refused_by_name(section: str, key: str) -> None:
    made = payload(layers=1, heads=1, kv_heads=1, series=True)
    del made[section][key]
    with pytest.raises(RecordError, match=f"'{section}' has no '{key}'"):
        render(made)


@pytest.mark.parametrize("key", ["strip", "residual", "series", "sinks", "rates"])
def test_a_section_that_was_not_measured_may_be_null(key: str) -> None:
    made = payload(layers=1, heads=1, kv_heads=1)
    made[key] = None
    assert embedded(render(made))[key] is None


def test_another_version_is_refused() -> None:
    with pytest.raises(RecordError, match="version 2"):
        render(payload(layers=1, heads=1, kv_heads=1) | {"version": 2})


def test_null_where_the_page_needs_a_value_is_refused() -> None:
    with pytest.raises(RecordError, match="null for 'heads'"):
        render(payload(layers=1, heads=1, kv_heads=1) | {"heads": None})


def test_a_map_of_another_shape_is_refused() -> None:
    made = payload(layers=3, heads=2, kv_heads=2)
    made["metrics"][1]["values"][2] = [0.1]
    with pytest.raises(RecordError, match="not 3 layers × 2 heads"):
        render(made)


def test_an_unknown_scale_is_refused() -> None:
    made = payload(layers=1, heads=1, kv_heads=1)
    made["metrics"][0]["scale"] = "sqrt"
    with pytest.raises(RecordError, match="'sqrt'"):
        render(made)


def test_what_json_cannot_hold_is_refused_with_its_place() -> None:
    made = payload(layers=1, heads=1, kv_heads=1)
    made["heads"]["0.0"]["hist"] = {1, 2}
    with pytest.raises(RecordError, match=r"payload\.heads\.0\.0\.hist is a set"):
        render(made)


# ---- the notebook's frame ----


def test_the_frame_is_sandboxed_and_holds_the_same_page() -> None:
    made = payload(layers=2, heads=2, kv_heads=2, hostile=True)
    (tag, attributes), *others = Outline(render_frame(made)).tags
    assert tag == "iframe"
    assert not others
    assert attributes["sandbox"] == "allow-scripts allow-downloads"
    assert attributes["srcdoc"] == render(made)
    assert "src" not in attributes
