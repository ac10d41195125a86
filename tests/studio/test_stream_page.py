"""The Stream page: the cache's arithmetic held to Python's, stored curves against their records, live work in a real browser."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page

from models import tiny, tokenizer, words
from report.payloads import payload
from sinkgate.cache.base import Keep
from sinkgate.cache.sinks import Sinks
from sinkgate.cache.track import FAR, Step, Track
from sinkgate.evaluate.recall_record import RecallArm, RecallRun
from sinkgate.evaluate.recall_score import Outcome, RecallResult
from sinkgate.evaluate.stream import stream
from sinkgate.evaluate.stream_record import StreamRecord
from sinkgate.hf.streaming import streaming
from sinkgate.hf.writing import Writer
from sinkgate.report.html import Entry, document
from sinkgate.report.payloads import payload_of
from studio.stand_in import StandIn, ends
from studio.watched import Serving, Watched, shown_address

POLICIES = ["dense", "recent(24)", "recent(23) + sinks(1)", "recent(20) + sinks(4)"]


@pytest.fixture(scope="module")
def record() -> StreamRecord:
    arms = [*((p, p, "original" if p == "dense" else "slots") for p in POLICIES)]
    return stream(
        tiny("llama", attn="sdpa"),
        tokenizer(),
        words(300),
        arms,
        every=16,
        chunk=16,
        name="tiny",
        source="<b>words</b>",
    )


def outcome(distance: int, right: bool) -> Outcome:
    return Outcome("stream", distance, distance, right, -1.0, 0.1, 0.0, False)


@pytest.fixture(scope="module")
def recalled() -> RecallRun:
    near, far = [outcome(10, True)] * 3 + [outcome(20, False)], [outcome(300, False)] * 4
    meta = {
        "model": {"name": "tiny"}, "edges": [16, 256], "texts": [{"tokens": 400, "questions": 8}], "tasks": ["stream"], "seeds": [0],
        "wanted": ["dense", "window"],
    }  # fmt: skip
    arms = [
        RecallArm("dense", "dense", "original", RecallResult((*near, *[outcome(300, True)] * 4)), 1.0, 400, True),
        RecallArm("window", "recent(64)", "slots", RecallResult((*near, *far), 64), 1.0, 400, True),
    ]
    return RecallRun(meta, arms)


@pytest.fixture
def in_file(as_file: Callable[[str], str], record: StreamRecord, recalled: RecallRun) -> str:
    entries = [
        Entry("0", "diagnosis", "tiny", payload(layers=4, heads=4, kv_heads=2)), Entry("1", "stream", "run", payload_of(record)),
        Entry("2", "recall", "asked", payload_of(recalled)),
    ]  # fmt: skip
    return as_file(document(entries, title="streams")) + "#page=stream"


# ---- the cache as slots -----------------------------------------------------------------------------------------------


def cache(recent: int, sinks: int, count: int) -> list[dict[str, Any]]:
    """What the Python cache says of every step: the token of each slot, and where each counts inside the cache."""
    track, found, before = Track(Keep((0,), recent, (Sinks(sinks),) if sinks else ()), 1), [], set[int]()
    for t in range(count):
        move = track.move(Step(torch.tensor([[t]]), [t]))
        slots = [None if p == FAR else int(p) for p in track.pos[0].tolist()]
        query = int(track._cache_position(torch.tensor([[t]]), move.kept)[0, 0])  # type: ignore[arg-type]
        # Recent keys keep the rotation they came with, pinned ones stand at `target`: as far from the query as that is from t.
        stands = [*(move.target[0].tolist() if move.target is not None else []), *slots[sinks:]]
        held = {p for p in slots if p is not None}
        found.append({
            "slots": slots, "query": query, "evicted": next(iter(before - held), None), "held": sorted(held),
            "positions": [None if p is None else query - (t - at) for p, at in zip(slots, stands, strict=True)],
        })  # fmt: skip
        before = held
    return found


TWIN = """async ([recent, sinks, count]) => {
  const { cacheAt } = await import("sinkgate/stream/slots.js");
  return Array.from({ length: count }, (_, t) => {
    const c = cacheAt(t, recent, sinks);
    return { slots: c.slots, query: c.query("slots"), evicted: c.evicted, held: c.held, positions: c.slots.map((token) => (token === null ? null : c.position(token, "slots"))) };
  });
}"""


def test_the_twin_is_the_python_cache_slot_by_slot(watched: Watched, in_file: str) -> None:
    page = watched.open(in_file)
    for recent, sinks in [(1, 0), (1, 1), (1, 3), (2, 5), (5, 2), (8, 0), (8, 4), (24, 8), (7, 1)]:
        assert page.evaluate(TWIN, [recent, sinks, 70]) == cache(recent, sinks, 70), (recent, sinks)


def test_the_example_of_the_documentation(watched: Watched, in_file: str) -> None:
    """docs/streaming.md: cached tokens 0 1 2 3 6 7 8 and the query 9 stand at 0 to 7."""
    page = watched.open(in_file + "&c_recent=4&c_sinks=4&c_at=9")
    assert drawn(page) == {0: 0, 1: 1, 2: 2, 3: 3, 6: 4, 7: 5, 8: 6, 9: 7}
    page.check('#c-pos input[value="original"]', force=True)
    assert drawn(page) == {n: n for n in (0, 1, 2, 3, 6, 7, 8, 9)}


def drawn(page: Page) -> dict[int, int]:
    """Token → position of the slots on screen."""
    found = page.eval_on_selector_all(
        ".slot:not(.gone):not(.empty)", "all => all.map(g => [g.dataset.token, g.dataset.position])"
    )
    return {int(token): int(position) for token, position in sorted(found, key=lambda pair: int(pair[0]))}


def test_steps_and_play_move_the_cache_and_the_address(watched: Watched, in_file: str) -> None:
    page = watched.open(in_file + "&c_recent=5&c_sinks=1&c_at=20")
    steps = cache(5, 1, 30)

    def shown(t: int) -> None:
        assert drawn(page) == dict(
            sorted((s, p) for s, p in zip(steps[t]["slots"], steps[t]["positions"], strict=True))
        )
        assert page.get_attribute(".slot.gone", "data-token") == str(steps[t]["evicted"])
        assert f"c_at={t}" in shown_address(page)

    shown(20)
    page.click("#c-on")
    shown(21)
    page.click("#c-back")
    page.click("#c-back")
    shown(19)
    page.focus("#c-at")
    page.keyboard.press("ArrowRight")
    shown(20)
    page.click("#c-play")
    page.wait_for_function("() => location.hash.includes('c_at=22')", timeout=10_000)
    assert page.get_attribute("#c-play", "aria-pressed") == "true"
    page.click("#c-play")
    at = shown_address(page)
    page.wait_for_timeout(900)
    assert shown_address(page) == at


def test_what_the_address_asks_for_is_checked(watched: Watched, in_file: str) -> None:
    page = watched.open(in_file + "&c_recent=9999&c_sinks=-4&c_at=x&c_pos=up&r_tokens=1e9&r_arms=a,b&w_policy=&curve=7")
    assert page.input_value("#c-recent") == "24"
    assert page.input_value("#c-sinks") == "0"
    assert page.input_value("#c-at") == "24"
    assert page.is_checked('#c-pos input[value="slots"]')
    assert page.input_value("#w-policy") == "recent(252) + sinks(4)"


# ---- in a file --------------------------------------------------------------------------------------------------------


def test_in_a_file_live_controls_say_their_command(watched: Watched, in_file: str) -> None:
    page = watched.open(in_file)
    for control in ("#r-go", "#r-stop", "#w-go", "#w-stop"):
        assert page.is_disabled(control)
    for form in ("#r-form", "#w-form"):
        assert page.eval_on_selector(form, "form => form.disabled")
    assert page.inner_text("#r-shell").startswith("sinkgate stream smollm2-135m --policy dense --policy 'recent(256)'")
    assert page.inner_text("#w-shell").startswith("sinkgate generate smollm2-135m --prompt")


def test_a_stored_record_draws_its_own_numbers(watched: Watched, in_file: str, record: StreamRecord) -> None:
    page = watched.open(in_file)
    rows = page.eval_on_selector_all(
        "#stored tbody tr", "all => all.map(row => [...row.children].map(cell => cell.innerText))"
    )
    assert len(rows) == len(record.arms)
    for row, arm in zip(rows, record.arms, strict=True):
        assert row[1] == arm.policy
        assert float(row[3].replace(",", "")) == pytest.approx(arm.perplexity, rel=0.01)
        assert int(row[4].replace(",", "")) == arm.tokens
    assert page.locator("#stored figure svg").count() == 2
    assert page.locator("#stored b").count() == 0  # the text's name is text
    assert "<b>words</b>" in page.inner_text("#stored")
    with page.expect_download() as saved:
        page.click("#stored figure >> nth=0 >> text=CSV")
    table = Path(saved.value.path()).read_text(encoding="utf-8-sig").splitlines()
    for i, arm in enumerate(record.arms):
        got = [float(line.split(",")[1 + i]) for line in table[1:] if line.split(",")[1 + i]]
        sums, counts = 0.0, 0
        for value, nats, count in zip(got, arm.sums, arm.counts, strict=True):
            sums, counts = sums + nats, counts + count
            assert value == pytest.approx(math.exp(sums / counts), rel=1e-3)


def test_a_stored_recall_draws_its_own_numbers(watched: Watched, in_file: str, recalled: RecallRun) -> None:
    page = watched.open(in_file)
    page.select_option("#s-curve", "2")
    page.wait_for_selector("#stored table")
    assert "curve=2" in shown_address(page)
    rows = page.eval_on_selector_all(
        "#stored tbody tr", "all => all.map(row => [...row.children].map(cell => cell.innerText))"
    )
    for row, arm in zip(rows, recalled.arms, strict=True):
        cells = recalled.cells(arm, "stream")
        assert row[1:] == [f"{cell.right}/{cell.n}" for _, cell in sorted(cells.items())]
    heads = page.eval_on_selector_all("#stored thead th", "all => all.map(cell => cell.innerText)")
    assert heads[1:] == [recalled.column(i) for i in sorted(recalled.cells(recalled.arms[0], "stream"))]


HOSTILE = "<script>top.hurt=1</script>\"'\u202eltr\x00\x1b" + "x" * 10**6


def test_a_hostile_record_is_text(watched: Watched, as_file: Callable[[str], str], record: StreamRecord) -> None:
    said = payload_of(record)
    said["meta"]["model"]["name"] = said["meta"]["text"] = HOSTILE
    for arm in said["arms"]:
        arm["name"] = arm["policy"] = arm["note"] = arm["positions"] = HOSTILE
    page = watched.open(as_file(document([Entry("0", "stream", HOSTILE, said)], title="hostile")) + "#page=stream")
    page.wait_for_selector("#stored table")
    assert page.evaluate("window.hurt") is None
    assert page.locator("#page script").count() == 0
    shown = page.inner_text("#stored")
    assert "<script>top.hurt=1</script>" in shown
    assert "\u202e" not in shown
    assert len(shown) < 20_000
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize(
    "damage",
    [
        lambda said: said.pop("arms"),
        lambda said: said.update(arms={"0": 1}),
        lambda said: said["arms"][0].update(sums="many"),
        lambda said: said["arms"][0].update(sums=[None] * len(said["arms"][0]["sums"])),
        lambda said: said["arms"][1].update(counts=[1]),
        lambda said: said["arms"][1].update(every=0),
        lambda said: said["meta"].update(model=None),
        lambda said: said["meta"].update(tokens="all"),
    ],
)
def test_a_damaged_record_is_one_line(
    watched: Watched, as_file: Callable[[str], str], record: StreamRecord, damage: Callable[[Any], Any]
) -> None:
    said = json.loads(json.dumps(payload_of(record)))
    damage(said)
    page = watched.open(as_file(document([Entry("0", "stream", "x", said)], title="damaged")) + "#page=stream")
    assert "cannot be drawn" in page.inner_text("#stored .refused")
    page.click("#c-on")  # the rest of the page works


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}], ids=["light", "dark"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nothing_is_cut_on_a_telephone(watched: Watched, in_file: str, lang: str, options: dict[str, Any]) -> None:
    page = watched.open(in_file + f"&lang={lang}", width=390, height=844, **options)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert ("用有限的内存" in page.inner_text("h1")) == (lang == "zh")


def test_every_control_has_a_name_and_axe_finds_nothing_serious(watched: Watched, in_file: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    for theme in ("light", "dark"):
        page = watched.open(in_file + f"&theme={theme}")
        found = Axe().run(page).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in ("serious", "critical")] == []


# ---- served ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(serving: Callable[..., Serving], tmp_path: Path, record: StreamRecord) -> Serving:
    record.save(tmp_path / "run" / "stream.json")
    found = serving(records=[tmp_path / "run"], models=["tiny"])
    found.studio.models = StandIn()
    return found


def test_reading_live_ends_at_what_python_computes(watched: Watched, served: Serving) -> None:
    page = watched.open(served.address + "#page=stream&r_tokens=200&r_window=24")
    page.fill("#r-text", words(200))
    page.click("#r-go")
    with page.expect_download(timeout=60_000) as saved:
        page.click("#r-save", timeout=60_000)
    wanted = stream(tiny("llama", attn="sdpa"), tokenizer(), words(200), POLICIES, every=64, chunk=64)
    got = json.loads(Path(saved.value.path()).read_text())
    assert [arm["sums"] for arm in got["arms"]] == [arm.sums for arm in wanted.arms]
    rows = page.eval_on_selector_all(
        "#r-found tbody tr", "all => all.map(row => [...row.children].map(cell => cell.innerText))"
    )
    assert [row[1] for row in rows] == POLICIES
    for row, arm in zip(rows, wanted.arms, strict=True):
        assert float(row[3].replace(",", "")) == pytest.approx(arm.perplexity, rel=0.01)


def test_reading_is_stopped_by_its_button_and_by_leaving_the_page(watched: Watched, served: Serving) -> None:
    page = watched.open(served.address + "#page=stream&r_tokens=16384&r_window=24&r_arms=window")
    page.fill("#r-text", words(16_384))
    page.click("#r-go")
    page.wait_for_selector("#r-found svg", timeout=60_000)
    page.click("#r-stop")
    page.wait_for_selector("#r-go:enabled")
    page.locator("#r-found svg").nth(1).wait_for()  # what there is stays; it is drawn in the next frame
    assert page.locator("#r-found svg").count() == 2
    assert ends(served.studio)
    page.click("#r-go")
    page.wait_for_selector("#r-found svg", timeout=60_000)
    page.click('nav.pages [data-page="kv"]')
    assert ends(served.studio)


def test_writing_live(watched: Watched, served: Serving) -> None:
    page = watched.open(served.address + "#page=stream&w_tokens=30&w_policy=recent(10)%20%2B%20sinks(2)")
    page.fill("#w-prompt", "w1 w2 w3")
    page.click("#w-go")
    page.wait_for_selector("#w-stop:disabled", timeout=60_000)
    assert page.inner_text("#w-count dd >> nth=0") == "30"
    assert page.inner_text("#w-held dd >> nth=0") == "12"
    assert page.inner_text("#w-again dd >> nth=0").endswith("%")
    model, names = tiny("llama", attn="sdpa"), tokenizer()
    with streaming(model, "recent(10) + sinks(2)") as cache:
        writer = Writer(model, names, cache)
        writer.read(names("w1 w2 w3", add_special_tokens=False)["input_ids"])
        wanted = "".join(writer.write(30))
    assert page.inner_text("#w-text").split() == ("w1 w2 w3" + wanted).split()
    assert "perplexity" not in page.inner_text("#w-gauges").lower()


def test_writing_ends_with_its_page(watched: Watched, served: Serving) -> None:
    page = watched.open(served.address + "#page=stream&w_tokens=4096&w_policy=recent(10)")
    page.fill("#w-prompt", "w1 w2 w3")
    page.click("#w-go")
    page.wait_for_selector("#w-count")
    page.close()
    assert ends(served.studio)


def test_a_refusal_is_shown(watched: Watched, served: Serving) -> None:
    watched.allowed.append("400")
    page = watched.open(served.address + "#page=stream&r_policy=forget(3)&w_policy=forget(3)")
    page.fill("#r-text", words(200))
    page.click("#r-go")
    assert "there is no policy 'forget'" in page.inner_text("#r-found .refused")
    page.click("#w-go")
    assert "there is no policy 'forget'" in page.inner_text("#w-refused .refused")
    assert page.is_enabled("#r-go")


def test_a_studio_without_a_model_says_how_to_start_it(watched: Watched, serving: Callable[..., Serving]) -> None:
    page = watched.open(serving().address + "#page=stream")
    assert page.is_disabled("#r-go")
    assert "sinkgate studio --model smollm2-135m" in page.inner_text("#r-command")


def test_attention_on_demand_in_a_heads_panel(
    watched: Watched, serving: Callable[..., Serving], tmp_path: Path
) -> None:
    from sinkgate import diagnose

    diagnose(tiny("llama", attn="sdpa"), tokenizer(), [words(90)], tokens=90, samples=1).save(tmp_path / "one")
    served = serving(records=[tmp_path / "one"], models=["tiny"])
    served.studio.models = StandIn()
    page = watched.open(served.address + "#page=model&layer=1&head=4")
    page.fill("#a-text", words(90))
    page.click("#a-go")
    page.wait_for_selector("#a-found svg", timeout=60_000)
    from sinkgate.probe.pattern import pattern

    wanted = pattern(tiny("llama", attn="sdpa"), tokenizer(), words(90), 1, 4)
    shown = page.eval_on_selector_all(
        "#a-found tbody tr", "all => all.map(row => [...row.children].map(cell => cell.innerText))"
    )
    for row, (key, token, weight) in zip(shown, wanted.top(16)[0], strict=True):
        assert int(row[0]) == key
        assert row[1] == token
        assert float(row[2]) == pytest.approx(weight, rel=0.06)
    bars = page.locator("#a-found rect.weightbar").count()
    page.check('#a-scale input[value="linear"]', force=True)
    assert page.locator("#a-found rect.sinkbar").count() == 1
    assert page.locator("#a-found rect.weightbar").count() == bars + 1
    page.check('#a-mode input[value="block"]', force=True)
    page.click("#a-go")
    page.wait_for_selector("#a-found .patch", timeout=60_000)
    assert "64 queries from 0 to 89" in page.inner_text("#a-found")
    page.select_option("#panel select >> nth=1", "2")
    assert page.locator("#a-found svg").count() == 0  # another head has its own


def test_attention_in_a_file_says_its_command(watched: Watched, in_file: str) -> None:
    page = watched.open(in_file.replace("page=stream", "page=model"))
    assert page.is_disabled("#a-go")
    assert "sinkgate studio DIR --model" in page.inner_text("#attention")
