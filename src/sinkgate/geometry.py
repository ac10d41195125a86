"""The sink as a gate: closed forms for one row of attention (maths.md §2).

Plain functions of floats or NumPy arrays; no torch, so that a record can be read without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["amplification", "harmonic", "margin", "required_margin", "sink_share", "uniform_null"]


def harmonic(n: Any) -> Any:
    """The harmonic number ``H_n = Σ_{i=1..n} 1/i``, exact to float64, for an int or an array of ints.

    >>> round(float(harmonic(64)), 4)
    4.7439
    """
    n = np.asarray(n)
    if (n < 0).any():
        raise ValueError(f"there is no harmonic number of {n.min()}")
    table = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, max(int(n.max(initial=0)), 1) + 1))])
    return table[n]


def uniform_null(length: int, key: int = 1) -> float:
    """What a head that ignores the text gives to a key: ``(H_T − H_{k−1}) / (T − k + 1)``.

    The mean weight of key ``k`` (counted from 1) over the queries that see it when causal attention is
    uniform over ``T`` tokens. Every sink metric needs this beside it.

    >>> round(uniform_null(64), 4)
    0.0741
    >>> uniform_null(9) > 0.3 > uniform_null(10)
    True
    >>> uniform_null(64, key=64) == 1 / 64
    True
    """
    if not 1 <= key <= length:
        raise ValueError(f"key must be between 1 and length={length}, got {key}")
    return float((harmonic(length) - harmonic(key - 1)) / (length - key + 1))


def sink_share(margin: Any) -> Any:
    """``p_s = σ(m)`` for the margin ``m = z_s − LSE(content)``.

    >>> float(sink_share(0.0))
    0.5
    """
    margin = np.asarray(margin, dtype=np.float64)
    return np.exp(-np.logaddexp(0.0, -margin))


def margin(share: Any) -> Any:
    """``m = logit(p_s)``, the inverse of :func:`sink_share`.

    >>> round(float(margin(0.9)), 4)
    2.1972
    """
    share = np.asarray(share, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(share) - np.log1p(-share)


def required_margin(n: Any, share: Any) -> Any:
    """How far the sink's score must stand over ``n − 1`` equal content scores to hold ``share``.

    ``δ = ln(n − 1) + logit(share)``; ``n`` counts the sink.

    >>> [round(float(required_margin(4096, r)), 4) for r in (0.5, 0.9, 0.99)]
    [8.3175, 10.5147, 12.9126]
    >>> [round(float(required_margin(131072, r)), 3) for r in (0.5, 0.9, 0.99)]
    [11.783, 13.981, 16.379]
    """
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(n, dtype=np.float64) - 1) + margin(share)


def amplification(share: Any) -> Any:
    """What deleting the sink multiplies the content by: ``1 / (1 − p_s)``.

    Worked: values (2, 4) with shares (.75, .25) give 2.5; a zero-value sink at 90% leaves 0.25; deleting it
    gives 2.5 back.

    >>> round(float(amplification(0.9)), 6)
    10.0
    """
    share = np.asarray(share, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return 1.0 / (1.0 - share)
