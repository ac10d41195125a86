"""What a setting weighs, held to what a filled cache says it allocated; and the fit of a step's time."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import tiny
from sinkgate.cache.registry import as_policy
from sinkgate.hf.streaming import streaming
from sinkgate.planning.cost import Shape, fit_latency

MODELS = ("llama", "gemma3", "qwen3")


@functools.cache
def model(name: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Shape]:
    found = tiny(name, dtype=dtype)
    return found, Shape.of(found)


def filled(
    name: str, policy: str, positions: str, *, tokens: int, batch: int = 1, dtype: torch.dtype = torch.float32
) -> int:
    """Bytes that the caches of a stream say they hold."""
    lm, _ = model(name, dtype)
    ids = torch.randint(2, 96, (batch, tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), streaming(lm, policy, positions=positions) as cache:
        lm(ids, cache=cache)
        return cache.nbytes()


@st.composite
def policies(draw: Any) -> str:
    recent = draw(st.integers(1, 70))
    parts = [f"recent({recent})"]
    sinks = draw(st.sampled_from(["", "sinks(1)", "sinks(4)", "sinks(2, token_ids=[5, 6])"]))
    kind = draw(st.sampled_from(["plain", "heavy", "packed", "heads", "layers"]))
    if kind == "heavy":
        parts.append(f"heavy({draw(st.integers(1, 9))})")
    base = " + ".join([*parts, *([sinks] if sinks else [])])
    packed = f"quantized({base}, bits={draw(st.sampled_from([4, 8]))}, tail={draw(st.sampled_from([0, 1, 40]))}, group={draw(st.sampled_from([2, 32]))})"
    if kind == "packed":
        return packed
    if kind == "heads":
        return f"per_head({base}, [[1, 0]], recent(90) + sinks(4))"
    if kind == "layers":
        return f"per_layer({base}, [1], {'recent(90)' if 'heavy' in base else 'quantized(recent(90), bits=4)'})"
    return base


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=25, deadline=None)
@given(policy=policies(), slots=st.booleans(), batch=st.integers(1, 2))
def test_bytes_are_those_of_a_filled_cache(name: str, policy: str, slots: bool, batch: int) -> None:
    positions = "slots" if slots else "original"
    _, shape = model(name)
    expected = filled(name, policy, positions, tokens=100, batch=batch)
    assert shape.bytes(as_policy(policy), positions, context=100, batch=batch) == expected


def test_packed_sinks_and_half_precision() -> None:
    for policy in (
        "quantized(recent(40) + sinks(4), keep_sinks=false)",
        "recent(20) + sinks(4)",
        "quantized(recent(40) + sinks(4), bits=4)",
    ):
        for positions in ("slots", "original"):
            _, shape = model("llama", torch.bfloat16)
            expected = filled("llama", policy, positions, tokens=100, dtype=torch.bfloat16)
            assert shape.bytes(as_policy(policy), positions, context=100) == expected, policy


def test_a_dense_cache_is_counted_without_its_room_to_grow() -> None:
    lm, shape = model("llama")
    layers, kv, d = 3, 2, 8
    assert shape.bytes(as_policy("dense"), "original", context=100) == 100 * layers * kv * 2 * d * 4
    assert shape.bytes(as_policy("dense"), "original", context=100, batch=3) == 300 * layers * kv * 2 * d * 4
    assert filled("llama", "dense", "original", tokens=100) >= shape.bytes(as_policy("dense"), "original", context=100)
    assert shape.context == lm.config.max_position_embeddings


def test_layers_with_a_window_of_their_own_keep_it() -> None:
    _, shape = model("gemma3")
    assert [layer.window for layer in shape.layers] == [16, None, 16]
    assert [layer.index for layer in shape.free] == [1]
    one = shape.bytes(as_policy("recent(4)"), "original", context=100)
    assert one == (16 + 4 + 16) * 2 * 2 * 8 * 4


def test_reads_count_what_a_step_sees() -> None:
    _, shape = model("llama")
    numbers = 3 * 2 * 2 * 8
    assert shape.reads(as_policy("dense"), context=50) == (50 * numbers, 0)
    assert shape.reads(as_policy("recent(10) + sinks(4)"), context=50) == (14 * numbers, 0)
    assert shape.reads(as_policy("recent(10) + sinks(4)"), context=7) == (7 * numbers, 0)
    assert shape.reads(as_policy("quantized(recent(10))"), context=50) == (0, 10 * numbers)


def test_the_fit_finds_what_made_the_times() -> None:
    reads = [(0, 0), (10**6, 0), (4 * 10**6, 0), (0, 10**6), (0, 3 * 10**6)]
    times = [30 + 2 * a / 1e6 + 7 * b / 1e6 for a, b in reads]
    fit = fit_latency(reads, times)
    assert (fit.fixed, fit.plain, fit.packed) == pytest.approx((30, 2, 7), rel=1e-6)
    assert fit.error < 1e-9
    assert fit((10**6, 10**6)) == pytest.approx(39, rel=1e-6)


def test_the_fit_never_predicts_less_for_more() -> None:
    rng = np.random.default_rng(0)
    reads = [(int(a), int(b)) for a, b in rng.integers(0, 10**7, (12, 2))]
    fit = fit_latency(reads, list(rng.uniform(10, 12, 12)))
    assert fit.plain >= 0
    assert fit.packed >= 0
    assert 0 < fit.error < 0.2
