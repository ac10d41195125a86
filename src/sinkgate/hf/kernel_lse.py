"""The log-sum-exp that a stock kernel computes anyway.

``scaled_dot_product_attention`` throws it away; under this mode the operator it dispatches to is seen, with
its second result. The kernel, its inputs and its output are untouched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["KernelLSE"]

# operators whose second result is log Σ exp(scores), natural logarithm, [b, heads, t]
_NAMES = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention",
)
_OPERATORS = {getattr(torch.ops.aten, name).default for name in _NAMES if hasattr(torch.ops.aten, name)}


class KernelLSE(TorchDispatchMode):
    """``with KernelLSE() as seen: out = attention(...)``; then ``seen.lse`` is a tensor or None."""

    lse: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _OPERATORS:
            self.lse = out[1]
        return out
