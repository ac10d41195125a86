"""A training plan of a trained model: its arms as text, its pilots, and that they are those of ``sg.train_outlet``."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sinkgate as sg
from interventions.planted import planted, texts
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError, NonFiniteError, RecordError, SinkgateError, UnsupportedError
from sinkgate.planning import training_outlets
from sinkgate.planning.training import plan_training
from sinkgate.planning.training_arms import OutletArm, as_outlet_arm
from sinkgate.planning.training_budget import Cost
from sinkgate.planning.training_outlets import ARMS, Outlets
from sinkgate.planning.training_record import TrainingPlan

FOR = sg.OutletConfig(tokens=60, burn_in=12)
THREE = "unchanged, sink_logit, gate(preserve=4) + outlet_lr(0.3)"


def plan(model: Any, out: Path, **settings: Any) -> TrainingPlan:
    usual: dict[str, Any] = {
        "steps": 4,
        "arms": THREE,
        "samples": 3,
        "task": FOR,
        "tokenizer": tokenizer(),
        "text": texts(9),
    }
    return plan_training(model, **{**usual, "out": out, **settings})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingPlan, Path, Any]:
    out, model = tmp_path_factory.mktemp("plan") / "out", planted()
    return plan(model, out), out, model


def test_the_numbers_are_those_of_train_outlet(done: tuple[TrainingPlan, Path, Any]) -> None:
    found, _, model = done
    assert found.names == ["unchanged", "sink_logit", "gate(preserve=4) + outlet_lr(0.3)"]
    spec = sg.Gate("G1", elementwise=False, preserve=4.0)
    for seed in range(3):
        for arm, outlet, rate in (("sink_logit", "sink_logit", 1.0), (found.names[2], spec, 0.3)):
            alone = sg.train_outlet(
                planted(), tokenizer(), texts(9), outlet=outlet, control=False, samples=3,
                loop=sg.LoopConfig(steps=4, lr=0.02 * rate, warmup=3, save_every=25, seed=seed),
                task=sg.OutletConfig(tokens=60, burn_in=12, seed=seed),
            )  # fmt: skip
            assert found.values(arm)[seed] == statistics.fmean(alone.after.evicted)
            assert found.values("unchanged")[seed] == statistics.fmean(alone.before.evicted)
            assert found.row(arm)["extra"] == alone.meta["parameters"]
    assert found.row("unchanged")["extra"] == 0
    assert found.row("unchanged")["seconds"] is None
    assert found.meta["headline"] == "evicted"
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), planted().parameters(), strict=True))
    with pytest.raises(ArgumentError, match="this model has no outlet"):
        sg.outlets(model)


def test_a_killed_plan_goes_on_to_the_same_numbers(done: tuple[TrainingPlan, Path, Any], tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    seen: list[str] = []

    def kill(name: str, line: dict[str, Any]) -> None:
        seen.append(name)
        if len(seen) == 11:  # in the third pilot
            raise Killed

    model = planted()
    with pytest.raises(Killed):
        plan(model, tmp_path / "out", progress=kill)
    resumed = plan(model, tmp_path / "out", progress=lambda name, _line: seen.append(name))
    assert [r["values"] for r in resumed.arms] == [r["values"] for r in done[0].arms]
    assert seen[11] == "sink_logit, seed 1"
    assert len(seen) == 11 + 4 * 4  # two of six pilots were kept; a pilot of four steps begins anew
    again = plan(model, tmp_path / "out", progress=lambda *_: pytest.fail("trained again"))
    assert again.to_json() == resumed.to_json()
    kept = next((tmp_path / "out" / "pilots").rglob("pilot.json"))
    kept.write_text("{")
    with pytest.raises(RecordError, match="is damaged"):
        plan(model, tmp_path / "out")


def test_a_pilot_that_diverges_is_kept_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = training_outlets.train_outlet, []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["loop"].seed)
        if kwargs["loop"].seed == 1 and kwargs["outlet"] == sg.SinkLogit():
            raise NonFiniteError("loss is nan at step 2")
        return real(*args, **kwargs)

    monkeypatch.setattr(training_outlets, "train_outlet", fails)
    model = planted()
    found = plan(model, tmp_path / "out")
    assert [x is None for x in found.row("sink_logit")["values"]] == [False, True, False]
    assert all(x is not None for x in found.row("unchanged")["values"])
    assert found.decision.told["sink_logit"] == "diverged"
    assert len(calls) == 6
    assert plan(model, tmp_path / "out").to_json() == found.to_json()
    assert len(calls) == 6


def test_minutes_time_every_outlet_but_not_the_unchanged_model(tmp_path: Path) -> None:
    subject = Outlets(planted(), tokenizer(), texts(9), None, THREE, "sinks", {}, FOR, 3, "planted", None)
    assert subject.cost("unchanged", 0) == Cost("unchanged", 0.0, 0.0)
    cost = subject.cost("sink_logit", 0)
    assert cost.step > 0
    assert cost.pilot > 0
    with pytest.raises(ArgumentError, match="does not hold two arms"):
        plan(planted(), tmp_path / "out", minutes=1e-3, steps=None)


def test_what_is_pasted_trains_the_arm(done: tuple[TrainingPlan, Path, Any]) -> None:
    found = done[0]
    assert found.settings("unchanged") == "# the model as it is: no outlet to add"
    code = found.settings(found.names[2])
    called: list[dict[str, Any]] = []

    class Noted:
        Gate, LoopConfig, OutletConfig = sg.Gate, sg.LoopConfig, sg.OutletConfig

        @staticmethod
        def train_outlet(*_: Any, **kwargs: Any) -> None:
            called.append(kwargs)

    lines = [line for line in code.splitlines() if not line.startswith("import")]
    exec("\n".join(lines), {"sg": Noted, "model": None, "tokenizer": None, "texts": None})
    assert called == [{
        "outlet": sg.Gate("G1", elementwise=False, preserve=4.0), "heads": "sinks", "task": FOR,
        "loop": sg.LoopConfig(steps=150, lr=0.02 * 0.3, warmup=5, save_every=25),
    }]  # fmt: skip
    model = planted()
    line = next(line for line in lines if "sg.add_outlet" in line)
    exec(line.split("every head: ")[1], {"sg": sg, "model": model})
    assert sg.outlets(model).spec == sg.Gate("G1", elementwise=False, preserve=4.0)


def test_json_comes_back_and_what_is_damaged_is_said(done: tuple[TrainingPlan, Path, Any]) -> None:
    found = done[0]
    data = json.loads(json.dumps(found.to_json()))
    assert str(TrainingPlan.from_json(data)) == str(found)
    assert "The held-out texts are the same for all seeds" in str(found)
    data["arms"][1]["config"]["outlet"] = {"kind": "drain"}
    with pytest.raises(RecordError, match="drain"):
        TrainingPlan.from_json(data)
    data["arms"][1]["config"] = {"outlet": None, "outlet_lr": "x", "sink_lr": 1}
    with pytest.raises(RecordError, match="outlet_lr"):
        TrainingPlan.from_json(data)
    data = json.loads(json.dumps(found.to_json()))
    data["meta"]["request"]["loop"]["steps"] = "many"
    with pytest.raises(RecordError, match="steps must be"):
        TrainingPlan.from_json(data)


# ---- arms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [*ARMS, "kv_bias(distance=4)", "gate(position='G2', elementwise=True) + sink_lr(0)", "sink_token(start=None)",
     "key_bias(start=0.001) + outlet_lr(3) + sink_lr(0.5)"],
)  # fmt: skip
def test_text_and_json_round_trip(text: str) -> None:
    arm = as_outlet_arm(text)
    assert str(arm) == text
    assert as_outlet_arm(str(arm)) == arm
    assert OutletArm.from_json(json.loads(json.dumps(arm.to_json()))) == arm


def test_values_are_arms_too() -> None:
    assert as_outlet_arm(sg.SinkLogit()) == as_outlet_arm("sink_logit")
    assert as_outlet_arm(OutletArm(sg.KVBias(), 2.0)) == as_outlet_arm("kv_bias + outlet_lr(2)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drain", "no outlet 'drain'"),
        ("softmax", "no outlet 'softmax'"),
        ("", "cannot read the arm ''"),
        ("gate(4)", r"no outlet 'gate\(4\)'"),
        ("gate(preserve='x')", "cannot read the arm"),
        ("gate(colour=1)", "cannot be built"),
        ("sink_logit(start=0)", "start must be over 0"),
        ("sink_logit + gate", "no addition 'gate'"),
        ("sink_logit + outlet_lr(0)", "outlet_lr must be a finite number above 0, got 0"),
        ("sink_logit + outlet_lr(1) + outlet_lr(2)", "no addition"),
        ("sink_logit + sink_lr(-1)", "sink_lr must be a finite number of 0 or more"),
        ("unchanged + outlet_lr(2)", "an unchanged model has no outlet"),
        ("sink_logit - gate", "cannot read the arm"),
        ("__import__('os').system('x')", "cannot read the arm"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_arm_is_said(text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says) as caught:
        as_outlet_arm(text)
    assert "\n" not in str(caught.value)


# ---- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind", "says"),
    [
        ({"arms": "unchanged"}, ArgumentError, "at least 2 arms"),
        ({"arms": "unchanged, drain"}, ArgumentError, "no outlet 'drain'"),
        ({"arms": ["sink_logit", sg.SinkLogit()]}, ArgumentError, "an arm is there twice"),
        ({"seeds": 2}, ArgumentError, "at least 3 different seeds"),
        ({"minutes": 0.0}, ArgumentError, "minutes must be"),
        ({"tokenizer": None}, ArgumentError, "needs its tokenizer"),
        ({"task": sg.OutletConfig(tokens=60, burn_in=12, also=("*.weight",))}, ArgumentError, "outlets alone"),
        ({"arms": "unchanged, sink_logit + sink_lr(3)"}, ArgumentError, "needs heads='all'"),
        ({"colour": 1}, ArgumentError, "a loaded model takes no settings, got colour"),
        ({"text": []}, SinkgateError, "there is no text to train on"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(settings: dict[str, Any], kind: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=says) as caught:
        plan(planted(), tmp_path / "out", **settings)
    assert "\n" not in str(caught.value)


def test_models_without_attention_or_room_for_an_outlet(tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    with pytest.raises(UnsupportedError, match="Linear is no transformers language model"):
        plan(nn.Linear(2, 2), tmp_path / "out")
    mamba = MambaForCausalLM(MambaConfig(vocab_size=96, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(UnsupportedError, match="no layer of MambaForCausalLM can be measured"):
        plan(mamba, tmp_path / "out")
    with pytest.raises(ArgumentError, match="give a task"):
        plan(5, tmp_path / "out")
    model = tiny("gemma2")  # caps its scores: a key of one's own has no plain score there
    with pytest.raises(UnsupportedError, match="softcap"):
        plan(model, tmp_path / "out", arms="unchanged, kv_bias")
    subject = Outlets(model, tokenizer(), texts(9), None, None, "all", {}, FOR, 3, "gemma2", None)
    assert not [arm for arm in subject.arms if str(arm).startswith(("kv_bias", "key_bias"))]
    assert any("key_bias was left out, this model cannot have it" in note for note in subject.notes)
    sg.add_outlet(model, "sink_logit")
    with pytest.raises(UnsupportedError, match="has an outlet already"):
        plan(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
