"""Attention whose answer is known beforehand, and records that are kept, merged and damaged."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import tiny, tokenizer, words
from sinkgate.blocks import head_output
from sinkgate.errors import ArgumentError, NonFiniteError, RecordError, UnsupportedError
from sinkgate.masks import Visibility
from sinkgate.probe.diagnose import diagnose
from sinkgate.probe.measure import measure
from sinkgate.probe.probe import Probe
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings
from sinkgate.site import OutputMap, Site

fixed = settings(derandomize=True, deadline=None, max_examples=40, database=None)


def harmonic(n: int) -> float:
    return sum(1 / i for i in range(1, n + 1))


def from_scores(scores: Tensor, **more: Any) -> Diagnosis:
    """Measure one head whose scores are exactly these ``[t, s]``: keys are unit vectors."""
    s = scores.shape[-1]
    v = more.pop("v", torch.zeros(1, 1, s, 2))
    return measure(scores[None, None].float(), torch.eye(s)[None, None], v, scale=1.0, **more)


def planted(t: int, place: int, mass: float) -> Tensor:
    """Scores that give ``place`` the same mass in every row that has another key to choose; content scores 0."""
    scores = torch.zeros(t, t)
    visible = torch.arange(t) + 1
    scores[:, place] = torch.log((visible - 1).clamp_min(1).float()) + math.log(mass / (1 - mass))
    return scores


# ---- the null ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [2, 33, 64, 700])
def test_uniform_attention_gives_the_null_and_no_more(t: int) -> None:
    """Weights are float32 (a relative 1e-6); the null itself is exact."""
    z = torch.zeros(1, 2, t, 4)
    d = measure(z, z, z)
    expected = harmonic(t) / t
    np.testing.assert_allclose(d.null_mass, expected, rtol=1e-12)
    np.testing.assert_allclose(d.first_token_mass, expected, rtol=1e-6)
    np.testing.assert_allclose(d.null_by_sample(first_query=False), (harmonic(t) - 1) / (t - 1), rtol=1e-12)
    np.testing.assert_allclose(d.mass_by_sample(first_query=False), (harmonic(t) - 1) / (t - 1), rtol=1e-5)
    for k in range(1, t - 30):
        null = (harmonic(t) - harmonic(k - 1)) / (t - k + 1)
        assert d.key_null[0, k - 1] == pytest.approx(null, rel=1e-12, abs=1e-13)
        np.testing.assert_allclose(d.key_mass[0, :, k - 1], null, rtol=2e-6)
    assert d.sinks == []


@fixed
@given(st.integers(2, 80), st.integers(1, 90), st.sampled_from([1, 5, 32]))
def test_uniform_attention_in_a_window_gives_its_null(t: int, window: int, enough: int) -> None:
    z = torch.zeros(1, 1, t, 4)
    d = measure(z, z, z, window=window, min_queries=enough)
    seen = np.tril(np.ones((t, t))) - np.tril(np.ones((t, t)), -window)
    weights = seen / seen.sum(1, keepdims=True)
    n = seen.sum(0)
    np.testing.assert_allclose(d.null_mass[0, 0], weights[:, 0].sum() / n[0], rtol=1e-12)
    np.testing.assert_allclose(d.first_token_mass[0, 0], weights[:, 0].sum() / n[0], rtol=1e-6)
    expected = np.where(n >= enough, weights.sum(0) / n, np.nan)
    np.testing.assert_allclose(d.key_null[0], expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(d.key_mass[0, 0], expected, rtol=2e-6)
    assert d.excess().mean[0, 0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("window", "enough"), [(None, 32), (None, 7), (16, 32), (40, 32)])
def test_a_key_that_few_queries_see_is_no_evidence(window: int | None, enough: int) -> None:
    t = 70
    x = torch.randn(1, 1, t, 4, generator=torch.Generator().manual_seed(0))
    d = measure(x, x, x, window=window, min_queries=enough)
    seen = np.minimum(np.arange(t, 0, -1), window or t)
    np.testing.assert_array_equal(np.isnan(d.key_mass[0, 0]), seen < enough)
    np.testing.assert_array_equal(np.isnan(d.key_null[0]), seen < enough)


# ---- a planted sink ----------------------------------------------------------------------------------------------


@fixed
@given(st.integers(0, 20), st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from(["keys", "full"]))
def test_a_planted_sink_is_found_where_it_is(place: int, mass: float, detail: str) -> None:
    t = 96
    names = [f"w{i}" for i in range(t)]
    d = from_scores(planted(t, place, mass), tokens=[names], detail=detail)
    alpha = (1 + (t - 1) * mass) / t if place == 0 else mass  # the first token's own query has no choice
    assert [s.position for s in d.sinks] == [place]
    sink = d.sinks[0]
    assert (sink.token, sink.samples, sink.heads) == (f"w{place}", 1, 1.0)
    assert sink.kind == ("first" if place == 0 else "other")
    assert sink.mass == pytest.approx(alpha, rel=1e-5)
    assert sink.top == pytest.approx(alpha, rel=1e-5)
    assert d.key_mass[0, 0, place] == pytest.approx(alpha, rel=1e-5)
    if place:
        assert d.top_other_mass[0, 0] == pytest.approx(mass, rel=1e-5)
        assert d.arrays["top_position"][0, 0, 0] == place
        before = harmonic(place)
        left = (1 - mass) * (harmonic(t - 1) - harmonic(place - 1))
        assert d.first_token_mass[0, 0] == pytest.approx((before + left) / t, rel=1e-5)
    else:
        assert d.first_token_mass[0, 0] == pytest.approx(alpha, rel=1e-5)
        assert d.mass_by_sample(first_query=False)[0, 0, 0] == pytest.approx(mass, rel=1e-5)


def test_two_sinks_come_strongest_first() -> None:
    scores = planted(96, 3, 0.8)
    scores[:, 8] = scores[:, 3] + math.log(1.5)
    d = from_scores(scores, tokens=[[",", *(f"w{i}" for i in range(1, 8)), ".", *["x"] * 87]])
    assert [(s.position, s.kind) for s in d.sinks] == [(8, "delimiter"), (3, "other")]
    assert d.head_kind[0, 0] == "sink"


def test_a_sink_needs_more_than_the_threshold() -> None:
    assert from_scores(planted(96, 5, 0.31)).sinks != []
    assert from_scores(planted(96, 5, 0.29)).sinks == []
    assert from_scores(planted(96, 5, 0.29), threshold=0.28).sinks != []


@pytest.mark.parametrize(("r", "score"), [(0.5, 8.3175), (0.9, 10.5147), (0.99, 12.9126)])
def test_the_score_that_holds_a_share_of_4096_keys(r: float, score: float) -> None:
    """One query over 4096 keys: maths.md's worked numbers."""
    scores = torch.zeros(1, 4096)
    scores[0, 0] = score
    q, k = torch.ones(1, 1, 1, 1), scores.view(1, 1, 4096, 1)
    d = measure(q, k, k, scale=1.0, min_queries=1)
    assert d.first_token_mass[0, 0] == pytest.approx(r, abs=2e-5)
    assert d.margin[0, 0] == pytest.approx(math.log(r / (1 - r)), abs=1e-4)


# ---- the split ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [0.5, 0.9, 0.99])
def test_margin_and_amplification_of_a_sink(r: float) -> None:
    d = from_scores(planted(128, 0, r))
    assert d.margin[0, 0] == pytest.approx(math.log(r / (1 - r)), abs=1e-5)
    assert d.amplification[0, 0] == pytest.approx(1 / (1 - r), rel=1e-5)


def test_ninety_per_cent_amplify_tenfold() -> None:
    assert from_scores(planted(128, 0, 0.9)).amplification[0, 0] == pytest.approx(10, rel=1e-5)


def test_the_worked_values_two_and_four() -> None:
    """v=(2,4) with shares (.75,.25) is 2.5; behind a zero-value sink of 90% it is 0.25, and deleting that is ×10."""
    scores = torch.tensor([0.9, 0.075, 0.025]).log()[None]
    v = torch.tensor([0.0, 2.0, 4.0]).view(1, 1, 3, 1)

    def output(real: Tensor | None = None) -> float:
        q, k = scores[None, None], torch.eye(3)[None, None]
        site = Site(layer=0, q=q, k=k, v=v, out=v[:, :, :1], visibility=Visibility(1, 3, real=real), scale=1.0)
        return float(head_output(site))

    assert output() == pytest.approx(0.25, rel=1e-6)
    without = output(torch.tensor([[False, True, True]]))
    assert without == pytest.approx(2.5, rel=1e-6)
    d = from_scores(scores, v=v, output_weight=torch.ones(1, 1), min_queries=1)
    assert d.first_token_mass[0, 0] == pytest.approx(0.9, rel=1e-6)
    assert d.amplification[0, 0] == pytest.approx(without / output(), rel=1e-5)
    assert d.sink_write_ratio[0, 0] == 0
    assert d.content_write_ratio[0, 0] == pytest.approx(1, rel=1e-6)


def test_a_zero_value_sink_writes_nothing() -> None:
    v = torch.randn(1, 1, 96, 3, generator=torch.Generator().manual_seed(0))
    v[:, :, 0] = 0
    d = from_scores(
        planted(96, 0, 0.9), v=v, output_weight=torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    )
    assert d.sink_write_ratio[0, 0] == 0
    assert d.content_write_ratio[0, 0] == pytest.approx(1, rel=1e-6)
    assert d.value_norm_ratio[0, 0] == 0
    assert d.sinks[0].write == 0


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("window", [None, 40])
def test_a_sink_with_the_contents_value_writes_its_share(scale: float, window: int | None) -> None:
    """All values along one vector, the sink's ``scale`` times as long: Σ p·scale / Σ (p·scale + 1 − p)."""
    v = torch.ones(1, 1, 96, 3) * torch.tensor([1.0, -2.0, 0.5])
    v[:, :, 0] *= scale
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    d = from_scores(planted(96, 0, 0.8), v=v, output_weight=weight, window=window)
    p = np.r_[1.0, np.full((window or 96) - 1, 0.8)]  # of the queries that see it
    whole = (p * scale + 1 - p).sum()
    assert d.sink_write_ratio[0, 0] == pytest.approx(p.sum() * scale / whole, rel=1e-5)
    assert d.content_write_ratio[0, 0] == pytest.approx((1 - p).sum() / whole, rel=1e-5)
    assert d.value_norm_ratio[0, 0] == pytest.approx(scale, rel=1e-6)


def test_without_an_output_weight_nothing_is_said_to_be_written() -> None:
    d = from_scores(planted(64, 0, 0.8))
    assert np.isnan(d.sink_write_ratio).all()
    assert d.layers[0]["write_reason"] == "no output_weight was given"
    assert d.sinks[0].write is None


@fixed
@given(st.lists(st.sampled_from([0.0, 2.0, -3.0, 100.0, -100.0]), min_size=2, max_size=2), st.integers(0, 1000))
def test_a_learned_sink_takes_sigma_of_z_minus_lse(z: list[float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, 50, 4, generator=generator) for _ in range(3))
    d = measure(q, k, v, sink_logit=torch.tensor(z))
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k.double()) / 2
    lse = scores.masked_fill(~torch.ones(50, 50, dtype=torch.bool).tril(), -math.inf).logsumexp(-1)
    taken = torch.sigmoid(torch.tensor(z).double()[:, None] - lse[0])
    np.testing.assert_allclose(d.learned_mass[0], taken.mean(-1), rtol=2e-5, atol=1e-37)
    first = ((scores[0, :, :, 0] - lse[0]).exp() * (1 - taken)).mean(-1)
    np.testing.assert_allclose(d.first_token_mass[0], first, rtol=2e-5, atol=1e-37)
    assert d.layers[0]["learned_sink"]


@fixed
@given(st.integers(0, 1000), st.sampled_from([0.3, 2.0, 8.0]))
def test_quantiles_lie_in_their_bin(seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 1, 60, 4, generator=generator) * size for _ in range(2))
    d = measure(q, k, k)
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k.double()) / 2
    scores = scores.masked_fill(~torch.ones(60, 60, dtype=torch.bool).tril(), -math.inf)
    p = np.sort(scores.softmax(-1)[:, 0, 1:, 0].flatten().numpy())  # the first query has no choice
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    for level, ours in zip(levels, d.mass_quantiles(levels)[:, 0, 0], strict=True):
        exact = p[math.ceil(level * len(p)) - 1]
        assert abs(ours - exact) <= 0.01 + 1e-6
        assert math.floor(exact * 100 - 1e-4) / 100 - 1e-9 <= ours <= math.floor(exact * 100 + 1e-4 + 1) / 100 + 1e-9


# ---- batches and arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_is_its_samples_one_by_one(side: str) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, t = (96, 50, 71), 96
    q, k, v = (torch.randn(3, 2, t, 4, generator=generator) for _ in range(3))
    weight = torch.randn(8, 6, generator=generator)
    real = torch.zeros(3, t, dtype=torch.bool)
    alone = []
    for b, n in enumerate(lengths):
        keep = slice(t - n, None) if side == "left" else slice(0, n)
        real[b, keep] = True
        parts = (x[b : b + 1, :, keep] for x in (q, k, v))
        alone.append(measure(*parts, output_weight=weight, window=60, name=f"{b}"))
    together = measure(q, k, v, real=real, output_weight=weight, window=60)
    assert [s["length"] for s in together.meta["samples"]] == list(lengths)
    for name, array in together.arrays.items():
        if name.startswith(("key_", "curve_", "share_")) and name not in ("key_first", "key_rest"):
            continue
        for b, one in enumerate(alone):
            # "previous" and others are sums over up to 96 float32 terms
            np.testing.assert_allclose(array[b], one.arrays[name][0], rtol=2e-5, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(together.arrays["key_n"], sum_padded([d.arrays["key_n"] for d in alone]))
    summed = sum_padded([np.nan_to_num(d.key_mass) for d in alone])
    counted = together.arrays["key_n"][:, None]
    np.testing.assert_allclose(np.nan_to_num(together.key_mass) * counted, summed, atol=1e-6)


def sum_padded(arrays: list[np.ndarray]) -> np.ndarray:
    width = max(a.shape[-1] for a in arrays)
    return sum(np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, width - a.shape[-1])]) for a in arrays)


@pytest.mark.parametrize(
    ("named", "change"),
    [
        ("q", {"q": torch.zeros(1, 4, 8)}),
        ("heads", {"q": torch.zeros(1, 3, 40, 8)}),
        ("last dimension", {"q": torch.zeros(1, 4, 40, 7)}),
        ("length", {"v": torch.zeros(1, 2, 39, 8)}),
        ("mask", {"mask": torch.ones(40, 40, dtype=torch.bool)}),
        ("real", {"real": torch.ones(1, 39, dtype=torch.bool)}),
        ("window", {"window": 0}),
        ("sink_logit", {"sink_logit": torch.zeros(2)}),
        ("output weight", {"output_weight": torch.zeros(33, 8)}),
        ("threshold", {"threshold": 1.5}),
        ("detail", {"detail": "most"}),
        ("min_queries", {"min_queries": 0}),
    ],
)
def test_shapes_that_do_not_go_together_are_named(named: str, change: dict[str, Any]) -> None:
    given_ = {"q": torch.zeros(1, 4, 40, 8), "k": torch.zeros(1, 2, 40, 8), "v": torch.zeros(1, 2, 40, 8)} | change
    with pytest.raises(ArgumentError, match=named) as error:
        measure(**given_)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_name_layer_and_head(value: float) -> None:
    q = torch.randn(1, 3, 40, 4, generator=torch.Generator().manual_seed(0))
    v = q.clone()
    v[0, 1, 5] = value
    with pytest.raises(NonFiniteError, match=r"layer 0, head 1: "):
        measure(q, q, v)


@pytest.mark.parametrize(
    "change", ["real with a hole", "mask of another batch", "mask of other heads", "names", "scale 0"]
)
def test_inputs_that_would_be_misread_are_refused_or_honoured(change: str) -> None:
    t = 64
    x = torch.randn(1, 2, t, 4, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {
        "real with a hole": {"real": (torch.arange(t) != 5)[None]},  # token names then shift by one
        "mask of another batch": {"mask": torch.ones(3, 1, t, t, dtype=torch.bool)},
        "mask of other heads": {"mask": torch.ones(1, 3, t, t, dtype=torch.bool)},
        "names": {"tokens": [["only", "three", "names"]]},  # the other keys are dropped
        "scale 0": {"scale": 0.0},  # becomes the default scale
    }[change]
    if change == "scale 0":
        np.testing.assert_allclose(measure(x, x, x, **options).first_token_mass, harmonic(t) / t, rtol=1e-5)
        return
    with pytest.raises(ArgumentError):
        measure(x, x, x, **options)


def test_heads_that_see_different_keys_are_refused() -> None:
    t = 64
    mask = torch.ones(1, 2, t, t, dtype=torch.bool).tril()
    mask[:, 1] &= torch.ones(t, t, dtype=torch.bool).triu(-9)
    z = torch.zeros(1, 2, t, 4)
    with pytest.raises(UnsupportedError, match="see different keys"):
        measure(z, z, z, mask=mask, causal=False)


@pytest.mark.parametrize("kind", ["decoding", "not causal"])
def test_leaving_out_a_first_query_that_is_not_there(kind: str) -> None:
    z = torch.zeros(1, 1, 64, 4)
    d = measure(z[:, :, 48:], z, z) if kind == "decoding" else measure(z, z, z, causal=False)
    ours, null = d.mass_by_sample(first_query=False), d.null_by_sample(first_query=False)
    np.testing.assert_allclose(ours, null, rtol=1e-5)


def test_a_first_token_that_no_query_sees_has_no_mass() -> None:
    z = torch.zeros(1, 1, 64, 4)
    assert np.isnan(measure(z[:, :, 48:], z, z, window=8).first_token_mass).all()


def test_a_short_sample_does_not_erase_the_other_keys() -> None:
    x = torch.zeros(2, 1, 96, 96)
    x[:, 0] = planted(96, 5, 0.8)
    real = torch.arange(96)[None] < torch.tensor([[96], [20]])
    d = measure(x, torch.eye(96).expand(2, 1, -1, -1), x, scale=1.0, real=real)
    assert d.top_other_mass[0, 0] == pytest.approx(0.8, rel=1e-5)


def test_uniform_attention_over_few_tokens_has_no_sink_at_any_level() -> None:
    z = torch.zeros(1, 1, 8, 4)
    assert measure(z, z, z, detail="full").sinks == []
    assert measure(z, z, z, detail="first").sinks == []


def test_the_cheap_level_amplifies_a_strong_sink_as_the_full_one_does() -> None:
    found = {}
    t, d = 512, 64
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, t, d, generator=generator) for _ in range(3))
    u = torch.full((d,), d**-0.5)
    q, k = q + 8 * u, k - (k @ u)[..., None] * u
    k[0, 0, 0] = u * (8 + math.log(t))  # a margin of 8.3
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    for detail in ("first", "keys"):
        probe = Probe(Settings(detail=detail, tokens=t))  # type: ignore[arg-type]
        with probe.sample([{"id": "a", "source": "", "tokens": ["x"] * t, "bos": False}]):
            probe.site(Site(layer=0, q=q, k=k, v=v, out=out, visibility=Visibility(t, t), lse=lse))
        found[detail] = probe.finish(model={"name": "x"})
    np.testing.assert_allclose(found["first"].first_token_mass, found["keys"].first_token_mass, atol=1e-6)
    ours, true = (np.log(found[detail].amplification[0, 0]) for detail in ("first", "keys"))
    assert np.isnan(ours) or ours == pytest.approx(true, abs=0.1)  # honest, or absent


# ---- merging -----------------------------------------------------------------------------------------------------

DERIVED = ("first_token_mass", "null_mass", "key_mass", "key_null", "top_other_mass", "sinks", "margin", "amplification",
           "sink_write_ratio", "content_write_ratio", "learned_mass", "value_norm_ratio", "entropy", "entropy_ratio",
           "local_mass", "local_null", "previous_mass", "query_key_cosine", "head_kind", "massive", "kurtosis",
           "stream_median", "measured", "shape", "samples")  # fmt: skip


def one_pass(probe: Probe, name: str, t: int, seed: int, layers: int = 2) -> None:
    """A sample of two layers (the second windowed, with a learned sink) and a residual stream."""
    generator = torch.Generator().manual_seed(seed)
    new = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    tokens = [f"{name}{i}" for i in range(t)]
    with probe.sample([{"id": name, "source": "made up", "tokens": tokens, "bos": False}]):
        for layer in range(layers):
            probe.stream(layer, new(1, t, 12))
            q, k, v = new(1, 4, t, 6) * 4, new(1, 2, t, 6), new(1, 2, t, 5)
            site = Site(
                layer=layer, q=q, k=k, v=v, out=torch.zeros(1, 4, t, 5), visibility=Visibility(t, t, window=48 if layer else None),
                sink_logit=torch.ones(4) if layer else None, output_map=OutputMap.from_weight(torch.eye(20), 4),
            )  # fmt: skip
            site.out = head_output(site)
            probe.site(site)
        probe.stream(layers, new(1, t, 12))


def record(parts: list[tuple[str, int]], **more: Any) -> Diagnosis:
    probe = Probe(Settings(**({"tokens": 128, "min_queries": 8} | more)))
    for name, t in parts:
        one_pass(probe, name, t, seed=t)
    return probe.finish(model={"name": "made up", "fingerprint": "f"}, notes=sorted({f"note {t}" for _, t in parts}))


def assert_same(a: Diagnosis, b: Diagnosis) -> None:
    """Bit for bit, NaN included; only the time of making may differ."""
    assert a.arrays.keys() == b.arrays.keys()
    for name, array in a.arrays.items():
        other = b.arrays[name]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert array.tobytes() == other.tobytes(), name
    assert {**a.meta, "created": ""} == {**b.meta, "created": ""}
    for name in DERIVED:
        x, y = getattr(a, name), getattr(b, name)
        assert x.tobytes() == y.tobytes() if isinstance(x, np.ndarray) else x == y, name
    np.testing.assert_array_equal(a.mass_quantiles(), b.mass_quantiles())
    assert a.sink_rates() == b.sink_rates()
    assert a.excess().low.tobytes() == b.excess().low.tobytes()
    for name, value in a.curve(1, 2).items():
        np.testing.assert_array_equal(value, b.curve(1, 2)[name])


PARTS = [("c", 40), ("a", 128), ("b", 77)]


@pytest.mark.filterwarnings("error")
def test_merging_parts_in_any_order_is_measuring_them_at_once() -> None:
    at_once = record(PARTS)
    assert at_once.samples == 3
    single = [record([part]) for part in PARTS]
    for x, y, z in itertools.permutations(single):
        assert_same(x.merge(y).merge(z), at_once)
        assert_same(x.merge(y.merge(z)), at_once)
    assert_same(record(PARTS[::-1]), at_once)
    assert_same(record(PARTS[:2]).merge(single[2]), at_once)


@pytest.mark.parametrize("detail", ["first", "keys"])
def test_the_cheaper_levels_merge_too(detail: str) -> None:
    at_once = record(PARTS, detail=detail)
    x, y, z = (record([part], detail=detail) for part in PARTS)
    merged = z.merge(x).merge(y)
    for name, array in at_once.arrays.items():
        assert array.tobytes() == merged.arrays[name].tobytes(), name
    assert merged.sinks == at_once.sinks


def test_merging_leaves_both_records_as_they_were() -> None:
    a, b = record(PARTS[:1]), record(PARTS[1:2])
    before = {name: array.copy() for name, array in a.arrays.items()}
    samples = list(a.meta["samples"])
    a.merge(b)
    assert a.meta["samples"] == samples
    for name, array in before.items():
        np.testing.assert_array_equal(a.arrays[name], array)


def test_a_model_diagnosed_in_parts_is_the_model_diagnosed_whole() -> None:
    model = tiny("mistral")
    texts = [words(90, 1), words(130, 2), words(45, 3)]

    def of(*chosen: str) -> Diagnosis:
        d = diagnose(model, tokenizer(), list(chosen), tokens=130, samples=9, min_queries=8)
        assert isinstance(d, Diagnosis)
        for sample in d.meta["samples"]:
            sample["source"] = ""  # it counts the texts it was given
        return d

    whole = of(*texts)
    assert whole.samples == 3
    parts = [of(text) for text in texts]
    for x, y, z in itertools.permutations(parts):
        assert_same(x.merge(y).merge(z), whole)


def test_what_does_not_go_together_is_not_merged() -> None:
    a = record(PARTS[:2])
    cases = {
        "in both records": (a, a),
        "1 sample": (a, record(PARTS[1:])),
        "different settings: threshold": (a, record(PARTS[2:], threshold=0.4)),
        "different settings: detail": (a, record(PARTS[2:], detail="keys")),
    }
    other = record(PARTS[2:])
    other.meta["model"]["fingerprint"] = "g"
    cases["different model"] = (a, other)
    for message, (x, y) in cases.items():
        for one, two in ((x, y), (y, x)):
            with pytest.raises(RecordError, match=message) as error:
                one.merge(two)
            assert "\n" not in str(error.value)


def test_records_of_different_shape_are_not_merged() -> None:
    small, large = (measure(*[torch.zeros(1, h, 64, 4)] * 3, name=f"{h}") for h in (1, 2))
    with pytest.raises(RecordError):
        small.merge(large)


# ---- keeping -----------------------------------------------------------------------------------------------------


def test_a_saved_record_comes_back_bit_for_bit(tmp_path: Path) -> None:
    d = record(PARTS)
    assert d.save(tmp_path / "r") == tmp_path / "r"
    back = Diagnosis.load(tmp_path / "r")
    assert back.meta["created"] == d.meta["created"]
    assert_same(back, d)
    assert_same(Diagnosis.load(tmp_path / "r" / "record.json"), d)
    assert sorted(p.suffix for p in (tmp_path / "r").iterdir()) == [".json", ".safetensors"]


def test_saving_again_replaces_the_record_and_its_tensors(tmp_path: Path) -> None:
    record(PARTS[:1]).save(tmp_path)
    other = record(PARTS[1:])
    other.save(tmp_path)
    assert_same(Diagnosis.load(tmp_path), other)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_merged_record_survives_the_disk(tmp_path: Path) -> None:
    for name, t in PARTS:
        record([(name, t)]).save(tmp_path / name)
    a, b, c = (Diagnosis.load(tmp_path / name) for name, _ in PARTS)
    assert_same(c.merge(a).merge(b), record(PARTS))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(PARTS).save(tmp_path_factory.mktemp("saved"))


def damaged(saved: Path, to: Path, change: Callable[[Path, dict[str, Any]], Any]) -> None:
    """A copy of a good record with one thing wrong; ``change`` may edit files and the JSON."""
    to.mkdir(exist_ok=True)
    for path in saved.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    meta = json.loads((to / "record.json").read_text())
    if change(to, meta) is not False:
        (to / "record.json").write_text(json.dumps(meta))


def bytes_of(change: Callable[[bytes], bytes]) -> Callable[[Path, dict[str, Any]], Any]:
    def apply(directory: Path, meta: dict[str, Any]) -> bool:
        path = directory / "record.json"
        path.write_bytes(change(path.read_bytes()))
        return False

    return apply


def tensors_of(
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray] | bytes],
) -> Callable[[Path, dict[str, Any]], Any]:
    """Other tensors with a fitting digest: damage that a checksum does not see."""

    def apply(directory: Path, meta: dict[str, Any]) -> None:
        result = change(safetensors.numpy.load((directory / meta["tensors"]["file"]).read_bytes()))
        data = result if isinstance(result, bytes) else safetensors.numpy.save(result)
        digest = hashlib.sha256(data).hexdigest()
        meta["tensors"] = {"file": f"record-{digest[:12]}.safetensors", "sha256": digest}
        (directory / meta["tensors"]["file"]).write_bytes(data)

    return apply


def file_of(change: Callable[[bytes], bytes | None]) -> Callable[[Path, dict[str, Any]], Any]:
    """The tensors file as it lies on the disk."""

    def apply(directory: Path, meta: dict[str, Any]) -> None:
        path = directory / meta["tensors"]["file"]
        data = change(path.read_bytes())
        path.unlink() if data is None else path.write_bytes(data)

    return apply


def put(*keys: Any) -> Callable[[Path, dict[str, Any]], Any]:
    """``put("a", "b", value)`` sets ``meta["a"]["b"]``; without a value (``...``) the key goes."""
    *path, last, value = keys

    def apply(directory: Path, meta: Any) -> None:
        for key in path:
            meta = meta[key]
        if value is ...:
            del meta[last]
        else:
            meta[last] = value

    return apply


def without(name: str) -> Callable[[Path, dict[str, Any]], Any]:
    return tensors_of(lambda a: {k: v for k, v in a.items() if k != name})


def shortened(name: str) -> Callable[[Path, dict[str, Any]], Any]:
    return tensors_of(lambda a: {k: np.ascontiguousarray(v[..., :-1]) if k == name else v for k, v in a.items()})


OUTSIDE = ("../record-0123456789ab.safetensors", "/record-0123456789ab.safetensors", "..", "", "record.json",
           "record-0123456789ab.safetensors\n", "sub/record-0123456789ab.safetensors")  # fmt: skip
PARTS_OF_META = (
    "format",
    "version",
    "tensors",
    "model",
    "settings",
    "samples",
    "layers",
    "notes",
    "massive",
    "strip",
    "created",
)
DAMAGE = {
    "truncated JSON": bytes_of(lambda b: b[: len(b) // 2]),
    "empty JSON": bytes_of(lambda b: b""),
    "JSON null": bytes_of(lambda b: b"null"),
    "JSON list": bytes_of(lambda b: b"[1, 2]"),
    "not UTF-8": bytes_of(lambda b: b"\xff\xfe" + b),
    "NaN threshold": bytes_of(lambda b: b.replace(b'"threshold": 0.3', b'"threshold": NaN')),
    **{f"{name} gone": put(name, ...) for name in PARTS_OF_META},
    **{f"{name} null": put(name, None) for name in PARTS_OF_META},
    **{f"{name} a number": put(name, 7) for name in PARTS_OF_META},
    **{f"version {version!r}": put("version", version) for version in (0, 2, 99, "1", [1])},
    **{f"tensors in {name!r}": put("tensors", "file", name) for name in (*OUTSIDE, 7, None)},
    "another tensors file": put("tensors", "file", "record-0123456789ab.safetensors"),
    "digest gone": put("tensors", "sha256", ...),
    "digest wrong": put("tensors", "sha256", "0" * 64),
    "tensors truncated": file_of(lambda b: b[:-7]),
    "tensors empty": file_of(lambda b: b""),
    "tensors gone": file_of(lambda b: None),
    "tensors one bit": file_of(lambda b: b[: len(b) // 2] + bytes([b[len(b) // 2] ^ 1]) + b[len(b) // 2 + 1 :]),
    "tensors garbage, digest right": tensors_of(lambda a: b"garbage"),
    "tensors nothing, digest right": tensors_of(lambda a: b""),
    "first_sum gone": without("first_sum"),
    "one head fewer": shortened("margin_sum"),
    "one layer fewer": shortened("first_n"),
    "one depth fewer": shortened("stream_rest"),
    "unknown array": tensors_of(lambda a: a | {"x": np.zeros(3)}),
    "one axis more": tensors_of(lambda a: a | {"first_n": a["first_n"][None]}),
    "one sample fewer": put("samples", [{"id": "a", "sinks": []}]),
    "one layer's text fewer": put("layers", [{}]),
    "sample without id": put("samples", 0, "id", ...),
    "sample id a number": put("samples", 0, "id", 3),
    "sample without sinks": put("samples", 0, "sinks", ...),
    "sample a string": put("samples", 0, "a"),
    "unknown setting": put("settings", "depth", 3),
    "setting out of range": put("settings", "threshold", 7.0),
    "setting of the wrong type": put("settings", "threshold", "a lot"),
    "setting null": put("settings", "local_window", None),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_record_is_refused_in_one_line(kind: str, saved: Path, tmp_path: Path) -> None:
    damaged(saved, tmp_path / "r", DAMAGE[kind])
    with pytest.raises(RecordError) as error:
        Diagnosis.load(tmp_path / "r")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "r") in str(error.value)


def test_the_copy_that_the_damage_is_done_to_is_sound(saved: Path, tmp_path: Path) -> None:
    damaged(saved, tmp_path / "r", lambda directory, meta: None)
    assert_same(Diagnosis.load(tmp_path / "r"), record(PARTS))


UNSEEN = {
    "first_n gone": without("first_n"),
    "head_write gone": without("head_write"),
    "curve_n gone": without("curve_n"),
    "key_mass of another length": shortened("key_mass"),
    "histogram of fewer bins": shortened("share_histogram"),
    "key_mass in floats": tensors_of(lambda a: a | {"key_mass": a["key_mass"].astype(np.float64)}),
    "bfloat16 tensors": tensors_of(lambda a: BFLOAT16),
    "deep nesting": bytes_of(lambda b: b"[" * 100_000),
    "a layer a number": put("layers", 0, 3),
    "a layer empty": put("layers", 0, {}),
    "a sink a number": put("samples", 0, "sinks", [3]),
    "a sink without mass": put("samples", 0, "sinks", [{"position": 0, "token": "a"}]),
    "a massive activation a number": put("massive", [3]),
    "a model without name": put("model", {}),
    "NaN in the text": bytes_of(lambda b: b.replace(b'"position": ', b'"position": NaN, "x": ', 1)),
    "version true": put("version", True),
}
BFLOAT16 = (lambda header: len(header).to_bytes(8, "little") + header + b"\0" * 4)(
    b'{"first_sum":{"dtype":"BF16","shape":[2,1,1],"data_offsets":[0,4]}}     '
)


@pytest.mark.parametrize("kind", UNSEEN)
def test_deeper_damage_is_refused_too(kind: str, saved: Path, tmp_path: Path) -> None:
    damaged(saved, tmp_path / "r", UNSEEN[kind])
    with pytest.raises(RecordError):
        Diagnosis.load(tmp_path / "r")


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_no_record_at_all(where: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match=r"expected a folder with record\.json") as error:
        Diagnosis.load(tmp_path / where)
    assert "\n" not in str(error.value)
