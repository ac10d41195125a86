"""Writing so that a name never holds half a file, JSON without NaN, and reading what others wrote."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sinkgate.errors import OutputError, RecordError

__all__ = ["BROKEN", "MOST_JSON", "jsonable", "open_record", "read_json", "save_json", "typed", "write_atomically"]

# what reading a record that was changed by hand may raise, when a part is missing or of another kind
BROKEN = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

T = TypeVar("T")
MOST_JSON = 256 << 20  # bytes of a record's JSON


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, flush to disk, then rename: the final name never holds half a file."""
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def save_json(path: str | os.PathLike[str], data: Any, *, indent: int | None = None) -> Path:
    """A record as JSON, its folder made if need be.

    Raises:
        OutputError: it cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(jsonable(data), ensure_ascii=False, allow_nan=False, indent=indent).encode())
    except OSError as err:
        raise OutputError(f"cannot write {path}: {err.strerror or err}; choose another --out") from err
    return path


def jsonable(value: Any) -> Any:
    """JSON with null for NaN and infinity."""
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value


def read_json(path: Path, what: str, *, most: int = MOST_JSON) -> Any:
    """What a JSON file holds, of a record that somebody else may have written.

    Args:
        path: a plain file.
        what: it should be, for the error: "a readable record".
        most: bytes that are read.

    Raises:
        FileNotFoundError: there is none.
        RecordError: it cannot be read, is larger than that, or is not JSON whose numbers are finite and fit 64 bits.
    """
    try:
        if not path.exists():
            raise FileNotFoundError(path)
        if not path.is_file():
            raise RecordError(f"{path} is not {what}: it is no plain file")
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise RecordError(f"{path} is not {what}: it is larger than the {most >> 20} MiB that are read")
        return json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite, parse_int=_sixty_four_bits
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else err
        raise RecordError(f"{path} is not {what}: {str(reason)[:200]}") from err


def open_record(path: Path, what: str, make: Callable[[Any], T]) -> T:
    """What ``make`` builds from a JSON file.

    Args:
        path: of the file.
        what: it should be, for the error: "plan".
        make: raises RecordError for what it cannot use.

    Raises:
        RecordError: there is none, or it is damaged; names the file.
    """
    try:
        return make(read_json(path, f"a readable {what}"))
    except FileNotFoundError:
        raise RecordError(f"{path} is not a readable {what}: there is no such file") from None
    except RecordError as err:
        raise (err if str(path) in str(err) else RecordError(f"{path}: {err}")) from err


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not np.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _sixty_four_bits(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"the number {text[:20]} is too large")
    return int(text)


def typed(where: str, value: Any, kinds: dict[str, Any]) -> None:
    """Check that an object of a record has its fields, each of its type (a truth value is no number).

    Raises:
        RecordError: it has not; names `where` and the field.
    """
    if not isinstance(value, dict):
        raise RecordError(f"{where} is not an object")
    for name, kind in kinds.items():
        allowed = kind if isinstance(kind, tuple) else (kind,)
        there = value.get(name, ...)
        if not isinstance(there, allowed) or (isinstance(there, bool) and bool not in allowed):
            raise RecordError(f"{where}: {name!r} is missing or of the wrong type")
