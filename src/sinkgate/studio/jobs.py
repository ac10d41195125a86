"""Live work, bounded in number and time: each job runs in a thread of its own and ends when its reader goes away.

A job is a generator of JSON objects. What it raises becomes the last line, ``{"error": …}``; the server goes on.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse

from sinkgate.errors import SinkgateError

__all__ = ["Jobs", "body"]


async def body(request: Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        HTTPException: it is not one.
    """
    try:
        said = json.loads(await request.body())
    except (ValueError, RecursionError) as err:
        raise HTTPException(400, "the request is not JSON") from err
    if not isinstance(said, dict):
        raise HTTPException(400, f"the request is a JSON {type(said).__name__}, not an object")
    return said


class Jobs:
    """What runs now.

    Args:
        most: jobs at a time; one more is refused with a line.
        seconds: a job that has run this long is ended with a line that says so.
    """

    def __init__(self, most: int = 2, seconds: float = 600.0) -> None:
        self.most, self.seconds = most, seconds
        self._running, self._lock = 0, threading.Lock()

    @property
    def running(self) -> int:
        """How many run now."""
        return self._running

    def stream(self, request: Request, work: Callable[[], Iterator[dict[str, Any]]]) -> StreamingResponse:
        """Answer with what `work` yields, one JSON object per line, as it comes.

        Raises:
            HTTPException: as many jobs run as may (429).
        """
        with self._lock:
            if self._running >= self.most:
                raise HTTPException(
                    429, f"{self.most} jobs are running, as many as the studio takes; wait, or stop one"
                )
            self._running += 1
        lines: queue.Queue[dict[str, Any] | None] = queue.Queue(maxsize=64)
        over = threading.Event()
        threading.Thread(target=self._run, args=(work, lines, over), daemon=True).start()
        return StreamingResponse(self._lines(lines, over), media_type="application/x-ndjson")

    def _run(
        self, work: Callable[[], Iterator[dict[str, Any]]], lines: queue.Queue[Any], over: threading.Event
    ) -> None:
        end = time.monotonic() + self.seconds

        def put(line: dict[str, Any] | None) -> None:
            while not over.is_set():
                try:
                    lines.put(line, timeout=0.2)
                    return
                except queue.Full:
                    continue

        try:
            for line in work():
                put(line)
                if over.is_set():
                    break
                if time.monotonic() > end:
                    put({"error": f"stopped after {self.seconds:g} seconds, the most a live job may take"})
                    break
        except SinkgateError as err:
            put({"error": str(err)})
        except Exception as err:  # noqa: BLE001 - one failing job never takes the server down
            put({"error": f"this failed inside the studio: {type(err).__name__}: {err}"[:500]})
        finally:
            put(None)
            with self._lock:
                self._running -= 1

    async def _lines(self, lines: queue.Queue[Any], over: threading.Event) -> AsyncIterator[bytes]:
        try:
            while True:
                line = await anyio.to_thread.run_sync(_next, lines, abandon_on_cancel=True)
                if line is None:
                    return
                if line:
                    yield (json.dumps(line, ensure_ascii=True) + "\n").encode()
        finally:
            over.set()


def _next(lines: queue.Queue[Any]) -> dict[str, Any] | None:
    """The next line; an empty one when there is none yet, so that a reader who left is noticed."""
    try:
        return lines.get(timeout=1.0)
    except queue.Empty:
        return {}
