"""The registry's weightings as the simulator takes them: names, parameters, what they declare.

A record is drawn without torch, which the registry needs. Where it is loaded it is asked; where it is not, the copy in
``weightings.json`` stands in, which ``python -m sinkgate.report.weightings`` writes and a test holds to the registry.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import math
import sys
from pathlib import Path
from typing import Any

__all__ = ["described", "known_weightings", "write"]

_COPY = "weightings.json"
# What a weighting promises is declared like a field, and is none.
_PROMISES = ("mass", "shift_invariant", "exact_zeros")


def known_weightings() -> list[dict[str, Any]]:
    """Every weighting, as :func:`described` tells it, without loading torch for it."""
    if "sinkgate.weighting" in sys.modules:
        return described()
    found: list[dict[str, Any]] = json.loads(
        importlib.resources.files(__package__).joinpath(_COPY).read_text(encoding="utf-8")
    )
    return found


def described() -> list[dict[str, Any]]:
    """The registry in plain JSON types, in its order.

    One entry a weighting: ``name``, ``formula``, what it declares (``mass``, ``shift_invariant``, ``exact_zeros``) at
    its defaults, and ``parameters``: each a ``name``, a ``kind`` ("number", "whole" or "choice"), whether it may be
    ``optional`` (null), and its ``default``.
    """
    from sinkgate.weighting import as_weighting, names

    return [_one(name, as_weighting(name)) for name in names()]


def _one(name: str, weighting: Any) -> dict[str, Any]:
    fields = [f for f in dataclasses.fields(weighting) if f.name not in _PROMISES] if _is_value(weighting) else []
    return {
        "name": name,
        "formula": str(getattr(weighting, "formula", "")),
        "mass": weighting.mass,
        "shift_invariant": bool(weighting.shift_invariant),
        "exact_zeros": bool(weighting.exact_zeros),
        "parameters": [p for field in fields if (p := _parameter(field, getattr(weighting, field.name))) is not None],
    }


def _is_value(weighting: Any) -> bool:
    return dataclasses.is_dataclass(weighting) and not isinstance(weighting, type)


def _parameter(field: Any, default: Any) -> dict[str, Any] | None:
    """A field that a control can set; None for one that holds anything but a number or a choice."""
    said = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
    parts = {part.strip() for part in said.split("|")}
    if "bool" in parts or isinstance(default, bool):
        kind = "choice"
    elif "float" in parts or isinstance(default, float):
        kind = "number"
    elif "int" in parts or isinstance(default, int):
        kind = "whole"
    else:
        return None
    if default is not None and (not isinstance(default, bool | int | float) or not math.isfinite(default)):
        return None
    return {"name": field.name, "kind": kind, "optional": "None" in parts, "default": default}


def write() -> None:
    """Rewrite the copy from the registry."""
    text = json.dumps(described(), indent=1, ensure_ascii=False) + "\n"
    (Path(__file__).parent / _COPY).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
