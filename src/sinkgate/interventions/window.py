"""A window, as a cache that keeps the last tokens sees it, with or without the first ones kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.call import ROWS, Call
from sinkgate.errors import ArgumentError
from sinkgate.interventions.acts import Run

__all__ = ["Window"]


@dataclass(frozen=True)
class Window:
    """Every query sees the last ``last`` tokens, its own counted, and the first ``keep``; an outlet's key stays.

    Positions are those of the text ("original"), as one pass under a band mask: what a cache that evicts would compute.

    Args:
        last: tokens of the window.
        keep: first tokens that stay visible.
    """

    last: int
    keep: int = 0

    name: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        if self.last < 1 or self.keep < 0:
            raise ArgumentError(f"last must be at least 1 and keep 0 or more, got {self.last} and {self.keep}")

    def attend(self, call: Call, run: Run) -> Float[Tensor, "b h t dv"]:
        """The head outputs under the window, a block of rows at a time."""
        if call.first is not None and call.first.unique().numel() > 1:
            return torch.cat([self.attend(call.sample(b), run) for b in range(call.q.shape[0])])
        parts = []
        for i0 in range(0, call.q.shape[2], ROWS):
            parts.append(self._block(call.rows(i0, min(i0 + ROWS, call.q.shape[2])), run))
        return torch.cat(parts, 2) if len(parts) > 1 else parts[0]

    def _block(self, call: Call, run: Run) -> Tensor:
        first = (0 if call.first is None else int(call.first[0])) - call.gone
        keys = torch.arange(call.k.shape[2], device=call.k.device)
        rows = call.position + torch.arange(call.q.shape[2], device=call.k.device)[:, None]
        seen = (rows - keys < self.last) | ((keys >= first) & (keys < first + self.keep))
        if call.mask is None:
            return run(call.having(mask=(seen & (keys <= rows))[None, None]))
        if call.mask.dtype == torch.bool:
            return run(call.having(mask=call.mask & seen))
        return run(call.having(mask=call.mask.masked_fill(~seen, torch.finfo(call.mask.dtype).min)))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a record."""
        return {"act": self.name, "last": self.last, "keep": self.keep}
