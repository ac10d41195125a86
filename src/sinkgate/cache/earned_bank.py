"""Recent tokens, pinned ones, and those that earned their place by the attention they got.

Which token goes depends on the queries before, so a pass over many tokens goes through them one after the other: the same
numbers as step by step, without the rest of the model.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.cache.bank import Ask, Bank
from sinkgate.cache.base import Keep
from sinkgate.cache.track import FAR, Move, Step, Track
from sinkgate.call import extra_logits
from sinkgate.errors import UnsupportedError
from sinkgate.rope import Rotation

__all__ = ["EarnedBank", "weigh"]


class EarnedBank(Bank):
    """Slots ``[pinned | earned | ring]``, with positions and masses of their own per row and key-value head.

    A token's place in the ring is its position modulo ``recent``: the one that stood there is the one that leaves the recent
    tokens, whether the new one needs the place or is pinned.

    Args:
        keep: what is kept.
        tracks: of the stream; only its rows and device are used.
        rotation: the layer's, if positions are counted inside the cache.
    """

    tensors = ("k", "v", "raw", "pos", "mass")

    def __init__(self, keep: Keep, tracks: object, rotation: Rotation | None = None) -> None:
        rows, device = tracks.rows, tracks.device  # type: ignore[attr-defined]
        if tracks.slack:  # type: ignore[attr-defined]
            raise UnsupportedError(
                "a policy that drops tokens by the attention they got cannot take tokens back: use rollback=0"
            )
        super().__init__(keep, Track(keep, rows, 0, device), rotation)
        self.pinned = self.track.pinned
        self.kept = self.pinned + sum(p.slots for p in keep.earned)
        self.pos: Tensor | None = None
        self.mass: Tensor | None = None

    @property
    def held(self) -> int:
        """The most tokens that any head holds."""
        return 0 if self.pos is None else int((self.pos != FAR).sum(-1).max())

    def crop(self, left: list[int]) -> None:
        """What was dropped for the tokens to be cropped is gone.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "tokens cannot be taken back: what was dropped for them is gone; use recent(n) with sinks, or dense"
        )

    def attend(self, ask: Ask, step: Step, move: Move | None = None) -> Float[Tensor, "b h c dv"]:
        """Head outputs of the new tokens, one after the other."""
        if self.k is None:
            self._allocate(ask)
        if step.before is None:
            raise UnsupportedError("a policy that drops tokens by the attention they got cannot be compiled")
        assert self.pos is not None
        self.track.pos[:, : self.pinned] = self.pos[:, 0, : self.pinned]  # what the bank holds says what is pinned
        slots = _pins(self.track, step)
        out = [self._step(ask, step, i, slots[:, i]) for i in range(step.length)]
        return torch.cat(out, 2)

    def _allocate(self, ask: Ask) -> None:
        b, kv, _, d = ask.k.shape
        assert self.keep.recent is not None
        n = self.kept + self.keep.recent
        wide = torch.promote_types(ask.k.dtype, torch.float32)
        self.k, self.v = ask.k.new_zeros(b, kv, n, d), ask.v.new_zeros(b, kv, n, ask.v.shape[3])
        self.pos = torch.full((b, kv, n), FAR, dtype=torch.long, device=ask.k.device)
        self.mass = torch.zeros(b, kv, n, dtype=wide, device=ask.k.device)
        if self.rotation is not None:
            self.raw = torch.zeros(b, kv, self.kept, d, dtype=wide, device=ask.k.device)
        if self.folded is not None:
            key, value = (x.to(ask.k.device) for x in self.folded)
            self.v[:, :, : self.pinned] = value[None, :, None].to(self.v.dtype)
            target = self.k if self.raw is None else self.raw
            target[:, :, : self.pinned] = key[None, :, None].to(target.dtype)
            self.pos[:, :, : self.pinned] = -1

    def _step(self, ask: Ask, step: Step, i: int, pinned: Tensor) -> Tensor:
        k, v, pos, mass = self.k, self.v, self.pos, self.mass
        assert k is not None and v is not None and pos is not None and mass is not None
        assert self.keep.recent is not None
        t = step.positions[:, i]
        real = t != FAR
        rows = torch.arange(len(t), device=t.device)
        ring = self.kept + t % self.keep.recent
        self._leave(rows, ring, real)
        slot = torch.where(pinned >= 0, pinned, ring)[real]
        some = rows[real]
        k[some, :, slot], v[some, :, slot] = ask.k[real, :, i], ask.v[real, :, i]
        pos[some, :, slot] = t[real][:, None]
        mass[some, :, slot] = 0
        if self.raw is not None and self.rotation is not None and bool((pinned >= 0).any()):
            new = self.rotation.turn(ask.k[:, :, i : i + 1], -torch.where(real, t, 0)[:, None, None])
            pin = real & (pinned >= 0)
            self.raw[rows[pin], :, pinned[pin]] = new[pin, :, 0].to(self.raw.dtype)
        seen = pos <= t[:, None, None]
        if self.raw is not None and self.rotation is not None:
            k[:, :, : self.kept] = self.rotation.turn(self.raw, self._target(pos, seen, t)).to(k.dtype)
        out, weights = weigh(ask, i, k, v, seen)
        mass += weights * real[:, None, None]
        return out

    def _target(self, pos: Tensor, seen: Tensor, t: Tensor) -> Tensor:
        """Where the kept keys stand for a query at t, counted inside the cache."""
        assert self.keep.recent is not None
        kept = pos[..., : self.kept]
        rank = ((kept[..., None, :] < kept[..., :, None]) & seen[..., None, : self.kept]).sum(-1)
        last = seen.sum(-1, keepdim=True) - 1
        now = t[:, None, None]
        target = torch.where(kept > now - self.keep.recent, kept, now - (last - rank))
        return torch.where(kept == FAR, 0, target)

    def _leave(self, rows: Tensor, ring: Tensor, real: Tensor) -> None:
        """The token that leaves the recent ones goes to a slot that it earned, or goes."""
        k, v, pos, mass = self.k, self.v, self.pos, self.mass
        assert k is not None and v is not None and pos is not None and mass is not None
        going, begin = pos[rows, :, ring], self.pinned  # [b, kv]
        for part in self.keep.earned:
            region = slice(begin, begin + part.slots)
            weight = mass[rows, :, ring]
            there = pos[..., region]
            slot = part.replaces(weight, mass[..., region], torch.where(there == FAR, -1, there))
            takes = (slot >= 0) & (going != FAR) & real[:, None]
            b, h = takes.nonzero(as_tuple=True)
            if len(b):
                to, source = begin + slot[b, h], ring[b]
                if self.raw is not None and self.rotation is not None:
                    raw = self.rotation.turn(k[b, h, source][:, None], -pos[b, h, source][:, None])
                    self.raw[b, h, to] = raw[:, 0].to(self.raw.dtype)
                k[b, h, to], v[b, h, to] = k[b, h, source], v[b, h, source]
                pos[b, h, to], mass[b, h, to] = pos[b, h, source], mass[b, h, source]
                pos[b, h, source] = FAR
                going = pos[rows, :, ring]
            begin += part.slots
        pos[rows[real], :, ring[real]] = FAR


def weigh(ask: Ask, i: int, k: Tensor, v: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """One query per row: outputs ``[b, h, 1, dv]``, and each key's weight summed over the query heads that share it."""
    b, h, _, d = ask.q.shape
    kv = k.shape[1]
    wide = torch.promote_types(k.dtype, torch.float32)
    q = ask.q[:, :, i].to(wide).view(b, kv, h // kv, d)
    scores = torch.einsum("bkgd,bknd->bkgn", q, k.to(wide)) * ask.scale
    if ask.softcap:
        scores = ask.softcap * torch.tanh(scores / ask.softcap)
    scores = scores.masked_fill(~seen[:, :, None], float("-inf"))
    more = []
    if ask.sinks is not None:
        more.append(ask.sinks.to(wide).view(1, kv, -1, 1).expand(b, -1, -1, -1))
    if ask.extra is not None:
        logit = extra_logits(ask.extra, ask.q, ask.k, ask.scale).to(wide)
        logit = logit[None, :, None].expand(b, h, ask.q.shape[2]) if logit.ndim == 1 else logit.expand(b, -1, -1)
        more.append(logit[:, :, i].reshape(b, kv, -1, 1))
    weights = torch.softmax(torch.cat([scores, *more], -1), -1)
    held = weights[..., : k.shape[2]]
    out = torch.einsum("bkgn,bknv->bkgv", held, v.to(wide))
    if ask.extra is not None and ask.extra.value is not None:
        out = out + weights[..., -1:] * ask.extra.value.to(wide)[:, :, None]
    return out.reshape(b, h, 1, -1).to(ask.v.dtype), held.sum(2)


def _pins(track: Track, step: Step) -> Tensor:
    """The pinned slot of each new token, −1 for the others; remembers which pinned slots are taken."""
    if not track.pinned:
        return torch.full_like(step.positions, -1)
    return track._pin(step)[0]
