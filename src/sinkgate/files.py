"""Writing so that a name never holds half a file, and JSON without NaN."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.errors import OutputError

__all__ = ["jsonable", "save_json", "write_atomically"]


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
