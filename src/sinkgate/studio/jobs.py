"""Live work, bounded in number and time: each job runs in a thread of its own and ends when its reader goes away.

A job is a generator of JSON objects. What it raises becomes the last line, ``{"error": …}``; the server goes on. Lines
reach the event loop without a waiting thread, so a thousand readers cost no more than their connections. A job can
only be ended between two of its lines, or where it looks at :func:`stopping`; until then it keeps its place.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sinkgate.errors import SinkgateError
from sinkgate.files import jsonable
from sinkgate.studio.guard import answer

__all__ = ["Jobs", "Work", "body", "stopping"]

Work = Callable[[], Iterator[dict[str, Any]]]
AHEAD = 64  # lines that a job may be ahead of its reader
STALLED = 60.0  # seconds after which a reader that takes nothing counts as gone
_here = threading.local()


async def body(request: Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        HTTPException: it is not one (400).
    """
    try:
        said = json.loads(await request.body(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise HTTPException(400, "the request is not JSON") from err
    if not isinstance(said, dict):
        raise HTTPException(400, f"the request is a JSON {type(said).__name__}, not an object")
    return said


def stopping() -> bool:
    """Whether the job that runs in this thread should end; False outside of one. For work with long steps."""
    job = getattr(_here, "job", None)
    return job is not None and job.over.is_set()


class Jobs:
    """What runs now.

    Args:
        most: jobs at a time; one more is refused with a line.
        seconds: a job that has run this long is ended with a line that says so.
    """

    def __init__(self, most: int = 2, seconds: float = 600.0) -> None:
        self.most, self.seconds = most, seconds
        self._jobs: set[_Job] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def running(self) -> int:
        """How many run now, those included whose reader has left and which have not noticed yet."""
        return len(self._jobs)

    def stream(self, request: Request, work: Work) -> Response:
        """Answer with what `work` yields, one JSON object per line, as it comes; 429 when as many jobs run as may.

        Args:
            request: who asks.
            work: called in a thread of its own; NaN and infinities in its objects become null.
        """
        return _Answer(self, work)

    def close(self, wait: float = 1.0) -> bool:
        """End all jobs and refuse new ones; whether all have ended within `wait` seconds."""
        with self._lock:
            self._closed = True
            jobs = list(self._jobs)
        for job in jobs:
            job.end("the studio was stopped")
        end = time.monotonic() + wait
        for job in jobs:
            job.thread.join(max(0.0, end - time.monotonic()))
        return not self._jobs

    def _start(self, work: Work) -> _Job | str:
        """A job that runs, or why there is none."""
        with self._lock:
            if self._closed:
                return "the studio is being stopped"
            if len(self._jobs) >= self.most:
                return f"{self.most} jobs are running, as many as the studio takes; wait, or stop one"
            job = _Job(work, asyncio.get_running_loop(), self._left)
            self._jobs.add(job)
        try:
            job.thread.start()
        except RuntimeError as err:  # no more threads
            self._left(job)
            return f"the studio cannot start a job: {err}"
        return job

    def _left(self, job: _Job) -> None:
        with self._lock:
            self._jobs.discard(job)


class _Job:
    """A thread that works, and the lines that it has ready for its reader in the event loop."""

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop, left: Callable[[_Job], None]) -> None:
        self.work, self.loop, self.left = work, loop, left
        self.over = threading.Event()
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.room = threading.Semaphore(AHEAD)
        self.thread = threading.Thread(target=self._run, name="studio-job", daemon=True)

    def end(self, why: str = "") -> None:
        """Ask it to end; with a reason, tell its reader at once."""
        if not self.over.is_set():
            self.over.set()
            if why:
                self._post(_line({"error": why}))
                self._post(None)

    def _post(self, line: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self.loop.call_soon_threadsafe(self.lines.put_nowait, line)

    def _put(self, line: bytes) -> None:
        waiting = time.monotonic() + STALLED
        while not self.over.is_set():
            if self.room.acquire(timeout=0.2):
                self._post(line)
                return
            if time.monotonic() > waiting:
                self.over.set()

    def _run(self) -> None:
        _here.job = self
        try:
            work: Any = self.work()
            with closing(work) if hasattr(work, "close") else nullcontext():  # what it holds is let go here
                for line in work:
                    self._put(_line(line))
                    if self.over.is_set():
                        break
        except SinkgateError as err:
            self._put(_line({"error": str(err)}))
        except MemoryError:
            self._put(_line({"error": "this needs more memory than there is"}))
        except BaseException as err:  # noqa: BLE001 - one failing job never takes the server down, or its line with it
            self._put(_line({"error": f"this failed inside the studio: {type(err).__name__}: {err}"[:500]}))
        finally:
            self.left(self)  # before its reader sees the end, and asks for the next
            self._post(None)


class _Answer(Response):
    """The lines of a job; it starts when the answer does, and ends with it, however that ends."""

    media_type = "application/x-ndjson"

    def __init__(self, jobs: Jobs, work: Work) -> None:
        self.jobs, self.work = jobs, work
        self.status_code, self.background = 200, None
        self.init_headers()

    def init_headers(self, headers: Any = None) -> None:
        """Without a length: it is not known."""
        self.raw_headers = [(b"content-type", b"application/x-ndjson")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        job = self.jobs._start(self.work)
        if isinstance(job, str):
            await answer({"error": job}, 429)(scope, receive, send)
            return
        writing = asyncio.ensure_future(self._write(job, send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            longest = self.jobs.seconds + STALLED
            await asyncio.wait({writing, leaving}, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.end()
            for task in (writing, leaving):
                if not task.done():
                    task.cancel()
        for task in (writing, leaving):
            with suppress(asyncio.CancelledError, ClientDisconnect, OSError):
                await task

    async def _write(self, job: _Job, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        end = time.monotonic() + self.jobs.seconds
        more = True
        while more:
            try:
                async with asyncio.timeout(max(end - time.monotonic(), 0.0)):
                    ready = [await job.lines.get()]
            except TimeoutError:
                seconds = f"{self.jobs.seconds:g}"
                ready = [_line({"error": f"stopped after {seconds} seconds, the most a live job may take"}), None]
                job.end()
            while not job.lines.empty() and ready[-1] is not None:
                ready.append(job.lines.get_nowait())
            job.room.release(len(ready))
            more = ready[-1] is not None
            await send({"type": "http.response.body", "body": b"".join(x for x in ready if x), "more_body": more})


async def _gone(receive: Receive) -> None:
    """Return when the reader has left; what is still to come of the request is read and dropped."""
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


def _line(data: dict[str, Any]) -> bytes:
    return (json.dumps(jsonable(data), ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n").encode()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
