"""Cross entropy behind the head, a few hundred tokens at a time: the logits of a batch are never held.

The gradients of a chunk are made while its logits are there, so what the backward pass needs is as large as the hidden
states and the head, not as tokens × vocabulary; and no product is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["head_loss"]

ROWS = 256  # tokens at a time: their logits stay in the cache


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """The loss; both gradients are made on the way, with products in ``dtype`` and sums at least in float32."""
        n = len(hidden)
        w, h = weight.to(dtype), hidden.to(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        into_hidden = torch.empty_like(h)
        into_weight = torch.zeros_like(weight, dtype=wide)
        total = torch.zeros((), dtype=torch.promote_types(wide, torch.float64), device=hidden.device)
        for i in range(0, n, ROWS):
            rows, at = h[i : i + ROWS], targets[i : i + ROWS, None]
            p = (rows @ w.T).to(wide)
            level = p.logsumexp(-1, keepdim=True)
            total += (level - p.gather(1, at)).sum()
            p.sub_(level).exp_()
            p.scatter_add_(1, at, torch.full_like(level, -1.0))
            p = p.div_(n).to(dtype)
            torch.mm(p, w, out=into_hidden[i : i + ROWS])
            if dtype == wide:
                into_weight.addmm_(p.T, rows)
            else:
                into_weight += p.T @ rows
        ctx.save_for_backward(into_hidden.to(hidden.dtype), into_weight.to(weight.dtype))
        return (total / n).to(wide)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """The gradients that are there, times what arrives."""
        into_hidden, into_weight = ctx.saved_tensors
        return into_hidden * grad[0], into_weight * grad[0], None, None


def head_loss(hidden: Float[Tensor, "n D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " n"]) -> Tensor:
    """Mean of ``−log softmax(hidden · weightᵀ)[target]``, a scalar in float32 (float64 for float64).

    Args:
        hidden: what the head reads.
        weight: of the head.
        targets: the next tokens.
    """
    kind = hidden.device.type
    dtype = (
        torch.get_autocast_dtype(kind)
        if torch.is_autocast_enabled(kind)
        else torch.promote_types(hidden.dtype, weight.dtype)
    )
    with torch.autocast(kind, enabled=False):
        return _HeadLoss.apply(hidden, weight, targets, dtype)
