"""A text of one repeated token: where sinks appear on it, and what evicting its first token does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sinkgate as sg
from hf.test_reading import assert_same, state
from interventions.planted import planted
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError, TextError
from sinkgate.hf.anatomy import forward
from sinkgate.interventions.repeated import Repeated


def loss(model: Any, ids: torch.Tensor, start: int, act: Any = None) -> float:
    with torch.no_grad():
        if act is None:
            logits = forward(model, ids)[0]
        else:
            with sg.acting(model, act):
                logits = forward(model, ids)[0]
    return float(torch.nn.functional.cross_entropy(logits[start:-1], ids[0, start + 1 :]))


def test_every_number_recomputed() -> None:
    model = tiny("llama")
    found = sg.repeated_tokens(model, tokenizer(), token="w5", tokens=80, burn_in=20)
    assert (found.token, found.tokens, found.before) == ("w5", 80, "<s>")  # there is such a token, so it stands first
    ids = torch.tensor([[0] + [tokenizer().get_vocab()["w5"]] * 79])
    assert found.loss == pytest.approx(loss(model, ids, 20), abs=1e-6)
    assert found.evicted == pytest.approx(loss(model, ids, 20, sg.Evict(0, 20)), abs=1e-6)
    assert found.control_position == 10
    assert found.control == pytest.approx(loss(model, ids, 20, sg.Evict(10, 20)), abs=1e-6)
    assert found.kl > 0
    text = " ".join([tokenizer().decode([i]) for i in ids[0, 1:]])
    d = sg.diagnose(model, tokenizer(), [text], tokens=80, bos="yes")
    assert found.first_mass == pytest.approx(float(d.first_token_mass.mean()))
    assert found.null_mass == pytest.approx(sg.geometry.uniform_null(80))
    with torch.no_grad():
        states = model(ids, output_hidden_states=True, use_cache=False).hidden_states[1:-1]  # the last is normed
    ratios = [float(h[0, 0].norm() / h[0, 1:].norm(dim=-1).mean()) for h in states]
    assert found.norm_ratio >= max(ratios) * (1 - 1e-5)
    assert f"80 × 'w5': sinks at nowhere; the first token ('<s>') takes {found.first_mass:.3f}" in str(found)
    assert Repeated.from_json(found.to_json()) == found


def test_copies_with_nothing_before_them_are_all_alike() -> None:
    """Relative positions cannot tell them apart: attention averages equal values."""
    found = sg.repeated_tokens(tiny("llama"), tokenizer(), token="w5", tokens=80, burn_in=20, bos="no")
    assert found.before == ""
    assert found.like_first == 1
    assert found.norm_ratio == pytest.approx(1, abs=1e-4)
    assert found.evicted == pytest.approx(found.loss, abs=1e-4)
    assert "the first copy takes" in str(found)


def test_where_sinks_appear() -> None:
    found = sg.repeated_tokens(planted(), tokenizer(), token="w3", tokens=80, burn_in=20)
    d = sg.diagnose(planted(), tokenizer(), [" ".join(["w3"] * 79)], tokens=80, bos="yes")
    positions = [s.position for s in sorted(d.sinks, key=lambda s: s.position)]
    assert len(positions) > 3
    assert [s["position"] for s in found.sinks] == positions
    assert f"sinks at {', '.join(map(str, positions))};" in str(found)
    assert [s["position"] for s in sg.repeated_tokens(planted(), tokenizer(), token="w9", tokens=80).sinks] == [0]


def test_many_sinks_are_counted_and_not_all_listed() -> None:
    nan = float("nan")
    sinks = [{"position": i} for i in range(64)]
    found = Repeated("x", 200, "", sinks, 0.1, 0.1, nan, nan, 1.0, 1.0, 0.0, 1.0, 5)
    assert "sinks at 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 52 or more others;" in str(found)
    data = found.to_json() | {"like_first": None}
    assert Repeated.from_json(data).like_first != Repeated.from_json(data).like_first


def test_it_stands_in_the_effects() -> None:
    model = tiny("llama").train()
    was = state(model)
    effects = sg.intervene(
        model, tokenizer(), ["w1 w2 w3 w4 " * 20], tokens=60, burn_in=20, samples=2, acts=["evict"], confirm=0, repeated="w5"
    )  # fmt: skip
    found = sg.repeated_tokens(model, tokenizer(), token="w5", tokens=60, burn_in=20)
    assert effects.meta["repeated"] == found.to_json()
    assert str(found) in str(effects)
    assert_same(was, state(model))


def test_errors() -> None:
    model = tiny("llama")
    for options, words_in_it in (
        ({"token": "w1 w2"}, "must be one token of this tokenizer, 'w1 w2' is 2"),
        ({"token": 96}, "an id under 96"),
        ({"token": -1}, "an id under 96"),
        ({"tokens": 21}, "tokens=21 and burn_in=20"),
        ({"burn_in": 2}, "tokens=60 and burn_in=2"),
        ({"threshold": 2.0}, "threshold"),
    ):
        with pytest.raises(ArgumentError, match=words_in_it):
            sg.repeated_tokens(model, tokenizer(), **{"token": "w1", "tokens": 60, "burn_in": 20} | options)
    without = tokenizer()
    without.bos_token = None
    assert sg.repeated_tokens(model, without, token="w1", tokens=60, burn_in=20).before == ""
    with pytest.raises(TextError, match="no beginning-of-text token"):
        sg.repeated_tokens(model, without, token="w1", tokens=60, burn_in=20, bos="yes")
