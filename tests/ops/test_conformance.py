"""Every implementation against the reference in float64: values, gradients, and what must not reach what."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import sinkgate as sg
from sinkgate.ops.attention import attention
from weightings import ALL, CORE, FAST, able, cast, per_head

fixed = settings(derandomize=True, deadline=None, max_examples=10, database=None)


def bound(dtype: torch.dtype, n: int, largest: float, size: float) -> float:
    """What rounding can do: the dtype's step, the length of the sums, and exp's answer to the scores' own rounding."""
    step = {torch.float64: 2.3e-16, torch.float32: 1.2e-7, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    wide = 1.2e-7 if dtype in (torch.bfloat16, torch.float16) else step
    return size * (2 * step + wide * (8 + 2 * math.sqrt(n) + 4 * largest)) + 1e-30


def run(
    impl: str, dtype: torch.dtype, w: Any, q: Tensor, k: Tensor, v: Tensor, up: Tensor, **more: Any
) -> list[Tensor]:
    """Output and gradients of q, k, v and of the weighting's tensors, as float64."""
    leaves = [x.detach().clone().to(dtype).requires_grad_() for x in (q, k, v)]
    ours = cast(w, dtype if dtype == torch.float64 else torch.float32)
    learned = {n: x.clone().requires_grad_() for n, x in ours.tensors().items() if x.is_floating_point()}
    ours = ours.with_tensors(**learned) if learned else ours
    y = attention(*leaves, weighting=ours, impl=impl, **more)
    grads = torch.autograd.grad((y.double() * up).sum(), [*leaves, *learned.values()])
    return [y.detach().double(), *(g.double() for g in grads)]


def compare(impl: str, dtype: torch.dtype, w: Any, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> None:
    q, k, v = (x.to(dtype).double() for x in (q, k, v))
    w = cast(cast(w, torch.float32 if dtype != torch.float64 else dtype), torch.float64)
    up = torch.randn(*q.shape[:3], v.shape[3], generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    up = up.to(dtype).double()
    exact = run("reference", torch.float64, w, q, k, v, up, **more)
    found = run(impl, dtype, w, q, k, v, up, **more)
    scale = more.get("scale") or q.shape[-1] ** -0.5
    largest = float((q.norm(dim=-1).max() * k.norm(dim=-1).max()) * scale)
    # α > 2: the slope of the weights is unbounded at the edge of the support, so float32 has no gradient to compare
    steep = dtype != torch.float64 and isinstance(w, sg.Entmax) and float(torch.as_tensor(w.alpha).max()) > 2
    for name, a, z in zip(("y", "dq", "dk", "dv", *w.tensors()), found, exact, strict=False):
        if steep and name not in ("y", "dv"):
            continue
        # a gradient is a sum of differences of products do·v: their size, not what is left of them, is what rounds
        size = max(float(z.abs().max()), 1e-2 if name == "y" else 0.25)
        error = float((a - z).abs().max())
        slack = 300.0 if steep else 1.0 if name == "y" else 3.0
        assert error <= slack * bound(dtype, k.shape[2] * (q.shape[1] if name in w.tensors() else 1), largest, size), (
            f"{name} of {w} by {impl} in {dtype} errs by {error:.1e} at size {size:.1e}"
        )


def tensors(b: int, h: int, hkv: int, t: int, s: int, d: int, dv: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(b, n, m, e, generator=g, dtype=torch.float64) for n, m, e in ((h, t, d), (hkv, s, d), (hkv, s, dv))
    )  # type: ignore[return-value]


LONG = 120  # more than one block of rows
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", [*ALL, *per_head(4)])
def test_values_and_gradients(name: str, impl: str, dtype: torch.dtype) -> None:
    w = {**ALL, **per_head(4)}[name]
    able(impl, dtype, w, shape=(1, 4, 33, 33, 16, 16))
    compare(impl, dtype, w, *tensors(1, 4, 2, 105, 105, 16, 16))


class Expm1(sg.Softpick):
    """Softpick's normaliser in the place of its weights: how far a row is from the point where it has no value."""

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        x = torch.expm1(scores).abs()
        return x if visible is None else x.masked_fill(~visible, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", [*CORE])
def test_many_tiles(name: str, dtype: torch.dtype) -> None:
    """More than one tile of keys and many blocks of rows, with a window whose edge crosses both."""
    able("native", dtype, ALL[name])
    compare("native", dtype, ALL[name], *tensors(1, 2, 1, 700, 700, 24, 40), window=300, keep_first=5)
    # (a seed where no weight lies so near to a clip that float32 and float64 fall on different sides)
    compare("native", dtype, ALL[name], *tensors(1, 1, 1, 200, 600, 17, 8, seed=1), causal=False)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", [*ALL])
@fixed
@given(st.data())
def test_any_shape_and_mask(name: str, impl: str, data: st.DataObject) -> None:
    draw = data.draw
    hkv, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    b, t, more = draw(st.integers(1, 2)), draw(st.integers(1, 40)), {}
    s = t + draw(st.sampled_from([0, 0, 1, 30]))
    d, dv = draw(st.sampled_from([1, 8, 16, 20])), draw(st.sampled_from([1, 8, 16, 33]))
    more["causal"] = draw(st.booleans())
    if more["causal"] and draw(st.booleans()):
        more["window"] = draw(st.integers(1, 45))
        more["keep_first"] = draw(st.integers(0, 5))
    seed = draw(st.integers(0, 1000))
    g = torch.Generator().manual_seed(seed)
    kind = draw(st.sampled_from(["none", "bool", "float", "padding", "documents"]))
    if kind == "bool":
        more["mask"] = torch.rand(draw(st.sampled_from([1, b])), 1, t, s, generator=g) < 0.7
    elif kind == "float":
        bias = torch.randn(1, hkv * group, t, s, generator=g)
        more["mask"] = bias.masked_fill(torch.rand(bias.shape, generator=g) < 0.2, -math.inf)
    elif kind == "padding":
        more["mask"] = (torch.arange(s) >= draw(st.integers(0, s)))[None, None, None].expand(b, 1, 1, s)
    elif kind == "documents" and t == s:
        more["document_ids"] = torch.sort(torch.randint(0, 4, (b, t), generator=g), dim=-1).values
    if draw(st.booleans()):
        more["softcap"] = 3.0
    w = ALL[name]
    q, k, v = tensors(b, hkv * group, hkv, t, s, d, dv, seed)
    if isinstance(w, sg.Softpick):  # discontinuous where all scores are 0, and its slope grows as they come near
        _, mass = attention(q, k, v, weighting=Expm1(), impl="reference", return_mass=True, **more)
        assume(bool(((mass.total == 0) | (mass.total > 0.1)).all()))
    able(impl, torch.float32, w, shape=(b, hkv * group, t, s, d, dv), **more)
    compare(impl, torch.float32, w, q, k, v, **more)


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("name", [*ALL])
def test_extreme_rows(name: str, impl: str) -> None:
    """Scores given exactly: d = 1, q = 1, so that float32 and float64 see the same numbers."""
    w = ALL[name]
    able(impl, torch.float32, w, shape=(1, 1, 1, 6, 1, 4), causal=False, scale=1.0)
    v = torch.randn(1, 1, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    for row in (
        [1e4, -1e4, 0.0, 1.0, 9999.0, -3.0], [-1e4] * 6, [1e4] * 6, [0.0] * 6, [-100.0, -101, -100.5, -130, -100, -200],
        [3.0, 3.0, 3.0, 3.0, 3.0, 3.0], [90.0, 89.0, 0.0, -1.0, 88.0, 50.0],
    ):  # fmt: skip
        k = torch.tensor(row)[None, None, :, None]
        q = torch.ones(1, 1, 1, 1)
        found = []
        for how, dtype in ((impl, torch.float32), ("reference", torch.float64)):
            leaves = [x.clone().to(dtype).requires_grad_() for x in (q, k, v)]
            y = attention(*leaves, weighting=w, causal=False, scale=1.0, impl=how)
            found.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
        for a, z in zip(*found, strict=True):
            assert bool(torch.isfinite(a).all()), (row, a)
            if w == sg.Entmax(3.0) and a is not found[0][0]:
                continue  # its slope is unbounded at the edge of the support
            # dq is a sum of keys, that is of scores; a log-sum-exp of 1e4, all that the stock kernel keeps, has 7e-4 left
            size = max(float(z.abs().max()), 1.0, (0.1 if impl == "stock" else 1e-2) * max(map(abs, row)))
            assert float((a.double() - z).abs().max()) < 2e-4 * size, (row, a, z)


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("z", [100.0, -100.0, -math.inf])
def test_extreme_sinks(z: float, impl: str) -> None:
    q, k, v = (x.float() for x in tensors(1, 2, 2, 9, 9, 8, 8))
    w = sg.SinkSoftmax(torch.tensor([z, 0.5], requires_grad=True))
    able(impl, torch.float32, w)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    y, mass = attention(*leaves, weighting=w, impl=impl, return_mass=True)
    grads = torch.autograd.grad(y.sum(), [*leaves, w.z])
    y = y.detach()
    assert all(bool(torch.isfinite(x).all()) for x in (y, *grads))
    torch.testing.assert_close(mass.total + mass.sink, torch.ones_like(mass.total))
    if z < 0:
        torch.testing.assert_close(y[:, 0], attention(q, k, v)[:, 0])
    else:
        assert float(y[:, 0].abs().max()) < 1e-30


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("name", [*ALL])
def test_rows_that_see_nothing(name: str, impl: str) -> None:
    w = ALL[name]
    q, k, v = (x.float().requires_grad_() for x in tensors(1, 2, 2, 5, 5, 8, 8))
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    mask[..., 2, :] = False
    able(impl, torch.float32, w, mask=mask[..., :4, :4])
    y, mass = attention(q, k, v, weighting=w, mask=mask, impl=impl, return_mass=True)
    dq, dk, dv = torch.autograd.grad(y.sum() + y.square().sum(), (q, k, v))
    y = y.detach()
    assert float(y[:, :, 2].abs().max()) == 0
    assert float(dq[:, :, 2].abs().max()) == 0
    assert all(bool(torch.isfinite(x).all()) for x in (y, dq, dk, dv))
    assert float(mass.total[:, :, 2].abs().max()) == 0
    assert float(mass.sink[0, 0, 2]) == (
        1.0 if w.name in ("sink_softmax", "softmax1") and getattr(w, "z", 0) > -9 else 0.0
    )


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", [*ALL])
def test_the_mass_is_the_sum_of_the_weights(name: str, impl: str) -> None:
    w = ALL[name]
    able(impl, torch.float32, w)
    q, k, v = tensors(2, 4, 2, 70, 70, 8, 8)
    _, mass = attention(*(x.float() for x in (q, k, v)), weighting=w, impl=impl, return_mass=True)
    _, exact = attention(q, k, v, weighting=w, impl="reference", return_mass=True)
    for a, z in zip(mass, exact, strict=True):
        assert not a.requires_grad
        torch.testing.assert_close(a.double(), z, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("impl", ["reference", *FAST])
@pytest.mark.parametrize("name", [*CORE])
def test_what_is_not_seen_changes_no_bit(name: str, impl: str) -> None:
    w = ALL[name]
    q, k, v = (x.float() for x in tensors(1, 2, 2, LONG, LONG, 8, 8))
    able(impl, torch.float32, w, shape=(1, 2, LONG, LONG, 8, 8))
    plain = attention(q, k, v, weighting=w, impl=impl)
    later_k, later_v = k.clone(), v.clone()
    later_k[:, :, 80:] = 1e3
    later_v[:, :, 80:] = -1e3
    assert torch.equal(attention(q, later_k, later_v, weighting=w, impl=impl)[:, :, :80], plain[:, :, :80])
    mask = torch.ones(1, 1, 1, LONG, dtype=torch.bool)
    mask[..., 50:60] = False
    if not sg.explain(q, k, v, weighting=w, impl=impl, mask=mask).reasons[impl]:
        other_k, other_v = k.clone(), v.clone()
        other_k[:, :, 50:60] = 1e3
        other_v[:, :, 50:60] = -1e3
        a, z = (attention(q, x, y, weighting=w, impl=impl, mask=mask) for x, y in ((k, v), (other_k, other_v)))
        assert torch.equal(a, z)


@pytest.mark.parametrize("impl", ["reference", "blocked", "native"])
@pytest.mark.parametrize("name", [*CORE])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_reaches_only_the_rows_that_see_it(name: str, impl: str, bad: float) -> None:
    w = ALL[name]
    q, k, v = (x.float() for x in tensors(1, 2, 2, LONG, LONG, 8, 8))
    able(impl, torch.float32, w, window=40)
    plain = attention(q, k, v, weighting=w, impl=impl, window=40)
    for which in range(3):
        broken = [x.clone() for x in (q, k, v)]
        broken[which][0, 1, 60, 3] = bad
        y = attention(*broken, weighting=w, impl=impl, window=40)
        clean = torch.ones(2, LONG, dtype=torch.bool)
        clean[1, 60 : 61 if which == 0 else 100] = False
        torch.testing.assert_close(y[0][clean], plain[0][clean], rtol=1e-5, atol=1e-6)
        assert not bool(torch.isfinite(y[0, 1, 60]).all())
    mask = torch.rand(1, 1, LONG, LONG, generator=torch.Generator().manual_seed(0)) < 0.5
    broken = v.clone()
    broken[0, 0, 7] = bad
    y = attention(q, k, broken, weighting=w, impl=impl, mask=mask)
    sees = mask[0, 0, :, 7].clone()
    sees[:7] = False
    assert bool(torch.isfinite(y[0, 0][~sees]).all())
    assert not bool(torch.isfinite(y[0, 0][sees]).any())


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", [*CORE])
def test_decoding_equals_prefill(name: str, impl: str) -> None:
    w = ALL[name]
    q, k, v = (x.float() for x in tensors(2, 4, 2, 40, 40, 8, 8))
    able(impl, torch.float32, w)
    able(impl, torch.float32, w, shape=(1, 2, 1, 9, 8, 8))
    whole = attention(q, k, v, weighting=w, impl=impl)
    steps = [
        attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], weighting=w, impl=impl) for i in range(40)
    ]
    loose = 100 if w == sg.Entmax(3.0) else 1  # square roots at the edge of the support
    torch.testing.assert_close(torch.cat(steps, 2), whole, rtol=2e-5 * loose, atol=2e-6 * loose)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", [*CORE])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(name: str, impl: str, side: str) -> None:
    w = ALL[name]
    q, k, v = (x.float() for x in tensors(1, 2, 2, 20, 20, 8, 8))
    front, back = (5, 0) if side == "left" else (0, 5)
    padded = [torch.nn.functional.pad(x, (0, 0, front, back), value=3.0) for x in (q, k, v)]
    real = torch.nn.functional.pad(torch.ones(20, dtype=torch.bool), (front, back))
    mask = real[None, None, None]
    able(impl, torch.float32, w, mask=mask[..., :4], shape=(1, 2, 4, 4, 8, 8))
    alone = attention(q, k, v, weighting=w, impl=impl)
    y = attention(*padded, weighting=w, impl=impl, mask=mask)[:, :, real]
    torch.testing.assert_close(y, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", ["softmax", "relu", "entmax", "softpick"])
def test_packed_documents_equal_each_alone(name: str, impl: str) -> None:
    w = ALL[name]
    q, k, v = (x.float() for x in tensors(1, 4, 2, 60, 60, 8, 8))
    cu = torch.tensor([0, 7, 8, 40, 60])
    able(impl, torch.float32, w, shape=(1, 2, 60, 60, 8, 8), cu_seqlens=cu)
    packed = attention(q, k, v, weighting=w, impl=impl, cu_seqlens=cu)
    ids = torch.repeat_interleave(torch.tensor([5, 2, 9, 0]), cu.diff())[None]
    assert torch.equal(packed, attention(q, k, v, weighting=w, impl=impl, document_ids=ids))
    windowed = attention(q, k, v, weighting=w, impl=impl, cu_seqlens=cu, window=9, keep_first=2)
    for i, j in itertools.pairwise(cu):
        one = [x[:, :, i:j] for x in (q, k, v)]
        torch.testing.assert_close(packed[:, :, i:j], attention(*one, weighting=w, impl=impl), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            windowed[:, :, i:j], attention(*one, weighting=w, impl=impl, window=9, keep_first=2), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "softpick", "sparsemax", "clipped_softmax", "topk_softmax"])
def test_strides_batches_and_lengths(name: str, impl: str) -> None:
    w = ALL[name]
    able(impl, torch.float32, w)
    base = torch.randn(2, 12, 4, 3 * 8, generator=torch.Generator().manual_seed(0))  # [b, t, h, qkv]
    q, k, v = (x.transpose(1, 2) for x in base.chunk(3, -1))
    kept = base.clone()
    plain = attention(*(x.contiguous() for x in (q, k, v)), weighting=w, impl=impl)
    torch.testing.assert_close(attention(q, k, v, weighting=w, impl=impl), plain)
    assert torch.equal(base, kept)
    expanded = k[:, :1].expand(-1, 4, -1, -1)
    torch.testing.assert_close(
        attention(q, expanded, expanded, weighting=w, impl=impl),
        attention(q, expanded.contiguous(), expanded.contiguous(), weighting=w, impl=impl),
    )
    crossed = q.transpose(2, 3).contiguous().transpose(2, 3)  # last dimension not contiguous
    torch.testing.assert_close(attention(crossed, k, v, weighting=w, impl=impl), plain)
    empty = attention(q[:0], k[:0], v[:0], weighting=w, impl="auto" if impl == "stock" else impl)
    assert empty.shape == (0, 4, 12, 8)
    one = attention(q[:, :, :1], k[:, :, :1], v[:, :, :1], weighting=w, impl=impl)
    expected = sg.weights((q[:, :, :1] @ k[:, :, :1].transpose(2, 3)) * 8**-0.5, w) @ v[:, :, :1]
    torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", [*CORE])
def test_a_very_long_row(name: str, impl: str) -> None:
    w, n = ALL[name], 131072
    able(impl, torch.float32, w, shape=(1, 1, 1, 9, 4, 4))
    q, k, v = tensors(1, 1, 1, 1, n, 4, 4)
    y = attention(*(x.float() for x in (q, k, v)), weighting=w, impl=impl)
    exact = attention(*(x.float().double() for x in (q, k, v)), weighting=w, impl="reference")
    torch.testing.assert_close(y.double(), exact, rtol=2e-4, atol=2e-5 * float(exact.abs().max()) + 2e-6)


@pytest.mark.parametrize("impl", FAST)
def test_gradcheck(impl: str) -> None:
    """Inputs, z, bias, α and gate, by finite differences in float64 where the implementation has it."""
    q, k, v = (x.requires_grad_() for x in tensors(1, 2, 1, 5, 5, 3, 3))
    gate = torch.rand(1, 2, 5, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    for name, w in per_head(2).items():
        able(impl, torch.float64, w)
        learned = {n: x.clone().requires_grad_() for n, x in w.tensors().items() if x.is_floating_point()}

        def of(
            q: Tensor, k: Tensor, v: Tensor, gate: Tensor, *values: Tensor, w: Any = w, learned: Any = learned
        ) -> Tensor:
            ours = w.with_tensors(**dict(zip(learned, values, strict=True))) if learned else w
            return attention(q, k, v, weighting=ours, gate=gate, impl=impl)

        assert torch.autograd.gradcheck(of, (q, k, v, gate, *learned.values()), eps=1e-6, atol=1e-5), name


def test_a_mask_that_learns_gets_its_gradient() -> None:
    q, k, v = tensors(2, 2, 1, 6, 6, 4, 4)
    bias = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    found = []
    for impl in ("auto", "reference"):
        y = attention(q, k, v, mask=bias, weighting="sigmoid", impl=impl)
        found.append(torch.autograd.grad((y * v[:, :1]).sum(), bias)[0])
    torch.testing.assert_close(*found)
    reasons = sg.explain(*(x.float() for x in (q, k, v)), mask=bias.float()).reasons
    assert "gradient to a mask" in reasons["native"] or "compiler" in reasons["native"]
