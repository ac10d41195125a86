"""Fewer bits: how far a number moves, how many bytes that takes, and every query of a quantised stream by plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cache.brute import Fixed, Stored, Stream, Text, by_hand, feed, turn
from hf.streams import in_parts
from models import tiny
from sinkgate.cache.packed import pack
from sinkgate.cache.quantized import Quantized
from sinkgate.cache.quantized_bank import stepwise
from sinkgate.cache.recent import Recent
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf.streaming import streaming

# ---- numbers --------------------------------------------------------------------------------------------------------


def rounded(x: Tensor, bits: int, axis: int) -> Tensor:
    """By loops over all that do not share a scale: a whole number of steps above the least."""
    lines = x.float().movedim(axis, -1)
    flat = lines.reshape(-1, lines.shape[-1]).clone()
    for line in flat:
        zero = line.min().half().float()
        step = ((line.max() - zero) / (2**bits - 1)).half().float()
        for i, y in enumerate(line.tolist()):
            whole = round((y - float(zero)) / float(step)) if step > 0 else 0
            line[i] = float(zero) + float(step) * min(max(whole, 0), 2**bits - 1)
    return flat.reshape(lines.shape).movedim(-1, axis)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([4, 8]), st.sampled_from([-2, -1]), st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**16),
    st.floats(-3, 3.5), st.floats(-100, 100),
)  # fmt: skip
def test_a_number_moves_half_a_step_and_half_precision(
    bits: int, axis: int, n: int, half: int, seed: int, size: float, shift: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, n, 2 * half, generator=g, dtype=torch.float64) * 10**size + shift
    packed = pack(x, bits, axis)
    back = packed.unpack(torch.float64)
    least, most = x.amin(axis, keepdim=True), x.amax(axis, keepdim=True)
    half_precision, smallest = 2.0**-11, 2.0**-25  # relative, and absolute where numbers are tiny
    ends = half_precision * (least.abs() + (most - least)) + (2**bits) * smallest
    step = (most - least) / (2**bits - 1)
    bound = step / 2 + 2 * ends + 1e-6 * (least.abs() + most.abs())
    assert ((back - x).abs() <= bound).all()
    assert packed.codes.dtype == torch.uint8
    assert packed.codes.numel() == x.numel() * bits // 8
    assert packed.scale.numel() == packed.zero.numel() == x.numel() // x.shape[axis]
    assert packed.scale.dtype == packed.zero.dtype == torch.float16


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("axis", [-2, -1])
def test_numbers_against_loops(bits: int, axis: int) -> None:
    x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(1)) * 3
    torch.testing.assert_close(pack(x, bits, axis).unpack(torch.float32), rounded(x, bits, axis), rtol=1e-5, atol=1e-6)


def test_equal_numbers_come_back_and_two_share_a_byte() -> None:
    x = torch.full((1, 3, 4), 2.5)
    assert (pack(x, 8, -2).unpack(torch.float32) == x).all()
    packed = pack(torch.arange(16.0)[None], 4, -1)  # steps of one: codes are the numbers
    assert packed.codes.tolist() == [[i | (i + 1) << 4 for i in range(0, 16, 2)]]
    assert packed.unpack(torch.bfloat16).dtype == torch.bfloat16
    assert packed.unpack(torch.float32).tolist() == [list(range(16))]


# ---- streams --------------------------------------------------------------------------------------------------------


def held(text: Text, passes: Sequence[int], *, recent: int, sinks: int, bits: int, tail: int, group: int,
         keep_sinks: bool, slots: bool) -> Stored:  # fmt: skip
    """What a query finds: tokens of its own pass as they are, others in groups of ``group`` counted behind the sinks."""
    starts = [0]
    while starts[-1] < text.q.shape[2]:
        starts.append(starts[-1] + passes[min(len(starts) - 1, len(passes) - 1)])
    whole_tail = -(-tail // group)
    groups: dict[Any, Any] = {}

    def packed(row: int, j: int, members: list[int], at_text: bool) -> dict[int, tuple[Tensor, Tensor]]:
        key = (row, j, members[0])
        if key not in groups:
            columns = [text.columns(row)[p] for p in members]
            k, v = text.k[row, j, columns].double(), text.v[row, j, columns].double()
            places = members if at_text else [0] * len(members)
            k = turn(rounded(turn(k, places), bits, -2).double(), [-p for p in places])
            groups[key] = dict(zip(members, zip(k, rounded(v, bits, -1).double(), strict=True), strict=True))
        return groups[key]

    def stored(row: int, j: int, t: int, p: int) -> tuple[Tensor, Tensor]:
        columns = text.columns(row)
        begin = max(s for s in starts if s <= columns[t])
        before = sum(c < begin for c in columns)  # tokens of the row that earlier passes brought
        exact = text.k[row, j, columns[p]], text.v[row, j, columns[p]]
        if p >= before:
            return exact
        if p < sinks:
            ready = all(sum(c < begin for c in text.columns(r)) >= sinks for r in range(len(text.q)))
            if keep_sinks or not ready:
                return exact
            return packed(row, j, list(range(sinks)), at_text=not slots)[p]
        number, filling = (p - sinks) // group, max(before - sinks, 0) // group
        if number >= filling - whole_tail:
            return exact
        first = sinks + number * group
        return packed(row, j, list(range(first, first + group)), at_text=True)[p]

    return stored


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "rows": st.integers(1, 2), "columns": st.integers(1, 30), "kv": st.integers(1, 2), "group": st.integers(1, 2),
            "holes": st.booleans(), "left": st.lists(st.integers(0, 6), max_size=1), "seed": st.integers(0, 2**16),
        }
    ),
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 3), st.sampled_from([4, 8]),
    st.integers(0, 7), st.integers(2, 5), st.booleans(), st.booleans(),
)  # fmt: skip
def test_streams_of_any_length_against_loops(
    made: dict[str, Any], passes: list[int], recent: int, sinks: int, bits: int, tail: int, group: int, keep_sinks: bool,
    slots: bool,
) -> None:  # fmt: skip
    text = Text.random(dv=6, **made)
    base = Recent(recent) + Sinks(sinks) if sinks else Recent(recent)
    got, _ = feed(Quantized(base, bits, keep_sinks, tail, group), text, passes, slots=slots)
    options: dict[str, Any] = {
        "recent": recent, "sinks": sinks, "bits": bits, "tail": min(tail, -(-recent // group) * group), "group": group,
        "keep_sinks": keep_sinks, "slots": slots,
    }  # fmt: skip
    stored = held(text, passes, **options)
    wanted = by_hand(text, lambda _r, _j: Fixed(recent, lambda p: p < sinks), slots=slots, stored=stored)
    near = (got - wanted).abs() <= 1e-5
    # A number that lies on the middle of a step may go either way: rare, and never by more than a step.
    assert near.float().mean() > 0.98
    assert ((got - wanted).abs() <= 0.5).all()


@settings(max_examples=50, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "rows": st.integers(1, 2), "columns": st.integers(1, 40), "kv": st.integers(1, 2), "group": st.integers(1, 2),
            "holes": st.booleans(), "left": st.lists(st.integers(0, 6), max_size=1), "seed": st.integers(0, 2**16),
        }
    ),
    st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 3), st.sampled_from([4, 8]),
    st.integers(0, 7), st.integers(2, 5), st.booleans(),
)  # fmt: skip
def test_long_passes_are_single_steps_where_that_is_asked(
    made: dict[str, Any], passes: list[int], recent: int, sinks: int, bits: int, tail: int, group: int, slots: bool
) -> None:
    text = Text.random(dv=6, **made)
    base = Recent(recent) + Sinks(sinks) if sinks else Recent(recent)
    with stepwise():
        got, _ = feed(Quantized(base, bits, True, tail, group), text, passes, slots=slots)
    stored = held(
        text, [1], recent=recent, sinks=sinks, bits=bits, tail=min(tail, -(-recent // group) * group), group=group,
        keep_sinks=True, slots=slots,
    )  # fmt: skip
    wanted = by_hand(text, lambda _r, _j: Fixed(recent, lambda p: p < sinks), slots=slots, stored=stored)
    assert ((got - wanted).abs() <= 1e-5).float().mean() > 0.98  # a number on the middle of a step may go either way
    assert ((got - wanted).abs() <= 0.5).all()


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("group", [2, 4])
def test_group_boundaries(group: int, slots: bool) -> None:
    """Every length around two groups, token by token and at once."""
    for n in range(1, 3 * group + 4):
        for passes in ([1], [n]):
            text = Text.random(columns=n, kv=1, dv=6, seed=n)
            got, stream = feed(Quantized(Recent(2 * group) + Sinks(1), 8, group=group), text, passes, slots=slots)
            stored = held(
                text, passes, recent=2 * group, sinks=1, bits=8, tail=0, group=group, keep_sinks=True, slots=slots
            )
            wanted = by_hand(text, lambda _r, _j: Fixed(2 * group, lambda p: p < 1), slots=slots, stored=stored)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
            assert stream.layer.banks[0].held <= 2 * group + 1


def outliers(columns: int = 40) -> Text:
    """Two first tokens whose keys and values are a hundred times the others'."""
    text = Text.random(columns=columns, kv=2, group=2, dv=6)
    text.k[:, :, :2, 0] = 100.0
    text.k[:, :, :2, 1] += 0.01
    text.v[:, :, 0] = torch.tensor([300.0, -200.0, 0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
    text.q[..., 0] = 0.02  # it looks at the outlier, and at the others
    return text


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("passes", [[1], [8]])
def test_sinks_are_not_quantised_unless_that_is_asked(passes: list[int], bits: int, slots: bool) -> None:
    text, keeping = outliers(), Recent(8) + Sinks(2)
    exact = by_hand(text, lambda _r, _j: Fixed(8, lambda p: p < 2), slots=slots)
    got, stream = feed(Quantized(keeping, bits, group=4), text, passes, slots=slots)
    bank: Any = stream.layer.banks[0]
    raw = text.k[:, :, :2]
    stored = bank.raw if slots else stream.rotation.turn(bank.k, -torch.arange(2)[None, None])
    torch.testing.assert_close(stored, raw, rtol=1e-12, atol=1e-12)
    assert torch.equal(bank.v, text.v[:, :, :2])
    assert bank.kept_v_codes is None
    if not slots:  # as they came, to the last bit
        assert torch.equal(bank.k, stream.rotation.turn(raw, torch.arange(2)[None, None]))
    assert (got - exact)[:, :, 20:].abs().mean() < (0.2 if bits == 4 else 0.02)
    # with a tail as long as the recent tokens only the sinks can differ
    kept, loose = (feed(Quantized(keeping, bits, keep, 8, 4), text, passes, slots=slots)[0] for keep in (True, False))
    torch.testing.assert_close(kept, exact)
    assert (loose - exact)[:, :, 20:].abs().mean() > (1e-3 if bits == 4 else 3e-5)


def test_bytes_are_those_allocated() -> None:
    text = Text.random(rows=2, columns=200, kv=3, dv=8, dtype=torch.float32)
    base, found = Recent(128) + Sinks(4), {}
    for bits in (4, 8):
        _, stream = feed(Quantized(base, bits, group=32), text, [64, 1], slots=True)
        bank: Any = stream.layer.banks[0]
        state = bank.state()
        assert bank.nbytes == sum(x.numel() * x.element_size() for x in state.values())
        assert len({x.untyped_storage().data_ptr() for x in state.values() if x.numel()}) == sum(
            x.numel() > 0 for x in state.values()
        )
        heads, slots, d = 2 * 3, 160, 8  # rows × heads; four groups of 32 and the one that fills
        codes = 2 * heads * slots * d * bits // 8
        scales = 2 * 2 * heads * (5 * d + slots)  # keys: per group and channel; values: per token
        tail = 2 * heads * 32 * d * 4
        sinks = (2 + 1) * heads * 4 * d * 4  # keys, values, and keys before rotation
        assert bank.nbytes == codes + scales + tail + sinks + 2 * 8  # and a count per row
        found[bits] = codes
        assert sum(x.numel() * x.element_size() for n, x in state.items() if n in ("k_codes", "v_codes")) == codes
    assert found[8] == 2 * found[4]


def test_bytes_against_an_unquantised_cache() -> None:
    """Heads of 64 and float32, where scales, sinks and the group that fills weigh little: a quarter and an eighth."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 8, 64, generator=g) for _ in range(3))
    text = Text(q, k, v, torch.ones(1, 8, dtype=torch.bool), torch.zeros(1, 8, dtype=torch.long))
    sizes = {}
    for bits in (32, 8, 4):
        base = Recent(2048) + Sinks(4)
        _, stream = feed(base if bits == 32 else Quantized(base, bits, group=32), text, [8], slots=False)
        sizes[bits] = stream.layer.banks[0].nbytes
    assert sizes[32] == 2052 * 64 * 2 * 4
    assert 0.25 < sizes[8] / sizes[32] < 0.31
    assert 0.125 < sizes[4] / sizes[32] < 0.19
    assert 0.5 < sizes[4] / sizes[8] < 0.63


def test_bytes_and_storage_stay() -> None:
    text = Text.random(rows=2, columns=600, kv=2, dv=6, left=[0, 7], dtype=torch.float32)
    for keep_sinks in (True, False):
        stream = Stream(Quantized(Recent(30) + Sinks(3), 4, keep_sinks, tail=9, group=8), text, slots=True)
        stream(text.part(slice(0, 20)), [20])
        bank = stream.layer.banks[0]
        size, at = bank.nbytes, {n: x.untyped_storage().data_ptr() for n, x in bank.state().items() if x.numel()}
        stream(text.part(slice(20, 600)), [1, 1, 50, 1, 9, *[1] * 300, 40])
        assert bank.nbytes == size
        assert {n: x.untyped_storage().data_ptr() for n, x in bank.state().items() if x.numel()} == at
        assert bank.held == 33


def test_the_tail_stays_as_it_is() -> None:
    """With a tail as long as the recent tokens nothing that is seen is packed."""
    text = Text.random(rows=2, columns=40, kv=2, dv=6, left=[0, 5])
    for slots in (False, True):
        exact, _ = feed(Recent(12) + Sinks(2), text, [3], slots=slots)
        tails = [
            feed(Quantized(Recent(12) + Sinks(2), 4, tail=n, group=4), text, [3], slots=slots)[0] for n in (0, 4, 8, 12)
        ]
        torch.testing.assert_close(tails[-1], exact)
        errors = [float((x - exact).abs().mean()) for x in tails]
        assert errors[0] > errors[1] > errors[2] > 1e-4


def test_4_bits_need_heads_of_even_size() -> None:
    text = Text.random(columns=4, dv=5)
    feed(Quantized(Recent(4)), text, [4], slots=False)
    with pytest.raises(ArgumentError, match=r"even size.*8 and 5.*bits=8"):
        feed(Quantized(Recent(4), bits=4), text, [4], slots=False)


def test_tokens_are_not_taken_back() -> None:
    text = Text.random(columns=6, dv=6)
    _, stream = feed(Quantized(Recent(4)), text, [1], slots=False)
    with pytest.raises(UnsupportedError, match="quantised"):
        stream.layer.each(lambda bank: bank.crop([4]))
    with pytest.raises(UnsupportedError, match="rollback=0"):
        Stream(Quantized(Recent(4)), text, slots=False, rollback=2)


# ---- a model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["slots", "original"])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_stream_is_near_the_other(bits: int, positions: str) -> None:
    model = tiny("llama", dtype=torch.float64)
    ids = torch.randint(0, 90, (1, 60), generator=torch.Generator().manual_seed(3))
    base = Recent(24) + Sinks(2)
    with streaming(model, base, positions=positions) as cache:
        exact, size = in_parts(model, ids, cache, [7, 1]), cache.nbytes()
    errors = {}
    for group, keep in ((2, True), (8, True), (8, False)):
        with streaming(model, Quantized(base, bits, keep, group=group), positions=positions) as cache:
            got = in_parts(model, ids, cache, [7, 1])
            errors[group, keep] = float((got - exact).norm() / exact.norm())
            assert cache.nbytes() < size
            assert cache.report()["bytes"] == cache.nbytes()
            assert cache.held() == 26
    assert 0 < errors[8, True] < (0.02 if bits == 8 else 0.3)
    assert errors[2, True] < errors[8, True]
    assert errors[8, False] != errors[8, True]


def test_a_refused_crop_leaves_the_stream_as_it_was() -> None:
    model = tiny("llama", dtype=torch.float64)
    ids = torch.randint(0, 90, (1, 30), generator=torch.Generator().manual_seed(3))
    policy = Quantized(Recent(12) + Sinks(2), 8, group=4)
    with streaming(model, policy) as cache:
        whole = in_parts(model, ids, cache, [1])
    for n in (1, 5):
        with streaming(model, policy) as cache:
            begin = in_parts(model, ids[:, :20], cache, [1])
            with pytest.raises(UnsupportedError):
                cache.crop(-n)
            assert cache.get_seq_length() == 20
            rest = in_parts(model, ids[:, 20:], cache, [1])
        assert torch.equal(torch.cat([begin, rest], 1), whole)
