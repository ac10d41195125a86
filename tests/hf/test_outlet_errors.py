"""What an outlet cannot be added to is refused with what was seen, and the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_reading import assert_same, state
from torch import nn
from transformers.models.llama import modeling_llama

import sinkgate as sg
from models import VOCABULARY, tiny
from sinkgate.errors import ArgumentError, UnsupportedError


class TwoOutputs(modeling_llama.LlamaAttention):
    """Head outputs go through two projections."""

    def forward(self, hidden_states: Any, position_embeddings: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = modeling_llama.apply_rotary_pos_emb(q, k, *position_embeddings)
        function = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        out, weights = function(self, q, k, v, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs)
        out = out.reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(out) + self.second(out), weights


def two_outputs() -> Any:
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    attention.__class__ = TwoOutputs
    attention.second = nn.Linear(48, 48, bias=False)
    return model


def not_linear() -> Any:
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    attention.o_proj = nn.Sequential(attention.o_proj, nn.ReLU())
    return model


@pytest.mark.parametrize(
    ("make", "outlet", "error", "words"),
    [
        (two_outputs, "gate", UnsupportedError, r"layers\.1\.self_attn: 2 modules .* take its head outputs: Linear, Linear"),
        (not_linear, "gate", UnsupportedError, r"layers\.1\.self_attn: Sequential takes the head outputs .* not linear"),
        (lambda: tiny("qwen3_next"), "gate", UnsupportedError, "has an output gate of its own already"),
        (lambda: tiny("gpt_oss"), "sink_logit", UnsupportedError, "has learned sink logits of its own already"),
        (lambda: tiny("gpt_oss"), "sink_token", UnsupportedError, "has learned sink logits"),
        (lambda: tiny("qwen3"), sg.Gate("G3", elementwise=False, preserve=2.0), UnsupportedError, "norms each head.*elementwise=True"),
        (lambda: tiny("llama"), "drain", ArgumentError, "'drain' is not known; there are sink_logit, gate"),
        (lambda: tiny("llama"), object(), ArgumentError, "got object"),
        (lambda: tiny("llama"), sg.Gate("G1"), ArgumentError, r"give preserve=2\.0"),
        (lambda: tiny("llama"), sg.Gate("G1", additive=True), ArgumentError, "'silu' or 'centred_sigmoid'"),
        (lambda: tiny("llama"), sg.SinkLogit(start=0.0), ArgumentError, "start must be over 0"),
        (lambda: tiny("llama"), sg.KVBias(distance=0), ArgumentError, "distance must be at least 1"),
    ],
)  # fmt: skip
def test_refused(make: Any, outlet: Any, error: Any, words: str) -> None:
    model = make()
    was = state(model)
    with pytest.raises(error, match=words) as caught:
        sg.add_outlet(model, outlet)
    assert "\n" not in str(caught.value)
    assert_same(was, state(model))


def test_places_that_are_not_there() -> None:
    model = tiny("llama")
    for outlet, arguments, words in (
        ("sink_logit", {"layers": [3]}, "layer 3"),
        ("sink_logit", {"heads": [(0, 6)]}, "heads 0 to 5"),
        (sg.Gate("G2", preserve=2.0), {"heads": [(0, 2)]}, "key-value heads 0 to 1"),
        (sg.Gate("G5", preserve=2.0), {"heads": [(0, 0)]}, "behind the sum over heads"),
    ):
        with pytest.raises(ArgumentError, match=words):
            sg.add_outlet(model, outlet, **arguments)


def test_twice_and_none() -> None:
    model = tiny("llama")
    with pytest.raises(ArgumentError, match="no outlet"):
        sg.outlets(model)
    with pytest.raises(ArgumentError, match="no outlet"):
        sg.remove_outlet(model)
    sg.add_outlet(model, "gate")
    with pytest.raises(UnsupportedError, match=r"has an outlet already.*remove_outlet"):
        sg.add_outlet(model, "sink_logit")
    with pytest.raises(UnsupportedError, match="remove it before a swap"), sg.swap(model, "softpick"):
        pass


def test_softcap_and_a_key_per_query_do_not_go_together() -> None:
    model = tiny("gemma2", attn="eager")
    x = torch.randint(0, VOCABULARY, (1, 12))
    sg.add_outlet(model, "sink_logit")
    model(x)
    sg.remove_outlet(model)
    for outlet in ("key_bias", "kv_bias", "sink_token"):
        with pytest.raises(UnsupportedError, match=r"softcap.*a sink_logit or a gate"):
            sg.add_outlet(model, outlet)
    model(x)


def test_more_that_is_refused() -> None:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
             "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}  # fmt: skip
    model = BartForConditionalGeneration(BartConfig(**sizes)).eval()
    with pytest.raises(UnsupportedError, match=r"attends in .* too"), sg.swap(model, "softmax1"):
        pass
    inner = tiny("llama")
    sg.add_outlet(inner.model, "sink_logit")
    with pytest.raises(UnsupportedError, match="a part of this model has an outlet"):
        sg.add_outlet(inner, "gate")
    with pytest.raises(ArgumentError, match=r"ids must be \[batch, tokens\]"):
        sg.add_outlet(tiny("llama"), "sink_logit", ids=torch.arange(5))
    with pytest.raises(UnsupportedError, match="positions are learned"):
        sg.add_outlet(tiny("gpt2"), sg.KVBias(distance=4))


def test_short_contexts_and_rearranged_layers() -> None:
    model = tiny("gpt2")
    short = type(model)(type(model.config)(**{**model.config.to_diff_dict(), "n_positions": 32})).eval()
    sg.add_outlet(short, "sink_logit")
    model = tiny("llama")
    with torch.no_grad():
        x = torch.randint(0, VOCABULARY, (1, 12))
        with sg.swap(model, "softpick", layers=[0]):
            pass
        layers = model.model.layers
        layers[0], layers[2] = layers[2], layers[0]
        plain = [model.model.layers[i].self_attn for i in range(3)]
        with sg.swap(model, "softpick", layers=[0]):
            kinds = [a._sinkgate_place.weightings[-1].weighting.name for a in plain]
            assert kinds == ["softpick", "softmax", "softmax"]
            model(x)


def test_a_model_without_the_interface() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(UnsupportedError, match="BloomAttention"):
        sg.add_outlet(model, "gate")
