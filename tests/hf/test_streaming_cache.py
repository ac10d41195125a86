"""A cache alone, with the model's own attention: exact where it can be, refused where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streams import band, in_parts, masked, rotated_afresh, sinks_and_recent

import sinkgate as sg
from models import tiny
from sinkgate.cache import Dense, Dynamic, HeavyHitters, PerLayer, Quantized, Recent, Sinks
from sinkgate.errors import ArgumentError, UnsupportedError

IDS = torch.randint(0, 96, (1, 60), generator=torch.Generator().manual_seed(1))
CLOSE = 2e-5  # the model's own rotations are float32 products


@pytest.mark.parametrize("prompt", [1, 5, 19])
@pytest.mark.parametrize("positions", ["slots", "original"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt_neox", "gpt2"])
def test_single_steps(name: str, positions: str, prompt: int) -> None:
    if name == "gpt2" and positions == "slots":
        return
    m = tiny(name, attn="sdpa", dtype=torch.float64)
    policy = Recent(16) + Sinks(3)
    cache = sg.StreamingCache(m.config, policy, positions=positions)
    got = in_parts(m, IDS, cache, [prompt, 1])
    want = rotated_afresh(m, IDS, sinks_and_recent(16, 3)) if positions == "slots" else masked(m, IDS, band(60, 16, 3))
    assert (got - want).abs().max() < CLOSE
    assert cache.held() == 19
    assert cache.get_seq_length() == 60


def test_generate_alone() -> None:
    m = tiny("llama", dtype=torch.float64)
    with sg.streaming(m, "recent(16) + sinks(3)") as cache:
        want = m.generate(IDS[:, :15], max_new_tokens=40, do_sample=False, cache=cache)
    cache = sg.StreamingCache(m.config, "recent(16) + sinks(3)")
    assert torch.equal(m.generate(IDS[:, :15], max_new_tokens=40, do_sample=False, cache=cache), want)
    with sg.streaming(m, "recent(16)") as cache:
        want = m.generate(IDS[:, :1], max_new_tokens=40, do_sample=False, cache=cache)
    cache = sg.StreamingCache(m.config, "recent(16)", positions="slots")
    assert torch.equal(m.generate(IDS[:, :1], max_new_tokens=40, do_sample=False, cache=cache), want)


def test_what_it_cannot_is_refused_with_the_way_out() -> None:
    m = tiny("llama", dtype=torch.float64)
    cache = sg.StreamingCache(m.config, "recent(16) + sinks(3)")
    with pytest.raises(UnsupportedError, match=r"budget of 19 tokens.*sg.streaming.*prefill='dense'"):
        m(IDS, cache=cache)
    cache = sg.StreamingCache(m.config, "recent(16) + sinks(3)")
    m(IDS[:, :12], cache=cache)
    with pytest.raises(UnsupportedError, match="single-token steps"):
        m(IDS[:, :9], cache=cache)
    with pytest.raises(UnsupportedError, match=r"takes one row \(got 2\)"):
        m(IDS[:, :4].repeat(2, 1), cache=sg.StreamingCache(m.config, "recent(16)"))
    for policy in (
        Dense(), HeavyHitters(3) + Recent(4), Recent(4) + Sinks(2, token_ids=(1,)), Recent(4) + Sinks(folded=(1,)),
        Quantized(Recent(4)), PerLayer(Recent(4), (1,)), Dynamic(Recent(4) + Sinks(1)),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match="alone, a cache can keep"):
            sg.StreamingCache(m.config, policy)
    for name in ("gemma3", "gpt_oss", "mistral", "qwen3_next"):
        with pytest.raises(UnsupportedError, match="one length for all layers"):
            sg.StreamingCache(tiny(name).config, "recent(16)")
    with pytest.raises(UnsupportedError, match="no rotation; use positions='original'"):
        sg.StreamingCache(tiny("gpt2").config, "recent(16) + sinks(2)")
    with pytest.raises(ArgumentError, match="prefill must be"):
        sg.StreamingCache(m.config, "recent(16)", prefill="some")
    with pytest.raises(ArgumentError, match="positions must be"):
        sg.StreamingCache(m.config, "recent(16)", positions="some")
    with pytest.raises(ArgumentError, match="the model's config"):
        sg.StreamingCache(m, "recent(16)") if not hasattr(m, "get_text_config") else sg.StreamingCache(3, "recent(16)")


def test_dense_prefill_by_name() -> None:
    """What other tools do: the prompt sees itself whole, later tokens see the sinks and the recent ones."""
    m: Any = tiny("llama", dtype=torch.float64)
    seen = band(60, 16, 3)
    seen[:40] = band(60, 60, 0)[:40]
    want = masked(m, IDS, seen)
    cache = sg.StreamingCache(m.config, "recent(16) + sinks(3)", positions="original", prefill="dense")
    got = in_parts(m, IDS, cache, [40, 1])
    assert (got - want).abs().max() < CLOSE
    assert cache.held() == 19
    more = sg.StreamingCache(m.config, "recent(16) + sinks(3)", positions="original", prefill="dense")
    got = in_parts(m, IDS, more, [40, 1, 1, 10, 1])  # a second prompt sees what was held, and itself
    seen = band(60, 16, 3)
    seen[:40] = band(60, 60, 0)[:40]
    held = torch.zeros(60, dtype=torch.bool)
    held[[0, 1, 2, *range(26, 42)]] = True
    seen[42:52] = (held | (torch.arange(60) >= 42)) & band(60, 60, 0)[42:52]
    assert (got - masked(m, IDS, seen)).abs().max() < CLOSE


def test_a_layer_of_a_different_count_of_layers() -> None:
    """A cache for another model's config does not fit silently."""
    cache = sg.StreamingCache(tiny("llama").config, "recent(16)")
    config = tiny("llama").config
    config.num_hidden_layers = 5
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    deeper = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ArgumentError, match="made for 3 layers"):
        deeper(IDS[:, :3], cache=cache)


def test_alone_after_a_pass_that_failed() -> None:
    m = tiny("llama", dtype=torch.float64)
    cache = sg.StreamingCache(m.config, "recent(16) + sinks(3)")
    with torch.no_grad():
        hook = m.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            m(IDS[:, :5], cache=cache)
        hook.remove()
        cache.reset()
        got = in_parts(m, IDS, cache, [5, 1])
        assert torch.equal(got, in_parts(m, IDS, sg.StreamingCache(m.config, "recent(16) + sinks(3)"), [5, 1]))
