"""KV arms: bytes are those of a filled cache, never more than uniform's, and a text is read as token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError
from sinkgate.hf.anatomy import forward
from sinkgate.hf.head_parts import layer_parts
from sinkgate.planning.passes import spans
from sinkgate.planning.quantization_kv import cache_bytes, kv_arms, kv_logits
from sinkgate.planning.quantization_record import CONTROL
from sinkgate.planning.quantization_spec import KVSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "interventions"))
from planted import planted, texts

IDS = torch.randint(4, 96, (140,), generator=torch.Generator().manual_seed(3)).tolist()
POLICIES = [
    "quantized(recent(64) + sinks(4), bits=4, keep_sinks=false)",
    "quantized(recent(32) + sinks(3), bits=4)",
    "quantized(recent(32) + sinks(2) + sinks(1, token_ids=[7]), bits=8)",
    "per_head(quantized(recent(32) + sinks(2), bits=4, keep_sinks=false), [[0, 0], [2, 3]], "
    "quantized(recent(32) + sinks(2), bits=8, keep_sinks=false))",
]


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Any]:
    model = tiny("llama")
    return model, sg.diagnose(model, tokenizer(), texts(3), tokens=100, samples=3)


@pytest.mark.parametrize("positions", ["slots", "original"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_text_is_read_as_token_by_token(policy: str, positions: str) -> None:
    model = tiny("llama", dtype=torch.float64)
    ids = list(IDS)
    ids[50] = 7
    got = kv_logits(model, ids, KVSpec(policy, positions))
    with torch.no_grad(), sg.streaming(model, policy, positions=positions) as cache:
        want = torch.cat([model(torch.tensor([[i]]), cache=cache).logits[0] for i in ids])
        assert cache_bytes_of(cache) == cache.nbytes()
        filled = cache.nbytes()
    torch.testing.assert_close(got[4:], want[4:], rtol=1e-6, atol=1e-6)
    assert filled == cache_bytes(model, policy, positions)
    assert (got - forward(model, torch.tensor([ids]))[0])[4:].abs().max() > 1e-3
    assert spans(as_policy(policy), ids)[-1][1] == len(ids)


def cache_bytes_of(cache: Any) -> int:
    """Every tensor of every bank, by its size."""
    banks = [bank for layer in cache.layers for bank in layer.layer.banks]
    return sum(x.numel() * x.element_size() for bank in banks for x in bank.state().values())


@settings(max_examples=5, deadline=None)
@given(
    window=st.integers(100, 448),
    first=st.integers(1, 6),
    bits=st.sampled_from([4, 8]),
    positions=st.sampled_from(["slots", "original"]),
)
def test_no_arm_takes_more_bytes_and_none_could_have_a_larger_window(
    llama: tuple[Any, Any], window: int, first: int, bits: int, positions: str
) -> None:
    model, diagnosis = llama
    arms = kv_arms(
        model, diagnosis, tokenizer(), layer_parts(model), window=window, bits=bits, first=first, positions=positions
    )
    uniform, *others = arms.planned
    for arm in others:
        spec: Any = arm.spec
        policy = as_policy(spec.policy)
        assert arm.size == cache_bytes(model, policy, positions) <= uniform.size
        recent = {keep.recent for keep in policy.kinds}
        assert len(recent) == 1
        n = recent.pop()
        assert n is not None
        larger = as_policy(spec.policy.replace(f"recent({n})", f"recent({n + 32})"))
        assert larger.budget is not None
        assert larger.budget > 512 or cache_bytes(model, larger, positions) > uniform.size
    longest = [i % 90 + 4 for i in range(window + 80)]
    with torch.no_grad(), sg.streaming(model, uniform.spec.policy, positions=positions) as cache:  # type: ignore[union-attr]
        model(torch.tensor([longest]), cache=cache)
        assert cache.nbytes() == uniform.size


def test_which_arms_there_are() -> None:
    model = planted()
    diagnosis = sg.diagnose(model, tokenizer(), texts(4), tokens=100, samples=4)
    parts = layer_parts(model)
    arms = kv_arms(model, diagnosis, tokenizer(), parts, window=256, bits=4, first=2, positions="original")
    found = {a.name: a for a in arms.planned}
    assert list(found) == ["uniform", "preserve-first-2", "sink-aware", "per-head", CONTROL]
    assert not arms.skipped
    spec: Any = found["sink-aware"].spec
    ids = tokenizer().get_vocab()
    assert spec.policy.startswith("quantized(recent(")
    assert f"token_ids=[{ids['w7']}]" in spec.policy
    assert "sinks(1)" in spec.policy
    head: Any = found["per-head"].spec
    control: Any = found[CONTROL].spec
    assert len(head.heads) == len(control.heads) == 4
    assert not set(head.heads) & set(control.heads)
    assert "bits=4" in head.policy.partition("other=")[0]
    assert "bits=4" not in head.policy.partition("other=")[2]  # 8 is what a quantised cache has by default
    assert "keep_sinks=false" in found["uniform"].spec.policy  # type: ignore[union-attr]
    arms = kv_arms(model, None, tokenizer(), parts, window=256, bits=8, first=2, positions="original")
    assert [a.name for a in arms.planned] == ["uniform", "preserve-first-2"]
    assert set(arms.skipped) == {"sink-aware", "per-head"}
    arms = kv_arms(model, diagnosis, None, parts, window=32, bits=4, first=2, positions="original")
    assert "give the tokenizer" in arms.skipped["sink-aware"]
    assert "use a larger window" in arms.skipped["per-head"]
    arms = kv_arms(model, diagnosis, tokenizer(), parts, window=256, bits=8, first=2, positions="original")
    more: Any = next(a for a in arms.planned if a.name == "per-head").spec
    assert "recent" in more.policy.rpartition("other=")[2]


def test_models_with_windows_of_their_own() -> None:
    """Where all layers have one no arm shows more; where some have, these keep theirs and none of their heads is named."""
    model = tiny("mistral")
    with pytest.raises(ArgumentError, match="made for: 16; use a smaller window"):
        kv_arms(model, None, None, layer_parts(model), window=64, bits=4, first=2, positions="original")
    model = tiny("gemma3")
    diagnosis = sg.diagnose(model, tokenizer(), texts(2), tokens=64, samples=2)
    parts = layer_parts(model)
    assert [p.window for p in parts] == [16, None, 16]
    arms = kv_arms(model, diagnosis, tokenizer(), parts, window=256, bits=4, first=2, positions="slots")
    for arm in arms.planned:
        spec: Any = arm.spec
        assert {layer for layer, _ in spec.heads} <= {1}
    assert any(a.name == "per-head" for a in arms.planned)
    with pytest.raises(ArgumentError, match=r"512 tokens .* made for: 512"):
        kv_arms(model, None, None, parts, window=500, bits=4, first=2, positions="slots")
