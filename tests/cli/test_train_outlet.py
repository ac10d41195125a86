"""``sinkgate train-outlet`` as a person uses it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkgate as sg
from interventions.planted import planted, texts
from models import tokenizer

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("planted")
    planted().save_pretrained(path / "model")
    tokenizer().save_pretrained(path / "model")
    names = []
    for i, text in enumerate(texts(9)):
        names.append(str(path / f"{i}.txt"))
        Path(names[-1]).write_text(text, encoding="utf-8")
    return {"model": str(path / "model"), "texts": " ".join(names)}


SHORT = ["--tokens", "60", "--burn-in", "12", "--steps", "4", "--samples", "2"]


def test_the_whole_of_it(run: Run, here: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["train-outlet", here["model"], "--data", *here["texts"].split(), *SHORT, "--out", str(out)]
    done = run(*arguments, "--outlet", "sink_logit")
    assert done.code == 0, done.err
    assert "sink_logit on 12 heads" in done.out
    assert "on random heads" in done.out
    assert "Wrote" in done.err
    assert {"sinkgate_outlet.json", "sinkgate_outlet.safetensors", "trained.json", "outlet", "control"} == {
        p.name for p in out.iterdir()
    }
    again = run(*arguments, "--outlet", "sink_logit")
    assert again.code == 1
    assert "resume" in again.err
    assert again.err.count("\n") == 1
    resumed = run(*arguments, "--outlet", "sink_logit", "--resume")
    assert resumed.out == done.out
    model = sg.load(here["model"]).model
    assert sg.load_outlet(model, out).spec == sg.SinkLogit()


def test_json_and_heads(run: Run, here: dict[str, str]) -> None:
    done = run(
        "train-outlet", here["model"], "--data", *here["texts"].split(), *SHORT, "--heads", "0.1", "2.3", "--json",
        "--outlet", "gate", "--no-control", "--lr-multiplier", "2", "--entropy", "-0.01", "--progressive", "20",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["meta"]["heads"] == [[0, 1], [2, 3]]
    assert found["control"] is None
    assert found["meta"]["task"]["entropy"] == -0.01
    assert found["verdict"]


def test_a_model_saved_with_its_outlet_is_diagnosed_with_it(run: Run, here: dict[str, str], tmp_path: Path) -> None:
    loaded = sg.load(here["model"])
    sg.add_outlet(loaded.model, "kv_bias")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    done = run(
        "diagnose", str(tmp_path), "--text", here["texts"].split()[0], "--tokens", "60", "--samples", "1", "--json"
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["unmeasured"] == []


def test_an_interrupt_says_that_it_can_go_on(run: Run, here: dict[str, str], tmp_path: Path, monkeypatch: Any) -> None:
    import sinkgate.lab.train_outlet as module

    def stop(*_a: Any, **_k: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "train", stop)
    done = run("train-outlet", here["model"], "--data", *here["texts"].split(), *SHORT, "--out", str(tmp_path / "out"))
    assert done.code == 130
    assert done.err.strip() == "sinkgate: interrupted; what --out holds stays: go on with --resume"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--outlet", "drain"], "'drain' is not known"),
        (["--heads", "five"], "LAYER.HEAD such as 5.3"),
        (["--heads", "7.0"], "layer 7"),
        (["--resume"], "--out DIR"),
        (["--steps", "0"], "steps must be"),
        (["--lr", "-1"], "lr must be"),
        (["--tokens", "40"], "burn-in of 64"),
        (["--also", "*.nothing"], "no parameter matches"),
        (["--threshold", "0.9999999"], "no head puts more than"),
        (["--data", "/nowhere.txt"], "cannot read the text"),
    ],
)
def test_bad_input_is_one_line(run: Run, here: dict[str, str], arguments: list[str], words: str) -> None:
    given = ["train-outlet", here["model"], "--data", *here["texts"].split(), "--tokens", "90"]
    done = run(*given, *arguments)
    assert done.code == 1
    assert words in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    assert done.out == ""
