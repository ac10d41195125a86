"""The records that a studio shows: found once, read when asked for, refused with a line when they are not sound."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinkgate.errors import RecordError
from sinkgate.report.html import Entry
from sinkgate.report.pages import FILES, KINDS, format_of, open_record

__all__ = ["Shelf"]


class Shelf:
    """Records by a short name of their own; nothing outside the paths that were given can be asked for.

    Args:
        paths: folders that hold records (one level deep is looked at), or a record's file.

    Raises:
        RecordError: a path is not there, or holds no record.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths: dict[str, tuple[str, str, Path]] = {}
        for path in paths:
            found = list(_found(Path(path)))
            if not found:
                raise RecordError(f"{path} holds no record; give a folder that sinkgate wrote, or its record.json")
            for kind, file in found:
                self._paths[str(len(self._paths))] = (kind, file.parent.name or str(file), file)
        self.payload = functools.lru_cache(maxsize=32)(self._payload)

    def entries(self) -> list[Entry]:
        """What there is, without payloads."""
        return [Entry(ident, kind, name, None) for ident, (kind, name, _) in self._paths.items()]

    def record(self, ident: str) -> Any:
        """The record itself.

        Raises:
            RecordError: there is none of that name, or it is not sound.
        """
        if ident not in self._paths:
            raise RecordError(f"there is no record {ident[:40]!r} here")
        return open_record(self._paths[ident][2])

    def _payload(self, ident: str) -> bytes:
        from sinkgate.report.html import in_script
        from sinkgate.report.payloads import payload_of

        return in_script(payload_of(self.record(ident))).encode()


def _found(path: Path) -> Iterable[tuple[str, Path]]:
    if not path.exists():
        raise RecordError(f"{path} is not there; give a folder that sinkgate wrote, or its record.json")
    folders = [path, *sorted(p for p in path.iterdir() if p.is_dir())] if path.is_dir() else []
    for file in [path] if path.is_file() else [f / name for f in folders for name in FILES]:
        if file.is_file() and (kind := KINDS.get(format_of(file) or "")):
            yield kind, file
