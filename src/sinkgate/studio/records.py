"""The records that a studio shows: found once, read when asked for, refused with a line when they are not sound."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkgate.errors import RecordError, SinkgateError
from sinkgate.files import read_json
from sinkgate.report.html import Entry
from sinkgate.report.pages import FILES, KINDS, open_record

__all__ = ["KINDS", "Shelf"]

MOST = 200  # records found below the folders that were given


@dataclass(frozen=True)
class _Found:
    kind: str
    name: str
    path: Path


class Shelf:
    """Records by a short name of their own; nothing outside the paths that were given can be asked for.

    What was named is read at once, and refused if it is not sound. What only lies one level below a folder that was
    named is read when it is asked for: one bad record does not hide the others, its page says what is wrong with it.

    Args:
        paths: folders that hold records (one level deep is looked at), or a record's file.

    Raises:
        RecordError: a path is not there, holds no record, or one that is not sound.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._found: dict[str, _Found] = {}
        self.notes: list[str] = []
        for path in map(Path, paths):
            named, below = _looked(path, self.notes)
            for found in named:
                _payload(found)
            if not named and not below:
                said = f" ({self.notes[-1]})" if self.notes else ""
                raise RecordError(
                    f"{path} holds no record; give a folder that sinkgate wrote, or its record.json{said}"
                )
            for found in (*named, *below):
                self._found[str(len(self._found))] = found

    def entries(self) -> list[Entry]:
        """What there is, without payloads."""
        return [Entry(ident, found.kind, found.name, None) for ident, found in self._found.items()]

    def record(self, ident: str) -> Any:
        """The record itself.

        Raises:
            RecordError: there is none of that name, or it is not sound.
        """
        return _record(self._named(ident))

    def state(self, ident: str) -> tuple[Any, ...]:
        """A value that is another one when the record's files have changed.

        Raises:
            RecordError: there is none of that name, or its file is gone.
        """
        found = self._named(ident)
        try:
            files = [found.path, *sorted(found.path.parent.glob("record-*.safetensors"))]
            stats = [(file.name, file.stat()) for file in files]
        except OSError as err:
            raise RecordError(f"{found.path} cannot be read any more: {err.strerror or err}") from err
        return tuple((name, stat.st_mtime_ns, stat.st_size, stat.st_ino) for name, stat in stats)

    def payload(self, ident: str) -> bytes:
        """What the record's page draws, as JSON; read anew each time.

        Raises:
            RecordError: there is none of that name, or it is not sound.
        """
        return _payload(self._named(ident))

    def _named(self, ident: str) -> _Found:
        if ident not in self._found:
            raise RecordError(f"there is no record {ident[:40]!r} here")
        return self._found[ident]


def _looked(path: Path, notes: list[str]) -> tuple[list[_Found], list[_Found]]:
    """(the records at a path itself, those of the folders in it)."""
    try:
        if not path.exists():
            raise RecordError(f"{path} is not there; give a folder that sinkgate wrote, or its record.json")
        if path.is_file():
            return [_Found(_kind(path), _name(path), path)], []
        folder = Path(os.path.realpath(path))
        named = list(_inside(folder, folder, notes))
        below: list[_Found] = []
        for each in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if each.is_dir():
                for found in _inside(Path(each.path), folder, notes):
                    if len(below) == MOST:
                        raise RecordError(f"{path} holds more than {MOST} records; name those that you want to see")
                    below.append(found)
        return named, below
    except OSError as err:
        raise RecordError(f"{path} cannot be read: {err.strerror or err}") from err


def _inside(folder: Path, root: Path, notes: list[str]) -> Iterator[_Found]:
    """The records in a folder; what lies there under such a name and is none is told, or refused where it was named."""
    for name in FILES:
        file = folder / name
        if not os.path.lexists(file):
            continue
        try:
            if root not in Path(os.path.realpath(file)).parents:
                raise RecordError(f"{file} is a link that leaves {root}; name the place where it leads")
            yield _Found(_kind(file), _name(file), file)
        except (RecordError, FileNotFoundError) as err:
            if folder == root:
                raise RecordError(str(err)) from err
            notes.append(f"left out: {err}")


def _kind(path: Path) -> str:
    data = read_json(path, "a readable record")
    said = data.get("format") if isinstance(data, dict) else None
    kind = KINDS.get(said) if isinstance(said, str) else None
    if kind is None:
        raise RecordError(f"{path} is no record that the studio shows: its format is {str(said)[:60]!r}")
    return kind


def _name(path: Path) -> str:
    """The folder's, in characters that can be sent."""
    return (Path(os.path.realpath(path)).parent.name or str(path)).encode("utf-8", "replace").decode()


def _record(found: _Found) -> Any:
    try:
        return open_record(found.path)
    except SinkgateError:
        raise
    except MemoryError as err:
        raise RecordError(f"{found.path} needs more memory than there is") from err
    except Exception as err:
        raise _damaged(found, err) from err


def _payload(found: _Found) -> bytes:
    from sinkgate.report.html import check, in_script
    from sinkgate.report.payloads import payload_of

    record = _record(found)
    try:
        drawn = payload_of(record)
        if found.kind == "diagnosis":
            check(drawn)
        return in_script(drawn).encode()
    except RecordError as err:
        raise RecordError(f"{found.path} cannot be shown: {err}") from err
    except Exception as err:
        raise _damaged(found, err) from err


def _damaged(found: _Found, err: Exception) -> RecordError:
    """A reader's own surprise about a record counts as the record's fault; it is told, and nothing falls over."""
    return RecordError(f"{found.path} is damaged: {type(err).__name__}: {' '.join(str(err).split())[:200]}")
