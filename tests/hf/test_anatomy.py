"""Layers are found by structure; what cannot be measured is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers import models as hf

import sinkgate as sg
from models import VOCABULARY, tiny, tokenizer, words
from sinkgate.errors import UnsupportedError
from sinkgate.hf.anatomy import fingerprint, trace


def ids(length: int = 24) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(3))


def build(config: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (hf.falcon.FalconConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4), "FalconAttention"),
        (hf.bloom.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4), "BloomAttention"),
        (hf.mpt.MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, expansion_ratio=2, max_seq_len=64), "MptAttention"),
        (hf.gpt_neo.GPTNeoConfig(vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=64, attention_types=[[["global", "local"], 1]]), "GPTNeoAttention"),
    ],
    ids=["falcon", "bloom", "mpt", "gpt_neo"],
)  # fmt: skip
def test_models_that_bypass_the_interface_are_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"no layer of .* can be measured.*{named}.*attention interface"):
        trace(build(config), ids())


def test_linear_layers_of_a_hybrid_are_named_and_the_rest_is_measured() -> None:
    d = sg.diagnose(tiny("qwen3_next"), tokenizer(), [words(80)], tokens=80, samples=1)
    assert [layer["kind"] for layer in d.layers] == ["unmeasured", "full", "full"]
    assert "linear_attn" in d.layers[0]["reason"]
    assert np.isnan(d.first_token_mass[0]).all()
    assert np.isfinite(d.first_token_mass[1:]).all()
    assert (d.head_kind[0] == "unmeasured").all()
    assert any("cannot be measured (0)" in line for line in d.verdict())
    assert not np.isnan(d.sink_rate())


def test_a_model_that_is_not_causal_is_refused() -> None:
    config = hf.bert.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        is_decoder=False,
    )
    from transformers import BertLMHeadModel

    torch.manual_seed(0)
    with pytest.raises(UnsupportedError, match="not causal"):
        trace(BertLMHeadModel(config).eval(), ids())


def test_a_layer_that_computes_more_than_we_read_is_not_measured() -> None:
    """The reading is checked by rebuilding the output: here one layer adds something of its own."""
    model = tiny("llama", attn="eager")
    import transformers.models.llama.modeling_llama as file

    original = file.eager_attention_forward

    def odd(module: Any, *args: Any, **kwargs: Any) -> Any:
        out, weights = original(module, *args, **kwargs)
        return (out * 1.1 if module.layer_idx == 1 else out), weights

    file.eager_attention_forward = odd
    try:
        layers = trace(model, ids()).layers
    finally:
        file.eager_attention_forward = original
    assert [layer.attention is not None for layer in layers] == [True, False, True]
    assert "misses by" in layers[1].reason


def test_sizes_windows_and_learned_sinks() -> None:
    layers = trace(tiny("gpt_oss"), ids()).layers
    assert [(x.heads, x.kv_heads, x.head_dim) for x in layers] == [(6, 2, 8)] * 3
    assert [x.window for x in layers] == [16, None, 16]
    assert all(x.learned_sink for x in layers)
    assert [x.name for x in trace(tiny("gpt2"), ids()).layers] == [f"transformer.h.{i}.attn" for i in range(3)]


def test_different_head_counts_share_one_table() -> None:
    """A layer with fewer heads is NaN where it has none."""
    model = tiny("llama")
    small = hf.llama.LlamaConfig(**{**model.config.to_dict(), "num_attention_heads": 4, "num_key_value_heads": 2})
    small._attn_implementation = "sdpa"
    torch.manual_seed(1)
    model.model.layers[1].self_attn = hf.llama.modeling_llama.LlamaAttention(small, 1).eval()
    d = sg.diagnose(model, tokenizer(), [words(80)], tokens=80, samples=1)
    assert d.shape == (3, 6)
    assert np.isnan(d.first_token_mass[1, 4:]).all()
    assert np.isfinite(d.first_token_mass[1, :4]).all()


def test_mla_with_other_value_sizes_is_measured() -> None:
    config = hf.deepseek_v3.DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=32, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=12,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=16, first_k_dense_replace=2,
    )  # fmt: skip
    model = build(config)
    layers = trace(model, ids()).layers
    assert all(layer.attention is not None for layer in layers)
    assert all(layer.output_map is not None for layer in layers), [x.no_map_reason for x in layers]
    d = sg.diagnose(model, tokenizer(), [words(80)], tokens=80, samples=1)
    assert np.isfinite(d.first_token_mass).all()


def test_the_fingerprint_knows_the_weights() -> None:
    model = tiny("llama")
    before = fingerprint(model)
    assert before == fingerprint(tiny("llama"))
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight.mul_(1.001)
    assert fingerprint(model) != before


def test_a_bias_beside_the_fused_kernel_is_scaled_with_the_scores() -> None:
    """Doge hands sdpa an additive mask of finite numbers; the kernel's log-sum-exp contains it."""
    config = hf.doge.DogeConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, keep_window_size=512, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = build(config)
    text, tok = words(60), tokenizer()
    masses = {}
    for attn in ("sdpa", "eager"):
        model.set_attn_implementation(attn)
        masses[attn] = sg.diagnose(model, tok, [text], tokens=60, samples=1).first_token_mass
    np.testing.assert_allclose(masses["sdpa"], masses["eager"], atol=1e-5)


def test_an_encoder_decoder_and_a_headless_model() -> None:
    t5 = hf.t5.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    from transformers import AutoModel, T5ForConditionalGeneration

    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        trace(T5ForConditionalGeneration(t5).eval(), ids())
    whole = tiny("llama")
    headless = AutoModel.from_config(whole.config).eval()
    headless.load_state_dict(whole.model.state_dict())
    a, b = (sg.diagnose(m, tokenizer(), [words(80)], tokens=80).first_token_mass for m in (whole, headless))
    np.testing.assert_array_equal(a, b)
