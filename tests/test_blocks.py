"""Blocks of weights against a float64 softmax over whole matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinkgate.blocks import head_output, weight_blocks
from sinkgate.masks import Visibility
from sinkgate.probe.rows import read_rows
from sinkgate.site import Site

fixed = settings(derandomize=True, deadline=None, max_examples=60, database=None)

EPS = 2.0**-23


@dataclass
class Truth:
    """One site in float64; ``bound`` is how far float32 scores may push a weight, relative to it."""

    weights: np.ndarray
    out: np.ndarray
    lse: np.ndarray
    learned: np.ndarray
    bound: np.ndarray


def truth(
    q: Tensor, k: Tensor, v: Tensor, seen: np.ndarray, *, bias: np.ndarray | float = 0.0, scale: float | None = None,
    softcap: float | None = None, sink: Tensor | None = None,
) -> Truth:  # fmt: skip
    """``seen``: bool ``[b, h, t, s]``, False on the whole row of a padding query."""
    group = q.shape[1] // k.shape[1]
    qd, kd, vd = (x.double().numpy() for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * np.einsum("bhtd,bhsd->bhts", qd, kd)
    size = scale * np.einsum("bhtd,bhsd->bhts", abs(qd), abs(kd))  # what the rounding of a score grows with
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(seen, scores + bias, -np.inf)
    z = np.full(scores.shape[:2], -np.inf) if sink is None else np.broadcast_to(sink.double().numpy(), scores.shape[:2])
    some = seen.any(-1)
    top = np.where(some, np.maximum(scores.max(-1), z[..., None]), 0.0)
    terms = np.exp(scores - top[..., None])
    extra = np.where(some, np.exp(z[..., None] - top), 0.0)
    total = terms.sum(-1) + extra
    safe = np.where(some, total, 1.0)
    weights = terms / safe[..., None]
    lse = np.where(some, top + np.log(safe), -np.inf)
    largest = np.where(seen, size + abs(np.asarray(bias)), 0).max(-1) + np.where(np.isfinite(z), abs(z), 0)[..., None]
    bound = EPS * (16 + 6 * largest)
    return Truth(weights, np.einsum("bhts,bhsd->bhtd", weights, vd), lse, extra / safe, bound[..., None])


def dense(site: Site, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """All weights of a site, and what its learned sink takes; no cell may come twice."""
    shape = (*site.q.shape[:3], site.k.shape[2])
    weights, learned = np.zeros(shape, np.float32), np.zeros(shape[:3], np.float32)
    written = np.zeros(shape, int)
    for block in weight_blocks(site, rows=rows):
        span, heads = block.span, slice(block.h0, block.h0 + site.group)
        at = (block.b, heads, slice(span.i0, span.i1), slice(span.k0, span.k1))
        assert block.weights.dtype == torch.float32
        assert bool(torch.isfinite(block.log2_weights).all())
        assert torch.equal(block.log2_weights.exp2(), block.weights)
        weights[at] = block.weights.numpy()
        written[at] += 1
        if block.log2_sink is not None:
            learned[at[:3]] = block.log2_sink.exp2().numpy()
    assert written.max(initial=0) <= 1
    return weights, learned


def check(site: Site, expected: Truth, rows: int | None = None) -> None:
    weights, learned = dense(site, rows)
    assert (abs(weights - expected.weights) <= expected.bound * expected.weights + 1e-37).all()
    assert (weights[expected.weights == 0] == 0).all()
    assert (abs(learned - expected.learned) <= expected.bound[..., 0] * expected.learned + 1e-37).all()
    size = np.einsum("bhts,bhsd->bhtd", expected.weights, abs(repeated(site.v, site)))
    assert (abs(head_output(site).numpy() - expected.out) <= (expected.bound + 16 * EPS) * size + 1e-30).all()


def repeated(x: Tensor, site: Site) -> np.ndarray:
    return x.double().repeat_interleave(site.group, 1).numpy()


def make(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, **more: Any) -> Site:
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    return Site(layer=0, q=q, k=k, v=v, out=out, visibility=visibility, **more)


def tensors(b: int, kv: int, group: int, t: int, s: int, d: int, dv: int, *, seed: int = 0, dtype: Any = torch.float32, size: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(b, kv * group, t, d, generator=generator) * size
    k = torch.randn(b, kv, s, d, generator=generator)
    v = torch.randn(b, kv, s, dv, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


@st.composite
def sites(draw: Any) -> tuple[Site, Truth]:
    """Any site the package claims to read, with the truth about it."""
    b, kv, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    t = draw(st.integers(1, 10))
    s = t + draw(st.sampled_from([0, 0, 3]))
    h, d, dv = kv * group, draw(st.integers(1, 9)), draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**16))
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float64]))
    q, k, v = tensors(b, kv, group, t, s, d, dv, seed=seed, dtype=dtype, size=draw(st.sampled_from([0.0, 1.0, 10.0])))
    generator = torch.Generator().manual_seed(seed + 1)
    causal = draw(st.booleans())
    window = draw(st.sampled_from([None, 1, 3])) if causal else None
    seen = np.ones((b, h, t, s), bool)
    distance = np.arange(s - t, s)[:, None] - np.arange(s)
    if causal:
        seen &= (distance >= 0) & (distance < (window or s + 1))
    bias: np.ndarray | float = 0.0
    mask = None
    kind = draw(st.sampled_from(["none", "bool", "additive"]))
    if kind != "none":
        shape = (draw(st.sampled_from([1, b])), 1, t, s)
        allowed = torch.rand(shape, generator=generator) < 0.8
        allowed[:, :, draw(st.integers(0, t - 1))] = False  # a row that sees nothing at all
        mask = allowed
        if kind == "additive":
            heads = draw(st.sampled_from([1, h]))  # a bias may differ between heads, as ALiBi does
            finite = torch.randn(shape[0], heads, t, s, generator=generator) * draw(st.sampled_from([0.0, 1.0, 4.0]))
            hiding = draw(st.sampled_from([torch.finfo(torch.float32).min, -1e4, -math.inf]))
            mask = finite.masked_fill(~allowed, hiding)
            bias = np.where(allowed.numpy(), finite.double().numpy(), 0)
        seen &= allowed.numpy()
    real = None
    if draw(st.booleans()):
        real = torch.ones(b, s, dtype=torch.bool)
        for row in range(b):
            missing = draw(st.integers(0, s))
            real[row, slice(None, missing) if draw(st.booleans()) else slice(s - missing, None)] = False
        seen &= real.numpy()[:, None, None] & real.numpy()[:, None, s - t :, None]
    scale = draw(st.sampled_from([None, 0.3]))
    softcap = draw(st.sampled_from([None, None, 2.0]))
    sink = None
    if draw(st.booleans()):
        sink = torch.tensor([draw(st.sampled_from([0.0, 1.5, -3.0, 100.0, -100.0, -math.inf])) for _ in range(h)])
    site = make(q, k, v, Visibility(t, s, causal, window, mask, real), scale=scale, softcap=softcap, sink_logit=sink)
    return site, truth(q, k, v, seen, bias=bias, scale=scale, softcap=softcap, sink=sink)


@fixed
@given(sites(), st.sampled_from([None, 1, 2, 3, 7, 64]))
def test_weights_and_outputs_are_those_of_float64(site: tuple[Site, Truth], rows: int | None) -> None:
    check(*site, rows)


@fixed
@given(sites())
def test_a_given_log_sum_exp_gives_the_same_weights(site: tuple[Site, Truth]) -> None:
    ours, expected = site
    if ours.sink_logit is not None or ours.softcap is not None:
        return  # a kernel's log-sum-exp knows neither
    if ours.visibility.has_bias:
        return  # the test below
    some = np.isfinite(expected.lse)
    for empty in (0.0, -math.inf):  # what kernels return for a row that sees nothing
        ours.lse = torch.from_numpy(np.where(some, expected.lse, empty)).float()
        check(ours, expected, rows=3)


def test_a_finite_bias_beside_a_given_log_sum_exp() -> None:
    """ALiBi under the fused kernel."""
    q, k, v = tensors(1, 1, 2, 40, 40, 8, 8)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    slopes = torch.tensor([0.5, 0.25]).view(1, 2, 1, 1)
    mask = (-slopes * distance).masked_fill(distance < 0, -math.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), 0.0, False, attn_mask=mask
    )
    seen = np.broadcast_to(np.tril(np.ones((40, 40), bool)), (1, 2, 40, 40))
    expected = truth(q, k, v, seen, bias=np.where(seen, mask.double().numpy(), 0))
    np.testing.assert_allclose(out.numpy(), expected.out, atol=1e-6)
    check(make(q, k, v, Visibility(40, 40, causal=False, mask=mask), lse=lse), expected)


@fixed
@given(sites())
def test_empty_rows_are_exactly_zero(site: tuple[Site, Truth]) -> None:
    ours, expected = site
    empty = ~np.isfinite(expected.lse)
    weights, learned = dense(ours)
    assert (weights[empty] == 0).all()
    assert (learned[empty] == 0).all()
    assert (head_output(ours).numpy()[empty] == 0).all()


def test_many_blocks_of_a_longer_site() -> None:
    """More rows than one block holds, by its own choice of rows."""
    q, k, v = tensors(1, 1, 3, 300, 300, 8, 6)
    for window in (None, 70):
        distance = np.arange(300)[:, None] - np.arange(300)
        seen = np.broadcast_to((distance >= 0) & (distance < (window or 300)), (1, 3, 300, 300))
        check(make(q, k, v, Visibility(300, 300, window=window)), truth(q, k, v, seen))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.2])
def test_the_cpu_kernels_log_sum_exp(dtype: torch.dtype, masked: bool, scale: float | None) -> None:
    b, kv, group, t, d = 2, 2, 2, 150, 16
    q, k, v = tensors(b, kv, group, t, t, d, d, dtype=dtype)
    seen = np.tril(np.ones((b, kv * group, t, t), bool))
    mask = None
    if masked:
        seen = seen & (np.random.default_rng(0).random((b, 1, t, t)) < 0.5) | np.eye(t, dtype=bool)
        mask = torch.zeros(b, 1, t, t, dtype=dtype).masked_fill(~torch.from_numpy(seen[:, :1]), -math.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), 0.0, not masked, attn_mask=mask, scale=scale
    )
    visibility = Visibility(t, t, causal=not masked, mask=mask)
    site = make(q, k, v, visibility, scale=scale, lse=lse)
    expected = truth(q, k, v, seen, scale=scale)
    if dtype == torch.bfloat16:  # the kernel's own exponential is good for 14 bits there
        expected.bound += 2.0**-14
    check(site, expected)
    loose = 2e-6 if dtype != torch.bfloat16 else 2e-2
    np.testing.assert_allclose(head_output(site).numpy(), out.float().numpy(), atol=loose, rtol=loose)


@pytest.mark.parametrize("given_lse", [False, True])
@pytest.mark.parametrize("size", [1e3, 1e4])
def test_huge_scores_neither_overflow_nor_go_wrong(given_lse: bool, size: float) -> None:
    """Scores of ±size and a few within reach of the largest, where float32 has no digits to spare."""
    t = 40
    q = torch.ones(1, 2, t, 1)
    q[:, 1] = -1
    k = torch.full((1, 1, t, 1), -size)
    k[0, 0, 3] = size
    k[0, 0, 10] = size - 2
    v = torch.randn(1, 1, t, 5, generator=torch.Generator().manual_seed(0))
    expected = truth(q, k, v, np.tril(np.ones((1, 2, t, t), bool)), scale=1.0)
    lse = torch.from_numpy(expected.lse).float() if given_lse else None
    site = make(q, k, v, Visibility(t, t), scale=1.0, lse=lse)
    check(site, expected)
    weights, _ = dense(site)
    np.testing.assert_allclose(weights[0, 0, 20:, 3], 1 / (1 + math.exp(-2)), rtol=2 * size * EPS)


@pytest.mark.parametrize("z", [0.0, 100.0, -100.0, -math.inf])
def test_a_sink_logit_takes_its_share_at_every_size(z: float) -> None:
    q, k, v = tensors(1, 1, 2, 50, 50, 4, 4)
    sink = torch.full((2,), z)
    seen = np.tril(np.ones((1, 2, 50, 50), bool))
    expected = truth(q, k, v, seen, sink=sink)
    site = make(q, k, v, Visibility(50, 50), sink_logit=sink)
    check(site, expected)
    weights, learned = dense(site)
    np.testing.assert_allclose(weights.sum(-1) + learned, 1, rtol=1e-5)
    if z == -math.inf:
        assert (learned == 0).all()
    if z == 100:
        assert weights.max() < 1e-38


def test_the_largest_score_is_taken_before_the_sink_is_known() -> None:
    """z far over every score and far under it, in one layer, with scores of ±1e4."""
    k = torch.tensor([1e4, -1e4, 9999.0]).view(1, 1, 3, 1)
    q = torch.ones(1, 2, 1, 1)
    sink = torch.tensor([1e4 + 1, -1e4])
    site = make(q, k, k, Visibility(1, 3), scale=1.0, sink_logit=sink)
    check(site, truth(q, k, k, np.ones((1, 2, 1, 3), bool), scale=1.0, sink=sink))


@fixed
@given(sites())
def test_the_callers_tensors_are_never_written_to(site: tuple[Site, Truth]) -> None:
    ours, expected = site
    if ours.sink_logit is None and ours.softcap is None:
        ours.lse = torch.from_numpy(np.where(np.isfinite(expected.lse), expected.lse, 0)).float()
    held = {"q": ours.q, "k": ours.k, "v": ours.v, "out": ours.out, "sink": ours.sink_logit, "lse": ours.lse,
            "mask": ours.visibility.mask, "real": ours.visibility.real}  # fmt: skip
    before = {name: x.clone() for name, x in held.items() if x is not None}
    for block in weight_blocks(ours):
        block.weights.fill_(7)  # a consumer may
    head_output(ours)
    read_rows(ours)
    for name, x in before.items():
        assert torch.equal(held[name], x), name


@pytest.mark.parametrize("where", ["future", "padding", "window"])
def test_a_nan_key_reaches_only_the_rows_that_see_it(where: str) -> None:
    q, k, v = tensors(2, 1, 2, 60, 60, 4, 4)
    clean = k.clone()
    at = {"future": 40, "padding": 59, "window": 2}[where]
    k[0, 0, at] = math.nan
    real = torch.arange(60)[None] < torch.tensor([[59], [60]]) if where == "padding" else None
    window = 5 if where == "window" else None
    visibility = Visibility(60, 60, window=window, real=real)
    rows = {"future": slice(0, 40), "padding": slice(0, 59), "window": slice(7, 60)}[where]
    (got, _), (want, _) = (dense_or_nan(make(q, x, v, visibility)) for x in (k, clean))
    np.testing.assert_array_equal(got[:, :, rows], want[:, :, rows])


def dense_or_nan(site: Site) -> tuple[np.ndarray, None]:
    weights = np.zeros((*site.q.shape[:3], site.k.shape[2]), np.float32)
    for block in weight_blocks(site, rows=16):
        span, heads = block.span, slice(block.h0, block.h0 + site.group)
        weights[block.b, heads, span.i0 : span.i1, span.k0 : span.k1] = block.weights.numpy()
    return weights, None


@pytest.mark.parametrize("where", ["future", "padding"])
def test_a_nan_value_reaches_only_the_rows_that_see_it(where: str) -> None:
    q, k, v = tensors(2, 1, 2, 60, 60, 4, 4)
    clean = v.clone()
    at, rows = (40, slice(0, 40)) if where == "future" else (59, slice(0, 59))
    v[0, 0, at] = math.nan
    real = torch.arange(60)[None] < torch.tensor([[59], [60]])
    visibility = Visibility(60, 60, real=real if where == "padding" else None)
    got, want = (head_output(make(q, k, x, visibility)) for x in (v, clean))
    assert torch.equal(got[:, :, rows], want[:, :, rows])


def test_a_nan_query_at_padding_gives_zero_weights() -> None:
    q, k, v = tensors(1, 1, 2, 20, 20, 4, 4)
    q[:, :, 15:] = math.nan
    weights, _ = dense_or_nan(make(q, k, v, Visibility(20, 20, real=torch.arange(20)[None] < 15)))
    assert (weights[:, :, 15:] == 0).all()


@pytest.mark.parametrize("additive", [False, True])
def test_a_row_that_one_head_alone_does_not_see_is_zero_there(additive: bool) -> None:
    q, k, v = tensors(1, 1, 2, 6, 6, 4, 4)
    allowed = torch.ones(1, 2, 6, 6, dtype=torch.bool).tril()
    allowed[0, 1, 3] = False
    mask = torch.zeros(1, 2, 6, 6).masked_fill(~allowed, -math.inf) if additive else allowed
    weights, _ = dense(make(q, k, v, Visibility(6, 6, causal=False, mask=mask)))
    assert (weights[0, 1, 3] == 0).all()
