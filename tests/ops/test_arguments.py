"""Bad input: an error that names the argument, what it got and what would do."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import sinkgate as sg
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.ops.select import IMPLEMENTATIONS

Q, K = torch.zeros(2, 4, 6, 8), torch.zeros(2, 2, 6, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(4, 6, 8)}, r"q must be \[batch, heads, length, dim\], got \[4, 6, 8\]"),
        ({"v": torch.zeros(2, 6, 8)}, r"v must be \[batch, heads, length, dim\]"),
        ({"q": [1]}, "q must be a tensor, got list"),
        ({"k": torch.zeros(2, 3, 6, 8), "v": torch.zeros(2, 3, 6, 8)}, "k must have a number of heads that divides q's 4, got 3"),
        ({"k": torch.zeros(2, 2, 6, 4)}, "k must have q's last dimension 8, got 4"),
        ({"v": torch.zeros(2, 2, 5, 8)}, r"v must have k's heads and length \[2, 6\], got \[2, 5\]"),
        ({"k": torch.zeros(1, 2, 6, 8)}, "k must have q's batch 2, got 1"),
        ({"k": K.double()}, "k must have q's dtype torch.float32, got torch.float64"),
        ({"q": Q.int()}, "q must be float64, float32, bfloat16 or float16, got torch.int32"),
        ({"k": K.to("meta")}, "k must be on q's device cpu, got meta"),
        ({"weighting": sg.SinkSoftmax(torch.zeros(3))}, r"z must be a number or have one entry per head \(4\), got \[3\]"),
        ({"weighting": sg.SinkSoftmax(torch.zeros(4, device="meta"))}, "z must be on cpu like q, got meta"),
        ({"weighting": sg.TopKSoftmax(torch.ones(2, 5, dtype=torch.int64))}, r"k must be a number, \[4\] per head or \[2, 4, 6\] per row"),
        ({"weighting": "nothing"}, "'nothing' is not registered"),
        ({"mask": torch.zeros(2, 4, 5, 6, dtype=torch.bool)}, r"mask must be broadcastable to \[2, 4, 6, 6\], got \[2, 4, 5, 6\]"),
        ({"mask": torch.zeros(6, 6, dtype=torch.int64)}, "mask must be bool .* or additive float, got torch.int64"),
        ({"mask": torch.zeros(6, 6, device="meta")}, "mask must be on cpu like q"),
        ({"window": 0}, "window must be a whole number of at least 1, got 0"),
        ({"window": 2.0}, "window must be a whole number"),
        ({"window": 3, "causal": False}, "window counts back from the query and needs causal=True"),
        ({"keep_first": 2}, "keep_first=2 keeps first keys visible under a window, and there is no window"),
        ({"keep_first": -1, "window": 3}, "keep_first must be a whole number of at least 0, got -1"),
        ({"q": torch.zeros(2, 4, 9, 8)}, "causal needs at least as many keys as queries, got 9 queries and 6 keys"),
        ({"scale": math.nan}, "scale must be finite"),
        ({"softcap": 0.0}, "softcap must be a positive number or None, got 0.0"),
        ({"gate": torch.zeros(2, 4, 5)}, r"gate must be floating point \[2, 4, 6\] per query and head or \[2, 4, 6, 8\] elementwise, got float32 \[2, 4, 5\]"),
        ({"gate": torch.zeros(2, 4, 6, dtype=torch.int64)}, "gate must be floating point .* got int64"),
        ({"skip_below": 0.0}, "skip_below=0.0 leaves out what a gate closes, and there is no gate"),
        ({"skip_below": -1.0, "gate": torch.ones(2, 4, 6)}, "skip_below must be a number of 0 or more, got -1.0"),
        ({"precision": "half"}, "precision must be 'exact' or 'fast', got 'half'"),
        ({"impl": "cuda"}, "impl must be 'auto' or one of .*, got 'cuda'"),
        ({"impl": "stock", "weighting": "relu"}, "impl='stock' cannot do this: it knows softmax, sink_softmax and softmax1, not relu; .*blocked.* can"),
        ({"cu_seqlens": torch.tensor([0, 6]), "document_ids": torch.zeros(2, 6, dtype=torch.int64)}, "cu_seqlens or document_ids, not both"),
        ({"cu_seqlens": torch.tensor([0, 3, 5])}, r"cu_seqlens must rise from 0 to the length 6, got \[0, 3, 5\]"),
        ({"cu_seqlens": torch.tensor([0, 3, 3, 6])}, "cu_seqlens must rise"),
        ({"cu_seqlens": torch.tensor([[0, 6]])}, r"cu_seqlens must be \[0, …, 6\], got shape"),
        ({"cu_seqlens": torch.tensor([0.0, 6.0])}, "cu_seqlens must be int32 or int64"),
        ({"document_ids": torch.zeros(2, 5, dtype=torch.int64)}, r"document_ids must be \[2, 6\], got \[2, 5\]"),
        ({"document_ids": torch.tensor([[0, 0, 1, 1, 0, 0]])}, "document_ids must be the same in one unbroken run per document"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"q": Q, "k": K, "v": K, **change}
    q, k, v = (arguments.pop(name) for name in "qkv")
    with pytest.raises(ArgumentError, match=message):
        sg.attention(q, k, v, **arguments)


def test_what_is_not_offered_says_so() -> None:
    with pytest.raises(UnsupportedError, match=r"dropout_p must be 0, got 0\.1"):
        sg.attention(Q, K, K, dropout_p=0.1)
    with pytest.raises(UnsupportedError, match="cannot run under vmap"):
        torch.vmap(lambda x: sg.attention(x, x, x))(torch.zeros(3, 1, 2, 4, 8))


def test_weights_can_be_mapped() -> None:
    x = torch.randn(3, 2, 4, 4)
    for name in ("softmax", "relu", "softpick", "entmax", "sparsemax"):
        torch.testing.assert_close(
            torch.vmap(lambda y, n=name: sg.weights(y, n))(x), sg.weights(x, name), rtol=1e-5, atol=1e-6
        )


def test_second_derivatives_are_refused_clearly() -> None:
    x = torch.randn(1, 1, 4, 8, requires_grad=True)
    for impl in ("native", "stock", "blocked"):
        if sg.explain(x, x, x, impl=impl).reasons[impl]:
            continue
        (g,) = torch.autograd.grad(sg.attention(x, x, x, impl=impl).square().sum(), x, create_graph=True)
        with pytest.raises(
            RuntimeError,
            match=r"once_differentiable|autograd formula|does not require grad|not have been used in the graph",
        ):
            torch.autograd.grad(g.sum(), x)


def test_explain_is_the_table_that_dispatches() -> None:
    choice = sg.explain(Q, K, K)
    assert choice.impl in IMPLEMENTATIONS
    assert choice.reasons[choice.impl] == ""
    assert list(choice.reasons) == list(IMPLEMENTATIONS)
    text = str(sg.explain(Q, K, K, weighting="relu", impl="stock"))
    assert text.startswith("nothing would run\n")
    assert "stock: it knows softmax" in text
    assert "stock: could run (a key or value that is not finite may reach rows" in str(sg.explain(Q, K, K))
    with pytest.raises(ArgumentError, match="impl must be 'auto' or one of"):
        sg.explain(Q, K, K, impl="cuda")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode uses it
def test_forward_mode_is_refused_clearly() -> None:
    x = torch.randn(1, 1, 4, 8)
    for impl in ("auto", "blocked", "reference"):
        with pytest.raises(UnsupportedError, match="attention has no forward-mode derivative"):
            torch.func.jvp(lambda y, i=impl: sg.attention(y, y, y, impl=i), (x,), (x,))
    _, tangent = torch.func.jvp(lambda y: sg.weights(y, "softmax1"), (x,), (x,))
    assert float(tangent.abs().max()) > 0


def test_without_compiled_kernels_it_falls_to_blocks_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from sinkgate.ops.native import ops

    monkeypatch.setattr(ops, "unavailable", lambda: "no C++ compiler was found")
    choice = sg.explain(Q, K, K, weighting="relu")
    assert choice.impl == "blocked"
    assert choice.reasons["native"] == "no C++ compiler was found"
    assert sg.explain(Q, K, K).impl == "stock"
    monkeypatch.setattr("sinkgate.ops.stock.FORWARD", "gone_from_torch")
    choice = sg.explain(Q, K, K)
    assert choice.impl == "blocked"
    assert "this torch has no aten.gone_from_torch" in choice.reasons["stock"]
    torch.testing.assert_close(sg.attention(Q + 1, K + 2, K + 3), torch.full((2, 4, 6, 8), 3.0))


def test_arguments_are_never_changed() -> None:
    for impl in IMPLEMENTATIONS:
        q, k, v = (torch.randn(1, 2, 20, 8) for _ in range(3))
        mask, gate = torch.randn(1, 1, 20, 20), torch.rand(1, 2, 20)
        gate[0, 0, :5] = 0
        z = torch.zeros(2)
        tensors = (q, k, v, gate, z) if impl == "stock" else (q, k, v, gate, z, mask)
        before = [x.clone() for x in tensors]
        more = {} if impl == "stock" else {"mask": mask, "skip_below": 0.0}
        if sg.explain(q, k, v, weighting=sg.SinkSoftmax(z), gate=gate, impl=impl, **more).reasons[impl]:
            continue
        sg.attention(q, k, v, weighting=sg.SinkSoftmax(z), gate=gate, impl=impl, **more)
        assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
