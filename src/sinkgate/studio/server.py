"""What runs the application: uvicorn, with limits for slow clients and an end that does not wait for anybody."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from socket import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sinkgate.studio.app import create_app

if TYPE_CHECKING:
    from sinkgate.studio.app import Studio

__all__ = ["CONNECTIONS", "Server"]

CONNECTIONS = 512  # at once; more are told to come again. Two hundred readers fit, and the usual 1024 open files hold
IDLE = 10.0  # seconds after which a connection that asks for nothing, or for ever begins to, is closed
KEPT_ALIVE = 5  # seconds that a connection waits for its next request
GRACE = 1  # seconds that answers may take to end when the server ends
LAST = 2.5  # seconds after which the process ends, whatever a thread still does


class Patient(H11Protocol):
    """A connection that is closed when no request is under way on it at two looks, ``IDLE`` seconds apart.

    uvicorn itself waits without an end for the head of a request, and reads without an end what comes after an answer.
    """

    def connection_made(self, transport: Any) -> None:
        """Begin to look."""
        super().connection_made(transport)
        self._look(None)

    def _look(self, before: Any) -> None:
        if self.transport.is_closing():
            return
        idle = self.cycle is None or self.cycle.response_complete
        now = (self.cycle,) if idle else None
        if now is not None and now == before:
            self.transport.abort()
            return
        self.loop.call_later(IDLE, self._look, now)


class Server(uvicorn.Server):
    """The server of one studio.

    Args:
        studio: what it serves.
        hard: end the process ``LAST`` seconds after the server was told to end, if it still runs then.
    """

    def __init__(self, studio: Studio, *, hard: bool = False) -> None:
        self.studio, self.hard = studio, hard
        super().__init__(
            uvicorn.Config(
                create_app(studio), http=Patient, ws="none", lifespan="off", log_level="error", access_log=False,
                server_header=False, limit_concurrency=CONNECTIONS, timeout_keep_alive=KEPT_ALIVE, timeout_graceful_shutdown=GRACE,
            )
        )  # fmt: skip

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End the jobs first: their streams end with a line, and nothing is left to wait for."""
        if self.hard:
            last = threading.Timer(LAST, os._exit, [130])
            last.daemon = True
            last.start()
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cut off now is cut off on purpose
        self.studio.jobs.close(wait=0)
        await super().shutdown(sockets)
        await asyncio.to_thread(self.studio.jobs.close, 1.0)
