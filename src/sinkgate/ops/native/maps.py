"""Sparsemax and entmax of whole score matrices, by the compiled kernels."""

# mypy: disallow_untyped_defs=False
# (the fakes below repeat their operation's arguments, without its types)
from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor

from sinkgate.ops.native.build import library
from sinkgate.ops.native.ops import unavailable
from sinkgate.weighting import Weighting
from sinkgate.weighting.sparse import Entmax, Sparsemax

__all__ = ["refuses", "run"]


def refuses(scores: Tensor, weighting: Weighting) -> str | None:
    """Why the formula in PyTorch is used instead, or None."""
    if type(weighting) not in (Sparsemax, Entmax):
        return "only sparsemax and entmax have a kernel of their own"
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return "the kernel is for float32, bfloat16 and float16 on CPUs"
    if torch._C._functorch.is_batchedtensor(scores):
        return "the kernel cannot be mapped"
    return unavailable() or None


@torch.library.custom_op("sinkgate::entmax_rows", mutates_args=(), device_types="cpu")
def forward_op(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights of float32 scores ``[rows, n]`` (−inf: hidden) with α ``[rows]``."""
    scores = scores.contiguous()
    out = torch.empty_like(scores)
    alpha = alpha.contiguous()
    library().sinkgate_entmax_rows(*_pointers(scores, out), *_sizes(scores), *_pointers(alpha), _threads())
    return out


@forward_op.register_fake
def _(scores, alpha):
    return scores.new_empty(scores.shape)


@torch.library.custom_op("sinkgate::entmax_rows_backward", mutates_args=(), device_types="cpu")
def backward_op(weights: Tensor, dweights: Tensor, alpha: Tensor, want_alpha: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the scores, and of α per row."""
    out = torch.empty_like(weights)
    dalpha = weights.new_empty(weights.shape[0] if want_alpha else 0)
    dweights, alpha = dweights.contiguous(), alpha.contiguous()
    library().sinkgate_entmax_rows_backward(
        *_pointers(weights, dweights, out),
        *_sizes(weights),
        *_pointers(alpha, dalpha if want_alpha else None),
        _threads(),
    )
    return out, dalpha


@backward_op.register_fake
def _(weights, dweights, alpha, want_alpha):
    return weights.new_empty(weights.shape), weights.new_empty(weights.shape[0] if want_alpha else 0)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _backward(ctx: Any, dout: Tensor) -> Any:
    weights, alpha = ctx.saved_tensors
    want = ctx.needs_input_grad[1]
    dscores, dalpha = torch.ops.sinkgate.entmax_rows_backward(weights, dout, alpha, want)
    return dscores, dalpha if want else None


forward_op.register_autograd(_backward, setup_context=_setup)


def run(scores: Tensor, weighting: Any, mask: Tensor | None) -> Tensor:
    """See :func:`sinkgate.weights`."""
    x = scores.float()
    if mask is not None:
        x = x.masked_fill(~mask, -math.inf)
    n = x.shape[-1]
    alpha: Any = weighting.alpha if isinstance(weighting, Entmax) else 2.0
    if isinstance(alpha, Tensor) and alpha.ndim:
        from sinkgate.weighting.base import per_head

        per_head(alpha, x, "alpha")  # checks its length
        alpha = alpha[:, None]
    alpha = torch.as_tensor(alpha, dtype=torch.float32).expand(x.shape[:-1]).reshape(-1)
    return forward_op(x.reshape(-1, n), alpha).reshape(x.shape).to(scores.dtype)


def _pointers(*tensors: Tensor | None) -> list[Any]:
    return [ctypes.c_void_p(None if x is None else x.data_ptr()) for x in tensors]


def _sizes(x: Tensor) -> list[Any]:
    return [ctypes.c_int64(x.shape[0]), ctypes.c_int32(x.shape[1])]


def _threads() -> Any:
    return ctypes.c_int32(torch.get_num_threads())
