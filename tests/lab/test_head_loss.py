"""Cross entropy in chunks against torch's own, value and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from sinkgate.lab import head_loss as module
from sinkgate.lab.head_loss import head_loss


@pytest.mark.parametrize("rows", [7, 64, 256])
@pytest.mark.parametrize("n", [1, 64, 150])
def test_value_and_gradients_in_float64(n: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    maker = torch.Generator().manual_seed(n)
    hidden = torch.randn(n, 12, generator=maker, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(33, 12, generator=maker, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 33, (n,), generator=maker)
    found, want = head_loss(hidden, weight, targets), F.cross_entropy(hidden @ weight.T, targets)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        torch.autograd.grad(3 * found, (hidden, weight)), torch.autograd.grad(3 * want, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_large_scores() -> None:
    hidden = torch.tensor([[1e4, 0.0], [0.0, 1e4]], requires_grad=True)
    weight = torch.eye(2).requires_grad_()
    loss = head_loss(hidden, weight, torch.tensor([0, 0]))
    assert loss.item() == pytest.approx(5e3)
    loss.backward()
    assert torch.isfinite(weight.grad).all()  # type: ignore[arg-type]


def test_autocast_is_as_exact_as_torchs() -> None:
    maker = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 64, generator=maker, requires_grad=True)
    weight = (0.1 * torch.randn(500, 64, generator=maker)).requires_grad_()
    targets = torch.randint(0, 500, (300,), generator=maker)
    exact = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, targets), (hidden, weight))
    errors = []
    for loss in (head_loss, lambda h, w, t: F.cross_entropy(F.linear(h, w).float(), t)):
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(hidden, weight, targets)
        assert value.dtype == torch.float32
        found = torch.autograd.grad(value, (hidden, weight))
        assert [x.dtype for x in found] == [torch.float32] * 2
        errors.append([float((a - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)])
    assert all(ours <= 1.2 * theirs for ours, theirs in zip(*errors, strict=True))
    assert max(errors[0]) < 0.02


def test_frozen_parts() -> None:
    hidden, weight = torch.randn(9, 4), torch.randn(5, 4, requires_grad=True)
    head_loss(hidden, weight, torch.arange(9) % 5).backward()
    assert weight.grad is not None
    with torch.no_grad():
        assert not head_loss(hidden, weight, torch.arange(9) % 5).requires_grad
