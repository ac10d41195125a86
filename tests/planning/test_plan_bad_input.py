"""What a plan refuses, in one line that says what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned import ASKED, TEXTS

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.errors import ArgumentError, RecordError, SinkgateError, TextError, UnsupportedError


def refused(kind: type[SinkgateError], words_: str, **given: Any) -> str:
    model = given.pop("model", None) or tiny("llama")
    texts = given.pop("texts", TEXTS)
    with pytest.raises(kind) as caught:
        sg.plan(model, tokenizer(), texts, **{**ASKED, **given})
    text = str(caught.value)
    assert words_ in text, text
    assert "\n" not in text
    return text


def test_an_impossible_budget_says_the_least_possible() -> None:
    text = refused(ArgumentError, "the least that LlamaForCausalLM can do with is", budget=300, max_increase=None)
    least = int(text.split("(")[1].split(" bytes")[0].replace(",", ""))
    p = sg.plan(tiny("llama"), tokenizer(), TEXTS, **{**ASKED, "budget": least, "max_increase": None})
    assert p.predicted["bytes"] <= least
    refused(ArgumentError, "cannot be met", budget=least - 1, max_increase=None)
    refused(ArgumentError, "cannot be met", budget=2 * least - 1, batch=2, max_increase=None)


@pytest.mark.parametrize("tolerance", [0, -0.01, 0.0])
def test_no_tolerance_or_less(tolerance: float) -> None:
    refused(ArgumentError, "Give a tolerance above 0, such as 1%", max_increase=tolerance)


def test_text_shorter_than_the_window() -> None:
    text = refused(TextError, "the text is too short", texts=[words(40)])
    assert "6 pieces of 128 tokens, 768 tokens in all (there are 0, the longest has 40)" in text


def test_too_few_texts() -> None:
    refused(TextError, "there are 3", texts=[words(128 * 3)])


def test_an_empty_text() -> None:
    refused(TextError, "the text is empty", texts=[""])


def test_a_record_of_another_model() -> None:
    record = sg.diagnose(tiny("llama", seed=5), tokenizer(), TEXTS[:2], tokens=64, samples=2)
    refused(RecordError, "the record is of another model", record=record)


def test_a_record_with_too_little_in_it() -> None:
    record = sg.diagnose(tiny("llama"), tokenizer(), TEXTS[:2], tokens=64, samples=2, detail="keys")
    refused(RecordError, "needs a record of detail 'full'", record=record)


def test_a_goal_that_nothing_holds() -> None:
    for goal in ("memory", "latency"):
        refused(
            ArgumentError, "without a tolerance would keep nothing at all", budget=20_000, max_increase=None, goal=goal
        )


def test_a_loaded_model_without_its_tokenizer() -> None:
    with pytest.raises(ArgumentError, match="needs its tokenizer"):
        sg.plan(tiny("llama"), max_increase=0.1)


def test_a_model_whose_attention_is_not_found() -> None:
    import torch

    with pytest.raises((UnsupportedError, ArgumentError)) as caught:
        sg.plan(torch.nn.Linear(3, 3), tokenizer(), TEXTS, **ASKED)
    assert "\n" not in str(caught.value)


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    text = refused(UnsupportedError, "pip install 'sinkgate[plan]'", folder=tmp_path)
    assert "Optuna" in text
