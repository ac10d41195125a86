"""Each weighting against its formula, written once more here; and the worked numbers of the mathematics."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import sinkgate as sg
from sinkgate.errors import ArgumentError
from sinkgate.testing import CHECKS, check_weighting
from sinkgate.weighting import REGISTRY, as_weighting, from_json, register_weighting
from sinkgate.weighting.base import Value
from weightings import ALL, per_head


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", [*ALL, *per_head(3)])
def test_conformance(name: str, check: str) -> None:
    weighting = {**ALL, **per_head(3)}[name]
    if name == "topk_softmax" and check == "zeros":
        pytest.skip("k = 64 is more than the rows of this check have")
    CHECKS[check](weighting)


def w(scores: list[float], weighting: Any, mask: list[bool] | None = None) -> list[float]:
    seen = None if mask is None else torch.tensor(mask)
    return sg.weights(torch.tensor(scores, dtype=torch.float64), weighting, seen).tolist()


def test_softmax_knows_differences_only() -> None:
    for row in ([-100.0, -101.0], [0.0, -1.0]):
        np.testing.assert_allclose(w(row, "softmax"), [0.731058578, 0.268941421], atol=1e-9)
    for level in (-50.0, 0.0, 1e4):
        np.testing.assert_allclose(w([level] * 3, "softmax"), [1 / 3] * 3)


def test_a_sink_logit() -> None:
    s = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    lse = float(s.logsumexp(0))
    for z in (-3.0, 0.0, 2.5, math.log(3)):
        mass = float(sg.weights(s, sg.SinkSoftmax(z)).sum())
        one, other = 1 / (1 + math.exp(z - lse)), math.exp(lse - np.logaddexp(lse, z))
        assert one == pytest.approx(other, rel=1e-12)  # the same number, whatever a public thread says
        assert mass == pytest.approx(one, rel=1e-12)
    np.testing.assert_allclose(w([1.0, 2.0], sg.SinkSoftmax(0.0)), w([1.0, 2.0], "softmax1"))
    np.testing.assert_allclose(w([1.0, 2.0], sg.SinkSoftmax(-math.inf)), w([1.0, 2.0], "softmax"))
    # z = ln n is softmax_n; a large z does not overflow
    e = np.exp([1.0, 2.0])
    np.testing.assert_allclose(w([1.0, 2.0], sg.SinkSoftmax(math.log(5))), e / (5 + e.sum()))
    np.testing.assert_allclose(w([0.0, 0.0], sg.SinkSoftmax(100.0)), [math.exp(-100)] * 2, rtol=1e-9)
    np.testing.assert_allclose(w([0.0, 0.0], sg.SinkSoftmax(-100.0)), [0.5, 0.5])


def test_sigmoid() -> None:
    np.testing.assert_allclose(w([0.0, 1.0], sg.Sigmoid(bias=0.0)), [0.5, 1 / (1 + math.exp(-1))])
    np.testing.assert_allclose(w([0.0] * 4, "sigmoid"), [0.2] * 4)  # σ(−ln 4) = 1/5
    np.testing.assert_allclose(w([0.0] * 4, "sigmoid", [True, True, False, False]), [1 / 3, 1 / 3, 0, 0])
    np.testing.assert_allclose(w([0.0] * 4, sg.Sigmoid(n=9)), [0.1] * 4)


def test_relu() -> None:
    np.testing.assert_allclose(w([2.0, -1.0, 4.0, 0.0], "relu"), [0.5, 0, 1.0, 0])
    np.testing.assert_allclose(w([2.0, -1.0, 4.0, 0.0], "relu", [True, True, False, False]), [1.0, 0, 0, 0])
    np.testing.assert_allclose(w([2.0, -1.0], sg.Relu(normalize=False)), [2.0, 0])
    np.testing.assert_allclose(w([2.0, -1.0], sg.Relu(squared=True, n=8)), [0.5, 0])
    assert w([-1.0, -2.0], "relu") == [0.0, 0.0]


def test_softpick() -> None:
    x = np.expm1([1.0, -1.0, 0.0, 2.0])
    np.testing.assert_allclose(w([1.0, -1.0, 0.0, 2.0], "softpick"), np.maximum(x, 0) / (np.abs(x).sum() + 1e-6))
    # discontinuous at 0
    assert w([1e-3, -1e-3, 0.0, 0.0], sg.Softpick(eps=0.0))[0] == pytest.approx(0.50, abs=1e-3)
    assert w([0.0] * 4, "softpick") == [0.0] * 4
    # a hidden key is in no denominator: |e^{−inf} − 1| would be 1
    np.testing.assert_allclose(w([1.0, 9.0], "softpick", [True, False]), [math.expm1(1) / (math.expm1(1) + 1e-6), 0])
    # digits near the line
    a, b = w([1e-9, 2e-9], sg.Softpick(eps=0.0))
    assert (a, b) == (pytest.approx(1 / 3, rel=1e-6), pytest.approx(2 / 3, rel=1e-6))


@pytest.mark.parametrize("top", [-100.0, -1000.0, 90.0, 1000.0])
def test_softpick_has_gradients_where_the_naive_code_has_none(top: float) -> None:
    s = torch.tensor([top, top - 1, top - 2], requires_grad=True)
    (sg.weights(s, "softpick") * torch.arange(3.0)).sum().backward()
    assert s.grad is not None
    assert bool(torch.isfinite(s.grad).all())


def test_topk() -> None:
    e = np.exp([3.0, 2.0])
    np.testing.assert_allclose(w([1.0, 3.0, 2.0], sg.TopKSoftmax(2)), [0, *(e / e.sum())])
    np.testing.assert_allclose(w([1.0, 3.0, 2.0], sg.TopKSoftmax(2, delta=0.5)), [0, *(e / (e.sum() + 0.5))])
    kept = np.exp([1.0, 3.0, 2.0]) / e.sum()
    np.testing.assert_allclose(w([1.0, 3.0, 2.0], sg.TopKSoftmax(2, keep_rest=True)), kept)
    assert kept.sum() > 1
    np.testing.assert_allclose(w([1.0, 1.0, 0.0], sg.TopKSoftmax(1)), [0.5, 0.5, 0])  # ties are all kept
    np.testing.assert_allclose(w([1.0, 3.0], sg.TopKSoftmax(9)), w([1.0, 3.0], "softmax"))
    np.testing.assert_allclose(
        w([1.0, 3.0, 9.0], sg.TopKSoftmax(2), [True, True, False]), [*w([1.0, 3.0], "softmax"), 0]
    )
    rows = sg.weights(torch.zeros(2, 3), sg.TopKSoftmax(torch.tensor([1, 3])))
    np.testing.assert_allclose(rows.sum(-1), 1)


def test_sparsemax_of_one_score_over_many() -> None:
    n = 4096
    for dtype in (torch.float64, torch.float32):
        s = torch.zeros(n, dtype=dtype)
        s[7] = 0.5
        found = sg.weights(s, "sparsemax")
        assert float(found[7]) == pytest.approx(0.500122, abs=5e-7)
        assert float(found[0]) == pytest.approx(1.2207e-4, rel=1e-4)
    soft = sg.weights(s.double(), "softmax")
    assert float(soft[7]) == pytest.approx(4.0246e-4, rel=1e-4)
    assert float(soft[0]) == pytest.approx(2.4410e-4, rel=1e-4)
    # candidates at or under τ change nothing
    few = w([1.0, 0.8, -3.0], "sparsemax")
    np.testing.assert_allclose(w([1.0, 0.8, *[-3.0] * 50], "sparsemax")[:3], few)


@pytest.mark.parametrize(("alpha", "gap"), [(1.25, 4.0), (1.5, 2.0), (2.0, 1.0), (3.0, 0.5)])
def test_entmax_is_one_hot_from_its_gap_on(alpha: float, gap: float) -> None:
    for n in (2, 1000):
        for dtype in (torch.float64, torch.float32):
            s = torch.zeros(n, dtype=dtype)
            s[0] = gap + 1e-3
            assert sg.weights(s, sg.Entmax(alpha))[0] == 1
            assert float(sg.weights(s, sg.Entmax(alpha))[1]) == 0
            s[0] = gap * 0.9
            assert float(sg.weights(s, sg.Entmax(alpha))[1]) > 0


def test_entmax_between_softmax_and_sparsemax() -> None:
    s = [0.3, -0.2, 1.1, 0.9]
    np.testing.assert_allclose(w(s, sg.Entmax(2.0)), w(s, "sparsemax"), atol=1e-12)
    np.testing.assert_allclose(w(s, sg.Entmax(1 + 1e-5)), w(s, "softmax"), atol=1e-4)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 2.7])
def test_entmax_satisfies_its_optimality_condition(alpha: float) -> None:
    """On the support ``(α−1)s − p^{α−1}`` is the same τ, off it ``(α−1)s ≤ τ``: no solver needed to check one."""
    s = torch.randn(50, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    p = sg.weights(s, sg.Entmax(alpha))
    tau = (alpha - 1) * s - p ** (alpha - 1)
    on = p > 0
    level = torch.where(on, tau, -torch.inf).amax(-1, keepdim=True)
    assert float(torch.where(on, (tau - level).abs(), 0).max()) < 1e-9
    assert bool(((alpha - 1) * s <= level + 1e-9)[~on].all())
    np.testing.assert_allclose(p.sum(-1), 1, atol=1e-12)


def test_the_gradient_in_alpha_is_the_published_one() -> None:
    s = torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alpha = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    p = sg.weights(s, sg.Entmax(alpha))
    expected = sg.geometry.entmax_alpha_gradient(p.detach().numpy(), 1.7)
    found = [float(torch.autograd.grad(x, alpha, retain_graph=True)[0]) for x in p]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_clipped() -> None:
    p = np.array(w([2.0, 0.0, 0.0, -1.0], "softmax"))
    np.testing.assert_allclose(w([2.0, 0.0, 0.0, -1.0], sg.ClippedSoftmax(gamma=-0.1)), np.clip(1.1 * p - 0.1, 0, 1))
    np.testing.assert_allclose(w([2.0, 0.0, 0.0, -1.0], sg.ClippedSoftmax(zeta=1.3, gamma=0.0)), np.clip(1.3 * p, 0, 1))
    np.testing.assert_allclose(w([2.0, 0.0, 0.0, -1.0], sg.ClippedSoftmax(strength=2)), np.clip(1.5 * p - 0.5, 0, 1))


def test_peers_fail_where_ours_do_not() -> None:
    """bf16 and a row that sees nothing: NaN and an IndexError in the entmax package 1.3."""
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(0))
    for name in ("sparsemax", "entmax"):
        half = sg.weights(x.bfloat16(), name)
        assert half.dtype == torch.bfloat16
        assert float((half.float() - sg.weights(x.bfloat16().double(), name)).abs().max()) < 4e-3
        seen = torch.ones(4, 300, dtype=torch.bool)
        seen[2] = False
        found = sg.weights(x, name, seen)
        assert float(found[2].abs().max()) == 0
        np.testing.assert_allclose(found.sum(-1)[[0, 1, 3]], 1, atol=1e-6)


@pytest.mark.parametrize("name", ["sparsemax", "entmax", "wide"])
def test_fast_maps_equal_the_formula(name: str) -> None:
    weighting = sg.Entmax(torch.tensor([1.3, 1.5, 2.0, 2.4])) if name == "wide" else as_weighting(name)
    x = torch.randn(2, 4, 50, 70, generator=torch.Generator().manual_seed(0)) * 1.5
    x[0, 0, 0] = 0.25
    x[0, 0, 1] = torch.linspace(-1e4, 1e4, 70)
    seen = torch.rand(2, 4, 50, 70, generator=torch.Generator().manual_seed(1)) < 0.8
    up = torch.randn(2, 4, 50, 70, generator=torch.Generator().manual_seed(2))
    results = []
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        tensors = {n: v.to(dtype).requires_grad_() for n, v in weighting.tensors().items()}
        ours = weighting.with_tensors(**tensors) if tensors else weighting
        found = sg.weights(y, ours, seen)
        grads = torch.autograd.grad((found * up.to(dtype)).sum(), [y, *tensors.values()])
        results.append([found.detach(), *grads])
    for fast, exact in zip(*results, strict=True):
        np.testing.assert_allclose(fast.numpy(), exact.numpy(), atol=2e-3 if name == "wide" else 2e-5, rtol=1e-3)


# ---- registry, values, errors ------------------------------------------------------------------------------------


def test_values_round_trip_through_json() -> None:
    for weighting in [*ALL.values(), *per_head(3).values()]:
        config = json.loads(json.dumps(weighting.to_json()))
        back = from_json(config)
        assert back == weighting or not all(math.isfinite(x) for x in config.values() if isinstance(x, float))
        assert hash(as_weighting(weighting.name)) == hash(as_weighting(weighting.name))
    assert sg.SinkSoftmax(1.0) != sg.SinkSoftmax(2.0)
    assert sg.SinkSoftmax(torch.zeros(2)) == sg.SinkSoftmax(torch.zeros(2)) != sg.SinkSoftmax(torch.ones(2))
    assert sg.SinkSoftmax(0.0) != sg.Softmax1()
    with pytest.raises(ArgumentError, match=r"SinkSoftmax\.z is a tensor that is being learned"):
        sg.SinkSoftmax(torch.zeros(2, requires_grad=True)).to_json()


class Half(Value):
    """Half of softmax: a user's own."""

    name = "half"
    mass = "at most one"

    def __init__(self) -> None:
        pass

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def to_json(self) -> dict[str, Any]:
        return {"name": "half"}

    def weights(self, scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        return 0.5 * as_weighting("softmax").weights(scores, visible)


def test_a_weighting_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkgate.weighting.REGISTRY", dict(REGISTRY))
    import sinkgate.weighting as package

    monkeypatch.setitem(package.REGISTRY, "softmax", REGISTRY["softmax"])
    register_weighting("half", Half)
    register_weighting("half", Half)  # again: the same
    check_weighting("half")
    q = torch.randn(1, 2, 6, 4)
    torch.testing.assert_close(sg.attention(q, q, q, weighting="half"), 0.5 * sg.attention(q, q, q))
    with pytest.raises(ArgumentError, match="'half' is registered already"):
        register_weighting("half", type(as_weighting("softmax")))


class Wrong(Half):
    """Says that its weights sum to one."""

    mass = "one"


class Leaky(Half):
    """Lets hidden keys into the denominator, as the public softpick code does."""

    def weights(self, scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        w = torch.softmax(scores, -1) * 0.5
        return w if visible is None else w.masked_fill(~visible, 0.0)


@pytest.mark.parametrize(("weighting", "message"), [(Wrong(), "declared mass one"), (Leaky(), "hidden key")])
def test_the_suite_finds_what_is_wrong(weighting: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sinkgate.weighting as package

    monkeypatch.setitem(package.REGISTRY, "half", (Half, {}))
    with pytest.raises(AssertionError, match=message):
        check_weighting(weighting)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sg.Entmax(1.0), r"alpha must be above 1 .*, got 1\.0"),
        (lambda: sg.Entmax(torch.tensor([1.5, 0.5])), r"alpha must be above 1 .*, got 0\.5"),
        (lambda: sg.Entmax("x"), "alpha must be a number or a tensor, got str"),
        (lambda: sg.TopKSoftmax(0), "k must be at least 1, got 0"),
        (lambda: sg.TopKSoftmax(2.5), "k must be a whole number"),
        (lambda: sg.TopKSoftmax(2, delta=-1), "delta must be a number of 0 or more, got -1"),
        (lambda: sg.SinkSoftmax(math.inf), "z must be a number below infinity"),
        (lambda: sg.SinkSoftmax(math.nan), "z must be a number below infinity"),
        (lambda: sg.Sigmoid(bias=math.nan), "bias must be finite"),
        (lambda: sg.Sigmoid(bias=0.0, n=3), "give bias or n, not both"),
        (lambda: sg.Sigmoid(n=0), "n must be None .* or a positive number, got 0"),
        (lambda: sg.Relu(n=3, normalize=False), "n=3 has no use"),
        (lambda: sg.Softpick(eps=-1), "eps must be a number of 0 or more"),
        (lambda: sg.ClippedSoftmax(gamma=0.1), "gamma must be 0 or less"),
        (lambda: sg.ClippedSoftmax(zeta=0), "zeta must be a positive number"),
        (lambda: as_weighting("softmaxx"), "'softmaxx' is not registered; there are softmax, "),
        (lambda: as_weighting(sg.Softmax), r"must be a value, got the class Softmax: write Softmax\(…\)"),
        (lambda: as_weighting(3), "int lacks name"),
        (lambda: from_json({"name": "relu", "x": 1}), "'relu' cannot be built"),
        (lambda: from_json({}), "is an object with a name"),
        (lambda: sg.weights(torch.zeros(3, dtype=torch.int64)), "scores must be floating point"),
        (lambda: sg.weights(torch.zeros(3), mask=torch.zeros(3)), "mask must be bool"),
        (lambda: sg.weights(torch.zeros(3), mask=torch.zeros(2, dtype=torch.bool)), "mask must be broadcastable"),
        (lambda: sg.weights(torch.zeros(3, 4), sg.SinkSoftmax(torch.zeros(2))), "one entry per head"),
        (lambda: sg.weights(torch.zeros(2, 3, 4), sg.Entmax(torch.full((3,), 1.5))), r"one entry per head, got \[3\] for 2"),
        (lambda: sg.weights(torch.zeros(2, 3, 4), sg.TopKSoftmax(torch.ones(5, 7, dtype=torch.int64))), "k must be a number, one per"),
    ],
)  # fmt: skip
def test_errors_name_what_was_wrong(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
