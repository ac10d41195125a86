"""A real Chromium on real pages: from a file and from a served studio, where nothing may go wrong unseen.

Every page that a test opens is watched: an error or a warning in its console, an uncaught exception, or a request to
another host fails the test, whatever else it checks. What it looked like at the end is kept in ``build/screens``.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from sinkgate.studio import Studio
from sinkgate.studio.models import Models
from sinkgate.studio.records import Shelf
from sinkgate.studio.serve import hosts
from sinkgate.studio.server import Server
from studio.watched import Serving, Watched


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "the studio's tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=180_000)
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Watched]:
    pages = Watched(browser, re.sub(r"[^\w-]+", "-", request.node.name).strip("-")[:100])
    yield pages
    assert pages.close() == []


@pytest.fixture
def as_file(tmp_path: Path) -> Callable[[str], str]:
    """Write a document and return its address."""

    def write(text: str, name: str = "report.html") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path.as_uri()

    return write


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """Start a studio: ``serving(records=[…], models=[…], token=None)``."""
    import socket

    started: list[Serving] = []

    def start(records: list[Path] | None = None, models: list[str] | None = None, token: str | None = None) -> Serving:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        studio = Studio(
            shelf=Shelf(records or []),
            models=Models(models or []),
            runs=tmp_path / "runs",
            hosts=hosts(["127.0.0.1", "localhost"], port),
            token=token,
        )
        server = Server(studio)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        started.append(Serving(studio, port, server, thread))
        return started[-1]

    yield start
    for each in started:
        each.server.should_exit = True
        each.thread.join(10)
