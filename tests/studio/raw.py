"""Talking to a studio over a bare socket, as no browser would."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any


def ask(
    port: int,
    target: str = "/",
    *,
    method: str = "GET",
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    host: str | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """One request exactly as it is said here: (status, headers in lower case, body)."""
    given = {"Host": host if host is not None else f"127.0.0.1:{port}", "Connection": "close", **(headers or {})}
    if body and "Transfer-Encoding" not in given and "Content-Length" not in given:
        given["Content-Length"] = str(len(body))
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in given.items() if v != "") + "\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as conn:
        conn.sendall(head.encode("latin-1"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            conn.sendall(body)
        return answer(conn)


def answer(conn: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """What comes until the connection is closed, or its whole length is here."""
    data = b""
    while True:
        head, found, rest = data.partition(b"\r\n\r\n")
        if found:
            lines = head.decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
            length = int(headers.get("content-length", -1))
            if 0 <= length <= len(rest):
                return int(lines[0].split()[1]), headers, rest[:length]
        more = conn.recv(1 << 16)
        if not more:
            assert found, f"closed after {data[:80]!r}"
            return int(lines[0].split()[1]), headers, rest
        data += more


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def said(body: bytes) -> str:
    """The line of a refusal."""
    return str(json.loads(body)["error"])


def until(true: Any, seconds: float = 10.0) -> bool:
    """Whether something comes to hold within so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return bool(true())
