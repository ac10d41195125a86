"""What is read of a lab model, against ``sg.measure`` for softmax and against plain T×T arithmetic for the others."""

from __future__ import annotations

import math

import pytest
import torch

import sinkgate as sg
from sinkgate.errors import NonFiniteError
from sinkgate.lab import measure as measuring
from sinkgate.lab.arms import as_arm
from sinkgate.lab.decoder import Decoder, DecoderConfig
from sinkgate.lab.measure import band, read, watch
from sinkgate.nn import Seen

IDS = torch.randint(0, 50, (3, 70), generator=torch.Generator().manual_seed(0))


def model(text: str, std: float = 0.4) -> Decoder:
    return Decoder(DecoderConfig(50, dim=32, layers=2, heads=4, kv_heads=2, context=70, std=std), as_arm(text), seed=2)


def calls(m: Decoder) -> list[Seen]:
    found: list[Seen] = []
    with m.watched(lambda _i, seen: found.append(seen)), torch.no_grad():
        m(IDS)
    return found


@pytest.mark.parametrize("text", ["softmax", "sink_softmax", "softmax + window(40)", "softmax + g1"])
def test_softmax_arms_are_measured_as_everywhere(text: str) -> None:
    m = model(text)
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim == 1 and len(p) == 4:  # sink logits
                p.add_(torch.arange(4.0))
    found = read(m, IDS)
    for i, seen in enumerate(calls(m)):
        z = getattr(seen.module.weighting, "z", None)
        d = sg.measure(seen.q, seen.k, seen.v, window=m.arm.window, sink_logit=z)
        torch.testing.assert_close(found.first[i], torch.tensor(d.first_token_mass[0]), rtol=0, atol=1e-6)
        torch.testing.assert_close(found.null[i], torch.tensor(d.null_mass[0]), rtol=0, atol=1e-12)
        other = torch.tensor(d.key_mass[0]).nan_to_num(-1.0).max(-1)
        torch.testing.assert_close(found.top[i], other.values, rtol=0, atol=1e-6)
        assert found.top_key[i].tolist() == other.indices.tolist()
    numbers = found.found()
    assert numbers["sink_rate"] == (found.first > 0.3).double().mean().item()


@pytest.mark.parametrize("text", ["sigmoid", "softpick", "relu", "topk_softmax(k=3)", "softpick + window(9) + keep(2)"])
@pytest.mark.parametrize("rows", [256, 13])
def test_every_weighting_against_whole_matrices(text: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ROWS", rows)
    m = model(text)
    found = read(m, IDS)
    for i, seen in enumerate(calls(m)):
        scores = seen.q @ seen.k.repeat_interleave(2, 1).transpose(-1, -2) / math.sqrt(8)
        seen_by = band(70, 70, m.arm.window, m.arm.keep)
        w = seen.module.weighting.weights(scores, seen_by).double()
        sees_first = seen_by[0, 0, :, 0]
        torch.testing.assert_close(found.first[i], w[..., 0][:, :, sees_first].mean((0, 2)), rtol=0, atol=1e-6)
        mass = w.sum(-1)
        torch.testing.assert_close(found.mass[i], mass.mean((0, 2)), rtol=1e-6, atol=1e-6)
        share = (w / mass.clamp_min(1e-30)[..., None])[..., 0]
        some = (mass > 0) & sees_first
        torch.testing.assert_close(
            found.first_share[i], (share * some).sum((0, 2)) / some.sum((0, 2)), rtol=0, atol=1e-6
        )
        p = w / mass.clamp_min(1e-30)[..., None]
        entropy = -(p * p.clamp_min(1e-300).log()).sum(-1).mean((0, 2))
        torch.testing.assert_close(found.entropy[i], entropy, rtol=1e-6, atol=1e-6)
        written = torch.einsum("bhtd,hdD->bhtD", seen.heads, seen.module.o_proj.weight.T.unflatten(0, (4, 8)))
        torch.testing.assert_close(found.written[i], written.double().norm(dim=-1).mean((0, 2)), rtol=1e-4, atol=1e-6)


def test_the_residual_stream_and_gates() -> None:
    m = model("softmax + g1")
    streams: list[torch.Tensor] = []
    with torch.no_grad():
        m.hidden(IDS, streams.append)
    found = read(m, IDS)
    assert len(found.largest) == 3
    for x, largest, kurtosis in zip(streams, found.largest, found.kurtosis, strict=True):
        assert largest == x.abs().max().item()
        x = x.double()
        centred = x - x.mean()
        assert kurtosis == pytest.approx((centred**4).mean().item() / (centred**2).mean().item() ** 2, rel=1e-9)
    gates = [torch.sigmoid(seen.module.gate.raw(x)) for seen, x in zip(calls(m), _normed(m), strict=True)]  # type: ignore[misc]
    assert found.gate == pytest.approx([g.mean().item() for g in gates], rel=1e-5)
    assert found.closed == pytest.approx([(g < 0.1).double().mean().item() for g in gates])
    assert found.found(layers=True)["gate_mean_by_layer"] == found.gate
    assert math.isnan(watch(model("softmax"), IDS)["gate_mean"])


def _normed(m: Decoder) -> list[torch.Tensor]:
    streams: list[torch.Tensor] = []
    with torch.no_grad():
        m.hidden(IDS, streams.append)
        return [block.attention_norm(x) for block, x in zip(m.blocks, streams, strict=False)]


def test_dead_heads_and_a_planted_sink() -> None:
    m = model("softmax")
    with torch.no_grad():
        for block in m.blocks:
            block.attention.o_proj.weight[:, :8] = 0  # nothing of head 0 is written
    assert watch(m, IDS)["dead_heads"] == 0.25
    m = model("softmax + sink_token", std=0.02)
    with torch.no_grad():
        m.sink[:] = 0  # type: ignore[index]
        m.sink[0, 0] = 1  # type: ignore[index]
        for layer in m.blocks:
            layer.attention.k_proj.weight[:, 0] = 5.0  # its key is long …
            layer.attention.q_proj.weight[:, :] = 0.0
    assert watch(m, IDS)["sink_rate"] == 0.0
    with torch.no_grad():
        for layer in m.blocks:
            layer.attention_norm.weight[1] = 50.0
            layer.attention.q_proj.weight[:, 1] = 1.0
        m.embedding.weight[:, 1] = 1.0  # … and every ordinary token asks for it
        for layer in m.blocks:
            layer.attention.k_proj.weight[:, 1] = 0.0
    assert watch(m, IDS)["strongest_head"] > 0.3


def test_nothing_is_changed_and_nan_is_named() -> None:
    m = model("softpick")
    state = {n: x.clone() for n, x in m.state_dict().items()}
    before = m(IDS)
    watch(m, IDS, layers=True)
    assert torch.equal(m(IDS), before)
    assert all(torch.equal(x, state[n]) for n, x in m.state_dict().items())
    assert all(block.attention.watcher is None for block in m.blocks)
    with torch.no_grad():
        m.blocks[1].attention.q_proj.weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="layer 1"):
        watch(m, IDS)
    assert all(block.attention.watcher is None for block in m.blocks)


def test_half_precision_training_is_read_in_single() -> None:
    m = model("softmax", std=0.1)
    a, b = read(m, IDS), read(m, IDS, autocast=torch.bfloat16)
    torch.testing.assert_close(b.mass, torch.ones_like(b.mass), rtol=0, atol=1e-6)
    torch.testing.assert_close(a.first, b.first, rtol=0, atol=0.01)
