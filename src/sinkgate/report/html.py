"""One HTML file from one payload: the page, its style, its script and its data, with nothing to load.

The pages' sources lie in ``page/``: a style sheet and JavaScript modules, which an import map carries inside the
document, so that a file and the studio's server show the same ones. Whatever comes from a model or a text is data: it enters as JSON in which
``<``, ``>``, ``&`` and every character outside ASCII are escaped, and the script writes it as text only.

>>> render({"version": 1})  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
sinkgate.errors.RecordError: the report payload has no 'title'; it needs version, title, created, ...
"""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
import math
import numbers
import re
import unicodedata
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import RecordError
from sinkgate.report.weightings import known_weightings

__all__ = ["PAYLOAD_VERSION", "Entry", "check", "document", "in_script", "page_sources", "render", "render_frame"]

PAYLOAD_VERSION = 1

# The page shows three significant digits; five keep 30 × 9 heads with full curves well under 2 MB.
_DIGITS = 5
# A token longer than this is cut before it is written once for each head; its true length is kept.
_TOKEN_LIMIT = 200

_TOP = (
    "version", "title", "created", "model", "settings", "verdict", "notes", "layers", "metrics",
    "heads", "sinks", "strip", "residual", "rates", "series",
)  # fmt: skip
# A section that was not measured may be null; these may not.
_NEVER_NULL = ("title", "created", "model", "settings", "verdict", "notes", "layers", "metrics", "heads")
_MODEL = (
    "name", "class", "parameters", "dtype", "device", "layers", "heads", "kv_heads", "head_dim",
    "attention", "fingerprint",
)  # fmt: skip
_SETTINGS = ("tokens", "samples", "bos", "threshold", "detail", "local_window", "text")
_LAYER = ("index", "name", "kind", "window", "reason", "write_reason", "learned_sink")
_METRIC = ("id", "label", "unit", "scale", "lo", "hi", "help", "values")
_STRIP = ("tokens", "mass", "null", "position0")
_RESIDUAL = ("layer", "norm_first", "norm_rest", "kurtosis", "max", "median", "massive")
_SERIES = ("names", "first_token_mass", "null", "sink_rate", "lo", "hi")
_SCALES = ("log", "linear", "diverging", "category")


@dataclass(frozen=True)
class Entry:
    """One record as the pages take it.

    Attributes:
        id: how the address names it.
        kind: "diagnosis", "comparison", "stream", "recall", "effects" or "plan".
        name: as it is shown.
        payload: what its page draws; None when a server is asked for it.
    """

    id: str
    kind: str
    name: str
    payload: Mapping[str, Any] | None


def render(payload: Mapping[str, Any]) -> str:
    """Return the whole report of a diagnosis as one HTML document that works from a file and requests nothing.

    Numbers are rounded to five significant digits; NaN and infinity become null, which the page shows as
    "not measurable". The same payload always gives the same text.

    Raises:
        RecordError: the payload lacks a key, is of another version, or holds something JSON cannot.
    """
    check(payload)
    return document([Entry("0", "diagnosis", str(payload["model"]["name"]), payload)], title=str(payload["title"]))


def document(records: Sequence[Entry], *, title: str, live: Mapping[str, Any] | None = None) -> str:
    """Return the pages over some records as one HTML document.

    Args:
        records: what the pages show.
        title: of the window, plain text.
        live: what the studio's server can do; None in a file, which may ask nobody.

    Raises:
        RecordError: a payload holds something JSON cannot.
    """
    entries = [{"id": e.id, "kind": e.kind, "name": e.name, "payload": e.payload} for e in records]
    parts = {
        "title": _title(title),
        "style": _style(),
        "connect": "'none'" if live is None else "'self'",
        "modules": _modules(),
        "payload": in_script({"records": entries, "live": live, "weightings": known_weightings()}),
    }
    # One pass, so that a slot's name inside the data stays data.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _source("page.html"))


def in_script(value: Any) -> str:
    """`value` as JSON that can stand inside a script element."""
    data = json.dumps(_plain(value, "payload"), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return data


def page_sources() -> dict[str, str]:
    """The modules of the pages by their names: ``sinkgate/lib/text.js`` and so on."""
    found: dict[str, str] = {}
    folders = [(importlib.resources.files(__package__).joinpath("page"), "sinkgate/")]
    while folders:
        folder, prefix = folders.pop()
        for item in folder.iterdir():
            if item.is_dir():
                folders.append((item, f"{prefix}{item.name}/"))
            elif item.name.endswith(".js"):
                found[prefix + item.name] = item.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


@functools.cache
def _modules() -> str:
    """The import map: every module under its name, as an address that holds the module itself."""
    imports = {
        name: "data:text/javascript;charset=utf-8," + urllib.parse.quote(text, safe=" !*'(),;:@$=+/?[]{}|^`~-_.")
        for name, text in page_sources().items()
    }
    return in_script({"imports": imports})


def _source(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _style() -> str:
    """The frame's style sheet, then each page's own."""
    folders = sorted(f.name for f in importlib.resources.files(__package__).joinpath("page").iterdir() if f.is_dir())
    own = [f"{folder}/style.css" for folder in folders]
    pages = importlib.resources.files(__package__).joinpath("page")
    return "\n".join(_source(name) for name in ["page.css", *(n for n in own if pages.joinpath(n).is_file())])


def render_frame(payload: Mapping[str, Any], height: int = 760) -> str:
    """Return the report as a fragment for a notebook: a sandboxed frame that holds the page itself."""
    return (
        f'<iframe title="{_title(str(payload.get("title", "")))}" sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{height}px;border:0" srcdoc="{html.escape(render(payload))}"></iframe>'
    )


def _title(text: str) -> str:
    """Return the document's title without control, bidirectional or unpaired characters, escaped."""
    unseen = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    kept = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in unseen else c for c in text)
    return html.escape(kept[:_TOKEN_LIMIT])


def _plain(value: Any, where: str) -> Any:
    """Return `value` in plain JSON types: rounded, finite, tokens bounded."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else None
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RecordError(f"the report {where} has the key {key!r}; keys must be strings")
        return {key: _field(key, item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise RecordError(f"the report {where} is a {type(value).__name__}; turn it into numbers, text or lists")


def _field(key: str, value: Any, where: str) -> Any:
    if key == "token" and isinstance(value, str):
        return _token(value)
    if key == "tokens" and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_token(item) if isinstance(item, str) else _plain(item, where) for item in value]
    return _plain(value, where)


def _token(text: str) -> Any:
    """Return the token, or its beginning with the true length when it is longer than the page shows."""
    return text if len(text) <= _TOKEN_LIMIT else {"text": text[:_TOKEN_LIMIT], "length": len(text)}


def check(payload: Mapping[str, Any]) -> None:
    """Refuse a payload whose shape the page cannot draw, naming the first thing that is wrong."""
    _need(payload, _TOP, "the report payload")
    if payload["version"] != PAYLOAD_VERSION:
        raise RecordError(f"the report payload is of version {payload['version']!r}; this page draws {PAYLOAD_VERSION}")
    for key in _NEVER_NULL:
        if payload[key] is None:
            raise RecordError(f"the report payload has null for {key!r}, which the page cannot do without")
    _need(payload["model"], _MODEL, "'model'")
    _need(payload["settings"], _SETTINGS, "'settings'")
    for key, names in (("strip", _STRIP), ("residual", _RESIDUAL), ("series", _SERIES)):
        if payload[key] is not None:
            _need(payload[key], names, f"'{key}'")
    layers, heads = payload["model"]["layers"], payload["model"]["heads"]
    if len(payload["layers"]) != layers:
        raise RecordError(f"'layers' lists {len(payload['layers'])} layers, but 'model.layers' is {layers}")
    for i, layer in enumerate(payload["layers"]):
        _need(layer, _LAYER, f"'layers[{i}]'")
    if not payload["metrics"]:
        raise RecordError("'metrics' is empty; the map needs at least one")
    for i, metric in enumerate(payload["metrics"]):
        _need(metric, _METRIC, f"'metrics[{i}]'")
        if metric["scale"] not in _SCALES:
            raise RecordError(f"'metrics[{i}].scale' is {metric['scale']!r}; use one of {', '.join(_SCALES)}")
        widths = {len(row) for row in metric["values"]}
        if len(metric["values"]) != layers or widths - {heads}:
            raise RecordError(
                f"'metrics[{i}].values' ({metric['id']}) is not {layers} layers × {heads} heads: "
                f"got {len(metric['values'])} rows of {sorted(widths)}"
            )


def _need(value: Any, names: Sequence[str], what: str) -> None:
    if not isinstance(value, Mapping):
        raise RecordError(f"{what} is a {type(value).__name__}, not an object with {', '.join(names)}")
    for name in names:
        if name not in value:
            raise RecordError(f"{what} has no {name!r}; it needs {', '.join(names)}")
