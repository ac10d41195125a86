"""Which keys each query sees, and what a head that ignores the text would do with them.

A :class:`Visibility` is a structure (causal, window) or a mask tensor or both. It hands out blocks of rows
with the range of keys they need, so that nobody has to build T×T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["Span", "Visibility"]

# An additive mask at or under this hides its key: e^-9999 is 0 in every dtype, and both finfo.min and the
# older -10000 are caught.
HIDDEN = -9999.0


@dataclass(frozen=True)
class Span:
    """Rows ``i0:i1`` need keys ``k0:k1``; ``parts`` are the columns where not every row sees every key."""

    i0: int
    i1: int
    k0: int
    k1: int
    parts: tuple[tuple[int, int, Bool[Tensor, "b h r c"]], ...]  # (c0, c1, True where visible), keys c0:c1

    def tiles(self, keys: int) -> Iterator[Span]:
        """The same rows, at most ``keys`` keys at a time."""
        for k0 in range(self.k0, self.k1, keys):
            k1 = min(k0 + keys, self.k1)
            parts = [
                (max(c0, k0), min(c1, k1), seen[..., max(c0, k0) - c0 : min(c1, k1) - c0])
                for c0, c1, seen in self.parts
                if c0 < k1 and c1 > k0
            ]
            yield Span(self.i0, self.i1, k0, k1, tuple(parts))


@dataclass(frozen=True, eq=False)
class Visibility:
    """Which keys each query sees.

    Args:
        queries: number of queries t.
        keys: number of keys s. With ``t < s`` the last query stands at the last key (aligned bottom-right,
            as in decoding against a cache).
        causal: query i sees keys up to its own position.
        window: only the last ``window`` keys, the query's own included.
        mask: bool (True = visible) or additive float, ``[b or 1, heads or 1, t, s]``; combined with the above.
        real: bool ``[b, s]``, False at padding. A padding key is seen by nobody, a padding query is not counted.
        device: where the structure is built when no tensor says so.
    """

    queries: int
    keys: int
    causal: bool = True
    window: int | None = None
    mask: Tensor | None = None
    real: Bool[Tensor, "b s"] | None = None
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ArgumentError(f"window must be at least 1 (the query's own key), got {self.window}")
        if self.window is not None and not self.causal:
            raise ArgumentError("window counts back from the query, so it needs causal=True; give a mask instead")
        if self.queries > self.keys:
            raise ArgumentError(f"queries must not outnumber keys, got {self.queries} queries and {self.keys} keys")
        if self.mask is not None and not (self.mask.dtype == torch.bool or self.mask.is_floating_point()):
            raise ArgumentError(f"mask must be bool (True = visible) or additive float, got {self.mask.dtype}")
        if self.real is not None and self.real.dtype != torch.bool:
            raise ArgumentError(f"real must be bool (False = padding), got {self.real.dtype}")
        if self.mask is not None and (self.mask.ndim != 4 or self.mask.shape[-2:] != (self.queries, self.keys)):
            raise ArgumentError(
                f"mask must be [batch or 1, heads or 1, {self.queries}, {self.keys}], got {list(self.mask.shape)}"
            )
        if self.real is not None and (self.real.ndim != 2 or self.real.shape[-1] != self.keys):
            raise ArgumentError(f"real must be [batch, {self.keys}], got {list(self.real.shape)}")

    # ---- blocks ---------------------------------------------------------------------------------------------

    def spans(self, rows: int) -> Iterator[Span]:
        """Blocks of at most ``rows`` queries with the keys they need; blocks nobody sees are left out."""
        for index, i0 in enumerate(range(0, self.queries, rows)):
            i1 = min(i0 + rows, self.queries)
            k0, k1 = self._structural_range(i0, i1)
            if k0 >= k1:
                continue
            if self.mask is None and self.real is None:
                yield Span(i0, i1, k0, k1, tuple(self._structural_parts(i0, i1, k0, k1)))
                continue
            k0, k1, full = self._masked_range(rows)[index]
            if k0 < k1:
                parts = () if full else ((k0, k1, self.visible(i0, i1, k0, k1)),)
                yield Span(i0, i1, k0, k1, parts)

    def visible(self, i0: int, i1: int, k0: int, k1: int) -> Bool[Tensor, "b h r c"]:
        """The visibility of rows ``i0:i1`` over keys ``k0:k1`` as a bool tensor."""
        seen = self._structural_mask(i0, i1, k0, k1)
        if seen is None:
            seen = torch.ones(1, 1, i1 - i0, k1 - k0, dtype=torch.bool, device=self._device)
        if self.mask is not None:
            part = self.mask[:, :, i0:i1, k0:k1]
            seen = seen & (part if part.dtype == torch.bool else part > HIDDEN)
        if self.real is not None:
            seen = seen & self.real[:, None, None, k0:k1]
        return seen

    def bias(self, span: Span) -> Float[Tensor, "b h r c"] | None:
        """The finite part of an additive mask over a span (ALiBi and the like), or None if it has none."""
        if self.mask is None or not self.has_bias:
            return None
        return self.mask[:, :, span.i0 : span.i1, span.k0 : span.k1]

    @cached_property
    def has_bias(self) -> bool:
        """Whether an additive mask carries anything but 0 and hidden."""
        if self.mask is None or self.mask.dtype == torch.bool:
            return False
        return any(bool(((block != 0) & (block > HIDDEN)).any()) for block in self.mask.split(512, dim=-2))

    # ---- what follows from it ---------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> Int[Tensor, "b h t"]:
        """How many keys each query sees; 0 for a padding query. Leading axes may be 1 (shared)."""
        if self.mask is None and self.real is None:
            last = self._position + 1 if self.causal else torch.full_like(self._position, self.keys)
            first = last - self.window if self.window is not None and self.causal else torch.zeros_like(last)
            return (last - first.clamp_min(0))[None, None]
        blocks = [
            self.visible(i0, min(i0 + 512, self.queries), 0, self.keys).sum(-1) for i0 in range(0, self.queries, 512)
        ]
        counts = torch.cat(blocks, dim=-1)
        return counts if self.real_queries is None else counts * self.real_queries[:, None]

    @cached_property
    def real_queries(self) -> Bool[Tensor, "b t"] | None:
        """False at padding queries; None if there are none."""
        return None if self.real is None else self.real[:, self.keys - self.queries :]

    @cached_property
    def first(self) -> Int[Tensor, " b"]:
        """The first key that is no padding, per batch row (length 1 when shared)."""
        if self.real is None:
            return torch.zeros(1, dtype=torch.long, device=self._device)
        return self.real.long().argmax(-1)

    def sees(self, key: Int[Tensor, " b"]) -> Bool[Tensor, "b h t"]:
        """Which queries see one given key per batch row."""
        if self.mask is None and self.real is None:
            position = self._position[None]
            seen = torch.ones_like(position, dtype=torch.bool).expand(key.shape[0], -1)
            if self.causal:
                seen = position >= key[:, None]
                if self.window is not None:
                    seen = seen & (position - key[:, None] < self.window)
            return seen[:, None]
        columns = []
        for row, k in enumerate(key.tolist()):
            column = self.visible(0, self.queries, k, k + 1)[..., 0]
            columns.append(column[row if column.shape[0] > 1 else 0])
        return torch.stack(columns) & (self.counts > 0)

    @cached_property
    def uniform(self) -> Float[Tensor, "b h t"]:
        """``1/n_i``: the weight that uniform attention gives each key a query sees (0 for an empty row)."""
        counts = self.counts.double()
        return torch.where(counts > 0, 1.0 / counts.clamp_min(1), 0.0)

    @cached_property
    def columns(self) -> tuple[Int[Tensor, "b h s"], Float[Tensor, "b h s"]]:
        """Per key: how many queries see it, and the sum of ``1/n_i`` over them (the null of its column)."""
        if self.mask is None and self.real is None and self.causal:
            queries = torch.arange(self.keys, device=self._device)
            low = (queries - (self.keys - self.queries)).clamp_min(0)  # first query that sees key k
            high = torch.full_like(queries, self.queries)
            if self.window is not None:
                high = (queries - (self.keys - self.queries) + self.window).clamp(0, self.queries)
            total = torch.cat([torch.zeros(1, dtype=torch.float64, device=self._device), self.uniform[0, 0].cumsum(0)])
            return (high - low).clamp_min(0)[None, None], (total[high] - total[low]).clamp_min(0)[None, None]
        seen_blocks, null_blocks = [], []
        for i0 in range(0, self.queries, 512):
            i1 = min(i0 + 512, self.queries)
            seen = self.visible(i0, i1, 0, self.keys)
            if self.real_queries is not None:
                seen = seen & self.real_queries[:, None, i0:i1, None]
            seen_blocks.append(seen.sum(-2))
            null_blocks.append(
                torch.einsum("bhrc,bhr->bhc", seen.double(), self.uniform[..., i0:i1].expand(seen.shape[:3]))
            )
        return torch.stack(seen_blocks).sum(0), torch.stack(null_blocks).sum(0)

    def local_counts(self, window: int) -> Int[Tensor, "b h t"]:
        """How many of the last ``window`` keys, the query's own included, each query sees."""
        if self.mask is None and self.real is None and self.causal:
            return self.counts.clamp_max(window)
        blocks = []
        for i0 in range(0, self.queries, 512):
            i1 = min(i0 + 512, self.queries)
            k0, k1 = max(0, int(self._position[i0]) - window + 1), int(self._position[i1 - 1]) + 1
            distance = self._position[i0:i1, None] - torch.arange(k0, k1, device=self._device)
            blocks.append((self.visible(i0, i1, k0, k1) & (distance >= 0) & (distance < window)).sum(-1))
        counts = torch.cat(blocks, dim=-1)
        return counts if self.real_queries is None else counts * self.real_queries[:, None]

    # ---- private ------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device | str:
        for tensor in (self.mask, self.real):
            if tensor is not None:
                return tensor.device
        return self.device

    @cached_property
    def _position(self) -> Int[Tensor, " t"]:
        """Where each query stands among the keys."""
        return torch.arange(self.keys - self.queries, self.keys, device=self._device)

    def _structural_range(self, i0: int, i1: int) -> tuple[int, int]:
        if not self.causal:
            return 0, self.keys
        offset = self.keys - self.queries
        k0 = 0 if self.window is None else max(0, offset + i0 - self.window + 1)
        return k0, min(self.keys, offset + i1)

    def _structural_mask(self, i0: int, i1: int, k0: int, k1: int) -> Bool[Tensor, "1 1 r c"] | None:
        if not self.causal:
            return None
        distance = self._position[i0:i1, None] - torch.arange(k0, k1, device=self._device)[None]
        seen = distance >= 0
        if self.window is not None:
            seen &= distance < self.window
        return seen[None, None]

    def _structural_parts(self, i0: int, i1: int, k0: int, k1: int) -> Iterator[tuple[int, int, Tensor]]:
        """Only the diagonal needs a mask, and with a window the far edge too."""
        if not self.causal:
            return
        edges = [(max(k0, self.keys - self.queries + i0), k1)]
        if self.window is not None:
            edges.insert(0, (k0, min(k1, k0 + i1 - i0)))
            if edges[0][1] > edges[1][0]:
                edges = [(k0, k1)]
        for c0, c1 in edges:
            seen = self._structural_mask(i0, i1, c0, c1)
            if seen is not None and not bool(seen.all()):
                yield c0, c1, seen

    def _masked_range(self, rows: int) -> list[tuple[int, int, bool]]:
        """For each block of rows: first and last+1 key that anybody sees, and whether all see all of them."""
        cache: dict[int, list[tuple[int, int, bool]]] = self.__dict__.setdefault("_ranges", {})
        if rows not in cache:
            cache[rows] = []
            for i0 in range(0, self.queries, rows):
                seen = self.visible(i0, min(i0 + rows, self.queries), 0, self.keys)
                columns = seen.flatten(0, 2).any(0).nonzero()
                k0, k1 = (int(columns[0]), int(columns[-1]) + 1) if len(columns) else (0, 0)
                cache[rows].append((k0, k1, bool(seen[..., k0:k1].all())))
        return cache[rows]
