"""Simplex, sub-simplex, hulls, closed-form gradients: against brute force, finite differences and optimisers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from sinkgate import geometry as geo

fixed = settings(derandomize=True, deadline=None, max_examples=60, database=None)
rows = st.lists(st.floats(-5, 5), min_size=1, max_size=8).map(np.array)


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def derivative(f: object, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Rows: outputs, columns: inputs; central differences."""
    columns = []
    for i in range(len(x)):
        e = np.zeros_like(x)
        e[i] = step
        columns.append((np.atleast_1d(f(x + e)) - np.atleast_1d(f(x - e))) / (2 * step))  # type: ignore[operator]
    return np.stack(columns, -1)


@fixed
@given(rows)
def test_projections_satisfy_their_optimality_conditions(s: np.ndarray) -> None:
    """p is the projection iff ``(s − p)·(x − p) ≤ 0`` for every corner x of the set."""
    corners = np.eye(len(s))
    p = geo.project_on_simplex(s)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    assert ((corners - p) @ (s - p) <= 1e-9).all()
    a = geo.project_on_subsimplex(s)
    assert a.sum() <= 1 + 1e-12
    assert (a >= 0).all()
    assert ((np.vstack([corners, np.zeros(len(s))]) - a) @ (s - a) <= 1e-9).all()


def test_softmax_and_sparsemax_are_arguments_of_a_maximum() -> None:
    s = np.array([0.3, -0.8, 1.2])
    constraint = {"type": "eq", "fun": lambda p: p.sum() - 1}
    for regulariser, expected in (
        (lambda p: -(p * np.log(np.maximum(p, 1e-12))).sum(), softmax(s)),
        (lambda p: -0.5 * (p**2).sum(), geo.project_on_simplex(s)),
    ):
        found = minimize(
            lambda p, r=regulariser: -(p @ s + r(p)), np.ones(3) / 3, bounds=[(0, 1)] * 3, constraints=constraint
        )
        np.testing.assert_allclose(found.x, expected, atol=1e-3)
    np.testing.assert_allclose(derivative(lambda x: np.log(np.exp(x).sum()), s)[0], softmax(s), atol=1e-8)


def test_the_conjugate_of_log_sum_exp() -> None:
    p = np.array([0.2, 0.5, 0.3])
    found = minimize(lambda s: np.log(np.exp(s).sum()) - p @ s, np.zeros(3), tol=1e-12)
    assert -found.fun == pytest.approx(geo.conjugate_of_lse(p), abs=1e-8)
    assert geo.conjugate_of_lse([0.0, 1.0]) == 0
    assert geo.conjugate_of_lse([0.5, 0.6]) == math.inf
    assert geo.conjugate_of_lse([-0.1, 1.1]) == math.inf


@fixed
@given(rows)
def test_inverse_softmax(s: np.ndarray) -> None:
    p = softmax(s)
    z = geo.inverse_softmax(p)
    np.testing.assert_allclose(softmax(z), p, atol=1e-12)
    assert z.mean() == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(geo.log_ratio(p), (s - s[-1])[:-1], atol=1e-9)


def test_the_boundary_is_out_of_softmaxs_reach() -> None:
    with pytest.raises(ValueError, match="softmax reaches no weight of 0"):
        geo.inverse_softmax([1.0, 0.0])
    assert geo.log_odds([0.0, 1.0]).tolist() == [-math.inf, math.inf]


def test_mass_shares_and_lift() -> None:
    mass, shares = geo.mass_and_shares([[0.1, 0.1], [0.0, 0.0]])
    np.testing.assert_allclose(mass, [0.2, 0])
    np.testing.assert_allclose(shares[0], [0.5, 0.5])
    assert np.isnan(shares[1]).all()  # a = g·p is unique only where a ≠ 0
    np.testing.assert_allclose(geo.lift([[0.1, 0.1], [0.0, 0.0]]).sum(-1), 1)


def test_hulls() -> None:
    """{2, 4}: [2, 4] without a gate, [0, 4] with one; {−1, 1}: the gate adds nothing."""
    inside = {
        o: [geo.in_hull([o], [[2.0], [4.0]], gated=g) for g in (False, True)]
        for o in (0.0, 1.0, 2.0, 3.0, 4.0, 4.1, -0.1)
    }
    assert inside == {0.0: [False, True], 1.0: [False, True], 2.0: [True, True], 3.0: [True, True], 4.0: [True, True],
                      4.1: [False, False], -0.1: [False, False]}  # fmt: skip
    assert all(
        geo.in_hull([o], [[-1.0], [1.0]]) == geo.in_hull([o], [[-1.0], [1.0]], gated=True)
        for o in (-1.0, 0.0, 0.5, 1.2)
    )
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 3))
    for _ in range(20):
        a = rng.dirichlet(np.ones(6))
        assert geo.in_hull(a @ values, values)
        assert geo.in_hull(0.3 * (a @ values), values, gated=True)
    assert not geo.in_hull(values.max(0) + 0.1, values, gated=True)
    # mass is not the length of the output: full mass can give nothing
    np.testing.assert_allclose(np.array([0.5, 0.5]) @ [-1.0, 1.0], 0)


@fixed
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.integers(0, 5))
def test_the_split_is_exact(raw: list[float], sink: int) -> None:
    sink = sink % len(raw)
    p = np.array(raw) + 1e-3
    p = p / p.sum()
    v = np.random.default_rng(0).normal(size=(len(p), 3))
    share, gate, content = geo.split(p, sink)
    np.testing.assert_allclose(share * v[sink] + gate * content @ v, p @ v, atol=1e-12)
    assert gate == pytest.approx(1 - share, abs=1e-12)
    assert content[sink] == 0
    assert content.sum() == pytest.approx(1)
    # the sink's term dropped: off by exactly p_s‖v_s‖; deleted: the content grows by 1/(1−p_s)
    assert np.linalg.norm(p @ v - gate * content @ v) == pytest.approx(geo.drop_bound(share, np.linalg.norm(v[sink])))
    np.testing.assert_allclose(content @ v, geo.amplification(share) * (gate * content @ v), atol=1e-9)


def test_the_worked_gate() -> None:
    values, beta = np.array([2.0, 4.0]), np.array([0.75, 0.25])
    assert beta @ values == 2.5
    weights = np.array([0.9, 0.075, 0.025])
    assert weights @ [0.0, *values] == pytest.approx(0.25)
    assert geo.amplification(0.9) == pytest.approx(10)
    assert geo.split([0.9, 0.1])[1] == pytest.approx(0.1)


def test_sparsemax_of_one_score() -> None:
    for n, delta in ((2, 0.25), (10, 0.5), (4096, 0.5), (5, 0.0)):
        s = np.zeros(n)
        s[0] = delta
        np.testing.assert_allclose(geo.project_on_simplex(s)[[0, 1]], geo.sparsemax_share(delta, n), atol=1e-12)
    with pytest.raises(ValueError, match="delta must be between 0 and 1"):
        geo.sparsemax_share(1.5, 3)
    # one-hot from a gap of 1; of τ with temperature τ
    assert geo.project_on_simplex(np.array([1.0, 0, 0]))[0] == 1
    assert geo.project_on_simplex(np.array([0.3, 0, 0]) / 0.3)[0] == pytest.approx(1)
    assert geo.project_on_simplex(np.array([0.29, 0, 0]) / 0.3)[0] < 1


@fixed
@given(rows)
def test_jacobians(s: np.ndarray) -> None:
    np.testing.assert_allclose(geo.softmax_jacobian(softmax(s)), derivative(softmax, s), atol=1e-7)
    p = geo.project_on_simplex(s)
    near = np.abs(np.sort(s)[:, None] - np.sort(s)) + np.eye(len(s))
    edge = np.abs(s - (s[p > 0] - p[p > 0]).mean())
    if near.min() > 1e-3 and edge.min() > 1e-3:  # not at a kink
        np.testing.assert_allclose(geo.sparsemax_jacobian(p), derivative(geo.project_on_simplex, s), atol=1e-6)


def test_gradients_of_a_row() -> None:
    rng = np.random.default_rng(1)
    t, d, dv = 5, 3, 2
    q, k, v, r = rng.normal(size=(t, d)), rng.normal(size=(t, d)), rng.normal(size=(t, dv)), rng.normal(size=(t, dv))

    def weights(k: np.ndarray) -> np.ndarray:
        s = q @ k.T / math.sqrt(d)
        return softmax(np.where(np.tri(t, dtype=bool), s, -np.inf))

    p = weights(k)
    for j in range(t):

        def loss(kj: np.ndarray, j: int = j) -> float:
            changed = k.copy()
            changed[j] = kj
            return float((weights(changed) @ v * r).sum())

        np.testing.assert_allclose(geo.key_gradient(p, v, r, q, j), derivative(loss, k[j])[0], atol=1e-7)
    s = rng.normal(size=4)
    values = rng.normal(size=(4, dv))
    np.testing.assert_allclose(
        geo.score_gradient(softmax(s), values, r[0]),
        derivative(lambda x: float(softmax(x) @ values @ r[0]), s)[0],
        atol=1e-8,
    )
    logit = 0.3
    found, content = geo.gate_gradients(logit, softmax(s) @ values, r[0], softmax(s), values)
    g = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    expected = derivative(lambda x: float(g(x[0]) * (softmax(s) @ values) @ r[0]), np.array([logit]))[0, 0]
    assert found == pytest.approx(expected, abs=1e-8)
    np.testing.assert_allclose(
        content, derivative(lambda x: float(g(logit) * softmax(x) @ values @ r[0]), s)[0], atol=1e-8
    )


def test_the_residual_jacobian() -> None:
    rng = np.random.default_rng(2)
    a, w, h = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
    branch = lambda x: np.tanh(a @ x)  # noqa: E731
    gate = lambda x: 1 / (1 + np.exp(-w @ x))  # noqa: E731
    jacobian, slope = derivative(branch, h), derivative(gate, h)[0]
    np.testing.assert_allclose(
        geo.residual_jacobian(gate(h), jacobian, branch(h), slope),
        derivative(lambda x: x + gate(x) * branch(x), h),
        atol=1e-7,
    )
    assert (
        np.abs(geo.residual_jacobian(gate(h), jacobian, branch(h), 0 * slope) - (np.eye(3) + gate(h) * jacobian)).max()
        == 0
    )


def test_the_best_scalar_gate() -> None:
    u, f = np.array([1.0, 2.0]), np.array([0.5, -1.0])
    assert geo.best_scalar_gate(u, 5 * u) == pytest.approx(1 / 5)
    assert geo.best_scalar_gate(u, f) == 0
    assert geo.best_scalar_gate(u, 0.5 * u) == 1
    assert math.isnan(geo.best_scalar_gate(u, 0 * u))
    f = np.array([2.0, 1.0])
    grid = np.linspace(0, 1, 10001)
    best = grid[np.argmin(((u - grid[:, None] * f) ** 2).sum(-1))]
    assert geo.best_scalar_gate(u, f) == pytest.approx(best, abs=1e-4)


def test_rank_and_the_invariance_of_scores() -> None:
    rng = np.random.default_rng(3)
    q, k, a = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), rng.normal(size=(4, 4))
    np.testing.assert_allclose((q @ a) @ (k @ np.linalg.inv(a).T).T, q @ k.T, atol=1e-10)
    assert np.linalg.matrix_rank(q @ k.T) == 4
    p = softmax(np.where(np.tri(9, dtype=bool), q @ k.T, -np.inf))
    assert np.linalg.matrix_rank(p) == 9  # a positive diagonal: always full


def test_what_a_gate_is_not() -> None:
    """A vector gate is no scalar weight: no g gives ``g·(1, 1) = (1, 0)``."""
    gated = np.array([1.0, 1.0]) * np.array([1.0, 0.0])
    assert geo.best_scalar_gate(gated, [1.0, 1.0]) == 0.5
    assert np.linalg.norm(gated - 0.5 * np.ones(2)) > 0.7
