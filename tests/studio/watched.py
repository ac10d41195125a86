"""Pages and studios that a test opens."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page

from sinkgate.studio import Studio

SCREENS = Path(__file__).parents[2] / "build" / "screens"


def shown_address(page: Page) -> str:
    """The page's address, once what was chosen is in it."""
    page.wait_for_selector('html:not([data-address="behind"])', state="attached")
    return str(page.evaluate("location.href"))


class Watched:
    """Opens pages, and keeps what went wrong in them."""

    def __init__(self, browser: Browser, name: str) -> None:
        self.browser, self.name = browser, name
        self.contexts: list[BrowserContext] = []
        self.wrong: list[str] = []
        self.allowed: list[str] = []  # patterns of console lines that a test expects

    def open(self, address: str, *, width: int = 1280, height: int = 900, wait: bool = True, **options: Any) -> Page:
        """A new page at an address (``file:`` or a studio's), once it is ready."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, reduced_motion="reduce", **options
        )
        context.set_default_timeout(90_000)  # of a machine that does other things, too
        self.contexts.append(context)
        page = context.new_page()
        page.on(
            "console", lambda m: self.wrong.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.wrong.append(f"exception: {error}"))
        ours = re.match(r"\w+://[^/]*", address)
        assert ours
        page.on(
            "request",
            lambda r: (
                None if r.url.startswith((ours[0], "data:", "blob:")) else self.wrong.append(f"asked for {r.url}")
            ),
        )
        page.goto(address)
        if wait:
            self.ready(page)
        return page

    @staticmethod
    def ready(page: Page) -> None:
        """Wait until the page the address asks for is drawn."""
        page.wait_for_selector('html[data-ready="yes"]', timeout=90_000)

    def close(self) -> list[str]:
        SCREENS.mkdir(parents=True, exist_ok=True)
        for i, context in enumerate(self.contexts):
            for page in context.pages:
                page.screenshot(path=SCREENS / f"{self.name}-{i}.png", full_page=True)
            context.close()
        return [line for line in self.wrong if not any(re.search(pattern, line) for pattern in self.allowed)]


class Serving:
    """A studio that serves from a thread of this process."""

    def __init__(self, studio: Studio, port: int, server: uvicorn.Server, thread: threading.Thread) -> None:
        self.studio, self.port, self.server, self.thread = studio, port, server, thread
        self.address = f"http://127.0.0.1:{port}/"
