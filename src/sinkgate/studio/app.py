"""The studio as an ASGI application."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sinkgate.errors import SinkgateError
from sinkgate.report.html import document
from sinkgate.studio.guard import Guard, answer
from sinkgate.studio.jobs import Jobs
from sinkgate.studio.records import Shelf

if TYPE_CHECKING:
    from sinkgate.studio.models import Models

__all__ = ["Studio", "create_app"]

KEPT = 32  # records whose payloads stay in memory


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
        addresses: whether any IP address is ours as a Host, too (bound to all interfaces).
    """

    shelf: Shelf
    models: Models
    runs: Path
    hosts: frozenset[str]
    token: str | None = None
    addresses: bool = False
    jobs: Jobs = field(default_factory=Jobs)

    def live(self) -> dict[str, Any]:
        """What the pages are told of the server."""
        return {"models": list(self.models.names), "lab": True}


class Sent:
    """What is the same for every reader, made once: plain, and packed for those who take it so.

    Args:
        make: the text's bytes.
        kind: its media type.
    """

    def __init__(self, make: Callable[[], bytes], kind: str) -> None:
        self.make, self.kind = make, kind
        self._made: tuple[Any, tuple[bytes, bytes]] | None = None
        self._lock = threading.Lock()

    def ready(self, of: Any) -> tuple[bytes, bytes] | None:
        """(plain, gzip) where they were made of `of`, without waiting for anybody."""
        made = self._made
        return made[1] if made is not None and made[0] == of else None

    def forms(self, of: Any) -> tuple[bytes, bytes]:
        """The same, made now if need be, by one for all who ask; what goes wrong is raised, and not kept."""
        with self._lock:
            if (found := self.ready(of)) is None:
                plain = self.make()
                found = plain, gzip.compress(plain, 6, mtime=0)
                self._made = of, found
            return found

    def response(self, request: Request, forms: tuple[bytes, bytes]) -> Response:
        """One of the two."""
        packed = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"vary": "Accept-Encoding"} | ({"content-encoding": "gzip"} if packed else {})
        return Response(forms[packed], media_type=self.kind, headers=headers)


def create_app(studio: Studio) -> Starlette:
    """The application: the pages at ``/``, everything else under ``/api``."""
    from sinkgate.studio import attention, reading, runs, weigh, writing

    page = Sent(
        lambda: document(studio.shelf.entries(), title="sinkgate studio", live=studio.live()).encode(), "text/html"
    )
    records_of: dict[str, Sent] = {}
    few: list[CapacityLimiter] = []  # threads that may read records at once; made in the event loop

    async def pages(request: Request) -> Response:
        return page.response(request, page.forms((studio.shelf.entries(), studio.live())))

    async def records(_: Request) -> Response:
        return answer([{"id": e.id, "kind": e.kind, "name": e.name} for e in studio.shelf.entries()])

    async def record(request: Request) -> Response:
        ident = request.path_params["id"]
        state = studio.shelf.state(ident)  # refuses what is not there
        sent = records_of.setdefault(ident, Sent(lambda: studio.shelf.payload(ident), "application/json"))
        if len(records_of) > KEPT:
            records_of.pop(next(iter(records_of)))
        if (forms := sent.ready(state)) is None:
            if not few:
                few.append(CapacityLimiter(2))
            forms = await to_thread.run_sync(sent.forms, state, limiter=few[0])
        return sent.response(request, forms)

    routes = [Route("/", pages), Route("/api/records", records), Route("/api/records/{id}", record)]
    for part in (attention, reading, writing, runs, weigh):
        routes += part.routes(studio)

    async def ours(_: Request, err: Exception) -> Response:
        return answer({"error": str(err)}, 400)

    async def http(_: Request, err: Exception) -> Response:
        assert isinstance(err, HTTPException)
        return answer({"error": err.detail}, err.status_code)

    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, studio.hosts, studio.token, addresses=studio.addresses)],
        exception_handlers={SinkgateError: ours, HTTPException: http},
    )
