"""The models that may be loaded: those named on the command line, each once, when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from sinkgate.errors import ModelError

__all__ = ["Models"]


class Models:
    """Models by the names of the command line.

    Args:
        names: as ``sinkgate diagnose`` takes them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.lock = threading.RLock()
        self._loaded: dict[str, Any] = {}

    def look(self) -> None:
        """Refuse names that no model can have, without loading or asking anybody.

        Raises:
            ModelError: a name is none that is known, no directory, no file, and cannot be a Hub id.
        """
        from sinkgate.hf.fetch import look

        for name in self.names:
            look(name)

    def named(self, name: Any) -> str:
        """The name, if it was given on the command line; nothing is loaded.

        Raises:
            ModelError: it was not.
        """
        if name not in self.names:
            known = ", ".join(self.names) or "none"
            raise ModelError(f"this studio was not started with the model {str(name)[:80]!r}; it may load: {known}")
        return str(name)

    def get(self, name: Any) -> Any:
        """The model of that name, loaded when first asked for. Hold ``lock`` while it works.

        Raises:
            ModelError: it was not named on the command line, or cannot be loaded.
        """
        self.named(name)
        with self.lock:
            if name not in self._loaded:
                from sinkgate.hf.load import load

                self._loaded[name] = load(name)
            return self._loaded[name]
