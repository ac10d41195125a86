"""Where the tokens of a stream lie: positions of every slot, what a pass writes and what its queries see.

A bank's slots are ``[kept | ring]``: pinned tokens in front, the recent ones behind in a ring. What pins and rings do
follows from positions and ids alone, so layers with the same policy share one track.

A slot's position is that of its token in its row (padding does not count); ``FAR`` where the slot is empty, which is
later than any query, so that nobody sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkgate.cache.base import Keep

__all__ = ["FAR", "Move", "Step", "Track"]

FAR = 1 << 60
GROWS = 256  # slots that an unbounded track begins with


@dataclass(eq=False)
class Step:
    """One pass over new tokens, told once to all layers.

    Args:
        positions: ``[b, c]`` of the new tokens, each in its own row; ``FAR`` at padding.
        before: how many tokens each row had; None while compiling, when nobody may look.
        ids: ``[b, c]`` of the new tokens, if known.
    """

    positions: Int[Tensor, "b c"]
    before: list[int] | None
    ids: Int[Tensor, "b c"] | None = None

    @property
    def length(self) -> int:
        """New tokens per row."""
        return self.positions.shape[1]

    @cached_property
    def padded(self) -> bool:
        """Whether some of them are padding."""
        return self.before is not None and bool((self.positions == FAR).any())

    @cached_property
    def alike(self) -> bool:
        """Whether all rows are equally long and none is padded."""
        return self.before is not None and len(set(self.before)) == 1 and not self.padded


@dataclass(eq=False)
class Move:
    """What one pass does to a track.

    Args:
        index: of one new token per row: the slot it takes, the same in all rows or per row; None for a longer pass.
        prefix: all slots before this one, and no others, are seen by one new token; None: see ``seen``.
        seen: ``[b, 1, n]`` of one new token.
        kept_source: ``[b, K]`` which new token each kept slot takes; −1 where it stays.
        ring_source: ``[b, R]`` the same for the ring.
        see_kept: ``[b, c, K]`` kept tokens that are still recent: scored at their own distance.
        see_slot: ``[b, c, K]`` kept tokens that are not: scored at their slot where positions are the cache's.
        see_ring: ``[b, c, R]``, the ring as it was before the pass.
        see_new: ``[b, c, c]`` the new tokens that were not pinned.
        cache_position: ``[b, c]`` position of each query inside the cache.
        kept: ``[b, K]`` positions of the kept tokens, after the pass's pins.
        rank: ``[b, K]`` their place in the cache.
        target: ``[b, K]`` one new token: at which position its kept keys stand for it.
    """

    index: int | Tensor | None = None
    prefix: int | None = None
    seen: Bool[Tensor, "b 1 n"] | None = None
    kept_source: Int[Tensor, "b k"] | None = None
    ring_source: Int[Tensor, "b r"] | None = None
    see_kept: Bool[Tensor, "b c k"] | None = None
    see_slot: Bool[Tensor, "b c k"] | None = None
    see_ring: Bool[Tensor, "b c r"] | None = None
    see_new: Bool[Tensor, "b c c"] | None = None
    cache_position: Int[Tensor, "b c"] | None = None
    kept: Int[Tensor, "b k"] | None = None
    rank: Int[Tensor, "b k"] | None = None
    target: Int[Tensor, "b k"] | None = None


class Track:
    """The slots of one policy.

    Args:
        keep: what is kept.
        rows: of the batch.
        slack: tokens that the ring holds beyond ``recent``, so that they can be cropped.
        device: of the positions.
    """

    def __init__(self, keep: Keep, rows: int, slack: int = 0, device: torch.device | str = "cpu") -> None:
        self.keep, self.slack = keep, slack
        self.pinned = sum(p.slots for p in keep.pinned)
        self.ring = GROWS if keep.recent is None else keep.recent + slack
        self.pos = torch.full((rows, self.pinned + self.ring), FAR, dtype=torch.long, device=device)
        self.folded = 0  # kept slots that hold constants of the model, from the beginning
        # Only the first tokens are pinned, if any: then every slot follows from the count of tokens.
        self.simple = all(p.by_count for p in keep.pinned) and len(keep.pinned) <= 1
        self._move: tuple[Step, Move] | None = None

    def fold(self) -> None:
        """The kept slots hold the model's own constants, one token in front of the text."""
        self.folded = self.pinned
        self.pos[:, : self.pinned] = -1

    # ---- a pass -------------------------------------------------------------------------------------------------------

    def move(self, step: Step) -> Move:
        """What the pass does; the same object for every layer, and the positions are moved once."""
        if self._move is not None and self._move[0] is step:
            return self._move[1]
        if step.before is None:
            move = self._compiled(step)
        elif step.length == 1 and not step.padded:
            move = self._one(step)
        else:
            move = self._many(step)
        if step.before is not None:
            self._move = (step, move)
        return move

    def grow(self, needed: int) -> bool:
        """Make room in a ring without bound; True if it grew."""
        if self.keep.recent is not None or needed <= self.ring:
            return False
        ring = max(2 * self.ring, needed)
        self.pos = torch.nn.functional.pad(self.pos, (0, ring - self.ring), value=FAR)
        self.ring = ring
        return True

    def holds(self, left: list[int]) -> bool:
        """Whether all that a row of so many tokens would see is there."""
        if self.keep.recent is None:
            return True
        end = torch.tensor(left, device=self.pos.device)[:, None]
        begin = (end - self.keep.recent).clamp_min(0)
        there = ((self.pos >= begin) & (self.pos < end)).sum(1)
        return bool((there == (end - begin)[:, 0]).all())

    def crop(self, left: list[int]) -> None:
        """Forget what stands at or behind these positions."""
        bound = torch.tensor(left, device=self.pos.device)[:, None]
        self.pos = torch.where((self.pos >= bound), FAR, self.pos)
        self._move = None

    def resume(self, pos: Tensor) -> None:
        """Go on from saved positions."""
        self.pos, self.ring, self._move = pos, pos.shape[1] - self.pinned, None

    def select(self, rows: Tensor) -> None:
        """These rows of the batch, in this order."""
        self.pos = self.pos[rows.to(self.pos.device)]
        self._move = None

    # ---- private ------------------------------------------------------------------------------------------------------

    def _first(self) -> int:
        """How many first tokens are pinned."""
        return 0 if self.folded else self.pinned

    def _one(self, step: Step) -> Move:
        assert step.before is not None
        t = step.positions  # [b, 1]
        if self.simple and step.alike:
            before, first = step.before[0], self._first()
            self.grow(before + 1)
            slot_of_all = before if before < first else self.pinned + (before - first) % self.ring
            self.pos[:, slot_of_all] = before
            move = Move(index=slot_of_all, kept=self.pos[:, : self.pinned])
            if self.slack == 0 or before < self.pinned + (self.keep.recent or 0):
                filled = before + 1 + self.folded
                move.prefix = min(filled, self.pinned + self.ring)
        else:
            slot = self._pin(step)[0][:, 0]
            ring = self.pinned + self._written(step.before) % self.ring
            if self.grow(max(step.before) + 1):
                ring = self.pinned + self._written(step.before) % self.ring
            index = torch.where(slot >= 0, slot, ring)
            self.pos.scatter_(1, index[:, None], t)
            move = Move(index=index, kept=self.pos[:, : self.pinned])
        if move.prefix is None:
            move.seen = self._seen(t)
        if self.pinned:
            move.rank = _rank(move.kept)
            move.target = self._target(t, move)
        return move

    def _compiled(self, step: Step) -> Move:
        """One token, with tensors alone: no branch that depends on where the stream is."""
        t, first = step.positions, self._first()
        index = torch.where(t < first, t, self.pinned + (t - first) % self.ring)[:, 0]
        self.pos.scatter_(1, index[:, None], t)
        move = Move(index=index, kept=self.pos[:, : self.pinned], seen=self._seen(t))
        if self.pinned:
            move.rank = _rank(move.kept)
            move.target = self._target(t, move)
        return move

    def _seen(self, t: Tensor) -> Tensor:
        seen = self.pos <= t
        if self.keep.recent is not None:
            recent = self.pos > t - self.keep.recent
            recent[:, : self.pinned] = True
            seen = seen & recent
        return seen[:, None]

    def _target(self, t: Tensor, move: Move) -> Tensor:
        """Where the kept keys stand for a query at t ``[b, 1]`` if positions are counted inside the cache."""
        assert move.kept is not None and move.rank is not None
        if self.keep.recent is None:
            return move.kept
        last = self._cache_position(t, move.kept)
        return torch.where(move.kept > t - self.keep.recent, move.kept, t - (last - move.rank))

    def _cache_position(self, t: Tensor, kept: Tensor) -> Tensor:
        """Position of the queries at t ``[b, c]`` inside the cache: how many tokens they see, less one."""
        if self.keep.recent is None:
            return t
        old = (kept[:, None] <= (t - self.keep.recent)[..., None]).sum(-1)
        return (t + 1).clamp_max(self.keep.recent) + old - 1

    def _many(self, step: Step) -> Move:
        assert step.before is not None
        t, c = step.positions, step.length
        real = t != FAR
        written = self._written(step.before)
        kept_slot, kept_source = self._pin(step)
        rest = real & (kept_slot < 0)
        order = rest.long().cumsum(1) - 1 + written[:, None]
        total = written + rest.sum(1)
        if self.keep.recent is None:
            self.grow(int(total.max()))
        fits = rest & (order >= total[:, None] - self.ring)
        ring_source = torch.full((len(t), self.ring + 1), -1, dtype=torch.long, device=t.device)
        where = torch.where(fits, order % self.ring, self.ring)
        ring_source.scatter_(1, where, torch.arange(c, device=t.device).expand_as(where))
        ring_source = ring_source[:, : self.ring]
        before = self.pos[:, self.pinned :].clone()
        new = torch.where(kept_slot >= 0, FAR, t)
        self.pos[:, self.pinned :] = torch.where(
            ring_source >= 0, t.gather(1, ring_source.clamp_min(0)), self.pos[:, self.pinned :]
        )
        kept = self.pos[:, : self.pinned]
        q = t[..., None]
        see_kept, see_ring, see_new = kept[:, None] <= q, before[:, None] <= q, new[:, None] <= q
        see_slot = torch.zeros_like(see_kept)
        if self.keep.recent is not None:
            edge = q - self.keep.recent
            see_slot = see_kept & (kept[:, None] <= edge)
            see_kept = see_kept & (kept[:, None] > edge)
            see_ring = see_ring & (before[:, None] > edge)
            see_new = see_new & (new[:, None] > edge)
        position = self._cache_position(torch.where(real, t, 0), kept)
        return Move(
            kept_source=kept_source, ring_source=ring_source, see_kept=see_kept, see_slot=see_slot, see_ring=see_ring,
            see_new=see_new, cache_position=position, kept=kept, rank=_rank(kept),
        )  # fmt: skip

    def _pin(self, step: Step) -> tuple[Tensor, Tensor]:
        """The kept slot of each new token (−1: none) and the new token of each kept slot; moves their positions."""
        t = step.positions
        slot = torch.full_like(t, -1)
        source = torch.full((len(t), self.pinned + 1), -1, dtype=torch.long, device=t.device)
        begin = 0
        for part in self.keep.pinned:
            region = self.pos[:, begin : begin + part.slots]
            if self.folded:
                break
            wants = part.pins(torch.where(t == FAR, -1, t), step.ids) & (t != FAR) & (slot < 0)
            held = (region != FAR).sum(1, keepdim=True)
            order = wants.long().cumsum(1) - 1 + held
            slot = torch.where(wants & (order < part.slots), begin + order, slot)
            begin += part.slots
        where = torch.where(slot >= 0, slot, self.pinned)
        source.scatter_(1, where, torch.arange(step.length, device=t.device).expand_as(where))
        source = source[:, : self.pinned]
        if self.pinned:
            self.pos[:, : self.pinned] = torch.where(
                source >= 0, t.gather(1, source.clamp_min(0)), self.pos[:, : self.pinned]
            )
        return slot, source

    def _written(self, before: list[int]) -> Int[Tensor, " b"]:
        """How many tokens went into the ring so far: all that were not pinned."""
        count = torch.tensor(before, device=self.pos.device)
        if self.folded:
            return count
        if self.simple:
            return (count - self.pinned).clamp_min(0)
        kept = self.pos[:, : self.pinned]
        return count - ((kept != FAR) & (kept < count[:, None])).sum(1)


def _rank(kept: Tensor | None) -> Tensor:
    assert kept is not None
    return (kept[:, None, :] < kept[:, :, None]).sum(-1)
