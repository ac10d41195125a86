"""The four arms inside a plan, and weights that keep to a budget, verified together with the cache."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planned import ASKED, TEXTS

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError
from sinkgate.planning.bits import widths
from sinkgate.planning.quantization_record import QuantizationArms
from sinkgate.planning.quantization_spec import apply_quantization

ARMS = {"uniform", "preserve-first-4", "sink-aware", "per-head"}


def numbers(model: Any) -> int:
    return sum(m.weight.numel() for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head")


@pytest.fixture(scope="session")
def with_weights(llama: Any) -> sg.Plan:
    budget = numbers(llama) * 6 // 8
    return sg.plan(
        llama,
        tokenizer(),
        TEXTS,
        name="a tiny llama",
        **{**ASKED, "max_increase": 0.9, "quantization": True},
        weight_budget=budget,
    )


def test_what_weights_weigh(llama: Any) -> None:
    found = widths(llama)
    n = numbers(llama)
    rows = sum(
        m.weight.shape[0] for name, m in llama.named_modules() if isinstance(m, torch.nn.Linear) and name != "lm_head"
    )
    assert found.as_is == 4 * n
    assert found.uniform[8] == n + 2 * rows
    assert found.fitting(4 * n) is None
    assert found.fitting(n + 2 * rows) == 8
    assert found.fitting(n + 2 * rows - 1) == 7
    with pytest.raises(ArgumentError, match=r"cannot be met: the linear layers are .* in 2 bits"):
        found.fitting(found.uniform[2] - 1)


def test_the_four_arms_are_in_the_plan(with_weights: sg.Plan) -> None:
    assert with_weights.quantization is not None
    arms = QuantizationArms.from_json(with_weights.quantization)
    assert set(arms.places) == {"kv", "weights", "activations"}
    for place in arms.places:
        there = {arm.name for arm in arms.at(place)} | set(arms.skipped.get(place, {}))
        assert there >= ARMS, place
    text = " ".join(with_weights.reasons)
    assert all(line in text for line in arms.sentences())


def test_weights_keep_to_their_budget_and_are_verified_with_the_cache(llama: Any, with_weights: sg.Plan) -> None:
    p = with_weights
    both = p.measured["with_weights"]
    assert both["bytes"] <= (p.request.weight_budget or 0) < both["as_is"]
    assert p.weights is not None, p.refused
    from test_plan import by_hand, ids_of  # type: ignore[import-not-found]

    texts = ids_of(p, "verify")[: both["increase"]["n"]]
    plain = [by_hand(llama, x, "dense", "original") for x in texts]
    with apply_quantization(llama, p.weights):
        changed = [by_hand(llama, x, p.setting.policy, p.setting.positions) for x in texts]
    assert both["nats"] == pytest.approx(list(np.subtract(changed, plain)), abs=1e-4)
    assert both["increase"]["mean"] == pytest.approx(math.expm1(np.mean(np.subtract(changed, plain))), abs=1e-4)


@torch.no_grad()
def test_apply_is_the_spec_and_leaves_no_trace(llama: Any, with_weights: sg.Plan) -> None:
    ids = torch.arange(2, 60)[None]
    before = llama(ids).logits
    with with_weights.apply(llama):
        inside = llama(ids).logits
    assert torch.equal(llama(ids).logits, before)
    assert not torch.equal(inside, before)
    with apply_quantization(llama, with_weights.weights or {}):
        assert torch.equal(llama(ids).logits, inside)


def test_round_trip_with_arms_and_weights(with_weights: sg.Plan, tmp_path: Path) -> None:
    again = sg.Plan.load(with_weights.save(tmp_path / "plan.json"))
    assert json.dumps(again.to_json()) == json.dumps(with_weights.to_json())
    assert "plan.apply(loaded.model)" in again.code()
    compile(again.code(), "plan", "exec")


def test_exports(llama: Any, with_weights: sg.Plan, plan_of_llama: sg.Plan) -> None:
    exported = with_weights.torchao(llama)
    assert exported["config"]["class"] == "ModuleFqnToConfig"
    named = {n for n, m in llama.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    said = set(exported["config"]["modules"]) | {line["what"] for line in exported["left_out"]}
    assert named <= said, "a layer that is neither configured nor left out with its reason"
    json.dumps(exported)
    assert plan_of_llama.torchao()["config"] is None
    keep = with_weights.keep_list(llama)
    assert keep["weights"]["modules"] == ["lm_head"]
    assert keep["cache"]["policy"] == with_weights.setting.policy
    json.dumps(keep)


def test_what_a_policy_keeps_whole() -> None:
    from sinkgate.cache.registry import as_policy
    from sinkgate.planning.record import kept_by

    found = kept_by(as_policy("quantized(recent(64) + sinks(4))"))
    assert found["tokens"] == [{"policy": "sinks", "n": 4}]
    assert kept_by(as_policy("quantized(recent(64) + sinks(4), keep_sinks=false)"))["tokens"] == []
    heads = kept_by(as_policy("per_head(recent(8), [[1, 0]], recent(90) + sinks(2))"))
    assert heads["heads"] == [{"layer": 1, "query_head": 0, "policy": "recent(90) + sinks(2)"}]
    assert heads["tokens"] == [{"policy": "sinks", "n": 2}]
    layers = kept_by(as_policy("per_layer(quantized(recent(64), bits=4), [2], quantized(recent(64), bits=8))"))
    assert layers["layers"] == [{"layer": 2, "policy": "quantized(recent(64))"}]


def test_weights_that_fit_are_left(llama: Any, tmp_path: Path) -> None:
    p = sg.plan(llama, tokenizer(), TEXTS, **ASKED, weight_budget=10**9, folder=tmp_path)
    assert p.weights is None
    assert any("fit their budget as they are" in line for line in p.reasons)


def test_a_weight_budget_alone(llama: Any, tmp_path: Path) -> None:
    p = sg.plan(
        llama,
        tokenizer(),
        TEXTS,
        context=128,
        effort="quick",
        recall=False,
        weight_budget=numbers(llama) * 9 // 8,
        folder=tmp_path,
    )
    assert p.setting.dense
    assert p.weights is not None
    assert p.answer == "change"
    assert "weights" in str(p)


def test_weights_that_break_the_tolerance_are_refused_and_said(llama: Any, tmp_path: Path) -> None:
    p = sg.plan(
        llama,
        tokenizer(),
        TEXTS,
        **{**ASKED, "max_increase": 0.001},
        weight_budget=widths(llama).uniform[2],
        folder=tmp_path,
    )
    assert p.weights is None
    assert any("cannot be promised to stay within 0.10%" in line for line in p.refused)


def test_an_impossible_weight_budget() -> None:
    with pytest.raises(ArgumentError, match="a weight budget of 10 B cannot be met"):
        sg.plan(tiny("llama"), tokenizer(), TEXTS, **ASKED, weight_budget=10)
