"""What was measured before is not measured again: losses by model, text and setting, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sinkgate import __version__
from sinkgate.errors import OutputError
from sinkgate.hf.fetch import cache_dir

__all__ = ["Store"]


class Store(MutableMapping[str, Any]):
    """Results by key, in a file of JSON lines; a line that a kill cut short is as if it were not there.

    What is set is written at once, and refused with an OutputError where that cannot be; nothing is ever deleted from the file.

    Args:
        fingerprint: of the model; another model has another file.
        dtype: that it computes in.
        folder: where (default: the cache folder of :func:`sinkgate.load`).
    """

    def __init__(self, fingerprint: str, dtype: str, folder: Path | None = None) -> None:
        name = hashlib.sha256(
            f"{fingerprint} {dtype} {__version__} {torch.__version__} {version('transformers')}".encode()
        ).hexdigest()[:16]
        self.path = (cache_dir() / "plans" if folder is None else folder) / f"{name}.jsonl"
        self.known: dict[str, Any] = {}
        self.reused = 0
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    key, value = json.loads(line)
                    self.known[str(key)] = value
                except (ValueError, TypeError):
                    continue

    def measured(self, key: str, make: Callable[[], Any]) -> Any:
        """What is known under a key, or what ``make`` gives, which is then known."""
        if key in self.known:
            self.reused += 1
            return self.known[key]
        self[key] = value = make()
        return value

    def __getitem__(self, key: str) -> Any:
        return self.known[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.known[key] = value
        line = (json.dumps([key, value], allow_nan=False) + "\n").encode()
        try:
            self._append(line)
        except OSError as err:
            raise OutputError(
                f"cannot keep what was measured in {self.path.parent}: {err.strerror or err}; name another folder in SINKGATE_CACHE"
            ) from err

    def _append(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:  # one write: two searches at once do not tear each other's lines; a torn one is ended first
            torn = self.path.stat().st_size > 0 and not self._ends_whole()
            os.write(file, (b"\n" if torn else b"") + line)
        finally:
            os.close(file)

    def __delitem__(self, key: str) -> None:
        del self.known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def _ends_whole(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
