"""The lab's decoder against transformers' Llama and against a plain form of every arm; its start; YaRN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import GATES, as_arm
from sinkgate.lab.decoder import PRESETS, Decoder, DecoderConfig
from sinkgate.lab.measure import band
from sinkgate.rope import yarn
from sinkgate.weighting import names

SIZES = DecoderConfig(50, dim=32, layers=2, heads=4, kv_heads=2, context=24)
IDS = torch.randint(0, 50, (2, 24), generator=torch.Generator().manual_seed(0))


def llama(model: Decoder) -> LlamaForCausalLM:
    """The same weights in transformers' own model."""
    c = model.config
    config = LlamaConfig(
        vocab_size=c.vocab, hidden_size=c.dim, intermediate_size=c.hidden, num_hidden_layers=c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, max_position_embeddings=c.context, rms_norm_eps=1e-6,
        tie_word_embeddings=c.tied, rope_parameters={"rope_type": "default", "rope_theta": c.theta},
    )  # fmt: skip
    other = LlamaForCausalLM(config).to(next(model.parameters()).dtype)
    weights = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    if not c.tied:
        weights["lm_head.weight"] = model.head.weight
    for i, block in enumerate(model.blocks):
        for ours, theirs in {
            "attention.q_proj": "self_attn.q_proj", "attention.k_proj": "self_attn.k_proj", "attention.v_proj": "self_attn.v_proj",
            "attention.o_proj": "self_attn.o_proj", "mlp_gate": "mlp.gate_proj", "mlp_up": "mlp.up_proj",
            "mlp_down": "mlp.down_proj", "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
        }.items():  # fmt: skip
            weights[f"model.layers.{i}.{theirs}.weight"] = block.get_submodule(ours).weight
    missing, unexpected = other.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not set(missing) - {"lm_head.weight"}
    return other.eval()


@pytest.mark.parametrize("tied", [True, False])
def test_softmax_is_llama(tied: bool) -> None:
    config = DecoderConfig(50, dim=32, layers=2, heads=4, kv_heads=2, context=24, tied=tied, std=0.2)
    model = Decoder(config, seed=3).double()
    torch.testing.assert_close(model(IDS), llama(model)(IDS).logits, rtol=0, atol=1e-5)  # float32 angles: 24·6e-8 rad
    assert sum(p.numel() for p in model.parameters()) == config.parameters()


def plain(model: Decoder, ids: Tensor) -> Tensor:
    """Any arm, written out with T×T weights."""
    arm, c = model.arm, model.config
    x = model.embedding(ids)
    if model.sink is not None:
        x = torch.cat([model.sink.expand(len(ids), -1, -1), x], 1)
    t, d, group = x.shape[1], c.dim // c.heads, c.heads // (c.kv_heads or 1)
    angle = torch.arange(t)[:, None].double() * c.theta ** (-torch.arange(0, d, 2).double() / d)
    turn = torch.polar(torch.ones_like(angle), angle)

    def turned(y: Tensor) -> Tensor:
        y = torch.view_as_real(torch.complex(*y.double().chunk(2, -1)) * turn)
        return torch.cat([y[..., 0], y[..., 1]], -1)

    norm = lambda y, gain: y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gain  # noqa: E731
    for block in model.blocks:
        a = block.attention
        h = norm(x, block.attention_norm.weight)
        q, k, v = ((h @ w.weight.T).unflatten(-1, (-1, d)).transpose(1, 2) for w in (a.q_proj, a.k_proj, a.v_proj))
        if arm.qk_norm:
            least = torch.finfo(q.dtype).eps  # nn.RMSNorm's own default
            q, k = (
                y * (y.square().mean(-1, keepdim=True) + least).rsqrt() * g
                for y, g in ((q, a.q_norm.weight), (k, a.k_norm.weight))
            )
        at = arm.gate.position if arm.gate else ""
        if at in ("G2", "G3", "G4"):
            which = {"G2": v, "G3": k, "G4": q}[at]
            gated = which * torch.sigmoid(a.gate.raw(h))
            q, k, v = (gated if y is which else y for y in (q, k, v))
        q, k = turned(q), turned(k)
        scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(d)
        y = a.weighting.weights(scores, band(t, t, arm.window, arm.keep)) @ v.repeat_interleave(group, 1)
        if arm.head_norm:
            y = norm(y, a.head_gain)
        if at == "G1":
            y = arm.gate.apply(y, a.gate.raw(h))  # type: ignore[union-attr]
        y = y.transpose(1, 2).flatten(2) @ a.o_proj.weight.T
        x = x + (y * torch.sigmoid(a.gate.raw(h)) if at == "G5" else y)
        h = norm(x, block.mlp_norm.weight)
        x = x + (F.silu(h @ block.mlp_gate.weight.T) * (h @ block.mlp_up.weight.T)) @ block.mlp_down.weight.T
    return norm(x[:, arm.sink_tokens :], model.norm.weight) @ model.head.weight.T


@pytest.mark.parametrize(
    "text",
    [
        *names(), *(f"softmax + {g}" for g in GATES), "softmax + window(5)", "softpick + window(5) + keep(2) + g1",
        "softmax + sink_token(3)", "softmax + head_norm", "sigmoid + qk_norm", "softmax + head_norm + g1_head", "softmax + wider(g1)",
    ],
)  # fmt: skip
def test_every_arm_is_its_plain_form(text: str) -> None:
    config = DecoderConfig(50, dim=32, layers=2, heads=4, kv_heads=2, context=24, std=0.3)
    model = Decoder(config, as_arm(text), seed=1).double()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1 or p.ndim == 3:  # gains, sink logits
                p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    torch.testing.assert_close(model(IDS), plain(model, IDS), rtol=1e-5, atol=1e-5)  # angles are float32


def test_arms_of_a_seed_start_alike() -> None:
    base = dict(Decoder(SIZES, as_arm("softmax"), seed=5).named_parameters())
    for text in ("softmax + g1", "sink_softmax", "softmax + sink_token", "softmax + head_norm + qk_norm"):
        for name, p in Decoder(SIZES, as_arm(text), seed=5).named_parameters():
            if name in base:
                assert torch.equal(p, base[name]), name
    wider = dict(Decoder(SIZES, as_arm("softmax + wider(g1)"), seed=5).named_parameters())
    assert torch.equal(wider["blocks.0.attention.q_proj.weight"], base["blocks.0.attention.q_proj.weight"])
    other = dict(Decoder(SIZES, seed=6).named_parameters())
    assert not torch.equal(other["embedding.weight"], base["embedding.weight"])
    assert abs(base["embedding.weight"].std().item() / 0.02 - 1) < 0.1
    assert abs(base["blocks.1.mlp_down.weight"].std().item() / 0.01 - 1) < 0.1  # 0.02 / √(2·2)


def test_a_wider_mlp_has_the_gates_parameters() -> None:
    count = lambda text: sum(p.numel() for p in Decoder(SIZES, as_arm(text)).parameters())  # noqa: E731
    gate = count("softmax + g1") - count("softmax")
    assert gate == 2 * 32 * 32
    assert abs(count("softmax + wider(g1)") - count("softmax") - gate) <= 2 * 3 * 32 / 2


def test_the_loss_is_cross_entropy_of_the_next_token() -> None:
    model = Decoder(SIZES)
    logits = model(IDS[:, :-1])
    want = F.cross_entropy(logits.flatten(0, 1), IDS[:, 1:].flatten())
    torch.testing.assert_close(model.loss(IDS), want)
    torch.testing.assert_close(model.loss(IDS, reduction="none").mean(), want)


@pytest.mark.parametrize("factor", [2.0, 4.0, 8.0])
def test_yarn_is_transformers(factor: float) -> None:
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=int(128 * factor),
        rope_parameters={"rope_type": "yarn", "rope_theta": 5e3, "factor": factor, "original_max_position_embeddings": 128},
    )  # fmt: skip
    omega, scale = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    ours, ours_scale = yarn(32, 5e3, factor, 128)
    torch.testing.assert_close(ours, omega)
    assert ours_scale == pytest.approx(scale, rel=1e-12)


def test_stretched_only_inside() -> None:
    model = Decoder(SIZES)
    before = model(IDS)
    with model.stretched(4.0):
        assert not torch.equal(model(IDS), before)
    assert torch.equal(model(IDS), before)
    with model.stretched(1.0):
        assert torch.equal(model(IDS), before)


def test_causal() -> None:
    for text in ("softmax", "softpick + g1", "softmax + sink_token(2)", "sparsemax"):
        model = Decoder(SIZES, as_arm(text))
        changed = IDS.clone()
        changed[:, 12] = (changed[:, 12] + 1) % 50
        a, b = model(IDS), model(changed)
        torch.testing.assert_close(a[:, :12], b[:, :12], rtol=0, atol=1e-7)
        assert (a[:, 12] - b[:, 12]).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"vocab": 1}, "vocab"), ({"heads": 3}, "heads must divide"), ({"dim": 12, "heads": 4}, "even parts"),
     ({"yarn": 0.5}, "yarn must be"), ({"layers": 0}, "layers"), ({"context": 1}, "context"), ({"hidden": 0}, "hidden")],
)  # fmt: skip
def test_sizes_that_are_none(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        DecoderConfig(**{"vocab": 50, "dim": 32, "heads": 4, **wrong})  # type: ignore[arg-type]


def test_presets_span_half_a_million_to_a_hundred() -> None:
    counts = [
        DecoderConfig(4096 if name in ("tiny", "mini", "small") else 32_768, **sizes).parameters()
        for name, sizes in PRESETS.items()
    ]
    assert counts == sorted(counts)
    assert counts[0] < 6e5
    assert 1e8 < counts[-1] < 1.2e8
