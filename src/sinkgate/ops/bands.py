"""Which keys each query sees, as at most two runs of keys per query: what a kernel can skip by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.masks import HIDDEN

__all__ = ["Bands", "bands", "visible_counts"]


@dataclass(frozen=True, eq=False)
class Bands:
    """Query i of batch row b sees keys ``first_lo:first_hi`` and ``lo:hi`` (and nothing else).

    All int32 ``[b or 1, t]``; the first run is there only with ``keep_first`` and ends where the second begins or
    before.
    """

    lo: Int[Tensor, "b t"]
    hi: Int[Tensor, "b t"]
    first_lo: Int[Tensor, "b t"] | None
    first_hi: Int[Tensor, "b t"] | None
    keys: int

    def counts(self) -> Int[Tensor, "b t"]:
        """How many keys each query sees."""
        n = (self.hi - self.lo).clamp_min(0)
        if self.first_lo is not None and self.first_hi is not None:
            n = n + (self.first_hi - self.first_lo).clamp_min(0)
        return n

    def dense(self, i0: int = 0, i1: int | None = None) -> Bool[Tensor, "b 1 r s"]:
        """The same as a mask, for queries ``i0:i1``."""
        key = torch.arange(self.keys, device=self.lo.device)
        rows = slice(i0, i1)
        seen = (key >= self.lo[:, rows, None]) & (key < self.hi[:, rows, None])
        if self.first_lo is not None and self.first_hi is not None:
            seen |= (key >= self.first_lo[:, rows, None]) & (key < self.first_hi[:, rows, None])
        return seen[:, None]

    @property
    def everything(self) -> bool:
        """Every query sees every key."""
        return self.first_lo is None and bool((self.lo <= 0).all()) and bool((self.hi >= self.keys).all())


def document_starts(ids: Int[Tensor, "b t"]) -> tuple[Tensor, Tensor]:
    """First and one-past-last position of the document that each position belongs to, ``[b, t]``."""
    length = ids.shape[1]
    position = torch.arange(length, device=ids.device).expand_as(ids)
    new = torch.ones_like(ids, dtype=torch.bool)
    new[:, 1:] = ids[:, 1:] != ids[:, :-1]
    ordinal = new.cumsum(-1)
    for row, runs in zip(ids, ordinal[:, -1].tolist() if length else [], strict=False):
        if row.unique().numel() != runs:
            raise ArgumentError("document_ids must be the same in one unbroken run per document; a document comes back")
    start = torch.where(new, position, 0).cummax(-1).values
    last = torch.ones_like(new)
    last[:, :-1] = new[:, 1:]
    end = torch.where(last, position + 1, length).flip(-1).cummin(-1).values.flip(-1)
    return start, end


def bands(
    t: int, s: int, *, batch: int, causal: bool, window: int | None, keep_first: int, cu_seqlens: Tensor | None,
    document_ids: Tensor | None, device: torch.device,
) -> Bands:  # fmt: skip
    """The structure that the arguments of :func:`sinkgate.attention` describe; the arguments are checked there."""
    position = torch.arange(s - t, s, device=device)[None]
    start: Tensor = torch.zeros_like(position)
    end: Tensor = torch.full_like(position, s)
    if cu_seqlens is not None:
        cu = cu_seqlens.to(device=device, dtype=torch.long)
        index = torch.searchsorted(cu, position.contiguous(), right=True) - 1
        start, end = cu[index], cu[index + 1]
    elif document_ids is not None:
        start, end = document_starts(document_ids.to(device))
    lo, hi = start, end
    if causal:
        hi = position.expand_as(start) + 1
        if window is not None:
            lo = torch.maximum(start, position - window + 1)
    first_lo = first_hi = None
    if keep_first and window is not None:
        first_lo, first_hi = start, torch.minimum(start + keep_first, lo)
    as_int = [None if x is None else x.to(torch.int32).contiguous() for x in (lo, hi, first_lo, first_hi)]
    return Bands(as_int[0], as_int[1], as_int[2], as_int[3], s)  # type: ignore[arg-type]


def visible_counts(structure: Bands, mask: Tensor | None) -> Int[Tensor, "b h t"]:
    """How many keys each query sees, structure and mask together; shared axes have length 1."""
    if mask is None:
        return structure.counts()[:, None]
    for axis in (0, 1):  # an expanded axis is counted once
        if mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    parts = []
    for i0 in range(0, mask.shape[2], 512):
        part = mask[:, :, i0 : i0 + 512]
        seen = part if part.dtype == torch.bool else ~(part <= HIDDEN)
        parts.append((seen & structure.dense(i0, i0 + 512)).sum(-1))
    return torch.cat(parts, dim=-1) if parts else structure.counts()[:, None]
