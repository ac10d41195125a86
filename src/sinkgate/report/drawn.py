"""A page that is drawn here, so that it can be read without a script, and that loads nothing."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from sinkgate.errors import OutputError
from sinkgate.files import jsonable, write_atomically
from sinkgate.report.curves import Chart, data
from sinkgate.report.text import clean

__all__ = ["page", "write_page"]


def page(title: str, kind: str, charts: Iterable[tuple[str, Chart]], body: str) -> str:
    """The whole page.

    Args:
        title: of the window, plain text.
        kind: which of our pages it is.
        charts: those in the body, with their names there: the script shows their numbers under the pointer.
        body: markup, everything from outside escaped.
    """
    payload = json.dumps(
        jsonable([data(chart, ident) for ident, chart in charts]), ensure_ascii=True, separators=(",", ":")
    )
    for character in "<>&":
        payload = payload.replace(character, f"\\u{ord(character):04x}")
    folder = importlib.resources.files(__package__)
    read = lambda file: folder.joinpath(file).read_text(encoding="utf-8")  # noqa: E731
    parts = {
        "title": clean(title), "kind": clean(kind), "style": read("page/page.css") + read("drawn.css"), "script": read("drawn.js"),
        "body": body, "payload": payload, "colophon": "Written by sinkgate. This file loads nothing.",
    }  # fmt: skip
    slots = "|".join(parts)
    return re.sub(rf"\{{\{{({slots})\}}\}}", lambda match: parts[match[1]], read("drawn.html"))


def write_page(text: str, path: str | os.PathLike[str]) -> Path:
    """A page as a file, written beside and renamed.

    Raises:
        OutputError: it cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text.encode())
    except OSError as err:
        raise OutputError(f"cannot write the report to {target}: {err.strerror or err}; choose another place") from err
    return target
