"""Closed-form Jacobians and gradients of one row: weights, gates, residual branches."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "best_scalar_gate",
    "entmax_alpha_gradient",
    "gate_gradients",
    "key_gradient",
    "residual_jacobian",
    "score_gradient",
    "softmax_jacobian",
    "sparsemax_jacobian",
]

Array = np.ndarray


def softmax_jacobian(p: Any) -> Array:
    """``∂p_i/∂s_j = p_i(δ_ij − p_j)`` at weights ``p [n]``.

    >>> softmax_jacobian([0.5, 0.5]).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    p = np.asarray(p, dtype=np.float64)
    return np.diag(p) - np.outer(p, p)


def sparsemax_jacobian(p: Any) -> Array:
    """``δ_ij − 1/k`` on the support of k keys, 0 elsewhere; all 0 where one key has everything.

    >>> sparsemax_jacobian([0.75, 0.25, 0.0]).tolist()
    [[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    >>> bool(sparsemax_jacobian([1.0, 0.0]).any())
    False
    """
    support = np.asarray(p, dtype=np.float64) > 0
    return np.diag(support.astype(float)) - np.outer(support, support) / support.sum()


def score_gradient(p: Any, values: Any, r: Any) -> Array:
    """``∂L/∂s_j = p_j rᵀ(v_j − o)`` of a softmax row: weights ``[n]``, values ``[n, d]``, ``r = ∂L/∂o [d]``.

    A key that is like the output already gets no gradient, whatever its weight.

    >>> score_gradient([0.5, 0.5], [[2.0], [4.0]], [1.0]).tolist()
    [-0.5, 0.5]
    """
    p, values, r = (np.asarray(x, dtype=np.float64) for x in (p, values, r))
    return p * ((values - p @ values) @ r)


def key_gradient(p: Any, values: Any, r: Any, queries: Any, j: int) -> Array:
    """``∂L/∂k_j = d^{−½} Σ_{t≥j} p_tj r_tᵀ(v_j − o_t) q_t`` of causal attention.

    Weights ``[t, t]``, values ``[t, dv]``, ``r [t, dv]``, queries ``[t, d]`` → ``[d]``.

    >>> p = np.array([[1.0, 0.0], [0.5, 0.5]])
    >>> key_gradient(p, [[2.0], [4.0]], [[1.0], [1.0]], [[1.0], [2.0]], 1).tolist()
    [1.0]
    """
    p, values, r, queries = (np.asarray(x, dtype=np.float64) for x in (p, values, r, queries))
    pull = p[:, j] * ((values[j] - p @ values) * r).sum(-1)
    return queries.shape[1] ** -0.5 * (pull[j:, None] * queries[j:]).sum(0)


def gate_gradients(
    logit: float, mu: Any, r: Any, p: Any | None = None, values: Any | None = None
) -> tuple[float, Array | None]:
    """Of ``o = g·μ`` with ``g = σ(logit)``: ``∂L/∂logit = g(1−g) rᵀμ`` and ``∂L/∂s_j = g·p_j rᵀ(v_j − μ)``.

    A closed gate starves the branch behind it: both have g in front.

    >>> round(gate_gradients(0.0, [2.0], [1.0])[0], 3)
    0.5
    >>> gate_gradients(-30.0, [2.0], [1.0], [0.5, 0.5], [[1.0], [3.0]])[1].max() < 1e-12
    np.True_
    """
    mu, r = np.asarray(mu, dtype=np.float64), np.asarray(r, dtype=np.float64)
    g = 1 / (1 + np.exp(-logit))
    content = None if p is None or values is None else g * score_gradient(p, values, r)
    return float(g * (1 - g) * (r @ mu)), content


def residual_jacobian(gate: float, jacobian: Any, branch: Any, gate_gradient: Any) -> Array:
    """Of ``h + g(h)F(h)``: ``I + gJ_F + F∇gᵀ``; only a constant gate leaves ``I + gJ_F``.

    >>> residual_jacobian(0.5, [[2.0]], [3.0], [0.0]).tolist(), residual_jacobian(0.5, [[2.0]], [3.0], [1.0]).tolist()
    ([[2.0]], [[5.0]])
    """
    jacobian = np.asarray(jacobian, dtype=np.float64)
    return np.eye(len(jacobian)) + gate * jacobian + np.outer(branch, gate_gradient)


def best_scalar_gate(target: Any, output: Any) -> float:
    """The g in [0, 1] that brings ``g·f`` nearest to u: ``clip(uᵀf / ‖f‖², 0, 1)``; NaN where f = 0 (any will do).

    >>> best_scalar_gate([1.0, 2.0], [5.0, 10.0]), best_scalar_gate([1.0], [-1.0]), best_scalar_gate([1.0], [0.0])
    (0.2, 0.0, nan)
    """
    target, output = np.asarray(target, dtype=np.float64), np.asarray(output, dtype=np.float64)
    length = output @ output
    return float(np.clip(target @ output / length, 0, 1)) if length > 0 else float("nan")


def entmax_alpha_gradient(p: Any, alpha: float) -> Array:
    """``∂p/∂α = (p − p̃)/(α−1)² − (p ln p − p̃ Σ p ln p)/(α−1)`` with ``p̃ ∝ p^{2−α}`` on the support.

    Correia et al. 2019, proposition 1.

    >>> entmax_alpha_gradient([0.5, 0.5, 0.0], 1.5).tolist()
    [0.0, 0.0, 0.0]
    """
    p = np.asarray(p, dtype=np.float64)
    on = p > 0
    tilde = np.where(on, np.where(on, p, 1.0) ** (2 - alpha), 0)
    tilde = tilde / tilde.sum()
    plogp = np.where(on, p * np.log(np.where(on, p, 1.0)), 0)
    return (p - tilde) / (alpha - 1) ** 2 - (plogp - tilde * plogp.sum()) / (alpha - 1)
