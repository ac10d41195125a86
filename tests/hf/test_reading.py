"""Reading a model changes none of its outputs by a bit and leaves it as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from models import CONFIGS, VOCABULARY, tiny
from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading, trace
from sinkgate.hf.reading import Reader
from sinkgate.hf.register import OUR_NAMES
from sinkgate.masks import Visibility
from sinkgate.site import Site


class Nobody:
    """A watcher that keeps the sites."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.sites: list[Site] = []
        self.depths: list[int] = []
        self.fail_at = fail_at

    def site(self, site: Site) -> None:
        if site.layer == self.fail_at:
            raise RuntimeError("in the middle")
        self.sites.append(site)

    def stream(self, depth: int, hidden: torch.Tensor, real: torch.Tensor | None = None) -> None:
        self.depths.append(depth)


def ids(length: int = 40, rows: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that could have been changed: names, classes, hooks, implementations, forwards, weights."""
    return {
        "modules": [(n, type(m), tuple(vars(m))) for n, m in model.named_modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        "implementations": [compat.implementation(c) for c in compat.configs(model)],
        "training": [m.training for m in model.modules()],
        "config": model.config.to_json_string(),
        "weights": {k: v.clone() for k, v in model.state_dict().items()},
        "grad": [p.requires_grad for p in model.parameters()],
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for key in a:
        if key == "weights":
            assert a[key].keys() == b[key].keys()
            assert all(torch.equal(a[key][k], b[key][k]) for k in a[key])
        else:
            assert a[key] == b[key], key


@pytest.mark.parametrize("attn", [None, "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_are_bit_equal_and_the_model_is_as_it_was(name: str, attn: str | None) -> None:
    model = tiny(name, attn=attn)
    x, mask = ids(60, 2), torch.ones(2, 60, dtype=torch.long)
    mask[1, :9] = 0
    with torch.no_grad():
        before = [forward(model, x), forward(model, x, mask)]
    was = state(model)
    anatomy = trace(model, x[:1, :20])
    watcher = Nobody()
    with Reader(anatomy, watcher).open() as reader, torch.no_grad():
        during = [forward(model, x), forward(model, x, mask)]
        watcher.sites.clear()
        reader.run(x, mask)
    measurable = [layer.index for layer in anatomy.layers if layer.attention is not None]
    assert sorted(site.layer for site in watcher.sites) == measurable
    assert sorted(set(watcher.depths)) == list(range(len(anatomy.layers) + 1))
    assert_same(was, state(model))
    with torch.no_grad():
        after = [forward(model, x), forward(model, x, mask)]
    for a, b, c in zip(before, during, after, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_next", "gpt2"])
def test_an_exception_in_the_middle_leaves_it_as_it_was(name: str) -> None:
    model = tiny(name)
    x = ids()
    with torch.no_grad():
        before = forward(model, x)
    was = state(model)
    anatomy = trace(model, x[:, :20])
    with pytest.raises(RuntimeError, match="in the middle"), Reader(anatomy, Nobody(fail_at=2)).open() as reader:
        reader.run(x)
    assert_same(was, state(model))
    with torch.no_grad():
        assert torch.equal(before, forward(model, x))
    watcher = Nobody()
    with Reader(anatomy, watcher).open() as reader:  # and it can be read again
        reader.run(x)
    assert len(watcher.sites) == sum(layer.attention is not None for layer in anatomy.layers)


def test_two_readings_of_one_model_are_refused_and_two_models_are_not() -> None:
    one, two = tiny("llama"), tiny("llama", seed=1)
    a, b = trace(one, ids(20)), trace(two, ids(20))
    with Reader(a, Nobody()).open():
        with pytest.raises(UnsupportedError, match="already being read"), Reader(a, Nobody()).open():
            pass
        watcher = Nobody()
        with Reader(b, watcher).open() as reader:
            reader.run(ids())
        assert len(watcher.sites) == 3
    assert compat.implementation(one.config) == "sdpa"


def test_our_names_work_as_plain_implementations() -> None:
    """Somebody may load a model under one of them: nothing listens, and nothing changes."""
    import sinkgate as sg

    sg.register()
    x = ids()
    for stock, ours in OUR_NAMES.items():
        plain, named = tiny("llama", attn=stock), tiny("llama", attn=ours)
        with torch.no_grad():
            assert torch.equal(forward(plain, x), forward(named, x))


def test_an_implementation_that_cannot_be_read_is_refused_with_the_way_out() -> None:
    model = tiny("llama")
    compat.set_implementation(model.config, "flex_attention")
    with (
        pytest.raises(UnsupportedError, match=r"flex_attention.*set_attn_implementation\('sdpa'\)"),
        reading(model, Nobody()),
    ):
        pass
    assert compat.implementation(model.config) == "flex_attention"


def test_learned_sinks_are_never_dropped() -> None:
    """sdpa would take s_aux and say nothing; under our name it raises."""
    model = tiny("gpt_oss")
    for config in compat.configs(model):
        compat.set_implementation(config, "sdpa")
    with pytest.raises(UnsupportedError, match="s_aux"):
        trace(model, ids(20))


def test_training_mode_is_refused() -> None:
    model = tiny("llama").train()
    with pytest.raises(UnsupportedError, match=r"call model\.eval\(\)"):
        trace(model, ids(20))
    assert model.training


def test_no_log_sum_exp_is_invented() -> None:
    """The kernel's is used only where a kernel gave one, and it is the right one."""
    model = tiny("llama")
    watcher = Nobody()
    anatomy = trace(model, ids(20))
    with Reader(anatomy, watcher).open() as reader:
        reader.run(ids(50))
    for site in watcher.sites:
        assert site.lse is not None
        k = site.k.repeat_interleave(site.group, 1).double()
        scores = (site.q.double() @ k.transpose(-1, -2)) * site.factor
        scores = scores.masked_fill(~torch.ones(50, 50, dtype=torch.bool).tril(), -torch.inf)
        torch.testing.assert_close(site.lse.double(), torch.logsumexp(scores, -1), atol=1e-5, rtol=1e-5)
    eager = tiny("llama", attn="eager")
    watcher = Nobody()
    with Reader(trace(eager, ids(20)), watcher).open() as reader:
        reader.run(ids(50))
    assert all(site.lse is None for site in watcher.sites)


def test_a_layer_that_stops_attending_is_noticed() -> None:
    model = tiny("llama")
    anatomy = trace(model, ids(20))
    layer = model.model.layers[1]
    layer.self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(UnsupportedError, match=r"layers\.1\.self_attn"), Reader(anatomy, Nobody()).open() as reader:
        reader.run(ids())


def test_layers_on_different_devices(tmp_path: Any) -> None:
    """device_map with some layers kept on disk: accelerate moves weights in for each call."""
    from transformers import AutoModelForCausalLM

    model = tiny("llama")
    model.save_pretrained(tmp_path / "model")
    spread = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model",
        device_map={"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu", "model.layers.2": "disk",
                    "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"},
        offload_folder=str(tmp_path / "offload"),
    ).eval()  # fmt: skip
    watchers = []
    for m in (model, spread):
        watcher = Nobody()
        anatomy = trace(m, ids(20))
        with Reader(anatomy, watcher).open() as reader:
            reader.run(ids())
        watchers.append((watcher, anatomy))
    for a, b in zip(watchers[0][0].sites, watchers[1][0].sites, strict=True):
        assert torch.equal(a.q, b.q)
        assert a.output_map is not None
        assert b.output_map is not None
        torch.testing.assert_close(a.output_map.gram, b.output_map.gram)


def test_layers_share_what_follows_from_a_mask() -> None:
    model = tiny("gemma3")
    watcher = Nobody()
    anatomy = trace(model, ids(20))
    with Reader(anatomy, watcher).open() as reader:
        reader.run(ids(64))
    by_layer = {site.layer: site.visibility for site in watcher.sites}
    assert by_layer[0] is by_layer[2]
    assert by_layer[0] is not by_layer[1]
    assert isinstance(by_layer[1], Visibility)


def test_the_model_may_be_copied_while_it_is_not_read() -> None:
    model = tiny("llama")
    trace(model, ids(20))
    twin = copy.deepcopy(model)
    assert_same(state(model), state(twin))
