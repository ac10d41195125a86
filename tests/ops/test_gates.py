"""Gates: applied, and left out where they are closed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sinkgate as sg
from sinkgate.errors import ArgumentError
from sinkgate.gate import ACTIVATIONS, POSITIONS, Gate, join_query_and_gate, split_query_and_gate
from sinkgate.nn import OutputGate
from weightings import ALL, CORE, FAST, able


def case(seed: int = 0, t: int = 110) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, n, t, 8, generator=g) for n in (4, 2, 2))
    gate = torch.relu(torch.randn(2, 4, t, generator=g))  # half of them exactly closed
    gate[1, 2] = 0  # a whole head
    return q, k, v, gate


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("name", [*CORE])
def test_leaving_out_what_is_closed_is_exact(name: str, impl: str) -> None:
    w = ALL[name]
    q, k, v, gate = case()
    able(impl, torch.float32, w, shape=(1, 2, 4, 4, 8, 8), gate=torch.ones(1, 2, 4), skip_below=0.0)
    leaves = [[x.clone().requires_grad_() for x in (q, k, v, gate)] for _ in range(2)]
    found = [
        sg.attention(*x[:3], weighting=w, gate=x[3], skip_below=tau, impl=impl, window=40)
        for x, tau in zip(leaves, (None, 0.0), strict=True)
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert float(found[1].detach()[gate == 0].abs().max()) == 0
    grads = [torch.autograd.grad(y.square().sum(), x) for y, x in zip(found, leaves, strict=True)]
    for a, b in zip(grads[1][:3], grads[0][:3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()) + 1e-6)
    torch.testing.assert_close(grads[1][3][gate > 0], grads[0][3][gate > 0], rtol=1e-4, atol=1e-4)
    assert float(grads[1][3][gate == 0].abs().max()) == 0


@pytest.mark.parametrize("impl", ["reference", "blocked", "native"])
@pytest.mark.parametrize("elementwise", [False, True])
def test_the_stated_bound_for_gates_that_are_nearly_closed(impl: str, elementwise: bool) -> None:
    q, k, v, gate = case(1)
    gate = (
        torch.sigmoid(2 * torch.randn(2, 4, 110, 8, generator=torch.Generator().manual_seed(4)) - 4)
        if elementwise
        else torch.sigmoid(4 * gate - 3)
    )
    able(impl, torch.float32, ALL["softmax"])
    tau = 0.1
    whole, mass = sg.attention(q, k, v, gate=gate, impl=impl, return_mass=True)
    some, left = sg.attention(q, k, v, gate=gate, skip_below=tau, impl=impl, return_mass=True)
    closed = (gate <= tau).all(-1) if elementwise else gate <= tau
    assert 0 < float(closed.float().mean()) < 1
    assert float((whole - some)[~closed].abs().max()) < 1e-5
    error = (whole - some)[closed]
    largest = v.norm(dim=-1).max()
    limit = tau * float(mass.total.max() * largest)
    assert float(error.abs().max() if elementwise else error.norm(dim=-1).max()) <= limit
    assert float(left.total[closed].abs().max()) == 0


@pytest.mark.parametrize("impl", ["reference", *FAST])
def test_elementwise_gate_multiplies(impl: str) -> None:
    q, k, v, _ = case()
    gate = torch.rand(2, 4, 110, 8, generator=torch.Generator().manual_seed(5))
    able(impl, torch.float32, ALL["softmax1"])
    torch.testing.assert_close(
        sg.attention(q, k, v, weighting="softmax1", gate=gate, impl=impl),
        gate * sg.attention(q, k, v, weighting="softmax1", impl="reference"), rtol=1e-5, atol=1e-6,
    )  # fmt: skip


def test_everything_closed() -> None:
    q, k, v, gate = case()
    for impl in ("reference", "blocked", "auto"):
        x = q.clone().requires_grad_()
        y = sg.attention(x, k, v, gate=torch.zeros_like(gate), skip_below=0.0, impl=impl)
        assert float(y.detach().abs().max()) == 0
        assert float(torch.autograd.grad(y.sum(), x)[0].abs().max()) == 0


# ---- the specification, the module -------------------------------------------------------------------------------


def test_parameters_of_the_published_table() -> None:
    """15A2B: the printed millions are those of the whole model: ratios between the rows."""
    sizes = {"dim": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128}
    one = Gate().parameters(**sizes)
    assert one / Gate("G2").parameters(**sizes) == pytest.approx(201 / 25, rel=0.01)
    assert one / Gate("G5").parameters(**sizes) == pytest.approx(201 / 100, rel=0.01)
    assert one / Gate("G4").parameters(**sizes) == 1
    assert one / Gate(elementwise=False).parameters(**sizes) == pytest.approx(201 / 1.6, rel=0.02)
    assert one / Gate(shared=True).parameters(**sizes) == 32  # about 6M, not the 201M that are printed
    assert Gate(input_dependent=False).parameters(**sizes) == 32 * 128


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("elementwise", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("additive", [True, False])
@pytest.mark.parametrize("dependent", [True, False])
def test_every_gate(
    position: str, elementwise: bool, shared: bool, activation: str, additive: bool, dependent: bool
) -> None:
    gate = Gate(position, elementwise, shared, activation, additive, dependent)
    assert Gate(**gate.to_json()) == gate
    module = OutputGate(24, 6, 2, 4, gate)
    assert sum(p.numel() for p in module.parameters()) == gate.parameters(24, 6, 2, 4)
    x = torch.randn(3, 5, 24)
    heads = {"G1": 6, "G4": 6, "G2": 2, "G3": 2}.get(position)
    y = torch.randn(3, 5, 24) if heads is None else torch.randn(3, heads, 5, 4)
    found = module(y, x)
    assert found.shape == y.shape
    logits = x @ module.proj.weight.T if dependent else module.logits.expand(3, 5, -1)
    if heads is not None:
        logits = logits.reshape(3, 5, 1 if shared else heads, -1).transpose(1, 2)
    value = ACTIVATIONS[activation](logits)
    torch.testing.assert_close(found, y + value if additive else y * value)


def test_a_fit_that_preserves_the_model() -> None:
    module = OutputGate(24, 6, 2, 4, Gate(preserve=2.0))
    y, x = torch.randn(1, 6, 5, 4), torch.randn(1, 5, 24)
    assert torch.equal(module(y, x), y)
    module(y, x).sum().backward()
    assert float(module.proj.weight.grad.abs().max()) > 1e-3
    bare = OutputGate(24, 6, 2, 4, Gate(), zero_init=True)
    torch.testing.assert_close(bare(y, x), y / 2)
    far = 1 - torch.sigmoid(torch.tensor(10.0, dtype=torch.float64))
    assert float(far) == pytest.approx(4.5e-5, rel=0.02)  # what a bias of 10 errs by, and hardly any gradient


def test_the_two_layouts_in_the_wild() -> None:
    q, gate = torch.randn(5, 6, 4), torch.randn(5, 6, 4)
    for g in (gate, gate[..., :1]):
        for layout in ("per_head", "per_group"):
            x = join_query_and_gate(q, g, kv_heads=2, layout=layout)
            a, b = split_query_and_gate(x, heads=6, kv_heads=2, head_dim=4, elementwise=g.shape[-1] == 4, layout=layout)
            assert torch.equal(a, q)
            assert torch.equal(b, g)
    one = join_query_and_gate(q, gate, kv_heads=2, layout="per_head")
    other = join_query_and_gate(q, gate, kv_heads=2, layout="per_group")
    assert one.shape == other.shape
    assert not torch.equal(one, other)
    # transformers: view(…, heads, 2·head_dim).chunk(2); the authors: view(…, kv_heads, −1).split(group·head_dim)
    hf_q, hf_gate = one.view(5, 6, 8).chunk(2, dim=-1)
    assert torch.equal(hf_q, q)
    assert torch.equal(hf_gate, gate)
    their_q, their_gate = other.view(5, 2, -1).split([3 * 4, 3 * 4], dim=-1)
    assert torch.equal(their_q.reshape(5, 6, 4), q)
    assert torch.equal(their_gate.reshape(5, 6, 4), gate)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gate("G6"), "position must be one of G1, G2, G3, G4, G5, got 'G6'"),
        (lambda: Gate(activation="tanh"), "activation must be one of"),
        (lambda: Gate(preserve=1.0, additive=True), "preserve=b₀ stands for"),
        (lambda: Gate(preserve=0.0, activation="silu"), "silu\\(0.0\\), which is 0"),
        (lambda: Gate(preserve=-1000.0), "which is 0; use 2.0"),
        (lambda: OutputGate(8, 2, 2, 4)(torch.zeros(1, 2, 3, 4), torch.zeros(1, 3, 9)), r"x must be \[batch, length, 8\]"),
        (lambda: split_query_and_gate(torch.zeros(3, 7), heads=2, kv_heads=1, head_dim=4, layout="per_head"), "x must have 16 features, got 7"),
        (lambda: split_query_and_gate(torch.zeros(3, 16), heads=2, kv_heads=1, head_dim=4, layout="odd"), "layout must be one of"),
    ],
)  # fmt: skip
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
