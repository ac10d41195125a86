"""``sinkgate studio [RECORDS…]``: the pages over records, and live work, in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from sinkgate.errors import ArgumentError

__all__ = ["INTERRUPTED", "arguments", "run"]

INTERRUPTED = "the studio has ended"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    add("records", nargs="*", metavar="RECORD", help="folders that sinkgate wrote, or their record files")
    add(
        "--model", action="append", default=[], metavar="MODEL", help="a model that live work may load (again for more)"
    )
    add("--host", default="127.0.0.1", help="address to bind to; off loopback a random token is required")
    add("--port", type=int, default=0, help="0: a free one")
    add("--runs", default="runs", metavar="DIR", help="where the lab's runs live (default: %(default)s)")
    add("--no-open", action="store_true", help="do not open the browser")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if not 0 <= args.port < 65536:
        raise ArgumentError(f"--port must be from 0 to 65535, got {args.port}")
    try:
        from sinkgate.studio.serve import serve
    except ModuleNotFoundError as err:
        if (err.name or "").split(".")[0] not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise ArgumentError("the studio needs starlette and uvicorn: pip install 'sinkgate[studio]'") from err
    serve(
        [Path(r) for r in args.records], args.model,
        host=args.host, port=args.port, runs=Path(args.runs), browser=not args.no_open,
    )  # fmt: skip
    return 0
