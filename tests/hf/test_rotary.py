"""Every kind of rotation that transformers ships, found by asking the model; exact at any position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from streams import in_parts, rotated_afresh, sinks_and_recent
from transformers import AutoModelForCausalLM
from transformers import models as hf

import sinkgate as sg
from models import CONFIGS, GROUPED, tiny
from sinkgate.errors import UnsupportedError
from sinkgate.hf.layers import attention_layers
from sinkgate.hf.rotary import find_rotations
from sinkgate.rope import Rotation

BASE = {"rope_theta": 10000.0}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", **BASE},
    "linear": {"rope_type": "linear", "factor": 4.0, **BASE},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, **BASE},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, **BASE},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, **BASE,
    },
    "longrope": {
        "rope_type": "longrope", "factor": 4.0, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 64, **BASE,
    },
    "partial": {"rope_type": "default", "partial_rotary_factor": 0.5, **BASE},
}  # fmt: skip
IDS = torch.randint(0, 96, (1, 150), generator=torch.Generator().manual_seed(1))


def scaled(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    length = {"dynamic": 100, "llama3": 512, "yarn": 512, "longrope": 256}.get(kind, 512)
    config = hf.llama.LlamaConfig(**{**GROUPED, "max_position_embeddings": length}, rope_parameters=KINDS[kind])
    if kind == "partial":
        config = hf.stablelm.StableLmConfig(**GROUPED, rope_parameters=KINDS[kind])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim >= 2 and "embed" not in name:
                p.mul_(8.0)
    return model.to(dtype).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_slots_with_every_kind(kind: str) -> None:
    model = scaled(kind)
    before = {n: b.clone() for n, b in model.named_buffers()}
    want = rotated_afresh(model, IDS, sinks_and_recent(20, 3))
    for sizes in ([150], [1], [9, 40, 1]):
        with sg.streaming(model, "recent(20) + sinks(3)", positions="slots") as cache:
            got = in_parts(model, IDS, cache, sizes)
        assert (got - want).abs().max() < 1e-11
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name  # frequencies that grow with the length must not have grown


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in ("gpt2",)])
def test_tables_are_the_models_own(name: str) -> None:
    model = tiny(name)
    found, seen = find_rotations(model), {}

    def note(module: Any, _args: Any, kwargs: Any) -> None:
        seen[module.layer_idx] = kwargs["position_embeddings"]

    hooks = [a.module.register_forward_pre_hook(note, with_kwargs=True) for a in attention_layers(model)]
    with torch.no_grad():
        model(IDS[:, :30])
    for hook in hooks:
        hook.remove()
    assert set(found) == set(seen)
    for layer, rotation in found.items():
        assert isinstance(rotation, Rotation)
        for a, b in zip(rotation.cos_sin(torch.arange(30)[None], torch.float32), seen[layer], strict=True):
            assert (a - b).abs().max() < 5e-6 * max(1.0, float(b.abs().max()))


def test_none_learned_and_unknown() -> None:
    assert find_rotations(tiny("gpt2")) == {0: None, 1: None, 2: None}
    smol = hf.smollm3.SmolLM3Config(**{**GROUPED, "num_hidden_layers": 4})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(smol).double().eval()
    found = find_rotations(model)
    still = found[3]  # a layer without positions
    assert isinstance(still, Rotation)
    x = torch.randn(1, 1, 3, 8, dtype=torch.float64)
    assert torch.equal(still.turn(x, torch.tensor([5, 6, 7])), x)
    want = rotated_afresh(model, IDS, sinks_and_recent(20, 3))
    with sg.streaming(model, "recent(20) + sinks(3)") as cache:
        assert (in_parts(model, IDS, cache, [9]) - want).abs().max() < 1e-11


@pytest.mark.parametrize("config", ["glm", "cohere"])
def test_pairs_side_by_side(config: str) -> None:
    made = hf.glm.GlmConfig(**GROUPED) if config == "glm" else hf.cohere.CohereConfig(
        **{k: v for k, v in GROUPED.items() if k != "head_dim"}
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(made).double().eval()
    rotation = find_rotations(model)[0]
    assert isinstance(rotation, Rotation)
    assert rotation.interleaved
    want = rotated_afresh(model, IDS, sinks_and_recent(20, 3))
    with sg.streaming(model, "recent(20) + sinks(3)") as cache:
        assert (in_parts(model, IDS, cache, [9]) - want).abs().max() < 1e-6  # cohere's softmax is float32


def test_token_a_million_is_as_right_as_token_a_thousand() -> None:
    """In float32, against float64: the same error wherever the stream is. The model's own tables are off by far more."""
    model, wide = tiny("llama"), tiny("llama", dtype=torch.float64)
    errors = {}
    for m in (model, wide):
        m.config.max_position_embeddings = 10**9  # or a warning would say, rightly, that it never saw such distances
    for begin in (1_000, 1_000_000, 30_000_000):
        found = {}
        for m in (model, wide):
            for scheme in ("slots", "original"):
                with (
                    sg.streaming(m, "recent(20) + sinks(2, token_ids=[3])", positions=scheme) as cache,
                    torch.no_grad(),
                ):
                    cache.begin(1, None, None, 1, torch.device("cpu"))
                    cache.counts += begin  # as if so many tokens had gone by
                    found[m is wide, scheme] = in_parts(m, IDS, cache, [7])
        for scheme in ("slots", "original"):
            errors[begin, scheme] = float((found[False, scheme].double() - found[True, scheme]).abs().max())
        same = in_parts_from_zero(wide)
        assert (found[True, "slots"] - same).abs().max() < 1e-8  # a stream does not know how old it is
    for scheme in ("slots", "original"):
        assert errors[1_000_000, scheme] < 3 * errors[1_000, scheme] + 1e-6
        assert errors[30_000_000, scheme] < 3 * errors[1_000, scheme] + 1e-6
    at = torch.arange(150)[None]
    with torch.no_grad():
        near, far = (model(IDS, position_ids=at + begin).logits for begin in (0, 1_000_000))
    assert (near - far).abs().max() > 50 * max(errors.values())  # the trap is there


def in_parts_from_zero(model: Any) -> torch.Tensor:
    with sg.streaming(model, "recent(20) + sinks(2, token_ids=[3])", positions="slots") as cache:
        return in_parts(model, IDS, cache, [7])


def test_angles_in_float64() -> None:
    """A key turned by 10⁶ positions and back is itself; turning adds up."""
    rotation = find_rotations(tiny("llama"))[0]
    assert isinstance(rotation, Rotation)
    x = torch.randn(1, 2, 5, 8)
    far = torch.tensor([10**6, -(10**6), 999_983, 3, 0])
    assert (rotation.turn(rotation.turn(x, far), -far) - x).abs().max() < 1e-6
    assert (rotation.turn(rotation.turn(x, far), 7 - far) - rotation.turn(x, torch.full((5,), 7))).abs().max() < 2e-6
    naive = (far[:, None].float() * rotation.omega.float()).cos() - rotation.angles(far, torch.float32)[0]
    assert naive.abs().max() > 1e-3


def test_frequencies_that_change_are_refused_where_they_would() -> None:
    model = scaled("dynamic")
    with sg.streaming(model, "recent(20) + sinks(3)", positions="original") as cache:
        model(IDS[:, :90], cache=cache)
        with pytest.raises(UnsupportedError, match=r"changes beyond 100 tokens.*positions='slots'"):
            model(IDS[:, 90:], cache=cache)
    with pytest.raises(UnsupportedError, match="changes beyond 100 tokens, and the policy keeps 120"):
        sg.streaming(model, "recent(120)", positions="slots").__enter__()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma3"])
def test_the_scale_is_the_models_own_in_any_dtype(name: str, dtype: torch.dtype) -> None:
    """Not what is left of it after rounding: in bfloat16 that is off by a thousandth, in every score."""
    m = tiny(name, attn="eager", dtype=dtype)
    scales = {r.scale for r in find_rotations(m).values() if isinstance(r, Rotation)}
    assert scales == {0.1 * math.log(32.0) + 1.0 if name == "gpt_oss" else 1.0}
