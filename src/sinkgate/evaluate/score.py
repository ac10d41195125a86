"""Loss, divergence and agreement of one pass over one text, a block of positions at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkgate.errors import ArgumentError, NonFiniteError

__all__ = ["Score", "rows", "score"]

NUMBERS = 2**21  # logits at once: what stays near the processor between one operation and the next


def rows(vocabulary: int) -> int:
    """Positions at once, each with a vocabulary's worth of numbers."""
    return max(1, NUMBERS // vocabulary)


@dataclass(frozen=True)
class Score:
    """Means over the scored predictions of one sample.

    Args:
        loss: cross entropy of the next token, nats.
        kl: KL(untouched ‖ this), nats; 0 where there is nothing to compare with.
        agreement: share of positions where both put the same token first; 1 where there is nothing to compare with.
        tokens: how many predictions were scored.
    """

    loss: float
    kl: float
    agreement: float
    tokens: int


@torch.no_grad()
def score(
    logits: Float[Tensor, "t V"],
    ids: Int[Tensor, " t"],
    *,
    start: int = 0,
    untouched: Float[Tensor, "t V"] | None = None,
) -> Score:
    """Score the predictions made at positions ``start`` to t−2 (the last has no next token).

    Args:
        logits: what the model said after each token.
        ids: the tokens.
        start: the first position whose prediction counts.
        untouched: logits of the same text without the change.

    Raises:
        ArgumentError: nothing is left to score.
        NonFiniteError: NaN among the logits.

    >>> import torch
    >>> s = score(torch.zeros(4, 10), torch.tensor([1, 2, 3, 4]))       # knows nothing: ln 10
    >>> round(s.loss, 4), s.tokens
    (2.3026, 3)
    """
    last = ids.shape[0] - 1
    if start >= last:
        raise ArgumentError(f"a text of {last + 1} tokens has no predictions from position {start} on; use more tokens")
    loss = kl = agree = 0.0
    step = rows(logits.shape[-1])
    for i0 in range(start, last, step):
        i1 = min(i0 + step, last)
        here = logits[i0:i1].float().log_softmax(-1)
        loss -= float(here.gather(-1, ids[i0 + 1 : i1 + 1, None]).double().sum())
        if untouched is not None:
            there = untouched[i0:i1].float().log_softmax(-1)
            agree += int((here.argmax(-1) == there.argmax(-1)).sum())
            if bool(there[:, 0].isnan().any()):  # a NaN makes one of its whole row
                kl = torch.nan
            away = (there - here).mul_(there.exp_())
            away.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)  # 0 · ∞ is 0: an unused token
            kl += float(away.sum(-1).double().sum())
    n = last - start
    if loss != loss or kl != kl:
        raise NonFiniteError("the model's logits are NaN")
    if untouched is None:
        return Score(loss / n, 0.0, 1.0, n)
    return Score(loss / n, max(kl / n, 0.0), agree / n, n)
