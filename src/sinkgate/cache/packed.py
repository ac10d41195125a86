"""Tensors in 8 or 4 bits: whole numbers between the least and the largest, with a scale and a zero in half precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sinkgate.quantization import codes_above, least_and_step, numbers_above

__all__ = ["Packed", "pack"]


@dataclass(eq=False)
class Packed:
    """``codes · scale + zero``.

    Args:
        codes: uint8; of 4 bits two numbers to a byte along the last axis.
        scale: float16, broadcast along the axis that shares it.
        zero: likewise.
        bits: 8 or 4.
    """

    codes: UInt8[Tensor, ...]
    scale: Float[Tensor, ...]
    zero: Float[Tensor, ...]
    bits: int

    def unpack(self, dtype: torch.dtype) -> Tensor:
        """The numbers again, rounded as they are."""
        codes = self.codes
        if self.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        return numbers_above(codes, self.zero, self.scale, dtype)


def pack(x: Float[Tensor, "... n d"], bits: int, axis: int) -> Packed:
    """Numbers that share a scale along ``axis``: −2 is per channel (over tokens), −1 per token (over channels).

    The error of a number is at most half a step, ``(max − min) / (2^bits − 1) / 2``, and half precision's rounding of the
    ends. A last axis of odd length cannot be halved and is refused by the caller.
    """
    zero, scale = least_and_step(x, bits, axis)
    codes = codes_above(x, zero, scale, bits)
    if bits == 4:
        codes = codes[..., ::2] | (codes[..., 1::2] << 4)
    return Packed(codes, scale, zero, bits)
