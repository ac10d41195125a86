"""Arms: their text, their JSON, and what does not go together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinkgate.errors import ArgumentError
from sinkgate.gate import Gate
from sinkgate.lab.arms import ADDITIONS, GATES, Arm, as_arm, split_arms
from sinkgate.weighting import names
from sinkgate.weighting.elementwise import Sigmoid
from sinkgate.weighting.softmax import Softmax


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(names()), st.sampled_from([None, *GATES]), st.one_of(st.none(), st.integers(1, 300)), st.integers(0, 5),
    st.integers(0, 3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_text_and_json_round_trip(
    weighting: str, gate: str | None, window: int | None, keep: int, sinks: int, head_norm: bool, qk_norm: bool
) -> None:
    parts = [weighting, *([gate] if gate else [])]
    if window is not None:
        parts += [f"window({window})", *([f"keep({keep})"] if keep else [])]
    parts += [f"sink_token({sinks})"] if sinks else []
    parts += ["head_norm"] * head_norm + ["qk_norm"] * qk_norm
    arm = as_arm("+".join(parts))
    assert arm.weighting.name == weighting
    assert arm.gate == (None if gate is None else GATES[gate])
    assert (arm.window, arm.keep) == (window, keep if window else 0)
    assert (arm.sink_tokens, arm.head_norm, arm.qk_norm) == (sinks, head_norm, qk_norm)
    assert as_arm(str(arm)) == arm
    assert Arm.from_json(json.loads(json.dumps(arm.to_json()))) == arm


def test_fields_of_a_weighting_and_spaces() -> None:
    assert as_arm(" sigmoid( bias = -2.5 )+g1_head ") == Arm(Sigmoid(bias=-2.5), Gate(elementwise=False))
    assert str(as_arm("sigmoid(bias=-2.5)")) == "sigmoid(bias=-2.5)"
    assert as_arm("relu(normalize=false)").weighting.normalize is False  # type: ignore[attr-defined]
    assert as_arm(Softmax()) == Arm() == as_arm("softmax")
    assert as_arm("softmax+wider(g1)").wider == GATES["g1"]
    assert len(ADDITIONS) == 7 + len(GATES)


def test_a_list_is_split_outside_brackets() -> None:
    arms = split_arms("softmax, softmax+g1, softpick, softmax+window(128)+keep(4), softmax+sink_token(n=2)")
    assert [str(a) for a in arms] == [
        "softmax", "softmax + g1", "softpick", "softmax + window(128) + keep(4)", "softmax + sink_token(2)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot read the arm"),
        ("hardmax", "no weighting 'hardmax'"),
        ("g1 + softmax", "an arm begins with its weighting"),
        ("softmax + g9", "no addition 'g9'"),
        ("softmax + g1 + g2", "gate is given twice"),
        ("softmax + keep(4)", "there is no window"),
        ("softmax + window(0)", "window must be a whole number of at least 1, got 0"),
        ("softmax + window", "window does not take that"),
        ("softmax + window(1.5)", "window must be a whole number"),
        ("softmax + g1(2)", "no addition 'g1'"),
        ("softmax + g1(shared=True)", "no addition 'g1'"),
        ("softmax + g1(preserve=x)", "preserve must be a finite number, got 'x'"),
        ("softmax + g1(preserve=1e999)", "preserve must be a finite number, got inf"),
        ("softmax + g1_silu(preserve=0)", "which is 0; use 2.0"),
        ("softmax + g1 + outlet_lr(-1)", "outlet_lr must be a finite number of 0 or more, got -1"),
        ("softmax + g1 + outlet_lr(1e999)", "outlet_lr must be"),
        ("softmax + g1 + outlet_lr(true)", "outlet_lr must be"),
        ("softmax + g1 + outlet_lr", "outlet_lr does not take that"),
        ("softmax + wider(g7)", "wider\\(gate\\) takes one of"),
        ("softmax + g1 + wider(g1)", "give a gate or wider, not both"),
        ("entmax(1.5)", "by name"),
        ("entmax(alpha=0.5)", "alpha must be"),
        ("entmax(beta=2)", "cannot be built"),
        ("softmax - g1", "cannot read the arm"),
        ("softmax + __import__('os').system('x')", "cannot read the arm"),
        ("softmax(" + "(" * 500, "cannot read the arm"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says) as caught:
        as_arm(text)
    assert "\n" not in str(caught.value)


def test_a_wrong_list_is_refused() -> None:
    for text, says in (("softmax,,softpick", "an arm is empty"), ("softmax, softmax", "twice"), (" ", "is empty")):
        with pytest.raises(ArgumentError, match=says):
            split_arms(text)
    for data in ({}, {"weighting": {"name": "softmax"}, "colour": 1}, []):
        with pytest.raises(ArgumentError):
            Arm.from_json(data)  # type: ignore[arg-type]


def test_the_start_of_a_gate_and_the_rate_of_what_is_added() -> None:
    arm = as_arm("softmax + g1_head(preserve=2) + outlet_lr(0.3)")
    assert arm == Arm(gate=Gate(elementwise=False, preserve=2.0), outlet_lr=0.3)
    assert str(arm) == "softmax + g1_head(preserve=2) + outlet_lr(0.3)"
    assert as_arm(str(arm)) == arm
    assert Arm.from_json(json.loads(json.dumps(arm.to_json()))) == arm
    assert "outlet_lr" not in as_arm("softmax + g1").to_json()  # as before there was one
    third = Arm(gate=Gate(preserve=1 / 3), outlet_lr=1 / 3)
    assert as_arm(str(third)) == third
