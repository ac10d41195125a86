"""The six lessons: predict, drag until the numbers say so, the result, the misconception."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from studio.test_simulator import DOCUMENT, asked, drawn, out, put, write
from studio.watched import Watched, shown_address


@pytest.fixture
def address(as_file: Callable[[str], str]) -> str:
    return as_file(DOCUMENT) + "#page=simulator"


def score(page: Page, key: int, value: float) -> None:
    page.select_option("#key", str(key))
    write(page, "score", str(value))


def drag(page: Page, key: int, up: float) -> None:
    """Pull a bar by some pixels."""
    box = page.locator(f'.score[data-key="{key}"]').bounding_box()
    assert box
    x = box["x"] + box["width"] / 2
    handle = page.locator(f'.score[data-key="{key}"] .handle').bounding_box()
    assert handle
    y = handle["y"] + handle["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - up, steps=12)
    page.mouse.up()


def raise_sink(page: Page) -> None:
    for _ in range(40):
        if out(page, "share") >= 0.9:
            return
        page.locator('.score[data-key="0"]').focus()
        page.keyboard.press("ArrowUp")


# lesson → (the right choice, a hand that does not do, then one hand for each step)
HANDS: dict[str, tuple[int, Callable[[Page], Any], list[Callable[[Page], Any]]]] = {
    "whole": (2, lambda p: put(p, '[data-dial="shift"]', -5), [lambda p: put(p, '[data-dial="shift"]', -9), lambda p: (score(p, 0, 3.5), score(p, 1, -3))]),
    "split": (2, lambda p: score(p, 0, 1.0), [raise_sink]),
    "deletion": (2, lambda p: score(p, 0, 3.0), [lambda p: (score(p, 0, 3.58351893845611), p.click("#cut")), lambda p: score(p, 0, 1.0)]),
    "logit": (1, lambda p: put(p, '[data-dial="z"]', -2), [lambda p: put(p, '[data-dial="z"]', 0), lambda p: put(p, '[data-dial="z"]', 1.25)]),
    "gate": (2, lambda p: score(p, 1, -4.0), [lambda p: (score(p, 1, 0.0), put(p, '[data-dial="gate"]', 0.17))]),
    "sparse": (1, lambda p: score(p, 0, 0.8), [lambda p: score(p, 0, 1.0), lambda p: put(p, '[data-dial="gate"]', 0.04)]),
}  # fmt: skip


def test_there_are_six(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address))
    assert page.eval_on_selector_all("[data-lesson]", "all => all.map(b => b.dataset.lesson)") == list(HANDS)


@pytest.mark.parametrize("name", HANDS)
def test_a_lesson_from_end_to_end(watched: Watched, address: str, name: str) -> None:
    right, wrong, hands = HANDS[name]
    page = drawn(watched.open(address))
    page.click(f'[data-lesson="{name}"]')
    # Nothing to do, and nothing given away, before the prediction.
    assert page.locator("[data-step]").count() == 0
    assert page.locator("#misconception").count() == 0
    page.check(f'.answers input[value="{(right + 1) % 3}"]')
    assert asked(page)["said"] == str((right + 1) % 3)
    page.check(f'.answers input[value="{right}"]')
    assert asked(page)["said"] == str(right)
    assert "did" not in asked(page)
    wrong(page)
    assert "did" not in asked(page)
    assert page.locator('[data-step="0"]').get_attribute("class") == "open"
    for i, hand in enumerate(hands):
        assert page.locator("#misconception").count() == 0
        hand(page)
        assert asked(page)["did"] == str(i + 1), page.inner_text(".tasks")
    assert page.inner_text("#verdict").startswith("You predicted it")
    assert page.locator("#misconception").is_visible()
    # The state is in the address and comes back; what was done stays done.
    again = drawn(watched.open(shown_address(page)))
    assert again.locator("#misconception").inner_text() == page.locator("#misconception").inner_text()
    put(again, '[data-dial="shift"]', 3)
    assert again.locator("#misconception").is_visible()
    again.click("#restart")
    assert "said" not in asked(again)
    again.click("#leave")
    assert "lesson" not in asked(again)


def test_a_step_is_judged_as_the_bar_is_dragged(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address))
    page.click('[data-lesson="sparse"]')
    page.check('.answers input[value="0"]')
    drag(page, 0, 40)
    assert out(page, "support") == 1
    assert asked(page)["did"] == "1"


def test_a_wrong_prediction_is_told(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address))
    page.click('[data-lesson="split"]')
    page.check('.answers input[value="0"]')
    raise_sink(page)
    text = page.inner_text("#verdict")
    assert "From the stronger one." in text
    assert "From both by the same factor." in text
    assert page.locator(".answers input").first.is_disabled()


def test_another_weighting_does_not_count(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address))
    page.click('[data-lesson="whole"]')
    page.check('.answers input[value="2"]')
    page.select_option("#weighting", "sparsemax")
    put(page, '[data-dial="shift"]', -9)
    assert "did" not in asked(page)
    assert "counts with softmax" in page.inner_text(".tasks .now")


def test_moved_values_do_not_count_where_they_are_to_stay(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address))
    page.click('[data-lesson="gate"]')
    page.check('.answers input[value="2"]')
    for key in ("0", "1"):
        page.select_option("#key", key)
        write(page, "vx", "0.5")
    assert out(page, "miss") < 0.05
    assert "did" not in asked(page)


def test_a_step_without_a_prediction_is_not_counted(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address + "&lesson=split&did=1"))
    assert page.locator("#misconception").count() == 0
    raise_sink(page)
    assert page.locator("#misconception").count() == 0


def test_lessons_in_chinese(watched: Watched, address: str) -> None:
    page = drawn(watched.open(address + "&lang=zh"))
    for name in HANDS:
        page.click(f'[data-lesson="{name}"]')
        text = page.inner_text(".lesson")
        assert sum("\u4e00" <= c <= "\u9fff" for c in text) > 20
