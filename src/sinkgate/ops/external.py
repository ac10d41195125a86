"""Other people's CUDA kernels behind the same protocol, asked for by name only: ``flex``, ``flash4`` and ``adasplash``.

``flex`` is torch's FlexAttention: softmax, and softmax with a sink logit where no gradient is wanted, by
``o′ = o·σ(lse − z)`` (maths.md §1). ``adasplash`` is the package of Gonçalves et al. 2025, arXiv 2502.12082: sparsemax
and entmax with one α. Neither holds T×T. A NaN in a key or value may reach rows of its block that do not see it.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinkgate.ops.request import Mass, Request
from sinkgate.weighting.softmax import SinkSoftmax, Softmax, Softmax1
from sinkgate.weighting.sparse import Entmax, Sparsemax

__all__ = ["External", "adasplash", "flash4", "flex"]

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class External:
    """An implementation: what a module of this package has as its own names."""

    summary: str
    refuses: Callable[[Request], str | None]
    run: Callable[[Request], tuple[Tensor, Mass | None]]

    def prefers(self, r: Request) -> bool:
        """Never chosen by "auto"."""
        return False


def has(module: str) -> bool:
    """Whether a module can be imported; imports its parents only."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def kind(dtype: torch.dtype) -> str:
    """A dtype's bare name."""
    return str(dtype).removeprefix("torch.")


# ---- FlexAttention -------------------------------------------------------------------------------------------------


def flex_refuses(r: Request) -> str | None:
    """Why this call cannot run in FlexAttention, or None."""
    if not has("torch.nn.attention.flex_attention"):
        return "this torch has no FlexAttention"
    if r.q.device.type != "cuda":
        return (
            f"it is for CUDA tensors, these are on {r.q.device.type} (there it has no backward pass and no log-sum-exp)"
        )
    if type(r.weighting) not in (Softmax, SinkSoftmax, Softmax1):
        return f"it knows softmax, sink_softmax and softmax1, not {r.weighting.name}"
    if type(r.weighting) is not Softmax and r.learns:
        return "a sink logit through its log-sum-exp is offered without gradients only"
    if r.q.dtype not in (torch.float32, *HALVES):
        return f"it knows float32, bfloat16 and float16, not {kind(r.q.dtype)}"
    if r.mask is not None:
        return "a mask tensor would be T×T to it"
    if r.open is not None:
        return "it cannot leave out closed queries"
    if min(r.q.shape[-1], r.v.shape[-1]) < 16:
        return f"its products need head dimensions of at least 16, got d={r.q.shape[-1]} and dv={r.v.shape[-1]}"
    if r.q.numel() == 0 or r.k.numel() == 0:
        return "it needs at least one query and one key"
    return None


@functools.cache
def compiled() -> Any:
    """FlexAttention through torch.compile; uncompiled it holds T×T."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def visibility(r: Request) -> Any:
    """The bands as a BlockMask."""
    from torch.nn.attention.flex_attention import create_block_mask

    lo, hi, first_lo, first_hi = r.bands.lo, r.bands.hi, r.bands.first_lo, r.bands.first_hi
    own = lo.shape[0] > 1  # else one row of bands for the whole batch

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = b if own else 0 * b
        seen = (j >= lo[row, i]) & (j < hi[row, i])
        if first_lo is not None and first_hi is not None:
            seen = seen | ((j >= first_lo[row, i]) & (j < first_hi[row, i]))
        return seen

    batch = r.q.shape[0] if own else None
    return create_block_mask(sees, batch, None, r.q.shape[2], r.k.shape[2], device=r.q.device)


def flex_run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    from torch.nn.attention import flex_attention as flex_module

    cap = r.softcap

    def capped(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    options: dict[str, Any] = {
        "score_mod": capped if cap else None, "block_mask": visibility(r), "scale": r.scale, "enable_gqa": r.group > 1,
    }  # fmt: skip
    if isinstance(r.weighting, Softmax):
        out = compiled()(r.q, r.k, r.v, **options)
        if not r.return_mass:
            return out, None
        total = (r.bands.counts() > 0).float()[:, None].expand(r.q.shape[:3]).contiguous()
        return out, Mass(total, torch.zeros_like(total))

    if hasattr(flex_module, "AuxRequest"):
        out, aux = compiled()(r.q, r.k, r.v, return_aux=flex_module.AuxRequest(lse=True), **options)
        lse = aux.lse
    else:  # torch before 2.9
        out, lse = compiled()(r.q, r.k, r.v, return_lse=True, **options)
    z = r.weighting.z if isinstance(r.weighting, SinkSoftmax) else 0.0
    z = torch.as_tensor(z, dtype=torch.float32, device=lse.device).expand(r.q.shape[1])[:, None]
    lse = lse.float()
    total = torch.sigmoid(torch.where(lse == -torch.inf, lse, lse - z))
    out = (out * total[..., None]).to(r.q.dtype)
    return out, Mass(total, 1 - total) if r.return_mass else None


flex = External(
    "torch's FlexAttention on CUDA, for softmax; with a sink logit without gradients", flex_refuses, flex_run
)


# ---- AdaSplash -----------------------------------------------------------------------------------------------------


def adasplash_refuses(r: Request) -> str | None:
    """Why this call cannot run in AdaSplash, or None."""
    if type(r.weighting) not in (Sparsemax, Entmax):
        return f"it knows sparsemax and entmax, not {r.weighting.name}"
    if not has("adasplash"):
        return "adasplash is not installed (pip install adasplash)"
    if r.q.device.type != "cuda":
        return f"it is for CUDA tensors, these are on {r.q.device.type}"
    if isinstance(r.weighting, Entmax) and isinstance(r.weighting.alpha, Tensor):
        return "its α is one number that is not learned, got a tensor"
    if r.q.dtype not in (torch.float32, *HALVES):
        return f"it knows float32, bfloat16 and float16, not {kind(r.q.dtype)}"
    if r.plain is None or r.mask is not None or r.q.shape[2] != r.k.shape[2]:
        return "it knows causal and full attention over as many keys as queries only"
    if r.softcap or r.open is not None:
        return "it has no softcap and cannot leave out closed queries"
    if r.group != 1 or r.q.shape[-1] != r.v.shape[-1]:
        return "it needs as many key heads as query heads, and dv = d"
    if r.q.shape[-1] not in (16, 32, 64, 128, 256):
        return f"it needs a head dimension of 16, 32, 64, 128 or 256, got {r.q.shape[-1]}"
    if abs(r.scale - r.q.shape[-1] ** -0.5) > 1e-9:
        return f"its scale is d ** -0.5, got {r.scale}"
    if r.learns and not r.q.requires_grad:
        return "it gives gradients only where q needs one"
    if r.q.numel() == 0:
        return "it needs at least one query and one key"
    return None


def adasplash_run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`."""
    from adasplash import adasplash_no_block_mask  # type: ignore[import-not-found]

    alpha = float(r.weighting.alpha) if isinstance(r.weighting, Entmax) else 2.0
    q, k, v = (x.contiguous() for x in (r.q, r.k, r.v))
    lengths = torch.full((q.shape[0],), q.shape[2], dtype=torch.int32, device=q.device)  # without them t must be 2^n
    out = adasplash_no_block_mask(q, k, v, alpha=alpha, is_causal=r.plain == "causal", varlen=lengths)
    if not r.return_mass:
        return out, None
    total = torch.ones(q.shape[:3], device=q.device)
    return out, Mass(total, torch.zeros_like(total))


adasplash = External("the adasplash package on CUDA, for sparsemax and entmax", adasplash_refuses, adasplash_run)


# ---- FlashAttention 4 ----------------------------------------------------------------------------------------------


def flash4_refuses(r: Request) -> str | None:
    """Why this call cannot run in the flash-attn-4 package, or None."""
    if not has("flash_attn.cute.interface"):
        return "flash-attn-4 is not installed (pip install --pre flash-attn-4)"
    if r.q.device.type != "cuda":
        return f"it is for CUDA tensors, these are on {r.q.device.type}"
    if type(r.weighting) not in (Softmax, SinkSoftmax, Softmax1):
        return f"it knows softmax, sink_softmax and softmax1, not {r.weighting.name}"
    if r.q.dtype not in HALVES:
        return f"it knows bfloat16 and float16, not {kind(r.q.dtype)}"
    if r.plain is None or r.mask is not None or r.open is not None:
        return "it is used for plain causal attention over equal lengths and for full attention only"
    if r.return_mass:
        return "it does not tell the mass"
    if r.q.numel() == 0 or r.k.numel() == 0:
        return "it needs at least one query and one key"
    return None


def flash4_run(r: Request) -> tuple[Tensor, Mass | None]:
    """See :func:`sinkgate.attention`. The package keeps heads behind the length, and takes the sink logit as it is."""
    from flash_attn.cute.interface import flash_attn_func

    z = None
    if not isinstance(r.weighting, Softmax):
        value = r.weighting.z if isinstance(r.weighting, SinkSoftmax) else 0.0
        z = torch.as_tensor(value, device=r.q.device, dtype=torch.float32).expand(r.q.shape[1]).contiguous()
    q, k, v = (x.transpose(1, 2).contiguous() for x in (r.q, r.k, r.v))
    causal = r.plain == "causal"
    found = flash_attn_func(q, k, v, softmax_scale=r.scale, causal=causal, learnable_sink=z, softcap=r.softcap)
    out = found[0] if isinstance(found, tuple) else found
    return out.transpose(1, 2), None


flash4 = External(
    "the flash-attn-4 package on CUDA, for softmax with or without a sink logit", flash4_refuses, flash4_run
)
