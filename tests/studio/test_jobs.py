"""Live work: bounded in number and time, ended with its reader, and never more than its own business."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sinkgate.errors import ArgumentError
from sinkgate.studio.jobs import Jobs, stopping
from studio.raw import ask, until
from studio.watched import Serving

Work = Callable[[], Iterator[dict[str, Any]]]


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch, serving: Callable[..., Serving]) -> Callable[..., Serving]:
    """A studio whose ``/api/work`` does some work: ``working(work, most=2, seconds=600)``."""
    from sinkgate.studio import weigh

    def start(work: Work, **bounds: Any) -> Serving:
        def routes(studio: Any) -> list[Route]:
            studio.jobs = Jobs(**bounds)

            async def live(request: Request) -> Response:
                return studio.jobs.stream(request, work)

            return [Route("/api/work", live, methods=["GET", "POST"])]

        monkeypatch.setattr(weigh, "routes", routes)
        return serving()

    return start


def lines(port: int) -> list[dict[str, Any]]:
    status, headers, body = ask(port, "/api/work")
    assert status == 200
    assert headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in unchunked(body).splitlines()]


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


def opened(port: int) -> socket.socket:
    """A reader that has its first line, and stays."""
    conn = socket.create_connection(("127.0.0.1", port), timeout=20)
    conn.sendall(f"GET /api/work HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    data = b""
    while b"\n{" not in data:
        data += conn.recv(4096)
    assert data.startswith(b"HTTP/1.1 200")
    return conn


class Endless:
    """Counts until it is ended, and says whether it was."""

    def __init__(self, pause: float = 0.01) -> None:
        self.made, self.ended, self.pause = 0, threading.Event(), pause

    def __call__(self) -> Iterator[dict[str, Any]]:
        try:
            while True:
                self.made += 1
                yield {"n": self.made}
                time.sleep(self.pause)
        finally:
            self.ended.set()


def test_what_a_job_yields_comes_line_by_line_in_order(working: Callable[..., Serving]) -> None:
    started = working(lambda: ({"n": i} for i in range(5000)))
    assert lines(started.port) == [{"n": i} for i in range(5000)]
    assert started.studio.jobs.running == 0


def test_numbers_that_json_has_not_become_null_and_text_stays_what_it_is(working: Callable[..., Serving]) -> None:
    odd = {"nan": float("nan"), "inf": [float("-inf")], "text": "</script>\u2028\ud800\n\x00"}
    assert lines(working(lambda: iter([odd])).port) == [odd | {"nan": None, "inf": [None]}]


def test_a_line_comes_when_it_is_made(working: Callable[..., Serving]) -> None:
    go = threading.Event()

    def work() -> Iterator[dict[str, Any]]:
        yield {"first": 1}
        assert go.wait(20)
        yield {"second": 2}

    conn = opened(working(work).port)  # the first line is here while the second is not made
    go.set()
    with conn:
        assert b"second" in conn.recv(4096)


def test_a_job_ends_when_its_reader_goes_away(working: Callable[..., Serving]) -> None:
    work = Endless()
    started = working(work)
    conn = opened(started.port)
    assert started.studio.jobs.running == 1
    conn.close()
    assert work.ended.wait(5)
    assert until(lambda: started.studio.jobs.running == 0)
    made = work.made
    time.sleep(0.2)
    assert work.made == made


def test_a_job_that_looks_ends_within_a_long_step(working: Callable[..., Serving]) -> None:
    ended = threading.Event()

    def work() -> Iterator[dict[str, Any]]:
        yield {"begun": True}
        while not stopping():
            time.sleep(0.01)
        ended.set()

    conn = opened(working(work).port)
    assert not ended.is_set()
    conn.close()
    assert ended.wait(5)
    assert not stopping()  # here is no job


def test_no_thread_is_left_behind(working: Callable[..., Serving]) -> None:
    def threads() -> int:
        return sum(t.name == "studio-job" for t in threading.enumerate())

    works = [Endless() for _ in range(12)]
    waiting = iter(works)
    started = working(lambda: next(waiting)(), most=20)
    conns = [opened(started.port) for _ in works]
    assert threads() == len(works)
    for conn in conns:
        conn.close()
    assert all(work.ended.wait(5) for work in works)
    assert until(lambda: threads() == 0)
    assert started.studio.jobs.running == 0


def test_as_many_jobs_as_may_and_one_more_is_refused(working: Callable[..., Serving]) -> None:
    started = working(Endless(), most=2)
    conns = [opened(started.port) for _ in range(2)]
    status, _, body = ask(started.port, "/api/work")
    assert status == 429
    assert "2 jobs are running" in json.loads(body)["error"]
    conns.pop().close()
    assert until(lambda: started.studio.jobs.running == 1)
    conns.append(opened(started.port))
    for conn in conns:
        conn.close()


def test_a_job_that_takes_too_long_is_ended_with_a_line(working: Callable[..., Serving]) -> None:
    work = Endless()
    started = working(work, seconds=0.5)
    found = lines(started.port)
    assert found[-1] == {"error": "stopped after 0.5 seconds, the most a live job may take"}
    assert found[0] == {"n": 1}
    assert work.ended.wait(5)


def test_a_job_that_says_nothing_is_ended_too_but_keeps_its_place(working: Callable[..., Serving]) -> None:
    go = threading.Event()

    def work() -> Iterator[dict[str, Any]]:
        go.wait(30)
        yield {}

    started = working(work, seconds=0.3, most=1)
    assert "stopped after" in lines(started.port)[-1]["error"]
    assert ask(started.port, "/api/work")[0] == 429  # its thread is still there
    go.set()
    assert until(lambda: started.studio.jobs.running == 0)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ArgumentError("the window is too small"), "the window is too small"),
        (RuntimeError("x" * 2000), "this failed inside the studio: RuntimeError: x"),
        (MemoryError(), "this needs more memory than there is"),
        (SystemExit(3), "this failed inside the studio: SystemExit"),
    ],
)
def test_a_failing_job_is_one_line_and_the_server_lives(
    working: Callable[..., Serving], error: BaseException, line: str
) -> None:
    def work() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        raise error

    started = working(work)
    for _ in range(3):
        first, last = lines(started.port)
        assert first == {"n": 1}
        assert last["error"].startswith(line)
        assert len(last["error"]) <= 500
    assert started.studio.jobs.running == 0
    assert ask(started.port)[0] == 200


def test_a_job_that_fails_before_it_begins_and_one_that_yields_nonsense(working: Callable[..., Serving]) -> None:
    def work() -> Iterator[dict[str, Any]]:
        raise ValueError("at once")

    assert lines(working(work).port) == [{"error": "this failed inside the studio: ValueError: at once"}]


def test_what_json_cannot_hold_is_an_error(working: Callable[..., Serving]) -> None:
    found = lines(working(lambda: iter([{"n": 1}, {"n": object()}, {"n": 3}])).port)
    assert found[0] == {"n": 1}
    assert "not JSON serializable" in found[1]["error"]
    assert len(found) == 2


def test_a_reader_that_takes_nothing_holds_the_job_and_then_loses_it(
    working: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinkgate.studio import jobs

    monkeypatch.setattr(jobs, "STALLED", 0.5)
    work = Endless(pause=0.0)
    large = "x" * 100_000
    started = working(lambda: ({**line, "text": large} for line in work()))
    conn = opened(started.port)
    assert work.ended.wait(20)
    assert work.made < 1000  # it waited for its reader instead of filling the memory
    assert until(lambda: started.studio.jobs.running == 0)
    assert ask(started.port)[0] == 200
    conn.close()


def test_when_the_studio_ends_its_jobs_end_with_a_line(working: Callable[..., Serving]) -> None:
    work = Endless()
    started = working(work)
    conn = opened(started.port)
    started.server.should_exit = True
    data = b""
    with conn:
        while more := conn.recv(4096):
            data += more
    assert b"the studio was stopped" in data
    assert work.ended.wait(30)
    started.thread.join(30)
    assert not started.thread.is_alive()


def test_two_hundred_readers_are_served_while_a_job_burns_the_processor(working: Callable[..., Serving]) -> None:
    def burn() -> Iterator[dict[str, Any]]:
        n = 0
        while True:
            n += sum(i * i for i in range(20_000)) % 7
            yield {"token": n}

    started = working(burn)
    conn = opened(started.port)
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(ask(started.port, "/", headers={"Accept-Encoding": "gzip"})[0])
            found.append(ask(started.port, "/api/records")[0])
        except Exception as err:  # noqa: BLE001 - shown below
            found.append(err)

    readers = [threading.Thread(target=read) for _ in range(200)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert found == [200] * 400
    assert started.studio.jobs.running == 1
    conn.close()
