"""Softmax with a sink logit through torch's own flash kernel on CPUs: the (o′, lse′) identity.

With ``lse`` the kernel's log-sum-exp, ``lse′ = logaddexp(lse, z)`` and ``o′ = o·σ(lse − z)`` are the output and the
log-sum-exp of softmax with a sink; the kernel's *unmodified* backward, called with ``(o′, lse′)``, gives exact dQ, dK
and dV, and ``dz = −Σ e^{z − lse′}·(do·o′)`` (maths.md §1).
"""

# mypy: disallow_untyped_defs=False
# (the fakes below repeat their operation's arguments, without its types)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sinkgate.ops.request import Mass, Request
from sinkgate.weighting.softmax import SinkSoftmax, Softmax, Softmax1

__all__ = ["refuses", "run"]

summary = "torch's own CPU flash kernel, for softmax with or without a sink logit"

note = "a key or value that is not finite may reach rows that do not see it"

FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"


def refuses(r: Request) -> str | None:
    """Why this call cannot run here, or None."""
    if r.q.device.type != "cpu":
        return f"it is for CPU tensors, these are on {r.q.device.type}"
    if type(r.weighting) not in (Softmax, SinkSoftmax, Softmax1):
        return f"it knows softmax, sink_softmax and softmax1, not {r.weighting.name}"
    if not (hasattr(torch.ops.aten, FORWARD) and hasattr(torch.ops.aten, BACKWARD)):
        return f"this torch has no aten.{FORWARD}"
    if r.plain is None or r.mask is not None:
        return "it knows plain causal attention over equal lengths and full attention only (a mask would be T×T)"
    if r.softcap:
        return "it has no softcap"
    if r.open is not None:
        return "it cannot leave out closed queries"
    if r.q.shape[-1] != r.v.shape[-1]:
        return f"it needs dv = d, got d={r.q.shape[-1]} and dv={r.v.shape[-1]}"
    if not r.q.dtype.is_floating_point or r.q.dtype.itemsize > 8:
        return f"it does not know {r.q.dtype}"
    if r.q.numel() == 0 or r.k.numel() == 0:
        return "it needs at least one query and one key"
    return None


@torch.library.custom_op("sinkgate::stock_forward", mutates_args=())
def forward_op(q: Tensor, k: Tensor, v: Tensor, z: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """``(o′, lse′)``."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))  # it does not look at the last stride
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    if z is None:
        return out.contiguous(), lse.contiguous()
    both = torch.logaddexp(lse, z.to(lse.dtype)[:, None])
    share = torch.exp(lse - both)
    return (out * share[..., None]).to(q.dtype).contiguous(), both.contiguous()


@forward_op.register_fake
def _(q, k, v, z, causal, scale):
    wide = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=wide)


@torch.library.custom_op("sinkgate::stock_backward", mutates_args=())
def backward_op(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel's own backward pass, told ``(o′, lse′)``."""
    dout, q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (dout, q, k, v))
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dout, q, k, v, out, lse, 0.0, causal, scale=scale
    )
    return tuple(x.contiguous() for x in found)


@backward_op.register_fake
def _(dout, q, k, v, out, lse, causal, scale):
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, z, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, z, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dout: Tensor, _: Any) -> Any:
    q, k, v, z, out, lse = ctx.saved_tensors
    dq, dk, dv = torch.ops.sinkgate.stock_backward(dout, q, k, v, out, lse, ctx.causal, ctx.scale)
    dz = None
    if z is not None and ctx.needs_input_grad[3]:
        delta = (dout.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
        dz = -(torch.exp(z.to(lse.dtype)[:, None] - lse) * delta).sum((0, 2)).to(z.dtype)
    return dq, dk, dv, dz, None, None


forward_op.register_autograd(_backward, setup_context=_setup)


def run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    z = None
    if not isinstance(r.weighting, Softmax):
        value = r.weighting.z if isinstance(r.weighting, SinkSoftmax) else 0.0
        z = value if isinstance(value, Tensor) else torch.tensor(float(value))
        z = z.expand(r.q.shape[1]).to(torch.promote_types(r.q.dtype, torch.float32))
    out, lse = forward_op(r.q, r.k, r.v, z, r.plain == "causal", r.scale)
    if not r.return_mass:
        return out, None
    lse = lse.detach()
    sink = torch.zeros_like(lse) if z is None else torch.exp(z.detach().to(lse.dtype)[:, None] - lse)
    return out, Mass(1 - sink, sink)
