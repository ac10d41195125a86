"""Policies are values: they add, compare, print, and come back from their text and their JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cache.brute import Fixed, Text, by_hand, feed
from sinkgate.cache.base import Earned, Part, Pinned, Policy, Sum
from sinkgate.cache.dynamic import Dynamic
from sinkgate.cache.heavy import HeavyHitters
from sinkgate.cache.per_head import PerHead, PerLayer
from sinkgate.cache.quantized import Quantized
from sinkgate.cache.recent import Dense, Recent
from sinkgate.cache.registry import GRAMMAR, POLICIES, as_policy, budget, from_json
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError

NUMBER = st.integers(1, 5000)
IDS = st.lists(st.integers(0, 200_000), min_size=1, max_size=3).map(tuple)
PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4)


@st.composite
def sums(draw: Any) -> Policy:
    """Recent tokens, with any parts that may stand beside them, added in any order."""
    parts: list[Policy] = [Recent(draw(NUMBER))]
    if draw(st.booleans()):
        parts.append(HeavyHitters(draw(NUMBER)))
    kind = draw(st.sampled_from(["none", "first", "ids", "both", "folded"]))
    if kind in ("first", "both"):
        parts.append(Sinks(draw(NUMBER)))
    if kind in ("ids", "both"):
        parts.append(Sinks(draw(NUMBER), token_ids=draw(IDS)))
    if kind == "folded":
        parts.append(Sinks(folded=draw(IDS)))
    found, *rest = draw(st.permutations(parts))
    for part in rest:
        found = found + part
    return found


@st.composite
def first_sinks(draw: Any) -> Policy:
    n = draw(NUMBER)
    return Recent(n) + Sinks(draw(NUMBER)) if draw(st.booleans()) else Recent(n)


@st.composite
def dynamic(draw: Any) -> Policy:
    recent = draw(NUMBER)
    share = draw(st.floats(0, 1))
    return Dynamic(
        Recent(recent) + Sinks(draw(NUMBER)), draw(st.sampled_from(["head", "query"])), share, recent + draw(NUMBER)
    )


QUANTIZED = st.builds(
    Quantized, first_sinks(), st.sampled_from([4, 8]), st.booleans(), st.integers(0, 100), st.integers(2, 64)
)
PLAIN = st.one_of(sums(), QUANTIZED, dynamic(), st.just(Dense()))
ANY = st.recursive(
    PLAIN,
    lambda p: st.one_of(
        st.builds(PerHead, p, PAIRS, p), st.builds(PerLayer, p, st.lists(st.integers(0, 40), min_size=1, max_size=3), p)
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(ANY)
def test_text_and_json_bring_back_the_same_policy(policy: Policy) -> None:
    assert as_policy(str(policy)) == policy
    data = json.loads(json.dumps(policy.to_json()))
    assert from_json(data) == as_policy(data) == policy
    assert hash(as_policy(str(policy))) == hash(policy)


@settings(max_examples=50, deadline=None)
@given(ANY, ANY)
def test_equal_policies_print_alike_and_others_do_not(a: Policy, b: Policy) -> None:
    assert (a == b) == (str(a) == str(b)) == (a.to_json() == b.to_json())


@settings(max_examples=50, deadline=None)
@given(sums(), st.integers(0, 8), st.integers(1, 6), st.integers(1, 6))
def test_every_head_is_in_one_bank_and_the_budget_is_the_sum(policy: Policy, layer: int, kv: int, group: int) -> None:
    (keep,) = policy.keeps(layer, kv * group, kv)
    assert keep.kv == tuple(range(kv))
    parts = policy.of_ if isinstance(policy, Sum) else (policy,)
    wanted = sum(p.n if isinstance(p, Recent) else p.slots for p in parts if isinstance(p, Recent | Part))
    assert keep.budget == policy.budget == wanted


def test_the_order_of_a_sum_is_nothing() -> None:
    a, b, c = Recent(8), Sinks(2), HeavyHitters(3)
    assert a + b + c == c + (b + a) == Sum.of(b, c, a)
    assert str(c + b + a) == "recent(8) + heavy(3) + sinks(2)"
    assert Sum.of(a) is a
    assert budget(1024) == Recent(1020) + Sinks(4)
    assert budget(6, sinks=0) == Recent(6)


TEXTS: dict[str, Policy] = {
    "recent(1020) + sinks(4)": Recent(1020) + Sinks(4),
    " Sinks( 4 )+Recent(1020)\n": Recent(1020) + Sinks(4),
    "(recent(8) + heavy(3)) + sinks(token_ids=[1, 2])": Recent(8) + HeavyHitters(3) + Sinks(token_ids=(1, 2)),
    "recent(n=8) + sinks(2, token_ids=5)": Recent(8) + Sinks(2, token_ids=(5,)),
    "recent(8) + sinks(folded=1)": Recent(8) + Sinks(folded=(1,)),
    "dense": Dense(),
    "DENSE()": Dense(),
    "budget(1024, sinks=4)": Recent(1020) + Sinks(4),
    "budget(9)": Recent(5) + Sinks(4),
    "per_head(recent(252) + sinks(4), [[5, 3]], dense)": PerHead(Recent(252) + Sinks(4), ((5, 3),)),
    "per_head(recent(8), [(5, 3), (5, 3), (0, 1)], recent(16))": PerHead(Recent(8), ((0, 1), (5, 3)), Recent(16)),
    "per_layer(recent(8), [2, 0, 2], dense)": PerLayer(Recent(8), (0, 2)),
    'dynamic(recent(252) + sinks(4), rule="query", share=0.25)': Dynamic(Recent(252) + Sinks(4), "query", 0.25),
    "quantized(recent(252) + sinks(4), bits=4, keep_sinks=false)": Quantized(
        Recent(252) + Sinks(4), 4, keep_sinks=False
    ),
    "quantized(budget(64), bits=8, tail=16, group=8)": Quantized(Recent(60) + Sinks(4), tail=16, group=8),
}


@pytest.mark.parametrize("text", TEXTS)
def test_texts(text: str) -> None:
    assert as_policy(text) == TEXTS[text]


MALFORMED = [
    "", "   ", "recent", "recent(", "recent(4))", "recents(4)", "recent(4) - sinks(2)", "recent(4) * 2", "recent(4) + 4",
    "4", "'recent(4)'", "[recent(4)]", "recent(4), sinks(2)", "recent(4, 5)", "recent(m=4)", "recent(*[4])", "recent(**x)",
    "import os", "__import__('os')", "recent.n", "recent(4)[0]", "recent(4) if 1 else dense", "lambda: 1", "recent(x)",
    "recent(4) + sinks(2) +", "dense(4)", "sum(recent(4))", "recent(4)\0", "per_head(recent(4))", "(" * 300, "-recent(4)",
    "recent(4) and sinks(2)", "quantized()", "sinks(4) +\n\n recent(4) junk", "recent(f'4')", "recent(4j)", "recent(None)",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_text_shows_itself_and_the_grammar(text: str) -> None:
    with pytest.raises(ArgumentError) as err:
        as_policy(text)
    assert GRAMMAR in str(err.value)
    assert repr(text) in str(err.value)


def test_the_grammar_speaks_of_every_policy_and_reads_as_it_is_written() -> None:
    assert all(f"{name}" in GRAMMAR for name in POLICIES)
    examples = [part for part in GRAMMAR.split("'")[1::2] if "…" not in part and part != "head"]
    assert len(examples) >= 8
    for example in examples:
        assert isinstance(as_policy(example), Policy)


WRONG: list[tuple[Any, str]] = [
    (lambda: Recent(0), "at least 1"),
    (lambda: Recent(-3), "at least 1"),
    (lambda: Recent(True), "True"),
    (lambda: Recent(4.0), "4.0"),  # type: ignore[arg-type]
    (lambda: Recent("4"), "'4'"),  # type: ignore[arg-type]
    (lambda: Sinks(0), "at least 1"),
    (lambda: Sinks(True), "True"),
    (lambda: Sinks(token_ids=(-1,)), "token id"),
    (lambda: Sinks(token_ids=(True,)), "token id"),
    (lambda: Sinks(token_ids=(1,), folded=(1,)), "not both"),
    (lambda: Sinks(3, folded=(1,)), "one constant"),
    (lambda: HeavyHitters(0), "at least 1"),
    (lambda: HeavyHitters(False), "False"),
    (lambda: budget(3, sinks=4), "no room"),
    (lambda: budget(4, sinks=4), "no room"),
    (lambda: budget(True, sinks=0), "True"),
    (lambda: budget(10, sinks=-1), "sinks"),
    (lambda: Sinks(4).keeps(0, 4, 2), "add recent(n)"),
    (lambda: (Sinks(4) + HeavyHitters(2)).keeps(0, 4, 2), "add recent(n)"),
    (lambda: Recent(4) + Recent(4), "twice"),
    (lambda: Recent(4) + Recent(5), "twice"),
    (lambda: Recent(4) + HeavyHitters(2) + HeavyHitters(3), "twice"),
    (lambda: Recent(4) + Sinks(2) + Sinks(4), "twice"),
    (lambda: Recent(4) + Sinks(token_ids=(1,)) + Sinks(token_ids=(1,)), "twice"),
    (lambda: Recent(4) + Dense(), "cannot be added"),
    (lambda: Recent(4) + Quantized(Recent(4)), "cannot be added"),
    (lambda: Sinks(folded=(1,)) + Sinks(4), "stands alone"),
    (lambda: Recent(4) + Sinks(token_ids=(3,)) + Sinks(folded=(1,)), "stands alone"),
    (lambda: Sum.of(), "no policies"),
    (lambda: PerHead("dense", ()), "policies"),  # type: ignore[arg-type]
    (lambda: PerHead(Recent(4), 5), "pairs"),  # type: ignore[arg-type]
    (lambda: PerHead(Recent(4), ((1, 2, 3),)), "pairs"),  # type: ignore[arg-type]
    (lambda: PerHead(Recent(4), ((1, -2),)), "pairs"),
    (lambda: PerHead(Recent(4), ((True, 2),)), "pairs"),
    (lambda: PerHead(Recent(4), (None,)), "pairs"),  # type: ignore[arg-type]
    (lambda: PerHead(Recent(4), ("ab",)), "pairs"),  # type: ignore[arg-type]
    (lambda: PerHead(Recent(4), ((2, 6),)).keeps(2, 6, 2), "heads 0 to 5"),
    (lambda: PerLayer(Recent(4), 2), "numbers from 0"),  # type: ignore[arg-type]
    (lambda: PerLayer(Recent(4), (-1,)), "numbers from 0"),
    (lambda: PerLayer(Recent(4), (True,)), "numbers from 0"),
    (lambda: PerLayer(Recent(4), None), "numbers from 0"),  # type: ignore[arg-type]
    (lambda: PerLayer(4, (1,)), "policies"),  # type: ignore[arg-type]
    (lambda: Dynamic("recent(4)"), "policy"),  # type: ignore[arg-type]
    (lambda: Dynamic(Dense()), "recent(n) with sinks"),
    (lambda: Dynamic(Recent(4) + HeavyHitters(2)), "recent(n) with sinks"),
    (lambda: Dynamic(Quantized(Recent(4))), "recent(n) with sinks"),
    (lambda: Dynamic(Dynamic(Recent(4) + Sinks(1))), "recent(n) with sinks"),
    (lambda: Dynamic(PerHead(Recent(4), ((7, 7),))), "recent(n) with sinks"),
    (lambda: Dynamic(Recent(4) + Sinks(token_ids=(1,))), "first tokens"),
    (lambda: Dynamic(Recent(4) + Sinks(folded=(1,))), "first tokens"),
    (lambda: Dynamic(Recent(4), rule="query"), "add sinks"),
    (lambda: Dynamic(Recent(4) + Sinks(1), rule="layer"), "'layer'"),
    (lambda: Dynamic(Recent(4) + Sinks(1), share=1.5), "1.5"),
    (lambda: Dynamic(Recent(4) + Sinks(1), share=float("nan")), "nan"),
    (lambda: Dynamic(Recent(4) + Sinks(1), share=True), "True"),
    (lambda: Dynamic(Recent(600) + Sinks(1)), "after=512"),
    (lambda: Dynamic(Recent(4) + Sinks(1), after=0), "at least 2"),
    (lambda: Quantized("recent(4)"), "policy"),  # type: ignore[arg-type]
    (lambda: Quantized(Recent(4), bits=3), "8 or 4"),
    (lambda: Quantized(Recent(4), bits=8.0), "8 or 4"),  # type: ignore[arg-type]
    (lambda: Quantized(Recent(4), tail=-1), "tail"),
    (lambda: Quantized(Recent(4), group=1), "group"),
    (lambda: Quantized(Dense()), "recent(n)"),
    (lambda: Quantized(Recent(4) + HeavyHitters(2)), "recent(n)"),
    (lambda: Quantized(Quantized(Recent(4))), "recent(n)"),
    (lambda: Quantized(PerHead(Recent(4), ((7, 7),))), "inside per_head"),
    (lambda: as_policy(4), "got 4"),  # type: ignore[arg-type]
    (lambda: as_policy(None), "got None"),  # type: ignore[arg-type]
    (lambda: as_policy("recent(0) + sinks(4)"), "at least 1"),
    (lambda: as_policy("recent(-4)"), "got -4"),
    (lambda: as_policy("recent(true)"), "got True"),
    (lambda: as_policy("budget(3, sinks=4)"), "no room"),
]


@pytest.mark.parametrize(("make", "says"), WRONG, ids=range(len(WRONG)))
def test_what_makes_no_sense_is_refused_by_name(make: Any, says: str) -> None:
    with pytest.raises(ArgumentError) as err:
        make()
    assert says in str(err.value)


GARBAGE: list[Any] = [
    {}, {"policy": None}, {"policy": "recents", "n": 4}, {"policy": ["recent"]}, {"policy": "recent"}, {"policy": 3}, 4, None,
    [], "recent(4)", [{"policy": "recent", "n": 4}], {"policy": "recent", "n": 4, "m": 5}, {"policy": "recent", "n": None},
    {"policy": "recent", "n": {"policy": "dense"}}, {"policy": "recent", "n": {}}, {"policy": "sum"}, {"policy": "sum", "of": 5},
    {"policy": "sum", "of": []}, {"policy": "sum", "of": [4]}, {"policy": "sum", "of": [{"policy": "dense"}, 4]},
    {"policy": "sum", "of": [{"policy": "recent", "n": 4}, {"policy": "sinks", "n": 1}], "n": 4},
    {"policy": "per_head", "base": 4, "heads": []}, {"policy": "per_head", "base": {"policy": "dense"}, "heads": [5]},
    {"policy": "sinks", "n": 4, "token_ids": 1.5}, {"policy": "sinks", "n": 4, "token_ids": ["a"]}, {4: 5, "policy": "recent"},
    {"policy": "quantized", "base": {"policy": "recent", "n": 8}, "bits": "8"},
    {"policy": "dynamic", "base": {"policy": "recent", "n": 8}, "share": "x"},
]  # fmt: skip


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_json_is_an_argument_error(data: Any) -> None:
    with pytest.raises(ArgumentError):
        from_json(data)


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-2, 9), st.text(max_size=4), st.sampled_from([*POLICIES, "sum"])),
        lambda x: st.one_of(
            st.lists(x, max_size=3),
            st.dictionaries(st.sampled_from(["policy", "n", "of", "base", "heads", "other", "layers", "bits"]), x, max_size=4),
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_any_json_is_a_policy_or_an_argument_error(data: Any) -> None:
    try:
        found = from_json(data)
    except ArgumentError:
        return
    assert from_json(found.to_json()) == found


def test_heads_that_share_a_key_head_go_together() -> None:
    policy = PerHead(Recent(8) + Sinks(1), ((1, 3), (1, 4), (2, 0)), Quantized(Recent(16)))
    assert [(k.kv, k.recent) for k in policy.keeps(0, 6, 3)] == [((0, 1, 2), 8)]
    assert [(k.kv, k.recent) for k in policy.keeps(1, 6, 3)] == [((0,), 8), ((1, 2), 16)]
    assert [(k.kv, k.recent) for k in policy.keeps(2, 6, 1)] == [((0,), 16)]
    assert policy.keeps(2, 6, 6)[1].storage.bits == 8
    inside = PerHead(PerHead(Recent(8), ((0, 0),), Recent(9)), ((0, 1),), Recent(10))
    assert [(k.kv, k.recent) for k in inside.keeps(0, 3, 3)] == [((2,), 8), ((0,), 9), ((1,), 10)]
    layers = PerLayer(policy, (0,), Dense())
    assert [k.recent for k in layers.keeps(0, 6, 3)] == [None]
    assert layers.layers_named == {0, 1, 2}
    assert (policy.budget, layers.budget, PerHead(Recent(8), ((0, 5),)).budget) == (16, None, None)


def test_what_holds_of_all_heads_is_asked_without_their_number() -> None:
    """Layer 0 has more heads than the policy is asked about when only its kinds matter."""
    assert [k.recent for k in PerHead(Recent(8), ((0, 5),)).kinds] == [8, None]
    assert Quantized(PerHead(Recent(8), ((0, 5),), Recent(9))).budget == 9
    parts = Dynamic(PerLayer(Recent(8) + Sinks(1), (0,), Recent(4) + Sinks(1)))
    assert [k.recent for k in parts.keeps(3, 4, 2)] == [8]
    assert all(k.rule is parts for k in [*parts.kinds, *parts.keeps(0, 4, 2)])
    assert parts.budget is None


# ---- a new policy is one file ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Every(Pinned):
    """The first ``n`` tokens whose position is a multiple of ``step``."""

    name: ClassVar[str] = "every"
    n: int
    step: int = 3

    @property
    def slots(self) -> int:
        return self.n

    def pins(self, positions: Tensor, ids: Tensor | None) -> Tensor:
        return (positions >= 0) & (positions % self.step == 0)


@dataclass(frozen=True)
class Youngest(Earned):
    """The slot of the oldest token that it holds: one more length of recent tokens, whatever they got."""

    name: ClassVar[str] = "youngest"
    n: int

    @property
    def slots(self) -> int:
        return self.n

    def replaces(self, mass: Tensor, held: Tensor, positions: Tensor) -> Tensor:
        return positions.argmin(-1)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("sizes", [[1], [5], [3, 1, 7]])
def test_a_new_policy_is_one_file(monkeypatch: pytest.MonkeyPatch, sizes: list[int], slots: bool) -> None:
    monkeypatch.setitem(POLICIES, "every", Every)  # type: ignore[arg-type]
    monkeypatch.setitem(POLICIES, "youngest", Youngest)  # type: ignore[arg-type]
    text = Text.random(rows=2, columns=26, kv=2, group=2, holes=True)
    pinned = as_policy("recent(4) + every(3, step=5)")
    assert pinned == Recent(4) + Every(3, 5) == from_json(pinned.to_json())
    got, _ = feed(pinned, text, sizes, slots=slots)
    torch.testing.assert_close(got, by_hand(text, lambda _r, _j: Fixed(4, lambda p: p in (0, 5, 10)), slots=slots))

    earned = as_policy("recent(4) + youngest(3) + sinks(2)")
    got, _ = feed(earned, text, sizes, slots=slots)
    torch.testing.assert_close(got, by_hand(text, lambda _r, _j: Fixed(7, lambda p: p < 2), slots=slots))
