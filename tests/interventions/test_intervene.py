"""``sg.intervene``: every arm beside its control, every number recomputed, nothing left behind in the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import sinkgate as sg
from hf.test_reading import assert_same, state
from interventions.planted import STRONG, WEAK, planted, texts
from models import tiny, tokenizer, words
from sinkgate.errors import ArgumentError, NonFiniteError, RecordError, TextError
from sinkgate.evaluate.score import score
from sinkgate.hf.anatomy import forward
from sinkgate.interventions.effects import Effects
from sinkgate.probe.text import pieces

BURN, TOKENS = 24, 90


def run(model: Any = None, given: Any = None, **options: Any) -> Effects:
    defaults: dict[str, Any] = {"tokens": TOKENS, "samples": 4, "burn_in": BURN, "confirm": 0, "name": "planted"}
    return sg.intervene(
        planted() if model is None else model, tokenizer(), texts() if given is None else given, **defaults | options
    )


def plain(effects: Effects) -> Any:
    """Everything, to be compared: NaN equals NaN."""
    return json.loads(json.dumps([effects.meta, [vars(r) for r in effects.rows], [vars(h) for h in effects.heads]]))


@pytest.fixture(scope="module")
def everything() -> Effects:
    return run(planted(massive=5000.0), sweep=[12, 30], confirm=3)


# ---- arms and controls ----------------------------------------------------------------------------------------------


def test_every_arm_stands_beside_its_control(everything: Effects) -> None:
    labels = [
        "evict", "evict from query 12", "evict from query 30", "masked from the start", "scalar gate", "constant gate",
        "constant gate, v_s = 0",
        "transplant: another text", "transplant: BOS", "transplant: mean of other texts", "key kept, value 0 from query 1",
        "mean value", "massive activations to 0", "massive activations to their mean",
    ]  # fmt: skip
    rows = everything.rows
    assert [(r.label, r.kind) for r in rows] == [
        ("untouched", "untouched"), *((label, kind) for label in labels for kind in ("act", "control")),
    ]  # fmt: skip
    printed = str(everything)
    for label in labels:
        row = everything.row(label)
        control = everything.control(row)
        assert control is not None
        assert len(row.loss) == len(row.kl) == len(row.agreement) == len(control.loss) == 4
        assert label in printed
        assert everything.excess(row).mean == pytest.approx(np.mean(row.loss) - np.mean(control.loss))  # type: ignore[union-attr]
        assert row.act["act"] == control.act["act"]
    assert printed.count("its control") == len(labels)
    sink, other = everything.meta["targets"][0], everything.meta["controls"][0]
    assert everything.row("evict").act == {"act": "evict", "positions": [sink], "burn_in": BURN} | {
        "positions": (sink,)
    }
    assert everything.row("evict", "control").act["positions"] == (other,)
    assert everything.row("masked from the start").act["burn_in"] == 0
    zeroed = everything.row("massive activations to 0")
    assert (zeroed.act["layer"], zeroed.act["dimensions"], zeroed.act["entries"]) == (0, (11,), None)
    control_act = everything.control(zeroed).act  # type: ignore[union-attr]
    assert control_act["entries"] == ((other, 11),)  # the same dimensions of an ordinary token
    with pytest.raises(ArgumentError, match=r"no act 'evicted'.*evict, evict from"):
        everything.row("evicted")


def test_a_planted_sink_is_found_and_matters_more_than_its_control(everything: Effects) -> None:
    assert everything.meta["target"] == "the first token"
    assert everything.meta["targets"] == [0, 0, 0, 0]
    evict = everything.row("evict")
    assert everything.mean(evict, "kl").low > 10 * everything.mean(everything.control(evict), "kl").mean  # type: ignore[arg-type]
    # every text begins with the same token: its mean over other texts is itself
    for label in ("transplant: mean of other texts", "mean value", "massive activations to their mean"):
        assert np.abs(everything.change(everything.row(label)).mean) < 1e-5, label
    assert everything.mean(everything.row("massive activations to 0"), "kl").mean > 1e-3
    assert any("begin with the same tokens" in note for note in everything.meta["notes"])
    assert any("dimensions 11 behind layer 0" in note for note in everything.meta["notes"])


def test_controls_are_no_sinks_and_lie_under_the_burn_in() -> None:
    model, seen = planted(), set()
    read = pieces(tokenizer(), texts(), tokens=TOKENS, samples=4)[0]
    sinks = {}
    for piece in read:
        d = sg.diagnose(model, tokenizer(), [" ".join(piece.tokens)], tokens=TOKENS, samples=1)
        sinks[piece.source] = {s["position"] for s in d.meta["samples"][0]["sinks"]}
    assert all(len(found) == 2 for found in sinks.values())  # there is something to avoid
    for seed in range(6):
        for position in ("auto", "further"):
            effects = run(model, acts=["scalar gate"], burn_in=12, seed=seed, position=position)
            for source, target, control in zip(
                effects.meta["texts"], effects.meta["targets"], effects.meta["controls"], strict=True
            ):
                assert control not in sinks[source] | {target, 0}
                assert control < 12
                seen.add(control)
    assert len(seen) > 3  # drawn at random


def test_each_piece_of_one_text_gets_its_own_sink() -> None:
    """The probe reads exactly the ids that are scored: pieces of one text do not get each other's sinks."""
    long = " ".join(texts(8, TOKENS, first="w1"))
    effects = run(given=[long], acts=["evict"], samples=5, position="further")
    assert effects.meta["texts"] == [f"text 0[{i}:{i + TOKENS}]" for i in range(0, 5 * TOKENS, TOKENS)]
    assert effects.meta["targets"] == [5, 6, 7, 8, 9]
    assert effects.meta["target"] == "each text's sink further in"
    assert effects.row("evict").act["positions"] == (5,)


def test_sinks_further_in_get_the_mean_value_of_other_texts_sinks() -> None:
    effects = run(acts=["evict", "transplant", "mean value"], position="further")
    assert effects.meta["targets"] == [5, 6, 7, 8]
    assert [r.label for r in effects.rows if r.kind == "act"] == ["evict", "mean value"]
    assert any("nothing was transplanted" in note for note in effects.meta["notes"])
    model, (first, *_) = planted(), pieces(tokenizer(), texts(), tokens=TOKENS, samples=8)[0]
    donors = pieces(tokenizer(), texts(), tokens=TOKENS, samples=8)[0][4:]
    constants = sg.capture(model, [d.ids for d in donors], [d.tokens.index(WEAK) for d in donors])
    assert constants.position is None
    act = sg.interventions.MeanValue(5, BURN, constants)
    assert effects.row("mean value").loss[0] == pytest.approx(loss(model, first.ids, act), abs=1e-6)
    with pytest.raises(ArgumentError, match="several positions"):
        sg.Transplant(5, BURN, constants)


def test_the_first_token_unless_most_texts_have_a_stronger_one() -> None:
    """Without the strong token in front the weak one is each text's strongest sink."""
    without = texts(first="w1")
    effects = run(given=without, acts=["evict"])
    assert effects.meta["targets"] == [5, 6, 7, 8]
    mixed = run(given=[*without[:2], *texts()[2:]], acts=["evict"])
    assert mixed.meta["targets"] == [0, 0, 0, 0]
    assert any("In 2 of 4 texts another position is the stronger sink" in note for note in mixed.meta["notes"])
    early = run(given=without, acts=["evict"], burn_in=5)  # all behind the burn-in
    assert early.meta["targets"] == [0, 0, 0, 0]
    assert any("In 4 of 4 texts no position under" in note and "raise it" in note for note in early.meta["notes"])


def test_without_a_sink_further_in_there_is_nothing_to_act_on() -> None:
    alone = [t.replace(WEAK, "w3") for t in texts()]
    with pytest.raises(TextError, match="no text has a sink further in"):
        run(planted(), alone, burn_in=3, position="further")
    effects = run(given=[*texts(2), *alone[2:]], burn_in=7, position="further", acts=["evict", "mean value"])
    assert len(effects.meta["texts"]) < 4
    assert any("were left out" in note for note in effects.meta["notes"])


def test_constants_come_from_texts_that_are_not_scored() -> None:
    effects = run(acts=["transplant"])
    assert len(effects.meta["texts"]) == len(effects.meta["donors"]) == 4
    assert not set(effects.meta["texts"]) & set(effects.meta["donors"])
    few = run(given=texts(6), acts=["transplant"], samples=6)  # all would be scored: a third is kept for constants
    assert (len(few.meta["texts"]), len(few.meta["donors"])) == (4, 2)
    assert any("There is text for 4 samples and 2 others" in note for note in few.meta["notes"])
    one = run(given=texts(1), acts=["transplant"], samples=1)
    assert one.meta["donors"] == ["random tokens"] * 4
    assert any("random tokens" in note for note in one.meta["notes"])


def test_behind_a_bos_prefix_donors_stand_without_it() -> None:
    """With it, their first token would be the same one."""
    model = tiny("llama")
    given = [words(120, i) for i in range(8)]
    effects = sg.intervene(
        model,
        tokenizer(bos=True),
        given,
        acts=["transplant", "mean value"],
        tokens=TOKENS,
        samples=2,
        burn_in=BURN,
        confirm=0,
    )
    read = pieces(tokenizer(bos=True), given, tokens=TOKENS, samples=6)[0]
    assert read[0].tokens[0] == "<s>"
    assert effects.meta["bos"]
    assert any("the mean of its value is its own" in note for note in effects.meta["notes"])
    assert [r.label for r in effects.rows if r.kind == "act"] == [
        "transplant: another text", "transplant: mean of other texts", "key kept, value 0 from query 1",
    ]  # fmt: skip
    act = sg.Transplant(0, BURN, sg.capture(model, [read[2].ids[1:]], 0))
    assert effects.row("transplant: another text").loss[0] == pytest.approx(loss(model, read[0].ids, act), abs=1e-6)
    control = effects.meta["controls"][0]
    act = sg.Transplant(control, BURN, sg.capture(model, [read[2].ids], control))
    got = effects.row("transplant: another text", "control").loss[0]
    assert got == pytest.approx(loss(model, read[0].ids, act), abs=1e-6)


# ---- numbers --------------------------------------------------------------------------------------------------------


def loss(model: Any, ids: list[int], act: Any, *, start: int = BURN, **where: Any) -> float:
    x = torch.tensor([ids])
    with torch.no_grad(), sg.acting(model, act, **where):
        logits = forward(model, x)[0]
    return float(torch.nn.functional.cross_entropy(logits[start:-1].double(), x[0, start + 1 :]))


def test_numbers_and_intervals_recomputed(everything: Effects) -> None:
    model = planted(massive=5000.0)
    read = pieces(tokenizer(), texts(), tokens=TOKENS, samples=4)[0]
    assert [p.source for p in read] == everything.meta["texts"]
    start = 30  # the largest of burn-in and sweep: all arms are scored on the same predictions
    assert everything.meta["settings"]["scored_from"] == start
    for label, act in (("evict", sg.Evict(0, BURN)), ("evict from query 30", sg.Evict(0, 30))):
        changes, divergences, same = [], [], []
        for piece in read:
            x = torch.tensor([piece.ids])
            with torch.no_grad():
                p = forward(model, x)[0, start:-1].double().log_softmax(-1)
                with sg.acting(model, act):
                    q = forward(model, x)[0, start:-1].double().log_softmax(-1)
            wanted = x[0, start + 1 :, None]
            changes.append(float((p.gather(-1, wanted) - q.gather(-1, wanted)).mean()))
            divergences.append(float((p.exp() * (p - q)).sum(-1).mean()))
            same.append(float((p.argmax(-1) == q.argmax(-1)).double().mean()))
        summary = everything.summary(everything.row(label))
        for name, values in (("loss_change", changes), ("kl", divergences), ("agreement", same)):
            low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
            assert summary[name] == pytest.approx(np.mean(values), abs=1e-5)
            assert (summary[f"{name}_low"], summary[f"{name}_high"]) == pytest.approx((low, high), abs=1e-5)
        assert summary["samples"] == 4
    perplexity = math.exp(np.mean(everything.untouched.loss))
    assert everything.summary(everything.untouched)["perplexity"] == pytest.approx(perplexity)


def test_score_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.25, 0.5, 0.25]).log()
    logits, other = q.expand(4, 3), p.expand(4, 3)
    found = score(logits, torch.tensor([0, 1, 0, 1]), untouched=other, start=1)
    assert found.loss == pytest.approx((math.log(4) + math.log(2)) / 2)
    assert found.kl == pytest.approx(0.5 * math.log(2))  # KL(untouched ‖ this); a token that had nothing adds nothing
    assert found.agreement == 0.0
    assert found.tokens == 2
    with pytest.raises(ArgumentError, match="no predictions from position 3"):
        score(logits, torch.tensor([0, 1, 0, 1]), start=3)
    with pytest.raises(NonFiniteError, match="NaN"):
        score(logits * float("nan"), torch.tensor([0, 1, 0, 1]))


def test_one_text_has_no_interval_and_no_verdict() -> None:
    effects = run(samples=1, acts=["evict", "scalar gate"])
    summary = effects.summary(effects.row("evict"))
    assert math.isnan(summary["loss_change_low"])
    assert not math.isnan(summary["loss_change"])
    assert any("One text gives no interval" in line for line in effects.verdict())
    assert "nan" not in str(effects)


def test_a_seed_decides_everything() -> None:
    one, two, other = (run(confirm=2, acts=["evict", "transplant"], seed=seed) for seed in (3, 3, 4))
    assert plain(one) == plain(two)
    assert one.meta["controls"] != other.meta["controls"]
    assert one.row("evict").loss == other.row("evict").loss


def test_layers_and_heads() -> None:
    model = planted()
    first = pieces(tokenizer(), texts(), tokens=TOKENS, samples=4)[0][0]
    some = run(model, acts=["evict"], heads=[(0, 1), (2, 3)], confirm=2)
    assert some.row("evict").loss[0] == pytest.approx(
        loss(model, first.ids, sg.Evict(0, BURN), heads=[(0, 1), (2, 3)]), abs=1e-6
    )
    assert some.meta["where"] == [[0, 1], [2, 3]]
    assert some.heads == []
    assert "in 2 heads" in some.verdict()[0]
    layer = run(model, acts=["evict"], layers=1, confirm=2)
    assert layer.row("evict").loss[0] == pytest.approx(loss(model, first.ids, sg.Evict(0, BURN), layers=1), abs=1e-6)
    assert {e["layer"] for e in layer.estimates} == {h.layer for h in layer.heads} == {1}
    assert len({*some.row("evict").loss, *layer.row("evict").loss, *run(model, acts=["evict"]).row("evict").loss}) == 12


def test_single_heads_beside_random_ones(everything: Effects) -> None:
    assert len(everything.estimates) == 18
    top, random = ([h for h in everything.heads if h.chosen == kind] for kind in ("top", "random"))
    order = sorted(everything.estimates, key=lambda e: -abs(e["value"]))
    assert [(h.layer, h.head) for h in top] == [(e["layer"], e["head"]) for e in order[:3]]
    assert len(random) == 3
    assert not {(h.layer, h.head) for h in top} & {(h.layer, h.head) for h in random}
    model = planted(massive=5000.0)
    read = pieces(tokenizer(), texts(), tokens=TOKENS, samples=4)[0]
    d = sg.diagnose(model, tokenizer(), [" ".join(p.tokens) for p in read], tokens=TOKENS, samples=4)
    for h in everything.heads:
        wanted = loss(model, read[0].ids, sg.Evict(0, BURN), start=30, heads=[(h.layer, h.head)])
        assert h.loss[0] == pytest.approx(wanted, abs=1e-6)
        assert h.amplification == pytest.approx(d.amplification[h.layer, h.head])
        share = d.arrays["sink_write"].sum(0)[h.layer, h.head] / d.arrays["first_n"].sum(0)[h.layer]
        assert h.sink_write == pytest.approx(share)
    ranks = everything.rank_correlations()
    measured = [np.mean(h.kl) for h in everything.heads]
    wanted = stats.spearmanr([h.amplification for h in everything.heads], measured)
    assert ranks["amplification 1/(1−p_s)"] == {
        "rho": pytest.approx(wanted.statistic), "p": pytest.approx(wanted.pvalue), "n": 6,
    }  # fmt: skip
    assert "rank correlation" in str(everything)


def test_predictions_are_about_the_first_token_alone() -> None:
    effects = run(acts=["evict"], position="further", confirm=2)
    assert all(math.isnan(h.amplification) and math.isnan(h.sink_write) for h in effects.heads)
    assert any("no" in note and "first token" in note for note in effects.meta["notes"])


# ---- metrics, pairs, own acts ---------------------------------------------------------------------------------------


def last_logit(logits: Tensor, ids: Tensor) -> float:
    assert logits.shape[0] == ids.shape[0]
    return float(logits[-1, 5])


def test_a_metric_of_ones_own() -> None:
    model = planted()
    effects = run(model, acts=["evict"], metric=last_logit)
    first = pieces(tokenizer(), texts(), tokens=TOKENS, samples=4)[0][0]
    with torch.no_grad(), sg.acting(model, sg.Evict(0, BURN)):
        wanted = last_logit(forward(model, torch.tensor([first.ids]))[0], torch.tensor(first.ids))
    assert effects.row("evict").metric[0] == pytest.approx(wanted)
    summary = effects.summary(effects.row("evict"))
    changes = np.subtract(effects.row("evict").metric, effects.untouched.metric)
    assert summary["metric_change"] == pytest.approx(changes.mean())
    assert "metric" in str(effects)


PAIRS = [
    (f"{STRONG} w1 w33 {WEAK} w2", "w4 w5 w6 w20"),
    (f"{STRONG} w10 w33 {WEAK} w11", "w16 w17 w20"),
]


def test_pairs_keep_a_share_of_the_difference() -> None:
    model, names = planted(), tokenizer()
    effects = sg.intervene(model, names, pairs=PAIRS, acts=["evict", "transplant", "constant gate"])
    assert effects.meta["settings"]["burn_in"] == 1  # as many as position 0 needs
    kept = []
    for i, (clean, corrupted) in enumerate(PAIRS):
        c, w = (names(x, return_tensors="pt")["input_ids"] for x in (clean, corrupted))
        with torch.no_grad():
            at, other = forward(model, c)[0, -1], forward(model, w)[0, -1]
            with sg.acting(model, sg.Evict(0, 1)):
                acted = forward(model, c)[0, -1]
        up, down = int(at.argmax()), int(other.argmax())
        assert up != down
        m = [float(x[up] - x[down]) for x in (at, other, acted)]
        assert effects.untouched.metric[i] == pytest.approx(m[0], abs=1e-5)
        assert effects.meta["corrupted_metric"][i] == pytest.approx(m[1], abs=1e-5)
        kept.append((m[2] - m[1]) / (m[0] - m[1]))
    summary = effects.summary(effects.row("evict"))
    assert summary["kept"] == pytest.approx(np.mean(kept), abs=1e-5)
    low, high = stats.t.interval(0.95, 1, np.mean(kept), stats.sem(kept))
    assert (summary["kept_low"], summary["kept_high"]) == pytest.approx((low, high), abs=1e-4)
    assert effects.summary(effects.untouched)["kept"] == 1
    assert "kept" in str(effects)
    assert any("leaves no room for a control" in note for note in effects.meta["notes"])


def test_pairs_with_a_metric_and_a_position() -> None:
    model, names = planted(), tokenizer()
    effects = sg.intervene(model, names, pairs=PAIRS, acts=["evict"], metric=last_logit, position=2)
    assert effects.meta["settings"]["burn_in"] == 3
    assert effects.meta["targets"] == [2, 2]
    assert all(control in (1,) for control in effects.meta["controls"])
    ids = names(PAIRS[1][1], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert effects.meta["corrupted_metric"][1] == pytest.approx(last_logit(forward(model, ids)[0], ids[0]))
    alike = sg.intervene(model, names, pairs=[(PAIRS[0][0], PAIRS[0][0])] * 2, acts=["evict"])  # nothing to keep
    assert alike.kept(alike.row("evict")) is None


def test_an_act_of_ones_own() -> None:
    class Half:
        """Half of what a head writes."""

        name = "half"

        def attend(self, call: Any, run: Any) -> Tensor:
            return 0.5 * run(call)

    effects = run(acts=[Half(), sg.Evict(3, 5), sg.Evict(2, 5), "evict", sg.SetMassive(0, (1,), 0.1)])
    assert [(r.label, r.kind) for r in effects.rows] == [
        ("untouched", "untouched"), ("half", "own"), ("evict (own)", "own"), ("evict (own 2)", "own"), ("evict", "act"),
        ("evict", "control"), ("massive activations", "own"),
    ]  # fmt: skip
    first = pieces(tokenizer(), texts(), tokens=TOKENS, samples=4)[0][0]
    assert effects.row("half").loss[0] == pytest.approx(loss(planted(), first.ids, Half()), abs=1e-6)
    assert effects.row("evict (own)").act["positions"] == (3,)
    assert effects.control(effects.row("half")) is None
    alone = run(acts=sg.Evict(3, 5))
    assert alone.verdict() == ["Nothing was evicted, so there is no verdict."]  # not the sink, not so called


# ---- keeping --------------------------------------------------------------------------------------------------------


def test_saved_and_opened_again(everything: Effects, tmp_path: Path) -> None:
    nan = float("nan")
    effects = run(acts=["evict"], position="further", confirm=2, repeated="w5", metric=lambda *_: nan)
    for i, given in enumerate((everything, effects)):
        path = given.save(tmp_path / str(i) / "effects.json")
        again = Effects.load(path.parent)
        assert str(again) == str(given)
        assert again.verdict() == given.verdict()
        assert json.dumps(plain(again)) == json.dumps(plain(given))
        assert again.estimates == given.estimates
    assert effects.save(tmp_path) == tmp_path / "effects.json"
    assert effects.to_frame().shape[0] == 3


def test_a_damaged_record_says_so(tmp_path: Path) -> None:
    path = run(acts=["evict"], confirm=1).save(tmp_path / "effects.json")
    good = json.loads(path.read_text())

    def broken(**changes: Any) -> None:
        path.write_text(json.dumps(good | changes))

    with pytest.raises(RecordError, match="no effects at"):
        Effects.load(tmp_path / "nowhere.json")
    for changes, expected in (
        ({"version": 2}, "version 2; this sinkgate reads version 1"),
        ({"version": True}, "version True"),
        ({"format": "other"}, "holds no sinkgate effects"),
        ({"rows": []}, "damaged"),
        ({"rows": good["rows"][1:]}, "damaged"),
        ({"rows": [good["rows"][0], {"label": "x"}]}, "damaged"),
        ({"rows": [good["rows"][0], good["rows"][1] | {"kl": [1.0]}]}, "kl has 1 numbers for 4 texts"),
        ({"rows": [good["rows"][0], good["rows"][1] | {"loss": ["a", 1, 2, 3]}]}, "damaged"),
        ({"heads": [{"layer": 0}]}, "damaged"),
        ({"meta": {}}, "damaged"),
    ):
        broken(**changes)
        with pytest.raises(RecordError, match=expected):
            Effects.load(path)
    for text in ('{"format":', "[]", "\x00"):
        path.write_text(text)
        with pytest.raises(RecordError):
            Effects.load(path)


# ---- what can go wrong ----------------------------------------------------------------------------------------------


def test_errors() -> None:
    model = planted()
    for options, words_in_it in (
        ({"acts": ["evicted"]}, "act 'evicted' is not known; there are evict, start"),
        ({"acts": [3]}, "an act has attend"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"confirm": -1}, "confirm at least 0"),
        ({"burn_in": 0}, "burn_in and sweep must be at least 1"),
        ({"sweep": [0]}, "0 is the act 'start'"),
        ({"tokens": 25}, "tokens=25 leave nothing to score behind the burn-in of 24; use at least 26"),
        ({"sweep": [89]}, "use at least 91"),
        ({"position": 24}, "position must lie under the burn-in of 24"),
        ({"position": -1}, "position must lie under the burn-in"),
        ({"position": "strongest"}, "'auto', 'further' or a number"),
        ({"layers": 7}, "layer 7"),
        ({"heads": [(0, 6)]}, "heads 0 to 5"),
        ({"layers": 0, "heads": [(0, 1)]}, "layers or heads, not both"),
        ({"repeated": "w1 w2"}, "must be one token"),
        ({"tokens": 600, "given": [words(700, i) for i in range(3)]}, "cannot take 600 tokens"),
    ):
        given = options.pop("given", None)  # type: ignore[attr-defined]
        with pytest.raises(ArgumentError, match=words_in_it):
            run(model, given, **options)
    with pytest.raises(ArgumentError, match="needs its tokenizer"):
        sg.intervene(model, None, texts())
    for given, words_in_it in ((["w1 w2 w3"], "26 tokens are needed"), ([], "empty"), (["  "], "empty")):
        with pytest.raises(TextError, match=words_in_it):
            run(model, given)
    for pairs, words_in_it in (
        ([], "pairs is empty"),
        ([("w1 w2 w3", "w1"), ("w1 w2 w3",)], "pair 1"),
        (["ab"], "two strings each"),
        ([("w1 w2 w3", "")], "two strings each"),
        ([("w1 w2", "w1 w3")], "pair 0 has a clean prompt of 2 tokens"),
    ):
        with pytest.raises(TextError, match=words_in_it):
            sg.intervene(model, tokenizer(), pairs=pairs)


def test_nan_under_an_act_names_it() -> None:
    class Broken:
        """NaN in every head."""

        name = "broken"

        def attend(self, call: Any, run: Any) -> Tensor:
            return run(call) * float("nan")

    with pytest.raises(NonFiniteError, match="broken: the model's logits are NaN"):
        run(acts=[Broken()])


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
def test_models_of_every_kind_are_left_as_they_were(name: str) -> None:
    """Gates, learned sinks, windows and layers without attention; training mode and gradients stay as well."""
    model = tiny(name).train()
    next(model.parameters()).requires_grad_(False)
    was = state(model)
    effects = sg.intervene(
        model, tokenizer(), [words(80, i) for i in range(6)], tokens=70, samples=2, burn_in=BURN, confirm=2
    )
    assert_same(was, state(model))
    assert all(p.grad is None for p in model.parameters())
    assert all(np.isfinite(row.loss).all() and np.isfinite(row.kl).all() for row in effects.rows)
    assert len(effects.heads) == 4
    assert effects.row("evict").kl != [0.0, 0.0]
    if name == "qwen3_next":
        assert any(note.startswith("Layers 0 mix tokens without attention") for note in effects.meta["notes"])
    bad = RuntimeError("on purpose")

    def fail(*_: Any) -> None:
        raise bad

    with pytest.raises(RuntimeError, match="on purpose"):
        sg.intervene(
            model, tokenizer(), [words(80, i) for i in range(6)], tokens=70, samples=2, burn_in=BURN, progress=fail
        )
    assert_same(was, state(model))


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    run(acts=["evict"], confirm=1, progress=lambda done, total, _what: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][0] == seen[-1][1] == 4 * 3 + 4 + 2 * 4


# ---- the real model -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_smollm2s_first_token() -> None:
    """Wide bounds, not values to tune to: eviction costs, another first token does as well, and so does none at all."""
    from sinkgate.probe.text import default_texts

    loaded = sg.load("smollm2-135m", dtype="float32")
    acts = ["evict", "start", "scalar gate", "transplant"]
    effects = sg.intervene(
        loaded.model, loaded.tokenizer, default_texts()[:5], acts=acts, tokens=128, samples=3, confirm=0
    )
    change = {r.label: float(effects.change(r).mean) for r in effects.rows if r.kind == "act"}
    assert effects.meta["target"] == "the first token"
    assert change["evict"] > 0.3
    assert abs(float(effects.change(effects.row("evict", "control")).mean)) < 0.05
    assert abs(change["transplant: another text"]) < 0.05
    assert abs(change["masked from the start"]) < 0.05
    assert 0.05 < change["scalar gate"] / change["evict"] < 0.75  # between a gate and a part of it
    from sinkgate.interventions.verdict import kind

    assert kind(effects) in ("gate-like", "part gate, part bias")
