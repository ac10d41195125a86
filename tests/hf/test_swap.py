"""A model with another weighting: against float64 references, in training, in decoding, and restored bit for bit."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from test_reading import assert_same, ids, state
from torch import Tensor
from transformers import AutoModelForCausalLM

import sinkgate as sg
from models import CONFIGS, VOCABULARY, tiny
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.weighting import as_weighting, names

MODELS = ["llama", "qwen3", "gemma3", "gemma2", "gpt2", "gpt_oss", "qwen3_next", "mistral"]


def dense(weighting: Any) -> Any:
    """An eager attention function with a weighting, written on its own: dense scores in float64."""

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kw: Any) -> Any:
        g = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
        s = q.double() @ k.double().transpose(-1, -2) * (kw.get("scaling") or q.shape[-1] ** -0.5)
        if kw.get("softcap"):
            s = kw["softcap"] * torch.tanh(s / kw["softcap"])
        seen = mask[..., : s.shape[-1]] > -9999  # the eager mask is additive, and always there
        w = weighting
        if kw.get("s_aux") is not None and w.name == "softmax":
            w = sg.SinkSoftmax(kw["s_aux"].double())
        a = w.weights(s, seen.expand(s.shape))
        return (a @ v.double()).to(q.dtype).transpose(1, 2).contiguous(), None

    return function


@pytest.fixture
def dense_model() -> Any:
    """A model that attends by the dense function above, with eager's mask."""
    attention, masks = compat.interfaces()

    def make(model: Any, weighting: Any) -> Any:
        model = copy.deepcopy(model)
        attention.register("tests_dense", dense(weighting))
        masks.register("tests_dense", masks["eager"])
        for config in compat.configs(model):
            compat.set_implementation(config, "tests_dense")
        return model

    return make


@pytest.mark.parametrize("weighting", names())
@pytest.mark.parametrize("name", MODELS)
def test_against_a_dense_float64_model(name: str, weighting: str, dense_model: Any) -> None:
    if name == "gpt_oss" and weighting != "softmax":
        pytest.skip("learned sinks have a place in softmax only; test_learned_sinks covers it")
    value = sg.TopKSoftmax(k=8) if weighting == "topk_softmax" else as_weighting(weighting)
    model = tiny(name, dtype=torch.float64)
    x = ids(50, 2)
    mask = torch.ones_like(x)
    mask[1, :7] = 0
    real = mask.bool()
    expected = dense_model(model, value)
    with sg.swap(model, value):
        for padding in (None, mask):
            got, want = forward(model, x, padding), forward(expected, x, padding)
            keep = slice(None) if padding is None else real
            torch.testing.assert_close(got[keep], want[keep], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", [n for n in CONFIGS if n != "gpt_oss"])
def test_swapped_softmax_is_the_model_bit_for_bit(name: str) -> None:
    model = tiny(name, attn=None if name != "gemma2" else "eager")
    x = ids(40, 2)
    with torch.no_grad():
        before = forward(model, x)
        with sg.swap(model, "softmax"):
            inside = forward(model, x)
    if name == "gemma2":  # softcap: transformers has no fused path, ours is one
        torch.testing.assert_close(inside, before, rtol=1e-4, atol=1e-5)
    else:
        assert torch.equal(inside, before)


def test_learned_sinks_match_eager_in_output_and_gradients() -> None:
    eager = tiny("gpt_oss", attn="eager", dtype=torch.float64)
    sg.register()
    ours = copy.deepcopy(eager)
    for config in compat.configs(ours):
        compat.set_implementation(config, "sinkgate_softmax")
    x = ids(40, 2)
    mask = torch.ones_like(x)
    mask[0, :5] = 0
    for padding in (None, mask):
        keep = mask.bool() if padding is not None else torch.ones_like(mask).bool()
        for model in (eager, ours):
            model.zero_grad()
            (forward(model, x, padding)[keep].float().log_softmax(-1).square().mean()).backward()
        torch.testing.assert_close(
            forward(ours, x, padding)[keep], forward(eager, x, padding)[keep], rtol=1e-9, atol=1e-9
        )
        for (n, a), (_, b) in zip(ours.named_parameters(), eager.named_parameters(), strict=True):
            if a.grad is None and b.grad is None:
                continue
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=1e-9, msg=n)
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for n, p in ours.named_parameters() if n.endswith("sinks"))


def test_learned_sinks_are_kept_or_dropped_by_name() -> None:
    model, x = tiny("gpt_oss"), ids(20)
    with sg.swap(model, "softpick"), pytest.raises(UnsupportedError, match="learned_sinks='drop'"):
        forward(model, x)
    with sg.swap(model, "softpick", learned_sinks="drop"), torch.no_grad():
        assert torch.isfinite(forward(model, x)).all()


def fails_inside(model: Any, x: Tensor, weighting: str) -> None:
    with sg.swap(model, weighting), sg.swap(model, "softmax", layers=[1]):
        forward(model, x)
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gpt_oss", "qwen3_next"])
def test_leaving_restores_bit_for_bit_nested_and_after_an_exception(name: str) -> None:
    model, x = tiny(name), ids(30)
    other = "softmax" if name == "gpt_oss" else "softpick"
    with torch.no_grad():
        before, was = forward(model, x), state(model)
        with pytest.raises(RuntimeError, match="on purpose"):
            fails_inside(model, x, other)
        assert_same(was, state(model))
        assert torch.equal(forward(model, x), before)
        with sg.swap(model, other):
            first = forward(model, x)
            inside = state(model)
            with sg.swap(model, sg.Softmax1() if name != "gpt_oss" else "softmax"):
                forward(model, x)
            assert_same(inside, state(model))
            assert torch.equal(forward(model, x), first)
        assert_same(was, state(model))


def test_per_layer_and_per_head(dense_model: Any) -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    parts = {"softmax": sg.Softmax(), "sigmoid": sg.Sigmoid()}

    class Mixed:
        name = "mixed"

        def weights(self, s: Tensor, seen: Tensor | None) -> Tensor:
            both = {n: w.weights(s, seen) for n, w in parts.items()}
            return torch.stack([both["sigmoid" if h in (1, 4) else "softmax"][:, h] for h in range(6)], 1)

    with torch.no_grad():
        expected = forward(dense_model(model, Mixed()), x)
        pairs = [(layer, head) for layer in range(3) for head in (1, 4)]
        with sg.swap(model, "sigmoid", heads=pairs):
            torch.testing.assert_close(forward(model, x), expected, rtol=1e-8, atol=1e-8)
        plain = forward(model, x)
        with sg.swap(model, "sigmoid", layers=2):
            last = forward(model, x)
        with sg.swap(model, "sigmoid"), sg.swap(model, "softmax", layers=[0, 1]):
            torch.testing.assert_close(forward(model, x), last, rtol=1e-10, atol=1e-10)
    assert not torch.equal(plain, last)


def test_a_logit_per_head_is_learned_through_a_swap() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    z = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    with sg.swap(model, sg.SinkSoftmax(z), heads=[(1, 2), (1, 5)]):
        forward(model, x).square().mean().backward()
    assert z.grad is not None
    assert (z.grad != 0).tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize("weighting", ["softmax", "softpick", "sigmoid", "softmax1"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gpt_oss"])
def test_decoding_token_by_token_agrees_with_prefill(name: str, weighting: str) -> None:
    if name == "gpt_oss" and weighting != "softmax":
        pytest.skip("learned sinks have a place in softmax only")
    value = sg.Sigmoid() if weighting == "sigmoid" else as_weighting(weighting)
    model, x = tiny(name, dtype=torch.float64), ids(40, 2)
    with torch.no_grad(), sg.swap(model, value):
        whole = forward(model, x)
        out = model(x[:, :25], use_cache=True)
        logits = [out.logits]
        for i in range(25, 40):
            out = model(x[:, i : i + 1], cache=out.past_key_values, use_cache=True)
            logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=1e-8, atol=1e-8)


def test_generate_with_padding_and_a_static_cache() -> None:
    model = tiny("llama")
    x = ids(12, 2)
    mask = torch.ones_like(x)
    mask[0, :4] = 0
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1, "attention_mask": mask}
    with sg.swap(model, "softpick"):
        both = model.generate(x, **settings)
        alone = model.generate(x[:1, 4:], max_new_tokens=8, do_sample=False, pad_token_id=1)
        static = model.generate(x, cache_implementation="static", disable_compile=True, **settings)
        # without padding a prompt comes without a mask, into a cache that is longer than it
        whole = model.generate(x, max_new_tokens=8, do_sample=False, pad_token_id=1)
        prompt = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1}
        into = model.generate(x, cache_implementation="static", disable_compile=True, **prompt)
    assert torch.equal(both[0, 4:], alone[0])
    assert torch.equal(static, both)
    assert torch.equal(into, whole)


def test_packed_position_ids_keep_documents_apart() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    positions = torch.cat([torch.arange(18), torch.arange(12)])[None]
    with torch.no_grad(), sg.swap(model, "softmax1"):
        packed = model(x, position_ids=positions, use_cache=False).logits
        apart = torch.cat([forward(model, x[:, :18]), forward(model, x[:, 18:])], 1)
    torch.testing.assert_close(packed, apart, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_training_with_and_without_checkpointing(name: str) -> None:
    model, x = tiny(name, dtype=torch.float64), ids(30)
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for key in ("attn_pdrop", "attention_dropout"):
        if hasattr(model.config, key):
            setattr(model.config, key, 0.0)
    grads = []
    with sg.swap(model, "softpick"):
        for checkpointing in (False, True):
            if checkpointing:
                model.activation_checkpointing_enable()
            model.zero_grad()
            model(x, labels=x, use_cache=False).loss.backward()
            grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for n in grads[0]:
        torch.testing.assert_close(grads[0][n], grads[1][n], rtol=1e-9, atol=1e-12, msg=n)
    assert all(module.training for module in model.modules())


def test_plain_names_work_like_the_swap_and_after_a_registration_of_ones_own(tmp_path: Any) -> None:
    sg.register()
    model, x = tiny("llama"), ids(30)
    model.save_pretrained(tmp_path)
    for name in names():
        if name == "topk_softmax":
            continue
        named = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=f"sinkgate_{name}")
        with torch.no_grad(), sg.swap(model, name):
            torch.testing.assert_close(forward(named, x), forward(model, x))
    available, masks = compat.interfaces()
    ours = [n for n in available.valid_keys() if n.startswith("sinkgate_")]
    assert {f"sinkgate_{n}" for n in names()} <= set(ours) <= set(masks.valid_keys())
    assert not [n for n in ours if any(word in n for word in ("sdpa", "flash", "flex"))]


@pytest.mark.slow
def test_the_trainer_just_works(tmp_path: Any) -> None:
    from transformers import Trainer, TrainingArguments

    sg.register()
    model = tiny("llama", attn="sinkgate_softpick")
    data = [{"input_ids": row, "labels": row} for row in ids(24, 8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_steps=1,
    )  # fmt: skip
    before = copy.deepcopy(model.state_dict())
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert all(math.isfinite(loss) for loss in losses)
    assert any(not torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["softmax", "softmax1", "softpick"])
def test_compiled(weighting: str) -> None:
    model, x = tiny("llama"), ids(32, 2)
    with torch.no_grad(), sg.swap(model, weighting):
        expected = forward(model, x)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, use_cache=False).logits, expected, rtol=1e-5, atol=1e-5)


def test_set_weighting_stays_and_is_undone() -> None:
    model, x = tiny("llama"), ids(30)
    with torch.no_grad():
        before, was = forward(model, x), state(model)
        with sg.swap(model, "softpick"):
            swapped = forward(model, x)
        sg.set_weighting(model, "softpick")
        assert torch.equal(forward(model, x), swapped)
        assert torch.equal(forward(copy.deepcopy(model), x), swapped)
        sg.set_weighting(model, "softmax", layers=[0])
        assert not torch.equal(forward(model, x), swapped)
        sg.set_weighting(model, None)
        assert_same(was, state(model))
        assert torch.equal(forward(model, x), before)


def test_a_probe_says_why_it_cannot_read_a_swapped_model() -> None:
    from sinkgate.hf.anatomy import trace

    model = tiny("llama")
    with sg.swap(model, "softpick"), pytest.raises(UnsupportedError, match="a swap or an act is under way"):
        trace(model, ids(20))
    sg.register()
    with pytest.raises(UnsupportedError, match="attn_implementation='sinkgate_softpick'"):
        trace(tiny("llama", attn="sinkgate_softpick"), ids(20))


def test_errors() -> None:
    model = tiny("llama")
    for arguments, words in (
        ({"weighting": "softmin"}, "softmin"),
        ({"weighting": "softmax", "layers": [7]}, "layer 7.*0 to 2"),
        ({"weighting": "softmax", "heads": [(0, 6)]}, "heads 0 to 5"),
        ({"weighting": "softmax", "heads": [3]}, "pairs"),
        ({"weighting": "softmax", "heads": []}, "empty"),
        ({"weighting": "softmax", "heads": [(0, 0)], "layers": [0]}, "not both"),
        ({"weighting": sg.SinkSoftmax(torch.zeros(5))}, "one entry per head \\(6\\)"),
        ({"weighting": "softmax", "learned_sinks": "melt"}, "melt"),
    ):
        with pytest.raises(ArgumentError, match=words), sg.swap(model, **arguments):
            pass
    model.train()
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with sg.swap(model, "softpick"), pytest.raises(UnsupportedError, match=r"dropout=0\.5.*to 0"):
        forward(model, ids(10))


def test_a_model_that_does_not_use_the_interface_is_refused() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(UnsupportedError, match="BloomAttention"), sg.swap(model, "softmax1"):
        pass
