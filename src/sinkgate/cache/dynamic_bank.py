"""Banks that look at the attention: heads that go over to less, queries that read less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.cache.bank import Ask, Bank, attend
from sinkgate.cache.base import Keep
from sinkgate.cache.track import FAR, Move, Step, Track
from sinkgate.errors import UnsupportedError
from sinkgate.rope import Rotation

__all__ = ["ByHead", "ByQuery"]

ROWS = 64  # queries whose scores are held at once


def _scores(ask: Ask, k: Tensor, seen: Tensor, rows: slice) -> Float[Tensor, "b kv g r n"]:
    """Masked scores of some queries."""
    b, h, _, d = ask.q.shape
    wide = torch.promote_types(k.dtype, torch.float32)
    q = ask.q[:, :, rows].to(wide).reshape(b, k.shape[1], h // k.shape[1], -1, d)
    scores = torch.einsum("bkgrd,bknd->bkgrn", q, k.to(wide)) * ask.scale
    if ask.softcap:
        scores = ask.softcap * torch.tanh(scores / ask.softcap)
    return scores.masked_fill(~seen[:, None, None, rows], float("-inf"))


def _no_more_than_softmax(ask: Ask) -> None:
    if ask.sinks is not None or ask.extra is not None:
        raise UnsupportedError(
            "a dynamic policy judges plain softmax; a model with learned sink logits or an outlet keeps a fixed policy"
        )


class _Everything(Bank):
    """A bank that keeps all tokens and knows which of them its base would."""

    def __init__(self, keep: Keep, tracks: Any, rotation: Rotation | None = None) -> None:
        if rotation is not None:
            raise UnsupportedError(
                "a dynamic policy reads tokens at any distance, so positions are those of the text: positions='original'"
            )
        super().__init__(keep, tracks.of(Keep(keep.kv, None)), None)
        self.tracks = tracks

    def _pinned(self, pos: Tensor) -> Tensor:
        """True at tokens that the base pins."""
        found = torch.zeros_like(pos, dtype=torch.bool)
        for part in self.keep.pinned:
            found |= part.pins(torch.where(pos == FAR, -1, pos), None)
        return found

    def _pass(self, ask: Ask, step: Step) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, values, positions ``[b, n]`` and what each query sees ``[b, c, n]``, the new tokens among them."""
        if step.before is None:
            raise UnsupportedError("a dynamic policy looks at the attention and decides, which cannot be compiled")
        move = self.track.move(step)
        if self.k is None:
            self._allocate(ask)
        self._grown()
        k, v = self.k, self.v
        assert k is not None and v is not None
        if move.index is None:
            self._store(ask, move)
        elif isinstance(move.index, int):
            k[:, :, move.index], v[:, :, move.index] = ask.k[:, :, 0], ask.v[:, :, 0]
        else:
            rows = torch.arange(len(move.index), device=k.device)
            k[rows, :, move.index], v[rows, :, move.index] = ask.k[:, :, 0], ask.v[:, :, 0]
        pos = self.track.pos
        return k, v, pos, pos[:, None] <= step.positions[..., None]


class ByQuery(_Everything):
    """Everything is kept; a query whose sinks take nearly all of the base's mass reads no more than the base.

    Nothing is saved but reads: ``reads`` over ``offered`` is the share of keys that queries looked at.
    """

    reads = 0
    offered = 0

    def meta(self) -> dict[str, Any]:
        """What was counted."""
        return {"reads": self.reads, "offered": self.offered}

    def load(self, state: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Go on from there."""
        super().load(state, meta)
        self.reads, self.offered = meta["reads"], meta["offered"]

    def attend(self, ask: Ask, step: Step, move: Move | None = None) -> Float[Tensor, "b h c dv"]:
        """Head outputs of the new tokens."""
        _no_more_than_softmax(ask)
        k, v, pos, seen = self._pass(ask, step)
        keep, out = self.keep, []
        assert keep.recent is not None
        near = pos[:, None] > step.positions[..., None] - keep.recent
        pinned = self._pinned(pos)
        base = seen & (near | pinned[:, None] | (step.positions == FAR)[..., None])
        for i0 in range(0, step.length, ROWS):
            rows = slice(i0, min(i0 + ROWS, step.length))
            scores = _scores(ask, k, seen, rows)
            some = scores.masked_fill(~base[:, None, None, rows], float("-inf"))
            weights = torch.softmax(some, -1)
            rests = (weights * pinned[:, None, None, None]).sum(-1) > 1 - keep.rule.share  # [b, kv, g, r]
            weights = torch.where(rests[..., None], weights, torch.softmax(scores, -1))
            out.append(torch.einsum("bkgrn,bknv->bkgrv", weights, v.to(weights.dtype)).flatten(1, 2))
            real = (step.positions[:, rows] != FAR)[:, None, None]
            most, least = (x[:, None, None, rows].sum(-1) for x in (seen, base))
            self.offered += int((most * real).expand(rests.shape).sum())
            self.reads += int((torch.where(rests, least, most) * real).sum())
        return torch.cat(out, 2).to(ask.v.dtype)


class ByHead(_Everything):
    """Everything is kept until the heads are told apart; then each goes over to the base or stays.

    ``outside`` is the mean mass per key-value head that fell outside the base, ``streams`` the heads that went over.
    """

    def __init__(self, keep: Keep, tracks: Any, rotation: Rotation | None = None) -> None:
        super().__init__(keep, tracks, rotation)
        if tracks.slack:
            raise UnsupportedError(
                "dynamic(rule='head') has looked at the tokens that it would take back: use rollback=0, or a fixed policy"
            )
        self.outside: Tensor | None = None  # [kv] sums
        self.queries = 0
        self.streams: tuple[int, ...] | None = None
        self.parts: list[Bank] = []

    def attend(self, ask: Ask, step: Step, move: Move | None = None) -> Float[Tensor, "b h c dv"]:
        """Head outputs of the new tokens."""
        if self.streams is not None:
            return self._parted(ask, step)
        _no_more_than_softmax(ask)
        k, v, pos, seen = self._pass(ask, step)
        out = attend(ask, ask.q, k, v, seen)
        self._look(ask, step, k, pos, seen)
        assert step.before is not None
        new = (step.positions != FAR).sum(1).tolist()
        counts = [a + b for a, b in zip(step.before, new, strict=True)]
        if min(counts) >= self.keep.rule.after:
            self._part(counts)
        return out

    def _look(self, ask: Ask, step: Step, k: Tensor, pos: Tensor, seen: Tensor) -> None:
        """Add up the mass outside the base, of queries for which there is an outside."""
        keep = self.keep
        assert keep.recent is not None
        near = (pos[:, None] > step.positions[..., None] - keep.recent) | self._pinned(pos)[:, None]
        counts = (seen & ~near).any(-1) & (step.positions != FAR)
        for i0 in range(0, step.length, ROWS):
            rows = slice(i0, min(i0 + ROWS, step.length))
            if not bool(counts[:, rows].any()):
                continue
            weights = torch.softmax(_scores(ask, k, seen, rows), -1)
            far = (weights * ~near[:, None, None, rows]).sum(-1).mean(2)  # [b, kv, r]
            far = (far * counts[:, None, rows]).sum((0, 2))
            self.outside = far if self.outside is None else self.outside + far
            self.queries += int(counts[:, rows].sum())

    def _part(self, counts: list[int]) -> None:
        """Heads with little outside go over to the base; the others keep everything in tensors of their own."""
        k, v, count = self.k, self.v, len(self.keep.kv)
        assert k is not None and v is not None
        share = [1.0] * count if self.outside is None else (self.outside / max(self.queries, 1)).tolist()
        self._split([i for i in range(count) if share[i] <= self.keep.rule.share])
        for bank in self.parts:
            some = list(bank.keep.kv)
            bank.k, bank.v = k[:, some], v[:, some]
            if bank.track is not self.track:
                _fill(bank.track, counts)
                source = _sources(bank.track, self.track)[:, None, :, None].expand(-1, len(some), -1, -1)
                bank.k = bank.k.gather(2, source.expand(-1, -1, -1, k.shape[3]))
                bank.v = bank.v.gather(2, source.expand(-1, -1, -1, v.shape[3]))
        self.k = self.v = None

    def _split(self, goes: list[int]) -> None:
        """Two banks without tensors; their heads are counted within this one."""
        stays = [i for i in range(len(self.keep.kv)) if i not in goes]
        self.streams = tuple(self.keep.kv[i] for i in goes)
        base = replace(self.keep, kv=tuple(goes))  # with its rule: its track is that of layers that part at once
        self.parts = [Bank(base, self.tracks.of(base))] if goes else []
        self.parts += [Bank(Keep(tuple(stays), None), self.track)] if stays else []

    def _parted(self, ask: Ask, step: Step) -> Tensor:
        group = ask.q.shape[1] // ask.k.shape[1]
        out = ask.v.new_empty(ask.q.shape[0], ask.q.shape[1], ask.q.shape[2], ask.v.shape[3])
        for bank in self.parts:
            heads = [j * group + i for j in bank.keep.kv for i in range(group)]
            out[:, heads] = bank.attend(ask.of(bank.keep.kv), step)
        return out

    def state(self) -> dict[str, Tensor]:
        """Its own tensors, or those of its parts."""
        return super().state() | {
            f"{i}.{name}": x for i, bank in enumerate(self.parts) for name, x in bank.state().items()
        }

    def meta(self) -> dict[str, Any]:
        """What was measured and decided."""
        outside = None if self.outside is None else self.outside.tolist()
        goes = None if self.streams is None else [self.keep.kv.index(j) for j in self.streams]
        counts = (_last(self.parts[0].track) + 1).tolist() if self.parts else None
        return {"outside": outside, "queries": self.queries, "goes": goes, "counts": counts}

    def load(self, state: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Go on from there."""
        super().load(state, meta)
        self.queries = meta["queries"]
        if meta["outside"] is not None:
            some = next(iter(state.values()))
            wide = torch.promote_types(some.dtype, torch.float32)
            self.outside = torch.tensor(meta["outside"], dtype=wide, device=some.device)
        if meta["goes"] is not None:
            self._split(meta["goes"])
            for i, bank in enumerate(self.parts):
                bank.load({name.removeprefix(f"{i}."): x for name, x in state.items() if name.startswith(f"{i}.")}, {})
                if bank.track is not self.track:
                    _fill(bank.track, meta["counts"])

    @property
    def held(self) -> int:
        """The most tokens that any head holds."""
        return max([bank.held for bank in self.parts], default=0) if self.parts else super().held

    def select(self, rows: Tensor) -> None:
        """These rows of the batch."""
        if not self.parts:
            super().select(rows)
        for bank in self.parts:
            bank.select(rows)


def _last(track: Track) -> Tensor:
    """The position of each row's last token; −1 where there is none."""
    return torch.where(track.pos == FAR, -1, track.pos).amax(1)


def _fill(track: Track, counts: list[int]) -> None:
    """The positions that a bounded track has after so many tokens per row."""
    for row, count in enumerate(counts):
        first = min(track.pinned, count)
        track.pos[row, :first] = torch.arange(first)
        there = torch.arange(max(first, count - track.ring), count)
        track.pos[row, track.pinned + (there - track.pinned) % track.ring] = there.to(track.pos.device)


def _sources(track: Track, whole: Track) -> Tensor:
    """For each slot of a bounded track the slot of the unbounded one that holds its token (0 for an empty one)."""
    where = torch.zeros_like(track.pos)
    for row in range(len(where)):
        slots = {int(p): i for i, p in enumerate(whole.pos[row].tolist()) if p != FAR}
        where[row] = torch.tensor([slots.get(p, 0) for p in track.pos[row].tolist()])
    return where
