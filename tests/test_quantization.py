"""Rounding: against loops in float64, against torchao, against what the cache stores; the value and its text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sinkgate as sg
from sinkgate.cache.packed import pack
from sinkgate.errors import ArgumentError
from sinkgate.quantization import GRANULARITIES, PLACES, Quantization, as_quantization, quantize

WHERE = [(place, granularity) for place, known in PLACES.items() for granularity in known]


def spec(bits: int, symmetric: bool, granularity: str, group: int = 4, offset: str = "whole") -> Quantization:
    return Quantization(bits, symmetric, granularity, group if granularity == "group" else None, offset)


# ---- loops ----------------------------------------------------------------------------------------------------------


def line(numbers: list[float], how: Quantization, among: list[float] | None = None) -> list[float]:
    """Numbers that share a scale, one by one; the range is that of ``among``."""
    among = numbers if among is None else among
    if how.symmetric:
        high = 2 ** (how.bits - 1) - 1
        low, zero, step = -high, 0, max(map(abs, among), default=0.0) / high
    else:
        low, high = 0, 2**how.bits - 1
        least, most = min([0.0, *among]), max([0.0, *among])
        step = (most - least) / high
        zero = min(max(round(-least / step), low), high) if step else 0
    return [(min(max(round(x / step) + zero, low), high) - zero) * step if step else 0.0 for x in numbers]


def sharing(shape: torch.Size, place: str, how: Quantization) -> Iterator[tuple[Any, ...]]:
    """Indices of each set of numbers that share a scale, said in words of the place rather than in axes."""
    g = how.group or 1
    chunks = [slice(i, i + g) for i in range(0, shape[-1], g)]
    rows = itertools.product(*map(range, shape[:-1]))
    if how.granularity == "group":
        yield from ((*row, chunk) for row in rows for chunk in chunks)
    elif place == "weights":
        yield from rows if how.granularity == "channel" else [()]
    elif place == "activations":
        yield from rows if how.granularity == "token" else [()]
    elif how.granularity == "token":
        yield from rows  # of one text, one head
    else:
        for b in range(shape[0]):
            if how.granularity == "tensor":
                yield (b,)
                continue
            for h in range(shape[1]):
                yield from [(b, h)] if how.granularity == "head" else [(b, h, slice(None), c) for c in range(shape[3])]


def brute(x: Tensor, how: Quantization, place: str, among: Tensor | None = None) -> Tensor:
    """Every number by itself, in float64."""
    how, out = how.at(place), x.double().clone()
    for index in sharing(x.shape, place, how):
        some = x.double()[index]
        chosen = some.flatten() if among is None else some[among.expand(x.shape)[index]]
        out[index] = torch.tensor(line(some.flatten().tolist(), how, chosen.tolist()), dtype=torch.float64).reshape(
            some.shape
        )
    return out


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(WHERE), st.integers(2, 8), st.booleans(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5),
    st.integers(0, 2**16), st.floats(-6, 6), st.floats(-30, 30), st.booleans(),
)  # fmt: skip
def test_numbers_against_loops(
    where: tuple[str, str], bits: int, symmetric: bool, b: int, h: int, s: int, seed: int, size: float, shift: float,
    some: bool,
) -> None:  # fmt: skip
    place, granularity = where
    how = spec(bits, symmetric, granularity)
    g = torch.Generator().manual_seed(seed)
    shape = {"weights": (s, 8), "activations": (b, s, 8), "kv": (b, h, s, 8)}[place]
    x = (torch.randn(shape, generator=g, dtype=torch.float64) + shift) * 10**size
    among = None
    if some and place == "kv":
        among = (torch.rand(b, 1, s, 1, generator=g) > 0.4).expand(shape)
    torch.testing.assert_close(quantize(x, how, place, among), brute(x, how, place, among), rtol=1e-12, atol=0.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.booleans(), st.integers(0, 2**16), st.floats(-20, 20))
def test_half_a_step_at_most_and_no_further_the_second_time(
    bits: int, symmetric: bool, seed: int, shift: float
) -> None:
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift
    how = spec(bits, symmetric, "channel")
    once = quantize(x, how, "weights")
    if symmetric:
        step = x.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    else:
        step = (x.amax(1, keepdim=True).clamp(min=0) - x.amin(1, keepdim=True).clamp(max=0)) / (2**bits - 1)
    worst = 0.5 if symmetric else 1.0  # a rounded zero point may cut the end of the range by another half
    assert ((once - x).abs() <= worst * step * (1 + 1e-9)).all()
    if symmetric:
        torch.testing.assert_close(quantize(once, how, "weights"), once, rtol=1e-12, atol=1e-12)
    assert all(len(row.unique()) <= 2**bits for row in (once / step).round(decimals=6))


def test_ties_go_to_even_and_zero_stays_zero() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -2.5, 0.0]])
    assert quantize(x, Quantization(8), "weights").tolist() == [[127.0, 0.0, 2.0, 2.0, 0.0, -2.0, 0.0]]
    assert quantize(x + 0.0, Quantization(2), "weights").tolist() == [[127.0] + [0.0] * 6]
    uneven = torch.tensor([[-1.0, 0.0, 2.0]])
    assert quantize(uneven, Quantization(4, symmetric=False), "weights")[0, 1] == 0.0
    assert torch.equal(quantize(torch.zeros(2, 3), Quantization(), "weights"), torch.zeros(2, 3))
    same = torch.full((2, 3), 2.5)
    torch.testing.assert_close(quantize(same, Quantization(4, symmetric=False), "weights"), same)


def test_what_is_not_finite_is_not_hidden() -> None:
    x = torch.tensor([[1.0, torch.inf], [1.0, torch.nan], [1.0, 2.0]])
    for how in ("int8", "uint8"):
        found = quantize(x, as_quantization(how, "weights"), "weights")
        assert found[:2].isnan().any(1).tolist() == [True, True]
        assert found[2].isfinite().all()
    assert quantize(torch.zeros(0, 4), Quantization(granularity="tensor"), "activations").shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8).to(dtype)
    for how in (Quantization(4), Quantization(4, symmetric=False, granularity="group", group=4)):
        found = quantize(x, how, "weights")
        assert found.dtype == dtype
        assert torch.equal(found, quantize(x.float(), how, "weights").to(dtype))


# ---- torchao --------------------------------------------------------------------------------------------------------


THEIRS = json.loads((Path(__file__).parent / "data" / "torchao.json").read_text(encoding="utf-8"))


def spread(x: list[float], shape: tuple[int, ...], block: list[int]) -> Tensor:
    """A scale or zero point of each block, over the numbers of the block."""
    found = torch.tensor(x).reshape([n // m for n, m in zip(shape, block, strict=True)])
    for axis, m in enumerate(block):
        found = found.repeat_interleave(m, axis)
    return found


def test_torchao_was_asked_for_everything() -> None:
    asked = {(c["place"], c["granularity"], c["symmetric"]) for c in THEIRS["cases"]}
    assert asked == {(*where, symmetric) for where in WHERE for symmetric in (True, False)}


@pytest.mark.parametrize(
    "case", THEIRS["cases"], ids=lambda c: f"{c['place']}-{c['granularity']}-{c['bits']}-{c['symmetric']}"
)
def test_the_numbers_are_those_of_torchao(case: dict[str, Any]) -> None:
    """choose_qparams_affine, quantize_affine and dequantize_affine: data/make_torchao.py wrote down what they gave."""
    x = torch.tensor(THEIRS["inputs"][case["place"]])
    step = spread(case["scale"], x.shape, case["block"])
    zero = spread(case["zero"], x.shape, case["block"])
    back = (torch.tensor(case["codes"]).reshape(x.shape) - zero) * step
    assert float(back.double().sum()) == pytest.approx(case["sum"], rel=1e-6, abs=1e-6)
    ours = quantize(x, spec(case["bits"], case["symmetric"], case["granularity"], group=8), case["place"])
    # torchao multiplies with 1/scale in float32, we divide: what lies on the border of two codes may go either way
    border = ((x / step).double() % 1 - 0.5).abs() < 1e-4
    assert border.sum() <= 1
    torch.testing.assert_close(ours[~border], back[~border], rtol=1e-6, atol=1e-7)
    assert ((ours - back).abs() <= step * 1.001).all()
    assert (ours != x).any()


@pytest.mark.parametrize("bits", [2, 4, 7, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_torchs_own_fake_quantisation_on_the_same_grid(bits: int, symmetric: bool) -> None:
    x = torch.randn(12, 40, generator=torch.Generator().manual_seed(bits)) - 0.3
    if symmetric:
        low, high = 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1
        step, zero = x.abs().amax(1) / high, torch.zeros(12, dtype=torch.int32)
    else:
        low, high = 0, 2**bits - 1
        step = (x.amax(1) - x.amin(1)) / high
        zero = (-x.amin(1) / step).round().int()
    want = torch.fake_quantize_per_channel_affine(x, step, zero, 0, low, high)
    ours = quantize(x, spec(bits, symmetric, "channel"), "weights")
    border = ((x / step[:, None]).double() % 1 - 0.5).abs() < 1e-4
    assert border.sum() <= 2
    torch.testing.assert_close(ours[~border], want[~border], rtol=1e-6, atol=1e-7)


# ---- what the cache stores -------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([4, 8]), st.sampled_from(["channel", "token"]), st.integers(1, 9), st.integers(1, 8),
    st.integers(0, 2**16), st.floats(-3, 4), st.floats(-100, 100),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)  # fmt: skip
def test_offset_least_is_to_the_bit_what_the_cache_stores(
    bits: int, granularity: str, s: int, half: int, seed: int, size: float, shift: float, dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = (torch.randn(2, 3, s, 2 * half, generator=g, dtype=torch.float64) * 10**size + shift).to(dtype)
    stored = pack(x, bits, {"channel": -2, "token": -1}[granularity]).unpack(dtype)
    assert torch.equal(quantize(x, spec(bits, False, granularity, offset="least"), "kv"), stored)


def test_both_offsets_agree_where_the_least_is_zero() -> None:
    x = torch.rand(2, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    for bits in (2, 4, 8):
        x[..., 0], x[..., 1] = 0.0, (2**bits - 1) / 256  # a step of 1/256, which half precision holds
        y = x.clamp(max=(2**bits - 1) / 256)
        whole, least = (quantize(y, spec(bits, False, "token", offset=o), "kv") for o in ("whole", "least"))
        torch.testing.assert_close(whole, least, rtol=1e-6, atol=0.0)


def test_a_range_that_is_not_all_of_it() -> None:
    x = torch.randn(1, 2, 5, 4)
    x[:, :, 0] *= 1000
    among = torch.tensor([False, True, True, True, True])[None, None, :, None]
    for how in (spec(4, True, "head"), spec(4, False, "channel"), spec(4, False, "tensor", offset="least")):
        found = quantize(x, how, "kv", among)
        assert torch.equal(found[:, :, 1:], quantize(x[:, :, 1:], how, "kv"))
        assert found[:, :, 0].abs().max() <= 2 * x[:, :, 1:].abs().max()  # cut to the range of the others
        nothing = quantize(x, how, "kv", torch.zeros_like(among))
        assert nothing.isfinite().all()
    x[:, :, 0] = -1000.0
    cut = quantize(x, spec(3, True, "tensor"), "kv", among)[:, :, 0]
    torch.testing.assert_close(cut, (-x[:, :, 1:].abs().max()).expand(1, 2, 4))


# ---- the value ------------------------------------------------------------------------------------------------------

SPECS = st.builds(
    lambda bits, symmetric, granularity, group, offset: Quantization(
        bits, symmetric, granularity, group if granularity == "group" else None, "whole" if symmetric else offset
    ),
    st.integers(2, 8), st.booleans(), st.sampled_from([None, *GRANULARITIES]), st.integers(2, 512),
    st.sampled_from(["whole", "least"]),
)  # fmt: skip


@given(SPECS)
def test_text_and_json_come_back(how: Quantization) -> None:
    assert Quantization.from_text(str(how)) == how
    assert Quantization.from_json(how.to_json()) == how
    assert hash(how) == hash(Quantization.from_json(how.to_json()))


def test_texts() -> None:
    assert sg.Quantization is Quantization
    assert Quantization.from_text("int8") == Quantization(8)
    assert Quantization.from_text(" uint4( channel , offset = least ) ") == spec(4, False, "channel", offset="least")
    assert Quantization.from_text("int4(group=64)") == Quantization(4, group=64) == Quantization(4, True, "group", 64)
    assert [str(Quantization().at(place)) for place in PLACES] == ["int8(channel)", "int8(token)", "int8(token)"]
    assert as_quantization("int4(head)", "kv").granularity == "head"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Quantization(9), "from 2 to 8, got 9"),
        (lambda: Quantization(1), "from 2 to 8"),
        (lambda: Quantization(True), "got True"),
        (lambda: Quantization(4.0), "got 4.0"),
        (lambda: Quantization(symmetric=1), "True or False"),
        (lambda: Quantization(granularity="row"), "tensor, channel, token, group, head, got 'row'"),
        (lambda: Quantization(granularity="group"), "needs its size"),
        (lambda: Quantization(granularity="token", group=8), "is for granularity 'group'"),
        (lambda: Quantization(group=1), "at least 2"),
        (lambda: Quantization(offset="least"), "symmetric=False"),
        (lambda: Quantization(symmetric=False, offset="most"), "'whole' or 'least'"),
        (lambda: Quantization.from_text("fp8"), "cannot read 'fp8'"),
        (lambda: Quantization.from_text("int8(channel, token)"), "cannot read 'token'"),
        (lambda: Quantization.from_text("int8(size=3)"), "cannot read 'size=3'"),
        (lambda: Quantization.from_text("int8(group=x)"), "group must be"),
        (lambda: Quantization.from_json({"bits": 8, "colour": 1}), "no colour"),
        (lambda: as_quantization(8, "weights"), "weights must be a text"),
        (lambda: as_quantization("int8(token)", "weights"), "belongs to no token; use channel, tensor, group"),
        (lambda: as_quantization("int8(head)", "weights"), "weights cannot be quantised per head"),
        (lambda: as_quantization("int8(channel)", "activations"), "use token, tensor, group"),
        (lambda: as_quantization("int8(head)", "activations"), "has no heads"),
        (lambda: quantize(torch.zeros(2, 6), Quantization(4, group=4), "weights"), "does not divide 6"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
