"""The public operation: :func:`attention`, :func:`weights`, :func:`explain`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import forward_ad

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.ops.bands import bands
from sinkgate.ops.request import Request
from sinkgate.ops.select import Choice, choose, explain_request
from sinkgate.weighting import Weighting, as_weighting

__all__ = ["attention", "explain", "weights"]


def attention(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b hkv s d"],
    v: Float[Tensor, "b hkv s dv"],
    *,
    weighting: str | Weighting = "softmax",
    causal: bool = True,
    window: int | None = None,
    keep_first: int = 0,
    mask: Tensor | None = None,
    cu_seqlens: Int[Tensor, " n"] | None = None,
    document_ids: Int[Tensor, "b t"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    gate: Tensor | None = None,
    skip_below: float | None = None,
    dropout_p: float = 0.0,
    precision: str = "exact",
    impl: str = "auto",
    return_mass: bool = False,
) -> Any:
    """Attention whose weights need not sum to one: ``y = gate · Σ_j a_j v_j`` without T×T.

    Scores are ``scale·q·k``, then softcap, then an additive mask, then visibility, then the weighting.

    Args:
        q: queries ``[b, h, t, d]``; float64, float32, bfloat16 or float16.
        k: keys ``[b, hkv, s, d]``; hkv divides h.
        v: values ``[b, hkv, s, dv]``.
        weighting: a registered name or a value (``sg.SinkSoftmax(z)``, …).
        causal: query i sees keys up to its own position; with t < s the last query stands at the last key.
        window: only the last ``window`` keys, the query's own included.
        keep_first: this many first keys (of each document) stay visible under a window.
        mask: bool (True = visible) or additive float (−9999 or under hides), broadcastable to ``[b, h, t, s]``.
            A mask that pads keys has shape ``[b, 1, 1, s]``.
        cu_seqlens: ``[0, …, t]``: documents packed one after the other in one row (b = 1 or the same for all rows).
        document_ids: ``[b, t]``: the document of each position, in unbroken runs; instead of ``cu_seqlens``.
        scale: multiplies q·k; default ``d ** -0.5``.
        softcap: scores become ``softcap·tanh(score / softcap)``.
        gate: multiplies the output: ``[b, h, t]`` or ``[b, h, t, 1]`` per query and head, ``[b, h, t, dv]`` elementwise.
        skip_below: queries and heads whose gate is nowhere above this in absolute value are not computed; their
            output is 0. Exact for 0; else a row errs by at most ``skip_below·Σa·max‖v‖`` (elementwise gates: in each
            component). A closed gate gets no gradient.
        dropout_p: must be 0.
        precision: ``"exact"``, or ``"fast"``: bfloat16 inputs may get exponentials to 2·10⁻⁴ (a twentieth of
            bfloat16's step) in the forward pass; elsewhere the same as exact.
        impl: ``"auto"`` or a name of ``sinkgate ls``; :func:`explain` tells what would run.
        return_mass: also return Σ of the weights and the sink's share.

    Returns:
        ``[b, h, t, dv]`` in q's dtype, or with ``return_mass`` that and a :class:`~sinkgate.ops.request.Mass`.
        A query that sees nothing gets zeros, and no gradient.

    Raises:
        ArgumentError: an argument is wrong; the message names it.
        UnsupportedError: what is asked for cannot be done by any implementation.
    """
    request, gate = prepared(
        q, k, v, weighting, causal, window, keep_first, mask, cu_seqlens, document_ids, scale, softcap, gate, skip_below,
        dropout_p, precision, return_mass,
    )  # fmt: skip
    out, mass = choose(request, impl).run(request)
    if gate is not None:
        out = out * gate.to(out.dtype)
    return (out, mass) if return_mass else out


def explain(
    q: Tensor, k: Tensor, v: Tensor, *, impl: str = "auto", weighting: str | Weighting = "softmax", causal: bool = True,
    window: int | None = None, keep_first: int = 0, mask: Tensor | None = None, cu_seqlens: Tensor | None = None,
    document_ids: Tensor | None = None, scale: float | None = None, softcap: float | None = None,
    gate: Tensor | None = None, skip_below: float | None = None, dropout_p: float = 0.0, precision: str = "exact",
    return_mass: bool = False,
) -> Choice:  # fmt: skip
    """Which implementation :func:`attention` would run for these arguments, and why others would not.

    Asked of the same table that dispatches. Printing the result gives one line per implementation.
    """
    request, _ = prepared(
        q, k, v, weighting, causal, window, keep_first, mask, cu_seqlens, document_ids, scale, softcap, gate, skip_below,
        dropout_p, precision, return_mass,
    )  # fmt: skip
    return explain_request(request, impl)


def weights(
    scores: Float[Tensor, "*b h t s"], weighting: str | Weighting = "softmax", mask: Tensor | None = None
) -> Float[Tensor, "*b h t s"]:
    """The weights themselves, for small n: scores of any shape, keys last.

    Args:
        scores: any leading shape; a weighting with one value per head needs ``[…, h, t, s]``.
        weighting: a registered name or a value.
        mask: bool, True = visible, broadcastable to the scores.

    >>> import torch
    >>> weights(torch.tensor([-100.0, -101.0])).tolist()
    [0.7310585975646973, 0.2689414322376251]
    """
    if not scores.is_floating_point():
        raise ArgumentError(f"scores must be floating point, got {scores.dtype}")
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ArgumentError(f"mask must be bool (True = visible), got {mask.dtype}")
        mask = broadcast(mask, tuple(scores.shape), "mask")
    found = as_weighting(weighting)
    if scores.shape[-1] == 0:
        return torch.zeros_like(scores)
    from sinkgate.ops.native import maps

    if maps.refuses(scores, found) is None:
        return maps.run(scores, found, mask)
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    return found.weights(wide, mask).to(scores.dtype)


# ---- arguments ---------------------------------------------------------------------------------------------------


def prepared(
    q: Tensor, k: Tensor, v: Tensor, weighting: str | Weighting, causal: bool, window: int | None, keep_first: int,
    mask: Tensor | None, cu_seqlens: Tensor | None, document_ids: Tensor | None, scale: float | None,
    softcap: float | None, gate: Tensor | None, skip_below: float | None, dropout_p: float, precision: str,
    return_mass: bool,
) -> tuple[Request, Tensor | None]:  # fmt: skip
    """The arguments of :func:`attention`, checked, in one form; and the gate as ``[b, h, t, 1 or dv]``."""
    check_tensors(q, k, v)
    if dropout_p:
        raise UnsupportedError(f"dropout_p must be 0, got {dropout_p}: dropout on attention weights is not offered")
    if precision not in ("exact", "fast"):
        raise ArgumentError(f"precision must be 'exact' or 'fast', got {precision!r}")
    device = torch.get_autocast_dtype(q.device.type) if torch.is_autocast_enabled(q.device.type) else None
    if device is not None and q.dtype != torch.float64:
        q, k, v = (x.to(device) for x in (q, k, v))
    b, h, t, d = q.shape
    s = k.shape[2]
    found = as_weighting(weighting)
    check_fields(found, q)
    check_structure(t, s, causal, window, keep_first, cu_seqlens, document_ids, b)
    if mask is not None:
        if not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ArgumentError(f"mask must be bool (True = visible) or additive float, got {mask.dtype}")
        if mask.device != q.device:
            raise ArgumentError(f"mask must be on {q.device} like q, got {mask.device}")
        mask = broadcast(mask, (b, h, t, s), "mask")
    if scale is None:
        scale = d**-0.5
    elif not math.isfinite(scale):
        raise ArgumentError(f"scale must be finite, got {scale}")
    if softcap is not None and not (0 < softcap < math.inf):
        raise ArgumentError(f"softcap must be a positive number or None, got {softcap}")
    closed = None
    if gate is not None:
        gate = as_gate(gate, q, v.shape[3])
    if skip_below is not None:
        if gate is None:
            raise ArgumentError(f"skip_below={skip_below} leaves out what a gate closes, and there is no gate")
        if not 0 <= skip_below < math.inf:
            raise ArgumentError(f"skip_below must be a number of 0 or more, got {skip_below}")
        closed = (gate.detach().abs() <= skip_below).all(-1)
    structure = bands(
        t, s, batch=b, causal=causal, window=window, keep_first=keep_first, cu_seqlens=cu_seqlens,
        document_ids=document_ids, device=q.device,
    )  # fmt: skip
    unpacked = cu_seqlens is None and document_ids is None
    plain = None
    if unpacked and causal and (window is None or window >= s):
        plain = "all" if t == 1 else "causal" if t == s else None
    elif unpacked and not causal:
        plain = "all"
    request = Request(
        q, k, v, found, structure, mask, plain, float(scale), float(softcap or 0.0), None if closed is None else ~closed,
        return_mass, precision,
    )  # fmt: skip
    return request, gate


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Ranks, head counts, dtypes and devices of q, k and v."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ArgumentError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != 4:
            raise ArgumentError(f"{name} must be [batch, heads, length, dim], got {list(x.shape)}")
        if x.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            raise ArgumentError(f"{name} must be float64, float32, bfloat16 or float16, got {x.dtype}")
        if x.dtype != q.dtype:
            raise ArgumentError(f"{name} must have q's dtype {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ArgumentError(f"{name} must be on q's device {q.device}, got {x.device}")
        if x.shape[0] != q.shape[0]:
            raise ArgumentError(f"{name} must have q's batch {q.shape[0]}, got {x.shape[0]}")
        if torch._C._functorch.is_batchedtensor(x):
            raise UnsupportedError(
                "attention cannot run under vmap: put the mapped axis into the batch; for small sizes, write "
                "sg.weights(scores, …) @ v, which can be mapped"
            )
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            raise UnsupportedError(
                "attention has no forward-mode derivative (jvp, jacfwd); for small sizes, write sg.weights(scores, …) @ v"
            )
    if q.shape[3] != k.shape[3]:
        raise ArgumentError(f"k must have q's last dimension {q.shape[3]}, got {k.shape[3]}")
    if k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]:
        raise ArgumentError(f"v must have k's heads and length {list(k.shape[1:3])}, got {list(v.shape[1:3])}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ArgumentError(f"k must have a number of heads that divides q's {q.shape[1]}, got {k.shape[1]}")


def check_fields(weighting: Weighting, q: Tensor) -> None:
    """A weighting's tensors: a number, one per head, or (k of top-k) one per row; on q's device."""
    h, t = q.shape[1], q.shape[2]
    for name, x in weighting.tensors().items():
        if x.device != q.device:
            raise ArgumentError(f"{name} must be on {q.device} like q, got {x.device}")
        if x.ndim == 0 or tuple(x.shape) == (h,):
            continue
        if not x.is_floating_point() and x.ndim >= 2:
            if tuple(x.shape) in ((h, t), (1, t), (q.shape[0], h, t), (1, h, t), (q.shape[0], 1, t)):
                continue
            raise ArgumentError(
                f"{name} must be a number, [{h}] per head or [{q.shape[0]}, {h}, {t}] per row, got {list(x.shape)}"
            )
        raise ArgumentError(f"{name} must be a number or have one entry per head ({h}), got {list(x.shape)}")


def check_structure(
    t: int, s: int, causal: bool, window: int | None, keep_first: int, cu_seqlens: Tensor | None,
    document_ids: Tensor | None, b: int,
) -> None:  # fmt: skip
    """causal, window, keep_first and the documents go together."""
    if causal and t > s:
        raise ArgumentError(
            f"causal needs at least as many keys as queries, got {t} queries and {s} keys; causal=False?"
        )
    for name, value, least in (("window", window, 1), ("keep_first", keep_first, 0)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or value < least:
            raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if window is not None and not causal:
        raise ArgumentError("window counts back from the query and needs causal=True; give a mask instead")
    if keep_first and window is None:
        raise ArgumentError(f"keep_first={keep_first} keeps first keys visible under a window, and there is no window")
    if cu_seqlens is not None and document_ids is not None:
        raise ArgumentError("give cu_seqlens or document_ids, not both")
    for name, ids in (("cu_seqlens", cu_seqlens), ("document_ids", document_ids)):
        if ids is None:
            continue
        if ids.dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"{name} must be int32 or int64, got {ids.dtype}")
        if t != s:
            raise ArgumentError(f"{name} needs as many queries as keys, got {t} and {s}")
    if cu_seqlens is not None:
        if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 2:
            raise ArgumentError(f"cu_seqlens must be [0, …, {t}], got shape {list(cu_seqlens.shape)}")
        if not torch.compiler.is_compiling():
            ends = cu_seqlens.tolist()
            if ends[0] != 0 or ends[-1] != t or any(a >= z for a, z in itertools.pairwise(ends)):
                raise ArgumentError(f"cu_seqlens must rise from 0 to the length {t}, got {ends}")
    if document_ids is not None and tuple(document_ids.shape) not in ((b, t), (1, t)):
        raise ArgumentError(f"document_ids must be [{b}, {t}], got {list(document_ids.shape)}")


def broadcast(mask: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """A view of the wanted shape."""
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise ArgumentError(f"{name} must be broadcastable to {list(shape)}, got {list(mask.shape)}") from None


def as_gate(gate: Tensor, q: Tensor, dv: int) -> Tensor:
    """The gate as ``[b, h, t, 1 or dv]``."""
    b, h, t = q.shape[:3]
    if gate.device != q.device:
        raise ArgumentError(f"gate must be on {q.device} like q, got {gate.device}")
    if tuple(gate.shape) == (b, h, t):
        gate = gate[..., None]
    if tuple(gate.shape) not in ((b, h, t, 1), (b, h, t, dv)) or not gate.is_floating_point():
        raise ArgumentError(
            f"gate must be floating point [{b}, {h}, {t}] per query and head or [{b}, {h}, {t}, {dv}] elementwise, got "
            f"{str(gate.dtype).removeprefix('torch.')} {list(gate.shape)}"
        )
    return gate
