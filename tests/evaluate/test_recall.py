"""Recall texts: every distance, answer and chance level checked by reading the text again with regular expressions."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from models import tokenizer as tiny_tokenizer
from sinkgate.errors import ArgumentError, NonFiniteError, RecordError
from sinkgate.evaluate.needles import common_words, multi_key, single_needle, variable_tracking
from sinkgate.evaluate.recall import (
    Outcome,
    RecallResult,
    RecallText,
    distance_grid,
    score,
    stream_recall,
    wilson,
    words_found,
)

SHORTEST = 8  # more than a shortest line of any tokenizer here leaves open


class Words:
    """One token per match, learnt as it comes; by default a word between spaces."""

    def __init__(self, pattern: str = r"\S+", join: str = " ") -> None:
        self.pattern, self.join, self.ids = pattern, join, dict[str, int]()

    def __call__(self, text: str) -> list[int]:
        return [self.ids.setdefault(x, len(self.ids)) for x in re.findall(self.pattern, text)]

    def decode(self, ids: list[int]) -> str:
        known = list(self.ids)
        return self.join.join(known[i] for i in ids)


@cache
def bpe(kind: str) -> Tokenizer:
    """A small BPE: byte-level with merged digits, with single digits, or with SentencePiece's spaces."""
    corpus = [stream_recall(Words(), distances=[40, 200], per_distance=20, seed=s).text for s in range(3)]
    tokenizer = Tokenizer(models.BPE())
    if kind == "spaces":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    else:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if kind == "digits" else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
    alphabet = [chr(i) for i in range(33, 127)] if kind == "spaces" else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=[*alphabet, "▁", "\n"], show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    if (
        kind == "spaces"
    ):  # as the older SentencePiece models do: one space more before every text, whatever it begins with
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


TOKENIZERS = ("words", "bytes", "digits", "spaces")


def make(name: str) -> Any:
    return Words() if name == "words" else bpe(name)


def oracle(tokenizer: Any, visible: list[int]) -> str | None:
    """Reads the question at the end and looks the code up in what is visible."""
    text = tokenizer.decode(visible)
    key = re.search(r"Remember: the code of the (\w+ \w+) is\s*$", text)
    found = key and re.findall(rf"The code of the {key[1]} is\s+(\d+)", text)
    return found[-1] if found else None


def answer(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return tokenizer.decode(list(ids)).strip()


def check_stream(tokenizer: Any, text: RecallText) -> None:
    """Everything a stream promises, from its ids alone."""
    seen = set()
    for q in text.questions:
        prompt = text.ids[: q.position]
        n = len(q.answer_ids)
        assert text.ids[q.position : q.position + n] == list(q.answer_ids)
        places = [i for i in range(len(prompt) - n + 1) if tuple(prompt[i : i + n]) == q.answer_ids]
        assert len(places) == 1, "an answer stands once before its question: in the fact"
        assert q.position - (places[0] + n) == q.distance
        assert q.fact[1] == places[0] + n
        assert q.answer_ids not in seen
        seen.add(q.answer_ids)
        code = answer(tokenizer, q.answer_ids)
        assert oracle(tokenizer, prompt) == code
        assert tokenizer.decode(text.ids[q.fact[0] : q.fact[1]]).lstrip().startswith("The code of")
        if q.kind == "warm":
            continue
        read = tokenizer.decode(prompt)
        stated = set(re.findall(r"The code of the \w+ \w+ is\s+(\d+)", read))
        asked = set(re.findall(r"Remember: the code of the \w+ \w+ is\s+(\d+)", read))
        assert q.chance == pytest.approx(1 / len(stated - asked))
        assert q.latest == (re.findall(r"\d+", read)[-1] == code)
    assert [q.position for q in text.questions] == sorted(q.position for q in text.questions)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stream_is_what_it_says(name: str) -> None:
    tokenizer = make(name)
    text = stream_recall(tokenizer, window=128, per_distance=6, seed=3)
    check_stream(tokenizer, text)
    assert [q.kind for q in text.questions[:3]] == ["warm", "warm", "stream"]
    assert Counter(q.aim for q in text.scored) == dict.fromkeys(distance_grid(128), 6)
    assert max(q.chance for q in text.scored) <= 0.1
    for q in text.scored:
        assert q.aim is not None
        assert q.distance <= max(q.aim, 64)
        assert q.aim - q.distance < SHORTEST, "only what no line fills is missing"


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("window", [64, 100])
def test_an_oracle_with_a_window_falls_off_its_edge(name: str, window: int) -> None:
    tokenizer = make(name)
    text = stream_recall(tokenizer, window=window, per_distance=10, seed=1)
    for q in text.scored:
        visible = text.ids[max(0, q.position - window) : q.position]
        fact = q.fact[1] - q.fact[0]
        assert (oracle(tokenizer, visible) is not None) == (q.distance + fact <= window)


def test_the_score_shows_the_cliff_and_mixes_no_sides() -> None:
    tokenizer, window = make("bytes"), 128
    text = stream_recall(tokenizer, distances=[*range(90, 132, 2), 300], per_distance=3, seed=5)
    predicted = [list(q.answer_ids) if q.reach <= window else [0] * len(q.answer_ids) for q in text.questions]
    logs = [[-0.5] * len(q.answer_ids) for q in text.questions]
    result = score(text, predicted, logs, window=window, edges=[110])
    assert result.accuracy("inside")[0] == 1
    assert result.accuracy("outside")[0] == result.accuracy("across")[0] == 0
    assert sum(b.n for b in result.bins) == len(text.scored) == len(result.outcomes)
    for b in result.bins:
        assert b.accuracy == (b.place == "inside")
        assert b.high <= window if b.place != "outside" else b.low >= window
        assert b.logprob == pytest.approx(-0.5)
    assert {b.low for b in result.bins} == {0, 110, 128}
    assert {b.place for b in result.bins if b.low == 0} == {"inside", "across"}, "one bin's edge, two rows"
    order = [(b.low, ("inside", "across", "outside").index(b.place)) for b in result.bins]
    assert order == sorted(order)
    table = str(result)
    assert all(word in table for word in ("inside", "across", "outside", "chance", "log-prob"))
    assert len(table.splitlines()) == len(result.bins) + 3
    assert RecallResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert len(result.merge(result).outcomes) == 2 * len(text.scored)


def test_places_follow_the_rows_a_window_lets_through() -> None:
    text = stream_recall(make("digits"), distances=[60], per_distance=20)
    for q, window in itertools.product(text.scored, range(40, 100)):
        fact = set(range(*q.fact))
        seen = [
            set(range(i - window + 1, i + 1)) & fact for i in range(q.position - 1, q.position - 1 + len(q.answer_ids))
        ]
        expected = "inside" if all(s == fact for s in seen) else "across" if any(seen) else "outside"
        outcome = Outcome(q.kind, q.distance, q.reach, True, 0.0, q.chance, q.blind, q.latest)
        assert RecallResult((outcome,), window).place(outcome) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_seeds(name: str) -> None:
    tokenizer = make(name)
    first, again, other = (stream_recall(tokenizer, distances=[50], per_distance=5, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first.ids != other.ids
    for task in (single_needle, multi_key, variable_tracking, common_words):
        first, again, other = (task(tokenizer, length=900, seed=s) for s in (1, 1, 2))
        assert first == again
        assert first.ids != other.ids


def test_answers_begin_behind_a_space_that_stands_alone() -> None:
    digits = stream_recall(make("digits"), distances=[40], per_distance=5)
    assert {len(q.answer_ids) for q in digits.questions} == {5}
    merges = Words(r"(?s) 1[02-9]|.", "")  # a space stands alone, except before some codes
    text = stream_recall(merges, distances=[40, 90], per_distance=20)
    check_stream(merges, text)
    assert {answer(merges, q.answer_ids)[0] == "1" for q in text.scored} == {True, False}
    assert all(re.fullmatch(r"\d{5}", answer(merges, q.answer_ids)) for q in text.scored)


def test_no_second_space_where_a_tokenizer_brings_its_own() -> None:
    tokenizer = make("spaces")
    assert "  5" in tokenizer.decode(tokenizer.encode(" 5").ids)
    text = tokenizer.decode(stream_recall(tokenizer, distances=[40], per_distance=5).ids)
    assert re.search(r"is \d{5}", text)
    assert "is  " not in text


@pytest.mark.parametrize("name", TOKENIZERS)
def test_filler_leaves_little_open(name: str) -> None:
    text = stream_recall(make(name), distances=[90, 300], per_distance=40)
    missing = [q.aim - q.distance for q in text.scored if q.aim]
    assert sum(missing) / len(missing) < 0.5


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(TOKENIZERS),
    st.integers(0, 2**32),
    st.lists(st.integers(1, 700), min_size=1, max_size=5, unique=True),
    st.integers(1, 4),
    st.integers(0, 4),
    st.floats(0, 3),
)
def test_any_stream_keeps_its_promises(
    name: str, seed: int, distances: list[int], per: int, decoys: int, filler: float
) -> None:
    tokenizer = make(name)
    text = stream_recall(
        tokenizer, distances=distances, per_distance=per, decoys=decoys, filler=filler, seed=seed, prefix=[0]
    )
    check_stream(tokenizer, text)
    assert Counter(q.aim for q in text.scored) == dict.fromkeys(distances, per)
    assert text.ids[0] == 0
    for q in text.scored:
        assert q.aim is not None
        assert -SHORTEST < q.distance - q.aim <= max(0, 40 - q.aim), "late only where the question itself is longer"


def test_a_given_length_is_kept_and_filled() -> None:
    tokenizer = make("bytes")
    text = stream_recall(tokenizer, distances=[20, 400], per_distance=5, length=6000)
    assert 6000 - SHORTEST < len(text.ids) <= 6000
    check_stream(tokenizer, text)
    places = [q.position for q in text.scored]
    assert places[0] < 2000
    assert places[-1] > 4000
    assert max(b - a for a, b in itertools.pairwise(places)) < 3000


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("keys", [1, 5])
def test_needles(name: str, depth: float, keys: int) -> None:
    tokenizer = make(name)
    text = multi_key(tokenizer, length=1000, depth=depth, keys=keys, seed=7)
    if keys == 1:
        assert text == single_needle(tokenizer, length=1000, depth=depth, seed=7)
    assert 1000 - SHORTEST < len(text.ids) <= 1000
    check_stream(tokenizer, text)
    (q,) = text.scored
    assert q.kind == ("multikey" if keys > 1 else "single")
    begin, end = text.questions[0].position, q.position
    assert (q.fact[0] - begin) / (end - begin) == pytest.approx(depth, abs=0.12)
    assert len(re.findall("The code", text.text)) == keys + 1


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(("hops", "chains"), [(0, 1), (1, 3), (4, 2)])
def test_variables_follow_from_the_text(name: str, hops: int, chains: int) -> None:
    tokenizer = make(name)
    text = variable_tracking(tokenizer, length=900, hops=hops, chains=chains, seed=2)
    assert 900 - SHORTEST < len(text.ids) <= 900
    for q in text.questions:
        read = tokenizer.decode(text.ids[: q.position])
        known: dict[str, str] = {}
        values = []
        for to, what in re.findall(r"Set (\w+) =\s+(\w+)", read):
            known[to] = known.get(what, what)
            values += [what] if what.isdigit() else []
        asked = re.search(r"the value of (\w+)\? Answer:\s*$", read)
        assert asked
        assert known[asked[1]] == answer(tokenizer, q.answer_ids)
        fact = tokenizer.decode(text.ids[slice(*q.fact)])
        assert re.fullmatch(r"\s*Set \w+ =\s+\d+", fact)
        assert fact.split()[-1] == known[asked[1]]
        assert q.latest == (values[-1] == known[asked[1]])
    (q,) = text.scored
    assert q.chance == 1 / chains
    assert len(set(known.values())) == chains + 1


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(("length", "common"), [(150, 1), (700, 3), (3000, 10)])
def test_common_words_are_the_most_frequent(name: str, length: int, common: int) -> None:
    tokenizer = make(name)
    text = common_words(tokenizer, length=length, common=common, seed=4)
    assert len(text.ids) <= length
    assert len(text.ids) > length - 60
    first, *_ = text.scored
    listed = re.findall(r"\w+", tokenizer.decode(text.ids[slice(*first.fact)]).split("List:")[1])
    ranked = Counter(listed).most_common()
    assert [w for w, _ in ranked[:common]] == [answer(tokenizer, q.answer_ids) for q in text.scored]
    counts = [n for _, n in ranked]
    assert all(a > b for a, b in itertools.pairwise(counts[:common]))
    assert counts[common - 1] >= 2 * counts[common]
    backwards = [i for q in reversed(text.scored) for i in q.answer_ids]
    assert words_found(text, backwards) == 1
    assert words_found(text, text.scored[0].answer_ids) == pytest.approx(1 / common)
    assert words_found(text, []) == 0


def test_wilson() -> None:
    for right, n in [(0, 1), (1, 1), (3, 10), (50, 100), (999, 1000)]:
        expected = binomtest(right, n).proportion_ci(method="wilson")
        assert wilson(right, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_grid() -> None:
    assert distance_grid(64) == (16, 32, 64, 128, 256)
    assert distance_grid(1)[-1] == 4
    assert distance_grid(1024, 2)[-1] == 4096
    assert len(distance_grid(1024, 2)) == 17


@pytest.mark.parametrize(
    "options",
    [
        {}, {"distances": []}, {"window": 0}, {"window": 2.5}, {"distances": [0]}, {"distances": [16, "x"]},
        {"window": 0, "distances": [16]}, {"distances": [500], "length": 500}, {"distances": [20], "length": 200},
        {"distances": [20], "per_distance": 0}, {"distances": [20], "decoys": -1}, {"distances": [20], "warm": True},
        {"distances": [20], "filler": math.nan}, {"distances": [20], "filler": "much"}, {"distances": [20], "digits": 0},
        {"distances": [20], "digits": 1}, {"distances": [20], "per_distance": 10**6}, {"distances": [20], "length": 0},
    ],
)  # fmt: skip
def test_streams_refuse_in_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as err:
        stream_recall(make("bytes"), **options)
    assert "\n" not in str(err.value)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (single_needle, {"length": 20}), (single_needle, {"length": 500, "depth": 1.5}), (multi_key, {"length": "x"}),
        (multi_key, {"length": 500, "keys": 0}), (multi_key, {"length": 100, "keys": 50}),
        (variable_tracking, {"length": 30}), (variable_tracking, {"length": 900, "hops": 80}),
        (variable_tracking, {"length": 900, "hops": -1}), (variable_tracking, {"length": 900, "digits": 10}),
        (common_words, {"length": 40}), (common_words, {"length": 900, "common": 0}),
    ],
)  # fmt: skip
def test_needles_refuse_in_one_line(task: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError) as err:
        task(make("bytes"), **options)
    assert "\n" not in str(err.value)


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), "a name", 3, lambda text: []])
def test_a_tokenizer_that_cannot_tell_facts_apart_is_refused(tokenizer: Any) -> None:
    for task in (lambda: stream_recall(tokenizer, distances=[40]), lambda: common_words(tokenizer, length=500),
                 lambda: variable_tracking(tokenizer, length=500)):  # fmt: skip
        with pytest.raises(ArgumentError, match="tokenizer"):
            task()


def test_scores_refuse_what_does_not_fit() -> None:
    text = stream_recall(make("bytes"), distances=[40], per_distance=2)
    said = [list(q.answer_ids) for q in text.questions]
    logs = [[-1.0] * len(q.answer_ids) for q in text.questions]
    score(text, said, logs)
    with pytest.raises(ArgumentError, match="4 questions"):
        score(text, said[1:], logs)
    with pytest.raises(ArgumentError, match="question 0"):
        score(text, [said[0][1:], *said[1:]], logs)
    with pytest.raises(ArgumentError, match="over 0"):
        score(text, said, [[0.5] * len(logs[0]), *logs[1:]])
    with pytest.raises(NonFiniteError):
        score(text, said, [[math.nan] * len(logs[0]), *logs[1:]])
    for options in ({"window": 0}, {"edges": [-1]}, {"edges": [0.5]}):
        with pytest.raises(ArgumentError):
            score(text, said, logs, **options)
    with pytest.raises(ArgumentError, match="different windows"):
        score(text, said, logs, window=8).merge(score(text, said, logs))
    with pytest.raises(ArgumentError, match="no question"):
        score(text, said, logs, window=4096).accuracy("outside")
    only_warm = RecallText(text.ids, text.questions[:2], text.text)
    with pytest.raises(ArgumentError, match="solved examples"):
        score(only_warm, said[:2], logs[:2])


def test_damaged_results_are_refused() -> None:
    good = RecallResult((Outcome("stream", 3, 9, True, -0.1, 0.1, 0.001, False),), 8, (4,)).to_json()
    assert RecallResult.from_json(good).to_json() == good
    for bad in ([], {}, {**good, "version": 9}, {**good, "window": 0}, {**good, "outcomes": [{}]}, {**good, "edges": 3},
                {k: v for k, v in good.items() if k != "outcomes"}):  # fmt: skip
        with pytest.raises(RecordError):
            RecallResult.from_json(bad)
