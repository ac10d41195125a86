"""A config read without transformers says what a model of that config keeps with transformers."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
from transformers import models as hf

from models import CONFIGS, GROUPED, tiny
from sinkgate.cache import shape as module
from sinkgate.cache.schemes import Options, schemes
from sinkgate.cache.shape import CacheShape, LayerShape
from sinkgate.errors import ArgumentError

BASE = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}
LINEAR = {
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 96,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 100}


def read(**config: Any) -> CacheShape:
    return CacheShape.from_config({**BASE, **config})


def windows(shape: CacheShape) -> list[int]:
    return [layer.window for layer in shape.layers]


def kept(model: Any, tokens: int) -> tuple[int, int]:
    """Numbers that transformers keeps per token in its cache of keys and values, and beside it."""
    ids = torch.arange(tokens)[None] % 90
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    grows = fixed = 0
    for layer in cache.layers:
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            grows += 0 if tensor is None else tensor.numel()
        for states in (getattr(layer, "conv_states", None), getattr(layer, "recurrent_states", None)):
            found = states.values() if isinstance(states, dict) else states or ()
            fixed += sum(state.numel() for state in found if state is not None)
    return grows, fixed


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_that_transformers_keeps(name: str) -> None:
    model = tiny(name)
    shape = CacheShape.from_config(model.config.to_dict())
    for tokens in (1, 12):  # under every window: past it, transformers keeps one token fewer between two steps
        grows, fixed = kept(model, tokens)
        row = schemes(shape, Options(context=tokens, bits=(32,)))["this model"]
        assert (row.cache_bytes, row.state_bytes) == (4 * grows, 4 * fixed)


def test_latents_and_shared_layers_that_transformers_keeps() -> None:
    small = {k: v for k, v in GROUPED.items() if k not in ("head_dim", "num_key_value_heads")}
    deepseek = hf.deepseek_v3.DeepseekV3Config(
        **small, num_key_value_heads=6, kv_lora_rank=16, q_lora_rank=None, qk_rope_head_dim=4, qk_nope_head_dim=8,
        v_head_dim=8, first_k_dense_replace=3,
    )  # fmt: skip
    falcon = hf.falcon.FalconConfig(
        vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, multi_query=True
    )
    gemma = hf.gemma3n.Gemma3nTextConfig(
        **{**GROUPED, "num_hidden_layers": 5}, num_kv_shared_layers=2, sliding_window=32, vocab_size_per_layer_input=96,
        hidden_size_per_layer_input=8, laurel_rank=4, activation_sparsity_pattern=[0.0] * 5,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    for kind, config in (
        (hf.deepseek_v3.DeepseekV3ForCausalLM, deepseek),
        (hf.falcon.FalconForCausalLM, falcon),
        (hf.gemma3n.Gemma3nForCausalLM, gemma),
    ):
        torch.manual_seed(0)
        row = schemes(CacheShape.from_config(config.to_dict()), Options(context=7, bits=(32,)))["this model"]
        assert (row.cache_bytes, row.state_bytes) == (4 * kept(kind(config).eval(), 7)[0], 0), kind.__name__
    assert row.read_bytes == row.cache_bytes // 3 * 5  # two of five layers read what others keep


def test_plain_names() -> None:
    assert read().layers == (LayerShape(heads=8, kv_heads=8, head_dim=8, v_dim=8),) * 4
    assert read(num_key_value_heads=None, head_dim=None) == read()
    assert read(num_key_value_heads=2, head_dim=32).layers[3] == LayerShape(heads=8, kv_heads=2, head_dim=32, v_dim=32)
    gpt2 = CacheShape.from_config({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024})
    assert gpt2 == CacheShape((LayerShape(heads=12, kv_heads=12, head_dim=64, v_dim=64),) * 12, positions=1024)
    mpt = CacheShape.from_config({"n_layers": 2, "n_heads": 8, "d_model": 64, "attn_config": {"kv_n_heads": 2}})
    assert mpt.layers[0].kv_heads == 2
    assert read(max_position_embeddings=4096).positions == 4096


def test_nested_configs_are_followed() -> None:
    assert CacheShape.from_config({"text_config": BASE, "vision_config": {"num_hidden_layers": 9}}) == read()
    assert CacheShape.from_config({"thinker_config": {"text_config": BASE}, "num_hidden_layers": 1}) == read()


def test_falcon_and_bigcode() -> None:
    assert read(multi_query=True, new_decoder_architecture=False, num_kv_heads=8).layers[0].kv_heads == 1
    assert read(multi_query=True, new_decoder_architecture=True, num_kv_heads=2).layers[0].kv_heads == 2
    assert read(multi_query=False, new_decoder_architecture=False, num_kv_heads=2).layers[0].kv_heads == 8
    assert read(multi_query=True).layers[0].kv_heads == 1


def test_windows() -> None:
    assert windows(read(sliding_window=10)) == [10] * 4  # Mistral
    assert windows(read(sliding_window=None)) == [0] * 4
    qwen = {"sliding_window": 10, "max_window_layers": 3}
    assert windows(read(**qwen, use_sliding_window=False)) == windows(read(**qwen)) == [0] * 4
    assert windows(read(**qwen, use_sliding_window=True)) == [0, 0, 0, 10]
    assert windows(read(sliding_window=10, sliding_window_pattern=2)) == [10, 0, 10, 0]
    assert windows(read(sliding_window=10, sliding_window_pattern="LLG")) == [10, 10, 0, 10]
    assert windows(read(sliding_window=10, model_type="gemma2")) == [10, 0, 10, 0]
    types = ["sliding_attention", "full_attention", "chunked_attention", "full_attention"]
    assert windows(read(sliding_window=10, attention_chunk_size=7, layer_types=types)) == [10, 0, 7, 0]
    assert windows(read(sliding_window=10, layer_types=["full_attention"] * 4)) == [0] * 4


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gemma3n", "gemma4", "cohere2", "gpt_oss", "qwen3_next", "qwen3_5", "olmo3"])  # fmt: skip
def test_the_patterns_are_those_of_transformers(kind: str) -> None:
    """What a config leaves to its class: layer_types left out here, filled in there."""
    named = {"gemma3": "Gemma3TextConfig", "gemma3n": "Gemma3nTextConfig", "gemma4": "Gemma4TextConfig",
             "qwen3_5": "Qwen3_5TextConfig", "gpt_oss": "GptOssConfig", "qwen3_next": "Qwen3NextConfig"}  # fmt: skip
    config = getattr(getattr(hf, kind), named.get(kind, f"{kind.capitalize()}Config"))(num_hidden_layers=60).to_dict()
    whole = CacheShape.from_config(config)
    del config["layer_types"]
    config.pop("sliding_window_pattern", None)
    config.pop("_sliding_window_pattern", None)
    assert CacheShape.from_config(config).kinds() == whole.kinds()
    assert len(whole.kinds()) == 2
    assert CacheShape.from_config(config) == whole


def test_latents() -> None:
    layer = LayerShape(heads=8, kv_heads=8, head_dim=192, v_dim=100, latent=512, rotary=64)
    assert read(**MLA).layers == (layer,) * 4
    assert read(**MLA).layers[0].kind == "latent"
    assert read(**MLA, num_key_value_heads=8, head_dim=64) == read(**MLA)
    sparse = read(**MLA, index_head_dim=128, index_topk=2048, layer_types=["deepseek_sparse_attention"] * 4).layers[0]
    assert (sparse.index, sparse.top_k) == (128, 2048)
    assert read(kv_lora_rank=None) == read()


def test_linear_layers() -> None:
    state = LayerShape(heads=8, state_heads=32, k_dim=128, state_v_dim=96, conv=4 * (2 * 16 * 128 + 32 * 96))
    shape = read(**LINEAR, layer_types=["linear_attention"] * 3 + ["full_attention"])
    assert shape.layers == (state,) * 3 + read().layers[:1]
    assert shape == read(**LINEAR) == read(**LINEAR, full_attention_interval=4)
    assert read(**LINEAR, full_attention_interval=2).kinds() == {"full": 2, "linear": 2}
    kimi = read(
        **MLA, linear_attn_config={"full_attn_layers": [4], "num_heads": 8, "head_dim": 16, "short_conv_kernel_size": 4}
    )
    assert kimi.kinds() == {"latent": 1, "linear": 3}
    assert kimi.layers[0] == LayerShape(heads=8, state_heads=8, k_dim=16, state_v_dim=16, conv=4 * 3 * 8 * 16)
    bamba = {"mamba_n_heads": 16, "mamba_d_head": "auto", "mamba_expand": 2, "mamba_d_state": 32, "mamba_d_conv": 4}
    shape = read(**bamba, attn_layer_indices=[2])
    assert [layer.kind for layer in shape.layers] == ["linear", "linear", "full", "linear"]
    assert shape.layers[0] == LayerShape(heads=8, state_heads=16, k_dim=32, state_v_dim=8, conv=4 * (128 + 2 * 32))
    mixed = read(**bamba, conv_L_cache=3, layer_types=["hybrid", "conv", "moe", "full_attention"])
    assert mixed.kinds() == {"conv": 1, "full": 1, "hybrid": 1, "none": 1}
    assert mixed.layers[1].conv == 64 * 3
    assert mixed.attention == (mixed.layers[0], mixed.layers[3])


def test_layers_of_their_own() -> None:
    types = ["sliding_attention", "full_attention"] * 2
    shape = read(sliding_window=10, layer_types=types, per_layer_config={"3": {"head_dim": 32}}, num_kv_shared_layers=1)
    assert [layer.head_dim for layer in shape.layers] == [8, 8, 8, 32]
    assert [layer.shared for layer in shape.layers] == [False, False, False, True]
    gemma4 = {"sliding_window": 10, "layer_types": types, "global_head_dim": 32, "num_global_key_value_heads": 2}
    assert [(x.kv_heads, x.head_dim) for x in read(**gemma4, attention_k_eq_v=True).layers[:2]] == [(8, 8), (2, 32)]
    assert read(**gemma4).layers[1].kv_heads == 8


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "number of layers: looked for num_hidden_layers, n_layer"),
        ({"num_hidden_layers": 2}, "number of heads: looked for num_attention_heads, n_head"),
        ({"num_hidden_layers": 2, "num_attention_heads": 4}, "size of a head: looked for head_dim, hidden_size, n_embd"),
        ({**BASE, "hidden_size": 63}, "no multiple of its 8 heads"),
        ({**BASE, "num_hidden_layers": 0}, "num_hidden_layers in the config must be a whole number from 1"),
        ({**BASE, "num_hidden_layers": 10**9}, "layers must be"),
        ({**BASE, "num_attention_heads": -8}, "num_attention_heads in the config"),
        ({**BASE, "head_dim": "64"}, "head_dim in the config must be a whole number from 1 to .*, got '64'"),
        ({**BASE, "num_key_value_heads": 3}, "8 heads cannot share 3"),
        ({**BASE, "num_key_value_heads": [8, 8, 4, 4]}, "num_key_value_heads in the config"),
        ({**BASE, "layer_types": ["full_attention"]}, "list of 4 names"),
        ({**BASE, "layer_types": "full"}, "list of 4 names"),
        ({**BASE, "layer_types": ["spiral_attention"] * 4}, "'spiral_attention' in the config is not known"),
        ({**BASE, "layer_types": ["sliding_attention"] * 4}, "window of its sliding layers: looked for sliding_window"),
        ({**BASE, "layer_types": ["linear_attention"] * 4}, "linear layers: looked for linear_num_value_heads"),
        ({**BASE, "layer_types": ["conv"] * 4}, "looked for conv_L_cache"),
        ({**BASE, "sliding_window": 5, "sliding_window_pattern": "LX"}, "letters L and G"),
        ({**BASE, "sliding_window": 5, "sliding_window_pattern": [1]}, "sliding_window_pattern"),
        ({**BASE, "kv_lora_rank": 512}, "looked for qk_rope_head_dim"),
        ({**BASE, "num_kv_shared_layers": 5}, "num_kv_shared_layers is 5, of 4 layers"),
        ({**BASE, "per_layer_config": [1]}, "per_layer_config"),
        ({**BASE, "is_encoder_decoder": True}, "encoder-decoder"),
        ([1], "got list"),
    ],
)  # fmt: skip
def test_bad_configs(config: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        CacheShape.from_config(config)


def test_numbers_instead_of_a_config() -> None:
    shape = CacheShape.uniform(3, 8, 64, kv_heads=2, sliding_layers=1, window=9, linear_layers=2)
    assert shape.kinds() == {"full": 2, "linear": 2, "sliding": 1}
    assert shape.layers[0] == LayerShape(heads=8, state_heads=8, k_dim=64, state_v_dim=64)
    assert [group["count"] for group in shape.groups()] == [2, 1, 2]
    assert "1 sliding layer: 8 heads, 2 key-value, of size 64; the last 9 tokens" in shape.describe()
    for wrong in ({"kv_heads": 0}, {"kv_heads": 3}, {"v_dim": -1}, {"sliding_layers": 4}, {"window": 0},
                  {"linear_layers": -1}, {"linear_heads": 0}, {"linear_k_dim": 0}, {"latent": -1}):  # fmt: skip
        with pytest.raises(ArgumentError):
            CacheShape.uniform(3, 8, 64, **wrong)
    for three in ((0, 8, 64), (3, 0, 64), (3, 8, 0)):
        with pytest.raises(ArgumentError):
            CacheShape.uniform(*three)


def test_examples() -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
