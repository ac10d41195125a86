"""Bytes of a key-value cache: ``2·layers·kv_heads·head_dim·bytes`` per token, and its relatives."""

from __future__ import annotations

__all__ = ["kv_bytes_per_token", "latent_bytes_per_token", "state_bytes"]


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, *, item: int = 2, v_dim: int | None = None) -> int:
    """Keys and values of one token; ``item`` bytes each (2 for bfloat16).

    >>> kv_bytes_per_token(16, 24, 256), kv_bytes_per_token(16, 4, 256) // 1024, kv_bytes_per_token(16, 1, 256) // 1024
    (393216, 64, 16)
    >>> kv_bytes_per_token(16, 24, 256) * 262144 // 2**30, kv_bytes_per_token(16, 4, 256) * 262144 // 2**30
    (96, 16)
    >>> kv_bytes_per_token(95, 8, 128), kv_bytes_per_token(95, 64, 128), kv_bytes_per_token(95, 8, 128) * 2**20 // 2**30
    (389120, 3112960, 380)
    >>> kv_bytes_per_token(16, 4, 256) * (128 + 4) / 2**20
    8.25
    """
    return layers * kv_heads * (head_dim + (head_dim if v_dim is None else v_dim)) * item


def latent_bytes_per_token(layers: int, latent: int = 512, rotary: int = 64, *, item: int = 2) -> int:
    """Multi-head latent attention: one latent and one rotated key for all heads (DeepSeek-V2, arXiv 2405.04434).

    >>> kv_bytes_per_token(16, 1, 256) * 262144 // 2**30  # one key head for all: 4 GiB
    4
    >>> latent_bytes_per_token(60), latent_bytes_per_token(61), latent_bytes_per_token(78)
    (69120, 70272, 89856)
    >>> round(100 * (1 - latent_bytes_per_token(60) / kv_bytes_per_token(95, 8, 128)), 1)
    82.2
    >>> latent_bytes_per_token(78) * 2**20 / 2**30
    87.75
    """
    return layers * (latent + rotary) * item


def state_bytes(layers: int, heads: int, k_dim: int, v_dim: int, *, item: int = 4) -> int:
    """The state of linear attention, whatever the length.

    >>> state_bytes(48, 48, 128, 128) // 2**20
    144
    """
    return layers * heads * k_dim * v_dim * item
