"""Tracks and banks without a model: every query of every stream by plain loops, and what storage costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from cache.brute import Fixed, Heavy, Stream, Text, by_hand, feed, first_with
from sinkgate.cache.base import Policy
from sinkgate.cache.dynamic import Dynamic
from sinkgate.cache.heavy import HeavyHitters
from sinkgate.cache.per_head import PerHead
from sinkgate.cache.recent import Dense, Recent
from sinkgate.cache.sinks import Sinks

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)
STREAMS = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 3), "columns": st.integers(1, 22), "kv": st.integers(1, 2), "group": st.integers(1, 3),
        "holes": st.booleans(), "left": st.lists(st.integers(0, 6), max_size=1), "seed": st.integers(0, 2**16),
    }
)  # fmt: skip


def sinks_and_recent(recent: int, sinks: int) -> Policy:
    return Recent(recent) + Sinks(sinks) if sinks else Recent(recent)


@settings(max_examples=60, deadline=None)
@given(STREAMS, SIZES, st.integers(1, 8), st.integers(0, 4), st.booleans(), st.integers(0, 3))
@example({"rows": 2, "columns": 20, "left": [4], "holes": True, "kv": 2, "group": 2}, [7, 1], 3, 4, True, 0)
@example({"rows": 2, "columns": 20, "left": [4], "holes": True, "kv": 2, "group": 2}, [1], 1, 1, True, 2)
def test_every_query_sees_sinks_and_the_last_tokens(
    made: dict[str, Any], sizes: list[int], recent: int, sinks: int, slots: bool, rollback: int
) -> None:
    text = Text.random(**made)
    got, stream = feed(sinks_and_recent(recent, sinks), text, sizes, slots=slots, rollback=rollback)
    torch.testing.assert_close(got, by_hand(text, lambda _r, _j: Fixed(recent, lambda p: p < sinks), slots=slots))
    longest = int(text.real.sum(1).max())
    (bank,) = stream.layer.banks
    assert bank.held == min(longest, recent + min(sinks, max(0, longest - recent))) or longest < recent + sinks
    assert bank.held <= recent + sinks


@settings(max_examples=25, deadline=None)
@given(STREAMS, SIZES, st.integers(1, 6), st.booleans(), st.floats(0.5, 4.0), st.booleans())
def test_softcap_and_learned_logits(
    made: dict[str, Any], sizes: list[int], recent: int, slots: bool, cap: float, learned: bool
) -> None:
    text = Text.random(**made)
    logit = torch.randn(text.q.shape[1], dtype=torch.float64) if learned else None
    got, _ = feed(Recent(recent) + Sinks(2), text, sizes, slots=slots, softcap=cap, sinks=logit)
    wanted = by_hand(text, lambda _r, _j: Fixed(recent, lambda p: p < 2), slots=slots, softcap=cap, sinks=logit)
    torch.testing.assert_close(got, wanted)


@settings(max_examples=40, deadline=None)
@given(STREAMS, SIZES, st.integers(1, 6), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_tokens_with_certain_ids(
    made: dict[str, Any], sizes: list[int], recent: int, n: int, first: int, slots: bool
) -> None:
    text = Text.random(**made)
    wanted = Sinks(n, token_ids=(1, 3))
    policy = Recent(recent) + wanted + Sinks(first) if first else Recent(recent) + wanted

    def choice(row: int, _j: int) -> Fixed:
        columns = text.columns(row)
        # each part takes what it wants of the tokens that none before it took; first sinks come first
        named = first_with(text.ids[row], (1, 3), n, columns[first:])
        return Fixed(recent, lambda p: p < first or named(p - first))

    got, _ = feed(policy, text, sizes, slots=slots)
    torch.testing.assert_close(got, by_hand(text, choice, slots=slots))


@settings(max_examples=40, deadline=None)
@given(STREAMS, SIZES, st.integers(1, 6), st.integers(1, 4), st.sampled_from(["none", "first", "ids"]), st.booleans())
def test_heavy_hitters(made: dict[str, Any], sizes: list[int], recent: int, n: int, sinks: str, slots: bool) -> None:
    text = Text.random(**made)
    policy = Recent(recent) + HeavyHitters(n)
    policy = policy + {"first": Sinks(2), "ids": Sinks(3, token_ids=(1, 3))}[sinks] if sinks != "none" else policy

    def choice(row: int, _j: int) -> Heavy:
        named = first_with(text.ids[row], (1, 3), 3, text.columns(row))
        return Heavy(recent, n, {"none": lambda p: False, "first": lambda p: p < 2, "ids": named}[sinks])

    got, stream = feed(policy, text, sizes, slots=slots)
    torch.testing.assert_close(got, by_hand(text, choice, slots=slots))
    assert policy.budget is not None
    assert stream.layer.banks[0].held <= policy.budget


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("sizes", [[1], [6], [3, 1, 5, 2]])
def test_heads_with_policies_of_their_own(sizes: list[int], slots: bool) -> None:
    text = Text.random(rows=2, columns=24, kv=3, group=2, left=[0, 5], holes=True)
    policy = PerHead(Recent(4) + Sinks(1), ((0, 3), (0, 5)), Recent(2) + HeavyHitters(3))
    got, _ = feed(policy, text, sizes, slots=slots)

    def choice(_row: int, j: int) -> Fixed:
        return Fixed(4, lambda p: p < 1) if j == 0 else Heavy(2, 3)

    torch.testing.assert_close(got, by_hand(text, choice, slots=slots))


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("policy", [Recent(5), Recent(5) + Sinks(2), Recent(3) + Sinks(4, token_ids=(1, 3)), Dense()])
def test_tokens_taken_back_leave_no_trace(policy: Policy, slots: bool) -> None:
    text, other = (Text.random(rows=2, columns=30, kv=2, left=[0, 3], seed=s) for s in (0, 1))
    for before in (4, 9, 17):
        for n in (1, 3):
            straight, one = feed(policy, text, [1], slots=slots, rollback=3)
            got, two = feed(policy, text.part(slice(0, before)), [3], slots=slots, rollback=3)
            two(other.part(slice(4, 4 + n)), [n])
            two.crop(n)
            rest = two(text.part(slice(before, 30)), [1, 4])
            torch.testing.assert_close(torch.cat([got, rest], 2), straight)
            assert (one.counts == two.counts).all()


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(
    "policy", [Recent(5) + Sinks(2), Recent(3) + HeavyHitters(3) + Sinks(1), Recent(3) + Sinks(2, token_ids=(1, 3)), Dense()]
)  # fmt: skip
def test_rows_are_chosen_and_repeated(policy: Policy, slots: bool) -> None:
    text = Text.random(rows=3, columns=24, kv=2, group=2, left=[0, 3, 6])
    rows = torch.tensor([2, 0, 0, 2])
    mixed = Text(text.q[rows], text.k[rows], text.v[rows], text.real[rows], text.ids[rows])
    whole, _ = feed(policy, text, [4], slots=slots)
    _, stream = feed(policy, text.part(slice(0, 13)), [4], slots=slots)
    stream.select(rows)
    torch.testing.assert_close(stream(mixed.part(slice(13, 24)), [1, 5]), whole[rows][:, :, 13:])


def test_padding_in_a_pass_of_its_own_changes_nothing() -> None:
    text = Text.random(rows=2, columns=20, left=[7, 0])
    text.real[1, 8:16] = False
    for slots in (False, True):
        for policy in (
            Recent(3) + Sinks(2),
            Recent(3) + HeavyHitters(2),
            Dense(),
            Dynamic(Recent(3) + Sinks(1), after=9),
        ):
            if slots and policy.name == "dynamic":
                continue
            one, _ = feed(policy, text, [1], slots=slots)
            four, _ = feed(policy, text, [4], slots=slots)
            torch.testing.assert_close(one, four)


# ---- what is stored -------------------------------------------------------------------------------------------------


def storage(stream: Stream) -> dict[str, int]:
    return {
        f"{i}.{n}": x.untyped_storage().data_ptr()
        for i, b in enumerate(stream.layer.banks)
        for n, x in b.state().items()
    }


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "policy", [Recent(28) + Sinks(4), Recent(32), Recent(20) + Sinks(2, token_ids=(1,)), Recent(20) + HeavyHitters(8) + Sinks(2)]
)  # fmt: skip
def test_bytes_and_storage_stay_over_thousands_of_tokens(policy: Policy, rows: int) -> None:
    n = 3000 if policy.name != "sum" or "heavy" not in str(policy) else 400
    text = Text.random(rows=rows, columns=n, kv=2, group=1, left=[0, 3, 5][:rows], dtype=torch.float32)
    stream = Stream(policy, text, slots=True)
    stream(text.part(slice(0, 1)), [1])
    bank, at = stream.layer.banks[0], storage(stream)
    size = bank.nbytes
    tensors = bank.state().values()
    assert size == sum(x.numel() * x.element_size() for x in tensors)
    stream(text.part(slice(1, n)), [1, 1, 1, 64, 1, 1, 300, 7, *[1] * (n // 2), 100])
    assert bank.nbytes == size
    assert storage(stream) == at
    assert policy.budget is not None
    assert bank.held == policy.budget
    assert bank.k is not None
    assert bank.k.shape[2] == policy.budget
    assert len(stream.tracks.all) <= 1
    assert all(track.pos.shape[1] == policy.budget for track in stream.tracks.all.values())


class Writes(TorchDispatchMode):
    """The largest tensor that any operation but attention itself writes."""

    def __init__(self) -> None:
        super().__init__()
        self.most: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        first = out if isinstance(out, torch.Tensor) else out[0] if isinstance(out, tuple) else None
        new = "attention" not in name and func._schema.returns[0].alias_info is None
        if first is not None and (new or name.endswith("_")):  # not a view
            self.most[name] = max(self.most.get(name, 0), first.numel())
        return out


@pytest.mark.parametrize("slots", [False, True])
def test_a_step_writes_no_more_than_its_token_and_the_kept(slots: bool) -> None:
    text = Text.random(columns=2100, kv=2, dv=8, dtype=torch.float32)
    stream = Stream(Recent(1000) + Sinks(4), text, slots=slots)
    stream(text.part(slice(0, 2050)), [1000, 1])
    with Writes() as writes:
        stream(text.part(slice(2050, 2060)), [1])
    assert writes.most
    assert max(writes.most.values()) <= 10 * 2 * 8, writes.most  # the outputs of ten steps; the cache has 16,064


def test_dense_doubles() -> None:
    text = Text.random(columns=1100, kv=1, dtype=torch.float32)
    stream = Stream(Dense(), text, slots=False)
    sizes, at = [], []
    for i in range(0, 1100, 10):
        stream(text.part(slice(i, i + 10)), [1])
        k = stream.layer.banks[0].k
        assert k is not None
        sizes.append(k.shape[2])
        at.append(k.untyped_storage().data_ptr())
        assert stream.layer.banks[0].nbytes == k.shape[2] * (8 + 5) * 4
    steps = sorted(set(sizes))
    assert len(set(at)) == len(steps) <= 4
    assert all(b == 2 * a for a, b in pairwise(steps))
    assert sizes[-1] < 2 * 1100 + 1
    assert stream.layer.banks[0].held == 1100
    whole, _ = feed(Dense(), text, [1100], slots=False)
    parts, _ = feed(Dense(), text, [300, 1, 1, 400, 1], slots=False)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


def test_layers_with_the_same_policy_share_where_their_tokens_lie() -> None:
    text = Text.random(rows=1, columns=4, kv=2)
    stream = Stream(PerHead(Recent(4) + Sinks(1), ((0, 0),), Recent(4) + Sinks(1)), text, slots=False)
    stream(text, [2])
    assert len(stream.tracks.all) == 1
    assert stream.layer.banks[0].track is stream.layer.banks[1].track
