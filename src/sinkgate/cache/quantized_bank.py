"""Recent and pinned tokens in 8 or 4 bits.

The ring is cut into groups of tokens. The group that fills, and the tail before it, are as the model computed them; a group
that leaves the tail is packed: keys per channel over the group's tokens, values per token. A pass sees its own tokens as
computed, those before as they are held, and packs afterwards what is full (but for :func:`stepwise`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from sinkgate.cache.bank import Ask, Bank, attend, turned
from sinkgate.cache.base import Keep
from sinkgate.cache.packed import Packed, pack
from sinkgate.cache.track import FAR, Move, Step, Track
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.rope import Rotation

__all__ = ["QuantizedBank", "ring_slots", "stepwise"]

_STEPWISE: ContextVar[bool] = ContextVar("stepwise", default=False)


@contextmanager
def stepwise() -> Iterator[None]:
    """Inside, every token of a pass finds what it would find in single steps; for measuring, where texts are read in long passes.

    A group that leaves the tail during the pass is packed for the tokens behind. Sinks that are packed as well are so behind the
    pass that brings the last of them. Banks whose first tokens come inside also keep what they pack unpacked: the same numbers,
    sooner, in more memory (``nbytes`` counts the packed form alone).
    """
    token = _STEPWISE.set(True)
    try:
        yield
    finally:
        _STEPWISE.reset(token)


def ring_slots(keep: Keep) -> int:
    """Slots of the ring: enough whole groups for the recent tokens, and the one that fills."""
    assert keep.recent is not None
    return (math.ceil(keep.recent / keep.storage.group) + 1) * keep.storage.group


class QuantizedBank(Bank):
    """Slots ``[kept | groups]``.

    Args:
        keep: what is kept.
        track: with a ring of :func:`ring_slots` slots.
        rotation: the layer's, if positions are counted inside the cache.
    """

    tensors = (
        "k", "v", "raw", "tail_k", "tail_v", "k_codes", "k_scale", "k_zero", "v_codes", "v_scale", "v_zero",
        "kept_k_codes", "kept_k_scale", "kept_k_zero", "kept_v_codes", "kept_v_scale", "kept_v_zero", "count",
    )  # fmt: skip
    k_codes: Any
    k_scale: Any
    k_zero: Any
    v_codes: Any
    v_scale: Any
    v_zero: Any
    tail_k: Any
    tail_v: Any
    kept_k_codes: Any
    kept_v_codes: Any
    count: Any  # [b] tokens that went into the ring

    def __init__(self, keep: Keep, track: Track, rotation: Rotation | None = None) -> None:
        super().__init__(keep, track, rotation)
        self.group, self.bits = keep.storage.group, keep.storage.bits or 8
        self.groups = track.ring // self.group
        self.tails = min(math.ceil(keep.storage.tail / self.group) + 1, self.groups)
        self._open: tuple[Tensor, Tensor] | None = None  # the ring, unpacked, where it is kept so
        # of a pass, for keys and values: the first group that leaves the tail, by row, and all that do, packed
        self._left: dict[str, tuple[list[int], Packed]] = {}
        for name in self.tensors:
            setattr(self, name, None)

    def select(self, rows: Tensor) -> None:
        """These rows of the batch."""
        super().select(rows)
        if self._open is not None:
            k, v = self._open
            self._open = k[rows.to(k.device)], v[rows.to(v.device)]

    def crop(self, left: list[int]) -> None:
        """A packed group cannot be opened again.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("tokens cannot be taken back from a quantised cache; use one that is not")

    def _allocate(self, ask: Ask) -> None:
        b, kv, _, d = ask.k.shape
        dv, kept = ask.v.shape[3], self.track.pinned
        if self.bits == 4 and (d % 2 or dv % 2):
            raise ArgumentError(f"4 bits need heads of even size, this layer has {d} and {dv}; use bits=8")
        pos = self.track.pos
        self.track.pos, real = pos[:, :kept], pos
        super()._allocate(ask)  # the kept slots only
        self.track.pos = real
        n, g = self.groups, self.group
        self.count = torch.zeros(b, dtype=torch.long)
        self.tail_k, self.tail_v = ask.k.new_zeros(b, kv, self.tails * g, d), ask.v.new_zeros(b, kv, self.tails * g, dv)
        share = 2 if self.bits == 4 else 1

        def empty(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
            return torch.zeros(b, kv, n, *shape, dtype=dtype, device=ask.k.device)

        self.k_codes, self.v_codes = empty(g, d // share, dtype=torch.uint8), empty(g, dv // share, dtype=torch.uint8)
        self.k_scale, self.k_zero = empty(1, d), empty(1, d)
        self.v_scale, self.v_zero = empty(g, 1), empty(g, 1)
        if _STEPWISE.get():
            self._open = ask.k.new_zeros(b, kv, n * g, d), ask.v.new_zeros(b, kv, n * g, dv)

    def _grown(self) -> None:
        """The ring has its size from the beginning."""

    def attend(self, ask: Ask, step: Step, move: Move | None = None) -> Tensor:
        """Head outputs of the new tokens; the bank holds them afterwards."""
        if step.before is None:
            raise UnsupportedError("a quantised cache packs whole groups when they are full, and cannot be compiled")
        move = self.track.move(step)
        if self.tail_k is None:
            self._allocate(ask)
        kept = self._pinned(ask, step, move)
        if move.index is not None:
            out = self._one_query(ask, step, move, kept)
        else:
            out = self._chunk(ask, step, move, kept)
        self._put(ask, step, move)
        self._pack_pinned()
        return out

    def _one_query(self, ask: Ask, step: Step, move: Move, kept: tuple[Tensor, Tensor]) -> Tensor:
        k, v = self._ring(ask)
        rows = torch.arange(len(k), device=k.device)
        index = torch.as_tensor(move.index, device=k.device).expand(len(k)) - self.track.pinned
        rows, index = rows[index >= 0], index[index >= 0]
        k[rows, :, index], v[rows, :, index] = ask.k[rows, :, 0], ask.v[rows, :, 0]
        seen = self.track._seen(step.positions) if move.seen is None else move.seen
        first = kept[0]
        if self.raw is not None and self.rotation is not None and self.track.pinned:
            first = self.rotation.apply(self._raw(), *self._angles(move)).to(ask.k.dtype)
        return attend(ask, ask.q, torch.cat([first, k], 2), torch.cat([kept[1], v], 2), seen)

    def _chunk(self, ask: Ask, step: Step, move: Move, kept: tuple[Tensor, Tensor]) -> Tensor:
        k, v = self._ring(ask)
        whole = Bank(self.keep, self.track, self.rotation)  # the same as unquantised, on what is unpacked
        whole.k, whole.v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
        whole.raw = None if self.raw is None else self._raw()
        if _STEPWISE.get():
            move = self._stepwise(ask, step, move, whole)
        return whole._many(ask, step, move)

    def _stepwise(self, ask: Ask, step: Step, move: Move, whole: Bank) -> Move:
        """Packed forms of the groups that leave the tail during the pass, behind the ring; who sees which form."""
        known: dict[tuple[int, int], Any] = move.__dict__.setdefault("stepwise", {})  # the same in every layer
        if (self.group, self.tails) not in known:
            known[self.group, self.tails] = self._leaving(step, move)
        leaving = known[self.group, self.tails]
        if leaving is None:
            return move
        first, index, see_ring, see_new = leaving
        assert whole.k is not None and whole.v is not None
        parts = {}
        for name, held, new, axis in (("k", whole.k, ask.k, -2), ("v", whole.v, ask.v, -1)):
            tokens = torch.cat([held[:, :, self.track.pinned :], new], 2)
            members = tokens.gather(2, index[:, None, :, None].expand(-1, tokens.shape[1], -1, tokens.shape[3]))
            packed = pack(members.unflatten(2, (-1, self.group)), self.bits, axis)
            parts[name] = torch.cat([held, packed.unpack(tokens.dtype).flatten(2, 3)], 2)
            self._left[name] = first, packed
        whole.k, whole.v = parts["k"], parts["v"]
        return dataclasses.replace(move, see_ring=see_ring, see_new=see_new)

    def _leaving(self, step: Step, move: Move) -> tuple[list[int], Tensor, Tensor, Tensor] | None:
        """The first group that leaves the tail, by row; tokens of all that do; what queries see of ring and groups, and of new tokens.

        Tokens are ``[b, n]``, numbered over ring and new ones. None: no group leaves before the last token.
        """
        assert move.see_ring is not None and move.see_new is not None
        g, ring, count = self.group, self.track.ring, self.count.to(step.positions.device)[:, None]
        rest = self._to_ring(step, move)
        order = count + rest.long().cumsum(1) - rest.long()  # of each new token; how many are in the ring before it
        packed = order // g - self.tails  # the last group that a query finds packed
        first = (count // g - self.tails + 1).clamp_min(0)  # the first that is not packed yet
        groups = int((packed - first).max()) + 1
        if groups <= 0:
            return None
        members = first * g + torch.arange(groups * g, device=rest.device)
        new = torch.argsort(~rest, dim=1, stable=True)
        at = new.gather(1, (members - count).clamp(0, rest.shape[1] - 1))
        index = torch.where(members < count, members % ring, ring + at)
        slots = torch.arange(ring, device=rest.device)
        held = count - 1 - (count - 1 - slots) % ring  # the order of the token in each slot
        see = torch.cat([move.see_ring, move.see_new], 2)
        group = torch.cat([held, order], 1) // g
        gone = (group >= first)[:, None] & (group[:, None] <= packed[..., None])
        there = see.gather(2, index[:, None].expand(-1, see.shape[1], -1)) & (
            (members // g)[:, None] <= packed[..., None]
        )
        as_computed = see & ~gone
        return first[:, 0].tolist(), index, torch.cat([as_computed[..., :ring], there], 2), as_computed[..., ring:]

    # ---- pinned tokens ------------------------------------------------------------------------------------------------

    def _pinned(self, ask: Ask, step: Step, move: Move) -> tuple[Tensor, Tensor]:
        """Pin the new tokens that are to be; keys and values of all pinned ones."""
        kept = self.track.pinned
        if self.kept_v_codes is not None:
            return self._packed("kept_k").unpack(ask.k.dtype), self._packed("kept_v").unpack(ask.v.dtype)
        if kept:
            if move.index is None:
                self._kept(ask, step, move)
            elif isinstance(move.index, int):
                if move.index < kept:
                    self._pin_slot(ask, step, torch.full((len(ask.k),), move.index))
            elif bool((move.index < kept).any()):
                self._pin_slot(ask, step, move.index)
        assert self.k is not None and self.v is not None
        return self.k, self.v

    def _pack_pinned(self) -> None:
        """Where sinks are not kept as they are: when all have come, in all rows."""
        kept, k, v = self.track.pinned, self.k, self.v
        if self.keep.storage.keep_sinks or not kept or self.kept_v_codes is not None:
            return
        assert k is not None and v is not None
        if bool((self.track.pos[:, :kept] != FAR).all()):
            self._set("kept_k", pack(k if self.raw is None else self.raw, self.bits, -2))
            self._set("kept_v", pack(v, self.bits, -1))
            self.k, self.v = k[:, :, :0].clone(), v[:, :, :0].clone()
            self.raw = None if self.raw is None else self.raw[:, :, :0].clone()

    def _pin_slot(self, ask: Ask, step: Step, index: Tensor) -> None:
        assert self.k is not None and self.v is not None
        rows = (index < self.track.pinned).nonzero().flatten()
        slots = index[rows]
        self.k[rows, :, slots], self.v[rows, :, slots] = ask.k[rows, :, 0], ask.v[rows, :, 0]
        if self.raw is not None and self.rotation is not None:
            raw = turned(self.rotation, ask.k, -step.positions, self.raw)
            self.raw[rows, :, slots] = raw[rows, :, 0]

    def _raw(self) -> Tensor:
        assert self.raw is not None
        return self.raw if self.kept_k_codes is None else self._packed("kept_k").unpack(self.raw.dtype)

    # ---- the ring -----------------------------------------------------------------------------------------------------

    def _ring(self, ask: Ask) -> tuple[Tensor, Tensor]:
        """All groups, unpacked, with the tail as it is."""
        if self._open is not None and _STEPWISE.get():
            k, v = self._open
        else:
            k = self._packed("k").unpack(ask.k.dtype).flatten(2, 3)
            v = self._packed("v").unpack(ask.v.dtype).flatten(2, 3)
        for row, count in enumerate(self.count.tolist()):
            now = count // self.group
            for j in range(max(0, now - self.tails + 1), now + 1):
                to, source = (j % self.groups) * self.group, (j % self.tails) * self.group
                k[row, :, to : to + self.group] = self.tail_k[row, :, source : source + self.group]
                v[row, :, to : to + self.group] = self.tail_v[row, :, source : source + self.group]
        return k, v

    def _put(self, ask: Ask, step: Step, move: Move) -> None:
        """New tokens into the tail; when a group is full, the one that leaves the tail is packed."""
        g = self.group
        if move.index is not None:
            index = move.index if isinstance(move.index, Tensor) else torch.full((len(ask.k),), move.index)
            rest = (index >= self.track.pinned)[:, None]
        else:
            rest = self._to_ring(step, move)
        for row in range(len(rest)):
            tokens = rest[row].nonzero().flatten()
            order = int(self.count[row])
            while len(tokens):
                j = order // g
                some = tokens[: g - order % g]
                to = (j % self.tails) * g + order % g
                self.tail_k[row, :, to : to + len(some)] = ask.k[row, :, some]
                self.tail_v[row, :, to : to + len(some)] = ask.v[row, :, some]
                tokens, order = tokens[len(some) :], order + len(some)
                if order % g == 0 and j + 1 >= self.tails:
                    self._pack(row, j + 1 - self.tails)
            self.count[row] = order
        self._left.clear()

    def _to_ring(self, step: Step, move: Move) -> Tensor:
        """``[b, c]``: the new tokens of a longer pass that are not pinned."""
        assert move.kept_source is not None
        rest, source = step.positions != FAR, move.kept_source
        pinned = torch.zeros(len(rest), rest.shape[1] + 1, dtype=torch.bool, device=rest.device)
        pinned.scatter_(1, torch.where(source >= 0, source, rest.shape[1]), True)
        return rest & ~pinned[:, :-1]

    def _pack(self, row: int, j: int) -> None:
        """Group j leaves the tail."""
        source, to = (j % self.tails) * self.group, j % self.groups
        for name, tail, axis in (("k", self.tail_k, -2), ("v", self.tail_v, -1)):
            first, left = self._left.get(name, ([], None))
            i = j - first[row] if left is not None else -1
            if left is not None and 0 <= i < left.codes.shape[2]:
                found = Packed(left.codes[row, :, i], left.scale[row, :, i], left.zero[row, :, i], self.bits)
            else:
                found = pack(tail[row, :, source : source + self.group], self.bits, axis)
            getattr(self, f"{name}_codes")[row, :, to] = found.codes
            getattr(self, f"{name}_scale")[row, :, to] = found.scale
            getattr(self, f"{name}_zero")[row, :, to] = found.zero
            if self._open is not None:
                ring = self._open["kv".index(name)]
                ring[row, :, to * self.group : (to + 1) * self.group] = found.unpack(ring.dtype)

    def _packed(self, name: str) -> Packed:
        codes, scale, zero = (getattr(self, f"{name}_{part}") for part in ("codes", "scale", "zero"))
        return Packed(codes, scale, zero, self.bits)

    def _set(self, name: str, packed: Packed) -> None:
        for part in ("codes", "scale", "zero"):
            setattr(self, f"{name}_{part}", getattr(packed, part))
