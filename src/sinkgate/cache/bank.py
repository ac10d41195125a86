"""The key-value heads of one layer that keep the same tokens: their slots, and attention over them.

A bank is asked with the new queries, keys and values of a pass and answers with the head outputs; afterwards it holds what
its policy keeps. Where positions are those of the text, keys stay as the model rotated them. Where they are counted inside
the cache, recent keys stay too (distances among them are the same either way); only the kept ones are turned afresh, from raw
keys, to where they stand for the query: O(kept + new) a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.cache.base import Keep
from sinkgate.cache.track import Move, Step, Track
from sinkgate.call import SOFTMAX, Call, Extra, extra_logits, with_sink
from sinkgate.rope import Rotation

__all__ = ["Ask", "Bank", "attend", "turned"]


@dataclass(frozen=True, eq=False)
class Ask:
    """The new tokens of one layer.

    Args:
        q: ``[b, h, c, d]``, rotated as the model does.
        k: ``[b, kv, c, d]``, likewise.
        v: ``[b, kv, c, dv]``.
        scale: multiplies q·k.
        softcap: of the scores.
        sinks: a learned logit per query head.
        extra: a key of an outlet.
    """

    q: Float[Tensor, "b h c d"]
    k: Float[Tensor, "b kv c d"]
    v: Float[Tensor, "b kv c dv"]
    scale: float
    softcap: float | None = None
    sinks: Float[Tensor, " h"] | None = None
    extra: Extra | None = None

    @property
    def plain(self) -> bool:
        """Nothing but softmax of scaled products."""
        return self.sinks is None and self.extra is None and not self.softcap

    def of(self, kv: tuple[int, ...]) -> Ask:
        """The part of these key-value heads."""
        if len(kv) == self.k.shape[1]:
            return self
        group = self.q.shape[1] // self.k.shape[1]
        heads = torch.tensor([j * group + i for j in kv for i in range(group)], device=self.q.device)
        some = torch.tensor(kv, device=self.q.device)
        extra = self.extra
        if extra is not None:
            extra = Extra(
                None if extra.logit is None else extra.logit[:, heads],
                None if extra.value is None else extra.value[:, some],
                None if extra.key is None else extra.key[:, some],
            )
        return Ask(
            self.q[:, heads], self.k[:, some], self.v[:, some], self.scale, self.softcap,
            None if self.sinks is None else self.sinks[heads], extra,
        )  # fmt: skip


def attend(ask: Ask, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """Softmax attention over chosen keys; ``seen`` ``[b, c, n]`` or ``[b, kv, c, n]``, None: all of them."""
    mask = seen if seen is None or seen.ndim == 4 else seen[:, None]
    if mask is not None and mask.shape[1] > 1:
        mask = mask.repeat_interleave(q.shape[1] // k.shape[1], 1)
    if ask.plain and q.shape[2] == 1:
        grouped = q.shape[1] != k.shape[1]
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=ask.scale, enable_gqa=grouped
        )
    extra = ask.extra
    if extra is not None and extra.key is not None:  # scored with the queries as the model made them
        logit = extra_logits(extra, ask.q, ask.k, ask.scale)
        extra = Extra(logit=logit if logit.ndim == 3 else logit[None, :, None], value=extra.value)
    call = Call(
        0, q, k, v, SOFTMAX, causal=False, mask=mask, scale=ask.scale, softcap=ask.softcap, extra=extra
    )  # fmt: skip
    return call.having(weighting=with_sink(SOFTMAX, ask.sinks, "the layer")).run()


def turned(rotation: Rotation, x: Tensor, by: Tensor, like: Tensor) -> Tensor:
    """Keys or queries ``[b, h, n, d]`` turned by ``[b, n]`` (or ``[b, h, n]``) positions, in another's dtype."""
    return rotation.turn(x, by if by.ndim == 3 else by[:, None]).to(like.dtype)


class Bank:
    """Recent and pinned tokens.

    Args:
        keep: what is kept.
        track: where, shared by all layers with the same policy.
        rotation: the layer's, if positions are counted inside the cache.
    """

    tensors: tuple[str, ...] = ("k", "v", "raw")

    def __init__(self, keep: Keep, track: Track, rotation: Rotation | None = None) -> None:
        self.keep, self.track, self.rotation = keep, track, rotation
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.raw: Tensor | None = None  # kept keys before rotation, where they are turned afresh
        self.folded: tuple[Tensor, Tensor] | None = None  # constants of the model for the kept slots: raw key, value
        self._turned: tuple[Move, Tensor, Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(x.untyped_storage().nbytes() for x in self.state().values())

    @property
    def held(self) -> int:
        """The most tokens that any row holds now (a slack for cropping not counted as held, but as bytes)."""
        return int(_held(self.track).max())

    def state(self) -> dict[str, Tensor]:
        """Every tensor, by name."""
        return {n: x for n in self.tensors if (x := getattr(self, n)) is not None}

    def meta(self) -> dict[str, Any]:
        """What else there is to remember, plain JSON."""
        return {}

    def load(self, state: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Take the tensors (and the rest) of another bank of the same policy."""
        for name in self.tensors:
            setattr(self, name, state.get(name))

    def select(self, rows: Tensor) -> None:
        """These rows of the batch."""
        for name, x in self.state().items():
            setattr(self, name, x[rows.to(x.device)])

    def crop(self, left: list[int]) -> None:
        """Nothing to do: positions say what is still there."""

    def attend(self, ask: Ask, step: Step, move: Move | None = None) -> Float[Tensor, "b h c dv"]:
        """Head outputs of the new tokens; the bank holds them afterwards."""
        move = self.track.move(step)
        if self.k is None:
            self._allocate(ask)
        if move.index is not None:
            return self._one(ask, step, move)
        out = self._many(ask, step, move)
        self._store(ask, move)
        return out

    # ---- private ------------------------------------------------------------------------------------------------------

    def _allocate(self, ask: Ask) -> None:
        b, kv, _, d = ask.k.shape
        slots, kept = self.track.pos.shape[1], self.track.pinned
        self.k, self.v = ask.k.new_zeros(b, kv, slots, d), ask.v.new_zeros(b, kv, slots, ask.v.shape[3])
        if self.rotation is not None and kept:
            wide = torch.promote_types(ask.k.dtype, torch.float32)
            self.raw = torch.zeros(b, kv, kept, d, dtype=wide, device=ask.k.device)
        if self.folded is not None:
            key, value = (x.to(ask.k.device) for x in self.folded)  # [kv, d], raw
            self.v[:, :, :kept] = value[None, :, None].to(self.v.dtype)
            if self.raw is not None:
                self.raw[:, :, :kept] = key[None, :, None].to(self.raw.dtype)
            else:
                self.k[:, :, :kept] = key[None, :, None].to(self.k.dtype)  # as rotated in front of the text

    def _grown(self) -> None:
        """As many slots as the track has by now."""
        assert self.k is not None and self.v is not None
        more = self.track.pos.shape[1] - self.k.shape[2]
        if more > 0:
            self.k = torch.nn.functional.pad(self.k, (0, 0, 0, more))
            self.v = torch.nn.functional.pad(self.v, (0, 0, 0, more))

    def _one(self, ask: Ask, step: Step, move: Move) -> Tensor:
        """One new token per row."""
        self._grown()
        k, v, kept, index = self.k, self.v, self.track.pinned, move.index
        assert k is not None and v is not None and index is not None
        if isinstance(index, int):
            k[:, :, index] = ask.k[:, :, 0]
            v[:, :, index] = ask.v[:, :, 0]
        else:
            rows = torch.arange(len(index), device=index.device)
            k[rows, :, index] = ask.k[:, :, 0]
            v[rows, :, index] = ask.v[:, :, 0]
        if self.raw is not None and self.rotation is not None:
            self._pin_one(ask, step, index)
            cos, sin = self._angles(move)
            k[:, :, :kept] = self.rotation.apply(self.raw, cos, sin).to(k.dtype)
        if move.prefix is not None:
            return attend(ask, ask.q, k[:, :, : move.prefix], v[:, :, : move.prefix], None)
        return attend(ask, ask.q, k, v, move.seen)

    def _pin_one(self, ask: Ask, step: Step, index: int | Tensor) -> None:
        """Remember the raw key of a token that took a kept slot."""
        raw, kept = self.raw, self.track.pinned
        assert raw is not None and self.rotation is not None
        if isinstance(index, int):
            if index < kept:
                raw[:, :, index : index + 1] = turned(self.rotation, ask.k, -step.positions, raw)
        elif step.before is None or bool((index < kept).any()):
            slots = torch.arange(kept, device=index.device)
            here = (slots == index[:, None])[:, None, :, None]
            raw.copy_(torch.where(here, turned(self.rotation, ask.k, -step.positions, raw), raw))

    def _angles(self, move: Move) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the kept keys; the same for every layer with this track and rotation."""
        assert self.rotation is not None and self.raw is not None and move.target is not None
        known: dict[int, Any] = move.__dict__.setdefault("angles", {})
        if id(self.rotation) not in known:
            known[id(self.rotation)] = self.rotation.angles(move.target[:, None], self.raw.dtype)
        return known[id(self.rotation)]

    def _many(self, ask: Ask, step: Step, move: Move) -> Tensor:
        """A chunk: what is held and the new tokens, each query with what it sees."""
        k, v, kept = self._before(ask), self.v, self.track.pinned
        assert v is not None and move.see_ring is not None and move.see_new is not None
        see_kept, see_slot = move.see_kept, move.see_slot
        assert see_kept is not None and see_slot is not None
        values = [v[:, :, :0], v[:, :, kept:], ask.v]
        keys, seen, q = [k[:, :, :0], k[:, :, kept:], ask.k], [see_kept[..., :0], move.see_ring, move.see_new], ask.q
        kept_k, kept_v = self._kept(ask, step, move)
        if self.raw is None or self.rotation is None:
            keys[0], values[0], seen[0] = kept_k, kept_v, see_kept | see_slot
            out = attend(ask, q, torch.cat(keys, 2), torch.cat(values, 2), torch.cat(seen, 2))
        else:
            # Each query stands twice: at its place in the text for recent keys, at its place in the cache for the others;
            # zeros keep the two apart.
            assert move.cache_position is not None and move.rank is not None and move.kept is not None
            positions = torch.where(step.positions < (1 << 59), step.positions, 0)
            second = turned(self.rotation, q, move.cache_position - positions, q)
            at_slot = turned(self.rotation, self.raw, move.rank, k)
            at_text = turned(self.rotation, self.raw, torch.where(move.kept < (1 << 59), move.kept, 0), k)
            keys[0], values[0], seen[0] = at_text, kept_v, see_kept
            near = torch.cat(keys, 2)
            width = near.shape[3]
            both = torch.cat(
                [
                    torch.nn.functional.pad(near, (0, width)),
                    torch.nn.functional.pad(at_slot, (width, 0)),
                ],
                2,
            )
            out = attend(
                ask, torch.cat([q, second], 3), both, torch.cat([*values, kept_v], 2), torch.cat([*seen, see_slot], 2)
            )
        return out

    def _before(self, ask: Ask) -> Tensor:
        """The keys held before the pass, as many slots as ``see_ring`` speaks of."""
        self._grown()
        assert self.k is not None
        return self.k

    def _kept(self, ask: Ask, step: Step, move: Move) -> tuple[Tensor, Tensor]:
        """Pin the new tokens that are to be; the kept keys (as the model rotated them) and values."""
        k, v, kept = self.k, self.v, self.track.pinned
        assert k is not None and v is not None
        source = move.kept_source
        if not kept or source is None or not bool((source >= 0).any()):
            return k[:, :, :kept], v[:, :, :kept]
        here = (source >= 0)[:, None, :, None]
        k[:, :, :kept] = torch.where(here, _taken(ask.k, source), k[:, :, :kept])
        v[:, :, :kept] = torch.where(here, _taken(ask.v, source), v[:, :, :kept])
        if self.raw is not None and self.rotation is not None:
            positions = step.positions.gather(1, source.clamp_min(0))
            positions = torch.where(source >= 0, positions, 0)
            raw = turned(self.rotation, _taken(ask.k, source), -positions, self.raw)
            self.raw.copy_(torch.where(here, raw, self.raw))
        return k[:, :, :kept], v[:, :, :kept]

    def _store(self, ask: Ask, move: Move) -> None:
        """The new tokens into the ring."""
        k, v, kept = self.k, self.v, self.track.pinned
        assert k is not None and v is not None and move.ring_source is not None
        source = move.ring_source
        here = (source >= 0)[:, None, :, None]
        k[:, :, kept:] = torch.where(here, _taken(ask.k, source), k[:, :, kept:])
        v[:, :, kept:] = torch.where(here, _taken(ask.v, source), v[:, :, kept:])


def _taken(x: Tensor, source: Tensor) -> Tensor:
    """New tokens ``[b, kv, c, d]`` by slot ``[b, n]``; anything where the source is −1."""
    index = source.clamp_min(0)[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def _held(track: Track) -> Tensor:
    """Tokens per row that a query could still see."""
    there = track.pos < (1 << 59)
    if track.keep.recent is None:
        return there.sum(1)
    last = torch.where(there, track.pos, -1).amax(1, keepdim=True)
    near = track.pos > last - track.keep.recent
    near[:, : track.pinned] = True
    return (there & near).sum(1)
