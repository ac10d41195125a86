"""Experiments: a piece is trained once, a killed one goes on, and a result says what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from experiments import pieces
from experiments.trigger import Form, run, summary

from sinkgate.errors import NonFiniteError
from sinkgate.lab.loop import train
from sinkgate.lab.tasks.trigger import Trigger

TASK = Trigger(length=5, dim=5, batch=4, position=4, examples=6)
FORMS = {
    "one_layer": Form(TASK, ("softmax", "relu"), 2, 4),
    "two_layers": Form(Trigger(layers=2, length=5, dim=5, batch=4, position=4, examples=6), ("softmax",), 1, 4),
}


def test_a_rerun_does_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, folder = tmp_path / "cache", tmp_path / "results"
    trained: list[str] = []
    kill_at = [2]

    def watched(experiment: Any, config: Any, at: Path, *, resume: bool) -> Any:
        trained.append(f"{experiment.arm} {experiment.seed} {experiment.task.layers}")

        def progress(line: dict[str, Any]) -> None:
            if len(trained) == kill_at[0] and line["step"] == 2:
                raise KeyboardInterrupt

        return train(experiment, config, at, resume=resume, progress=progress)

    monkeypatch.setattr(pieces, "train", watched)
    with pytest.raises(KeyboardInterrupt):
        run(FORMS, place, folder)
    assert trained == ["softmax 0 1", "relu 0 1"]
    half = json.loads((folder / "trigger.json").read_text())
    assert half["missing"] == 4
    assert half["forms"]["one_layer"]["arms"]["softmax"]["summary"]["seeds"] == 1
    assert list(half["forms"]["one_layer"]["arms"]) == ["softmax"]
    assert half["forms"]["two_layers"]["arms"] == {}
    kill_at[0] = 0
    run(FORMS, place, folder)
    assert trained[2:] == ["relu 0 1", "softmax 0 2", "softmax 1 1", "relu 1 1"]
    whole = json.loads((folder / "trigger.json").read_text())
    run(FORMS, place, folder)
    assert len(trained) == 6
    run(FORMS, tmp_path / "elsewhere", tmp_path / "other")  # never killed: the same numbers
    assert json.loads((tmp_path / "other" / "trigger.json").read_text()) == whole
    assert whole["missing"] == 0
    assert whole["environment"]["commit"] in whole["commits"]
    seeds = whole["forms"]["one_layer"]["arms"]["softmax"]["seeds"]
    assert [s["taken"] for s in seeds] == [4, 4]
    assert seeds[0]["linf"] != seeds[1]["linf"]
    assert not list(place.rglob("checkpoint.safetensors"))
    longer = {"one_layer": Form(TASK, ("softmax",), 2, 5)}
    assert run(longer, place, tmp_path / "longer")["forms"]["one_layer"]["arms"]["softmax"]["seeds"][0]["taken"] == 5


def test_a_run_that_diverged_is_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(*_: Any, **__: Any) -> None:
        raise NonFiniteError("loss is nan at step 3")

    monkeypatch.setattr(pieces, "train", diverges)
    arm = run({"one_layer": FORMS["one_layer"]}, tmp_path, tmp_path)["forms"]["one_layer"]["arms"]["relu"]
    assert arm["seeds"] == [{"failed": "loss is nan at step 3"}] * 2
    assert arm["claims"] == {}
    assert (arm["summary"]["seeds"], arm["summary"]["failed"], arm["summary"]["solved"]) == (2, 2, 0)
    assert arm["summary"]["linf"] is None


def test_a_summary_takes_the_worst_where_a_claim_needs_it() -> None:
    def found(**change: Any) -> dict[str, Any]:
        base = {"solved": 1.0, "steps": 100.0, "taken": 100, "written_bos": [1.0, 3.0], "written_others": [4.0, 4.0]}
        numbers = dict.fromkeys(("linf", "mse", "bos", "bos_least", "bos_most", "bos_most_least", "bos_highest"), 0.5)
        return {"run": {}, "found": base | numbers | {"bos_over_null": None, "mass": 1.0, "mass_at": 0.1} | change}

    said = summary([
        found(linf=0.1, bos=0.2, bos_least=0.1, bos_highest=0.9), found(steps=200.0), found(solved=0.0, steps=None, taken=999),
    ])  # fmt: skip
    assert (said["solved"], said["seeds"], said["failed"]) == (2, 3, 0)
    assert (said["steps_low"], said["steps"], said["steps_high"], said["taken_most"]) == (100, 150, 200, 999)
    assert (said["bos"], said["bos_least"], said["bos_highest"]) == (pytest.approx(0.4), 0.1, 0.9)
    assert (said["linf"], said["linf_worst"]) == (0.5, 0.5)
    assert (said["written_ratio"], said["bos_over_null"], said["gate_at"]) == (0.5, None, None)
