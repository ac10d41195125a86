"""Bytes of a key-value cache: ``2·layers·kv_heads·head_dim·bytes`` per token, and its relatives.

Bytes are what has to be kept: what an allocator rounds up, pages, or keeps in another form comes on top. ``schemes.py`` puts
the formulas together for a model.
"""

from __future__ import annotations

import math

from sinkgate.errors import ArgumentError

__all__ = [
    "BITS",
    "SCALES",
    "human",
    "kv_bytes_per_token",
    "latent_bytes_per_token",
    "parse_count",
    "quantised_bytes",
    "quantised_bytes_per_token",
    "state_bytes",
]

BITS = (2, 3, 4, 8, 16, 32)  # of one stored number; under 16 with scales
SCALES = 4  # bytes of the scale and the zero point of one group, 16 bits each


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


def quantised_bytes(
    tokens: int,
    kv_heads: int,
    head_dim: int,
    bits: int,
    *,
    v_dim: int | None = None,
    group: int = 32,
    residual: int = 128,
    item: int = 2,
) -> int:
    """One layer's keys and values, quantised as in KIVI (arXiv 2402.02750), packed without gaps.

    Keys per channel: one scale and one zero point (16 bits each) for ``group`` tokens of one channel. Values per token:
    one of each for ``group`` channels of one head. The last ``residual`` tokens, and the tokens before them that do not
    fill a group, stay in ``item`` bytes per number.

    Args:
        tokens: in the cache.
        kv_heads: heads with keys and values of their own.
        head_dim: size of a key.
        bits: of one quantised number.
        v_dim: size of a value (default: ``head_dim``).
        group: numbers that share a scale.
        residual: tokens that are not quantised.
        item: bytes of a number that is not quantised.

    >>> quantised_bytes(4096 + 128, 8, 128, 4) - quantised_bytes(128, 8, 128, 4)  # 5 bits a number: 4 and the scales
    5242880
    >>> quantised_bytes(100, 8, 128, 4) == kv_bytes_per_token(1, 8, 128) * 100  # nothing leaves the residual
    True
    """
    values = head_dim if v_dim is None else v_dim
    whole = max(tokens - residual, 0) // group * group
    numbers = -(-whole * kv_heads * (head_dim + values) * bits // 8)
    scales = kv_heads * (whole // group * head_dim + whole * -(-values // group)) * SCALES
    return numbers + scales + (tokens - whole) * kv_bytes_per_token(1, kv_heads, head_dim, item=item, v_dim=values)


def quantised_bytes_per_token(
    kv_heads: int, head_dim: int, bits: int, *, v_dim: int | None = None, group: int = 32
) -> float:
    """What one more token adds to ``quantised_bytes``, averaged over a group.

    >>> quantised_bytes_per_token(8, 128, 4), quantised_bytes_per_token(8, 128, 2)  # 5 and 3 bits a number
    (1280.0, 768.0)
    """
    tokens = 8 * group
    return quantised_bytes(tokens, kv_heads, head_dim, bits, v_dim=v_dim, group=group, residual=0) / tokens


# ------------------------------------------------------------------------------------------- every scheme


def parse_count(text: str, name: str = "context") -> int:
    """A number of tokens as people write it: ``262144``, ``256k`` (1024 each), ``1m`` (2²⁰), ``2**20``, ``2^20``.

    Raises:
        ArgumentError: it is none of these, or not from 1 to 2⁴⁸.

    >>> [parse_count(text) for text in ("262144", "256k", "1M", "2**20", "2^18", "262_144")]
    [262144, 262144, 1048576, 1048576, 262144, 262144]
    """
    said = text.strip().lower().replace("^", "**")
    base, _, power = said.partition("**")
    unit = {"k": 2**10, "m": 2**20}.get(said[-1:], 1)
    digits = (base, power) if "**" in said else (said[:-1] if unit > 1 else said,)
    if len(said) > 30 or not all(d.replace("_", "").isdecimal() and d[0] != "_" and d[-1] != "_" for d in digits):
        raise ArgumentError(f"{name} must be a number such as 262144, 256k, 1m or 2**20, got {text!r}")
    numbers = [int(d.replace("_", "")) for d in digits]
    small = all(number < 2**50 for number in numbers)  # no power of it is then too long to compute
    value = 0 if not small else numbers[0] ** min(numbers[1], 64) if power else numbers[0] * unit
    if not 1 <= value <= 2**48:
        raise ArgumentError(f"{name} must be from 1 to 2**48, got {text!r}")
    return value


def human(size: float) -> str:
    """Bytes in the unit that suits them, to four figures.

    >>> human(393216), human(8.25 * 2**20), human(87.75 * 2**30), human(12)
    ('384 KiB', '8.25 MiB', '87.75 GiB', '12 B')
    """
    power = min(int(math.log2(size)) // 10, 6) if size >= 1 else 0
    return f"{size / 2 ** (10 * power):.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[power]}"
