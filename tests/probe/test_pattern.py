"""A few rows of weights, without the matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sinkgate as sg
from models import CONFIGS, tiny, tokenizer, words
from reference import SEEN, statistics
from sinkgate.errors import ArgumentError, TextError


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_equal_eager(name: str) -> None:
    model, tok, text = tiny(name), tokenizer(), words(60)
    queries = [0, 3, 30, -1]
    p = sg.pattern(model, tok, text, layer=2, head=4, queries=queries)
    statistics(model, torch.tensor([tok(text)["input_ids"]]))
    whole = SEEN[-1]["weights"][0, 4].double().numpy()
    np.testing.assert_allclose(p.weights, whole[[0, 3, 30, 59]], atol=1e-6)
    np.testing.assert_allclose(p.learned, 1 - whole[[0, 3, 30, 59]].sum(1), atol=1e-6)
    assert p.queries == [0, 3, 30, 59]
    assert p.tokens == text.split()
    assert p.top(1)[0] == [(0, p.tokens[0], pytest.approx(float(whole[0, 0]), abs=1e-6))]


def test_the_last_query_by_default() -> None:
    p = sg.pattern(tiny("llama"), tokenizer(), words(30), 0, 0)
    assert p.queries == [29]
    assert p.weights.shape == (1, 30)
    assert p.weights.sum() == pytest.approx(1, abs=1e-5)


def test_bad_requests() -> None:
    model, tok = tiny("qwen3_next"), tokenizer()
    with pytest.raises(ArgumentError, match="layer must be between 0 and 2, got 3"):
        sg.pattern(model, tok, words(30), 3, 0)
    with pytest.raises(ArgumentError, match="head must be between 0 and 5, got 6"):
        sg.pattern(model, tok, words(30), 1, 6)
    with pytest.raises(ArgumentError, match="layer 0 cannot be measured"):
        sg.pattern(model, tok, words(30), 0, 0)
    with pytest.raises(ArgumentError, match="within the 30 tokens"):
        sg.pattern(model, tok, words(30), 1, 0, [30])
    with pytest.raises(TextError, match="empty"):
        sg.pattern(model, tok, "", 1, 0)
