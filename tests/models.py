"""Seeded tiny models of every architecture the tests speak of, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import models as hf

VOCABULARY = 96
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
}
GROUPED: dict[str, Any] = {
    **COMMON,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _llama() -> Any:
    return hf.llama.LlamaConfig(**GROUPED)


def _qwen3() -> Any:
    return hf.qwen3.Qwen3Config(**GROUPED)


def _gemma3() -> Any:
    return hf.gemma3.Gemma3TextConfig(
        **GROUPED,
        sliding_window=16,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )


def _gemma2() -> Any:
    return hf.gemma2.Gemma2Config(
        **GROUPED, sliding_window=16, query_pre_attn_scalar=8, attn_logit_softcapping=2.0,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip


def _gpt2() -> Any:
    return hf.gpt2.GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=3, n_head=6, n_positions=512, bos_token_id=None, eos_token_id=None
    )


def _gpt_neox() -> Any:
    return hf.gpt_neox.GPTNeoXConfig(**COMMON, intermediate_size=64, bos_token_id=None, eos_token_id=None)


def _mistral() -> Any:
    return hf.mistral.MistralConfig(**GROUPED, sliding_window=16)


def _gpt_oss() -> Any:
    return hf.gpt_oss.GptOssConfig(
        **GROUPED, sliding_window=16, num_local_experts=2, num_experts_per_tok=1,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip


def _qwen3_next() -> Any:
    return hf.qwen3_next.Qwen3NextConfig(
        **GROUPED, layer_types=["linear_attention", "full_attention", "full_attention"], linear_num_value_heads=4,
        linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16, decoder_sparse_step=1, mlp_only_layers=[],
    )  # fmt: skip


CONFIGS = {
    "llama": _llama, "qwen3": _qwen3, "gemma3": _gemma3, "gemma2": _gemma2, "gpt2": _gpt2, "gpt_neox": _gpt_neox,
    "mistral": _mistral, "gpt_oss": _gpt_oss, "qwen3_next": _qwen3_next,
}  # fmt: skip


def tiny(name: str, *, attn: str | None = None, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A model whose heads prefer some keys clearly: the default initialisation is nearly uniform."""
    config = CONFIGS[name]()
    torch.manual_seed(seed)
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}  # grouped products know no float64
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attn, **experts)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim >= 2 and "embed" not in key and "wte" not in key:
                parameter.mul_(8.0)
            if key.endswith("sinks"):
                parameter.normal_(0, 1.0)
            if key.endswith("bias"):
                parameter.normal_(0, 0.1)
            if "norm" in key and key.endswith("weight"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.to(dtype).eval()


def tokenizer(*, bos: bool = False) -> PreTrainedTokenizerFast:
    """One token per word ``w0`` … and a few marks; ``<s>`` is put first if ``bos``."""
    words = ["<s>", "<pad>", ",", ".", *(f"w{i}" for i in range(VOCABULARY - 4))]
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=","))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        from tokenizers.processors import TemplateProcessing

        core.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", pad_token="<pad>")


def words(n: int, seed: int = 0) -> str:
    """``n`` words of the tiny vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return " ".join(f"w{i}" for i in torch.randint(0, VOCABULARY - 4, (n,), generator=generator).tolist())
