"""Entropy against the dense formula in float64, the regulariser's sign, rates per head, the staircase of lengths."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.lab.aids import EntropyRegulariser, attention_entropy, context_length, head_multipliers
from sinkgate.lab.loop import LoopConfig, train


def dense(
    q: Tensor, k: Tensor, *, scale: float, softcap: float | None = None, causal: bool = True, window: int | None = None,
    mask: Tensor | None = None, sink_logit: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same from whole matrices, row by row; nothing shared with the package."""
    b, h, t, _ = q.shape
    s = k.shape[2]
    k = k.repeat_interleave(h // k.shape[1], dim=1)
    scores = scale * q @ k.transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = torch.zeros(b, h, t, s, dtype=torch.bool)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        hidden = hidden | (mask <= -9999)
        scores = scores + mask
    at = torch.arange(s - t, s)[:, None]
    if causal:
        hidden = hidden | (torch.arange(s)[None] > at)
    if window is not None:
        hidden = hidden | (torch.arange(s)[None] <= at - window)
    found = []
    for i in range(b):
        for j in range(h):
            rows = []
            for r in range(t):
                x = scores[i, j, r][~hidden[i, j, r]]
                if sink_logit is not None:
                    x = torch.cat([x, sink_logit[j : j + 1]])
                if len(x) > 1:
                    p = x.softmax(-1)
                    rows.append(-(p * p.log()).sum())
            found.append(torch.stack(rows).mean() if rows else x.sum() * 0)
    return torch.stack(found).view(b, h)


def masks(name: str, b: int, h: int, t: int, s: int) -> Tensor:
    if name == "padding":
        mask = torch.ones(b, 1, 1, s, dtype=torch.bool)
        mask[0, ..., :5] = False
        return mask
    if name == "random":
        return torch.rand(b, h, t, s) < 0.4
    bias = torch.randn(1, h, t, s, dtype=torch.float64)
    return bias.masked_fill(torch.rand(1, h, t, s) < 0.3, -math.inf)


CASES: list[dict[str, Any]] = [
    {}, {"causal": False}, {"softcap": 2.0}, {"window": 4}, {"mask": "padding"}, {"mask": "random"},
    {"mask": "additive", "window": 6}, {"sink": True}, {"sink": True, "mask": "random", "softcap": 3.0},
    {"sink": True, "window": 1}, {"t": 5}, {"t": 5, "causal": False, "mask": "additive"},
]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 4, 256])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_entropy_and_its_gradients(case: dict[str, Any], rows: int) -> None:
    options = dict(case)
    b, h, kv, s, d = 2, 4, 2, 13, 5
    t = options.pop("t", s)
    q = (3 * torch.randn(b, h, t, d, dtype=torch.float64)).requires_grad_()
    k = torch.randn(b, kv, s, d, dtype=torch.float64, requires_grad=True)
    leaves = [q, k]
    if options.pop("sink", False):
        options["sink_logit"] = torch.randn(h, dtype=torch.float64, requires_grad=True)
        leaves.append(options["sink_logit"])
    if "mask" in options:
        options["mask"] = masks(options["mask"], b, h, t, s)
        if options["mask"].dtype != torch.bool:
            leaves.append(options["mask"].requires_grad_())
    found = attention_entropy(q, k, scale=0.7, rows=rows, **options)
    wanted = dense(q, k, scale=0.7, **options)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    weight = torch.randn(b, h, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((weight * x).sum(), leaves) for x in (found, wanted))
    for a, c in zip(ours, theirs, strict=True):
        assert bool(torch.isfinite(a).all())
        torch.testing.assert_close(a, c, rtol=1e-10, atol=1e-12)


def test_entropy_of_what_is_known() -> None:
    q, k = torch.zeros(1, 2, 6, 3), torch.randn(1, 1, 6, 3)
    uniform = sum(math.log(n) for n in range(2, 7)) / 5  # the first query has no choice and is not counted
    torch.testing.assert_close(attention_entropy(q, k, scale=1.0), torch.full((1, 2), uniform))
    with_sink = sum(math.log(n + 1) for n in range(1, 7)) / 6
    found = attention_entropy(q, k, scale=1.0, sink_logit=torch.tensor([0.0, -200.0]))
    torch.testing.assert_close(found, torch.tensor([[with_sink, uniform * 5 / 6]]))
    assert attention_entropy(q, k, scale=1.0, window=1).tolist() == [[0.0, 0.0]]
    assert attention_entropy(q, k, scale=1.0, mask=torch.zeros(1, 1, 1, 6, dtype=torch.bool)).tolist() == [[0.0, 0.0]]
    sharp = attention_entropy(1e4 * torch.ones(1, 1, 6, 3), torch.randn(1, 1, 6, 3), scale=1.0)
    assert sharp.item() == 0.0


def test_entropy_in_half_precision_is_computed_in_float32() -> None:
    q, k = torch.randn(1, 2, 40, 8).bfloat16(), torch.randn(1, 2, 40, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention_entropy(q.requires_grad_(), k, scale=1.0, rows=16)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), dense(q.double(), k.double(), scale=1.0), rtol=1e-5, atol=1e-5)
    found.sum().backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.bfloat16


def test_entropy_never_holds_more_than_one_block_for_the_backward_pass() -> None:
    sizes: list[int] = []

    def pack(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    q, k = torch.randn(1, 2, 64, 4, requires_grad=True), torch.randn(1, 2, 64, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        attention_entropy(q, k, scale=1.0, rows=8)
    assert max(sizes, default=0) <= q.numel()


def test_entropy_refuses() -> None:
    q, k = torch.randn(1, 4, 6, 3), torch.randn(1, 2, 6, 3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"k": torch.randn(1, 3, 6, 3)}, "kv dividing h"), ({"softcap": 0.0}, "softcap"), ({"rows": 0}, "rows"),
        ({"sink_logit": torch.zeros(2)}, r"sink_logit must be \[4\]"), ({"mask": torch.ones(6, 6)}, "mask must broadcast"),
        ({"causal": False, "window": 3}, "window"), ({"k": k[:, :, :4]}, "queries"),
    ]  # fmt: skip
    for change, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            attention_entropy(**{"q": q, "k": k, "scale": 1.0, **change})


# ---- the regulariser ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sign", "direction"), [("+", -1), ("-", 1)])
def test_plus_sharpens_and_minus_spreads(sign: str, direction: int) -> None:
    class Free:
        def __init__(self) -> None:
            self.q = torch.nn.Parameter(4 * torch.randn(1, 2, 12, 4))
            self.k = torch.randn(1, 2, 12, 4)
            self.regulariser = EntropyRegulariser(0.3, sign)

        def parameters(self) -> dict[str, torch.nn.Parameter]:
            return {"q": self.q}

        def batch(self, step: int) -> None:
            return None

        def loss(self, batch: None, step: int) -> dict[str, Tensor]:
            h = attention_entropy(self.q, self.k, scale=0.5)
            return {"loss": self.regulariser(torch.zeros(()), h), "entropy": h.mean()}

        def project(self) -> None:
            pass

    entropy = train(Free(), LoopConfig(steps=15, lr=0.1, clip=None)).column("entropy")
    assert direction * (entropy[-1] - entropy[0]) > 0.2


def test_the_regulariser_is_what_it_says() -> None:
    loss, layers = torch.tensor(2.0), (torch.tensor([[1.0, 3.0]]), torch.tensor([[4.0], [4.0]]))
    assert EntropyRegulariser(0.5, "+")(loss, *layers).item() == 2 + 0.5 * 3
    assert EntropyRegulariser(0.5, "-")(loss, *layers).item() == 2 - 0.5 * 3
    value = EntropyRegulariser(strength=0.5, sign="-")
    assert EntropyRegulariser(**value.to_json()) == value
    with pytest.raises(TypeError):
        EntropyRegulariser(0.5)  # type: ignore[call-arg]
    for strength, sign, message in (
        (-0.5, "+", "sign says which way"),
        (math.nan, "+", "strength"),
        (1.0, "1", "sign must"),
    ):
        with pytest.raises(ArgumentError, match=message):
            EntropyRegulariser(strength, sign)
    with pytest.raises(ArgumentError, match="at least one layer"):
        value(loss)


# ---- rates per head, growing context ------------------------------------------------------------------------------


def test_head_multipliers() -> None:
    rows = head_multipliers((8, 5), axis=0, heads=4, chosen=[1, 3], m=0.1)
    assert rows.shape == (8, 1)
    assert rows.flatten().tolist() == pytest.approx([1, 1, 0.1, 0.1, 1, 1, 0.1, 0.1])
    columns = head_multipliers((5, 8), axis=1, heads=2, chosen=[0], m=3.0)
    assert columns.tolist() == [[3, 3, 3, 3, 1, 1, 1, 1]]
    assert head_multipliers(torch.zeros(4).shape, axis=0, heads=2, chosen=[], m=3.0).tolist() == [1, 1, 1, 1]
    for change, message in (({"axis": 2}, "axis"), ({"heads": 3}, "must divide"), ({"chosen": [4]}, "heads 0 to 3, got 4"),
                            ({"chosen": [-1]}, "got -1"), ({"m": -1.0}, "m must"), ({"m": math.inf}, "m must")):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            head_multipliers(**{"shape": (8, 5), "axis": 0, "heads": 4, "chosen": [1], "m": 1.0, **change})


def test_head_multipliers_train_a_head_faster() -> None:
    class Projection:
        def __init__(self) -> None:
            self.w = torch.nn.Parameter(torch.zeros(6, 2))

        def parameters(self) -> dict[str, torch.nn.Parameter]:
            return {"w": self.w}

        def batch(self, step: int) -> None:
            return None

        def loss(self, batch: None, step: int) -> dict[str, Tensor]:
            return {"loss": -self.w.sum()}

        def project(self) -> None:
            pass

    task = Projection()
    factor = head_multipliers(task.w.shape, axis=0, heads=3, chosen=[2], m=4.0)
    train(task, LoopConfig(steps=1, lr=0.1, schedule="constant"), multipliers={"w": factor})
    torch.testing.assert_close(task.w.detach()[:, 0], torch.tensor([0.1, 0.1, 0.1, 0.1, 0.4, 0.4]))


def test_context_lengths() -> None:
    stairs = [context_length(i, start=16, end=128, steps=100, warm=0.3) for i in range(100)]
    assert stairs == [16] * 10 + [32] * 10 + [64] * 10 + [128] * 70
    assert [context_length(i, start=64, end=400, steps=8, warm=0.75) for i in range(8)] == [64] * 2 + [128] * 2 + [256] * 2 + [400] * 2  # fmt: skip
    assert context_length(0, start=16, end=128, steps=100, warm=0.0) == 128
    assert {context_length(i, start=32, end=32, steps=10, warm=1.0) for i in range(12)} == {32}
    for steps, warm in ((7, 0.9), (3, 1.0), (1000, 0.123)):
        found = [context_length(i, start=3, end=100, steps=steps, warm=warm) for i in range(steps + 1)]
        assert found == sorted(found)
        assert set(found) <= {3, 6, 12, 24, 48, 96, 100}
        assert found[0] == 3
        assert found[-1] == 100
    for change in ({"start": 0}, {"start": 200}, {"step": -1}, {"steps": 0}, {"warm": 1.5}):
        with pytest.raises(ArgumentError, match="must be"):
            context_length(**{"step": 0, "start": 16, "end": 128, "steps": 10, "warm": 0.5, **change})
