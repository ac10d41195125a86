"""Numbers in fewer bits: which numbers share a scale, and how each is rounded.

``quantize`` gives back numbers of the same dtype, rounded as a quantiser would round them, so that a model can be run with
them (:func:`sinkgate.quantized`). The cache stores such numbers for real (:mod:`sinkgate.cache.packed`) with the same
functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = [
    "GRANULARITIES",
    "PLACES",
    "Quantization",
    "as_quantization",
    "codes_above",
    "least_and_step",
    "numbers_above",
    "quantize",
]

# place → granularity → the axes of what is quantised along which numbers share a scale. Weights are [out, in], activations
# [..., features], keys and values [b, kv heads, tokens, d], where no row of the batch shares a scale with another. A group
# has an axis of its own, the last. The first granularity of a place is the usual one there.
PLACES: dict[str, dict[str, tuple[int, ...]]] = {
    "weights": {"channel": (1,), "tensor": (0, 1), "group": (-1,)},
    "activations": {"token": (-1,), "tensor": (), "group": (-1,)},  # (): all axes, however many
    "kv": {"token": (3,), "group": (-1,), "channel": (2,), "head": (2, 3), "tensor": (1, 2, 3)},
}
GRANULARITIES = ("tensor", "channel", "token", "group", "head")
OFFSETS = ("whole", "least")

_WHY = {  # what cannot be, and why
    ("weights", "token"): "a weight belongs to no token",
    ("weights", "head"): "a weight's rows are output channels, whichever head they lead to",
    ("activations", "channel"): "a scale per input channel cannot be taken out of the sum over channels",
    ("activations", "head"): "the input of a linear layer has no heads",
}
_TEXT = re.compile(r"\s*(u?)int(\d+)\s*(?:\(([^()]*)\))?\s*", re.ASCII)


@dataclass(frozen=True)
class Quantization:
    """Round to nearest even on a grid whose range is that of the numbers themselves; nothing is calibrated or clipped.

    *Symmetric*: codes from ``−(2^(bits−1) − 1)`` to the same above 0, scale ``max|x|`` over that; at 2 bits: −1, 0, 1.
    *Not symmetric*, ``offset="whole"``: codes 0 to ``2^bits − 1`` over the least and the largest of the numbers and 0, with a
    whole number as zero point, so that 0 is exact (Jacob et al. 2018, arXiv 1712.05877, eq. 1). ``offset="least"``: codes count
    from the least number, which need not be 0's neighbour; it and the scale are held in half precision, so numbers beyond
    65504 are cut (KIVI, Liu et al. 2024, arXiv 2402.02750); this is what the quantised cache stores, to the bit.

    As text: ``"int8"``, ``"int8(channel)"``, ``"int4(group=64)"``, ``"uint8(token)"``, ``"uint4(channel, offset=least)"``;
    uint is not symmetric.

    Args:
        bits: 2 to 8.
        symmetric: see above.
        granularity: which numbers share a scale: ``"tensor"`` all, ``"channel"`` one output channel of a weight or one
            channel of one head, ``"token"`` one token (of keys and values: in one head), ``"group"`` so many neighbours along
            the dimension that is summed over (inputs of a weight, features, channels of a head), ``"head"`` one head.
            None: what is usual where it is used: channel for weights, token for activations, keys and values.
        group: how many; for ``"group"``.
        offset: of one that is not symmetric.

    Raises:
        ArgumentError: a value out of range, or values that do not go together.

    >>> Quantization.from_text("int4(group=64)")
    Quantization(bits=4, symmetric=True, granularity='group', group=64, offset='whole')
    >>> str(Quantization(8, symmetric=False, granularity="token"))
    'uint8(token)'
    """

    bits: int = 8
    symmetric: bool = True
    granularity: str | None = None
    group: int | None = None
    offset: str = "whole"

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 2 <= self.bits <= 8:
            raise ArgumentError(f"bits must be a whole number from 2 to 8, got {self.bits!r}")
        if type(self.symmetric) is not bool:
            raise ArgumentError(f"symmetric must be True or False, got {self.symmetric!r}")
        if self.group is not None and (type(self.group) is not int or self.group < 2):
            raise ArgumentError(f"group must be a whole number of at least 2, got {self.group!r}")
        if self.granularity is None and self.group is not None:
            object.__setattr__(self, "granularity", "group")
        if self.granularity is not None and self.granularity not in GRANULARITIES:
            raise ArgumentError(f"granularity must be one of {', '.join(GRANULARITIES)}, got {self.granularity!r}")
        if (self.granularity == "group") != (self.group is not None):
            raise ArgumentError(
                "granularity 'group' needs its size: group=64"
                if self.group is None
                else f"group={self.group} is for granularity 'group', got {self.granularity!r}"
            )
        if self.offset not in OFFSETS:
            raise ArgumentError(f"offset must be 'whole' or 'least', got {self.offset!r}")
        if self.symmetric and self.offset != "whole":
            raise ArgumentError("offset='least' is for symmetric=False (uint…): a symmetric grid has no offset")

    def at(self, place: str) -> Quantization:
        """The same, with what is usual at ``"weights"``, ``"activations"`` or ``"kv"`` where nothing was said.

        Raises:
            ArgumentError: a granularity that makes no sense there.
        """
        known = PLACES[place]
        if self.granularity is None:
            return dataclasses.replace(self, granularity=next(iter(known)))
        if self.granularity not in known:
            raise ArgumentError(
                f"{place} cannot be quantised per {self.granularity}: {_WHY[place, self.granularity]}; "
                f"use {', '.join(known)}"
            )
        return self

    def __str__(self) -> str:
        parts = [f"group={self.group}" if self.granularity == "group" else self.granularity]
        parts += [f"offset={self.offset}" if self.offset != "whole" else None]
        inside = ", ".join(p for p in parts if p)
        return f"{'' if self.symmetric else 'u'}int{self.bits}" + (f"({inside})" if inside else "")

    @classmethod
    def from_text(cls, text: str) -> Quantization:
        """What :func:`str` gives, read back.

        Raises:
            ArgumentError: it cannot be read; says what was expected.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ArgumentError(f"cannot read {text!r} as a quantization; write int8, int4(group=64), uint8(token)")
        given: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in (found[3] or "").split(","))):
            name, equals, value = (p.strip() for p in part.partition("="))
            key = name if equals else "granularity"
            if (equals and name not in ("group", "offset")) or key in given:
                raise ArgumentError(f"cannot read {part!r} in {text!r}; inside brackets: {', '.join(GRANULARITIES)}, "
                                    "group=64, offset=least")  # fmt: skip
            given[key] = int(value) if key == "group" and value.isdecimal() else value if equals else name
        return cls(int(found[2]), symmetric=not found[1], **given)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_json` is the way back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quantization:
        """The way back from :meth:`to_json`.

        Raises:
            ArgumentError: a name that is no field, or a value out of range.
        """
        unknown = set(data) - {f.name for f in dataclasses.fields(cls)}
        if unknown:
            raise ArgumentError(f"a quantization has no {', '.join(sorted(unknown))}")
        return cls(**data)


def as_quantization(value: str | Quantization, place: str) -> Quantization:
    """A value or its text, as it is at a place.

    Raises:
        ArgumentError: neither, or it makes no sense there.
    """
    if isinstance(value, str):
        value = Quantization.from_text(value)
    if not isinstance(value, Quantization):
        raise ArgumentError(f"{place} must be a text such as 'int8' or a sg.Quantization, got {value!r}")
    return value.at(place)


# ---- rounding -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def quantize(
    x: Float[Tensor, ...], spec: Quantization, place: str, among: Bool[Tensor, ...] | None = None
) -> Float[Tensor, ...]:
    """The numbers, each rounded to the grid it shares with others; computed in float32 (float64 for float64).

    NaN and infinity make NaN of all that share their scale, with ``offset="least"`` an infinity is cut like any number.

    Args:
        x: weights ``[out, in]``, activations ``[..., features]``, or keys or values ``[b, kv, s, d]``.
        spec: how.
        place: which of the three: ``"weights"``, ``"activations"``, ``"kv"``.
        among: which of the numbers the range is taken of (broadcast to x); None: all. The others are cut to that range.

    Raises:
        ArgumentError: groups that do not divide the last axis, or a granularity that makes no sense here.
    """
    spec = spec.at(place)
    if x.numel() == 0:
        return x
    shape, dims = x.shape, PLACES[place][spec.granularity or ""]
    if spec.group is not None:
        if shape[-1] % spec.group:
            raise ArgumentError(f"group={spec.group} does not divide {shape[-1]} numbers; take a divisor of it")
        x = x.unflatten(-1, (-1, spec.group))
        among = None if among is None else among.expand(shape).unflatten(-1, (-1, spec.group))
    dims = dims or tuple(range(x.ndim))
    if spec.offset == "least":
        zero, step = least_and_step(x, spec.bits, dims, among)
        return numbers_above(codes_above(x, zero, step, spec.bits), zero, step, x.dtype).reshape(shape)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    least, most = _extremes(wide, dims, among)
    zero = torch.zeros_like(least)
    if spec.symmetric:
        low, high = 1 - 2 ** (spec.bits - 1), 2 ** (spec.bits - 1) - 1
        step = torch.maximum(-least, most) / high
    else:
        low, high = 0, 2**spec.bits - 1
        least, most = least.clamp(max=0.0), most.clamp(min=0.0)
        step = (most - least) / high
        zero = _steps(-least, step).round().clamp(low, high)
    codes = (_steps(wide, step).round() + zero).clamp(low, high)
    return ((codes - zero) * step).to(x.dtype).reshape(shape)


def least_and_step(
    x: Float[Tensor, ...], bits: int, dims: int | tuple[int, ...], among: Bool[Tensor, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """The least number and the step to the largest, in float16, kept along the axes that share them."""
    limit = torch.finfo(torch.float16).max
    least, most = _extremes(x.float(), dims, among)
    zero = least.clamp(-limit, limit).half()
    return zero, ((most - zero.float()) / (2**bits - 1)).clamp(0, limit).half()


def codes_above(x: Float[Tensor, ...], zero: Tensor, step: Tensor, bits: int) -> UInt8[Tensor, ...]:
    """How many steps above ``zero`` each number is, to the nearest that the bits can hold."""
    return _steps(x.float() - zero.float(), step.float()).round().clamp(0, 2**bits - 1).to(torch.uint8)


def numbers_above(codes: UInt8[Tensor, ...], zero: Tensor, step: Tensor, dtype: torch.dtype) -> Float[Tensor, ...]:
    """The numbers that :func:`codes_above` stands for."""
    wide = torch.promote_types(dtype, torch.float32)
    return torch.addcmul(zero.to(wide), codes.to(wide), step.to(wide)).to(dtype)


def _steps(x: Tensor, step: Tensor) -> Tensor:
    """``x / step``; a step of 0, where all numbers are the same or too small for a scale, counts none."""
    return x / torch.where(step == 0, 1.0, step)


def _extremes(x: Tensor, dims: int | tuple[int, ...], among: Tensor | None) -> tuple[Tensor, Tensor]:
    if among is None:
        return x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
    among = among.expand(x.shape)
    none = ~among.any(dims, keepdim=True)
    least = x.masked_fill(~among, torch.inf).amin(dims, keepdim=True)
    most = x.masked_fill(~among, -torch.inf).amax(dims, keepdim=True)
    return least.masked_fill(none, 0.0), most.masked_fill(none, 0.0)
