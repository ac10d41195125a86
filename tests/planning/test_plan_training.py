"""A training plan of a lab recipe: its pilots, its record, what it gives to paste, and that a killed one goes on."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import sinkgate as sg
from sinkgate.errors import ArgumentError, OutputError, RecordError
from sinkgate.lab.arms import as_arm, split_arms
from sinkgate.lab.tasks import as_task
from sinkgate.planning import training
from sinkgate.planning.training import plan_training
from sinkgate.planning.training_budget import BudgetError, Cost
from sinkgate.planning.training_lab import ARMS, Recipe
from sinkgate.planning.training_record import NOT_DISTINGUISHABLE, TrainingPlan

TINY: dict[str, Any] = {"vocab": 12, "length": 16, "dim": 16, "batch": 4, "triggers": 1}
THREE = "softmax, sink_softmax, softmax + g1_head(preserve=2) + outlet_lr(3)"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingPlan, Path]:
    out = tmp_path_factory.mktemp("plan") / "out"
    return plan_training("backcopy", steps=20, arms=THREE, out=out, **TINY), out


def test_the_numbers_are_those_of_a_comparison(done: tuple[TrainingPlan, Path], tmp_path: Path) -> None:
    plan, _ = done
    alone = sg.compare(
        "backcopy", THREE, seeds=3, steps=20, out=tmp_path / "alone", cost_rounds=0, loop_changes={"evaluate_every": 0}, **TINY
    )  # fmt: skip
    assert plan.names == alone.arms
    for arm in plan.names:
        assert plan.values(arm).tolist() == alone.values(arm, "excess_loss").tolist()
        test = stats.ttest_rel(plan.values(arm), plan.values("softmax")) if arm != "softmax" else None
        if test is not None:
            found, want = plan.difference(arm), test.confidence_interval(0.95)
            assert (float(found.low), float(found.high)) == pytest.approx((want.low, want.high), rel=1e-9)
    assert [row["extra"] for row in plan.arms] == [0, 1, 16]  # a logit, and dim × heads of a gate
    assert plan.meta["steps"] == 20
    assert plan.meta["spent"] is None  # nothing was timed
    assert all(row["seconds"] > 0 for row in plan.arms)
    assert plan.decision.comparisons == 2


def test_the_same_steps_give_the_same_plan(done: tuple[TrainingPlan, Path], tmp_path: Path) -> None:
    plan, out = done
    again = plan_training("backcopy", steps=20, arms=THREE, out=tmp_path / "again", **TINY)
    assert [r["values"] for r in again.arms] == [r["values"] for r in plan.arms]
    assert again.answer == plan.answer
    asked: list[Any] = []  # and a finished one is read, not trained
    read = plan_training("backcopy", steps=20, arms=THREE, out=out, progress=lambda *a: asked.append(a), **TINY)
    assert (read.to_json(), asked) == (plan.to_json(), [])
    assert TrainingPlan.load(out).to_json() == plan.to_json()


def test_a_killed_plan_goes_on_to_the_same_numbers(done: tuple[TrainingPlan, Path], tmp_path: Path) -> None:
    plan, _ = done

    class Killed(BaseException):
        pass

    seen: list[tuple[str, int]] = []

    def kill(name: str, line: dict[str, Any]) -> None:
        seen.append((name, line["step"]))
        if len(seen) == 47:  # in the third pilot
            raise Killed

    with pytest.raises(Killed):
        plan_training("backcopy", steps=20, arms=THREE, out=tmp_path / "out", progress=kill, **TINY)
    before = len(seen)
    resumed = plan_training(
        "backcopy", steps=20, arms=THREE, out=tmp_path / "out", progress=lambda n, line: seen.append((n, line["step"])), **TINY
    )  # fmt: skip
    assert [r["values"] for r in resumed.arms] == [r["values"] for r in plan.arms]
    assert seen[before][0] == "softmax, seed 2"  # the two before it were kept
    assert len(seen) - before == 7 * 20 - seen[before][1]


def test_minutes_are_timed_first_and_the_timing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def cost(self: Recipe, arm: str, seed: int) -> Cost:
        asked.append(arm)
        return Cost(arm, {"softmax": 0.125, "sink_softmax": 0.125}.get(arm, 50.0), 1.0)

    monkeypatch.setattr(Recipe, "cost", cost)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    settings: dict[str, Any] = {"arms": THREE, "out": tmp_path / "out", "loop_changes": {"warmup": 0}, **TINY}
    plan = plan_training("backcopy", minutes=1.0, **settings)
    assert plan.meta["steps"] == math.floor((60 * 0.9 - 6) / 0.75) == 64
    assert plan.names == ["softmax", "sink_softmax"]
    assert [d["arm"] for d in plan.meta["dropped"]] == [str(split_arms(THREE)[2])]
    assert "was dropped: with it 3 seeds of 50 steps would take 126 of the 0.9 minutes left" in str(plan)
    assert "64 steps each, within 1 minutes (0 s of them until the arms were timed)" in str(plan)
    assert asked == [str(arm) for arm in split_arms(THREE)]
    monkeypatch.setattr(Recipe, "cost", lambda *_: pytest.fail("timed twice"))
    assert plan_training("backcopy", minutes=1.0, **settings).to_json() == plan.to_json()
    with pytest.raises(RecordError, match=r"holds another plan \(minutes differ\)"):
        plan_training("backcopy", minutes=2.0, **settings)
    timing = json.loads((tmp_path / "out" / "timing.json").read_text())
    timing["costs"][0]["step"] = "x"
    (tmp_path / "out" / "timing.json").write_text(json.dumps(timing))
    with pytest.raises(RecordError, match="'step' is missing or of the wrong type"):
        plan_training("backcopy", minutes=1.0, **settings)


def test_timing_stops_at_half_of_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def cost(self: Recipe, arm: str, seed: int) -> Cost:
        now[0] += 20.0
        return Cost(arm, 0.001, 0.0)

    monkeypatch.setattr(Recipe, "cost", cost)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    subject = Recipe(as_task("backcopy", **TINY), THREE, {}, "cpu", None)
    names = [str(arm) for arm in subject.arms]
    costs, spent, untimed = training._timing(subject, names, 0, 60.0, tmp_path, 0.0)
    assert ([c.arm for c in costs], spent, untimed) == (
        names[:2],
        40.0,
        [(names[2], "timing the arms before it took half of the budget")],
    )
    assert training._timing(subject, names, 0, 60.0, tmp_path, 0.0) == (costs, spent, untimed)  # kept


@pytest.mark.slow
def test_a_real_clock(tmp_path: Path) -> None:
    plan = plan_training("backcopy", minutes=0.4, arms="softmax, sink_softmax", out=tmp_path / "out", **TINY)
    assert 50 <= plan.meta["steps"] <= 2000
    assert 0 < plan.meta["spent"] < 24
    assert all(cost["step"] > 0 and cost["pilot"] > 0 for cost in plan.meta["costs"])
    with pytest.raises(
        BudgetError, match=r"does not hold two arms \(softmax and sink_softmax\) with 3 seeds and 50 steps"
    ):
        plan_training("backcopy", minutes=1e-4, arms="softmax, sink_softmax", out=tmp_path / "none", **TINY)


def test_the_usual_arms_can_be_built_on_every_task() -> None:
    for name in ("trigger", "backcopy"):
        subject = Recipe(as_task(name), None, {}, "cpu", None)
        assert [str(a) for a in subject.arms] == [str(a) for a in split_arms(ARMS)]
        assert subject.extra["softmax"] == subject.extra["softmax1"] == 0
        assert min(subject.extra.values()) == 0


def test_the_cache_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path))
    found = plan_training("backcopy", steps=2, arms="softmax, softmax1", **TINY)
    assert "not distinguishable" in found.sentences()[0] or found.decision.told["softmax1"] != "not distinguishable"
    folders = list((tmp_path / "plans").iterdir())
    assert len(folders) == 1
    assert TrainingPlan.load(folders[0]).to_json() == found.to_json()
    plan_training("backcopy", steps=3, arms="softmax, softmax1", **TINY)
    assert len(list((tmp_path / "plans").iterdir())) == 2


# ---- the record ---------------------------------------------------------------------------------------------------


def made(plan: TrainingPlan, values: list[list[float | None]]) -> TrainingPlan:
    """The plan with other numbers."""
    data = copy.deepcopy(plan.to_json())
    for row, numbers in zip(data["arms"], values, strict=True):
        row["values"] = numbers
    return TrainingPlan.from_json(data)


def test_what_it_says(done: tuple[TrainingPlan, Path]) -> None:
    plan, _ = done
    gate = plan.names[2]
    winner = made(plan, [[1.0, 1.1, 0.9], [1.02, 1.07, 0.91], [0.50, 0.59, 0.41]])
    assert (winner.answer, winner.distinguishable) == (gate, True)
    assert winner.sentences()[0] == (
        f"{gate}: better than softmax, the cheapest arm (excess_loss -0.5 [-0.525, -0.475], paired over 3 seeds)."
    )
    overlap = made(plan, [[1.0, 1.1, 0.9], [1.02, 1.07, 0.91], [0.9, 1.1, 0.7]])
    assert (overlap.answer, overlap.distinguishable) == ("softmax", False)
    assert f"{gate}, the best other one, is {NOT_DISTINGUISHABLE}" in overlap.sentences()[0]
    half = stats.t.ppf(1 - 0.05 / 2 / 2, 2) * np.std([-0.1, 0.0, -0.2], ddof=1) / math.sqrt(3)
    assert f"A difference from softmax smaller than {half:.2g} could not have been seen" in overlap.sentences()[1]
    assert "2 arms are compared with the cheapest, at 5% for all comparisons together (Holm)" in str(overlap)
    gone = made(plan, [[1.0, 1.1, 0.9], [1.02, None, 0.91], [0.50, 0.59, 0.41]])
    assert "sink_softmax did not train with 1 of 3 seeds" in str(gone)
    assert gone.difference("sink_softmax").samples == 2
    nobody = made(plan, [[None] * 3] * 3)
    assert nobody.answer is None
    assert nobody.sentences()[0] == "No arm trained with all 3 seeds: nothing can be said."
    with pytest.raises(ArgumentError, match="there is none to take"):
        nobody.settings()
    other = made(plan, [[None, 1.1, 0.9], [1.02, 1.07, 0.91], [0.50, 0.59, 0.41]])
    assert "against sink_softmax [95%]" in other.table()[0]  # the cheapest is not the reference
    worse = made(plan, [[1.0, 1.1, 0.9], [1.5, 1.59, 1.41], [1.7, 1.79, 1.61]])
    assert "softmax: the cheapest arm, and no other is better; sink_softmax, the best of them, is worse" in str(worse)
    tied = made(plan, [[1.0, 1.1, 0.9], [0.5, 0.6, 0.42], [0.50, 0.59, 0.41]])
    assert tied.answer == "sink_softmax"
    assert f"{gate} has the best mean, but dearer it is {NOT_DISTINGUISHABLE} from it" in tied.sentences()[0]
    with pytest.raises(ArgumentError, match="no arm 'g9' was tried"):
        plan.difference("g9")


def test_what_is_pasted_makes_the_arm_and_trains_it(done: tuple[TrainingPlan, Path]) -> None:
    plan, _ = done
    for name in plan.names:
        code = plan.settings(name).splitlines()
        known: dict[str, Any] = {}
        exec("\n".join(line for line in code if not line.startswith(("train(", "experiment ="))), known)
        assert known["arm"] == as_arm(name)
        assert known["task"] == as_task("backcopy", **TINY)
        assert known["loop"] == as_task("backcopy", **TINY).loop(None, None, 0)
        known["loop"] = sg.LoopConfig.from_json(
            {**known["loop"].to_json(), "steps": 1, "warmup": 0, "evaluate_every": 0}
        )
        exec("\n".join(line for line in code if line.startswith(("train(", "experiment ="))), known)
        assert ("multipliers=" in code[-1]) == (known["arm"].outlet_lr != 1)


@pytest.mark.parametrize(
    "arm", ["entmax(alpha=1.25)", "sink_softmax(z=-4.0) + g1_silu + window(8) + keep(2)", "sigmoid + qk_norm + wider(g1)"]
)  # fmt: skip
def test_any_arm_can_be_pasted(arm: str, done: tuple[TrainingPlan, Path]) -> None:
    data = copy.deepcopy(done[0].to_json())
    data["arms"][0] |= {"arm": arm, "config": as_arm(arm).to_json()}
    code = TrainingPlan.from_json(data).settings(arm)
    assert eval(next(line for line in code.splitlines() if line.startswith("arm = "))[6:], {"sg": sg}) == as_arm(arm)


def test_json_comes_back(done: tuple[TrainingPlan, Path], tmp_path: Path) -> None:
    plan, _ = done
    there = TrainingPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert there.to_json() == plan.to_json()
    assert str(there) == str(plan)
    assert str(TrainingPlan.load(plan.save(tmp_path / "p.json"))) == str(plan)


DAMAGES: dict[str, Any] = {
    "no object": lambda d: [],
    "another format": lambda d: d | {"format": "x"},
    "another version": lambda d: d | {"version": 2},
    "no version": lambda d: d | {"version": True},
    "no meta": lambda d: {n: x for n, x in d.items() if n != "meta"},
    "no arms": lambda d: d | {"arms": []},
    "a kind": lambda d: d | {"meta": d["meta"] | {"kind": "x"}},
    "seeds": lambda d: d | {"meta": d["meta"] | {"seeds": ["x", 1, 2]}},
    "fewer values": lambda d: d | {"arms": [d["arms"][0] | {"values": [1.0]}, *d["arms"][1:]]},
    "a text value": lambda d: d | {"arms": [d["arms"][0] | {"values": ["1", 1, 1]}, *d["arms"][1:]]},
    "a NaN": lambda d: d | {"arms": [d["arms"][0] | {"values": [math.nan, 1, 1]}, *d["arms"][1:]]},
    "a huge value": lambda d: d | {"arms": [d["arms"][0] | {"values": [1e300, 1, 1]}, *d["arms"][1:]]},
    "an arm twice": lambda d: d | {"arms": [d["arms"][0]] * 2},
    "an unknown arm": lambda d: d | {"arms": [d["arms"][0] | {"config": {"weighting": {"name": "x"}}}, *d["arms"][1:]]},
    "a config of another kind": lambda d: d | {"arms": [d["arms"][0] | {"config": {}}, *d["arms"][1:]]},
    "no task": lambda d: d | {"meta": d["meta"] | {"request": {}}},
    "a cost": lambda d: d | {"meta": d["meta"] | {"costs": [{"arm": "x"}]}},
    "a dropped arm": lambda d: d | {"meta": d["meta"] | {"dropped": ["x"]}},
    "a note": lambda d: d | {"meta": d["meta"] | {"notes": [1]}},
}


@pytest.mark.parametrize("which", DAMAGES)
def test_a_damaged_record_is_one_line(which: str, done: tuple[TrainingPlan, Path], tmp_path: Path) -> None:
    data = DAMAGES[which](copy.deepcopy(done[0].to_json()))
    with pytest.raises(RecordError) as caught:
        TrainingPlan.from_json(data)
    assert "\n" not in str(caught.value)
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"plan\.json"):
        TrainingPlan.load(tmp_path)


def test_no_record() -> None:
    with pytest.raises(RecordError, match="is not a readable training plan: there is no such file"):
        TrainingPlan.load("/nowhere")


# ---- what is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "a plan needs a budget"),
        ({"minutes": 0}, "minutes must be a positive number, got 0"),
        ({"minutes": -2}, "minutes must be a positive number, got -2"),
        ({"minutes": math.nan}, "minutes must be a positive number, got nan"),
        ({"minutes": True}, "minutes must be"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": 5, "seeds": 2}, "at least 3 different seeds"),
        ({"steps": 5, "seeds": [0, 1, 1]}, "at least 3 different seeds"),
        ({"steps": 5, "seeds": "012"}, "seeds must be a number"),
        ({"steps": 5, "seeds": True}, "seeds must be a number"),
        ({"steps": 5, "arms": "softmax, softmax + g9"}, "no addition 'g9'"),
        ({"steps": 5, "arms": "softmax"}, "compares at least 2 arms, got softmax"),
        ({"steps": 5, "arms": []}, "compares at least 2 arms, got none"),
        ({"steps": 5, "arms": ["softmax", "softmax"]}, "an arm is there twice"),
        ({"steps": 5, "arms": ["softmax", "softpick + outlet_lr(2)"]}, "outlet_lr\\(2\\) has no meaning"),
        ({"steps": 5, "loop_changes": {"lr": 1.0}}, "loop_changes cannot set lr"),
        ({"steps": 5, "loop_changes": {"colour": 1.0}}, "unknown in a training configuration: colour"),
        ({"steps": 5, "text": "words"}, "belong to a model"),
        ({"steps": 5, "colour": 1}, "the task 'backcopy' has no colour"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=says) as caught:
        plan_training("backcopy", **{"out": tmp_path / "out", **TINY, **settings})
    assert "\n" not in str(caught.value)


def test_other_folders_are_left_alone(done: tuple[TrainingPlan, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match="holds no training plan"):
        plan_training("backcopy", steps=5, arms=THREE, out=tmp_path, **TINY)
    with pytest.raises(RecordError, match=r"holds another plan \(seeds, steps differ\)"):
        plan_training("backcopy", steps=5, seeds=4, arms=THREE, out=done[1], **TINY)
