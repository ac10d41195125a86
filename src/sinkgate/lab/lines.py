"""A file of JSON lines that a training adds to for days."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import IO, Any

from sinkgate.errors import OutputError, RecordError
from sinkgate.files import jsonable

__all__ = ["Lines"]


class Lines:
    """Opened at the start of a training, or of the rest of one: lines of later steps are then cut.

    A disk that fails while the training runs does not end it: there is a warning, the lines are kept, and every later line
    tries to bring them all to the file again. The file never holds half a line for longer than that.

    Args:
        path: its folder is made if need be.
        start: the step the training stands at; lines of steps after it are cut. 0: the file must not hold anything yet.
        same: what every line that has these names must say: another batch's readings are no continuation.
        overwrite: what the file holds may go.

    Raises:
        OutputError: it cannot be written, or holds another training's lines.
        RecordError: it is damaged, or its lines say something else than ``same``.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, start: int, same: dict[str, Any], overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            data = self.path.read_bytes() if self.path.exists() and not (overwrite and start == 0) else b""
            if data and start == 0:
                raise OutputError(
                    f"{self.path} already holds readings: give another path, or overwrite=True; a resumed training goes on "
                    "where its checkpoint stands"
                )
            self._size = _kept(self.path, data, start, same)
            self._file: IO[bytes] = self.path.open("ab", buffering=0)
            self._file.truncate(self._size)
        except OSError as err:
            raise OutputError(f"cannot write {self.path}: {err.strerror or err}; give another path") from err
        self._waiting: list[bytes] = []
        self._warned = False

    def append(self, line: dict[str, Any]) -> None:
        """One more line, handed to the system at once; a NaN becomes null."""
        self._waiting.append(json.dumps(jsonable(line), ensure_ascii=False, allow_nan=False).encode() + b"\n")
        try:
            self._write()
            self._warned = False
        except OSError as err:
            if not self._warned:
                warnings.warn(
                    f"{self.path} cannot be written at step {line.get('step')} ({err.strerror or err}); the training goes "
                    "on, its readings are kept in memory and are tried again with every later one",
                    stacklevel=2,
                )
            self._warned = True

    def close(self) -> None:
        """Try once more what could not be written, and say what is lost."""
        if self._file.closed:
            return
        try:
            self._write()
        except OSError as err:
            warnings.warn(
                f"{len(self._waiting)} lines are lost: {self.path} cannot be written ({err.strerror or err})",
                stacklevel=2,
            )
        self._file.close()

    def _write(self) -> None:
        while self._waiting:
            if os.fstat(self._file.fileno()).st_size != self._size:
                self._file.truncate(self._size)  # half a line of the last try
            data = self._waiting[0]
            if (self._file.write(data) or 0) < len(data):
                raise OSError(None, "the disk took half a line")
            self._size += len(data)
            self._waiting.pop(0)


def _kept(path: Path, data: bytes, start: int, same: dict[str, Any]) -> int:
    """How many bytes are of steps up to ``start``."""
    size = 0
    for raw in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):  # half a line is one of a killed run
        try:
            line = json.loads(raw)
            ahead = line["step"] > start
        except (ValueError, KeyError, TypeError) as err:
            raise RecordError(f"{path} is damaged: a line is no reading ({raw[:40]!r}); give another path") from err
        if ahead:
            break
        for name, value in same.items():
            if line.get(name, value) != value:
                raise RecordError(
                    f"{path} is of another watch: {name} is {line[name]} there and {value} here; give another path"
                )
        size += len(raw)
    return size
