"""What a stream cannot do is refused by name, with the numbers and the way out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers import models as hf

import sinkgate as sg
from models import tiny
from sinkgate.errors import ArgumentError, UnsupportedError

IDS = torch.randint(0, 96, (1, 60), generator=torch.Generator().manual_seed(1))


def enter(model: Any, policy: Any = "recent(8) + sinks(2)", **settings: Any) -> None:
    with sg.streaming(model, policy, **settings):
        pass


def test_learned_positions() -> None:
    m = tiny("gpt2")
    with pytest.raises(UnsupportedError, match=r"learned positions.*positions='original'"):
        enter(m)
    with sg.streaming(m, "recent(8) + sinks(2)", positions="original") as cache, torch.no_grad():
        m(IDS.repeat(1, 9)[:, :512], cache=cache)
        with pytest.raises(UnsupportedError, match="has 512 learned positions and the text reaches token 513"):
            m(IDS[:, :1], cache=cache)


def test_alibi_is_refused_by_name() -> None:
    for config in (
        hf.bloom.BloomConfig(vocab_size=96, hidden_size=48, n_layer=2, n_head=6),
        hf.mpt.MptConfig(vocab_size=96, d_model=48, n_layers=2, n_heads=6),
        hf.falcon.FalconConfig(vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, alibi=True),
    ):
        torch.manual_seed(0)
        m = AutoModelForCausalLM.from_config(config).eval()
        with pytest.raises(UnsupportedError, match=type(m).__name__):
            enter(m)


def test_latent_attention_is_refused_by_name() -> None:
    config = hf.deepseek_v3.DeepseekV3Config(
        vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=64, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        first_k_dense_replace=2, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    m = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedError, match=r"DeepseekV3ForCausalLM cannot be re-rotated.*MLA"):
        enter(m)


def test_windows_and_contexts_with_their_numbers() -> None:
    m = tiny("llama")
    with pytest.warns(UserWarning, match="keeps 602 tokens, but LlamaForCausalLM was made for 512 positions"):
        enter(m, "recent(600) + sinks(2)")
    with pytest.warns(UserWarning, match="window of 16 tokens, and the policy shows it more"):
        enter(tiny("mistral"), "recent(30) + sinks(2)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        enter(tiny("mistral"), "recent(16) + sinks(2)")
        with sg.streaming(m, "recent(8) + sinks(2)", positions="slots") as cache, torch.no_grad():
            m(IDS.repeat(1, 10), cache=cache)  # never leaves what it was trained on
        with sg.streaming(m, "recent(8)", positions="original") as cache, torch.no_grad():
            m(IDS.repeat(1, 10), cache=cache)  # nothing is further away than 8
    with sg.streaming(m, "recent(8) + sinks(2)", positions="original") as cache, torch.no_grad():
        m(IDS.repeat(1, 8), cache=cache)
        with pytest.warns(
            UserWarning, match="made for 512 positions and the text reaches token 540.*539 positions away"
        ):
            m(IDS, cache=cache)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            m(IDS, cache=cache)  # once


def test_all_layers_with_a_window_get_the_policy() -> None:
    from streams import band, in_parts, masked

    m = tiny("mistral", attn="sdpa", dtype=torch.float64)
    with sg.streaming(m, "recent(10) + sinks(2)", positions="original") as cache:
        got = in_parts(m, IDS, cache, [7])
        assert cache.held() == 12
    assert (got - masked(m, IDS, band(60, 10, 2))).abs().max() < 1e-12


@pytest.mark.parametrize(
    "policy", ["recnt(4)", "recent(4", "recent()", "sinks(4)", "recent(0)", "recent(-3)", "", "4", "recent(4) * 2"]
)
def test_policies_that_are_none(policy: str) -> None:
    with pytest.raises(ArgumentError) as err:
        enter(tiny("llama"), policy)
    assert "\n" not in str(err.value)
    if policy in ("recnt(4)", "recent(4", "", "4", "recent(4) * 2"):
        assert "a policy is written as 'recent(1020) + sinks(4)'" in str(err.value)


def test_sinks_by_id_want_ids() -> None:
    m = tiny("llama")
    embeddings = m.get_input_embeddings()(IDS).detach()
    stream = sg.streaming(m, "recent(8) + sinks(token_ids=[3])")
    with stream as cache, pytest.raises(ArgumentError, match="give the model input_ids"):
        m(inputs_embeds=embeddings, cache=cache)


def test_keys_of_other_layers_are_refused() -> None:
    config = hf.gemma3n.Gemma3nTextConfig(
        vocab_size=96, vocab_size_per_layer_input=96, hidden_size=48, hidden_size_per_layer_input=8, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64, num_kv_shared_layers=2,
        layer_types=["full_attention"] * 4, laurel_rank=4, activation_sparsity_pattern=None, pad_token_id=0,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    m = AutoModelForCausalLM.from_config(config).eval()
    with (
        pytest.raises(UnsupportedError, match=r"shared between layers|cannot be"),
        sg.streaming(m, "recent(8)") as cache,
    ):
        m(IDS, cache=cache)
