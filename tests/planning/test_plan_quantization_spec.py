"""Specs: to JSON and back, onto a model, as a list of what stays, and in torchao's words (a stub stands in for it)."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import types
from typing import Any

import pytest
import torch

from models import tiny
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, RecordError, UnsupportedError
from sinkgate.hf.anatomy import forward
from sinkgate.hf.quantized_mixed import Inputs, Part, quantized_mixed
from sinkgate.planning.quantization_spec import (
    ActivationSpec,
    KVSpec,
    Spec,
    WeightSpec,
    apply_quantization,
    keep_list,
    spec_from_json,
)
from sinkgate.planning.quantization_weights import matrices
from sinkgate.planning.torchao import build_torchao, torchao_config
from sinkgate.quantization import Quantization

X = torch.arange(5, 29)[None]
INT8, PER_TENSOR = Quantization(8, granularity="channel"), Quantization(8, granularity="tensor")
ATTENTION = "model.layers.0.self_attn"


def specs(model: Any) -> dict[str, Spec]:
    names = [m.name for m in matrices(model)]
    hows = [Quantization(4, group=8), Quantization(4, granularity="channel"), INT8]
    return {
        "kv": KVSpec("per_head(quantized(recent(64) + sinks(2), bits=4), [[0, 3]], quantized(recent(64) + sinks(2)))", "original",
                     (Sinks(2), Sinks(1, token_ids=(7, 9))), ((0, 1),)),
        "weights": WeightSpec(
            tuple((n, hows[i % 3]) for i, n in enumerate(names)),
            (Part(names[0], "rows", ((0, 8), (16, 24)), INT8), Part(names[3], "columns", ((8, 16),), INT8)), 2, ((0, 0),),
        ),
        "activations": ActivationSpec(tuple(names), INT8, PER_TENSOR, (Sinks(3),), ((names[0], (1, 5)), (names[1], (1, 5))),
                                      ((names[3], 6),)),
    }  # fmt: skip


@pytest.mark.parametrize("place", ["kv", "weights", "activations"])
def test_through_json_and_back(place: str) -> None:
    spec = specs(tiny("llama"))[place]
    data = json.loads(json.dumps(spec.to_json(), allow_nan=False))
    back = spec_from_json(data)
    assert back.to_json() == spec.to_json()
    if isinstance(spec, WeightSpec):
        assert isinstance(back, WeightSpec)
        assert dict(back.modules) == dict(spec.modules)
        assert (back.parts, back.prefix, back.heads) == (spec.parts, spec.prefix, spec.heads)
    else:
        assert back == spec


def test_damaged_json_is_called_damaged() -> None:
    """Every field away, or of another kind: one error, of one kind."""
    for spec in specs(tiny("llama")).values():
        data = spec.to_json()
        for name in data:
            for wrong in (None, 7, "x", [7], {"x": 7}, [["x", -1]], -1, True, [{"first": 0}], [{"ids": ["x"], "most": 1}],
                          {"int99": []}, {"uint4": [7]}):  # fmt: skip
                broken = copy.deepcopy(data)
                broken[name] = wrong
                with contextlib.suppress(RecordError):  # nothing else; some of these are right for some fields
                    spec_from_json(broken)
            del broken[name]
            with pytest.raises(RecordError) as caught:
                spec_from_json(broken)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 400
    with pytest.raises(RecordError, match="kv, weights, activations, got 'moon'"):
        spec_from_json({"place": "moon"})
    with pytest.raises(RecordError, match="positions must be slots"):
        spec_from_json({**KVSpec("dense").to_json(), "positions": "nowhere"})
    with pytest.raises(RecordError, match="damaged"):
        spec_from_json({**KVSpec("dense").to_json(), "policy": "recent(x"})


def test_applied_it_is_the_same_by_json_and_the_model_comes_back() -> None:
    model = tiny("llama", dtype=torch.float64)
    before = {n: p.clone() for n, p in model.state_dict().items()}
    found = specs(model)
    weights, activations = found["weights"], found["activations"]
    assert isinstance(weights, WeightSpec)
    assert isinstance(activations, ActivationSpec)
    with torch.no_grad():
        plain = forward(model, X)
        with apply_quantization(model, weights) as done:
            got = forward(model, X)
            assert done.count == 21
        with apply_quantization(model, json.loads(json.dumps(weights.to_json()))):
            assert torch.equal(forward(model, X), got)
        with quantized_mixed(model, dict(weights.modules), weights.parts, prefix=2):
            assert torch.equal(forward(model, X), got)
        with apply_quantization(model, activations.to_json()):
            rounded = forward(model, X)
        inputs = Inputs(PER_TENSOR, (Sinks(3),), dict(activations.channels), dict(activations.heads))
        with quantized_mixed(model, dict.fromkeys(activations.modules, INT8), inputs=inputs):
            assert torch.equal(forward(model, X), rounded)
        assert not torch.equal(got, plain)
        assert not torch.equal(rounded, plain)
        assert torch.equal(forward(model, X), plain)
    with pytest.raises(RuntimeError, match="half way"), apply_quantization(model, weights):
        raise RuntimeError("half way")
    assert all(torch.equal(model.state_dict()[n], p) for n, p in before.items())
    with pytest.raises(ArgumentError, match=r"with sg\.streaming\(model"), apply_quantization(model, found["kv"]):
        pass
    with pytest.raises(ArgumentError, match="no linear layer"), apply_quantization(tiny("gpt2"), weights):
        pass


def test_what_is_kept_is_listed() -> None:
    model = tiny("llama")
    found = {place: keep_list(spec, model) for place, spec in specs(model).items()}
    assert json.loads(json.dumps(found)) == found
    names = [m.name for m in matrices(model)]
    assert found["kv"]["tokens"] == [{"first": 2}, {"ids": [7, 9], "most": 1}]
    assert found["kv"]["more_bits"]["heads"] == [[0, 1]]
    assert found["weights"]["tokens"] == [{"first": 2}]
    assert found["weights"]["modules"] == ["lm_head"]
    assert list(found["weights"]["more_bits"]["modules"]) == names[2::3]
    assert [p["spans"] for p in found["weights"]["more_bits"]["parts"]] == [[[0, 8], [16, 24]], [[8, 16]]]
    assert found["activations"]["tokens"] == [{"first": 3}]
    assert found["activations"]["channels"] == [{"channels": [1, 5], "modules": names[:2]}]
    assert keep_list(specs(model)["weights"])["modules"] is None


# ---- torchao ----------------------------------------------------------------------------------------------------------


class Stub(types.ModuleType):
    """Remembers what is asked of it, as torchao's dataclasses would."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__("torchao.quantization")
        for name in names:
            setattr(self, name, lambda *a, name=name, **k: (name, a, k))


NAMES = ("Int4WeightOnlyConfig", "Int8WeightOnlyConfig", "IntxWeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig",
         "ModuleFqnToConfig", "PerTensor", "PerRow", "PerGroup", "PerAxis")  # fmt: skip


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    made = Stub(NAMES)
    monkeypatch.setitem(sys.modules, "torchao", types.ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", made)
    return made


def test_weights_in_torchaos_words(stub: Stub) -> None:
    model = tiny("llama")
    hows = [
        Quantization(4, group=32),
        INT8,
        Quantization(4, group=8),
        Quantization(3, granularity="channel"),
        Quantization(4, False, "channel"),
    ]
    names = [m.name for m in matrices(model)]
    spec = WeightSpec(tuple(zip(names, hows, strict=False)), (Part(names[1], "rows", ((0, 8),), INT8),), 2)
    exported = json.loads(json.dumps(torchao_config(spec, model)))
    assert exported["config"]["class"] == "ModuleFqnToConfig"
    assert exported["config"]["modules"] == {
        names[0]: {"class": "Int4WeightOnlyConfig", "arguments": {"group_size": 32}},
        names[1]: {"class": "Int8WeightOnlyConfig", "arguments": {}},
        names[2]: {"class": "IntxWeightOnlyConfig", "arguments": {
            "weight_dtype": "torch.int4", "granularity": {"class": "PerGroup", "arguments": {"group_size": 8}}}},
        names[3]: {"class": "IntxWeightOnlyConfig", "arguments": {
            "weight_dtype": "torch.int3", "granularity": {"class": "PerAxis", "arguments": {"axis": 0}}}},
    }  # fmt: skip
    reasons = {entry["what"]: entry["why"] for entry in exported["left_out"]}
    assert reasons[names[4]] == "torchao has no configuration for uint4(channel) weights"
    assert "as a whole" in reasons[f"rows or columns of {names[1]} in other bits"]
    assert "does not know the cache" in reasons["keys and values of the first 2 tokens in full precision"]
    assert any("zero point" in note for note in exported["notes"])
    name, (modules,), _ = build_torchao(exported)
    assert name == "ModuleFqnToConfig"
    assert list(modules) == names[:4]
    assert modules[names[0]] == ("Int4WeightOnlyConfig", (), {"group_size": 32})
    per = ("PerGroup", (), {"group_size": 8})
    assert modules[names[2]] == ("IntxWeightOnlyConfig", (), {"weight_dtype": torch.int4, "granularity": per})


def test_activations_in_torchaos_words(stub: Stub) -> None:
    model = tiny("llama")
    names = tuple(m.name for m in matrices(model))
    spec = ActivationSpec(names, INT8, PER_TENSOR, (Sinks(1),), ((names[0], (3,)),), ((names[3], 6),))
    exported = torchao_config(spec, model)
    assert len(exported["left_out"]) == 3
    _, (modules,), _ = build_torchao(exported)
    granularity = [("PerTensor", (), {}), ("PerRow", (), {})]
    assert modules[names[0]] == ("Int8DynamicActivationInt8WeightConfig", (), {"granularity": granularity})
    assert list(modules) == list(names)
    four = torchao_config(ActivationSpec(names, INT8, Quantization(4, granularity="tensor")), model)
    assert four["config"] is None
    assert len(four["left_out"]) == len(names)
    gpt2 = tiny("gpt2")
    conv = torchao_config(WeightSpec(tuple((m.name, INT8) for m in matrices(gpt2))), gpt2)
    assert conv["config"] is None
    assert conv["left_out"][0]["why"] == "torchao quantises nn.Linear, this is Conv1D"
    cache = torchao_config(KVSpec("quantized(recent(64))"))
    assert "use sg.streaming" in cache["left_out"][0]["why"]
    with pytest.raises(ArgumentError, match="nothing to do here"):
        build_torchao(cache)


def test_without_torchao_and_with_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = torchao_config(WeightSpec((("a", INT8),)))
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(UnsupportedError, match="pip install torchao"):
        build_torchao(exported)
    monkeypatch.setitem(sys.modules, "torchao", types.ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", Stub(NAMES[:1]))
    with pytest.raises(UnsupportedError, match="this torchao has no Int8WeightOnlyConfig"):
        build_torchao(exported)


def test_an_export_that_was_changed_names_no_other_class(stub: Stub) -> None:
    stub.quantize_ = stub.system = lambda *a, **k: pytest.fail("called")  # type: ignore[attr-defined]
    exported = torchao_config(WeightSpec((("a", Quantization(4, group=8)),)))
    good = exported["config"]["modules"]["a"]
    for entry in (
        {"class": "quantize_", "arguments": {}}, {"class": "Int8WeightOnlyConfig", "arguments": {"group_size": 3}}, 7, None,
        {"class": "IntxWeightOnlyConfig", "arguments": {**good["arguments"], "weight_dtype": "torch.load"}},
        {"class": "IntxWeightOnlyConfig", "arguments": {**good["arguments"], "granularity": "PerGroup"}},
        {"class": "Int4WeightOnlyConfig", "arguments": {"group_size": True}},
    ):  # fmt: skip
        with pytest.raises(RecordError):
            build_torchao({**exported, "config": {"class": "ModuleFqnToConfig", "modules": {"a": entry}}})
    with pytest.raises(RecordError, match="holds a ModuleFqnToConfig"):
        build_torchao({**exported, "config": {"class": "quantize_", "modules": {}}})
    for broken in (7, {}, {"config": 7, "left_out": []}, {"config": {}, "left_out": []}):
        with pytest.raises(RecordError):
            build_torchao(broken)  # type: ignore[arg-type]
