"""A whole plan: what it promises against what is measured again by hand, its reasons, and "leave it"."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planned import ASKED, TEXTS
from scipy.stats import ttest_1samp

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError, TextError
from sinkgate.planning import make
from sinkgate.planning.measure import STEPS
from sinkgate.planning.promise import SPLIT, factor
from sinkgate.planning.search import Trial
from sinkgate.planning.texts import split


def ids_of(plan: sg.Plan, part: str) -> list[list[int]]:
    """The ids of a plan's pieces, cut from the texts anew by what the plan says of them."""
    tok = tokenizer()
    found = []
    for piece in plan.meta["texts"][part]:
        name, _, span = piece["source"].rpartition("[")
        begin, end = (int(x) for x in span.rstrip("]").split(":"))
        text = tok(TEXTS[int(name.split()[1])], add_special_tokens=False)["input_ids"]
        found.append(text[begin:end])
    return found


@torch.no_grad()
def by_hand(model: Any, ids: list[int], policy: str, positions: str) -> float:
    """Mean nats of a text, a token at a time."""
    text = torch.tensor([ids])
    nats = []
    with sg.streaming(model, policy, positions=positions) as cache:
        for i in range(len(ids) - 1):
            logits = model(text[:, i : i + 1], cache=cache).logits[0, -1].double()
            nats.append(float(logits.logsumexp(-1) - logits[ids[i + 1]]))
    return float(np.mean(nats))


def test_the_increase_is_that_of_single_steps_on_the_named_texts(llama: Any, plan_of_llama: sg.Plan) -> None:
    p = plan_of_llama
    assert p.answer == "change"
    texts = ids_of(p, "verify")[: p.measured["increase"]["n"]]
    assert all(len(x) == 128 for x in texts)
    changes = [
        by_hand(llama, x, p.setting.policy, p.setting.positions) - by_hand(llama, x, "dense", "original") for x in texts
    ]
    assert p.measured["nats"] == pytest.approx(changes, abs=2e-5)
    interval = ttest_1samp(changes, 0).confidence_interval(0.95)
    found = p.measured["increase"]
    assert found["mean"] == pytest.approx(math.expm1(np.mean(changes)), abs=1e-4)
    assert (found["low"], found["high"]) == pytest.approx(
        (math.expm1(interval.low), math.expm1(interval.high)), abs=1e-3
    )
    k = factor(len(changes), SPLIT[0])  # the first candidate
    bound = np.mean(changes) + k * np.std(changes, ddof=1)
    assert p.measured["promise"] == pytest.approx(math.expm1(bound), abs=1e-3)
    assert p.measured["promise"] <= 0.05


def test_no_text_is_both_tuned_and_verified_on(plan_of_llama: sg.Plan) -> None:
    tune, verify = (
        {p["source"].rpartition("[")[0] for p in plan_of_llama.meta["texts"][n]} for n in ("tune", "verify")
    )
    assert tune
    assert verify
    assert not tune & verify


def test_bytes_are_measured_and_predicted(llama: Any, plan_of_llama: sg.Plan) -> None:
    p = plan_of_llama
    with torch.no_grad(), p.streaming(llama) as cache:
        llama(torch.tensor(ids_of(p, "verify")[:1]), cache=cache)
        assert cache.nbytes() == p.measured["bytes"] == p.measured["predicted_bytes"] == p.predicted["bytes"]
    assert p.predicted["bytes"] < p.predicted["dense_bytes"] == 128 * 3 * 2 * 2 * 8 * 4
    assert p.measured["milliseconds"] > 0
    assert p.measured["ratio"]["n"] == 3


@torch.no_grad()
def test_divergence_against_single_steps(llama: Any, plan_of_llama: sg.Plan) -> None:
    p = plan_of_llama
    found, agreed = [], []
    for ids in ids_of(p, "verify")[: p.measured["kl"]["n"]]:
        text = torch.tensor([ids[: 127 - STEPS]])  # the last tokens are read as timed steps
        plain = llama(text).logits[0].double().log_softmax(-1)
        rows = []
        with p.streaming(llama) as cache:
            for i in range(text.shape[1]):
                rows.append(llama(text[:, i : i + 1], cache=cache).logits[0].double())
        ours = torch.cat(rows).log_softmax(-1)
        found.append(float((plain.exp() * (plain - ours)).sum(-1).mean()))
        agreed.append(float((plain.argmax(-1) == ours.argmax(-1)).double().mean()))
    assert p.measured["kl"]["mean"] == pytest.approx(np.mean(found), rel=1e-3, abs=1e-6)
    assert p.measured["agreement"]["mean"] == pytest.approx(np.mean(agreed), abs=1e-6)


def test_beside_recent_and_sinks_of_the_same_bytes(llama: Any, plan_of_llama: sg.Plan) -> None:
    p = plan_of_llama
    assert p.baseline is not None
    other = p.baseline["setting"]
    assert as_policy(other["policy"]).to_json()["of"][1] == {"policy": "sinks", "n": 4}
    assert p.baseline["bytes"] <= p.predicted["bytes"]
    texts = ids_of(p, "verify")[: p.measured["increase"]["n"]]
    change = [by_hand(llama, x, p.setting.policy, p.setting.positions) - by_hand(llama, x, other["policy"], other["positions"])
              for x in texts]  # fmt: skip
    assert p.baseline["difference"]["mean"] == pytest.approx(np.mean(change), abs=2e-5)
    assert p.baseline["difference"]["low"] <= 0, "the plan would have been worse beyond the interval"


def test_reasons_speak_of_what_was_found(plan_of_llama: sg.Plan) -> None:
    text = " ".join(plan_of_llama.reasons)
    for words_ in (
        "texts that the search never saw",
        "For other texts like these",
        "The record:",
        "of the same bytes",
        "settings were proposed",
    ):
        assert words_ in text
    assert str(len(plan_of_llama.trials)) in text
    assert plan_of_llama.setting.policy in text


def test_the_plan_leaves_the_model_as_it_was(llama: Any, plan_of_llama: sg.Plan) -> None:
    fresh = tiny("llama")
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        assert torch.equal(llama(ids).logits, fresh(ids).logits)
    assert "forward" not in llama.__dict__


def test_the_same_request_gives_the_same_plan_without_measuring_again(llama: Any, plan_of_llama: sg.Plan) -> None:
    again = sg.plan(llama, tokenizer(), TEXTS, name="a tiny llama", **ASKED)
    assert again.setting == plan_of_llama.setting
    assert again.trials == plan_of_llama.trials
    assert again.measured["nats"] == plan_of_llama.measured["nats"]
    assert again.meta["reused"] > 0


def test_what_calibrates_is_measured_once_whatever_is_asked(
    llama: Any, plan_of_llama: sg.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("measured again")

    for what in ("diagnose", "step_times"):
        monkeypatch.setattr(make, what, never)
    monkeypatch.setattr("sinkgate.planning.screen._logits", never)
    told: list[str] = []
    again = sg.plan(
        llama, tokenizer(), TEXTS, name="a tiny llama", **{**ASKED, "max_increase": 0.2},
        progress=lambda what, *_: told.append(what),
    )  # fmt: skip
    assert again.meta["record"] == plan_of_llama.meta["record"]
    assert again.predicted["latency"] == plan_of_llama.predicted["latency"]
    assert again.meta["forgetting"] == plan_of_llama.meta["forgetting"]
    assert "diagnosis" not in told
    monkeypatch.undo()
    for kept in (Path(os.environ["SINKGATE_CACHE"]) / "plans").glob("record-*/record.json"):
        kept.write_text("{")  # damaged: made anew
    told.clear()
    sg.plan(llama, tokenizer(), TEXTS, name="a tiny llama", **ASKED, progress=lambda what, *_: told.append(what))
    assert told[:2] == ["diagnosis", "diagnosis"]


def test_leave_it_where_nothing_keeps_the_tolerance(llama: Any, tmp_path: Path) -> None:
    p = sg.plan(llama, tokenizer(), TEXTS, **{**ASKED, "max_increase": 1e-9}, folder=tmp_path)
    assert p.answer == "leave it"
    assert p.setting.dense
    assert p.predicted["bytes"] == p.predicted["dense_bytes"]
    assert "kept the tolerance with room for other texts" in p.reasons[0] or "could be promised" in p.reasons[0]
    assert "leave it" in str(p)
    assert "sg.streaming" not in p.code()


def test_leave_it_where_the_whole_cache_fits(llama: Any) -> None:
    p = sg.plan(llama, tokenizer(), TEXTS, budget=10**9, context=128, effort="quick", quantization=False, recall=False)
    assert p.answer == "leave it"
    assert "fits the budget" in p.reasons[0]
    assert not p.trials


def test_a_budget_alone_buys_the_least_loss(llama: Any, tmp_path: Path) -> None:
    p = sg.plan(
        llama,
        tokenizer(),
        TEXTS,
        budget=20_000,
        context=128,
        effort="quick",
        quantization=False,
        recall=False,
        folder=tmp_path,
    )
    assert p.answer == "change"
    assert p.predicted["bytes"] <= 20_000
    assert p.measured["promise"] is None
    best = min((t for t in p.trials if t.nats), key=lambda t: float(np.mean(t.nats)))
    assert p.setting == best.setting or (p.baseline or {})["taken"]


def test_too_little_text_for_the_tolerance_says_how_much(llama: Any, tmp_path: Path) -> None:
    """Six texts are enough to tune and to look once, and far too few for a promise this narrow."""
    p = sg.plan(llama, tokenizer(), TEXTS[:6], **{**ASKED, "max_increase": 0.12, "seed": 3}, folder=tmp_path)
    if p.answer == "leave it" and p.refused:
        assert "The text is too short for this tolerance" in p.refused[0]
        assert "would need about" in p.refused[0]
    else:
        assert p.measured["promise"] <= 0.12


def test_not_promised_names_the_number() -> None:
    from sinkgate.planning.reasons import not_promised
    from sinkgate.planning.request import Request
    from sinkgate.planning.setting import Setting
    from sinkgate.planning.texts import Split
    from sinkgate.planning.verify import Verdict

    verdict = Verdict(Setting("recent(8)"), [0.005, 0.009, 0.007, 0.001], bound=0.02, more=31)
    texts = Split((), (), 512, "", 4, 20)
    (line,) = not_promised([verdict], texts, Request(max_increase=0.01))
    assert "about 31 verification texts of 512 tokens (15,872 tokens; 4 were read)" in line


def test_a_batch_weighs_as_many_times(llama: Any, plan_of_llama: sg.Plan) -> None:
    three = sg.plan(llama, tokenizer(), TEXTS, **ASKED, batch=3)
    assert three.predicted["dense_bytes"] == 3 * plan_of_llama.predicted["dense_bytes"]
    assert three.predicted["bytes"] % 3 == 0


def test_a_model_without_rotations_keeps_the_texts_positions(tmp_path: Path) -> None:
    p = sg.plan(tiny("gpt2"), tokenizer(), TEXTS, **ASKED, folder=tmp_path)
    assert p.setting.positions == "original"
    assert any("no rotation that could be turned" in line for line in p.refused)
    assert all(t.setting.positions == "original" for t in p.trials)


def test_layers_with_windows_of_their_own(tmp_path: Path) -> None:
    p = sg.plan(tiny("gemma3"), tokenizer(), TEXTS, **ASKED, folder=tmp_path)
    own = 2 * 16 * 2 * 2 * 8 * 4  # two layers with a window of 16
    assert p.predicted["dense_bytes"] == own + 128 * 2 * 2 * 8 * 4
    assert p.predicted["bytes"] >= own
    assert list(p.meta["forgetting"]) == ["1"]


def test_a_longer_context_than_was_read_is_said(llama: Any, tmp_path: Path) -> None:
    texts = [words(1500, seed=i) for i in range(8)]
    p = sg.plan(
        llama,
        tokenizer(),
        texts,
        max_increase=0.5,
        context=4096,
        effort="quick",
        quantization=False,
        recall=False,
        folder=tmp_path,
    )
    assert p.meta["context"] == 4096
    assert p.meta["texts"]["length"] == 512, "what the model was trained for"
    assert any("texts of 512 tokens, bytes are those of 4,096" in line for line in p.notes)
    assert {t.setting.positions for t in p.trials} == {"slots"}
    with pytest.raises(ArgumentError, match="cannot read a context of 600 tokens: give at most 512"):
        sg.plan(tiny("gpt2"), tokenizer(), texts, **{**ASKED, "context": 600})


@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_dealt_out(seed: int) -> None:
    tok = tokenizer()
    found = split(tok, TEXTS, length=100, tune=2, verify=6, least=4, seed=seed)
    assert (len(found.tune), len(found.verify)) == (2, 6)
    assert not found.short
    ids = [p.id for p in (*found.tune, *found.verify)]
    assert len(set(ids)) == 8
    one = split(tok, [" ".join(TEXTS)], length=100, tune=2, verify=6, least=4, seed=seed)
    assert (len(one.tune), len(one.verify)) == (2, 6)
    assert one.sources == 1
    few = split(tok, TEXTS[:2], length=100, tune=2, verify=6, least=4, seed=seed)
    assert few.short
    assert len(few.verify) >= 4


def test_other_seeds_read_other_texts() -> None:
    tok = tokenizer()
    a, b = (split(tok, TEXTS, length=100, tune=2, verify=4, least=4, seed=s) for s in (0, 1))
    assert [p.id for p in a.tune] != [p.id for p in b.tune]


def test_the_frontier_is_that_of_brute_force(plan_of_llama: sg.Plan) -> None:
    rows: list[tuple[int, Trial]] = [(i, t) for i, t in enumerate(plan_of_llama.trials) if t.nats]

    def point(t: Trial) -> tuple[float, int, float]:
        assert t.increase is not None
        return t.increase.mean, t.bytes, t.milliseconds or 0.0

    expected = []
    for i, t in rows:
        beaten = False
        for _, u in rows:
            if point(u) != point(t) and all(a <= b for a, b in zip(point(u), point(t), strict=True)):
                beaten = True
        if not beaten:
            expected.append(i)
    assert plan_of_llama.frontier == expected


def test_texts_come_from_the_whole_list() -> None:
    """The demo speeches are in the order of their years: a plan must not be made on the first century alone."""
    from sinkgate.probe.text import Text

    tok = tokenizer()
    given = [Text(f"text {i:03d}", words(120, seed=i)) for i in range(60)]
    places = []
    for seed in range(4):
        found = split(tok, given, length=100, tune=3, verify=12, least=4, seed=seed)
        numbers = [int(p.source.split()[1].split("[")[0]) for p in (*found.tune, *found.verify)]
        places.append(float(np.mean(numbers)))
        assert max(numbers) > 40
        assert min(numbers) < 20
    assert len(set(places)) == 4


def test_texts_that_repeat_what_is_tuned_on_are_not_verified_on() -> None:
    """A book with and without its header under two names: shifted, so that no piece is equal to another."""
    tok = tokenizer()
    book = words(1200, seed=7)
    shifted = words(17, seed=8) + " " + book
    others = [words(130, seed=20 + i) for i in range(8)]
    for seed in range(6):
        found = split(tok, [book, shifted, *others], length=100, tune=3, verify=8, least=4, seed=seed)
        runs = {tuple(p.ids[i : i + 64]) for p in found.tune for i in range(37)}
        assert not any(tuple(p.ids[i : i + 64]) in runs for p in found.verify for i in range(37))
    with pytest.raises(TextError, match="give texts that are not parts of one another"):
        split(tok, [book, shifted], length=100, tune=11, verify=8, least=8, seed=0)
