"""The sink as a gate: how one row splits into what the sink writes and a gated rest, and how far it stands out."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Split",
    "amplification",
    "drop_bound",
    "harmonic",
    "margin",
    "required_margin",
    "sink_share",
    "split",
    "uniform_null",
]


class Split(NamedTuple):
    """``o = share·v_s + gate·Σ_i content_i v_i``; ``content`` has the sink's place, at 0."""

    share: float
    gate: float
    content: np.ndarray


def split(weights: Any, sink: int = 0) -> Split:
    """The weights of a row ``[n]`` as a gate on the attention over everything but the sink.

    ``g = 1 − p_s`` and ``β_i = p_i / g``, summed over the others rather than taken from 1, so that g keeps its
    digits. With ``v_s = 0`` the output is exactly ``g Σ β v``: a scalar output gate.

    >>> share, gate, content = split([0.9, 0.075, 0.025])
    >>> round(gate, 12), content.round(12).tolist()
    (0.1, [0.0, 0.75, 0.25])
    >>> values = np.array([0.0, 2.0, 4.0])
    >>> round(float(gate * content @ values), 12)
    0.25
    """
    weights = np.array(weights, dtype=np.float64)
    if weights.ndim != 1 or not -len(weights) <= sink < len(weights):
        raise ValueError(f"weights must be one row that has a key {sink}, got shape {list(weights.shape)}")
    share = float(weights[sink])
    weights[sink] = 0
    gate = float(weights.sum())
    return Split(share, gate, weights / gate if gate > 0 else weights)


def drop_bound(share: Any, value_norm: Any) -> Any:
    """How far the output moves when the sink's term is dropped and the weights stay: ``p_s‖v_s‖``, exactly.

    >>> drop_bound(0.9, 0.5)
    0.45
    """
    return share * value_norm


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
