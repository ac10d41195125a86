"""The Model page in a real browser, from files and served: what it shows is what the record holds."""

from __future__ import annotations

import csv
import io
import math
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Download, Page
from scipy import stats

from report.payloads import HOSTILE, payload
from sinkgate.cli import main
from sinkgate.record import Diagnosis
from sinkgate.report.html import Entry, document, render
from sinkgate.report.pages import write_pages
from sinkgate.report.payload import payload as payload_of
from sinkgate.report.samples import summary_rows
from studio.records import diagnosis, effects, saved
from studio.watched import Serving, Watched, shown_address
from studio.wording import book

A, B, OTHER = diagnosis(0, push=6.0), diagnosis(1, push=3.0), diagnosis(2, heads=2)
# the same samples read by a changed model: sample by sample it can be compared
PAIRED = diagnosis(3, push=5.0)
PAIRED.meta["samples"] = [dict(sample) for sample in A.meta["samples"]]
for at, sample in enumerate(B.meta["samples"]):
    sample["id"] = f"other:{at}"


def number(text: str) -> float:
    """A number as the page writes it."""
    text = text.strip().replace("−", "-").replace(",", "").replace("\u2009", " ")
    found = re.match(r"(-?\d+(?:\.\d+)?)(?:×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?", text)
    assert found, text
    power = (found[2] or "⁰").translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(found[1]) * 10.0 ** int(power)


def near(text: str, value: float) -> bool:
    """To the digits that are shown: three, or two for small numbers."""
    return number(text) == pytest.approx(value, rel=0.051 if abs(value) < 0.1 else 0.0051, abs=1e-9)


def saves(page: Page, button: str) -> Download:
    with page.expect_download() as found:
        page.locator(button).click()
    return found.value


def table(page: Page, caption: str) -> list[list[str]]:
    rows = page.locator("table", has=page.locator("caption", has_text=re.compile(f"^{re.escape(caption)}$"))).locator(
        "tbody tr"
    )
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def named(page: Page) -> None:
    """Wait until every cell of the map has its name (the page's policy forbids Playwright's own waiting)."""
    for _ in range(600):
        if page.evaluate("document.querySelectorAll('.cell:not([aria-label])').length") == 0:
            return
        page.wait_for_timeout(100)
    raise AssertionError("cells without a name")


@pytest.fixture(params=["file", "served"])
def shown(
    request: pytest.FixtureRequest, watched: Watched, serving: Callable[..., Serving], tmp_path: Path
) -> Callable[..., Page]:
    """Open records, as a file or from a studio: ``shown({"a": A, …}, "page=model&…")``."""

    def open_them(records: dict[str, Any], address: str = "page=model", **options: Any) -> Page:
        if request.param == "file":
            found = write_pages(records.items(), tmp_path / "pages.html").as_uri()
        else:
            found = serving(records=[saved(each, tmp_path / name) for name, each in records.items()]).address
        return watched.open(f"{found}#{address}", **options)

    return open_them


# ---- the map and a head ----


def test_every_quantity_of_the_map_shows_the_records_numbers(shown: Callable[..., Page]) -> None:
    page, at = shown({"a": A}, "page=model&layer=0&head=2"), (0, 2)
    held = {
        "excess_ratio": A.first_token_mass / A.null_mass, "first_token_mass": A.first_token_mass, "margin": A.margin,
        "sink_rate": (A.mass_by_sample() > 0.3).mean(0), "sink_write_ratio": A.sink_write_ratio, "entropy_ratio": A.entropy_ratio,
        "top_other_mass": A.top_other_mass, "local_mass": A.local_mass, "value_norm_ratio": A.value_norm_ratio,
        "query_key_cosine": A.query_key_cosine,
    }  # fmt: skip
    offered = page.eval_on_selector_all('input[name="metric"]', "all => all.map((each) => each.value)")
    assert set(offered) == {*held, "head_kind", "eviction"}
    for name, values in held.items():
        page.check(f'input[name="metric"][value="{name}"]', force=True)
        assert f"metric={name}" in shown_address(page)
        assert near(page.inner_text("#readout").split(": ")[1], values[at]), name
    page.check('input[name="metric"][value="head_kind"]', force=True)
    assert A.head_kind[at] in page.inner_text("#readout")


def test_the_address_brings_the_view_back(shown: Callable[..., Page], watched: Watched) -> None:
    page = shown({"a": A}, "page=model&metric=margin&layer=0&head=3")
    again = watched.open(shown_address(page))
    assert again.input_value(".pick select >> nth=1") == "3"
    assert again.is_checked('input[name="metric"][value="margin"]')


def test_the_map_by_keyboard(watched: Watched, as_file: Callable[[str], str]) -> None:
    made = payload(layers=12, heads=6, kv_heads=3, unmeasured=(11,))
    page = watched.open(as_file(render(made)) + "#page=model&metric=margin&layer=2&head=1")
    page.focus('.cell[tabindex="0"]')
    cell = "(() => { const { l, k } = document.activeElement.dataset; return [+l, +k]; })()"
    assert page.evaluate(cell) == [2, 1]
    for key, place in (
        ("ArrowRight", [2, 2]), ("ArrowDown", [3, 2]), ("End", [3, 5]), ("ArrowRight", [3, 5]), ("Home", [3, 0]),
        ("PageDown", [8, 0]), ("PageUp", [3, 0]), ("Control+End", [11, 5]), ("ArrowUp", [10, 5]),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert page.evaluate(cell) == place, key
    value = made["metrics"][3]["values"][10][5]
    assert near(page.evaluate("document.activeElement.getAttribute('aria-label')").split("margin: ")[1], value)
    assert near(page.inner_text("#live").split("margin: ")[1], value)
    assert page.locator('.cell[tabindex="0"]').count() == 1
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "panel-h"
    assert "layer=10&head=5" in shown_address(page)
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(cell.replace("document.activeElement", "document.querySelector('.cell[tabindex=\"0\"]')")) == [
        10,
        5,
    ]


def test_every_cell_gets_its_name(watched: Watched, as_file: Callable[[str], str]) -> None:
    page = watched.open(as_file(render(payload(layers=6, heads=4, kv_heads=4, unmeasured=(5,)))))
    named(page)
    assert "Reason: linear attention" in str(page.get_attribute('.cell[data-l="5"][data-k="0"]', "aria-label"))


def test_a_heads_page_holds_what_the_record_holds(shown: Callable[..., Page]) -> None:
    page = shown({"a": A})
    page.select_option(".pick select >> nth=1", "1")
    assert page.inner_text("#panel-h").startswith("Layer 0 · head 1")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.pick select')[1]")
    at, arrays = (0, 1), A.arrays
    first, key, value = (
        table(page, caption)
        for caption in ("Values of this head", "Geometry of keys and values", "Keys that receive most")
    )
    rows = {row[0]: row for row in first}
    for name, held in (("first-token mass", A.first_token_mass), ("margin", A.margin), ("sink write ratio", A.sink_write_ratio),
                       ("content write ratio", A.content_write_ratio), ("entropy", A.entropy), ("mass on the token before", A.previous_mass),
                       ("predicted amplification on eviction", A.amplification)):  # fmt: skip
        assert near(rows[name][1], held[at]), name
    assert near(rows["excess over null"][2].split("interval ")[1], A.excess().low[at])
    assert near(key[0][1], arrays["key_first"][:, 0, 1].mean())
    assert near(key[1][2], arrays["value_rest"][:, 0, 1].mean())
    assert near(key[1][3], A.value_norm_ratio[at])
    assert near(value[0][3], A.first_token_mass[at])
    assert near(page.inner_text("text=Cosine of the mean query").split("key: ")[1], A.query_key_cosine[at])
    download = saves(page, '[aria-label="Save the numbers of “Weight on the first token” as CSV"]')
    curve = list(csv.reader(io.StringIO(Path(download.path()).read_text("utf-8-sig"))))
    np.testing.assert_allclose([float(row[1]) for row in curve[1:]], A.curve(*at)["mass"], rtol=2e-3)
    page.locator("summary", has_text="Sink rate at").click()
    assert page.locator("table caption", has_text="Sink rate").is_visible()


def test_a_record_of_less_detail_says_what_is_not_there(watched: Watched, as_file: Callable[[str], str]) -> None:
    import torch

    import sinkgate as sg

    q = torch.randn(1, 2, 64, 4, generator=torch.Generator().manual_seed(0))
    page = watched.open(as_file(render(payload_of(sg.measure(q, q, q, detail="first")))))
    assert "Not recorded at detail “first”" in page.inner_text("#panel")
    assert page.locator("#text .empty").count() == 1


# ---- saving ----


def picture(path: Path) -> tuple[int, int, bytes]:
    """Width, height and the unpacked lines of a PNG."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found = 8, b""
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        if kind == b"IDAT":
            found += data[at + 8 : at + 8 + size]
        at += 12 + size
    width, height = struct.unpack(">II", data[16:24])
    return width, height, zlib.decompress(found)


def test_figures_are_saved_as_svg_and_png_and_their_numbers_as_csv(shown: Callable[..., Page]) -> None:
    page = shown({"a": A}, "page=model&metric=first_token_mass")
    for title, name in (
        ("Map of first-token mass", "map-first-token-mass"),
        ("Weight on the first token", "layer-0-head"),
    ):
        svg = saves(page, f'[aria-label="Save “{title}” as SVG"]')
        assert svg.suggested_filename.startswith(name)
        root = ET.parse(svg.path()).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "drawn" in " ".join(root.itertext())  # the model's name
        png = saves(page, f'[aria-label="Save “{title}” as PNG"]')
        width, height, lines = picture(Path(png.path()))
        assert png.suggested_filename.endswith(".png")
        assert (width, height) == (2 * round(float(root.attrib["width"])), 2 * round(float(root.attrib["height"])))
        assert len(set(lines)) > 16  # many colours: not blank
    rows = list(
        csv.reader(
            io.StringIO(
                Path(
                    saves(page, '[aria-label="Save the numbers of “Map of first-token mass” as CSV"]').path()
                ).read_text("utf-8-sig")
            )
        )
    )
    np.testing.assert_allclose([[float(v) for v in row[1:]] for row in rows[1:]], A.first_token_mass, rtol=2e-3)
    sinks = list(
        csv.reader(
            io.StringIO(
                Path(saves(page, '[aria-label="Save the table “Sinks found” as CSV"]').path()).read_text("utf-8-sig")
            )
        )
    )
    assert [int(row[0]) for row in sinks[1:]] == [sink.position for sink in A.sinks[:40]]


# ---- eviction ----


def test_without_effects_the_choice_says_what_would_measure_it(shown: Callable[..., Page]) -> None:
    page = shown({"a": A, "e": effects(A, fingerprint="another")}, "page=model&metric=eviction")
    assert "0123456789ab" in page.inner_text(".absent")
    assert "sinkgate intervene drawn --out effects" in page.inner_text(".absent pre")
    page.check('input[name="metric"][value="margin"]', force=True)
    assert page.locator("#grid .cell").count() == 4


def test_effects_of_the_model_are_on_the_map_and_in_tables(shown: Callable[..., Page]) -> None:
    e = effects(A)
    page = shown({"a": A, "e": e}, "page=model&metric=eviction_loss&layer=0&head=1")
    assert "2 heads, one at a time" in page.inner_text("#metric .help")
    change = e.change(e.heads[0])
    readout = page.inner_text("#readout")
    assert near(readout.split("measured: ")[1], float(change.mean))
    assert near(readout.split("interval ")[1], float(change.low))
    assert near(readout.split(" to ")[1], float(change.high))
    page.select_option(".pick select >> nth=1", "0")
    assert "not evicted on its own" in page.inner_text("#readout")
    page.check('input[name="metric"][value="eviction_estimate"]', force=True)
    assert "not a measurement" in page.inner_text("#metric .help")
    assert near(page.inner_text("#readout").split("estimate: ")[1], e.estimates[0]["value"])
    assert near(page.inner_text("#panel").split("estimate of that: ")[1], e.estimates[0]["value"])
    act = table(page, "Acts in all heads at once")
    assert near(act[0][1], float(e.change(e.row("evict")).mean))
    assert near(act[0][2], float(e.excess(e.row("evict")).mean))  # type: ignore[union-attr]
    assert act[1][2] == "—"
    one = table(page, "Heads evicted one by one")
    assert [row[:3] for row in one] == [["0", "1", "top"], ["0", "3", "random"]]
    assert near(one[1][4], float(e.change(e.heads[1]).mean))


def test_effects_of_the_whole_model_alone_are_named_as_such(shown: Callable[..., Page]) -> None:
    e = effects(A, single=False)
    page = shown({"a": A, "e": e}, "page=model&metric=eviction")
    text = page.inner_text(".absent")
    assert "holds no single heads" in text
    assert near(text.split("loss by ")[1], float(e.change(e.row("evict")).mean))


# ---- two records ----


def held(d: Diagnosis, name: str) -> np.ndarray:
    return np.array(next(row["values"] for row in summary_rows(d)["rows"] if row["id"] == name))


@pytest.mark.parametrize(("other", "paired"), [(PAIRED, True), (B, False)])
def test_two_records_side_by_side(shown: Callable[..., Page], other: Diagnosis, paired: bool) -> None:
    page = shown({"before": A, "after": other}, "page=model&metric=first_token_mass")
    page.select_option("#other-choice", label="after")
    page.wait_for_selector("#compare table")
    assert "other=" in shown_address(page)
    assert page.evaluate("document.activeElement.id") == "other-choice"
    rows = {row[0]: row for row in table(page, "Summary numbers, means over heads and samples")}
    for label, name in (
        ("first-token mass", "first_token_mass"),
        ("margin", "margin"),
        ("sink write ratio", "sink_write_ratio"),
    ):
        a, b = held(A, name), held(other, name)
        assert a.mean() == pytest.approx(getattr(A, name).mean() if name != "sink_write_ratio" else a.mean(), rel=1e-3)
        test = stats.ttest_rel(b, a) if paired else stats.ttest_ind(b, a, equal_var=False)
        low, high = test.confidence_interval(0.95)
        for text, value in zip(rows[label][1:6], (a.mean(), b.mean(), b.mean() - a.mean(), low, high), strict=True):
            assert near(text, value), (label, text, value)
        assert rows[label][6] == ("yes" if low > 0 or high < 0 else "no")
    assert ("Student’s" in page.inner_text("#compare")) == paired
    download = saves(page, '[aria-label="Save the numbers of “first-token mass: B − A” as CSV"]')
    delta = list(csv.reader(io.StringIO(Path(download.path()).read_text("utf-8-sig"))))
    np.testing.assert_allclose(
        [float(v) for v in delta[1][1:]], (other.first_token_mass - A.first_token_mass)[0], atol=2e-4
    )
    page.check('input[name="metric"][value="excess_ratio"]', force=True)
    most = table(page, "Heads that differ most")[0]
    ratio = np.log2((other.first_token_mass / other.null_mass) / (A.first_token_mass / A.null_mass))[0]
    assert int(most[1]) == int(np.abs(ratio).argmax())
    assert near(most[4], ratio[int(most[1])])
    page.check('input[name="metric"][value="head_kind"]', force=True)
    assert f"{(other.head_kind != A.head_kind).sum()} of 4 heads changed" in page.inner_text("#compare")
    page.click("#swap")
    page.wait_for_selector("text=A is “after”, B is “before”")
    assert page.evaluate("document.activeElement.id") == "swap"


def test_records_of_two_shapes_are_not_laid_over_each_other(shown: Callable[..., Page]) -> None:
    page = shown({"a": A, "small": OTHER}, "page=model&other=1")
    assert "A has 1 × 4 heads (layers × heads), B has 1 × 2" in page.inner_text("#compare .refused")
    assert page.locator("#compare table").count() == 1  # the numbers can still be compared


@pytest.mark.parametrize("asked", ["0", "7", "<b>"])
def test_an_other_that_is_not_there_or_the_same_is_none(
    watched: Watched, as_file: Callable[[str], str], asked: str
) -> None:
    made = payload(layers=2, heads=2, kv_heads=2)
    page = watched.open(as_file(render(made)) + f"#page=model&record=0&other={asked}")
    assert page.locator("#compare").count() == 0
    assert page.is_hidden("#choice")


@pytest.mark.parametrize("df", [1, 1.7, 2, 4.5, 7, 30, 200])
def test_students_quantile_is_scipys(watched: Watched, as_file: Callable[[str], str], df: float) -> None:
    page = watched.open(as_file(render(payload(layers=1, heads=1, kv_heads=1))))
    found = page.evaluate("async (df) => (await import('sinkgate/model/student.js')).studentQuantile(df)", df)
    assert found == pytest.approx(stats.t.ppf(0.975, df), rel=1e-10)


def test_a_broken_record_is_refused_and_another_can_be_chosen(
    watched: Watched, serving: Callable[..., Serving], tmp_path: Path
) -> None:
    broken, _ = saved(B, tmp_path / "shelf" / "broken"), saved(A, tmp_path / "shelf" / "sound")
    text = (broken / "record.json").read_text("utf-8").replace('"version": 1', '"version": 99')
    (broken / "record.json").write_text(text, "utf-8")
    watched.allowed.append("400")
    page = watched.open(serving(records=[broken.parent]).address)
    assert "version 99" in page.inner_text(".refused")
    page.select_option("#record-choice", label="sound")
    page.wait_for_selector("#map .cell")
    page.select_option("#other-choice", label="broken")
    page.wait_for_selector("#compare .refused")
    assert "version 99" in page.inner_text("#compare .refused")


def test_show_writes_several_records_into_one_file(
    watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(saved(each, tmp_path / name)) for name, each in (("a", A), ("b", B), ("e", effects(A)))]
    assert main(["show", *folders, "--html", str(tmp_path / "two.html")]) == 0
    page = watched.open((tmp_path / "two.html").as_uri() + "#page=model&other=1&metric=eviction_kl")
    assert page.locator("#effects table").count() == 2
    assert main(["show", *folders[:2]]) == 0
    assert capsys.readouterr().out.count("where its attention goes") == 2
    assert main(["show", *folders[:2], "--json"]) != 0
    assert "--json prints one record" in capsys.readouterr().err


# ---- languages, hostile texts, access, size ----

# what stays as it is in Chinese: formulae, names and abbreviations
NAMES = re.compile(
    r"\(sink\)|sinkgate studio( --model)?|sinkgate|English|SVG|PNG|CSV|KV|KL|BOS|LSE|logit|log[₂₁]?|ln|Gu et al\., ICLR 2025, arXiv|Home|End|Page Up|Page Down|Enter|p_s|v_s|write|drawn|"
    r"float32|cpu|tensors?|α|pₛ|vₛ|zₛ|[a-zA-Z](?![a-zA-Z])"
)


@pytest.mark.parametrize("width", [1280, 390])
def test_in_chinese_no_word_of_the_page_is_english(shown: Callable[..., Page], width: int) -> None:
    page = shown({"a": A, "b": B, "e": effects(A)}, "page=model&other=1&lang=zh&metric=eviction_loss", width=width)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    named(page)
    found = page.evaluate("""() => {
      const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), said = [];
      for (let node; (node = walk.nextNode());) if (!node.parentElement.closest("script, style, noscript, .tok, .mono, code, pre, option") && node.data.trim()) said.push(node.data);
      for (const el of document.querySelectorAll("[aria-label], [title], [alt]")) said.push(el.getAttribute("aria-label") ?? el.title ?? el.alt);
      return said;
    }""")
    assert len(found) > 200
    left = {text: words for text in found if (words := re.findall(r"[A-Za-z]{2,}", NAMES.sub("", text)))}
    created = A.meta["created"]
    assert {text: words for text, words in left.items() if text not in (created, "text 0", "1 × 4")} == {}


def test_tokens_that_mean_harm_are_shown_as_text(shown: Callable[..., Page]) -> None:
    hard = [
        *HOSTILE,
        "y" * 10**6,
        "<script>window.hurt = 1</script>",
        "<img src=x onerror='window.hurt = 1'>",
        "\u202etxet\u202c",
    ]
    tokens = [[hard[i % len(hard)].encode("utf-8", "replace").decode() for i in range(96)] for _ in range(3)]
    page = shown({"a": diagnosis(5, push=6.0, tokens=tokens)})
    assert page.evaluate("window.hurt") is None
    assert page.locator("main script, main img").count() == 0
    strip = page.inner_text("#text .strip")
    assert "<script>window.hurt = 1</script>"[:30] in strip
    assert "⟨U+202E⟩" in strip
    assert "\u202e" not in page.inner_text("body")
    assert "y" * 41 not in strip
    assert page.locator('#text bdi[title^="1,000,000 characters"]').count() > 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_names_that_mean_harm_are_shown_as_text(watched: Watched, as_file: Callable[[str], str]) -> None:
    made = payload(layers=4, heads=4, kv_heads=4, hostile=True, unmeasured=(1,), windows=(2,))
    entries = [Entry(str(i), "diagnosis", "<b>\u202e" + "n" * 300, made) for i in range(2)]
    page = watched.open(as_file(document(entries, title="t")) + "#page=model&other=1")
    assert page.locator("main script, main b:not(.readout b, .keys b)").count() == 0
    assert "\u202e" not in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(watched: Watched, tmp_path: Path, lang: str, theme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    address = write_pages({"a": A, "b": B, "e": effects(A)}.items(), tmp_path / "pages.html").as_uri()
    page = watched.open(f"{address}#page=model&other=1&lang={lang}&theme={theme}&metric=head_kind")
    found = Axe().run(page).response["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:200] for node in v["nodes"]][:3]) for v in serious] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(watched: Watched, as_file: Callable[[str], str], width: int) -> None:
    made = [payload(layers=30, heads=32, kv_heads=8, seed=seed, points=8) for seed in (0, 1)]
    page = watched.open(
        as_file(document([Entry(str(i), "diagnosis", f"r{i}", p) for i, p in enumerate(made)], title="t"))
        + "#page=model&other=1",
        width=width,
    )
    for metric in ("mass_over_null", "head_kind", "eviction"):
        page.check(f'input[name="metric"][value="{metric}"]', force=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_map_of_48_by_64_heads_has_every_cell_in_every_quantity(
    watched: Watched, as_file: Callable[[str], str]
) -> None:
    made = payload(layers=48, heads=64, kv_heads=8, points=4)
    page = watched.open(as_file(render(made)))
    named(page)
    for metric in made["metrics"]:
        page.check(f'#metric input[value="{metric["id"]}"]', force=True)
        assert page.locator("#grid .cell").count() == 48 * 64


# ---- the real model ----


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "demo"
    assert main(["diagnose", "--tokens", "96", "--samples", "2", "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_the_default_models_own_report(real: Path, watched: Watched, serving: Callable[..., Serving]) -> None:
    d = Diagnosis.load(real)
    assert (real / "report.html").stat().st_size <= 3_000_000
    for address in ((real / "report.html").as_uri(), serving(records=[real]).address):
        page = watched.open(address)
        assert page.locator(".verdict li").all_inner_texts() == [re.sub(r"\s+", " ", line) for line in d.verdict()]
        ratio, chosen = (
            d.first_token_mass / d.null_mass,
            re.match(r"Layer (\d+) · head (\d+)", page.inner_text("#panel-h")),
        )
        assert chosen  # the strongest head, to the four digits that a page keeps
        assert ratio[int(chosen[1]), int(chosen[2])] == pytest.approx(np.nanmax(ratio), rel=1e-3)
        for at in ((0, 0), (17, 4), (29, 8)):
            page.click(f'.cell[data-l="{at[0]}"][data-k="{at[1]}"]')
            assert near(
                {row[0]: row[1] for row in table(page, "Values of this head")}["first-token mass"],
                d.first_token_mass[at],
            )
        page.locator("summary", has_text="Sink rate at").click()
        rates = {row[0]: row[1] for row in table(page, "Sink rate")}
        assert rates["0.3"] == f"{100 * d.sink_rate(0.3):.1f}%"
        assert len(table(page, "Massive activations")) > 0
        assert math.isfinite(number(table(page, "Massive activations")[0][4]))
        first = table(page, "Sinks found")[0]
        assert int(first[0]) == d.sinks[0].position


def test_the_books_hold_no_english() -> None:
    assert [
        english for english, chinese in book().items() if english == chinese and re.search(r"[a-z]{4}", english)
    ] == []
