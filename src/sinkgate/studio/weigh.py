"""Weights of one row, for the simulator: what the page has no twin of is computed here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import torch
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sinkgate.errors import ArgumentError
from sinkgate.studio.jobs import body
from sinkgate.weighting import from_json

if TYPE_CHECKING:
    from sinkgate.studio.app import Studio

__all__ = ["MOST_SCORES", "routes", "weights_of"]

MOST_SCORES = 64  # as many as the simulator shows


def weights_of(said: dict[str, Any]) -> dict[str, Any]:
    """``{"weighting": {"name": …, parameters}, "scores": […]}`` → ``{"weights": […], "mass": …, "declared": …}``.

    Args:
        said: scores are finite numbers, at most :data:`MOST_SCORES`, in nats; null is a key that is not seen.
            Parameters are numbers, true, false or null, as the weighting's ``to_json`` has them.

    Raises:
        ArgumentError: something of that is missing, unknown, of the wrong type, not finite or too much.
    """
    unknown = set(said) - {"weighting", "scores"}
    if unknown:
        raise ArgumentError(f"a row is asked for with weighting and scores; {sorted(unknown)[0][:40]!r} is unknown")
    config, scores = said.get("weighting"), said.get("scores")
    if not isinstance(config, dict) or not isinstance(config.get("name"), str):
        raise ArgumentError('weighting must be an object with a name, such as {"name": "entmax", "alpha": 1.5}')
    for key, value in config.items():
        if key != "name" and not _is_plain(value):
            raise ArgumentError(
                f"weighting.{key[:40]} must be a finite number, true, false or null, got {_short(value)}"
            )
    if not isinstance(scores, list) or not 1 <= len(scores) <= MOST_SCORES:
        got = f"{len(scores)}" if isinstance(scores, list) else _short(scores)
        raise ArgumentError(f"scores must be a list of 1 to {MOST_SCORES} numbers, got {got}")
    for j, score in enumerate(scores):
        if isinstance(score, bool) or (score is not None and not (_is_plain(score) and abs(score) <= 1e300)):
            raise ArgumentError(f"scores[{j}] must be a finite number, or null for a hidden key, got {_short(score)}")
    weighting = from_json({**config, "name": config["name"][:80]})
    row = torch.tensor([0.0 if s is None else float(s) for s in scores], dtype=torch.float64)
    seen = torch.tensor([s is not None for s in scores])
    found = weighting.weights(row[None], seen[None])[0].tolist()
    if not all(math.isfinite(w) for w in found):
        raise ArgumentError(f"{weighting.name} gives weights that are not finite for these scores and parameters")
    return {"weights": found, "mass": math.fsum(found), "declared": weighting.mass}


def _is_plain(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 63
    return value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


def routes(studio: Studio) -> list[Route]:
    """``POST /api/weigh``."""

    async def weigh(request: Request) -> Response:
        return JSONResponse(await anyio.to_thread.run_sync(weights_of, await body(request)))

    return [Route("/api/weigh", weigh, methods=["POST"])]
