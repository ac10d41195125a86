"""Aids to training that the field names, as pieces for a task: entropy of attention, rates per head, growing context."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sinkgate.errors import ArgumentError
from sinkgate.masks import Span, Visibility
from sinkgate.ops.blocked import accumulate, grouped

__all__ = ["EntropyRegulariser", "attention_entropy", "context_length", "head_multipliers"]

# Stands for −inf where 0·−inf would be NaN: exp of it is exactly 0.
NEVER = -1e30


def attention_entropy(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b kv s d"],
    *,
    scale: float,
    softcap: float | None = None,
    causal: bool = True,
    window: int | None = None,
    mask: Tensor | None = None,
    sink_logit: Float[Tensor, " h"] | None = None,
    rows: int = 256,
) -> Float[Tensor, "b h"]:
    """Mean entropy ``−Σ a ln a`` of the softmax weights in nats, over the queries that have a choice.

    A learned sink logit counts as one more key, as in a record: its share is a weight like that of a sink *token*, so
    models with either compare, and z gets its gradient. (Over the other keys alone, renormalised, z would drop out.)
    A query has a choice if it sees two keys, the sink counted; a head without such queries has entropy 0.

    Differentiable in q, k, sink_logit and an additive mask. The backward pass computes a block's weights again: the
    peak is a few times ``b·h·rows·s`` numbers, never T×T.

    Args:
        q: queries after rotation; half precision is computed in float32.
        k: keys after rotation; kv divides h.
        scale: multiplies q·k.
        softcap: scores become ``softcap·tanh(score / softcap)``.
        causal: query i sees keys up to its own position; with t < s the last query stands at the last key.
        window: only the last ``window`` keys, the query's own included.
        mask: bool (True = visible) or additive float, ``[b or 1, h or 1, t or 1, s]``.
        sink_logit: one per head, not scaled.
        rows: queries in a block.

    Returns:
        ``[b, h]``, float32 (float64 for float64 inputs).

    Raises:
        ArgumentError: an argument has the wrong shape or value.
    """
    if q.ndim != 4 or k.ndim != 4 or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise ArgumentError(
            f"q must be [b, h, t, d] and k [b, kv, s, d] with kv dividing h; got {list(q.shape)} and {list(k.shape)}"
        )
    (b, h, t, _), s = q.shape, k.shape[2]
    if softcap is not None and not 0 < softcap < math.inf:
        raise ArgumentError(f"softcap must be a positive number or None, got {softcap}")
    if rows < 1:
        raise ArgumentError(f"rows must be at least 1, got {rows}")
    if sink_logit is not None and sink_logit.shape != (h,):
        raise ArgumentError(f"sink_logit must be [{h}], one per head; got {list(sink_logit.shape)}")
    if mask is not None:
        if mask.ndim != 4 or any(n not in (1, m) for n, m in zip(mask.shape, (b, h, t, s), strict=True)):
            raise ArgumentError(f"mask must broadcast to [{b}, {h}, {t}, {s}], got {list(mask.shape)}")
        mask = mask.expand(-1, -1, t, s)
    seen = Visibility(t, s, causal=causal, window=window, mask=mask, device=q.device)
    wide = accumulate(q.dtype)

    def block(q: Tensor, k: Tensor, z: Tensor | None, span: Span) -> Tensor:
        """Σ over a block's queries of their entropies, ``[b, h]``."""
        with torch.autocast(q.device.type, enabled=False):  # else it would round the scores to half precision
            scores = grouped(q.to(wide) * scale, k.to(wide).transpose(-1, -2), h // k.shape[1])
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        bias = seen.bias(span)
        if bias is not None:
            scores = scores + bias.to(wide).clamp_min(NEVER)
        visible = seen.visible(span.i0, span.i1, span.k0, span.k1)
        if z is not None:
            scores = torch.cat([scores, z.to(wide)[None, :, None, None].expand(b, -1, scores.shape[2], 1)], dim=-1)
            visible = torch.nn.functional.pad(visible, (0, 1), value=True)
        logs = torch.log_softmax(scores.masked_fill(~visible, NEVER), dim=-1)
        # a query that sees nothing is uniform over what is hidden here: what is hidden counts for nothing
        return -(logs.exp() * logs).masked_fill(~visible, 0.0).sum((-1, -2))

    total = torch.zeros(b, h, dtype=wide, device=q.device)
    for span in seen.spans(rows):
        part = (q[:, :, span.i0 : span.i1], k[:, :, span.k0 : span.k1], sink_logit, span)
        total = total + checkpoint(block, *part, use_reentrant=False, preserve_rng_state=False)
    choices = seen.counts + (sink_logit is not None)
    return total / (choices > 1).sum(-1).clamp_min(1)


@dataclass(frozen=True)
class EntropyRegulariser:
    """Adds ``sign·strength·H`` to a loss, H the mean entropy of attention.

    *Minimising* ``loss + λH`` makes H small: it **sharpens** attention. Minimising ``loss − λH`` makes H large: it
    **spreads** attention. A claim in circulation has it backwards, so the sign has no default.

    Args:
        strength: λ, 0 or more.
        sign: ``"+"`` to sharpen, ``"-"`` to spread.

    Raises:
        ArgumentError: one of them is neither.
    """

    strength: float
    sign: str

    def __post_init__(self) -> None:
        number = isinstance(self.strength, int | float) and not isinstance(self.strength, bool)
        if not number or not 0 <= self.strength < math.inf:
            raise ArgumentError(f"strength must be a number of 0 or more (sign says which way), got {self.strength!r}")
        if self.sign not in ("+", "-"):
            raise ArgumentError(f"sign must be '+' (sharpens attention) or '-' (spreads it), got {self.sign!r}")

    def __call__(self, loss: Tensor, *entropies: Float[Tensor, "b h"]) -> Tensor:
        """The loss with the penalty; the entropies are of :func:`attention_entropy`, one per layer, weighed alike."""
        if not entropies:
            raise ArgumentError("the regulariser needs the entropy of at least one layer")
        mean = torch.stack([x.mean() for x in entropies]).mean()
        return loss + (self.strength if self.sign == "+" else -self.strength) * mean

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; ``EntropyRegulariser(**json)`` is the inverse."""
        return dataclasses.asdict(self)


def head_multipliers(shape: Sequence[int], *, axis: int, heads: int, chosen: Sequence[int], m: float) -> Tensor:
    """Learning-rate multipliers for what belongs to some heads of a projection, for ``train(multipliers=…)``.

    Args:
        shape: of the weight (or the bias: one dimension).
        axis: where the heads lie in it: 0 where rows are head outputs (q_proj, a bias), 1 where columns are head
            inputs (o_proj).
        heads: heads along that axis; for k_proj and v_proj the key-value heads.
        chosen: which heads, from 0.
        m: their multiplier; everybody else's is 1.

    Returns:
        float32; 1 along the other dimensions: it broadcasts to ``shape``.

    Raises:
        ArgumentError: an argument does not go with the shape.
    """
    shape = tuple(shape)
    if axis not in range(len(shape)):
        raise ArgumentError(f"axis must be a dimension of the weight {list(shape)}, got {axis}")
    if heads < 1 or shape[axis] % heads:
        raise ArgumentError(f"heads={heads} must divide dimension {axis} of the weight {list(shape)}")
    if wrong := [i for i in chosen if i not in range(heads)]:
        raise ArgumentError(f"there are heads 0 to {heads - 1}, got {wrong[0]}")
    if not 0 <= m < math.inf:
        raise ArgumentError(f"m must be a finite number of 0 or more, got {m}")
    per_head = torch.ones(heads)
    per_head[list(chosen)] = m
    return per_head.repeat_interleave(shape[axis] // heads).view([n if i == axis else 1 for i, n in enumerate(shape)])


def context_length(step: int, *, start: int, end: int, steps: int, warm: float) -> int:
    """The length of context to train a step with: a staircase that doubles from ``start`` and arrives at ``end``.

    The first ``warm·steps`` steps are shared alike by the lengths start, 2·start, 4·start, … below ``end``; from then on
    it is ``end``, power of two or not.

    Args:
        step: from 0.
        start: the first length.
        end: the last.
        steps: of the run.
        warm: fraction of the steps before ``end``; 0: ``end`` at once.

    Raises:
        ArgumentError: an argument is out of range.

    >>> [context_length(i, start=64, end=400, steps=12, warm=0.5) for i in range(8)]
    [64, 64, 128, 128, 256, 256, 400, 400]
    """
    if not 1 <= start <= end:
        raise ArgumentError(f"start must be from 1 to end={end}, got {start}")
    if step < 0 or steps < 1 or not 0 <= warm <= 1:
        raise ArgumentError(f"step must be at least 0, steps at least 1, warm from 0 to 1; got {step}, {steps}, {warm}")
    if step >= warm * steps:
        return end
    stairs = ((end - 1) // start).bit_length()  # lengths start·2^i below end
    return min(end, start << int(step * stairs / (warm * steps)))
