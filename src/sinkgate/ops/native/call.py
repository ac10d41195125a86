"""One call of the C++ kernels: tensors → pointers, and back."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinkgate.ops.bands import Bands

__all__ = ["TWO_STATISTICS", "Call", "Family", "Reading", "run_backward", "run_forward", "run_read"]

I32, I64, F32, PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
LN2 = math.log(2)
FAMILIES = {"softmax": 0, "sigmoid": 1, "relu": 2, "softpick": 3, "clipped": 4, "topk": 5, "entmax": 6}

TWO_STATISTICS = ("softmax", "softpick", "clipped", "topk")  # families that leave two numbers per row to the backward


def keeps(family: str, dtype: torch.dtype) -> bool:
    """Whether a family leaves rows of values to its backward pass: what ``do·o`` is not enough, or not exact enough, for.

    Softpick divides by a sum that can be small, and with it an output that was rounded to half precision.
    """
    return family == "clipped" or (family == "softpick" and dtype != torch.float32)


class Call(ctypes.Structure):
    """``struct Call`` of common.h, field for field."""

    _fields_: ClassVar[Any] = (
        [(name, I32) for name in ("dtype", "batch", "heads", "kv_heads", "t", "s", "d", "dv")]
        + [(name, I32) for name in ("family", "flags", "threads", "mask_type")]
        + [(name, PTR) for name in ("q", "k", "v")]
        + [(name, I64 * 3) for name in ("qs", "ks", "vs")]
        + [(name, F32) for name in ("scale", "softcap")]
        + [(name, PTR) for name in ("lo", "hi", "first_lo", "first_hi")]
        + [("band_stride", I64), ("mask", PTR), ("ms", I64 * 4)]
        + [("head", PTR), ("row", PTR), ("rs", I64 * 2), ("k_of_row", PTR), ("p0", F32), ("p1", F32)]
        + [(name, PTR) for name in ("open", "open_at", "out", "stat", "stat2", "mass", "kept", "dout", "delta")]
        + [(name, PTR) for name in ("dq", "dk", "dvalue", "dhead")]
    )


class Reading(ctypes.Structure):
    """``struct Reading`` of read.h, field for field."""

    _fields_: ClassVar[Any] = [("lse", PTR), ("first", PTR), ("window", I32)] + [
        (name, PTR) for name in ("columns", "rest", "entropy", "log_first", "local", "previous", "own")
    ]


SQUARED, FAST_EXP, NO_BACKWARD = 1, 2, 4  # as in common.h
SEGMENTS = 4  # as in read.h


@dataclass(frozen=True)
class Family:
    """A weighting in the kernels' own terms.

    Args:
        name: a key of ``FAMILIES``.
        head: ``[heads]`` float32: z, bias or alpha.
        row: ``[batch or 1, heads or 1, t]`` float32: the count n of a row, or its bias ``−ln n``.
        k: ``[batch, heads, t]`` int32.
        p0: ε of softpick; ζ of clipped; δ of top-k.
        p1: γ of clipped, or its strength where ``row`` holds counts.
        squared: relu only.
        fast: exponentials to two parts in 10⁴ (bfloat16 only).
    """

    name: str
    head: Tensor | None = None
    row: Tensor | None = None
    k: Tensor | None = None
    p0: float = 0.0
    p1: float = 0.0
    squared: bool = False
    fast: bool = False


def pointer(x: Tensor | None) -> int | None:
    """Where a tensor's numbers lie."""
    return None if x is None else x.data_ptr()


def rows_contiguous(x: Tensor) -> Tensor:
    """The same numbers with the last dimension's stride 1; a copy only where it is not."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def new_call(
    q: Tensor, k: Tensor, v: Tensor, family: Family, bands: Bands, mask: Tensor | None, scale: float, softcap: float,
    open_rows: Tensor | None,
) -> tuple[Call, list[Any]]:  # fmt: skip
    """The structure, and the tensors that have to live as long as it."""
    q, k, v = rows_contiguous(q), rows_contiguous(k), rows_contiguous(v)
    alive: list[Any] = [q, k, v, family, bands, mask, open_rows]
    call = Call()
    call.dtype = DTYPES[q.dtype]
    call.batch, call.heads, call.t, call.d = q.shape
    call.kv_heads, call.s, call.dv = k.shape[1], k.shape[2], v.shape[3]
    call.family, call.flags, call.threads = (
        FAMILIES[family.name],
        SQUARED * family.squared + FAST_EXP * family.fast,
        torch.get_num_threads(),
    )
    call.q, call.k, call.v = pointer(q), pointer(k), pointer(v)
    call.qs[:], call.ks[:], call.vs[:] = q.stride()[:3], k.stride()[:3], v.stride()[:3]
    call.scale, call.softcap = scale, softcap
    call.lo, call.hi = pointer(bands.lo), pointer(bands.hi)
    call.first_lo, call.first_hi = pointer(bands.first_lo), pointer(bands.first_hi)
    call.band_stride = bands.lo.shape[1] if bands.lo.shape[0] > 1 else 0
    if mask is not None:
        if mask.dtype != torch.bool:
            mask = mask.float()
            alive.append(mask)
        call.mask, call.mask_type = pointer(mask), 1 if mask.dtype == torch.bool else 2
        call.ms[:] = [0 if size == 1 else stride for size, stride in zip(mask.shape, mask.stride(), strict=True)]
    call.head, call.row, call.k_of_row = pointer(family.head), pointer(family.row), pointer(family.k)
    if family.row is not None:
        call.rs[:] = [0 if family.row.shape[i] == 1 else family.row.stride(i) for i in (0, 1)]
    call.p0, call.p1 = family.p0, family.p1
    if open_rows is not None:
        index = open_rows.nonzero()[:, 2].to(torch.int32).contiguous()
        at = torch.zeros(call.batch * call.heads + 1, dtype=torch.int64)
        at[1:] = open_rows.sum(-1).flatten().cumsum(0)
        alive += [index, at]
        call.open, call.open_at = pointer(index), pointer(at)
    return call, alive


@dataclass
class Kept:
    """What the forward pass leaves for the backward: ``[b, h, t]`` float32 each."""

    stat: Tensor
    stat2: Tensor
    mass: Tensor
    kept: Tensor


def run_forward(
    library: ctypes.CDLL, q: Tensor, k: Tensor, v: Tensor, family: Family, bands: Bands, mask: Tensor | None,
    scale: float, softcap: float, open_rows: Tensor | None, want_mass: bool, train: bool,
) -> tuple[Tensor, Kept]:  # fmt: skip
    """The output ``[b, h, t, dv]`` in the inputs' dtype, and what the backward pass needs."""
    call, alive = new_call(q, k, v, family, bands, mask, scale, softcap, open_rows)
    call.flags |= 0 if train else NO_BACKWARD
    b, h, t = q.shape[:3]
    make = torch.zeros if open_rows is not None else torch.empty
    out = make(b, h, t, v.shape[3], dtype=q.dtype)
    kept = Kept(
        stat=make(b, h, t),
        stat2=make(b, h, t) if family.name in TWO_STATISTICS else torch.empty(0),
        mass=make(b, h, t) if want_mass else torch.empty(0),
        kept=make(b, h, t, v.shape[3]) if train and keeps(family.name, q.dtype) else torch.empty(0),
    )
    call.out, call.stat = pointer(out), pointer(kept.stat)
    call.stat2 = pointer(kept.stat2) if kept.stat2.numel() else None
    call.mass = pointer(kept.mass) if want_mass else None
    call.kept = pointer(kept.kept) if kept.kept.numel() else None
    if out.numel() or kept.stat.numel():
        library.sinkgate_forward(ctypes.byref(call))
    del alive
    return out, kept


def run_backward(
    library: ctypes.CDLL, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, family: Family, bands: Bands,
    mask: Tensor | None, scale: float, softcap: float, open_rows: Tensor | None,
    stat: Tensor, stat2: Tensor, delta: Tensor, want_head: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k, v in their dtype, and of the family's ``head`` summed over batch and queries."""
    call, alive = new_call(q, k, v, family, bands, mask, scale, softcap, open_rows)
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype) for x in (q, k, v))
    dout = dout.contiguous()
    dhead = torch.zeros(q.shape[:2]) if want_head else None
    call.dout, call.delta, call.dhead = pointer(dout), pointer(delta), pointer(dhead)
    call.stat, call.stat2 = pointer(stat), pointer(stat2) if stat2.numel() else None
    call.dq, call.dk, call.dvalue = pointer(dq), pointer(dk), pointer(dv)
    if dq.numel() and dk.numel():
        library.sinkgate_backward(ctypes.byref(call))
    del alive
    return dq, dk, dv, None if dhead is None else dhead.sum(0)


def run_read(
    library: ctypes.CDLL, q: Tensor, k: Tensor, bands: Bands, scale: float, lse: Tensor, first: Tensor, window: int
) -> dict[str, Tensor]:
    """What each query and key gets, from the kernel's log-sum-exp; nothing of the size t × s is held.

    Args:
        library: the compiled kernels.
        q: ``[b, h, t, d]``; float32, bfloat16 or float16, all finite.
        k: ``[b, kv, s, d]``.
        bands: visibility.
        scale: multiplies q·k.
        lse: ``[b, h, t]`` natural; +inf for queries that do not count.
        first: ``[b]`` int64: the key kept apart.
        window: how many last keys, the own included, are local; 0: only columns, rest and log_first.

    Returns:
        ``columns [b, h, s]``, ``rest``, ``log_first`` (natural), and with a window ``entropy`` (nats; over the other
        keys) ``[b, h, t]`` and ``local``, ``previous``, ``own`` ``[b, h]``.
    """
    call, alive = new_call(q, k, k, Family("softmax"), bands, None, scale, 0.0, None)
    b, h, t, s = *q.shape[:3], k.shape[2]
    lse, first = lse.float().contiguous(), first.long().contiguous()
    out = {"columns": torch.zeros(b, h, SEGMENTS, s), "rest": torch.zeros(b, h, t), "log_first": torch.empty(b, h, t)}
    if window:
        out["entropy"] = torch.zeros(b, h, t)
        out |= {name: torch.zeros(b, h, SEGMENTS, dtype=torch.float64) for name in ("local", "previous", "own")}
    reading = Reading(lse=pointer(lse), first=pointer(first), window=window)
    for name, tensor in out.items():
        setattr(reading, name, pointer(tensor))
    library.sinkgate_read(ctypes.byref(call), ctypes.byref(reading))
    del alive
    out["columns"] = out["columns"].sum(2)
    out["log_first"] *= LN2
    if window:
        out["entropy"] *= LN2
        for name in ("local", "previous", "own"):
            out[name] = out[name].sum(2).float()
    return out
