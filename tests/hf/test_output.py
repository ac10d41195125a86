"""The map from head outputs to the residual stream is found by trying, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from models import VOCABULARY, tiny
from sinkgate.hf.anatomy import Layer, trace


def ids(length: int = 24) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(2))


def first(model: nn.Module, index: int = 1) -> Layer:
    return trace(model, ids()).layers[index]


def gram(weight: torch.Tensor, heads: int = 6) -> torch.Tensor:
    """From the transposed linear weight [in, D]."""
    rows = weight.detach().float().unflatten(0, (heads, -1))
    return rows @ rows.transpose(-1, -2)


def test_plain_linear_and_conv1d() -> None:
    llama = tiny("llama")
    torch.testing.assert_close(first(llama).output_map.gram, gram(llama.model.layers[1].self_attn.o_proj.weight.T))
    gpt2 = tiny("gpt2")
    layer = first(gpt2)
    assert layer.output_module is gpt2.transformer.h[1].attn.c_proj
    torch.testing.assert_close(
        layer.output_map.gram, gram(gpt2.transformer.h[1].attn.c_proj.weight), atol=1e-4, rtol=1e-4
    )


def test_the_bias_belongs_to_no_head() -> None:
    model = tiny("gpt2")
    before = first(model).output_map.gram
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.bias.add_(100.0)
    torch.testing.assert_close(first(model).output_map.gram, before, atol=1e-2, rtol=1e-3)


class LowRank(nn.Module):
    """The shape of a LoRA layer: a frozen base and two factors beside it."""

    def __init__(self, base: nn.Linear, rank: int = 3) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_b(self.lora_a(x))


class Int8(nn.Module):
    """Weight-only quantisation: int8 and one scale per output channel."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("packed", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.packed.float() * self.scale).T


def test_lora_and_weight_only_quantisation() -> None:
    torch.manual_seed(0)
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    base = attention.o_proj
    attention.o_proj = lora = LowRank(base)
    whole = base.weight + lora.lora_b.weight @ lora.lora_a.weight
    layer = first(model)
    assert layer.output_module is lora
    torch.testing.assert_close(layer.output_map.gram, gram(whole.T), atol=1e-4, rtol=1e-4)
    attention.o_proj = packed = Int8(base)
    torch.testing.assert_close(
        first(model).output_map.gram, gram((packed.packed.float() * packed.scale).T), atol=1e-4, rtol=1e-4
    )


def test_a_square_query_projection_is_not_mistaken_for_it() -> None:
    model = tiny("llama")
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.weight.shape == attention.o_proj.weight.shape
    assert first(model, 0).output_module is attention.o_proj


def test_the_models_own_gate_is_seen() -> None:
    layers = trace(tiny("qwen3_next"), ids()).layers
    assert layers[1].output_map.gated
    assert layers[2].output_map.gated
    assert not trace(tiny("qwen3"), ids()).layers[1].output_map.gated


def test_a_norm_behind_the_map_is_followed_with_its_gain() -> None:
    model = tiny("gemma3")
    layer = first(model)
    assert layer.output_map.frozen_norm
    norm = model.model.layers[1].post_attention_layernorm
    assert layer.norm_module is norm
    torch.testing.assert_close(layer.norm_gain, 1 + norm.weight.detach(), atol=1e-4, rtol=1e-4)
    assert not first(tiny("llama")).output_map.frozen_norm


class Curved(nn.Module):
    """No linear map."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.base(x))


class Scaled(nn.Module):
    """A fixed scale per channel behind the map: linear, so it is composed with it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda a: setattr(a, "o_proj", Curved(a.o_proj)), "not linear"),
        (lambda a: _functional(a), "no module of"),
        (lambda a: _squared(a), "not a gate"),
    ],
)
def test_otherwise_there_is_no_map_and_the_reason_is_told(break_it: Any, reason: str) -> None:
    model = tiny("llama")
    break_it(model.model.layers[1].self_attn)
    layers = trace(model, ids()).layers
    assert layers[1].output_map is None
    assert reason in layers[1].no_map_reason
    assert layers[0].output_map is not None


def _functional(attention: nn.Module) -> None:
    """The output map as a bare parameter: no module is called."""
    weight = nn.Parameter(attention.o_proj.weight.detach().clone())
    del attention.o_proj
    attention.out_weight = weight
    attention.o_proj = lambda x: x @ weight.T  # a plain function, not a module


def _squared(attention: nn.Module) -> None:
    """Something that is no gate between the heads and the map."""
    linear = attention.o_proj
    del attention.o_proj
    attention.linear = linear
    attention.o_proj = lambda x: linear(x * x.abs())


def test_a_linear_scale_behind_the_map_is_composed() -> None:
    model = tiny("gemma3")
    width = model.config.hidden_size
    model.model.layers[1].post_attention_layernorm = Scaled(width)
    layer = first(model)
    weight = model.model.layers[1].self_attn.o_proj.weight.T * model.model.layers[1].post_attention_layernorm.scale
    assert not layer.output_map.frozen_norm
    torch.testing.assert_close(layer.output_map.gram, gram(weight), atol=1e-3, rtol=1e-3)


def test_an_unknown_module_behind_the_map_gives_no_map() -> None:
    model = tiny("gemma3")
    model.model.layers[1].post_attention_layernorm = nn.LayerNorm(model.config.hidden_size)
    layer = first(model)
    assert layer.output_map is None
    assert "LayerNorm" in layer.no_map_reason
