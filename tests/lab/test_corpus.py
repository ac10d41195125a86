"""Texts → ids: the three parts, tokenizers, sampling, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sinkgate.errors import ArgumentError, TextError
from sinkgate.lab.corpus import EVERY, STRETCH, read_corpus

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "mix",
    "jugs",
    "of",
    "ink",
]


def text(path: Path, characters: int, seed: int = 0) -> str:
    maker = np.random.default_rng(seed)
    content = " ".join(WORDS[i] for i in maker.integers(0, len(WORDS), characters // 4))[:characters]
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_parts_are_stretches_and_nothing_is_lost(tmp_path: Path) -> None:
    name = text(tmp_path / "a.txt", 25 * STRETCH)
    content = Path(name).read_text()
    corpus = read_corpus([name])
    stretches = [content[i : i + STRETCH] for i in range(0, len(content), STRETCH)]
    want = {
        "select": [s for i, s in enumerate(stretches) if i % EVERY == EVERY - 2],
        "test": [s for i, s in enumerate(stretches) if i % EVERY == EVERY - 1],
        "train": [s for i, s in enumerate(stretches) if i % EVERY < EVERY - 2],
    }
    for part, of in want.items():
        assert bytes(corpus.ids[part].astype(np.uint8)).decode() == "".join(of)
    assert corpus.vocab == 257
    assert corpus.about["tokens"] == {part: sum(map(len, of)) for part, of in want.items()}


def test_a_small_text_still_has_three_parts(tmp_path: Path) -> None:
    corpus = read_corpus([text(tmp_path / "a.txt", 2000)])
    assert [len(corpus.ids[p]) for p in ("train", "select", "test")] == [1800, 100, 100]


def test_a_trained_tokenizer_is_lossless_and_sees_the_training_part_alone(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    name = text(tmp_path / "a.txt", 4000)
    whole = Path(name).read_text()
    corpus = read_corpus([name], "bpe:300", cache=tmp_path / "kept")
    kept = list((tmp_path / "kept").iterdir())
    assert len(kept) == 1
    found = Tokenizer.from_file(str(kept[0]))
    assert found.get_vocab_size() == corpus.vocab <= 300
    assert found.decode(corpus.ids["train"].tolist()) == whole[:3600]
    assert found.decode(corpus.ids["test"].tolist()) == whole[3800:]
    assert len(corpus.ids["train"]) < 3600 / 2
    again = read_corpus([name], "bpe:300", cache=tmp_path / "kept")
    assert all(np.array_equal(again.ids[p], corpus.ids[p]) for p in corpus.ids)
    with Path(name).open("r+") as f:  # another test part: the same tokenizer
        f.seek(3900)
        f.write("Z" * 50)
    read_corpus([name], "bpe:300", cache=tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 1
    given = read_corpus([name], str(kept[0]))
    assert given.vocab == corpus.vocab
    assert given.bos == corpus.bos == 0


def test_samples_are_a_function_of_seed_and_step(tmp_path: Path) -> None:
    corpus = read_corpus([text(tmp_path / "a.txt", 5000)])
    a = corpus.sample(4, 32, 1, 7, bos=False)
    assert torch.equal(a, corpus.sample(4, 32, 1, 7, bos=False))
    assert not torch.equal(a, corpus.sample(4, 32, 1, 8, bos=False))
    assert not torch.equal(a, corpus.sample(4, 32, 2, 7, bos=False))
    train = corpus.ids["train"].tolist()
    for row in a.tolist():
        assert any(train[i : i + 32] == row for i in range(len(train)))
    with_bos = corpus.sample(4, 32, 1, 7, bos=True)
    assert (with_bos[:, 0] == corpus.bos).all()
    assert torch.equal(with_bos[:, 1:], a[:, :-1])
    held = corpus.held_out("test", 3, 50, bos=False)
    test = torch.from_numpy(corpus.ids["test"].astype(np.int64))
    assert torch.equal(held[0], test[:50])
    assert torch.equal(held[-1], test[-50:])


def test_what_is_refused(tmp_path: Path) -> None:
    small = text(tmp_path / "small.txt", 300)
    (tmp_path / "binary").write_bytes(b"ab\0cd")
    (tmp_path / "latin").write_bytes("é".encode("latin-1") * 9)
    (tmp_path / "empty").write_text(" \n")
    for names, says in (
        (["nowhere.txt"], "cannot read the text 'nowhere.txt'"), ([str(tmp_path / "binary")], "binary"),
        ([str(tmp_path / "latin")], "not UTF-8"), ([str(tmp_path / "empty")], "is empty"),
    ):  # fmt: skip
        with pytest.raises(TextError, match=says):
            read_corpus(names)
    with pytest.raises(TextError, match="the corpus is too small: its part 'select' has 15 tokens and 129 are needed"):
        read_corpus([small], least=129)
    with pytest.raises(TextError, match="too few for one sequence"):
        read_corpus([small]).held_out("test", 1, 64, bos=True)
    for tokenizer in ("bpe:12", "bpe:many", str(tmp_path), str(tmp_path / "empty")):
        with pytest.raises(ArgumentError, match=r"tokenizer|bpe"):
            read_corpus([small], tokenizer)
