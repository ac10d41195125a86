"""What one pass over a site finds, against sums over whole float64 matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinkgate.masks import Visibility
from sinkgate.probe.rows import read_first_keys, read_rows
from sinkgate.site import Site

fixed = settings(derandomize=True, deadline=None, max_examples=60, database=None)


def matrix(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Weights ``[b, h, t, s]`` and the learned sink's ``[b, h, t]``, 0 on padding queries and empty rows."""
    site: Site = case["site"]
    q, k = site.q.double().numpy(), site.k.double().repeat_interleave(site.group, 1).numpy()
    scores = np.einsum("bhtd,bhsd->bhts", q, k) * q.shape[-1] ** -0.5
    scores = np.where(case["seen"], scores, -np.inf)
    z = -np.inf if site.sink_logit is None else site.sink_logit.double().numpy()[None, :, None]
    with np.errstate(invalid="ignore"):
        top = np.maximum(scores.max(-1), z)
        e = np.nan_to_num(np.exp(scores - top[..., None]))
        total = e.sum(-1) + np.nan_to_num(np.exp(z - top))
        learned = np.nan_to_num(np.exp(z - top)) / np.where(total > 0, total, 1)
    empty = ~case["seen"].any(-1)
    return np.where(empty[..., None], 0, e / np.where(total > 0, total, 1)[..., None]), np.where(empty, 0, learned)


@st.composite
def sites(draw: Any, sinks: bool = True) -> dict[str, Any]:
    """A site with structure, padding and perhaps a learned sink, and the cells that count."""
    b, kv, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    t = draw(st.integers(1, 12))
    s = t + draw(st.sampled_from([0, 0, 3]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    size = draw(st.sampled_from([0.0, 1.0, 4.0]))
    q = torch.randn(b, kv * group, t, 5, generator=generator) * size
    k, v = (torch.randn(b, kv, s, 5, generator=generator) for _ in range(2))
    window = draw(st.sampled_from([None, None, 1, 4]))
    distance = np.arange(s - t, s)[:, None] - np.arange(s)
    seen = np.broadcast_to((distance >= 0) & (distance < (window or s + 1)), (b, kv * group, t, s))
    as_mask = draw(st.booleans())  # the same structure, given as a tensor
    mask = torch.from_numpy(seen[:1, :1].copy()) if as_mask else None
    real = None
    padding = draw(st.sampled_from(["none", "left", "right"]))
    if padding != "none":
        real = torch.ones(b, s, dtype=torch.bool)
        for row in range(b):
            missing = draw(st.integers(0, s - 1))
            real[row, slice(None, missing) if padding == "left" else slice(s - missing, None)] = False
        seen = seen & real.numpy()[:, None, None] & real.numpy()[:, None, s - t :, None]
    sink = torch.randn(kv * group, generator=generator) if sinks and draw(st.booleans()) else None
    visibility = Visibility(t, s, not as_mask, None if as_mask else window, mask, real)
    out = torch.zeros(b, kv * group, t, 5)
    site = Site(layer=0, q=q, k=k, v=v, out=out, visibility=visibility, sink_logit=sink)
    return {"site": site, "seen": seen, "real": real, "offset": s - t}


def first_keys(case: dict[str, Any]) -> list[int]:
    batch = case["site"].q.shape[0]
    return [0] * batch if case["real"] is None else [row.index(True) for row in case["real"].tolist()]


def with_lse(case: dict[str, Any]) -> Site:
    site: Site = case["site"]
    scores = torch.einsum("bhtd,bhsd->bhts", site.q.double(), site.k.double().repeat_interleave(site.group, 1))
    scores = (scores * site.q.shape[-1] ** -0.5).masked_fill(~torch.from_numpy(case["seen"].copy()), -math.inf)
    site.lse = scores.logsumexp(-1).float()
    return site


@fixed
@given(sites(), st.sampled_from([1, 3, 64]))
def test_every_sum_of_a_pass(case: dict[str, Any], local_window: int) -> None:
    site = case["site"]
    weights, learned = matrix(case)
    found = read_rows(site, local_window=local_window)
    t, s = weights.shape[2:]
    first = first_keys(case)
    p = np.stack([weights[b, :, :, first[b]] for b in range(len(first))])
    close(found.first, p)
    close(found.rest, weights.sum(-1) - p + learned)
    if site.sink_logit is None:
        assert found.learned is None
    else:
        assert found.learned is not None
        close(found.learned, learned)
    assert found.columns is not None
    close(found.columns, weights.sum(2))
    four = np.zeros((*weights.shape[:2], 4))
    for b, k in enumerate(first):
        there = weights[b, :, :, k : k + 4].sum(1)
        four[b, :, : there.shape[-1]] = there
    # past the last key there is nothing: what stands there is not read
    inside = np.array([[k + j < s for j in range(4)] for k in first])
    close(torch.where(torch.from_numpy(inside)[:, None], found.first_keys, 0), four)
    logs = np.log(np.where(weights > 0, weights, 1))
    z = np.log(np.where(learned > 0, learned, 1))
    assert found.entropy is not None
    close(found.entropy, -(weights * logs).sum(-1) - learned * z)
    distance = np.arange(s - t, s)[:, None] - np.arange(s)
    assert found.own is not None
    assert found.previous is not None
    assert found.local is not None
    close(found.own, (weights * (distance == 0)).sum((2, 3)))
    close(found.previous, (weights * (distance == 1)).sum((2, 3)))
    close(found.local, (weights * ((distance >= 0) & (distance < local_window))).sum((2, 3)))


def close(ours: Tensor, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=2e-5, atol=2e-6)


@fixed
@given(sites(sinks=False))
def test_the_first_keys_alone_from_the_log_sum_exp(case: dict[str, Any]) -> None:
    weights, _ = matrix(case)
    found = read_first_keys(with_lse(case))
    assert found is not None
    assert found.columns is None
    for b, k in enumerate(first_keys(case)):
        p = weights[b, :, :, k]
        np.testing.assert_allclose(found.first[b].numpy(), p, rtol=2e-5, atol=2e-6)
        some = case["seen"][b].any(-1)
        np.testing.assert_allclose(found.rest[b].numpy(), np.where(some, 1 - p, 0), atol=2e-5)
        for j in range(4):
            expected = weights[b, :, :, k + j].sum(-1) if k + j < weights.shape[-1] else 0.0
            np.testing.assert_allclose(found.first_keys[b, :, j].numpy(), expected, rtol=2e-5, atol=2e-6)


def test_the_first_keys_alone_need_a_log_sum_exp_that_says_all() -> None:
    x = torch.randn(1, 1, 8, 4, generator=torch.Generator().manual_seed(0))
    lse = torch.zeros(1, 1, 8)
    bias = torch.zeros(1, 1, 8, 8).tril() + 0.5

    def site(mask: Tensor | None = None, **more: Any) -> Site:
        return Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(8, 8, mask=mask), **more)

    assert read_first_keys(site(lse=lse)) is not None
    assert read_first_keys(site()) is None
    assert read_first_keys(site(lse=lse, softcap=2.0)) is None
    assert read_first_keys(site(lse=lse, sink_logit=torch.zeros(1))) is None
    assert read_first_keys(site(bias, lse=lse)) is None


@pytest.mark.parametrize("log_margin", [2.0, 10.0, 40.0, 80.0])
@pytest.mark.parametrize("given_lse", [False, True])
def test_the_rest_keeps_its_digits_beside_a_sink_that_holds_nearly_everything(
    log_margin: float, given_lse: bool
) -> None:
    """1 − p would be 0 from 1e-8 on; summed over the other keys it is right to float32."""
    t = 200
    q = torch.zeros(1, 1, t, 2)
    q[..., 0] = torch.log(torch.arange(t).clamp_min(1).float()) + log_margin
    k = torch.zeros(1, 1, t, 2)
    k[0, 0, 0, 0] = 1
    score = q[0, 0, :, 0].double()
    others = torch.arange(t).double()
    lse = torch.logaddexp(score, others.log())[None, None].float() if given_lse else None
    site = Site(layer=0, q=q, k=k, v=k, out=k, visibility=Visibility(t, t), scale=1.0, lse=lse)
    found = read_rows(site)
    expected = (others.log() - torch.logaddexp(score, others.log())).exp()[1:]
    assert float(expected.max()) <= math.exp(-log_margin) * 1.0001
    np.testing.assert_allclose(found.rest[0, 0, 1:].numpy(), expected.numpy(), rtol=1e-4)
    margin = found.log_first[0, 0, 1:].double() - found.rest[0, 0, 1:].double().log()
    np.testing.assert_allclose(margin.numpy(), log_margin, atol=1e-4)


@pytest.mark.parametrize("z", [0.0, 100.0, -100.0])
def test_a_row_and_its_learned_sink_sum_to_one(z: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 2, 30, 4, generator=generator), torch.randn(1, 1, 30, 4, generator=generator)
    out = torch.zeros(1, 2, 30, 4)
    site = Site(layer=0, q=q, k=k, v=k, out=out, visibility=Visibility(30, 30), sink_logit=torch.full((2,), z))
    found = read_rows(site)
    np.testing.assert_allclose((found.first + found.rest).numpy(), 1, rtol=1e-5)
    assert found.learned is not None
    assert found.columns is not None
    np.testing.assert_allclose(found.columns.sum(-1).numpy(), 30 - found.learned.sum(-1).numpy(), rtol=1e-5, atol=1e-5)


def test_a_sink_logit_of_minus_infinity_is_no_sink() -> None:
    x = torch.randn(1, 1, 10, 4, generator=torch.Generator().manual_seed(0))
    plain, without = (
        read_rows(Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(10, 10), sink_logit=z))
        for z in (None, torch.tensor([-math.inf]))
    )
    assert plain.entropy is not None
    assert without.entropy is not None
    np.testing.assert_allclose(without.rest.numpy(), plain.rest.numpy(), rtol=1e-6)
    np.testing.assert_allclose(without.entropy.numpy(), plain.entropy.numpy(), rtol=1e-6)
