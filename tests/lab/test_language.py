"""The text task: losses by length, YaRN, needles, pairing, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sinkgate.errors import ArgumentError, TextError
from sinkgate.lab.arms import as_arm
from sinkgate.lab.corpus import Corpus
from sinkgate.lab.decoder import Decoder, DecoderConfig
from sinkgate.lab.loop import train
from sinkgate.lab.recall import ASKED, LENGTH, needle
from sinkgate.lab.tasks import as_task, from_json
from sinkgate.lab.tasks.language import RECIPES, Language

SMALL: dict[str, Any] = {"tokenizer": "bytes", "dim": 16, "layers": 2, "heads": 2, "context": 32, "batch": 4, "held_out": 6,
                         "watched": 2, "dtype": "float32"}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    maker = np.random.default_rng(0)
    words = ["sink", "gate", "surplus", "outlet", "mass", "token", "the", "first", "of", "a"]
    path = tmp_path / "a.txt"
    path.write_text(" ".join(words[i] for i in maker.integers(0, 10, 3000)))
    return str(path)


def test_what_is_found(file: str) -> None:
    spec = Language(texts=(file,), lengths=(1, 2), yarn=True, **SMALL)
    experiment = spec.make(as_arm("softmax"), 0)
    history = train(experiment, spec.loop(40, 1e-2, 0))
    assert history.steps[-1]["loss"] < history.steps[0]["loss"] - 1
    assert history.steps[-1]["tokens"] == 4 * 32 == spec.tokens_per_step
    evaluated = [line for line in history.steps if "held_out" in line]
    assert len(evaluated) == 20
    assert {"first_mass", "sink_rate", "kurtosis"} <= evaluated[0].keys()
    found = experiment.final("test")
    ids = experiment.corpus.held_out("test", 6, 33, bos=True)
    with torch.no_grad():
        want = F.cross_entropy(experiment.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    assert found["loss"] == pytest.approx(want.mean().item(), rel=1e-5)
    assert found["loss_by_position"] == pytest.approx(want.view(6, 32).mean(0).tolist(), rel=1e-4)
    assert found["length"] == [32.0, 64.0]
    long = experiment.corpus.held_out("test", 3, 65, bos=True)
    for name, stretch in (("loss_by_length", 1.0), ("yarn_loss_by_length", 2.0)):
        with torch.no_grad(), experiment.model.stretched(stretch):
            logits = experiment.model(long[:, :-1])[:, -16:]
        want = F.cross_entropy(logits.flatten(0, 1), long[:, -16:].flatten())
        assert found[name][1] == pytest.approx(want.item(), rel=1e-5), name
    assert found["yarn_loss_by_length"][0] == found["loss_by_length"][0]
    assert found["loss_by_length"] != found["yarn_loss_by_length"]
    assert math.isnan(found["recall"])  # a context of 32 has no room for a needle
    assert experiment.final("select")["loss"] != found["loss"]


def test_arms_read_the_same(file: str) -> None:
    spec = Language(texts=(file,), **SMALL)
    a, b = spec.make(as_arm("softmax"), 3), spec.make(as_arm("softpick + g1"), 3)
    assert torch.equal(a.batch(9), b.batch(9))
    assert (a.batch(9)[:, 0] == a.corpus.bos).all()
    assert not (Language(texts=(file,), bos=False, **SMALL).make(as_arm("softmax"), 3).batch(9)[:, 0] == 256).any()
    with torch.autocast("cpu", torch.bfloat16):
        pass
    half = Language(texts=(file,), **{**SMALL, "dtype": "bfloat16"}).make(as_arm("softmax"), 3)
    assert abs(half.loss(half.batch(0), 0)["loss"] - a.loss(a.batch(0), 0)["loss"]) < 0.02
    assert half.model(half.batch(0)).dtype == torch.float32  # the cast is the loss's own


class Copies(torch.nn.Module):
    """Predicts what followed the last two tokens when they stood together before; else token 1."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.p, self.vocab = torch.nn.Parameter(torch.zeros(())), vocab

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(*ids.shape, self.vocab)
        for row, line in enumerate(ids.tolist()):
            for i in range(len(line)):
                pair = line[i - 1 : i + 1]
                before = [j for j in range(1, i) if line[j - 1 : j + 1] == pair]
                out[row, i, line[before[0] + 1] if before and i else 1] = 20.0
        return out

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_needles_are_found_by_a_model_that_copies() -> None:
    maker = np.random.default_rng(0)
    ids = {part: maker.integers(2, 400, 4000).astype(np.uint16) for part in ("train", "select", "test")}
    corpus = Corpus(ids, 401, 400)
    found = needle(Copies(401), corpus, "test", 96, bos=True)  # type: ignore[arg-type]
    assert found["recall"] > 0.9
    assert found["recall_chance"] < 0.1
    assert len(found["recall_by_depth"]) == 5
    nothing = needle(Decoder(DecoderConfig(401, dim=16, heads=2)), corpus, "test", 96, bos=True)
    assert nothing["recall"] < 0.1
    assert LENGTH - ASKED == 6


def test_settings(file: str) -> None:
    spec = Language(texts=(file,), **SMALL)
    assert from_json(spec.to_json()) == spec
    for preset in RECIPES:
        assert Language(preset=preset).loop(None, None, 0).steps == RECIPES[preset]["steps"]
    for wrong, says in (
        ({"preset": "huge"}, "preset must be one of tiny"), ({"dtype": "int8"}, "dtype must be one of"), ({"heads": 3}, "heads must divide"),
        ({"batch": 0}, "batch"), ({"warmup": 1.0}, "warmup"), ({"lengths": (0,)}, "lengths"), ({"texts": "a.txt"}, "list of files"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=says):
            as_task("text", **wrong)


def test_a_tiny_corpus_and_a_vocabulary_that_does_not_fit(file: str, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short a text")
    with pytest.raises(TextError, match="the corpus is too small"):
        as_task("text", texts=(str(tmp_path / "short.txt"),), **SMALL).make(as_arm("softmax"), 0)
    with pytest.raises(ArgumentError, match="vocab=100 is too small for the tokenizer 'bytes', which has 257 entries"):
        as_task("text", texts=(file,), vocab=100, **SMALL).make(as_arm("softmax"), 0)
    assert as_task("text", texts=(file,), vocab=512, **SMALL).make(as_arm("softmax"), 0).config.vocab == 512
