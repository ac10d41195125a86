"""Each verdict from numbers that call for it, and from those just beside its border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sinkgate.interventions.effects import Effects, HeadEffect, Row
from sinkgate.interventions.verdict import CONTENT, INERT, PART, kind, verdict

EVICT, GATE, CONSTANT, OTHER, MEAN = "evict", "scalar gate", "constant gate", "transplant: another text", "mean value"
NOISE = np.array([-1.0, 0.5, -0.5, 1.0])  # mean 0


def effects(
    changes: dict[str, float],
    *,
    control: float | None = 0.0,
    spread: float = 1e-4,
    spreads: dict[str, float] | None = None,
    n: int = 4,
    heads: list[HeadEffect] | None = None,
    targets: int = 0,
    bos: bool = False,
) -> Effects:
    """Changes of the loss by label, the same in every text up to ``spread``."""
    base = np.array([3.0, 3.5, 2.5, 4.0])[:n]

    def row(label: str, kind: str, change: float, spread: float) -> Row:
        loss = (base + change + spread * NOISE[:n]).tolist()
        return Row(label, kind, label, {}, loss, [abs(change)] * n, [1.0] * n)

    rows = [Row("untouched", "untouched", "untouched", {}, base.tolist(), [0.0] * n, [1.0] * n)]
    for label, change in changes.items():
        rows.append(row(label, "act", change, (spreads or {}).get(label, spread)))
        if label == EVICT and control is not None:
            rows.append(row(label, "control", control, -spread))
    meta: dict[str, Any] = {
        "model": {"name": "made up"}, "target": "the first token" if not targets else "each text's sink further in",
        "settings": {"burn_in": 64, "tokens": 512, "scored_from": 64}, "targets": [targets] * n, "controls": [5] * n,
        "where": "everywhere", "notes": [], "bos": bos,
    }  # fmt: skip
    return Effects(meta, rows, heads or [])


def said(found: Effects) -> str:
    return " ".join(verdict(found))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({EVICT: 1.0, GATE: 0.1, OTHER: 0.0}, "gate-like"),
        ({EVICT: 1.0, GATE: PART - 0.001}, "gate-like"),
        ({EVICT: 1.0, GATE: -0.3}, "gate-like"),
        ({EVICT: 1.0, GATE: PART + 0.001}, "part gate, part bias"),
        ({EVICT: 1.0, GATE: 1 - PART - 0.001, OTHER: 0.01}, "part gate, part bias"),
        ({EVICT: 1.0, GATE: 1 - PART + 0.001}, "bias-like (broadcast)"),
        ({EVICT: 2.0, GATE: 2.4, OTHER: 0.1}, "bias-like (broadcast)"),
        ({EVICT: 1.0, GATE: 0.1, OTHER: CONTENT + 0.001}, "content"),
        ({EVICT: 1.0, GATE: 0.1, OTHER: CONTENT - 0.001}, "gate-like"),
        ({EVICT: 1.0, GATE: 0.1, MEAN: CONTENT + 0.001}, "content"),  # further in nothing is transplanted
        ({EVICT: 1.0, GATE: 0.1, MEAN: 0.9, OTHER: 0.0}, "gate-like"),
        ({EVICT: INERT / 2, GATE: 0.0}, "inert"),
        ({EVICT: 0.0, GATE: 0.0}, "inert"),
        ({EVICT: INERT + 0.001, GATE: 0.0}, "gate-like"),
        ({EVICT: -INERT / 2}, "inert"),
        ({EVICT: -0.3, GATE: -0.2}, "lowers the loss"),
        ({EVICT: 1.0}, "unknown"),
        ({GATE: 1.0}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_kind_follows_from_the_numbers(changes: dict[str, float], expected: str) -> None:
    assert kind(effects(changes)) == expected


def test_what_eviction_costs_must_be_told_apart_from_nothing_and_from_the_control() -> None:
    changes = {EVICT: 0.3, GATE: 0.0}
    assert kind(effects(changes)) == "gate-like"
    assert kind(effects(changes, spread=0.5)) == "not settled"  # the interval reaches 0
    assert kind(effects({EVICT: 0.003, GATE: 0.0}, spread=0.1)) == "not settled"  # nor is it shown to be small
    assert kind(effects(changes, control=0.295)) == "inert"  # a random key costs as much
    assert kind(effects(changes, control=0.28)) == "gate-like"
    assert kind(effects(changes, control=None)) == "gate-like"
    wide = effects(changes, control=0.2, spread=0.1)  # paired with a control that varies the other way
    assert float(wide.change(wide.row(EVICT)).low) > 0
    assert kind(wide) == "not settled"
    assert kind(effects(changes, n=1)) == "unknown"
    assert "One text gives no interval" in said(effects(changes, n=1))


def test_a_beginning_of_text_token_is_a_constant_already() -> None:
    """Whatever another text's first word does in its place, it is the same in every text."""
    for other, words_in_it in ((0.9, "it is this token, not its place"), (0.02, "it is the place, not the token")):
        found = effects({EVICT: 1.0, GATE: 0.1, OTHER: other}, bos=True)
        assert kind(found) == "gate-like"
        assert words_in_it in said(found)
        assert kind(effects({EVICT: 1.0, GATE: 0.1, OTHER: other})) == ("content" if other > 0.5 else "gate-like")


def test_a_caller_s_act_is_not_taken_for_the_sinks() -> None:
    found = effects({EVICT: 1.0, GATE: 0.1})
    for row in found.rows:
        row.kind = "own" if row.label == EVICT else row.kind
    assert kind(found) == "unknown"


def test_sentences_carry_their_numbers() -> None:
    found = effects({EVICT: 1.0, GATE: 0.1, CONSTANT: 0.2, OTHER: 0.01, "masked from the start": 0.003})
    text = said(found)
    assert "Evicting the first token from query 64 on changes the loss by +1.000 [+1.000, +1.000] nats" in text
    assert "(perplexity 25.8 → 70.1, 4 texts)" in text
    assert "a random other key evicted the same way: +0.000" in text
    assert "Gate-like: keeping the sink's weight and dropping what it writes (v_s = 0) costs +0.100" in text
    assert "10% of what eviction costs." in text
    assert (
        "A constant gate (g at its mean) costs +0.200 [+0.200, +0.200] nats, 20%: the gate depends on the query" in text
    )
    assert "another text's first token in its place the loss changes by +0.010" in text
    assert "it can be folded into parameters (sg.fold_sink)" in text
    assert "Masked from the start instead, which is no eviction but makes the next token the first one: +0.003" in text
    assert text in str(found).replace("\n", " ")


def test_sentences_say_no_more_than_the_numbers() -> None:
    assert "not seen to depend" in said(effects({EVICT: 1.0, GATE: 0.1, CONSTANT: 0.2}, spreads={CONSTANT: 0.3}))
    assert "folded" not in said(effects({EVICT: 1.0, GATE: 0.1, OTHER: 0.06}))
    assert "folded" not in said(effects({EVICT: 1.0, GATE: 0.1, OTHER: 0.01}, spreads={OTHER: 0.1}))
    near = effects({EVICT: 1.0, GATE: 0.26}, spreads={GATE: 0.1})
    assert "Part gate, part bias" in said(near)
    assert "26% of what eviction costs (with 4 texts not told apart from 25%)" in said(near)
    assert "not told apart" not in said(effects({EVICT: 1.0, GATE: 0.26}))
    assert "is inert here" in said(effects({EVICT: 0.0}))
    assert "no verdict without more text" in said(effects({EVICT: 0.3}, spread=0.5))
    assert "predicts better" in said(effects({EVICT: -0.3}))
    further = said(effects({EVICT: 1.0, GATE: 0.0, MEAN: 0.0, "masked from the start": 0.4}, targets=5))
    assert "the mean value of other texts' sinks" in further
    assert "fold_sink" not in further
    assert "next token" not in further
    content = said(effects({EVICT: 1.0, GATE: 0.0, MEAN: 0.8}, targets=5))
    assert "Content: with the mean value of other texts' sinks in its place" in content
    assert "80% of what eviction costs, so what stands there matters" in content
    assert said(effects({})) == "Nothing was evicted, so there is no verdict."


def test_rank_correlations() -> None:
    kl = [0.1, 0.4, 0.2, 0.3, 0.5]

    def heads(amplification: list[float], screened: list[float], write: list[float]) -> list[HeadEffect]:
        rows = zip(kl, amplification, screened, write, strict=True)
        return [HeadEffect(0, i, "top", s, a, w, [1.0] * 4, [k] * 4, [1.0] * 4) for i, (k, a, s, w) in enumerate(rows)]

    found = effects(
        {EVICT: 1.0, GATE: 0.0},
        heads=heads([1.0, 40.0, 2.0, 3.0, 1e9], [-0.5, 0.2, -0.4, 0.3, -0.1], [float("nan")] * 5),
    ).rank_correlations()
    assert found["amplification 1/(1−p_s)"]["rho"] == pytest.approx(1)
    assert found["screening"]["rho"] == pytest.approx(-1)  # of its size, whatever its sign
    assert {r["n"] for r in found.values()} == {5}
    assert "sink write p_s‖W_O v_s‖" not in found  # there is no prediction
    three = effects({EVICT: 1.0}, heads=heads([1.0] * 5, [1.0] * 5, [1, 2, 3, float("nan"), float("nan")]))
    assert three.rank_correlations() == {}  # no spread, or fewer than four
    line = said(effects({EVICT: 1.0, GATE: 0.0}, heads=heads([1, 5, 3, 2, 4], [1, 4, 2, 3, 5], [5, 4, 3, 2, 1])))
    assert "Over 5 heads evicted one by one" in line
    assert "+1.00 for screening" in line
