"""The Triton kernels as PyTorch operations, for CUDA tensors (and for CPU tensors under Triton's interpreter).

Families: softmax with or without a sink logit, sigmoid, relu, softpick; the other weightings hold whole rows of scores
and are refused. Under ``TRITON_INTERPRET=1`` bfloat16 is computed in float32: the interpreter multiplies it wrongly.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sinkgate.ops.bands import visible_counts
from sinkgate.ops.request import Mass, Request
from sinkgate.weighting import Weighting
from sinkgate.weighting.elementwise import Relu, Sigmoid
from sinkgate.weighting.softmax import SinkSoftmax, Softmax, Softmax1
from sinkgate.weighting.softpick import Softpick

__all__ = ["prefers", "refuses", "run"]

summary = "Triton kernels for CUDA; float32, bfloat16, float16"

KNOWN = (Softmax, SinkSoftmax, Softmax1, Sigmoid, Relu, Softpick)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 256  # head dimension
TWO = ("softmax", "softpick")  # families that keep two numbers of each row
LN2 = 0.6931471805599453


class Launch(NamedTuple):
    """Rows and keys of a tile, and how a program runs."""

    rows: int
    keys: int
    warps: int
    stages: int


# (pass, bytes per number) → {largest head dimension: launch}. A program's tiles have to fit in the registers of its
# warps and in the shared memory of a multiprocessor (99 KiB on the smallest that we take). float32 products run
# without tensor cores, hence the small tiles. These are safe starting points; benchmarks/gpu.py is there to tune them.
LAUNCHES: dict[tuple[str, int], dict[int, Launch]] = {
    ("forward", 2): {64: Launch(128, 64, 8, 3), 128: Launch(128, 64, 8, 2), 256: Launch(64, 32, 8, 2)},
    ("forward", 4): {64: Launch(32, 64, 4, 1), 128: Launch(32, 32, 8, 1), 256: Launch(16, 32, 8, 1)},
    ("dq", 2): {64: Launch(128, 64, 8, 2), 128: Launch(64, 64, 4, 2), 256: Launch(32, 32, 4, 1)},
    ("dq", 4): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 8, 1), 256: Launch(16, 32, 8, 1)},
    ("dkv", 2): {64: Launch(64, 128, 8, 2), 128: Launch(32, 128, 8, 2), 256: Launch(32, 32, 8, 1)},
    ("dkv", 4): {64: Launch(32, 32, 4, 1), 128: Launch(32, 32, 8, 1), 256: Launch(16, 16, 8, 1)},
}  # fmt: skip
# What devices before compute capability 9.0 run with less spilling.
OLDER = {
    ("forward", 2): {128: Launch(128, 32, 8, 2)},
    ("dq", 2): {128: Launch(64, 64, 8, 2)},
    ("dkv", 2): {64: Launch(32, 128, 8, 2), 128: Launch(32, 64, 8, 2)},
}
# Small and uneven, so that a few dozen tokens make several tiles of every kind.
INTERPRETED = {"forward": Launch(32, 16, 1, 1), "dq": Launch(32, 16, 1, 1), "dkv": Launch(16, 32, 1, 1)}


def launch_of(kernel: str, size: int, widest: int, capability: int) -> Launch:
    """The launch for a kernel (``"forward"``, ``"dq"``, ``"dkv"``).

    Args:
        kernel: its name.
        size: bytes of a number.
        widest: the larger of d and dv.
        capability: the device's compute capability times ten; 0 for the interpreter.
    """
    if not capability:
        return INTERPRETED[kernel]
    table = LAUNCHES[kernel, size]
    limit = next(n for n in table if widest <= n)
    older = OLDER.get((kernel, size), {}) if capability < 90 else {}
    return older.get(limit, table[limit])


# ---- what runs here ------------------------------------------------------------------------------------------------


@functools.cache
def kernels() -> Any:
    """The module with the kernels; imports triton."""
    from sinkgate.ops.triton import kernels

    return kernels


@functools.cache
def missing() -> str:
    """Why there is no triton; empty where there is. Imports nothing."""
    return "" if importlib.util.find_spec("triton") else "triton is not installed (pip install triton)"


@torch.compiler.assume_constant_result
def unavailable(device: str) -> str:
    """Why the kernels cannot run on this kind of device; empty where they can. For CPU tensors imports nothing."""
    if device not in ("cuda", "cpu"):
        return f"it is for CUDA tensors, these are on {device}"
    if missing():
        return missing()
    not_here = "it is for CUDA tensors; CPU tensors run only in Triton's interpreter (TRITON_INTERPRET=1, slow)"
    if device == "cpu" and not os.environ.get("TRITON_INTERPRET"):
        return not_here
    try:
        interpreted = kernels().INTERPRETED
    except Exception as error:  # noqa: BLE001  whatever a broken installation raises
        return f"triton cannot be imported: {error}"
    return not_here if device == "cpu" and not interpreted else ""


@torch.compiler.assume_constant_result
def capability(index: int) -> int:
    """A CUDA device's compute capability times ten; of AMD's devices, which count otherwise, as an old one's."""
    if torch.version.hip is not None:
        return 80
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


def refuses(r: Request) -> str | None:
    """Why this call cannot run here, or None."""
    if type(r.weighting) not in KNOWN:
        return f"it has kernels for softmax, sink_softmax, softmax1, sigmoid, relu and softpick, not for {r.weighting.name}"
    if r.q.dtype not in DTYPES:
        return f"it knows float32, bfloat16 and float16, not {str(r.q.dtype).removeprefix('torch.')}"
    widest = max(r.q.shape[-1], r.v.shape[-1])
    if widest > WIDEST:
        return f"its tiles hold head dimensions up to {WIDEST}, got {widest}"
    if r.mask is not None and r.mask.requires_grad:
        return "it gives no gradient to a mask"
    reason = unavailable(r.q.device.type)
    if not reason and r.q.device.type == "cuda":
        found = capability(r.q.device.index or 0)
        if found < 80:
            reason = f"it needs a device of compute capability 8.0 or above, this one has {found / 10}"
    return reason or None


def prefers(r: Request) -> bool:
    """Whether "auto" should take it where it can run: on CUDA tensors, never in the interpreter."""
    return r.q.device.type == "cuda"


# ---- a weighting in the kernels' terms -----------------------------------------------------------------------------


class Family(NamedTuple):
    """A weighting in the kernels' terms; gradients flow through ``head``.

    Attributes:
        name: softmax, sigmoid, relu or softpick.
        head: ``[h]`` float32: z or bias.
        row: ``[b or 1, h or 1, t]`` float32: relu's n, or sigmoid's bias ``−ln n``.
        eps: softpick's.
        squared: relu's.
    """

    name: str
    head: Tensor | None = None
    row: Tensor | None = None
    eps: float = 0.0
    squared: bool = False


def family_of(w: Weighting, r: Request) -> Family:
    """See :class:`Family`."""
    h, t, device = r.q.shape[1], r.q.shape[2], r.q.device

    def head(x: float | Tensor) -> Tensor:
        if isinstance(x, Tensor):
            return x.to(torch.float32).expand(h).contiguous()
        return torch.full((h,), float(x), device=device)

    def n(fixed: float | None) -> Tensor:
        if fixed is not None:
            return torch.full((1, 1, t), float(fixed), device=device)
        return visible_counts(r.bands, r.mask).clamp_min(1).float().contiguous()

    if isinstance(w, SinkSoftmax):
        return Family("softmax", head=head(w.z))
    if isinstance(w, Softmax1):
        return Family("softmax", head=head(0.0))
    if isinstance(w, Sigmoid):
        return Family("sigmoid", head=head(w.bias)) if w.bias is not None else Family("sigmoid", row=-torch.log(n(w.n)))
    if isinstance(w, Relu):
        return Family("relu", row=n(w.n) if w.normalize else None, squared=w.squared)
    if isinstance(w, Softpick):
        return Family("softpick", eps=w.eps)
    return Family("softmax")


# ---- launching -----------------------------------------------------------------------------------------------------


def rows_contiguous(x: Tensor) -> Tensor:
    """The same numbers with the last dimension's stride 1; a copy only where it is not."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def running(x: Tensor, interpreted: bool) -> Any:
    """The tensors' own device; the interpreter's numpy warns where a GPU says inf or NaN."""
    if not interpreted:
        return torch.cuda.device_of(x)
    import numpy as np

    return np.errstate(all="ignore")


class Setting:
    """What the kernels of one call share: tensors as they can be read, strides, constants."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, bands: list[Tensor | None], mask: Tensor | None,
        open_rows: Tensor | None, family: str, squared: bool, scale: float, softcap: float,
    ) -> None:  # fmt: skip
        self.interpreted = bool(kernels().INTERPRETED)
        self.capability = 0 if self.interpreted else capability(q.device.index or 0)
        if self.interpreted and q.dtype == torch.bfloat16:
            q, k, v = (x.float() for x in (q, k, v))
        self.q, self.k, self.v = (rows_contiguous(x) for x in (q, k, v))
        self.b, self.h, self.t, self.d = q.shape
        self.group, self.s, self.dv = self.h // k.shape[1], k.shape[2], v.shape[3]
        lo, hi, first_lo, first_hi = bands
        assert lo is not None
        # a pointer that is never read stands in for what is not there
        self.bands = [lo, hi, lo if first_lo is None else first_lo, hi if first_hi is None else first_hi]
        self.band_b = self.t if lo.shape[0] > 1 else 0
        kind = ""
        if mask is not None:
            kind = "bool" if mask.dtype == torch.bool else "float"
            mask = mask.view(torch.uint8) if kind == "bool" else mask
        self.mask = lo if mask is None else mask
        self.m = (
            [0] * 4 if mask is None else [0 if n == 1 else x for n, x in zip(mask.shape, mask.stride(), strict=True)]
        )
        self.open = lo if open_rows is None else open_rows.contiguous().view(torch.uint8)
        self.scale, self.cap = scale, softcap
        # relu's weights know no bound: in half precision they are multiplied in tf32, which has its digits and no such end
        wide = family == "relu" and q.dtype == torch.float16
        self.block_d, self.block_dv = (max(16, power_of_two(n)) for n in (self.d, self.dv))
        self.constants: dict[str, Any] = {
            "FAMILY": family, "SQUARED": squared, "CAP": softcap != 0, "FIRST": first_lo is not None, "MASK": kind,
            "OPEN": open_rows is not None, "WIDE": wide, "EVEN_D": self.d == self.block_d,
            "EVEN_DV": self.dv == self.block_dv, "PRECISION": "tf32" if wide else "ieee",
        }  # fmt: skip
        self.size = 4 if wide else q.element_size()

    def launch(self, kernel: str) -> Launch:
        """Tile sizes: no more rows than there are; tiles of a mask need the room of the second stage."""
        found = launch_of(kernel, self.size, max(self.d, self.dv), self.capability)
        if self.t < found.rows and not self.interpreted:
            warps = found.warps if kernel == "dkv" else 4  # dkv's sums are as large as before
            found = found._replace(rows=max(16, power_of_two(self.t)), warps=warps)
        return found._replace(stages=1) if self.constants["MASK"] else found

    def blocks(self, launch: Launch) -> dict[str, Any]:
        """Constants of a launch."""
        return {
            "BLOCK_M": launch.rows, "BLOCK_N": launch.keys, "BLOCK_D": self.block_d, "BLOCK_DV": self.block_dv,
            "num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": True,
        }  # fmt: skip


def power_of_two(n: int) -> int:
    """The least one that is not under n."""
    return 1 << (n - 1).bit_length()


def strides(*tensors: Tensor) -> list[int]:
    """Batch, head and row strides of each."""
    return [x for tensor in tensors for x in tensor.stride()[:3]]


def blocks_in(length: int, size: int) -> int:
    """How many blocks cover a length."""
    return -(-length // size)


def sink_share(z: Tensor, stat: Tensor, stat2: Tensor) -> Tensor:
    """``e^{z − lse'}``, ``[b, h, t]``; 0 for a closed row and for z = −inf over nothing."""
    return torch.exp(z[:, None] - stat.clamp_min(torch.finfo(stat.dtype).min) - stat2 * LN2)


@torch.library.custom_op("sinkgate::triton_forward", mutates_args=())
def forward_op(
    q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first_lo: Tensor | None, first_hi: Tensor | None,
    mask: Tensor | None, head: Tensor | None, row: Tensor | None, open_rows: Tensor | None, family: str, eps: float,
    squared: bool, scale: float, softcap: float, want_mass: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, two row numbers (see kernels.py), and the mass."""
    x = Setting(q, k, v, [lo, hi, first_lo, first_hi], mask, open_rows, family, squared, scale, softcap)
    out = x.q.new_empty(x.b, x.h, x.t, x.dv)
    stat, stat2, mass = (
        x.q.new_empty((x.b, x.h, x.t) if there else (0,), dtype=torch.float32)
        for there in (True, family in TWO, want_mass)
    )
    if stat.numel():
        launch = x.launch("forward")
        blocks = blocks_in(x.t, launch.rows)
        row_strides = [0, 0] if row is None else [0 if row.shape[i] == 1 else row.stride(i) for i in (0, 1)]
        with running(q, x.interpreted):
            kernels().forward_kernel[(blocks * x.b * x.h,)](
                x.q, x.k, x.v, out, stat, stat2, mass, *x.bands, x.mask, stat if head is None else head,
                stat if row is None else row, x.open, *strides(x.q, x.k, x.v), *x.m, *row_strides, x.band_b,
                x.h, x.group, x.t, x.s, x.d, x.dv, blocks, x.scale, x.cap, eps,
                HEAD=head is not None, ROW=row is not None, MASS=want_mass, **x.constants, **x.blocks(launch),
            )  # fmt: skip
    return out.to(q.dtype), stat, stat2, mass


@forward_op.register_fake
def _(  # type: ignore[no-untyped-def]
    q, k, v, lo, hi, first_lo, first_hi, mask, head, row, open_rows, family, eps, squared, scale, softcap, want_mass
):
    b, h, t = q.shape[:3]
    return q.new_empty(b, h, t, v.shape[3]), *(
        q.new_empty((b, h, t) if there else (0,), dtype=torch.float32) for there in (True, family in TWO, want_mass)
    )


@torch.library.custom_op("sinkgate::triton_backward", mutates_args=())
def backward_op(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, lo: Tensor, hi: Tensor, first_lo: Tensor | None,
    first_hi: Tensor | None, mask: Tensor | None, head: Tensor | None, open_rows: Tensor | None, out: Tensor,
    stat: Tensor, stat2: Tensor, family: str, squared: bool, scale: float, softcap: float, want_head: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v, and of the weighting's tensor per head (z, sigmoid's bias); no atomics: always the same."""
    x = Setting(q, k, v, [lo, hi, first_lo, first_hi], mask, open_rows, family, squared, scale, softcap)
    dq, dk, dv = (torch.zeros(y.shape, dtype=x.q.dtype, device=q.device) for y in (q, k, v))
    bias = want_head and family == "sigmoid"
    dbias = torch.zeros(stat.shape if bias else (0,), device=q.device)
    level, delta = torch.empty_like(stat), torch.zeros_like(stat)
    if dq.numel() and dk.numel():
        g = rows_contiguous(dout.to(x.q.dtype))
        with running(q, x.interpreted):
            launch_backward(x, g, out.to(x.q.dtype), dq, dk, dv, dbias, level, delta, stat, stat2, bias)
    dhead = q.new_zeros(0, dtype=torch.float32)
    if bias:
        dhead = dbias.sum((0, 2))
    elif want_head:  # dz = −Σ_rows e^{z − lse'}·δ'
        assert head is not None
        dhead = -(sink_share(head, stat, stat2) * delta).sum((0, 2))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dhead


def launch_backward(
    x: Setting, g: Tensor, out: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, dbias: Tensor, level: Tensor, delta: Tensor,
    stat: Tensor, stat2: Tensor, bias: bool,
) -> None:  # fmt: skip
    """Row numbers, then dQ over the keys of each block of queries, then dK and dV over the queries of each tile."""
    found = kernels()
    units = x.b * x.h
    blocks = blocks_in(x.t, 32)
    found.prepare_kernel[(blocks * units,)](
        x.q, out, g, stat, level, delta, *strides(x.q, g), x.h, x.t, x.d, x.dv, blocks,
        DELTA=x.constants["FAMILY"] in TWO, BLOCK_M=32, BLOCK_D=x.block_d, BLOCK_DV=x.block_dv, enable_fp_fusion=True,
    )  # fmt: skip

    launch = x.launch("dq")
    blocks = blocks_in(x.t, launch.rows)
    found.dq_kernel[(blocks * units,)](
        x.q, x.k, x.v, g, dq, dbias, level, stat2, delta, *x.bands, x.mask, x.open, *strides(x.q, x.k, x.v, g), *x.m,
        x.band_b, x.h, x.group, x.t, x.s, x.d, x.dv, blocks, x.scale, x.cap,
        BIAS=bias, **x.constants, **x.blocks(launch),
    )  # fmt: skip

    launch = x.launch("dkv")
    blocks, tiles = blocks_in(x.t, launch.rows), blocks_in(x.s, launch.keys)
    batch = x.bands[0].shape[0] if x.band_b else 1  # type: ignore[union-attr]
    spans = torch.empty(batch, 6, blocks, dtype=torch.int32, device=x.q.device)
    found.spans_kernel[(blocks * batch,)](
        *x.bands, spans, x.t, x.s, blocks, FIRST=x.constants["FIRST"], BLOCK_M=launch.rows, enable_fp_fusion=True
    )
    found.dkv_kernel[(tiles * units // x.group,)](
        x.q, x.k, x.v, g, dk, dv, level, stat2, delta, *x.bands, spans, x.mask, x.open, *strides(x.q, x.k, x.v, g), *x.m,
        x.band_b, 6 * blocks if x.band_b else 0, x.h, x.group, x.t, x.s, x.d, x.dv, tiles, blocks, x.scale,
        x.cap, **x.constants, **x.blocks(launch),
    )  # fmt: skip


@backward_op.register_fake
def _(  # type: ignore[no-untyped-def]
    dout, q, k, v, lo, hi, first_lo, first_hi, mask, head, open_rows, out, stat, stat2, family, squared, scale, softcap,
    want_head,
):  # fmt: skip
    dhead = q.new_empty((q.shape[1],) if want_head else (0,), dtype=torch.float32)
    return *(x.new_empty(x.shape) for x in (q, k, v)), dhead


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, stat, stat2, _ = output
    ctx.save_for_backward(*inputs[:11], out, stat, stat2)
    ctx.settings = inputs[11], inputs[13], inputs[14], inputs[15]
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
    q, k, v, lo, hi, first_lo, first_hi, mask, head, _row, open_rows, out, stat, stat2 = ctx.saved_tensors
    want_head = head is not None and ctx.needs_input_grad[8]
    dq, dk, dv, dhead = torch.ops.sinkgate.triton_backward(
        dout, q, k, v, lo, hi, first_lo, first_hi, mask, head, open_rows, out, stat, stat2, *ctx.settings, want_head
    )
    return dq, dk, dv, *[None] * 5, dhead if want_head else None, *[None] * 8


forward_op.register_autograd(_backward, setup_context=_setup)


def run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    family = family_of(r.weighting, r)
    out, stat, stat2, total = forward_op(
        r.q, r.k, r.v, r.bands.lo, r.bands.hi, r.bands.first_lo, r.bands.first_hi, r.mask, family.head, family.row,
        r.open, family.name, family.eps, family.squared, r.scale, r.softcap, r.return_mass,
    )  # fmt: skip
    if not r.return_mass:
        return out, None
    sink = torch.zeros_like(total)
    if family.name == "softmax" and family.head is not None:
        sink = sink_share(family.head.detach(), stat.detach(), stat2.detach())
    return out, Mass(total.detach(), sink)
