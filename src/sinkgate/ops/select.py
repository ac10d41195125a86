"""Which implementation runs, and why the others do not: one table for dispatch and for :func:`sinkgate.explain`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.ops import blocked, external, reference, stock
from sinkgate.ops.native import ops as native
from sinkgate.ops.request import Request
from sinkgate.ops.triton import ops as triton

__all__ = ["IMPLEMENTATIONS", "Choice", "choose", "explain_request"]


# In the order in which "auto" asks them. Each is a module or object with `summary`, `refuses(request) -> str | None` and
# `run(request) -> (output, Mass | None)`; it may have `prefers(request)` and a `note` for those who run it.
IMPLEMENTATIONS: dict[str, Any] = {
    "triton": triton,
    "native": native,
    "stock": stock,
    "blocked": blocked,
    "flex": external.flex,
    "flash4": external.flash4,
    "adasplash": external.adasplash,
    "reference": reference,
}
# The reference holds T×T; the others are other people's code, which not all of our promises cover.
BY_NAME_ONLY = ("flex", "flash4", "adasplash", "reference")


def may_choose(name: str, request: Request) -> bool:
    """Whether "auto" considers an implementation: Triton's interpreter, say, can run CPU tensors, but should not."""
    prefers = getattr(IMPLEMENTATIONS[name], "prefers", None)
    return name not in BY_NAME_ONLY and (prefers is None or prefers(request))


@dataclass(frozen=True)
class Choice:
    """What would run (None: nothing can), and per implementation why it would not (empty: it could).

    >>> print(Choice("blocked", {"native": "no C++ compiler was found", "blocked": ""}))
    blocked would run
      native: no C++ compiler was found
      blocked: could run
    """

    impl: str | None
    reasons: dict[str, str]
    notes: dict[str, str] = field(default_factory=dict)  # what one should know of an implementation that could run

    def __str__(self) -> str:
        lines = [f"{self.impl} would run" if self.impl else "nothing would run"]
        for name, reason in self.reasons.items():
            note = f" ({self.notes[name]})" if not reason and name in self.notes else ""
            lines.append(f"  {name}: {reason or 'could run'}{note}")
        return "\n".join(lines)


def explain_request(request: Request, impl: str = "auto") -> Choice:
    """Ask every implementation."""
    reasons = {name: module.refuses(request) or "" for name, module in IMPLEMENTATIONS.items()}
    notes = {name: str(note) for name, module in IMPLEMENTATIONS.items() if (note := getattr(module, "note", None))}
    if impl != "auto":
        if impl not in IMPLEMENTATIONS:
            raise ArgumentError(f"impl must be 'auto' or one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
        return Choice(None if reasons[impl] else impl, reasons, notes)
    able = [name for name, reason in reasons.items() if not reason and may_choose(name, request)]
    return Choice(able[0] if able else None, reasons, notes)


def choose(request: Request, impl: str) -> Any:
    """The implementation for a request.

    Raises:
        ArgumentError: ``impl`` is not one of them, or cannot do what is asked.
        UnsupportedError: none can.
    """
    if impl == "auto":
        reasons = {}
        for name, module in IMPLEMENTATIONS.items():
            if not may_choose(name, request):
                continue
            reason = module.refuses(request)
            if reason is None:
                return module
            reasons[name] = reason
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UnsupportedError(f'no implementation can do this without T×T; impl="reference" can. {listed}')
    if impl not in IMPLEMENTATIONS:
        raise ArgumentError(f"impl must be 'auto' or one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}")
    reason = IMPLEMENTATIONS[impl].refuses(request)
    if reason is not None:
        others = [name for name, module in IMPLEMENTATIONS.items() if module.refuses(request) is None]
        raise ArgumentError(f"impl={impl!r} cannot do this: {reason}; {' or '.join(others) or 'nothing else'} can")
    return IMPLEMENTATIONS[impl]
