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
    sg.add_outlet(model, "key_bias")
    with pytest.raises(UnsupportedError, match=r"softcap.*a sink_logit or a gate"):
        model(x)


def test_a_model_without_the_interface() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(UnsupportedError, match="BloomAttention"):
        sg.add_outlet(model, "gate")
