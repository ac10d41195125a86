"""A plan as a file: round trip, damage, and models that are not its own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkgate as sg
from models import tiny
from sinkgate.errors import RecordError


def test_round_trip(plan_of_llama: sg.Plan, tmp_path: Path) -> None:
    path = plan_of_llama.save(tmp_path / "deep" / "plan.json")
    again = sg.Plan.load(path)
    assert json.dumps(again.to_json()) == json.dumps(plan_of_llama.to_json())
    assert str(again) == str(plan_of_llama)
    assert [p.name for p in path.parent.iterdir()] == ["plan.json"]


def test_it_carries_what_it_was_made_with(plan_of_llama: sg.Plan, llama: Any) -> None:
    from sinkgate.hf.anatomy import fingerprint

    meta = plan_of_llama.meta
    assert meta["model"]["fingerprint"] == fingerprint(llama)
    assert meta["model"]["dtype"] == "float32"
    assert meta["versions"]["torch"] == torch.__version__
    assert meta["seconds"] > 0
    assert {"tune", "verify", "length", "bos"} <= set(meta["texts"])


def test_streaming_is_that_of_the_setting(plan_of_llama: sg.Plan, llama: Any) -> None:
    ids = torch.arange(2, 90)[None]
    with torch.no_grad():
        with plan_of_llama.streaming(llama) as cache:
            ours = llama(ids, cache=cache).logits
        with sg.streaming(llama, plan_of_llama.setting.policy, positions=plan_of_llama.setting.positions) as cache:
            assert torch.equal(ours, llama(ids, cache=cache).logits)
        with plan_of_llama.apply(llama):
            assert torch.equal(llama(ids).logits, tiny("llama")(ids).logits), "nothing is done to the weights"


def test_another_model_is_refused(plan_of_llama: sg.Plan) -> None:
    other = tiny("llama", seed=1)
    for use in (plan_of_llama.streaming, plan_of_llama.apply):
        with pytest.raises(RecordError, match="this plan was made for a tiny llama"), use(other):
            pass


def test_the_lines_to_paste_run(plan_of_llama: sg.Plan) -> None:
    code = plan_of_llama.code()
    compile(code, "plan", "exec")
    assert repr(plan_of_llama.setting.policy) in code


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    for name, content in (
        ("a.json", "{}"),
        ("b.json", "[1, 2"),
        ("c.json", '{"format": "sinkgate.diagnosis"}'),
        ("d.json", ""),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(RecordError, match=name):
            sg.Plan.load(tmp_path / name)
    with pytest.raises(RecordError, match="no such file"):
        sg.Plan.load(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (["version"], 2), (["version"], True), (["answer"], "perhaps"), (["setting"], {"policy": "everything", "positions": "slots"}),
        (["setting"], {"policy": "recent(4)"}), (["request"], {"max_increase": -1}), (["request"], {"colour": 1}), (["trials"], [3]),
        (["trials", 0, "state"], "won"), (["trials", 0, "nats"], ["a"]), (["trials", 0, "setting"], None), (["predicted", "bytes"], "many"),
        (["measured"], []), (["measured", "increase"], 3), (["reasons"], [{"a": 1}]), (["meta", "model"], None), (["meta"], {}),
        (["baseline"], 3), (["notes"], "a"),
    ],
)  # fmt: skip
def test_damage_is_one_line(plan_of_llama: sg.Plan, where: list[Any], value: Any) -> None:
    data = copy.deepcopy(json.loads(json.dumps(plan_of_llama.to_json())))
    place: Any = data
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    with pytest.raises(RecordError) as caught:
        sg.Plan.from_json(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
