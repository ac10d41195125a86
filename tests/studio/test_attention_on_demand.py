"""The attention of one head on demand: eager's weights, bounded answers at 32k tokens, refusals, and an end with its reader."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from transformers import models as hf

from models import tiny, tokenizer, words
from sinkgate.studio import attention
from studio.stand_in import StandIn, ends, leave_after, lines, refused
from studio.watched import Serving

TEXT = words(90)
ASKED = {"model": "tiny", "text": TEXT, "layer": 1, "head": 4}
NAMES = ["llama", "gpt2", "gemma2", "gpt_oss", "mistral"]


@pytest.fixture
def served(serving: Callable[..., Serving]) -> Serving:
    found = serving(models=["tiny"])
    found.studio.models = StandIn()
    return found


def eager(name: str, layer: int, head: int) -> np.ndarray:
    """The weights of transformers' own eager attention, ``[t, t]``."""
    ids = tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        found = tiny(name, attn="eager")(ids, output_attentions=True).attentions[layer][0, head]
    return np.asarray(found.double().numpy()[:, :90])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", [0, 1])
def test_a_query_is_that_of_eager_attention(serving: Callable[..., Serving], name: str, layer: int) -> None:
    served = serving(models=["tiny"])
    served.studio.models = StandIn(
        {"tiny": lambda: tiny(name, attn="eager" if name in ("gemma2", "gpt_oss") else "sdpa")}
    )
    wanted = eager(name, layer, 4)
    for query in (0, 40, 89):
        found = lines(served, "api/attention", {**ASKED, "layer": layer, "query": query})[-1]
        assert found["tokens"] == 90
        assert found["query"] == query
        np.testing.assert_allclose(found["weights"], wanted[query], atol=2e-5)
        assert sum(found["weights"]) + found["learned"] == pytest.approx(1, abs=1e-3)
        best = int(wanted[query].argmax())
        assert found["top"][0][:2] == [best, TEXT.split()[best]]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_a_block_has_the_largest_weights_and_the_true_sums(
    serving: Callable[..., Serving], name: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(attention, "BINS", 12)
    served = serving(models=["tiny"])
    served.studio.models = StandIn({"tiny": lambda: tiny(name, attn="eager" if name != "llama" else "sdpa")})
    found = lines(served, "api/attention", {**ASKED, "mode": "block", "from": 10, "to": 89, "sink": 3})[-1]
    wanted, borders = eager(name, 1, 4)[found["queries"]], found["edges"]
    assert found["queries"][0] == 10
    assert found["queries"][-1] == 89
    assert len(found["queries"]) == 64
    assert len(borders) <= 15
    assert borders[borders.index(3) + 1] == 4  # the sink stands alone
    for b, (k0, k1) in enumerate(itertools.pairwise(borders)):
        np.testing.assert_allclose([row[b] for row in found["max"]], wanted[:, k0:k1].max(1), atol=2e-5)
        np.testing.assert_allclose([row[b] for row in found["sum"]], wanted[:, k0:k1].sum(1), atol=5e-5)


def test_edges_and_bins() -> None:
    assert attention.edges(4, 9, 0) == [0, 1, 2, 3, 4]
    assert attention.edges(100, 2, 70) == [0, 50, 70, 71, 100]
    assert attention.edges(100, 2, 200) == [0, 50, 100]
    most, total = attention.binned(torch.tensor([[0.1, 0.2, 0.3, 0.4, 9.0]]), [0, 1, 3, 4])
    assert most.tolist()[0] == pytest.approx([0.1, 0.3, 0.4])
    assert total.tolist()[0] == pytest.approx([0.1, 0.5, 0.4])


def test_another_query_of_the_same_head_costs_no_pass(served: Serving) -> None:
    passes = []
    served.studio.models.get("tiny").model.register_forward_pre_hook(lambda *_: passes.append(1))
    lines(served, "api/attention", ASKED)
    first = len(passes)
    assert first > 0
    lines(served, "api/attention", {**ASKED, "query": 7})
    lines(served, "api/attention", {**ASKED, "mode": "block"})
    assert len(passes) == first
    lines(served, "api/attention", {**ASKED, "head": 0})
    assert len(passes) == first + 1


def test_the_pass_ends_at_the_layer(served: Serving) -> None:
    seen = []
    for i, layer in enumerate(served.studio.models.get("tiny").model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, i=i: seen.append(i))
    lines(served, "api/attention", ASKED)
    seen.clear()
    lines(served, "api/attention", {**ASKED, "head": 1})
    assert seen == [0]


def test_the_text_of_a_record(serving: Callable[..., Serving], tmp_path: Any) -> None:
    from sinkgate import diagnose

    diagnose(tiny("llama", attn="sdpa"), tokenizer(), [TEXT], tokens=90, samples=1).save(tmp_path / "one")
    served = serving(records=[tmp_path / "one"], models=["tiny"])
    served.studio.models = StandIn()
    asked = {k: v for k, v in ASKED.items() if k != "text"}
    # A tiny tokenizer's tokens have no spaces of their own, so the text read again is one unknown word.
    found = lines(served, "api/attention", {**asked, "record": "0"})[-1]
    assert found["tokens"] == 1
    assert found["source"].startswith("text 0")
    assert "there is no record '7'" in refused(served, "api/attention", {**asked, "record": "7"})
    assert "not both" in refused(served, "api/attention", {**ASKED, "record": "0"})


class _Largest(TorchDispatchMode):
    """The largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x._is_view() is False and x.untyped_storage().nbytes() > 0:
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return out


def test_32k_tokens_without_tokens_by_tokens() -> None:
    """One head of one layer, so that the model's own attention stays quick: nothing held or sent is of tokens × tokens."""
    count = attention.MOST
    torch.manual_seed(0)
    config = hf.llama.LlamaConfig(
        vocab_size=96, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        max_position_embeddings=count, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    studio: Any = SimpleNamespace(models=StandIn({"tiny": lambda: model}))
    kept, text = attention._Kept(), words(count)
    asked = {
        "model": "tiny", "text": text, "bos": "auto", "source": "words", "tokens": count, "layer": 0, "head": 0, "sink": 0,
        "query": -1, "from": 0, "to": -1,
    }  # fmt: skip
    with _Largest() as largest:
        row = attention._answer(studio, kept, {**asked, "mode": "row"}, lambda _: None)
        block = attention._answer(studio, kept, {**asked, "mode": "block"}, lambda _: None)
    assert row["tokens"] == block["tokens"] == count
    assert largest.numbers <= 2 * 64 * count  # rows of 64 queries at once, weights and scores: a 256th of the matrix
    assert len(row["weights"]) == count
    assert sum(row["weights"]) == pytest.approx(1, abs=1e-3)
    assert len(json.dumps(row)) < 500_000
    assert len(block["max"]) == 64
    assert len(block["edges"]) <= 259
    assert len(json.dumps(block)) < 500_000
    for i, q in enumerate(block["queries"]):
        assert sum(block["sum"][i]) == pytest.approx(1, abs=1e-3), q


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": 3}, "layer must be from 0 to 2, got 3"),
        ({"head": 6}, "head must be from 0 to 5, got 6"),
        ({"layer": -1}, "layer must be a whole number"),
        ({"head": "first"}, "head must be a whole number"),
        ({"query": 90}, "query must be one of the text's 90 tokens"),
        ({"query": -2}, "query must be a whole number"),
        ({"mode": "block", "from": 50, "to": 40}, "from and to must be tokens of the text"),
        ({"mode": "block", "to": 90}, "from and to must be tokens of the text"),
        ({"sink": 90}, "sink must be one of the text's 90 tokens"),
        ({"mode": "all"}, "mode must be one of row, block"),
        ({"tokens": 32_769}, "tokens must be a whole number from 2 to 32,768"),
        ({"tokens": 1}, "tokens must be a whole number"),
        ({"text": ""}, "the text is empty"),
        ({"text": 5}, "text must be text"),
        ({"model": "other"}, "was not started with the model 'other'"),
        ({"record": 5}, "record must be text"),
        ({"heads": 5}, "the request has 'heads'"),
    ],
)
def test_bad_input_is_one_line(served: Serving, change: dict[str, Any], words: str) -> None:
    assert words in refused(served, "api/attention", ASKED | change)


def test_a_job_that_fails_leaves_the_server_up(served: Serving) -> None:
    model = served.studio.models.get("tiny").model

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of order")

    hook = model.model.layers[1].register_forward_pre_hook(broken)
    assert "out of order" in refused(served, "api/attention", ASKED)
    hook.remove()
    assert httpx.get(served.address + "api/records").status_code == 200
    assert lines(served, "api/attention", ASKED)[-1]["tokens"] == 90


def test_a_reader_who_leaves_ends_the_pass(served: Serving) -> None:
    """A layer that waits: the reader goes, the layer comes to its end, and the next one is not begun."""
    lines(served, "api/attention", {**ASKED, "layer": 0})  # the anatomy is known
    layers, go, begun = served.studio.models.get("tiny").model.model.layers, threading.Event(), []
    layers[1].register_forward_pre_hook(lambda *_: go.wait(60) and None)
    layers[2].register_forward_pre_hook(lambda *_: begun.append(1))
    leave_after(served, "api/attention", {**ASKED, "layer": 2}, lambda line: line.get("layer") == 0)
    threading.Timer(4, go.set).start()
    assert ends(served.studio)
    assert go.is_set()
    assert not begun
