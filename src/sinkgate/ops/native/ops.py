"""The compiled kernels as PyTorch operations: they compose with compile, export, autocast and checkpointing."""

# mypy: disallow_untyped_defs=False
# (the fakes below repeat their operation's arguments, without its types)
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sinkgate.ops.bands import Bands, visible_counts
from sinkgate.ops.native.build import Unavailable, library
from sinkgate.ops.native.call import DTYPES, TWO_STATISTICS, Family, keeps, run_backward, run_forward
from sinkgate.ops.request import Mass, Request
from sinkgate.weighting import Weighting
from sinkgate.weighting.clipped import ClippedSoftmax
from sinkgate.weighting.elementwise import Relu, Sigmoid
from sinkgate.weighting.softmax import SinkSoftmax, Softmax, Softmax1
from sinkgate.weighting.softpick import Softpick
from sinkgate.weighting.sparse import Entmax, Sparsemax
from sinkgate.weighting.topk import TopKSoftmax

LOG2E = math.log2(math.e)

__all__ = ["family_of", "refuses", "run"]

summary = "C++ kernels, compiled on this machine; float32, bfloat16, float16"

KNOWN = (Softmax, SinkSoftmax, Softmax1, Sigmoid, Relu, Softpick, ClippedSoftmax, TopKSoftmax, Sparsemax, Entmax)


@torch.compiler.assume_constant_result
def unavailable() -> str:
    """Why there are no compiled kernels here; empty where there are."""
    try:
        library()
    except Unavailable as reason:
        return str(reason)
    return ""


def refuses(r: Request) -> str | None:
    """Why this call cannot run here, or None."""
    if r.q.device.type != "cpu":
        return f"it is for CPU tensors, these are on {r.q.device.type}"
    if r.q.dtype not in DTYPES:
        return f"it knows float32, bfloat16 and float16, not {str(r.q.dtype).removeprefix('torch.')}"
    if type(r.weighting) not in KNOWN:
        return f"it has no kernel for {type(r.weighting).__name__}"
    if isinstance(r.weighting, TopKSoftmax) and r.weighting.keep_rest:
        return "its top-k kernel has no keep_rest"
    if r.mask is not None and r.mask.requires_grad:
        return "it gives no gradient to a mask"
    reason = unavailable()
    return reason or None


def family_of(w: Weighting, r: Request, counts: Tensor | None) -> Family:
    """A weighting in the kernels' terms; gradients flow through ``head``."""
    h = r.q.shape[1]

    def head(x: float | Tensor) -> Tensor:
        if isinstance(x, Tensor):
            return x.to(torch.float32).expand(h).contiguous()
        return torch.full((h,), float(x))

    def n(fixed: float | None) -> Tensor:
        if fixed is not None:
            return torch.full((1, 1, r.q.shape[2]), float(fixed))
        assert counts is not None
        return counts.clamp_min(1).float()

    if isinstance(w, SinkSoftmax):
        return Family("softmax", head=head(w.z))
    if isinstance(w, Softmax1):
        return Family("softmax", head=head(0.0))
    if isinstance(w, Sigmoid):
        return Family("sigmoid", head=head(w.bias)) if w.bias is not None else Family("sigmoid", row=-torch.log(n(w.n)))
    if isinstance(w, Relu):
        return Family("relu", row=n(w.n) if w.normalize else None, squared=w.squared)
    if isinstance(w, Softpick):
        return Family("softpick", p0=w.eps)
    if isinstance(w, ClippedSoftmax):
        if w.gamma is not None:
            return Family("clipped", p0=w.zeta, p1=w.gamma)
        return Family("clipped", row=n(w.n), p0=w.zeta, p1=w.strength)
    if isinstance(w, TopKSoftmax):
        k = torch.as_tensor(w.k)
        k = k[:, None] if k.ndim == 1 else k
        return Family("topk", k=k.to(torch.int32).expand(r.q.shape[:3]).contiguous(), p0=w.delta)
    if isinstance(w, Sparsemax):
        return Family("entmax", head=head(2.0))
    if isinstance(w, Entmax):
        return Family("entmax", head=head(w.alpha))
    return Family("softmax")


def needs_counts(w: Weighting) -> bool:
    """Whether the row's own number of keys enters, and so has to be counted."""
    if isinstance(w, Sigmoid):
        return w.bias is None
    return (isinstance(w, Relu) and w.normalize) or (isinstance(w, ClippedSoftmax) and w.gamma is None)


@torch.library.custom_op("sinkgate::native_forward", mutates_args=(), device_types="cpu")
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first_lo: Tensor | None, first_hi: Tensor | None,
    mask: Tensor | None, head: Tensor | None, row: Tensor | None, k_rows: Tensor | None, open_rows: Tensor | None,
    family: str, p0: float, p1: float, squared: bool, scale: float, softcap: float, want_mass: bool, train: bool,
    fast: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, its row statistics (two), the mass, and what clipped softmax keeps for its backward pass."""
    out, kept = run_forward(
        library(), q, k, v, Family(family, head, row, k_rows, p0, p1, squared, fast),
        Bands(lo, hi, first_lo, first_hi, k.shape[2]), mask, scale, softcap, open_rows, want_mass, train,
    )  # fmt: skip
    return out, kept.stat, kept.stat2, kept.mass, kept.kept


@forward_op.register_fake
def _(q, k, v, lo, hi, first_lo, first_hi, mask, head, row, k_rows, open_rows, family, p0, p1, squared, scale, softcap,
      want_mass, train, fast):  # fmt: skip
    b, h, t = q.shape[:3]

    def f32(*shape: int, there: bool = True) -> Tensor:
        return q.new_empty(shape if there else (0,), dtype=torch.float32)

    return (
        q.new_empty(b, h, t, v.shape[3]), f32(b, h, t), f32(b, h, t, there=family in TWO_STATISTICS),
        f32(b, h, t, there=want_mass), f32(b, h, t, v.shape[3], there=train and keeps(family, q.dtype)),
    )  # fmt: skip


@torch.library.custom_op("sinkgate::native_backward", mutates_args=(), device_types="cpu")
def backward_op(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first_lo: Tensor | None,
    first_hi: Tensor | None, mask: Tensor | None, head: Tensor | None, row: Tensor | None, k_rows: Tensor | None,
    open_rows: Tensor | None, stat: Tensor, stat2: Tensor, delta: Tensor, family: str, p0: float, p1: float,
    squared: bool, scale: float, softcap: float, want_head: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, and of the weighting's tensor per head (sigmoid's bias, entmax's α)."""
    dq, dk, dv, dhead = run_backward(
        library(), dout, q, k, v, Family(family, head, row, k_rows, p0, p1, squared),
        Bands(lo, hi, first_lo, first_hi, k.shape[2]), mask, scale, softcap, open_rows, stat, stat2, delta, want_head,
    )  # fmt: skip
    return dq, dk, dv, torch.zeros(0) if dhead is None else dhead


@backward_op.register_fake
def _(dout, q, k, v, lo, hi, first_lo, first_hi, mask, head, row, k_rows, open_rows, stat, stat2, delta, family, p0, p1,
      squared, scale, softcap, want_head):  # fmt: skip
    dhead = q.new_empty((q.shape[1],) if want_head else (0,), dtype=torch.float32)
    return *(x.new_empty(x.shape) for x in (q, k, v)), dhead


def sink_share(z: Tensor, top: Tensor, inverse: Tensor) -> Tensor:
    """What the sink logit takes of every row: ``2^{z·log2 e − top} · inverse`` (0 in rows that were left out)."""
    return torch.exp2(z[:, None] * LOG2E - top) * inverse


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, stat, stat2, _, kept = output
    ctx.save_for_backward(*inputs[:12], out, stat, stat2, kept)
    ctx.settings = inputs[12:18]
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
    *inputs, out, stat, stat2, kept = ctx.saved_tensors
    q, k, v, lo, hi, first_lo, first_hi, mask, head, row, k_rows, open_rows = inputs
    family, p0, p1, squared, scale, softcap = ctx.settings
    want_head = head is not None and ctx.needs_input_grad[8]
    if family == "clipped":
        spread = p0 - p1 if row is None else p0 + p1 / row
        delta = (dout.float() * kept).sum(-1) * spread
    else:
        delta = (dout.float() * (kept if keeps(family, q.dtype) else out.float())).sum(-1)
    dq, dk, dv, dhead = torch.ops.sinkgate.native_backward(
        dout, q, k, v, lo, hi, first_lo, first_hi, mask, head, row, k_rows, open_rows, stat, stat2, delta.contiguous(),
        family, p0, p1, squared, scale, softcap, want_head and family in ("sigmoid", "entmax"),
    )  # fmt: skip
    found: Tensor | None = dhead
    if want_head and family == "softmax":  # dz = −Σ_rows e^{z − lse'}·δ'
        found = -(sink_share(head, stat, stat2) * delta).sum((0, 2))
    return dq, dk, dv, *[None] * 5, found if want_head else None, *[None] * 12


forward_op.register_autograd(_backward, setup_context=_setup)


def run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    fixed = getattr(r.weighting, "n", None)
    counts = visible_counts(r.bands, r.mask) if needs_counts(r.weighting) and fixed is None else None
    family = family_of(r.weighting, r, counts)
    out, stat, stat2, total, _ = forward_op(
        r.q, r.k, r.v, r.bands.lo, r.bands.hi, r.bands.first_lo, r.bands.first_hi, r.mask, family.head, family.row,
        family.k, r.open, family.name, family.p0, family.p1, family.squared, r.scale, r.softcap, r.return_mass, r.learns,
        r.precision == "fast",
    )  # fmt: skip
    if not r.return_mass:
        return out, None
    sink = torch.zeros_like(total)
    if family.name == "softmax" and family.head is not None:
        sink = sink_share(family.head.detach(), stat.detach(), stat2.detach())
    return out, Mass(total.detach(), sink)
