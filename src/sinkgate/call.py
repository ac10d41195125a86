"""One attention call before it is computed: what an intervention changes and a swap computes another way.

Where :class:`~sinkgate.site.Site` is what a probe reads of a layer that has run, a call is what a layer is about to
do. Every method returns another call, so that "the same queries without key 0" is written as it is said; nothing of
size T×T is made beyond a block of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkgate.errors import UnsupportedError
from sinkgate.masks import HIDDEN
from sinkgate.ops.attention import attention
from sinkgate.weighting import Weighting
from sinkgate.weighting.softmax import SinkSoftmax, Softmax

__all__ = ["EXTRA", "SOFTMAX", "Call", "Extra", "extra_logits", "with_sink"]

SOFTMAX = Softmax()
EXTRA = "sinkgate_extra"  # the keyword under which an outlet's key reaches a transformers attention function
ROWS = 512  # rows taken at once where a mask has to be combined with another


@dataclass(frozen=True, eq=False)
class Extra:
    """A key that belongs to no token, which every query sees: what an outlet adds to a layer.

    Args:
        logit: its score per query, not multiplied by ``scale`` and not capped.
        value: what it writes; None for nothing.
        key: scored like the other keys, instead of ``logit``.
    """

    logit: Float[Tensor, "#b h t"] | None = None
    value: Float[Tensor, "#b kv dv"] | None = None
    key: Float[Tensor, "#b kv d"] | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one attention layer.

    Args:
        layer: which layer, from 0.
        q: queries after rotation, ``[b, h, t, d]``.
        k: keys after rotation, ``[b, kv, s, d]``; kv divides h.
        v: values, ``[b, kv, s, dv]``.
        weighting: scores → weights.
        causal: query i, which stands at key ``start + i``, sees keys up to its own.
        mask: bool or additive ``[b or 1, h or 1, t, s]``, together with ``causal``.
        scale: multiplies q·k; default ``d ** -0.5``.
        softcap: of the scores.
        first: the first token of each row that is no padding; None: 0.
        gone: how many of the first tokens have no key any more (a cache that keeps a window).
        extra: a key of an outlet.
        start: where the first query stands among the keys; None: the last query stands at the last key.
        head: which query head of the model each of q's heads is; None: all, in order.
        kv: which key-value head of the model each of k's heads is; None: all, in order.
    """

    layer: int
    q: Float[Tensor, "b h t d"]
    k: Float[Tensor, "b kv s d"]
    v: Float[Tensor, "b kv s dv"]
    weighting: Weighting
    causal: bool = True
    mask: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    first: Int[Tensor, " b"] | None = None
    extra: Extra | None = None
    gone: int = 0
    start: int | None = None
    head: tuple[int, ...] | None = None
    kv: tuple[int, ...] | None = None

    @property
    def position(self) -> int:
        """Where the first query stands among the keys."""
        return self.k.shape[2] - self.q.shape[2] if self.start is None else self.start

    @property
    def query_heads(self) -> tuple[int, ...]:
        """Which query head of the model each of q's heads is."""
        return tuple(range(self.q.shape[1])) if self.head is None else self.head

    @property
    def key_heads(self) -> tuple[int, ...]:
        """Which key-value head of the model each of k's heads is."""
        return tuple(range(self.k.shape[1])) if self.kv is None else self.kv

    def having(self, **changes: object) -> Call:
        """The same call with some arguments replaced."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    def run(self) -> Float[Tensor, "b h t dv"]:
        """The head outputs."""
        extra = self.extra
        if extra is not None:
            one_each = extra.value is None and extra.logit is not None and extra.logit.numel() == self.q.shape[1]
            if one_each and type(self.weighting) is Softmax:  # a logit per head: softmax with a sink
                assert extra.logit is not None
                return self.having(weighting=SinkSoftmax(extra.logit.flatten()), extra=None).run()
            return self._with_extra().run()
        cap = self.softcap or None
        return attention(
            self.q, self.k, self.v, weighting=self.weighting, causal=self.causal, mask=self.mask, scale=self.scale,
            softcap=cap,
        )  # fmt: skip

    # ---- parts --------------------------------------------------------------------------------------------------

    def rows(self, i0: int, i1: int) -> Call:
        """The queries ``i0:i1`` and, where the call is causal, the keys up to the last of them."""
        n = self.position + i1 if self.causal else self.k.shape[2]
        mask = self.mask
        if mask is not None:
            mask = mask[:, :, i0:i1] if mask.shape[2] > 1 else mask
            mask = mask[..., :n]
        extra = self.extra
        if extra is not None and extra.logit is not None and extra.logit.shape[2] > 1:
            extra = dataclasses.replace(extra, logit=extra.logit[:, :, i0:i1])
        weighting = self.weighting.for_rows(i0, i1, self.q.shape[2])
        return self.having(
            q=self.q[:, :, i0:i1], k=self.k[:, :, :n], v=self.v[:, :, :n], mask=mask, extra=extra,
            start=self.position + i0, weighting=weighting,
        )  # fmt: skip

    def heads(self, chosen: Sequence[int]) -> Call:
        """Some of the query heads, each with its own copy of its keys and values."""
        index = torch.tensor(list(chosen), device=self.q.device)
        of = index // self.group  # their key heads
        mask = self.mask if self.mask is None or self.mask.shape[1] == 1 else self.mask[:, index]
        tensors = {name: x[index] if x.ndim == 1 else x for name, x in self.weighting.tensors().items()}
        extra = self.extra
        if extra is not None:
            extra = Extra(
                None if extra.logit is None else extra.logit[:, index],
                None if extra.value is None else extra.value[:, of],
                None if extra.key is None else extra.key[:, of],
            )
        return self.having(
            q=self.q[:, index], k=self.k[:, of], v=self.v[:, of], mask=mask, extra=extra,
            weighting=self.weighting.with_tensors(**tensors), head=tuple(self.query_heads[i] for i in chosen),
            kv=tuple(self.key_heads[i // self.group] for i in chosen),
        )  # fmt: skip

    def sample(self, b: int) -> Call:
        """One row of the batch."""

        def row(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.shape[0] == 1 else x[b : b + 1]

        extra = self.extra
        if extra is not None:
            extra = Extra(row(extra.logit), row(extra.value), row(extra.key))
        return self.having(
            q=row(self.q), k=row(self.k), v=row(self.v), mask=row(self.mask), first=row(self.first), extra=extra
        )

    # ---- keys ---------------------------------------------------------------------------------------------------

    def keys(self, positions: Sequence[int]) -> Int[Tensor, "b n"]:
        """Where the tokens at these positions stand among the keys; s, which is behind them, for one that is gone."""
        index = torch.tensor(list(positions), device=self.k.device).expand(self.k.shape[0], -1) - self.gone
        if self.first is not None:
            index = index + self.first.to(index.device)[:, None]
        return index.masked_fill(index < 0, self.k.shape[2])

    def only(self, seen: Tensor) -> Call:
        """Nothing but these keys, ``[b, s]`` True, is seen; an outlet's key neither."""
        return self.having(extra=None).without(~seen)

    def marked(self, keys: Int[Tensor, "b n"]) -> Tensor:
        """True at these keys, ``[b, s]``; a key behind the last one is nowhere."""
        s = self.k.shape[2]
        found = torch.zeros(self.k.shape[0], s + 1, dtype=torch.bool, device=self.k.device)
        return found.scatter(1, keys.clamp(max=s), True)[:, :s]

    def without(self, hidden: Tensor) -> Call:
        """These keys, ``[b, s]`` True, are seen by nobody."""
        seen = ~hidden[:, None, None]
        if self.mask is None:
            return self.having(mask=seen)
        if self.mask.dtype == torch.bool:
            return self.having(mask=self.mask & seen)
        return self.having(mask=self.mask.masked_fill(~seen, min(HIDDEN, torch.finfo(self.mask.dtype).min)))

    def in_blocks(self, i0: int, i1: int) -> Iterator[tuple[int, int]]:
        """``i0:i1`` whole, or in blocks where the call has a mask per query that others will be combined with."""
        step = max(i1 - i0, 1) if self.mask is None or self.mask.shape[2] == 1 else ROWS
        for j in range(i0, i1, step):
            yield j, min(j + step, i1)

    # ---- private ------------------------------------------------------------------------------------------------

    def _with_extra(self) -> Call:
        """The extra key as an ordinary one in front, its score carried by one more dimension of the queries."""
        extra = self.extra
        assert extra is not None
        b, kv, _, d = self.k.shape
        h, t = self.q.shape[1:3]
        q, k, scale = self.q, self.k, d**-0.5 if self.scale is None else self.scale
        if extra.key is not None:
            first = extra.key.to(k.dtype).expand(b, -1, -1)[:, :, None]
        else:
            if self.softcap:
                raise UnsupportedError(
                    "an outlet with a logit per query cannot be scored beside capped scores (softcap); a sink_logit or a "
                    "gate can be added to this model"
                )
            assert extra.logit is not None
            wanted = (extra.logit.float() if k.dtype != torch.float64 else extra.logit) / scale
            parts, rest = [], wanted.expand(b, h, t)
            for _ in range(
                2 if k.dtype in (torch.bfloat16, torch.float16) else 1
            ):  # a half-precision number, and what it left
                limit = torch.finfo(k.dtype).max
                parts.append(rest.clamp(-limit, limit).to(k.dtype))
                rest = rest - parts[-1].to(rest.dtype)
            q = torch.cat([q, torch.stack(parts, -1)], -1)
            k = torch.nn.functional.pad(k, (0, len(parts)))
            first = k.new_zeros(b, kv, 1, d + len(parts))
            first[..., d:] = 1.0
        value = self.v.new_zeros(b, kv, 1, self.v.shape[3])
        if extra.value is not None:
            value = extra.value.to(self.v.dtype).expand(b, -1, -1)[:, :, None]
        mask = self.mask
        if mask is not None:
            mask = torch.nn.functional.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
        return self.having(
            q=q, k=torch.cat([first, k], 2), v=torch.cat([value, self.v], 2), mask=mask, scale=scale, extra=None,
            start=self.position + 1, gone=self.gone - 1,
        )  # fmt: skip


def with_sink(weighting: Weighting, z: Tensor | None, what: str) -> Weighting:
    """Softmax with a learned logit per head, for a layer that is given one.

    Raises:
        UnsupportedError: another weighting, whose denominator knows no such logit.
    """
    if z is None:
        return weighting
    if type(weighting) is not Softmax:
        raise UnsupportedError(
            f"{what} has a learned sink logit per head, which {weighting.name} has no place for; keep softmax, or say "
            "learned_sinks='drop' to leave it out"
        )
    return SinkSoftmax(z)


def extra_logits(extra: Extra, q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """The scores of an outlet's key: ``[h]`` where they are the same for every query, else ``[b, h, t]``."""
    if extra.key is not None:
        key = extra.key.repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(q.dtype)
        return (q @ key.unsqueeze(-1)).squeeze(-1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    assert extra.logit is not None
    if extra.logit.shape[0] == 1 and extra.logit.shape[2] == 1:
        return extra.logit.flatten()
    return extra.logit.expand(q.shape[:3])
