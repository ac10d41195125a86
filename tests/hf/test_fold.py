"""A folded first token is the token put in front; at a fixed distance it is where the formula of rotation says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_reading import ids
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers import models as hf

from models import GROUPED, VOCABULARY, tiny
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.first_token import alone
from sinkgate.hf.fold import fold
from sinkgate.rope import rotate


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "gpt_neox", "mistral"])
def test_a_folded_token_is_the_token_in_front(name: str) -> None:
    model, x = tiny(name, dtype=torch.float64), ids(13, 2)  # shorter than the windows
    token = torch.full((2, 1), 7)
    with torch.no_grad():
        want = forward(model, torch.cat([token, x], 1))[:, 1:]
        fold(model, [7], layers=[0, 1, 2])
        torch.testing.assert_close(forward(model, x), want, rtol=1e-4, atol=2e-5)  # the cosines are float32


def test_learned_positions_fold_at_their_first() -> None:
    model, x = tiny("gpt2", dtype=torch.float64), ids(20)
    both = torch.cat([torch.full((1, 1), 7), x], 1)
    positions = torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(20)])[None]
    with torch.no_grad():
        want = model(both, position_ids=positions, attention_mask=torch.ones_like(both), use_cache=False).logits[:, 1:]
        fold(model, [7])
        torch.testing.assert_close(forward(model, x), want, rtol=1e-8, atol=1e-8)


def yarn() -> Any:
    torch.manual_seed(0)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
    config = hf.llama.LlamaConfig(**GROUPED, rope_parameters=scaling)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim >= 2:
                p.mul_(8.0)
    return model.double().eval()


@pytest.mark.parametrize("distance", [1, 5, 40])
def test_a_fixed_distance(distance: int) -> None:
    """The key of query i is rotated to position i − distance, one key per query, densely."""
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    embedding = model.get_input_embeddings().weight[[7]]
    bare = alone(model, embedding, 0)  # at position 0 a rotation is nothing
    where = torch.arange(30) - distance

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **kw: Any) -> Any:
        key, value = bare[module.layer_idx]
        keys = rotate(key[0, :, None].expand(-1, 30, -1), where)  # [kv, t, d]
        extra = torch.einsum("bhtd,htd->bht", q, keys.repeat_interleave(3, 0).to(q.dtype))
        s = torch.cat([extra[..., None], q @ k.repeat_interleave(3, 1).transpose(-1, -2)], -1) * kw["scaling"]
        s[..., 1:] += mask[..., : k.shape[-2]]
        v = torch.cat([value[0, :, None].expand(-1, 1, -1)[None], v], 2).repeat_interleave(3, 1)
        return (s.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    attention, masks = compat.interfaces()
    attention.register("tests_fold", function)
    masks.register("tests_fold", masks["eager"])
    other = copy.deepcopy(model)
    for config in compat.configs(other):
        compat.set_implementation(config, "tests_fold")
    with torch.no_grad():
        fold(model, [7], distance=distance)
        torch.testing.assert_close(forward(model, x), forward(other, x), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "make",
    [lambda: tiny("llama", dtype=torch.float64), yarn, lambda: tiny("gpt_neox", dtype=torch.float64)],
    ids=["llama", "yarn", "partial"],
)
def test_a_query_at_this_distance_sees_what_it_would_see_in_place(make: Any) -> None:
    """Query i of a text with the folded key at distance i + 1 is query i with the token really in front."""
    model, x = make(), ids(12)
    token = torch.full((1, 1), 7)
    with torch.no_grad():
        want = forward(model, torch.cat([token, x[:, :1]], 1))[:, 1]
        fold(model, [7], distance=1)
        got = forward(model, x[:, :1])[:, 0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)


def test_the_mean_of_several_tokens() -> None:
    model = tiny("llama", dtype=torch.float64)
    each = [alone(model, model.get_input_embeddings().weight[[t]], -1) for t in (3, 9)]
    found = fold(model, [3, 9])
    for layer, outlet in found.layers.items():
        torch.testing.assert_close(outlet.key.data, (each[0][layer][0][0] + each[1][layer][0][0]) / 2)
        torch.testing.assert_close(outlet.value.data, (each[0][layer][1][0] + each[1][layer][1][0]) / 2)


def test_sliding_layers_are_left_out_unless_named() -> None:
    assert list(fold(tiny("gemma3"), [7]).layers) == [1]
    assert list(fold(tiny("gemma3"), [7], layers=[0, 2]).layers) == [0, 2]
    with pytest.raises(UnsupportedError, match="every layer of this model has a sliding window"):
        fold(tiny("mistral"), [7])


def test_some_heads() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(20)
    with torch.no_grad():
        plain = forward(model, x)
        found = fold(model, [7], heads=[(2, 1)])
        assert list(found.layers) == [2]
        seen: list[Tensor] = []
        hook = model.model.layers[2].self_attn.o_proj.register_forward_pre_hook(lambda _m, a: seen.append(a[0]))
        got = forward(model, x)
        hook.remove()
    assert not torch.equal(got, plain)
    assert found.heads() == [(2, 1)]


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="tokens is empty"):
        fold(tiny("llama"), [])
    with pytest.raises(ArgumentError, match="distance must be at least 1"):
        fold(tiny("llama"), [7], distance=0)
    with pytest.raises(UnsupportedError, match="positions are learned"):
        fold(tiny("gpt2"), [7], distance=4)
    with pytest.raises(UnsupportedError, match="learned sink logits"):
        fold(tiny("gpt_oss"), [7], layers=[1])


assert VOCABULARY > 9
