"""Outlets on disk: alone, and with their model; what does not go together is refused and nothing is left half-done."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_outlet import SCORED, scramble
from test_reading import assert_same, ids, state
from transformers import AutoModelForCausalLM

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError, ModelError, OutputError, RecordError, UnsupportedError
from sinkgate.hf.anatomy import fingerprint, forward
from sinkgate.hf.fold import fold

KINDS = [
    *SCORED,
    "gate",
    sg.Gate("G2", preserve=2.0),
    sg.Gate("G5", additive=True, activation="silu"),
    "some heads",
    "folded",
]


def given(model: Any, kind: Any) -> Any:
    if kind == "folded":
        return fold(model, [7], distance=5)
    found = (
        sg.add_outlet(model, "kv_bias", heads=[(0, 1), (2, 3)]) if kind == "some heads" else sg.add_outlet(model, kind)
    )
    scramble(found)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_alone(kind: Any, tmp_path: Path) -> None:
    model, fresh, x = tiny("llama"), tiny("llama"), ids(30)
    found = given(model, kind)
    sg.save_outlet(model, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sinkgate_outlet.json", "sinkgate_outlet.safetensors"]
    again = sg.load_outlet(fresh, tmp_path)
    assert again.spec == found.spec
    assert again.heads() == found.heads()
    with torch.no_grad():
        assert torch.equal(forward(fresh, x), forward(model, x))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_with_the_model(kind: Any, tmp_path: Path) -> None:
    model, x = tiny("llama"), ids(30)
    given(model, kind)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded = sg.load(str(tmp_path)).model
    assert fingerprint(loaded) == fingerprint(model)
    with torch.no_grad():
        # a token alone is a product of one row, whose bits follow the weights' place in memory
        torch.testing.assert_close(forward(loaded, x), forward(model, x), rtol=1e-5, atol=1e-5)
    sg.remove_outlet(loaded)
    sg.remove_outlet(model)
    with torch.no_grad():
        assert torch.equal(forward(loaded, x), forward(model, x))
    assert fingerprint(loaded) == fingerprint(model) == fingerprint(tiny("llama"))


def test_beside_a_model_that_was_saved_without(tmp_path: Path) -> None:
    model, x = tiny("llama"), ids(30)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    given(model, "gate")
    sg.save_outlet(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(forward(sg.load(str(tmp_path)).model, x), forward(model, x))


def test_transformers_alone_reads_the_base_and_the_outlet_comes_after(tmp_path: Path) -> None:
    model, x = tiny("llama"), ids(30)
    given(model, "kv_bias")
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(forward(base, x), forward(tiny("llama"), x))
        sg.load_outlet(base, tmp_path)
        assert torch.equal(forward(base, x), forward(model, x))


def test_the_wrong_model_is_refused(tmp_path: Path) -> None:
    model = tiny("llama")
    given(model, "sink_logit")
    sg.save_outlet(model, tmp_path)
    other = tiny("llama", seed=1)
    was = state(other)
    with pytest.raises(
        ModelError, match=r"fitted to LlamaForCausalLM with fingerprint \w+, this model is LlamaForCausalLM"
    ):
        sg.load_outlet(other, tmp_path)
    with pytest.raises(ModelError, match="Qwen3ForCausalLM"):
        sg.load_outlet(tiny("qwen3"), tmp_path)
    assert_same(was, state(other))
    half = tiny("llama").bfloat16()
    with pytest.raises(ModelError, match="force=True"):
        sg.load_outlet(half, tmp_path)
    sg.load_outlet(half, tmp_path, force=True)
    with pytest.raises(UnsupportedError, match="has an outlet already"):
        sg.load_outlet(half, tmp_path, force=True)


def test_damage_is_noticed(tmp_path: Path) -> None:
    model = tiny("llama")
    given(model, "sink_logit")
    sg.save_outlet(model, tmp_path)
    path = tmp_path / "sinkgate_outlet.safetensors"
    data = path.read_bytes()
    fresh = tiny("llama")
    was = state(fresh)
    path.write_bytes(data[:-1] + b"x")
    with pytest.raises(RecordError, match="SHA-256"):
        sg.load_outlet(fresh, tmp_path)
    path.write_bytes(data)
    meta = tmp_path / "sinkgate_outlet.json"
    good = json.loads(meta.read_text())
    for change, words in (
        ({"version": 9}, "version 1"),
        ({"outlet": {"kind": "drain"}}, "damaged"),
        ({"outlet": {"kind": "kv_bias"}}, "does not fit"),
        ({"heads": {"0": [0]}}, "does not fit"),
    ):
        meta.write_text(json.dumps({**good, **change}))
        with pytest.raises(RecordError, match=words):
            sg.load_outlet(fresh, tmp_path)
        assert_same(was, state(fresh))
    meta.write_text("{")
    with pytest.raises(RecordError, match="cannot be read"):
        sg.load_outlet(fresh, tmp_path)
    with pytest.raises(RecordError, match="no outlet in"):
        sg.load_outlet(fresh, tmp_path / "nowhere")


def test_nothing_to_save_and_nowhere_to_write(tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(ArgumentError, match="no outlet"):
        sg.save_outlet(model, tmp_path)
    given(model, "gate")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot write the outlet"):
        sg.save_outlet(model, tmp_path / "file")
