"""The residual stream's numbers against float64 NumPy."""

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
from sinkgate.probe.probe import Probe
from sinkgate.probe.residual import LIKE_FIRST, read_stream
from sinkgate.schema import FLOAT_BINS, Settings
from sinkgate.site import Site

fixed = settings(derandomize=True, deadline=None, max_examples=50, database=None)


def bin_edges() -> np.ndarray:
    """Sixteen equal steps in every octave from 2^-64."""
    octaves = [2.0**e for e in range(-64, 64)]
    return np.array([o * (1 + i / 16) for o in octaves for i in range(16)] + [2.0**64])


@st.composite
def streams(draw: Any) -> tuple[Tensor, Tensor | None]:
    t, d = draw(st.integers(1, 12)), draw(st.integers(1, 20))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    size = draw(st.sampled_from([1e-6, 1.0, 1e4]))
    hidden = torch.randn(t, d, generator=generator) * size
    if draw(st.booleans()):
        hidden[draw(st.integers(0, t - 1)), draw(st.integers(0, d - 1))] = 3e4 * size  # a massive activation
    hidden = hidden.to(draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])))
    real = None
    if draw(st.booleans()):
        real = torch.rand(t, generator=generator) < 0.6
        real[draw(st.integers(0, t - 1))] = True
    return hidden, real


@fixed
@given(streams(), st.integers(1, 6))
def test_every_number_of_a_stream(stream: tuple[Tensor, Tensor | None], top: int) -> None:
    hidden, real = stream
    before = hidden.clone()
    stats = read_stream(hidden, real, top=top)
    assert torch.equal(hidden, before)
    h = (hidden if real is None else hidden[real]).float().double().numpy()
    powers = np.array([h.size, h.sum(), (h**2).sum(), (h**3).sum(), (h**4).sum()])
    sizes = np.array([h.size, abs(h).sum(), (h**2).sum(), (abs(h) ** 3).sum(), (h**4).sum()])
    assert (abs(stats["moments"] - powers) <= 2e-6 * sizes).all()
    norms = np.sqrt((h**2).sum(1))
    assert stats["first"] == pytest.approx(norms[0], rel=1e-6)
    if len(h) > 1:
        assert stats["rest"] == pytest.approx(norms[1:].mean(), rel=1e-6)
    else:
        assert math.isnan(stats["rest"])
    expected, _ = np.histogram(abs(h), bin_edges())
    assert stats["histogram"].shape == (FLOAT_BINS,)
    np.testing.assert_array_equal(stats["histogram"], expected)
    per_dimension = abs(h).max(0)
    assert len(stats["top"]) == min(top, h.shape[1])
    assert len({entry["dimension"] for entry in stats["top"]}) == len(stats["top"])
    for entry, largest in zip(stats["top"], sorted(per_dimension, reverse=True), strict=False):
        assert abs(entry["value"]) == largest
        assert entry["value"] == h[entry["position"], entry["dimension"]]
        assert per_dimension[entry["dimension"]] == largest
    cosine = abs(h @ h[0]) / (norms * norms[0])
    clear = abs(cosine - LIKE_FIRST) > 1e-5
    np.testing.assert_array_equal(stats["like_first"][clear], (cosine > LIKE_FIRST)[clear])
    assert bool(stats["like_first"][0])


def test_zeros_and_extremes_fall_into_the_outer_bins() -> None:
    h = torch.tensor([[0.0, -0.0, 1e-38, 2.0**-64, 1.0, -1.0, 3e38, 2.0**63]])
    histogram = read_stream(h)["histogram"]
    one = 64 * 16
    assert histogram.sum() == 8
    assert histogram[0] == 4  # at or under the lowest edge
    assert histogram[one] == 2
    assert histogram[-16] == 1
    assert histogram[-1] == 1


def test_padding_is_dropped_before_anything_is_counted() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(7, 5, generator=generator)
    padded = torch.full((10, 5), 1e9)
    real = torch.zeros(10, dtype=torch.bool)
    real[2:9] = True
    padded[real] = clean
    ours, theirs = read_stream(padded, real), read_stream(clean)
    for name in ("moments", "histogram", "like_first"):
        np.testing.assert_array_equal(ours[name], theirs[name])
    assert (ours["first"], ours["rest"], ours["top"]) == (theirs["first"], theirs["rest"], theirs["top"])


def diagnose(streams: list[Tensor], real: list[Tensor | None] | None = None) -> Any:
    """A record of one layer and these streams, one sample each."""
    probe = Probe(Settings(tokens=64))
    for i, hidden in enumerate(streams):
        x = torch.zeros(1, 1, len(hidden), 2)
        with probe.sample([{"id": f"{i}", "source": "", "tokens": ["x"] * len(hidden), "bos": False}]):
            probe.stream(0, hidden[None])
            probe.site(Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(len(hidden), len(hidden))))
            probe.stream(1, 2 * hidden[None])
    return probe.finish(model={"name": "x"})


def test_kurtosis_median_and_massive_activations_over_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    streams = [torch.randn(t, 40, generator=generator) for t in (50, 64)]
    streams[1][3, 7] = -200.0
    d = diagnose(streams)
    x = torch.cat([s.flatten() for s in streams]).double().numpy()
    kurtosis = ((x - x.mean()) ** 4).mean() / x.var() ** 2
    np.testing.assert_allclose(d.kurtosis, kurtosis, rtol=1e-5)
    np.testing.assert_allclose(d.stream_median, np.median(abs(x)) * np.array([1, 2]), rtol=0.063)
    assert next(m["value"] for m in d.massive if m["layer"] == 1) == -400
    first = next(m for m in d.massive if m["layer"] == 0)
    assert (first["value"], first["dimension"], first["position"], first["sample"]) == (-200, 7, 3, "1")
    assert len(d.massive) == 2 * 5


def test_a_normal_stream_has_a_kurtosis_of_three() -> None:
    d = diagnose([torch.randn(64, 4000, generator=torch.Generator().manual_seed(0))])
    np.testing.assert_allclose(d.kurtosis, 3, atol=0.05)


def test_a_stream_that_overflowed_behind_the_last_attention_is_an_error() -> None:
    from sinkgate.errors import NonFiniteError

    hidden = torch.ones(40, 4)
    hidden[5, 2] = math.inf
    with pytest.raises(NonFiniteError):
        diagnose([hidden])
