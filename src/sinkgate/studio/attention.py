"""attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from sinkgate.studio.app import Studio

__all__ = ["routes"]


def routes(studio: Studio) -> list[Route]:
    """None yet."""
    return []
