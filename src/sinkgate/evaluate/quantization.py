"""What fewer bits cost on a text: the loss before and after, and how far the predictions moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.evaluate.score import Score, score
from sinkgate.hf.layers import evaluating
from sinkgate.hf.quantized import QuantizedModel, quantized

__all__ = ["QuantizationCost", "quantization_cost"]


@dataclass(frozen=True)
class QuantizationCost:
    """One model on the same text twice.

    Args:
        before: the model as it is.
        after: quantised; its KL and agreement are against ``before``.
        what: what was quantised.
    """

    before: Score
    after: Score
    what: QuantizedModel

    @property
    def change(self) -> float:
        """Nats that a token's loss rises by."""
        return self.after.loss - self.before.loss

    def __str__(self) -> str:
        return (
            f"{self.what}: loss {self.before.loss:.3f} → {self.after.loss:.3f} ({self.change:+.3f} nats), "
            f"KL {self.after.kl:.2g}, same first token {self.after.agreement:.1%}"
        )


@torch.no_grad()
def quantization_cost(
    model: nn.Module, ids: Int[Tensor, "b t"], *, start: int = 0, **settings: Any
) -> QuantizationCost:
    """Score the predictions from position ``start`` on, of the model as it is and of the model quantised.

    One row at a time, in eval mode, so that no row's range depends on another.

    Args:
        model: gives logits ``[b, t, V]``, or an object with ``logits``, for ids ``[b, t]``.
        ids: texts of one length, without padding.
        start: see :func:`~sinkgate.evaluate.score.score`.
        settings: of :func:`sinkgate.quantized`.

    Raises:
        ArgumentError: as there, and for ids of another shape.
    """
    if ids.ndim != 2 or len(ids) == 0:
        raise ArgumentError(f"ids must be [texts, tokens], got {list(ids.shape)}")
    before, after = [], []
    with evaluating(model):
        for row in ids:  # one at a time: both passes' logits of one text are all that is held
            untouched = _logits(model, row)
            before.append(score(untouched, row, start=start))
            with quantized(model, **settings) as what:
                after.append(score(_logits(model, row), row, start=start, untouched=untouched))
    return QuantizationCost(_mean(before), _mean(after), what)


def _logits(model: nn.Module, row: Tensor) -> Tensor:
    out = model(row[None])
    return getattr(out, "logits", out)[0]


def _mean(scores: list[Score]) -> Score:
    n = len(scores)
    return Score(
        sum(s.loss for s in scores) / n, sum(s.kl for s in scores) / n, sum(s.agreement for s in scores) / n,
        sum(s.tokens for s in scores),
    )  # fmt: skip
