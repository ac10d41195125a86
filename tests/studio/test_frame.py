"""The frame around the pages: tabs, theme, language, address."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from report.payloads import payload
from sinkgate.report.html import render
from studio.watched import Watched, shown_address


@pytest.fixture
def address(as_file: Callable[[str], str]) -> str:
    return as_file(render(payload(layers=4, heads=4, kv_heads=2)))


def test_every_tab_opens_and_the_address_says_which(watched: Watched, address: str) -> None:
    page = watched.open(address)
    for name in page.eval_on_selector_all("nav.pages button", "all => all.map(b => b.dataset.page)"):
        page.click(f'nav.pages button[data-page="{name}"]')
        watched.ready(page)
        assert f"page={name}" in shown_address(page)
        assert page.get_attribute(f'nav.pages button[data-page="{name}"]', "aria-current") == "page"


def test_language_and_theme_are_in_the_address_and_come_back(watched: Watched, address: str) -> None:
    page = watched.open(address)
    page.check('#language input[value="zh"]', force=True)
    watched.ready(page)
    page.check('#theme input[value="dark"]', force=True)
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    again = watched.open(shown_address(page))
    assert again.evaluate("document.documentElement.lang") == "zh-Hans"
    assert again.evaluate("document.documentElement.dataset.theme") == "dark"
    assert "模型" in again.inner_text("nav.pages")
