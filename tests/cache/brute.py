"""One attention layer under a bounded cache by plain loops: row by row, head by head, query by query, in float64.

Nothing is shared with the package but the way it is asked (:func:`feed`).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkgate.cache.bank import Ask
from sinkgate.cache.base import Policy
from sinkgate.cache.layer import Layer, Tracks
from sinkgate.cache.track import FAR, Step
from sinkgate.rope import Rotation

OMEGA = (1.0, 0.31, 0.017)  # of a head of 8: two components are not turned
SCALE = 0.7


@dataclass
class Text:
    """Raw queries, keys and values of a layer; ``real`` is False at padding."""

    q: Tensor  # [b, h, n, d]
    k: Tensor  # [b, kv, n, d]
    v: Tensor  # [b, kv, n, dv]
    real: Tensor  # [b, n]
    ids: Tensor  # [b, n]

    @classmethod
    def random(
        cls, *, rows: int = 1, columns: int = 24, kv: int = 1, group: int = 1, left: Sequence[int] = (), holes: bool = False,
        dv: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64,
    ) -> Text:  # fmt: skip
        """Left padding per row, and one column in four padded if ``holes``; padding is filled with large numbers."""
        g = torch.Generator().manual_seed(seed)

        def normal(heads: int, d: int) -> Tensor:
            return torch.randn(rows, heads, columns, d, generator=g, dtype=torch.float64)

        q, k, v = normal(kv * group, 8) * 1.5, normal(kv, 8), normal(kv, dv)
        real = torch.ones(rows, columns, dtype=torch.bool)
        if holes:
            real &= torch.rand(rows, columns, generator=g) > 0.25
        for row, n in enumerate(left):
            real[row, :n] = False
        for x in (q, k, v):
            x.masked_fill_(~real[:, None, :, None], 50.0)
        return cls(q.to(dtype), k.to(dtype), v.to(dtype), real, torch.randint(0, 6, (rows, columns), generator=g))

    def columns(self, row: int) -> list[int]:
        """Where the tokens of a row stand."""
        return [i for i, x in enumerate(self.real[row].tolist()) if x]

    def part(self, columns: slice) -> Text:
        """Some of the columns."""
        return Text(
            self.q[:, :, columns],
            self.k[:, :, columns],
            self.v[:, :, columns],
            self.real[:, columns],
            self.ids[:, columns],
        )


def turn(x: Tensor, positions: Sequence[int]) -> Tensor:
    """``[n, d]`` turned: component i and i + 3 are the parts of a complex number."""
    out = x.clone()
    for i, omega in enumerate(OMEGA):
        for n, p in enumerate(positions):
            z = complex(float(x[n, i]), float(x[n, i + 3])) * cmath.exp(1j * p * omega)
            out[n, i], out[n, i + 3] = z.real, z.imag
    return out


# ---- what a head keeps ----------------------------------------------------------------------------------------------


class Fixed:
    """The last tokens and those at chosen positions.

    Args:
        recent: how many.
        pinned: whether the token at a position is kept.
    """

    def __init__(self, recent: int, pinned: Callable[[int], bool] = lambda p: False) -> None:
        self.recent, self.pinned = recent, pinned

    def see(self, t: int) -> list[int]:
        """The tokens that query t sees, in order."""
        return [p for p in range(t + 1) if p > t - self.recent or self.pinned(p)]

    def got(self, seen: list[int], mass: list[float]) -> None:
        """What each of them got, over all queries of the head."""


class Heavy(Fixed):
    """Besides, the ``n`` that got most: the least goes when another leaves the recent ones."""

    def __init__(self, recent: int, n: int, pinned: Callable[[int], bool] = lambda p: False) -> None:
        super().__init__(recent, pinned)
        self.n, self.held, self.mass = n, list[int](), dict[int, float]()

    def see(self, t: int) -> list[int]:
        leaving = t - self.recent
        if leaving >= 0 and not self.pinned(leaving):
            self.held.append(leaving)
            if len(self.held) > self.n:
                least = min(self.held, key=lambda p: (self.mass[p], -p))
                self.held.remove(least)
        return sorted({*super().see(t), *self.held})

    def got(self, seen: list[int], mass: list[float]) -> None:
        for p, m in zip(seen, mass, strict=True):
            self.mass[p] = self.mass.get(p, 0.0) + m


def first_with(ids: Tensor, wanted: Sequence[int], n: int, columns: Sequence[int]) -> Callable[[int], bool]:
    """Whether a position is one of the first n whose id is wanted."""
    found = [p for p, c in enumerate(columns) if int(ids[c]) in wanted][:n]
    return lambda p: p in found


Stored = Callable[
    [int, int, int, int], tuple[Tensor, Tensor]
]  # row, head, query, key → raw key and value as they are held


def by_hand(
    text: Text, choice: Callable[[int, int], Any], *, slots: bool, softcap: float | None = None,
    sinks: Tensor | None = None, stored: Stored | None = None, back: int = 0,
) -> Tensor:  # fmt: skip
    """Head outputs ``[b, h, n, dv]``, 0 at padding.

    Args:
        text: raw queries, keys and values.
        choice: what a row's key-value head keeps.
        slots: positions are counted among the tokens seen; else those of the text.
        softcap: of the scores.
        sinks: a logit per query head.
        stored: the raw key and value that a query finds for a token; None: as they are.
        back: this many of the last positions only are computed (choices are still asked for all); 0: all.
    """
    b, h, n, _ = text.q.shape
    kv, group = text.k.shape[1], h // text.k.shape[1]
    out = torch.zeros(b, h, n, text.v.shape[3], dtype=torch.float64)
    for row in range(b):
        columns = text.columns(row)
        for j in range(kv):
            kept = choice(row, j)
            for t, column in enumerate(columns):
                seen = kept.see(t)
                at = [columns[p] for p in seen]
                k, v = text.k[row, j, at].double(), text.v[row, j, at].double()
                if stored is not None:
                    pairs = [stored(row, j, t, p) for p in seen]
                    k, v = torch.stack([x for x, _ in pairs]).double(), torch.stack([x for _, x in pairs]).double()
                places = list(range(len(seen))) if slots else seen
                k = turn(k, places)
                mass = [0.0] * len(seen)
                for i in range(j * group, (j + 1) * group):
                    q = turn(text.q[row, i, column][None].double(), [places[seen.index(t)]])[0]
                    scores = [SCALE * float(q @ x) for x in k]
                    if softcap is not None:
                        scores = [softcap * math.tanh(s / softcap) for s in scores]
                    top = max(scores)
                    weights = [math.exp(s - top) for s in scores]
                    total = sum(weights) + (0.0 if sinks is None else math.exp(float(sinks[i]) - top))
                    weights = [w / total for w in weights]
                    mass = [m + w for m, w in zip(mass, weights, strict=True)]
                    out[row, i, column] = torch.tensor(weights, dtype=torch.float64) @ v
                kept.got(seen, mass)
    return out


# ---- how the package is asked ---------------------------------------------------------------------------------------


class Stream:
    """A layer that is fed."""

    def __init__(self, policy: Policy, text: Text, *, slots: bool, rollback: int = 0) -> None:
        rows, heads, kv = len(text.q), text.q.shape[1], text.k.shape[1]
        self.tracks = Tracks(rows, rollback)
        self.rotation = Rotation(torch.tensor(OMEGA, dtype=torch.float64))
        self.layer = Layer(policy.keeps(0, heads, kv), self.tracks, self.rotation if slots else None)
        self.counts = torch.zeros(rows, dtype=torch.long)

    def __call__(self, text: Text, sizes: Sequence[int], **ask: Any) -> Tensor:
        """Outputs of passes of these sizes (the last one repeats), 0 at padding."""
        out, i, parts = [], 0, list(sizes)
        while i < text.q.shape[2]:
            size = parts.pop(0) if len(parts) > 1 else parts[0]
            some, i = text.part(slice(i, i + size)), i + size
            positions = torch.where(some.real, self.counts[:, None] + some.real.long().cumsum(1) - 1, FAR)
            step = Step(positions, self.counts.tolist(), some.ids)
            place = torch.where(some.real, positions, 0)[:, None]
            q, k = (self.rotation.turn(x, place).to(x.dtype) for x in (some.q, some.k))
            found = self.layer.attend(Ask(q, k, some.v, SCALE, **ask), step)
            assert found.isfinite().all()
            out.append(found * some.real[:, None, :, None])
            self.counts = self.counts + some.real.sum(1)
        return torch.cat(out, 2)

    def crop(self, n: int) -> None:
        """Take n tokens of every row back."""
        self.counts = self.counts - n
        for track in self.tracks.all.values():
            track.crop(self.counts.tolist())
        self.layer.each(lambda bank: bank.crop(self.counts.tolist()))

    def select(self, rows: Tensor) -> None:
        """These rows."""
        self.counts, self.tracks.rows = self.counts[rows], len(rows)
        tracks = [*self.tracks.all.values(), *(bank.track for bank in self.layer.banks)]
        for track in {id(t): t for t in tracks}.values():
            track.select(rows)
        self.layer.each(lambda bank: bank.select(rows))


def feed(
    policy: Policy, text: Text, sizes: Sequence[int], *, slots: bool, rollback: int = 0, **ask: Any
) -> tuple[Tensor, Stream]:
    """Outputs of a fresh layer, and the layer."""
    stream = Stream(policy, text, slots=slots, rollback=rollback)
    return stream(text, sizes, **ask), stream
