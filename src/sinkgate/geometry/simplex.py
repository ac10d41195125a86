"""Where weights live: the simplex, the sub-simplex of weights that need not sum to one, and what they can output."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "conjugate_of_lse",
    "in_hull",
    "inverse_softmax",
    "lift",
    "log_odds",
    "log_ratio",
    "mass_and_shares",
    "one_hot_gap",
    "project_on_simplex",
    "project_on_subsimplex",
    "sparsemax_share",
]

Array = np.ndarray


def project_on_simplex(s: Any) -> Array:
    """The nearest weights that sum to 1: sparsemax, ``max(s − τ, 0)`` with ``argmax_p p·s − ½‖p‖²``.

    Martins and Astudillo 2016, algorithm 1. ``[…, n]`` → ``[…, n]``.

    >>> project_on_simplex([0.5, 0.0, -1.0]).tolist()
    [0.75, 0.25, 0.0]
    """
    s = np.asarray(s, dtype=np.float64)
    ordered = -np.sort(-s, axis=-1)
    rank = np.arange(1, s.shape[-1] + 1)
    total = ordered.cumsum(-1)
    count = (1 + rank * ordered > total).sum(-1, keepdims=True)
    tau = (np.take_along_axis(total, count - 1, -1) - 1) / count
    return np.maximum(s - tau, 0)


def project_on_subsimplex(s: Any) -> Array:
    """The nearest weights ``a ≥ 0`` with ``Σa ≤ 1``: the positive part if that is one of them, else sparsemax.

    >>> project_on_subsimplex([0.25, -3.0, 0.5]).tolist()
    [0.25, 0.0, 0.5]
    >>> project_on_subsimplex([1.0, 1.0]).tolist()
    [0.5, 0.5]
    """
    s = np.asarray(s, dtype=np.float64)
    positive = np.maximum(s, 0)
    return np.where(positive.sum(-1, keepdims=True) <= 1, positive, project_on_simplex(s))


def mass_and_shares(a: Any) -> tuple[Array, Array]:
    """``a = g·p`` with ``g = Σa`` and p on the simplex; p is NaN where a = 0, since any would do there.

    >>> mass_and_shares([0.5, 0.5])[0].item(), mass_and_shares([0.1, 0.1])[0].item()
    (1.0, 0.2)
    """
    a = np.asarray(a, dtype=np.float64)
    mass = a.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return mass, np.where(mass[..., None] > 0, a / mass[..., None], np.nan)


def lift(a: Any) -> Array:
    """Sub-simplex weights with their null option in front: ``(1 − Σa, a)``, which sum to 1.

    >>> lift([0.1, 0.1]).tolist()
    [0.8, 0.1, 0.1]
    """
    a = np.asarray(a, dtype=np.float64)
    return np.concatenate([1 - a.sum(-1, keepdims=True), a], -1)


def inverse_softmax(p: Any) -> Array:
    """The scores of mean 0 whose softmax is p: ``log p − mean(log p)``; p must have no zeros.

    >>> inverse_softmax([0.5, 0.5]).tolist()
    [0.0, 0.0]
    """
    p = np.asarray(p, dtype=np.float64)
    if not (p > 0).all():
        raise ValueError(f"softmax reaches no weight of 0, got {p.min()}")
    logs = np.log(p)
    return logs - logs.mean(-1, keepdims=True)


def log_ratio(p: Any) -> Array:
    """Coordinates ``log(p_i / p_n)`` of the simplex's interior, ``[…, n − 1]``.

    >>> log_ratio([0.25, 0.25, 0.5]).round(4).tolist()
    [-0.6931, -0.6931]
    """
    p = np.asarray(p, dtype=np.float64)
    return np.log(p[..., :-1]) - np.log(p[..., -1:])


def log_odds(p: Any) -> Array:
    """``log(p / (1 − p))``: ±∞ on the boundary, which softmax therefore does not reach.

    >>> log_odds([0.5, 1.0]).tolist()
    [0.0, inf]
    """
    p = np.asarray(p, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.log(p) - np.log1p(-p)


def in_hull(o: Any, values: Any, *, gated: bool = False, tolerance: float = 1e-9) -> bool:
    """Whether weights on the simplex (``gated``: the sub-simplex) can output ``o [d]`` from ``values [n, d]``.

    The outputs of ungated attention are the hull of the values; a gate adds 0 to it. Decided by a linear program.

    >>> in_hull([1.0], [[2.0], [4.0]]), in_hull([1.0], [[2.0], [4.0]], gated=True)
    (False, True)
    >>> in_hull([0.0], [[-1.0], [1.0]])
    True
    """
    from scipy.optimize import linprog

    o, values = np.asarray(o, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if gated:
        values = np.concatenate([values, np.zeros((1, values.shape[1]))])
    n, d = values.shape
    # weights a ≥ 0 with Σa = 1 and |valuesᵀa − o| ≤ ε, ε as small as can be
    upper = np.block([[values.T, -np.ones((d, 1))], [-values.T, -np.ones((d, 1))]])
    found = linprog(
        np.r_[np.zeros(n), 1.0], A_ub=upper, b_ub=np.r_[o, -o], A_eq=np.r_[np.ones(n), 0.0][None], b_eq=[1.0]
    )
    return bool(found.x[-1] <= tolerance * max(1.0, float(np.abs(values).max())))


def conjugate_of_lse(p: Any, *, tolerance: float = 1e-12) -> float:
    """``Σ p log p`` on the simplex (0 log 0 = 0), ``+∞`` off it: the conjugate of log-sum-exp.

    >>> conjugate_of_lse([1.0, 0.0]), conjugate_of_lse([0.5, 0.4])
    (0.0, inf)
    """
    p = np.asarray(p, dtype=np.float64)
    if (p < -tolerance).any() or abs(p.sum() - 1) > tolerance:
        return float("inf")
    p = p[p > 0]
    return float((p * np.log(p)).sum()) + 0.0


def one_hot_gap(alpha: Any) -> Any:
    """How far the largest score must stand over the next for entmax to be one-hot: ``1 / (α − 1)``, whatever n.

    >>> [one_hot_gap(a) for a in (1.25, 1.5, 2.0)]
    [4.0, 2.0, 1.0]
    """
    return 1 / (np.asarray(alpha, dtype=np.float64) - 1).item() if np.ndim(alpha) == 0 else 1 / (np.asarray(alpha) - 1)


def sparsemax_share(delta: float, n: int) -> tuple[float, float]:
    """Weights of sparsemax where one score is δ (0 ≤ δ ≤ 1) and the other n − 1 are 0: ``δ + (1−δ)/n`` and ``(1−δ)/n``.

    >>> p, other = sparsemax_share(0.5, 4096)
    >>> round(p, 6), float(f"{other:.5g}")
    (0.500122, 0.00012207)
    """
    if not 0 <= delta <= 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    other = (1 - delta) / n
    return delta + other, other
