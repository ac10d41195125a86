"""``sinkgate advise``: one page, from the three records it is made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from planned import TEXTS

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.cli import main
from sinkgate.errors import ArgumentError


@pytest.fixture(scope="module")
def advice(llama: Any) -> Any:
    return sg.advise(llama, tokenizer(), TEXTS, max_increase=0.5, context=128, name="a tiny llama")


def test_the_page(advice: Any) -> None:
    text = str(advice)
    for title in (
        "What the heads of a tiny llama do",
        "What evicting the sink would do",
        "What fewer bits would do",
        "What to keep",
        "To paste:",
    ):
        assert title in text
    assert advice.record.verdict()[0] in text
    assert advice.effects.verdict()[0] in text
    assert advice.plan.code().splitlines()[-1] in text
    if not advice.plan.setting.dense:
        assert advice.plan.setting.policy in text
        assert "of the perplexity" in text


def test_the_records_speak_of_one_model(advice: Any, llama: Any) -> None:
    from sinkgate.hf.anatomy import fingerprint

    mark = fingerprint(llama)
    assert advice.record.meta["model"]["fingerprint"] == advice.effects.meta["model"]["fingerprint"] == mark
    assert advice.plan.meta["model"]["fingerprint"] == mark
    assert [row.label for row in advice.effects.rows if row.kind == "act"] == ["evict"]


def test_what_it_keeps(advice: Any, tmp_path: Path) -> None:
    advice.save(tmp_path / "advice")
    assert {"record.json", "effects.json", "plan.json"} <= {p.name for p in (tmp_path / "advice").iterdir()}
    assert sg.Plan.load(tmp_path / "advice" / "plan.json").setting == advice.plan.setting
    assert sg.Effects.load(tmp_path / "advice" / "effects.json").verdict() == advice.effects.verdict()
    assert sg.Diagnosis.load(tmp_path / "advice").verdict() == advice.record.verdict()
    assert json.loads(json.dumps(advice.to_json()))["code"] == advice.plan.code()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    tiny("llama").save_pretrained(tmp_path / "model")
    tokenizer(bos=True).save_pretrained(tmp_path / "model")
    files = []
    for i, text in enumerate(TEXTS):
        files.append(str(tmp_path / f"{i}.txt"))
        Path(files[-1]).write_text(text)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    asked = ["advise", str(tmp_path / "model"), "--text", *files, "--max-ppl-increase", "50%", "--context", "128"]
    assert main([*asked, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "What to keep" in out
    assert {"report.html", "plan.json", "record.json", "effects.json"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert "import sinkgate as sg" in (tmp_path / "out" / "report.html").read_text()


def test_what_it_refuses(llama: Any) -> None:
    with pytest.raises(ArgumentError, match="needs its tokenizer"):
        sg.advise(llama)
    with pytest.raises(ArgumentError, match="above 0"):
        sg.advise("nowhere", max_increase=0.0)
    with pytest.raises(ArgumentError, match="effort must be one of"):
        sg.advise("nowhere", effort="none")
