"""What the pages say: the sentences that their sources hand to t() and tn(), and the Chinese that is known of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sinkgate.report.html import page_sources

_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def sentences(source: str) -> Iterator[str]:
    """Every string literal within the first argument of a call of t or tn (so that a choice of two is seen, too)."""
    for call in re.finditer(r"(?<![\w.$])tn?\(", source):
        at, depth = call.end(), 1
        while depth and at < len(source):
            character = source[at]
            if character == '"':
                found = _STRING.match(source, at)
                assert found, f"a string that does not end: {source[at : at + 60]}"
                if (
                    depth == 1
                    and found[1]
                    and not re.match(r"\s*[\])]?\s*===", source[found.end() :])
                    and not re.search(r"===\s*$", source[:at])
                ):
                    yield json.loads(found[0])
                at = found.end()
                continue
            depth += character in "([{"
            depth -= character in ")]}"
            if character == "," and depth == 1:
                break
            at += 1


def book() -> dict[str, str]:
    """All Chinese of all pages, by its English: what learn("zh", {…}) is given."""
    found: dict[str, str] = {}
    for name, text in page_sources().items():
        if not name.endswith("zh.js"):
            continue
        entries = re.findall(r'(?:^|[\s{,])("(?:[^"\\\n]|\\.)*"):\s*("(?:[^"\\\n]|\\.)*")', text)
        found |= {json.loads(key): json.loads(value) for key, value in entries}
    return found
