"""The command: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sinkgate.studio.serve import hosts
from studio.kept import keep
from studio.raw import ask

COMMAND = [sys.executable, "-m", "sinkgate", "studio", "--no-open"]


def listening_to_ctrl_c() -> None:
    """A shell's background ignores the signal, and a child inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Start one as a person does: ``studio("RECORD", "--port", "0")`` → (the process, the line that it printed)."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            preexec_fn=listening_to_ctrl_c,
            **options,
        )
        started.append(process)
        assert process.stdout
        return process, process.stdout.readline()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def port_of(line: str) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
    assert found, line
    return int(found[1])


def fails(*arguments: str, cwd: Path, before: str = "") -> str:
    """The one line with which it ends."""
    command = [*COMMAND, *arguments]
    if before:
        run = f"{before}\nimport sys\nfrom sinkgate.cli import main\nsys.exit(main({command[3:]!r}))"
        command = [sys.executable, "-c", run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)
    assert done.returncode == 1, done
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_it_prints_its_address_first_answers_on_loopback_only_and_ends_with_ctrl_c(
    studio: Callable[..., Any], tmp_path: Path
) -> None:
    keep("stream", tmp_path / "r")
    process, line = studio("r")
    port = port_of(line)
    assert line == f"sinkgate studio: http://127.0.0.1:{port}/ (Ctrl-C ends it)\n"
    assert ask(port)[0] == 200
    assert b'"kind":"stream"' in ask(port, "/api/records")[2]
    listening = Path("/proc/net/tcp")
    if listening.exists():  # 127.0.0.1, and nothing else, in the kernel's own table
        rows = [row.split() for row in listening.read_text().splitlines()[1:]]
        found = [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"]
        assert found == [f"0100007F:{port:04X}"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err == "sinkgate: interrupted; the studio has ended\n"


ENDLESS = """
import sys, threading, time
from starlette.routing import Route
from sinkgate.studio import weigh
def work():
    while True:
        yield {"n": 1}
        time.sleep(%s)
def routes(studio):
    async def live(request):
        return studio.jobs.stream(request, work)
    def slow(request):
        time.sleep(100)
    return [Route("/api/work", live), Route("/api/slow", slow)]
weigh.routes = routes
from sinkgate.cli import main
sys.exit(main(["studio", "--no-open"]))
"""


@pytest.mark.parametrize("how", ["a stream", "a job that does not look up", "a route that does not end", "no reader"])
def test_it_ends_at_once_with_whatever_is_open(how: str, tmp_path: Path) -> None:
    pause = 100 if how == "a job that does not look up" else 0.01
    process = subprocess.Popen([sys.executable, "-c", ENDLESS % pause], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, preexec_fn=listening_to_ctrl_c)  # fmt: skip
    try:
        assert process.stdout
        port = port_of(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=20) as conn:
            if how != "no reader":
                target = "/api/slow" if "route" in how else "/api/work"
                conn.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                if "route" in how:
                    time.sleep(0.5)
                else:
                    assert conn.recv(4096).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)  # whatever is open does not hold it
        assert process.returncode == 130
        assert "Traceback" not in err
    finally:
        process.kill()
        process.communicate()


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = fails("--port", str(taken.getsockname()[1]), cwd=tmp_path)
    assert re.search(r"cannot serve on 127\.0\.0\.1:\d+: Address already in use; choose another --port or --host", line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "65536"], "--port must be from 0 to 65535, got 65536"),
        (["--port", "-1"], "--port must be from 0 to 65535, got -1"),
        (["--host", "192.0.2.1"], "cannot serve on 192.0.2.1:0"),
        (["--host", "no.such.host.invalid"], "cannot serve on no.such.host.invalid:0"),
        (["nowhere"], "nowhere is not there"),
        (["empty"], "empty holds no record"),
        (["bad"], "is no stream record of version 1"),
        (["--model", "smollm2-135n/x/y"], "no model 'smollm2-135n/x/y'"),
        (["--model", "./nowhere"], "no model './nowhere'"),
        (["--model", "empty"], "has no config.json"),
        (["--model", ""], "no model ''"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_served(arguments: list[str], line: str, tmp_path: Path) -> None:
    file = keep("stream", tmp_path / "bad")
    file.write_text(file.read_text().replace('"version": 1', '"version": 7'))
    (tmp_path / "empty").mkdir()
    assert line in fails(*arguments, cwd=tmp_path)


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_its_libraries_it_says_what_to_install(missing: str, tmp_path: Path) -> None:
    line = fails(cwd=tmp_path, before=f"import sys\nsys.modules[{missing!r}] = None")
    assert line == "sinkgate: the studio needs starlette and uvicorn: pip install 'sinkgate[studio]'"


def test_off_loopback_it_asks_for_a_token_that_it_prints(studio: Callable[..., Any]) -> None:
    _, line = studio("--host", "0.0.0.0")
    port = port_of(line)
    token = re.search(r"\?token=([\w-]{32,}) ", line)
    assert token
    assert ask(port)[0] == 401
    assert ask(port, f"/?token={token[1]}")[0] == 200
    assert ask(port, "/api/records")[0] == 401
    assert ask(port, "/api/records", headers={"Authorization": f"Bearer {token[1]}"})[0] == 200
    assert ask(port, f"/?token={token[1]}", host=f"192.168.7.7:{port}")[0] == 200
    assert ask(port, f"/?token={token[1]}", host=f"evil.example:{port}")[0] == 421


def test_the_browser_is_opened_unless_it_is_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = tmp_path / "opened"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    script.chmod(0o755)
    for more, expected in (([], True), (["--no-open"], False)):
        process = subprocess.Popen(
            [sys.executable, "-m", "sinkgate", "studio", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "BROWSER": f"{script} %s"},
        )  # fmt: skip
        try:
            assert process.stdout
            address = process.stdout.readline().split()[2]
            end = time.monotonic() + (60 if expected else 2)
            while not opened.exists() and time.monotonic() < end:
                time.sleep(0.05)
            assert opened.exists() is expected
            if expected:
                assert opened.read_text().strip() == address
                opened.unlink()
        finally:
            process.kill()
            process.communicate()


def test_port_80_may_be_left_out_of_the_host() -> None:
    assert hosts(["localhost"], 80) == {"localhost", "localhost:80"}
    assert hosts(["localhost"], 8000) == {"localhost:8000"}
