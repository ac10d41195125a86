"""What can be chosen, and which policy a choice is."""

from __future__ import annotations

import dataclasses

import optuna
import pytest
from formula import shape, space
from hypothesis import given, settings
from hypothesis import strategies as st

from models import tiny
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError
from sinkgate.planning.cost import Shape
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import SHARES, SPREADS, Choice, Space, least_bytes, sink_options


@pytest.mark.parametrize(
    ("choice", "policy"),
    [
        (Choice(window=64), "recent(64)"),
        (Choice(window=64, sinks=2), "recent(64) + sinks(4)"),
        (Choice(window=64, sinks=1, bits=8), "quantized(recent(64) + sinks(1), bits=8)"),
        (
            Choice(window=64, sinks=1, bits=4, keep_sinks=False),
            "quantized(recent(64) + sinks(1), bits=4, keep_sinks=false)",
        ),
        (Choice("heavy", window=64, sinks=2), "recent(48) + heavy(16) + sinks(4)"),
        (Choice("layers", 0.25, 2, 64), "per_layer(recent(64) + sinks(4), [1], recent(252) + sinks(4))"),
        # three query heads share a key-value head: the first of them names it
        (Choice("heads", 0.5, 0, 64), "per_head(recent(64), [[1, 0], [0, 3], [2, 0]], recent(256))"),
        (
            Choice("bits", 0.5, 0, 64, 4),
            "per_layer(quantized(recent(64), bits=4), [0, 1], quantized(recent(64), bits=8))",
        ),
    ],
)
def test_choices_as_policies(choice: Choice, policy: str) -> None:
    assert space().setting(choice) == Setting(policy, "slots")
    assert space().setting(dataclasses.replace(choice, positions="original")) == Setting(policy, "original")


def choices(s: Space) -> st.SearchStrategy[Choice]:
    return st.builds(
        Choice, spread=st.sampled_from(s.spreads), share=st.sampled_from(SHARES), sinks=st.integers(0, len(s.sinks) - 1),
        window=st.integers(8, 200), bits=st.sampled_from((0, 4, 8)), keep_sinks=st.booleans(), positions=st.sampled_from(s.positions),
    ).map(lambda c: dataclasses.replace(c, bits={"bits": 4, "heavy": 0}.get(c.spread, c.bits)))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(choice=choices(space()), more=st.integers(1, 60))
def test_more_window_never_weighs_less_and_whole_groups_weigh_the_same(choice: Choice, more: int) -> None:
    s = space()
    assert s.bytes(dataclasses.replace(choice, window=choice.window + more)) >= s.bytes(choice)
    if choice.bits and choice.spread != "bits":
        assert s.bytes(s.whole(choice)) == s.bytes(choice)
    assert s.whole(choice).window >= choice.window


@settings(max_examples=60, deadline=None)
@given(choice=choices(space()), share=st.floats(0.01, 1.2))
def test_the_longest_window_that_fits(choice: Choice, share: float) -> None:
    s = space()
    most = round(share * s.shape.bytes(as_policy("dense"), "original", context=s.context))
    found = s.fitting(choice, most)
    if found is None:
        least = 2 if choice.spread == "heavy" else 1
        assert s.bytes(dataclasses.replace(choice, window=least)) > most
        return
    assert s.bytes(found) <= most
    longer = dataclasses.replace(found, window=found.window + 1)
    assert found.window == s.context - (0, 1, 4)[choice.sinks] or s.bytes(longer) > most


def test_keeps_less_is_an_order() -> None:
    a = Choice(window=64, bits=4)
    assert a.keeps_less(a)
    assert a.keeps_less(Choice(window=64, bits=8))
    assert a.keeps_less(Choice(window=128, bits=0))
    assert not a.keeps_less(Choice(window=32, bits=0))
    assert not a.keeps_less(Choice(window=128, bits=0, positions="original"))
    assert not a.keeps_less(Choice(window=128, bits=0, sinks=1))
    assert not Choice(window=64).keeps_less(Choice(window=64, bits=8))


def test_what_a_trial_chooses_can_be_asked_for_again() -> None:
    s, seen = space(), set()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(60):
        choice = s.suggest(study.ask())
        again = s.suggest(optuna.trial.FixedTrial(s.parameters(choice)))
        assert again == choice
        s.setting(choice)
        seen.add(choice.spread)
    assert seen == set(SPREADS)


def test_a_model_with_one_free_layer_has_no_layers_to_tell_apart() -> None:
    gemma = Shape.of(tiny("gemma3"))
    s = space(shape=gemma, heads=((1, 0), (1, 1)), layers=(1,))
    assert "layers" not in s.spreads
    assert "bits" not in s.spreads
    assert "heads" in s.spreads


def test_windows_end_before_the_context() -> None:
    for context in (2, 9, 64, 100, 8192):
        windows = space(context).windows
        assert windows
        assert list(windows) == sorted(set(windows))
        assert all(w < max(context, 2) for w in windows)


def test_the_least_there_is() -> None:
    least, setting = least_bytes(space())
    assert least == min(space().bytes(Choice(window=1, sinks=i, bits=b, keep_sinks=k, positions=p))
                        for i in range(3) for b in (0, 4, 8) for k in (True, False) for p in ("slots", "original"))  # fmt: skip
    assert shape().bytes(setting.value, setting.positions, context=256) == least
    assert least_bytes(space(), batch=3)[0] == 3 * least


def test_sinks_of_the_record_are_an_option_once() -> None:
    assert sink_options("") == ("", "sinks(1)", "sinks(4)")
    assert sink_options("sinks(4)") == ("", "sinks(1)", "sinks(4)")
    assert sink_options("sinks(2)") == ("", "sinks(1)", "sinks(4)", "sinks(2)")
    assert sink_options("sinks(1) + sinks(3, token_ids=[9])")[-1] == "sinks(1) + sinks(3, token_ids=[9])"
    with pytest.raises(ArgumentError):
        sink_options("heavy(")


def test_settings_are_their_policy() -> None:
    assert Setting("budget(68, sinks=4)") == Setting("recent(64)+sinks(4)")
    assert Setting.from_json(Setting("recent(3)", "original").to_json()) == Setting("recent(3)", "original")
    for wrong in (("recent(3)", "elsewhere"), ("recent(0)", "slots"), ("everything", "slots")):
        with pytest.raises(ArgumentError):
            Setting(*wrong)
