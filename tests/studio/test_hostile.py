"""Records whose texts want to be more than texts, in a browser: shown as what they are, or refused with a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from sinkgate.record import Diagnosis
from sinkgate.report.html import render
from sinkgate.report.payload import payload
from studio.kept import keep
from studio.raw import ask
from studio.watched import Serving, Watched

RUNS = "window.hacked = 1"
TOKENS = [
    f"</script><script>{RUNS}</script>", f'"><img src=x onerror="{RUNS}">', f"<svg/onload='{RUNS}'>", f"javascript:{RUNS}", "{{payload}}",
    "\u202eright to left\u202c", "\u2066isolated\u2069", "zero\u200bwidth", "line\u2028separators\u2029", "\x00\x07\x1b[31m\x7f", "\ud800", "`${1}`",
    "'\"&amp;<b>", "]]>", "<!--", "=HYPERLINK(1)", "x" * 10**6, "\u0301" * 500, "", " ", "\t\n\r",
]  # fmt: skip
UNSEEN = "\u202e\u202c\u2066\u2069\u200b\u2028\u2029\x00\x07\x1b\x7f"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A true record in which everything that is text is one of these."""
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    d = Diagnosis.load(keep("diagnosis", folder))
    meta = json.loads(json.dumps(d.meta))
    every = iter(TOKENS * 100)
    strip = meta["strip"]
    strip["tokens"] = [next(every) for _ in strip["tokens"]]
    for sample in meta["samples"]:
        sample["tokens_at"] = {position: next(every) for position in sample["tokens_at"]}
        sample["source"] = TOKENS[0]
        sample["sinks"] = [
            {"position": i, "token": token, "kind": TOKENS[0], "mass": 0.5, "heads": 2.0, "top": 0.9, "write": 0.1, "secondary": False}
            for i, token in enumerate(TOKENS)
        ]  # fmt: skip
    for item in meta["massive"]:
        item["token"] = next(every)
    for layer in meta["layers"]:
        layer |= {"name": TOKENS[1], "write_reason": TOKENS[5]}
    meta["notes"] = TOKENS[:12]
    meta["model"] |= {
        "name": TOKENS[0],
        "class": TOKENS[1],
        "dtype": TOKENS[5],
        "attention": TOKENS[2],
        "bos": TOKENS[8],
    }
    file = folder / "record.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(said | meta, ensure_ascii=True))  # unpaired surrogates and all, as a stranger may
    return folder


def look(page: Page) -> None:
    assert page.evaluate("window.hacked === undefined")
    assert page.evaluate("document.querySelectorAll('img, iframe, object, embed, link, form').length") == 0
    assert page.evaluate("document.scripts.length") == 3  # the import map, the payload, the start
    shown = page.inner_text("body")
    assert not [c for c in UNSEEN if c in shown]
    assert "<script>" in shown  # as text
    assert len(shown) < 10**6


def test_hostile_texts_from_a_server(watched: Watched, serving: Callable[..., Serving], hostile: Path) -> None:
    page = watched.open(serving(records=[hostile]).address)
    look(page)
    page.set_viewport_size({"width": 390, "height": 800})
    look(page)


def test_hostile_texts_in_a_file(watched: Watched, as_file: Callable[[str], str], hostile: Path) -> None:
    text = render(payload(Diagnosis.load(hostile)))
    assert len(text) < 3_000_000
    look(watched.open(as_file(text)))


def test_hostile_addresses(watched: Watched, serving: Callable[..., Serving], tmp_path: Path) -> None:
    keep("diagnosis", tmp_path / "r")
    started = serving(records=[tmp_path / "r"])
    for address in (
        "#page=__proto__&record=constructor&lang=%3Cscript%3E&theme=%22", "#page=model&layer=1e9&head=-1&metric=toString", f"#page=model&metric={'x' * 50_000}",
        "#%00%FF&&&=", f"?token={RUNS}#page=model",
    ):  # fmt: skip
        page = watched.open(started.address + address)
        assert page.evaluate("window.hacked === undefined")
        assert page.locator("main h1, main h2").count() > 0


def test_a_record_that_changes_for_the_worse_is_refused_on_its_page(
    watched: Watched, serving: Callable[..., Serving], tmp_path: Path
) -> None:
    file = keep("diagnosis", tmp_path / "r")
    started = serving(records=[tmp_path / "r"])
    whole = file.read_text()
    watched.allowed.append("400")  # Chromium's own line about the status
    for text, line in (
        (whole.replace('"version": 1', '"version": 7'), "is a record of version 7"), ("{", "is not a readable record"), (None, "cannot be read any more"),
        (whole.replace('"file": "record-', '"file": "../record-'), "does not name its tensors file"),
    ):  # fmt: skip
        file.unlink() if text is None else file.write_text(text)
        page = watched.open(started.address)
        assert line in page.inner_text("[role=alert]")
    file.write_text(whole)
    assert watched.open(started.address).locator("[role=alert]").count() == 0
    assert ask(started.port)[0] == 200


def test_a_page_of_another_site_gets_nothing(
    watched: Watched, serving: Callable[..., Serving], as_file: Callable[..., str], tmp_path: Path
) -> None:
    """A real browser, from a file and from another port: nothing is read, nothing is done, nothing is framed."""
    keep("stream", tmp_path / "r")
    ours, theirs = serving(records=[tmp_path / "r"]), serving()
    tries = """async (address) => {
      const found = [];
      for (const options of [{}, { mode: "no-cors" }, { method: "POST", body: "{}", headers: { "Content-Type": "text/plain" } },
                             { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } }])
        for (const path of ["", "api/records", "api/records/0"])
          try { const answer = await fetch(address + path, options); found.push(answer.type === "opaque" ? "opaque" : await answer.text()); } catch { found.push("refused"); }
      return found;
    }"""
    watched.allowed += [".*"]  # the browser tells of each of these
    for address in (
        as_file("<!doctype html><html data-ready=yes><title>theirs</title>"),
        theirs.address + "api/records",
    ):
        page = watched.open(address, wait=False)
        found = page.evaluate(tries, ours.address)
        assert set(found) <= {"refused", "opaque"}, found
        page.evaluate(
            "(address) => { const frame = document.createElement('iframe'); frame.src = address; document.body.append(frame); }",
            ours.address,
        )
        page.wait_for_timeout(500)
        assert not any("sinkgate" in (frame.content() if frame != page.main_frame else "") for frame in page.frames)
