"""Who may ask the studio for what: the Host and Origin headers, the token, the size of a body and its time.

A page of another site, open in the same browser, can send requests to this machine; it cannot forge Host or Origin
(DNS rebinding shows in the first, a cross-site call in the second). A client that sends without an end, or hardly at
all, is cut off: it may hold a connection, never the server.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MOST_BYTES", "SECONDS", "Guard", "answer"]

MOST_BYTES = 1 << 20
SECONDS = 20.0  # for the whole of a request's body
METHODS = ("GET", "HEAD", "POST", "DELETE")
ELSEWHERE = "a page of another site may not ask this studio"
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
]

log = logging.getLogger("sinkgate.studio")


def answer(data: Any, status: int = 200) -> Response:
    """`data` as JSON in ASCII: an unpaired surrogate in a name or a token is escaped, and cannot fail on its way out."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


class _Refused(Exception):
    """Raised inside ``receive``: becomes the answer, whoever was reading."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status, self.line = status, line


class Guard:
    """ASGI middleware that refuses what is not ours, before any route sees it.

    Args:
        app: what it guards.
        hosts: the values of the Host header that are accepted, with their port, in lower case.
        token: what every request must carry: ``Authorization: Bearer …``, or ``?token=…`` for the page itself, which a
            browser opens without headers of ours. None asks for nothing.
        addresses: accept any IP address as Host, too: bound to all interfaces, a machine does not know by which it is
            reached, and an address, unlike a name, cannot be rebound.
        most: bytes of a request's body.
        seconds: that a body may take to come.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        token: str | None,
        *,
        addresses: bool = False,
        most: int = MOST_BYTES,
        seconds: float = SECONDS,
    ) -> None:
        self.app, self.hosts, self.token = app, frozenset(host.lower() for host in hosts), token
        self.addresses, self.most, self.seconds = addresses, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here, so none can be left unguarded
            await send({"type": "websocket.close", "code": 1008})
            return
        begun = False

        async def headed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            self._look(scope)
            await self.app(scope, self._bounded(receive), headed)
        except _Refused as err:
            if not begun:
                await _refusal(scope, err)(scope, receive, headed)
        except Exception as err:
            log.exception("a request failed inside the studio: %s", scope["path"])
            if begun:
                raise  # the server closes the connection: what was sent so far must not look whole
            line = f"this failed inside the studio: {type(err).__name__}: {err}"[:500]
            await answer({"error": line}, 500)(scope, receive, headed)

    def _look(self, scope: Scope) -> None:
        """Raise what is wrong with a request, from its head alone."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self.hosts and not (self.addresses and _is_address(host)):
            raise _Refused(421, f"this studio does not answer as {host[:80]!r}; open the address that it printed")
        if scope["method"] not in METHODS:
            raise _Refused(405, f"the studio takes {', '.join(METHODS)}, not {scope['method'][:20]!r}")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{host}", f"https://{host}"}:
            raise _Refused(403, ELSEWHERE)
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not _followed(
            scope, headers
        ):
            raise _Refused(403, ELSEWHERE)
        if self.token is not None and not self._known(scope, headers):
            raise _Refused(401, "this studio asks for its token; open the address that it printed, with ?token=…")
        length = headers.get("content-length", "")
        if length and not (length.isascii() and length.isdigit()):
            raise _Refused(400, f"Content-Length is {length[:40]!r}, not a number")
        if length and (len(length) > 12 or int(length) > self.most):
            raise self._too_large()
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").split(";")[0].strip().lower()
            if kind != "application/json":
                raise _Refused(415, f"the studio takes application/json, not {kind[:80]!r}")

    def _known(self, scope: Scope, headers: Headers) -> bool:
        assert self.token is not None
        scheme, _, said = headers.get("authorization", "").partition(" ")
        given = [said] if scheme.lower() == "bearer" else []
        if scope["path"] == "/":
            given += parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=100).get("token", [])[:1]
        return any(hmac.compare_digest(each.encode(), self.token.encode()) for each in given)

    def _too_large(self) -> _Refused:
        return _Refused(413, f"the request is larger than the {self.most} bytes the studio takes")

    def _bounded(self, receive: Receive) -> Receive:
        """``receive`` that counts what really comes, in chunks of any size, and waits for it only so long."""
        seen, whole, end = 0, False, time.monotonic() + self.seconds

        async def bounded() -> Message:
            """The next message, refused when it is too much or too late."""
            nonlocal seen, whole
            if whole:  # what comes now is the end of the connection, for which one may wait
                return await receive()
            try:
                async with asyncio.timeout(max(end - time.monotonic(), 0.0)):
                    message = await receive()
            except TimeoutError:
                raise _Refused(408, f"the request did not come whole within {self.seconds:g} seconds") from None
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise self._too_large()
            whole = not message.get("more_body", False)
            return message

        return bounded


def _followed(scope: Scope, headers: Headers) -> bool:
    """A link to the page that a person followed: nothing is done by it, and the page it comes from cannot read it."""
    return (
        scope["method"] == "GET"
        and scope["path"] == "/"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def _is_address(host: str) -> bool:
    """An IP address, with or without a port."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([0-9.]+))(?::\d{1,5})?", host)
    try:
        ipaddress.ip_address((found[1] or found[2]) if found else "")
    except ValueError:
        return False
    return True


def _refusal(scope: Scope, err: _Refused) -> Response:
    """One line: for a person at the page, for a script elsewhere."""
    if scope["path"] == "/":
        return PlainTextResponse(err.line, err.status)
    made = answer({"error": err.line}, err.status)
    if err.status == 408:
        made.headers["connection"] = "close"  # the rest of its body is not waited for
    return made
