"""The operations inside what PyTorch does with operations: compile, export, autocast, checkpointing, opcheck."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import sinkgate as sg
from sinkgate.nn import GatedAttention
from weightings import able

NAMES = ["softmax", "sink_softmax", "sigmoid", "softpick", "entmax", "clipped_softmax"]


def tensors(t: int = 12, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, n, t, 16, generator=g).requires_grad_(grad) for n in (4, 2, 2))  # type: ignore[return-value]


def native_or_skip(weighting: str = "softmax") -> None:
    able("native", torch.float32, sg.weighting.as_weighting(weighting))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compile_fullgraph(name: str) -> None:
    native_or_skip(name)
    z = torch.zeros(4, requires_grad=True)
    w = sg.SinkSoftmax(z) if name == "sink_softmax" else name

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sg.attention(q * 1.5, k, v, weighting=w, window=7).tanh()

    q, k, v = tensors(grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    a, b = layer(q, k, v), compiled(q, k, v)
    torch.testing.assert_close(a, b)
    for x, y in zip(torch.autograd.grad(a.sum(), (q, k, v)), torch.autograd.grad(b.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.slow
def test_export() -> None:
    native_or_skip()

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sg.attention(q, k, v, weighting="softmax1")

    q, k, v = tensors()
    exported = torch.export.export(Layer(), (q, k, v))
    torch.testing.assert_close(exported.module()(q, k, v), sg.attention(q, k, v, weighting="softmax1"))


@pytest.mark.parametrize("impl", ["native", "stock", "blocked", "reference"])
def test_autocast_is_honoured(impl: str) -> None:
    q, k, v = tensors()
    able(impl, torch.bfloat16, sg.Softmax1())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = sg.attention(q, k, v, weighting="softmax1", impl=impl)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), sg.attention(q, k, v, weighting="softmax1"), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("impl", ["native", "stock", "blocked"])
def test_checkpointing_and_double_use(impl: str) -> None:
    q, k, v = tensors(grad=True)
    able(impl, torch.float32, sg.Softmax1())

    def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = sg.attention(q, k, v, weighting="softmax1", impl=impl)
        return sg.attention(y, k, v, weighting="softmax1", impl=impl)

    expected = torch.autograd.grad(twice(q, k, v).sum(), (q, k, v))
    found = torch.autograd.grad(checkpoint(twice, q, k, v, use_reentrant=False).sum(), (q, k, v))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*")  # opcheck's own machinery warns
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native_or_skip(name)
    from sinkgate.ops.native import ops

    calls = []
    real = ops.forward_op

    def spy(*args: object) -> object:
        calls.append(args)
        return real(*args)

    q, k, v = tensors(grad=True)
    w = sg.SinkSoftmax(torch.zeros(4, requires_grad=True)) if name == "sink_softmax" else name
    monkeypatch.setattr(ops, "forward_op", spy)
    sg.attention(q, k, v, weighting=w, return_mass=True)
    torch.library.opcheck(torch.ops.sinkgate.native_forward.default, calls[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*")
def test_opcheck_of_the_stock_kernel() -> None:
    q, k, v = (x.repeat_interleave(4 // x.shape[1], 1).detach().requires_grad_() for x in tensors())
    z = torch.zeros(4, requires_grad=True)
    torch.library.opcheck(torch.ops.sinkgate.stock_forward.default, (q, k, v, z, True, 0.25))


def test_the_trap_of_the_stock_kernel_is_not_ours() -> None:
    """Autograd through the flash kernel's log-sum-exp gives nothing, so the naive rescaling gives wrong gradients."""
    q, k, v = (x.double().requires_grad_() for x in tensors())
    k, v = (x.repeat_interleave(2, 1).detach().requires_grad_() for x in (k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    naive = out * torch.sigmoid(lse)[..., None]
    exact = sg.attention(q, k, v, weighting="softmax1", impl="reference")
    ours = sg.attention(q, k, v, weighting="softmax1", impl="stock")
    torch.testing.assert_close(naive, exact)
    grads = [torch.autograd.grad(y.sum(), (q, k))[0] for y in (naive, exact, ours)]
    assert float((grads[0] - grads[1]).abs().max()) > 0.05 * float(grads[1].abs().max())
    torch.testing.assert_close(grads[2], grads[1])


def test_a_layer_trains() -> None:
    torch.manual_seed(0)
    layer = GatedAttention(16, 2, weighting="sink_softmax", gate=sg.Gate())
    x = torch.randn(4, 10, 16)
    target = torch.randn(4, 10, 16) * 0.1
    optimiser = torch.optim.Adam(layer.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_the_same_bits_every_time() -> None:
    q, k, v = (
        torch.randn(1, n, 500, 16, generator=torch.Generator().manual_seed(1)).requires_grad_() for n in (3, 1, 1)
    )
    first = None
    for _ in range(3):
        y = sg.attention(q, k, v, weighting="sigmoid")
        found = [y.detach(), *torch.autograd.grad(y.square().sum(), (q, k, v))]
        if first is not None:
            assert all(torch.equal(a, b) for a, b in zip(first, found, strict=True))
        first = found
