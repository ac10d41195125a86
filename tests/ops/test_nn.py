"""The attention layer: decoding equals prefill, it learns, and its configuration is what runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sinkgate as sg
from sinkgate.errors import ArgumentError
from sinkgate.gate import POSITIONS, Gate
from sinkgate.nn import GatedAttention, KVCache
from sinkgate.rope import frequencies, rotate
from weightings import ALL


@pytest.mark.parametrize("name", [*ALL])
def test_decoding_with_a_cache_equals_one_pass(name: str) -> None:
    torch.manual_seed(0)
    layer = GatedAttention(
        32, 4, 2, weighting=ALL[name], gate=Gate(elementwise=False), window=6, keep_first=2, qk_norm=True
    )
    x = torch.randn(2, 15, 32)
    whole = layer(x)
    cache = KVCache()
    parts = [layer(x[:, i:j], cache=cache) for i, j in ((0, 7), (7, 8), (8, 9), (9, 15))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)
    assert cache.seen == 15


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("additive", [False, True])
def test_every_gate_position_is_used_and_learns(position: str, additive: bool) -> None:
    torch.manual_seed(0)
    layer = GatedAttention(32, 4, 2, gate=Gate(position, additive=additive))
    x = torch.randn(1, 9, 32)
    layer(x).square().sum().backward()
    assert layer.gate is not None
    assert float(layer.gate.proj.weight.grad.abs().max()) > 0  # type: ignore[union-attr]
    plain = GatedAttention(32, 4, 2)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("gate")})
    assert float((plain(x) - layer(x)).detach().abs().max()) > 1e-3


def test_learned_fields_are_parameters_per_head() -> None:
    layer = GatedAttention(32, 4, weighting="sink_softmax")
    assert layer.learned["z"].shape == (4,)
    layer(torch.randn(1, 5, 32)).sum().backward()
    assert layer.learned["z"].grad is not None
    assert GatedAttention(32, 4, weighting=sg.SinkSoftmax(1.0), learn=()).weighting == sg.SinkSoftmax(1.0)
    assert GatedAttention(32, 4, weighting="entmax", learn=("alpha",)).learned["alpha"].tolist() == [1.5] * 4
    with pytest.raises(ArgumentError, match="relu has no field 'z'"):
        GatedAttention(32, 4, weighting="relu", learn=("z",))
    with pytest.raises(ArgumentError, match="bias of sigmoid must have a number to start from"):
        GatedAttention(32, 4, weighting="sigmoid", learn=("bias",))


def test_what_a_closed_gate_leaves_out() -> None:
    torch.manual_seed(0)
    layer = GatedAttention(32, 4, gate=Gate(elementwise=False, activation="silu"))
    x = torch.randn(1, 20, 32)
    y, mass = layer(x, skip_below=0.0, return_mass=True)
    torch.testing.assert_close(y, layer(x))
    assert mass.total.shape == (1, 4, 20)
    with pytest.raises(ArgumentError, match="skip_below leaves out what a multiplicative gate at G1"):
        GatedAttention(32, 4)(x, skip_below=0.0)


def test_rotations_add_up() -> None:
    x = torch.randn(2, 7, 16)
    p = torch.arange(7)
    torch.testing.assert_close(rotate(rotate(x, p), torch.full((7,), 5)), rotate(x, p + 5), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rotate(rotate(x, p), -p), x, rtol=1e-4, atol=1e-5)
    part = rotate(x, p, dim=8)
    assert torch.equal(part[..., 8:], x[..., 8:])
    torch.testing.assert_close(part[..., :8], rotate(x[..., :8], p))
    # by hand: the pair (x_i, x_{i+8}) as a complex number
    turned = torch.complex(x[..., :8], x[..., 8:]) * torch.exp(1j * p[:, None] * frequencies(16))
    torch.testing.assert_close(rotate(x, p), torch.cat([turned.real, turned.imag], -1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="rotary dimension must be even"):
        frequencies(7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GatedAttention(30, 4), "heads must divide dim=30, or give head_dim; got heads=4"),
        (lambda: GatedAttention(32, 4, 3), "kv_heads must divide heads=4, got 3"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_the_state_is_saved_and_loaded() -> None:
    torch.manual_seed(0)
    one, other = (GatedAttention(32, 4, weighting="sink_softmax", gate=Gate(), qk_norm=True) for _ in range(2))
    other.load_state_dict(one.state_dict())
    x = torch.randn(1, 5, 32)
    assert torch.equal(one(x), other(x))
    assert "sink_softmax" in repr(GatedAttention(8, 2, weighting="sink_softmax")) or "SinkSoftmax" in repr(one)
