"""Running the studio: the address, the browser, the end."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path

from sinkgate.errors import ArgumentError
from sinkgate.studio.app import Studio
from sinkgate.studio.models import Models
from sinkgate.studio.records import Shelf
from sinkgate.studio.server import Server

__all__ = ["hosts", "serve"]

LOCAL = ("127.0.0.1", "localhost", "::1")
SWITCH = 0.0005  # seconds a working thread may keep the interpreter from the server, a tenth of Python's own


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
        RecordError: a record that is not there, or not sound.
        ModelError: a name that no model can have.
        ArgumentError: the address cannot be bound to.
        KeyboardInterrupt: when it was ended so.
    """
    shelf = Shelf(records)
    known = Models(models)
    known.look()
    bound = _bind(host, port)
    number = bound.getsockname()[1]
    everywhere = host in ("0.0.0.0", "::")
    token = None if host in LOCAL else secrets.token_urlsafe(24)
    names = {"127.0.0.1", "localhost", "[::1]"} | (_own_names() if everywhere else {_in_url(host)})
    studio = Studio(
        shelf=shelf,
        models=known,
        runs=runs,
        token=token,
        hosts=hosts(names, number),
        addresses=everywhere,
    )
    shown = "127.0.0.1" if everywhere else _in_url(host)
    address = f"http://{shown}:{number}/" + (f"?token={token}" if token else "")
    for note in shelf.notes:
        print(f"sinkgate studio: {note}", file=sys.stderr)
    print(f"sinkgate studio: {address} (Ctrl-C ends it)", flush=True)
    if browser:
        opening = threading.Timer(0.5, webbrowser.open, [address])
        opening.daemon = True
        opening.start()
    sys.setswitchinterval(SWITCH)
    Server(studio, hard=True).run(sockets=[bound])


def hosts(names: Iterable[str], port: int) -> frozenset[str]:
    """What the Host header of a request to one of these names says; a browser leaves port 80 out."""
    return frozenset(name if port == 80 and bare else f"{name}:{port}" for name in names for bare in (False, True))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as err:
        raise _unbound(host, port, err) from err
    try:
        if os.name == "posix":  # elsewhere it would let two programs have one port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)  # told now when another program listens here, before an address is printed
    except (OSError, OverflowError) as err:
        bound.close()
        raise _unbound(host, port, err) from err
    return bound


def _unbound(host: str, port: int, err: Exception) -> ArgumentError:
    reason = getattr(err, "strerror", None) or err
    return ArgumentError(f"cannot serve on {host}:{port}: {reason}; choose another --port or --host")


def _own_names() -> set[str]:
    """The names by which other machines know this one."""
    name = socket.gethostname()
    found = {name, socket.getfqdn()}
    with contextlib.suppress(OSError):
        found |= {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    return {f"[{n}]" if ":" in n else n for n in found}
