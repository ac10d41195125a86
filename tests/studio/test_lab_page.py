"""Page 4: what it shows is the record's, in a file and served; a comparison is started, watched and stopped from it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from report.comparisons import comparison
from sinkgate.lab.comparison_record import Comparison
from sinkgate.report.comparison_charts import over_steps
from sinkgate.report.html import Entry, document
from sinkgate.report.lab_payload import MOST_POINTS, lab_payload
from sinkgate.report.payloads import payload_of
from studio.watched import Serving, Watched, shown_address

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u202c {base} {n}",
    "=HYPERLINK(1)",
]


def page_of(record: Comparison, name: str = "a comparison") -> str:
    return document([Entry("7", "comparison", name, payload_of(record))], title="lab")


def rounded(x: float) -> float:
    """As a payload writes it, and a CSV."""
    return float(f"{float(f'{x:.5g}'):.6g}")


def minus(text: str) -> str:
    return re.sub(r"(^|[\s\[(±])-(?=\d)", r"\1−", text)


def saved(page: Page, within: str) -> list[list[str]]:
    with page.expect_download(timeout=90_000) as waiting:
        page.click(f'{within} button:has-text("CSV")')
    return list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8-sig"))))


def texts(page: Page, selector: str) -> list[str]:
    return [str(text) for text in page.eval_on_selector_all(selector, "all => all.map(e => e.textContent)")]


def says_what_the_record_says(page: Page, record: Comparison) -> None:
    """Sentences and table are those that ``sinkgate compare`` prints."""
    said = [minus(line) for line in record.sentences()]
    assert texts(page, "#lab-verdict li") + texts(page, "#lab-notes li") == said
    columns, rows = record.table()
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    shown = page.eval_on_selector_all(
        "#lab-table tbody tr", "all => all.map(r => [...r.children].map(c => c.textContent))"
    )
    assert shown == [[minus(row[i]) or "—" for i in kept] for row in rows]


def same_curves(page: Page, record: Comparison, name: str, title: str) -> None:
    """A figure's CSV holds the lines of the report that ``sinkgate compare`` writes."""
    chart = next(d.chart for d in over_steps(record) if d.chart.title.lower() == title.lower())
    head, *rows = saved(page, f"#lab-of-{name}")
    column = {name: i for i, name in enumerate(head)}
    at = {float(row[0]): row for row in rows}
    checked = 0
    for line in chart.lines:
        if line.reference:
            continue
        own = line.name if line.name[0] not in "=+-@" else f"'{line.name}"
        for i, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
            assert y is not None
            row = at[x]
            assert float(row[column[own]]) == pytest.approx(y, rel=6e-5)
            if line.low:
                assert float(row[column[f"{own} lo"]]) == pytest.approx(line.low[i], rel=6e-5)
                assert float(row[column[f"{own} hi"]]) == pytest.approx(line.high[i], rel=6e-5)
            checked += 1
    assert checked > 10


# ---- stored comparisons -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "served"])
def test_a_stored_comparison(
    serving: Callable[..., Serving], watched: Watched, as_file: Callable[..., str], tmp_path: Path, where: str
) -> None:
    record = comparison(3, seeds=3, steps=250, spikes=(40, 77))
    if where == "file":
        address = as_file(page_of(record)) + "#page=lab"
    else:
        record.save(tmp_path / "kept" / "record.json")
        address = serving([tmp_path / "kept"]).address + "#page=lab"
    page = watched.open(address)
    page.wait_for_selector("#lab-body[data-shown='record.7'], #lab-body[data-shown='record.0']")
    says_what_the_record_says(page, record)
    assert any("no difference found at this size" in line for line in texts(page, "#lab-verdict li"))
    same_curves(page, record, "loss", "training loss")
    same_curves(page, record, "held_out", "held-out loss")
    same_curves(page, record, "grad_norm", "gradient norm")
    same_curves(page, record, "first_mass", "first-token mass")
    assert page.locator("#lab-of-loss [data-event=spike]").count() == 2 * 9
    assert "18 spikes" in page.inner_text("#lab-of-loss .note")
    for number in ("first_mass", "loss"):
        page.select_option("#lab-diff", number)
        rows = saved(page, "#lab-differences")
        for arm, row in zip(record.arms[1:], rows[1:], strict=True):
            found = record.difference(arm, number)
            assert [float(x) for x in row[1:4]] == [
                pytest.approx(float(v), rel=6e-5) for v in (found.mean, found.low, found.high)
            ]
            assert row[4:] == [str(found.samples), record.told_apart(arm, None if number == "loss" else number)]
    page.click("#lab-runs-of summary")
    runs = saved(page, "#lab-runs-of")
    assert [(r[0], float(r[1]), int(r[2]), float(r[5])) for r in runs[1:]] == [
        (p["arm"], p["piece"]["lr"], p["piece"]["seed"], pytest.approx(p["test"]["loss"], rel=6e-5))
        for p in record.pieces
    ]


def test_every_control_of_a_comparison(watched: Watched, as_file: Callable[..., str]) -> None:
    record = comparison(3, seeds=2, rates=(1e-3,), steps=60)
    for p in record.pieces:
        for line in p["curve"]:
            if "first_mass" in line:
                line |= {f"first_mass_layer_{k}": line["first_mass"] * (k + 1) for k in range(3)}
    page = watched.open(as_file(page_of(record)) + "#page=lab")
    legend = lambda name: texts(page, f"#lab-of-{name} .legend-of")  # noqa: E731
    assert legend("loss") == record.arms
    page.uncheck("#lab-arm-1")
    assert legend("loss") == ["arm 0", "arm 2"]
    page.check("#lab-arm-1")
    page.select_option("#lab-seed", "1")
    rows = saved(page, "#lab-of-loss")
    curve = next(p for p in record.at_best("arm 0") if p["piece"]["seed"] == 1)["curve"]
    assert [float(r[1]) for r in rows[1:]] == [rounded(line["loss"]) for line in curve]
    page.select_option("#lab-seed", "")
    page.check('#lab-view input[value="difference"]', force=True)
    rows = saved(page, "#lab-of-loss")
    assert rows[0][1] == "arm 1 − arm 0"
    losses = [[[line["loss"] for line in p["curve"]] for p in record.at_best(arm)] for arm in record.arms]
    for step, row in enumerate(rows[1:]):
        pairs = [losses[1][s][step] - losses[0][s][step] for s in range(2)]
        assert [float(x) for x in row[1:4]] == [
            pytest.approx(v, abs=3e-4) for v in (sum(pairs) / 2, min(pairs), max(pairs))
        ]
    page.check('#lab-view input[value="values"]', force=True)
    page.select_option("#lab-arm", "2")
    rows = saved(page, "#lab-layers")
    assert rows[0][1:8:3] == ["layer 0", "layer 1", "layer 2"]
    last = [line for line in record.at_best("arm 2")[0]["curve"] if "first_mass" in line][-1]
    assert [float(x) for x in rows[-1][1:8:3]] == [
        pytest.approx(last["first_mass"] * (k + 1), rel=6e-5) for k in range(3)
    ]
    rows = saved(page, "#lab-end-first_mass_by_layer")
    assert float(rows[2][1]) == pytest.approx(0.205)
    page.select_option("#lab-number", "kurtosis")
    assert "Kurtosis" in page.inner_text("#lab-other")
    page.focus("#lab-of-loss svg")
    page.keyboard.press("Home")
    assert page.inner_text("#live").startswith("step 0, arm 0: ")
    with page.expect_download(timeout=90_000) as waiting:
        page.click('#lab-of-loss button:has-text("SVG")')
    assert "<svg" in Path(waiting.value.path()).read_text(encoding="utf-8")
    page.uncheck("#lab-arm-2")
    page.check('#lab-view input[value="difference"]', force=True)
    again = watched.open(shown_address(page))
    assert texts(again, "#lab-of-loss .legend-of") == ["arm 1 − arm 0", "no difference"]
    assert again.input_value("#lab-number") == "kurtosis"


def test_runs_that_were_lost_and_one_seed(watched: Watched, as_file: Callable[..., str]) -> None:
    record = comparison(2, seeds=2, rates=(1e-3,), lost=lambda arm, rate, seed: arm == 1 and seed == 1)
    page = watched.open(as_file(page_of(record)) + "#page=lab")
    says_what_the_record_says(page, record)
    assert page.locator("#lab-of-loss [data-event=lost]").count() == 1
    assert "diverged" in page.inner_text("#lab-of-loss .note")
    alone = watched.open(as_file(page_of(comparison(1, seeds=1, rates=(1e-3,))), "alone.html") + "#page=lab")
    assert texts(alone, "#lab-verdict li") == ["One arm: there is nothing to compare it with."]


def test_hostile_names_stay_text(watched: Watched, as_file: Callable[..., str]) -> None:
    record = comparison(HOSTILE, seeds=2, rates=(1e-3,))
    page = watched.open(
        as_file(document([Entry("7", "comparison", HOSTILE[0], payload_of(record))], title="lab")) + "#page=lab"
    )
    assert page.locator("main script, main img").count() == 0
    assert "\u202e" not in page.inner_text("main")
    assert "⟨U+202E⟩evil⟨U+202C⟩ {base} {n}" in page.inner_text("#lab-verdict")
    for key in (
        "lab=record.99",
        "lab=run.20260101-000000-abcdef",
        "lab=%3Cb%3E",
        "labhide=9-9-9&labseed=77&labarm=8&labnumber=nothing&labdiff=none",
    ):
        watched.open(shown_address(page).split("#")[0] + f"#page=lab&{key}")


def test_a_large_comparison_is_thinned_and_small_enough() -> None:
    record = comparison(12, seeds=5, rates=(1e-3,), steps=600, spikes=(100,))
    made = lab_payload(record)
    points = sum(len(c["x"]) for p in made["pieces"] for c in p["series"].values())
    assert points < 1.5 * MOST_POINTS
    assert all(100 in p["series"]["loss"]["x"] and p["series"]["loss"]["x"][-1] == 599 for p in made["pieces"])
    assert len(document([Entry("0", "comparison", "x", made)], title="x").encode()) < 3_000_000
    assert not any(
        isinstance(v, float) and not math.isfinite(v)
        for p in made["pieces"]
        for c in p["series"].values()
        for v in c["y"]
    )


# ---- live -------------------------------------------------------------------------------------------------------------


def fill(page: Page, task: str, arms: str, seeds: int, budget: int) -> None:
    page.select_option("#lab-task", task)
    page.fill("#lab-arms-asked", arms)
    page.fill("#lab-seeds-asked", str(seeds))
    page.fill("#lab-budget", str(budget))


def test_a_file_says_which_command_would_run(watched: Watched, as_file: Callable[..., str]) -> None:
    page = watched.open(as_file(document([], title="lab")) + "#page=lab")
    assert page.is_disabled("#lab-start")
    assert "sinkgate studio" in page.inner_text("#lab-runs")
    fill(page, "text", "softmax, it's", 2, 40)
    assert (
        page.inner_text("#lab-command")
        == """sinkgate compare --task text --preset tiny --arms 'softmax, it'"'"'s' --seeds 2 --budget 40 --out runs/text"""
    )
    assert "No comparison is stored" in page.inner_text("#lab-choose")


def test_a_comparison_from_the_page(serving: Callable[..., Serving], watched: Watched) -> None:
    watched.allowed.append(r"status of 400")  # the browser's own line on what is refused below
    served = serving()
    page = watched.open(served.address + "#page=lab")
    expect(page.locator("#lab-runs .empty")).to_be_visible()
    for change, line in (
        (("backcopy", "softmix", 1, 30), "no weighting 'softmix'"),
        (("backcopy", "softmax", 6, 30), "seeds must be a whole number from 1 to 5, got '6'"),
        (("trigger", "softmax", 1, 5001), "budget of trigger must be a whole number from 20 to 5000, got '5001'"),
    ):
        fill(page, *change)
        page.click("#lab-start")
        expect(page.locator("#lab-refused")).to_contain_text(line, timeout=60_000)
    fill(page, "backcopy", "softmax, softmax + g1", 2, 30)
    page.click("#lab-start")
    expect(page.locator("#lab-list li")).to_have_count(1, timeout=60_000)
    assert page.is_hidden("#lab-refused")
    ident = page.get_attribute("#lab-list li", "data-run")
    assert ident is not None
    page.wait_for_selector("#lab-along figure path.series", state="attached", timeout=240_000)  # curves before the end
    page.wait_for_selector("#lab-body[data-state=running] #lab-pieces, #lab-body[data-state=done]", timeout=240_000)
    page.wait_for_selector("#lab-body[data-state=done] #lab-verdict", timeout=240_000)
    record = Comparison.load(served.studio.runs / ident)
    says_what_the_record_says(page, record)
    same_curves(page, record, "loss", "training loss")
    expect(page.locator("#lab-list li .chip")).to_have_text("done", timeout=60_000)
    assert page.is_hidden('#lab-list [data-act="stop"]')
    fill(page, "trigger", "softmax, softmax + g1", 5, 5000)
    page.click("#lab-start")
    first = page.locator("#lab-list li").first
    expect(first.locator(".chip")).to_have_text("running", timeout=60_000)
    page.wait_for_selector("#lab-body[data-state=running] #lab-of-loss path.series", state="attached", timeout=240_000)
    assert "trigger" in page.inner_text("#lab-select option:checked") or "trigger" in str(
        page.evaluate("document.querySelector('#lab-select').selectedOptions[0].textContent")
    )
    first.locator('[data-act="stop"]').click()
    expect(first.locator(".chip")).to_have_text("stopped", timeout=60_000)
    expect(page.locator("#lab-status")).to_have_text("This run was stopped; resume it above.", timeout=60_000)
    page.wait_for_selector("#lab-pieces tbody tr", timeout=60_000)
    first.locator('[data-act="resume"]').click()
    expect(first.locator(".chip")).to_have_text("running", timeout=60_000)
    first.locator('[data-act="stop"]').click()
    expect(first.locator(".chip")).to_have_text("stopped", timeout=60_000)
    page.locator("#lab-list li").last.locator('[data-act="show"]').click()
    page.wait_for_selector(f"#lab-body[data-shown='run.{ident}'] #lab-verdict", timeout=60_000)
    again = watched.open(shown_address(page))  # a view of a run can be shared
    again.wait_for_selector(f"#lab-body[data-shown='run.{ident}'] #lab-verdict", timeout=60_000)
    says_what_the_record_says(again, record)


# ---- for everybody ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_accessible_and_narrow(watched: Watched, as_file: Callable[..., str], theme: str, language: str) -> None:
    record = comparison(["softmax", "softmax + g1", "softpick"], seeds=3, spikes=(30,))
    address = as_file(page_of(record)) + f"#page=lab&lang={language}&theme={theme}"
    page = watched.open(address)
    page.click("#lab-runs-of summary")
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    assert [
        (v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")
    ] == []
    if language == "zh":
        text = page.inner_text("main").replace(page.inner_text("#lab-command"), "")
        assert re.findall(r"[A-Za-z]{4,} [a-z]{2,} [a-z]{2,}", text) == []
    narrow = watched.open(address, width=390)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
