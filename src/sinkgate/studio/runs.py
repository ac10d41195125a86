"""The lab's runs over HTTP: list, start, stop, resume, curves so far, the record."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sinkgate.studio.guard import answer
from sinkgate.studio.jobs import body
from sinkgate.studio.lab_runs import Runs
from sinkgate.studio.orders import MOST_ARMS, MOST_SEEDS, TASKS, Order

if TYPE_CHECKING:
    from sinkgate.studio.app import Studio

__all__ = ["routes"]


def routes(studio: Studio) -> list[Route]:
    """Under ``/api/lab``; what can take long runs in a thread, so that other readers are answered meanwhile."""
    runs = Runs(studio.runs)
    limits = {
        "tasks": {name: {"least": a, "most": b, "usual": c} for name, (a, b, c) in TASKS.items()},
        "seeds": MOST_SEEDS, "arms": MOST_ARMS, "at_once": runs.most, "folder": str(studio.runs),
    }  # fmt: skip

    def listed(_: Request) -> Response:
        return answer({"runs": runs.list(), "limits": limits})

    async def start(request: Request) -> Response:
        said = await body(request)
        return answer(await anyio.to_thread.run_sync(lambda: runs.start(Order.read(said))))

    async def stop(request: Request) -> Response:
        await body(request)
        return answer(await anyio.to_thread.run_sync(runs.stop, request.path_params["id"]))

    async def resume(request: Request) -> Response:
        await body(request)
        return answer(await anyio.to_thread.run_sync(runs.resume, request.path_params["id"]))

    def curves(request: Request) -> Response:
        ident = request.path_params["id"]
        run = runs.get(ident)  # before the curves: a run that is done has all of them
        found = runs.log(ident).curves(request.query_params.get("after"))
        return answer({"run": run, **found})

    def record(request: Request) -> Response:
        path = runs.record(request.path_params["id"])
        return Response(_payload(str(path), path.stat().st_mtime_ns), media_type="application/json")

    return [
        Route("/api/lab/runs", listed),
        Route("/api/lab/runs", start, methods=["POST"]),
        Route("/api/lab/runs/{id}/stop", stop, methods=["POST"]),
        Route("/api/lab/runs/{id}/resume", resume, methods=["POST"]),
        Route("/api/lab/runs/{id}/curves", curves),
        Route("/api/lab/runs/{id}/record", record),
    ]


@functools.lru_cache(maxsize=16)
def _payload(path: str, _changed: int) -> bytes:
    """A finished run's record as its page draws it."""
    from sinkgate.lab.comparison_record import Comparison
    from sinkgate.report.html import in_script
    from sinkgate.report.lab_payload import lab_payload

    return in_script(lab_payload(Comparison.load(path))).encode()
