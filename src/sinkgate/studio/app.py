"""The studio as an ASGI application."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from sinkgate.errors import SinkgateError
from sinkgate.report.html import document
from sinkgate.studio.guard import Guard
from sinkgate.studio.jobs import Jobs
from sinkgate.studio.records import Shelf

if TYPE_CHECKING:
    from sinkgate.studio.models import Models

__all__ = ["Studio", "create_app"]


@dataclass
class Studio:
    """What the routes share.

    Attributes:
        shelf: the records that can be shown.
        models: those that may be loaded, by the names of the command line.
        jobs: the live work that runs now.
        runs: the folder of the lab's runs.
        hosts: the values of the Host header that are ours.
        token: what a request must carry off loopback; None on loopback.
    """

    shelf: Shelf
    models: Models
    runs: Path
    hosts: frozenset[str]
    token: str | None = None
    jobs: Jobs = field(default_factory=Jobs)

    def live(self) -> dict[str, Any]:
        """What the pages are told of the server."""
        return {"models": list(self.models.names), "lab": True}


def create_app(studio: Studio) -> Starlette:
    """The application: the pages at ``/``, everything else under ``/api``."""
    from sinkgate.studio import attention, reading, runs, weigh, writing

    async def pages(_: Request) -> Response:
        return HTMLResponse(document(studio.shelf.entries(), title="sinkgate studio", live=studio.live()))

    async def records(_: Request) -> Response:
        return JSONResponse([{"id": e.id, "kind": e.kind, "name": e.name} for e in studio.shelf.entries()])

    def record(request: Request) -> Response:
        return Response(studio.shelf.payload(request.path_params["id"]), media_type="application/json")

    routes = [Route("/", pages), Route("/api/records", records), Route("/api/records/{id}", record)]
    for part in (attention, reading, writing, runs, weigh):
        routes += part.routes(studio)

    async def ours(_: Request, err: Exception) -> Response:
        return JSONResponse({"error": str(err)}, 400)

    async def http(_: Request, err: Exception) -> Response:
        assert isinstance(err, HTTPException)
        return JSONResponse({"error": err.detail}, err.status_code)

    async def other(_: Request, err: Exception) -> Response:
        return JSONResponse({"error": f"this failed inside the studio: {type(err).__name__}: {err}"[:500]}, 500)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, hosts=studio.hosts, token=studio.token)],
        exception_handlers={SinkgateError: ours, HTTPException: http, Exception: other},
    )
