"""Rotary position embedding: rotate at any position, and re-rotate from one to another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["Rotation", "frequencies", "rotate", "yarn"]


def frequencies(dim: int, theta: float = 10000.0, device: torch.device | str | None = None) -> Float[Tensor, " half"]:
    """``θ^{−2i/dim}`` for i < dim/2, float32 (Su et al. 2021, arXiv 2104.09864, eq. 15)."""
    if dim < 2 or dim % 2:
        raise ArgumentError(f"a rotary dimension must be even and at least 2, got {dim}")
    return theta ** (-torch.arange(0, dim, 2, device=device).float() / dim)


def rotate(
    x: Float[Tensor, "*b t d"], positions: Int[Tensor, "*#b t"], *, theta: float = 10000.0, dim: int | None = None
) -> Float[Tensor, "*b t d"]:
    """Turn pairs ``(x_i, x_{i + dim/2})`` by ``position·θ^{−2i/dim}``.

    Rotations add up: a key rotated at p and then by ``q − p`` is the key rotated at q, which is how a cache moves
    what it keeps.

    Args:
        x: queries or keys.
        positions: of each of the t rows; may be negative.
        theta: base.
        dim: rotate only the first ``dim`` components (default all).
    """
    dim = x.shape[-1] if dim is None else dim
    angle = positions[..., None].float() * frequencies(dim, theta, x.device)
    cos, sin = torch.cos(angle), torch.sin(angle)
    turned, rest = x[..., :dim].float(), x[..., dim:]
    a, b = turned.chunk(2, dim=-1)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


@dataclass(frozen=True, eq=False)
class Rotation:
    """A model's rotation, exact at any position: angles are computed in float64 and reduced before they are rounded.

    A float32 product ``position·ω`` is off by up to 0.03 rad at position 10⁶; here token 10⁶ is as right as token 10³.

    Args:
        omega: angle per position of each pair, ``[dim / 2]`` float64.
        interleaved: pairs are ``(x_2i, x_2i+1)`` (GPT-J, GLM), else ``(x_i, x_i+dim/2)`` (Llama).
        scale: what the model multiplies its cosines and sines with (YaRN's attention factor); never applied by :meth:`turn`.
        layout: how the model's own cos and sin repeat the angles: ``halves`` (twice one behind the other), ``pairs`` (each
            twice), ``once``.
    """

    omega: Float[Tensor, " half"]
    interleaved: bool = False
    scale: float = 1.0
    layout: str = "halves"

    @property
    def dim(self) -> int:
        """How many components are turned; the rest of a head stays as it is."""
        return 2 * len(self.omega)

    def cos_sin(self, positions: Int[Tensor, "*b t"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What the model's own rotary module would hand its layers, from exact angles."""
        angle = positions[..., None].double() * self.omega
        cos, sin = torch.cos(angle) * self.scale, torch.sin(angle) * self.scale
        if self.layout == "halves":
            cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
        elif self.layout == "pairs":
            cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        return cos.to(dtype), sin.to(dtype)

    def angles(self, positions: Int[Tensor, "*b t"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[*b, t, dim/2]`` for :meth:`apply`, without the scale."""
        angle = positions[..., None].double() * self.omega
        return torch.cos(angle).to(dtype), torch.sin(angle).to(dtype)

    def apply(self, x: Float[Tensor, "*b t d"], cos: Tensor, sin: Tensor) -> Float[Tensor, "*b t d"]:
        """``x`` turned by given angles, in the dtype of the angles."""
        dim = self.dim
        turned, rest = x[..., :dim].to(cos.dtype), x[..., dim:]
        if self.interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            out = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = turned[..., : dim // 2], turned[..., dim // 2 :]
            out = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([out, rest.to(cos.dtype)], -1) if rest.shape[-1] else out

    def turn(self, x: Float[Tensor, "*b t d"], by: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b t d"]:
        """``x`` turned by so many positions, which may be negative: a key at p becomes the key at ``p + by``.

        Half-precision comes back as float32; the caller rounds.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        return self.apply(x, *self.angles(by, wide))


def yarn(
    dim: int, theta: float, factor: float, context: int, device: torch.device | str | None = None, *,
    fast: float = 32.0, slow: float = 1.0,
) -> tuple[Float[Tensor, " half"], float]:  # fmt: skip
    """YaRN's angles per position, and what cosines and sines are multiplied with (Peng et al. 2023, arXiv 2309.00071).

    Pairs that turn more than ``fast`` times within the trained context stay; those that turn less than ``slow`` times
    are slowed down by ``factor``; in between along a line (§3.2). The factor of the scores' temperature, eq. 22, is
    ``(0.1 ln factor + 1)²``, half of it for either side.

    Args:
        dim: of a head.
        theta: base.
        factor: how many times the trained context, at least 1.
        context: the trained one.
        device: of the angles.
        fast: turns.
        slow: turns.
    """
    omega = frequencies(dim, theta, device)
    where = lambda turns: dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))  # noqa: E731
    low, high = max(math.floor(where(fast)), 0), min(math.ceil(where(slow)), dim - 1)
    ramp = ((torch.arange(dim // 2, device=device).float() - low) / max(high - low, 1e-3)).clamp(0, 1)
    return omega / factor * ramp + omega * (1 - ramp), 0.1 * math.log(factor) + 1.0
