"""Every sentence of the pages, and every one that they have from Python, is known in Chinese."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.errors import ArgumentError
from sinkgate.record import Diagnosis
from sinkgate.report.chinese import KEPT, VERDICT, say, translated
from sinkgate.report.html import page_sources
from sinkgate.report.payload import payload
from sinkgate.report.summary import verdict
from sinkgate.schema import HEAD_KINDS
from studio.wording import book, sentences

SOURCES = {name: text for name, text in page_sources().items() if not name.endswith("zh.js")}
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def places(sentence: str) -> set[str]:
    return set(re.findall(r"\{(\w+)", sentence))


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_page_says_is_known_in_chinese(name: str) -> None:
    known = book()
    said = list(sentences(SOURCES[name]))
    assert [sentence for sentence in said if sentence not in known] == []
    for sentence in said:
        assert places(known[sentence]) <= places(sentence), sentence


def test_the_scan_sees_choices_and_lists() -> None:
    source = 't("a, b"); tn(n === 1 ? "one" : "many", { k: t("in\\"ner") }); want("no"); [t("c")]; x.t("not"); t(x === "kind" ? "d" : y)'
    assert list(sentences(source)) == ["a, b", "one", "many", 'in"ner', "c", "d"]


def details() -> Iterator[Diagnosis]:
    q = torch.randn(2, 2, 80, 8, generator=torch.Generator().manual_seed(1))
    for detail in ("first", "keys", "full"):
        yield sg.measure(q, q, q, detail=detail)
    yield sg.measure(q, q, q, sink_logit=torch.ones(2), window=16, output_weight=torch.ones(16, 16))
    yield sg.measure(q[:1], q[:1], q[:1])


def handed(d: Diagnosis) -> Iterator[str]:
    """The sentences of a payload that the page translates by itself."""
    found = payload(d)
    for metric in found["metrics"]:
        yield metric["label"]
        yield metric["help"]
        if metric["unit"] not in ("", "×"):
            yield metric["unit"]
    yield found["settings"]["detail"]
    for row in found["summary"]["rows"]:
        yield row["label"]
    reasons = {layer["write_reason"] for layer in found["layers"]}
    for head in found["heads"].values():
        for label, _, _, note, *_ in head["values"]:
            yield label
            if note and note not in reasons:
                yield note
        for key in head["keys"]:
            yield key["kind"]
    for sink in found["sinks"]:
        yield sink["kind"]


def test_every_label_help_and_note_of_a_payload_is_known_in_chinese() -> None:
    known, said = book(), {sentence for d in details() for sentence in handed(d)}
    assert {"sink rate", "learned sink mass", "one sample: no interval", "first"} <= said  # the cases are really there
    assert sorted(said - set(known)) == []
    assert [
        kind for kind in (*HEAD_KINDS, "bos", "first", "delimiter", "other", "secondary") if kind not in known
    ] == []


def test_the_verdict_is_the_same_in_both_languages() -> None:
    for d in details():
        english, chinese = verdict(d), verdict(d, "zh")
        assert english == d.verdict()
        assert len(english) == len(chinese)
        for line, other in zip(english, chinese, strict=True):
            assert CHINESE.search(other)
            plain = re.sub(r"1/\(1 − p\)|95%", "", line), re.sub(r"1/\(1 − p\)|95%", "", other)
            numbers = [sorted(re.findall(r"\d[\d,.]*\d|\d", re.sub(r"\b1 other", "", text))) for text in plain]
            assert [n for n in numbers[0] if n not in numbers[1]] == []
    with pytest.raises(ArgumentError, match="'fr'"):
        verdict(next(details()), "fr")


@pytest.mark.parametrize("book", [VERDICT, KEPT])
def test_python_templates_name_the_same_places(book: dict[str, str]) -> None:
    for english, chinese in book.items():
        assert re.findall(r"\{[^}]*\}", chinese) == [] or places(chinese) == places(english), english


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_oss", "gemma3"])
def test_what_a_real_record_keeps_is_known_in_chinese(name: str) -> None:
    d = sg.diagnose(tiny(name), tokenizer(), [words(100)], tokens=40, samples=1)
    found: dict[str, Any] = payload(d)
    kept = [*found["verdict"], *found["notes"], found["title"], found["settings"]["bos"]]
    kept += [layer[why] for layer in found["layers"] for why in ("reason", "write_reason") if layer[why]]
    assert [text for text in kept if not CHINESE.search(found["chinese"].get(text, ""))] == []


def test_reasons_are_taken_apart_and_unknown_ones_left() -> None:
    reason = (
        "what model.layers.0.self_attn writes goes through Fancy, which is neither a norm with a plain gain nor linear"
    )
    assert translated(reason) == KEPT[
        reason.replace("model.layers.0.self_attn", "{layer}").replace("Fancy", "{norm}")
    ].format(layer="model.layers.0.self_attn", norm="Fancy")
    assert translated("an act of one's own") is None
    assert say("en", "{mean:.3f} on average", mean=0.5) == "0.500 on average"
