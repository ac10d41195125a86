"""Who may ask the studio for what: the Host and Origin headers, the token, the size of a body.

A page of another site, open in the same browser, can send requests to this machine; it cannot forge Host or Origin
(DNS rebinding shows in the first, a cross-site call in the second).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MOST_BYTES", "Guard"]

MOST_BYTES = 1 << 20


class Guard:
    """ASGI middleware that refuses what is not ours, before any route sees it.

    Args:
        app: what it guards.
        hosts: the values of the Host header that are accepted, with their port.
        token: what ``Authorization: Bearer …`` must carry under ``/api``; None asks for nothing.
        most: bytes of a request's body.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str | None, most: int = MOST_BYTES) -> None:
        self.app, self.hosts, self.token, self.most = app, frozenset(hosts), token, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refused(scope, headers)
        if refused is not None:
            status, line = refused
            await JSONResponse({"error": line}, status)(scope, receive, send)
            return
        await self.app(scope, self._bounded(receive), self._headed(send))

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if host not in self.hosts:
            return 421, f"this studio does not answer as {host[:80]!r}; open the address that it printed"
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
            return 403, "a page of another site may not ask this studio"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "a page of another site may not ask this studio"
        if self.token is not None and scope["path"].startswith("/api"):
            said = headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(said.encode(), self.token.encode()):
                return 401, "this studio asks for its token; open the address that it printed, with ?token=…"
        if scope["method"] == "POST" and not headers.get("content-type", "").startswith("application/json"):
            return 415, "the studio takes JSON only"
        length = headers.get("content-length", "")
        if length and (not length.isdigit() or int(length) > self.most):
            return 413, f"the request is larger than the {self.most} bytes the studio takes"
        return None

    def _bounded(self, receive: Receive) -> Receive:
        from starlette.exceptions import HTTPException

        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.most:
                raise HTTPException(413, f"the request is larger than the {self.most} bytes the studio takes")
            return message

        return bounded

    def _headed(self, send: Send) -> Send:
        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [
                    (b"x-content-type-options", b"nosniff"),
                    (b"x-frame-options", b"DENY"),
                    (b"referrer-policy", b"no-referrer"),
                    (b"cache-control", b"no-store"),
                    (b"cross-origin-resource-policy", b"same-origin"),
                ]
            await send(message)

        return headed
