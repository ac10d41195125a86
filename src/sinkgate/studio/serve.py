"""Running the studio: the address, the browser, the end."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from sinkgate.errors import ArgumentError
from sinkgate.studio.app import Studio, create_app
from sinkgate.studio.models import Models
from sinkgate.studio.records import Shelf

__all__ = ["serve"]


def serve(
    records: Sequence[Path],
    models: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    runs: Path,
    browser: bool = True,
) -> None:
    """Serve until interrupted.

    Args:
        records: folders or files to show.
        models: names that may be loaded.
        host: address to bind to; off loopback a random token is required of every request.
        port: 0 for a free one.
        runs: folder of the lab's runs.
        browser: open it.

    Raises:
        RecordError: a record that is not there.
        ArgumentError: the address cannot be bound to.
    """
    shelf = Shelf(records)
    bound = _bind(host, port)
    number = bound.getsockname()[1]
    local = host in ("127.0.0.1", "localhost", "::1")
    token = None if local else secrets.token_urlsafe(24)
    names = {"127.0.0.1", "localhost", "[::1]"} | ({host} if host not in ("0.0.0.0", "::") else _own_names())
    studio = Studio(
        shelf=shelf,
        models=Models(models),
        runs=runs,
        token=token,
        hosts=frozenset(f"{name}:{number}" for name in names),
    )
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{number}/" + (f"?token={token}" if token else "")
    print(f"sinkgate studio: {address} (Ctrl-C ends it)", flush=True)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    config = uvicorn.Config(create_app(studio), log_level="error", timeout_graceful_shutdown=2, lifespan="off")
    uvicorn.Server(config).run(sockets=[bound])


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as err:
        reason = getattr(err, "strerror", None) or err
        raise ArgumentError(f"cannot serve on {host}:{port}: {reason}; choose another --port or --host") from err
    return bound


def _own_names() -> set[str]:
    """The names by which other machines know this one."""
    name = socket.gethostname()
    found = {name, socket.getfqdn()}
    with contextlib.suppress(OSError):
        found |= {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    return {f"[{n}]" if ":" in n else n for n in found}
