"""*Write*: a model goes on from a prompt through a bounded cache; its text comes as it is written.

What is told of it is its speed and how much it repeats itself. The perplexity of a model's own text says nothing about the
text or the cache, and is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sinkgate.errors import TextError
from sinkgate.studio import asked
from sinkgate.studio.jobs import body
from sinkgate.studio.reading import bounded

if TYPE_CHECKING:
    from sinkgate.studio.app import Studio

__all__ = ["GRAM", "SPAN", "repeated", "routes"]

GRAM, SPAN = 4, 256  # tokens of what counts as said again; the last tokens that are looked at
MOST = {"tokens": 4_096, "prompt": 100_000, "policy": 300}
NAMES = ("model", "prompt", "policy", "positions", "tokens", "temperature", "top_p", "top_k", "seed")
CHUNK = 256  # tokens of a prompt between two looks at whether the reader is still there


def routes(studio: Studio) -> list[Route]:
    """``POST /api/write``: ``{model, prompt, policy, positions, tokens, temperature, top_p, top_k, seed}`` → pieces of text."""

    async def write(request: Request) -> Response:
        """Check what was asked, and answer with the text as it is written."""
        from sinkgate.cache.registry import as_policy
        from sinkgate.hf.writing import Sampling

        said = await body(request)
        asked.only(said, NAMES)
        model = studio.models.named(said.get("model"))
        prompt = asked.text(said, "prompt", MOST["prompt"])
        if not prompt:
            raise TextError("the prompt is empty; give at least one word")
        policy = bounded(as_policy(asked.text(said, "policy", MOST["policy"]) or "recent(252) + sinks(4)"))
        positions = asked.choice(said, "positions", ("slots", "original"))
        most = asked.whole(said, "tokens", 1, MOST["tokens"], 512)
        sampling = Sampling(
            temperature=asked.number(said, "temperature", 0, 100, 0.0), top_p=asked.number(said, "top_p", 0, 1, 1.0),
            top_k=asked.whole(said, "top_k", 0, 10**6, 0), seed=asked.whole(said, "seed", 0, 2**53, 0),
        )  # fmt: skip
        return studio.jobs.stream(request, lambda: _write(studio, model, prompt, policy, positions, most, sampling))

    return [Route("/api/write", write, methods=["POST"])]


def repeated(tokens: Sequence[int], gram: int = GRAM, span: int = SPAN) -> float | None:
    """Share of the ``gram``-token sequences among the last ``span`` tokens that stood there before.

    None where there are none.

    >>> repeated([1, 2, 1, 2, 1, 2], gram=2)  # 12 21 12 21 12: three of five
    0.6
    """
    last = tokens[-span:]
    grams = [tuple(last[i : i + gram]) for i in range(len(last) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def _write(
    studio: Studio, model: str, prompt: str, policy: Any, positions: str, most: int, sampling: Any
) -> Iterator[dict[str, Any]]:
    from sinkgate.hf.streaming import resumed, streaming
    from sinkgate.hf.writing import Writer
    from sinkgate.probe.text import bos_prefix

    yield {"loading": model}
    with studio.models.lock:
        loaded = studio.models.get(model)
        ids = bos_prefix(loaded.tokenizer, "auto")[0]
        ids = [*ids, *loaded.tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]]
        with streaming(loaded.model, policy, positions=positions, chunk=CHUNK) as cache:
            writer = Writer(loaded.model, loaded.tokenizer, cache, sampling)
    yield {"prompt": len(ids), "gram": GRAM, "span": SPAN}
    for i in range(0, len(ids), CHUNK):
        with studio.models.lock, resumed(cache):
            writer.read(ids[i : i + CHUNK])
        yield {"read": min(i + CHUNK, len(ids))}
    pieces = writer.write(most)
    while True:
        with studio.models.lock, resumed(cache):
            piece = next(pieces, None)
        if piece is None:
            break
        yield {"text": piece, **_told(writer, cache)}
    yield {"done": writer.why, **_told(writer, cache)}


def _told(writer: Any, cache: Any) -> dict[str, Any]:
    return {
        "written": writer.written, "seconds": writer.write_seconds, "repeated": repeated(writer.answer),
        "held": cache.held(), "bytes": cache.nbytes(),
    }  # fmt: skip
