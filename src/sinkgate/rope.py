"""Rotary position embedding, half-split as in Llama: rotate at any position, and re-rotate from one to another."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["frequencies", "rotate"]


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
