"""A window with and without kept tokens against dense masks; a folded sink's table against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinkgate as sg
from interventions.test_acts import Largest, softmax, under_dense
from models import tiny, tokenizer, words
from sinkgate.call import ROWS, Call
from sinkgate.errors import ArgumentError, TextError
from sinkgate.evaluate.score import score
from sinkgate.hf.anatomy import forward


def ids(length: int = 40) -> Tensor:
    return torch.randint(0, 96, (1, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("keep", [0, 1, 4])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
def test_against_dense_masks(name: str, keep: int) -> None:
    def change(_l: int, _a: Tensor, s: Tensor, _k: Tensor, v: Tensor, _w: Any, sinks: Tensor | None) -> Tensor:
        i = torch.arange(s.shape[-1])
        seen = (i[:, None] - i < 9) | (i < keep)
        return softmax(s.masked_fill(~seen, -1e30), sinks) @ v

    model, x = tiny(name, dtype=torch.float64), ids()
    with torch.no_grad(), sg.acting(model, sg.Window(9, keep)):
        got = forward(model, x)
    torch.testing.assert_close(got, under_dense(model, change, x), rtol=1e-5, atol=1e-5)


def test_decoding_and_padding() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    padded = torch.cat([torch.ones(1, 6, dtype=torch.long), x], 1)
    mask = torch.ones_like(padded)
    mask[:, :6] = 0
    with torch.no_grad(), sg.acting(model, sg.Window(7, 2)):
        whole = forward(model, x)
        out = model(x[:, :12], use_cache=True)
        logits = [out.logits]
        for i in range(12, 30):
            out = model(x[:, i : i + 1], cache=out.past_key_values, use_cache=True)
            logits.append(out.logits)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        left = model(padded, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, 6:]
    torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(left, whole, rtol=1e-8, atol=1e-8)


def test_memory() -> None:
    t = 2048
    q, k, v = (torch.randn(1, 2, t, 8) for _ in range(3))
    with Largest(None) as seen:
        sg.Window(100, 2).attend(Call(0, q, k, v, sg.Softmax()), Call.run)
    assert seen.numel <= 2 * ROWS * t


def test_the_table_of_a_folded_sink() -> None:
    model, tok = tiny("llama"), tokenizer()
    texts = [words(300, i) for i in range(6)]
    found, fold = sg.fold_sink(model, tok, texts, tokens=60, window=20, samples=3, burn_in=10)
    assert fold.tokens == ["<s>"]
    assert found.parameters == fold.parameters == 3 * 2 * 2 * 8
    plain = tiny("llama")
    for i in range(3):
        piece = torch.tensor(tok(texts[i], add_special_tokens=False)["input_ids"][:60])
        with torch.no_grad():
            in_front = forward(plain, torch.cat([torch.tensor([0]), piece])[None])[0, 1:]
            assert fold.rows["folded"][i] == pytest.approx(score(in_front, piece, start=20).loss, rel=1e-4)
            alone = forward(plain, piece[None])[0]
            assert fold.rows["untouched"][i] == pytest.approx(score(alone, piece, start=20).loss, rel=1e-6)
    assert not np.allclose(fold.rows["window of 20"], fold.rows["folded, window of 20"])
    text = str(fold)
    assert "3 other texts of 60 tokens, predictions from position 20 on" in text
    assert "scored before the text" in text


def test_what_it_is_folded_from() -> None:
    tok, texts = tokenizer(), [words(300, i) for i in range(6)]
    _, fold = sg.fold_sink(
        tiny("llama"), tok, texts, fold_from=["w5 w6", "w8"], distance=7, tokens=60, window=20, samples=2, burn_in=10
    )
    assert fold.tokens == ["w5", "w8"]
    assert "7 tokens before every query" in str(fold)
    tok.bos_token = None
    _, fold = sg.fold_sink(tiny("llama"), tok, texts, tokens=60, window=20, samples=2, burn_in=10)
    firsts = {t.split()[0] for t in texts[2:]}
    assert set(fold.tokens) & firsts
    assert not set(fold.settings["texts"]) & {f"text {i}" for i in range(2, 6)}


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="last must be at least 1"):
        sg.Window(0)
    tok = tokenizer()
    with pytest.raises(ArgumentError, match="reach behind the window of 60"):
        sg.fold_sink(tiny("llama"), tok, [words(100)], tokens=60, window=60, burn_in=10)
    with pytest.raises(TextError, match="no text reaches behind the window"):
        sg.fold_sink(tiny("llama"), tok, ["w1 w2 w3"], tokens=60, window=20, burn_in=10)
