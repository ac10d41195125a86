"""Swaps, weightings that stay, outlets, acts and readings come and go in any order without undoing each other."""

from __future__ import annotations

import copy
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from test_outlet import scramble
from test_reading import assert_same, ids, state
from transformers import AutoModelForCausalLM

import sinkgate as sg
from models import CONFIGS, tiny
from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward

X = ids(30)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return forward(model, X)


def add(model: Any) -> None:
    """An outlet of fixed numbers: its level is read from the model as it stands, which differs under a swap."""
    found = sg.add_outlet(model, "sink_logit", layers=[1])
    scramble(found)
    found.layers[1].level.fill_(1.0)  # type: ignore[operator, union-attr]


def expected(weighting: bool, outlet: bool) -> torch.Tensor:
    """Layer 0 with another weighting, layer 1 with an outlet, either or both, put there alone."""
    model = tiny("llama")
    if outlet:
        add(model)
    if not weighting:
        return logits(model)
    with sg.swap(model, "softpick", layers=[0]):
        return logits(model)


def test_a_weighting_that_stays_and_an_outlet() -> None:
    plain, both, only_outlet, only_weighting = (expected(w, o) for w, o in ((0, 0), (1, 1), (0, 1), (1, 0)))  # type: ignore[arg-type]
    for first in ("weighting", "outlet"):
        for last in ("weighting", "outlet"):
            model = tiny("llama")
            was = state(model)
            if first == "weighting":
                sg.set_weighting(model, "softpick", layers=[0])
            add(model)
            if first == "outlet":
                sg.set_weighting(model, "softpick", layers=[0])
            assert torch.equal(logits(model), both)
            if last == "weighting":
                sg.remove_outlet(model)
                assert torch.equal(logits(model), only_weighting)
                sg.set_weighting(model, None)
            else:
                sg.set_weighting(model, None)
                assert torch.equal(logits(model), only_outlet)
                sg.remove_outlet(model)
            assert torch.equal(logits(model), plain)
            assert_same(was, state(model))


def test_inside_a_swap() -> None:
    model = tiny("llama")
    was = state(model)
    with sg.swap(model, "softpick", layers=[0]):
        add(model)
        sg.set_weighting(model, "sigmoid", layers=[2])
    with sg.swap(model, "softpick", layers=[0]):
        inside = logits(model)
        sg.set_weighting(model, None)
        assert torch.equal(logits(model), expected(True, True))
    assert not torch.equal(inside, expected(True, True))
    assert torch.equal(logits(model), expected(False, True))
    sg.remove_outlet(model)
    assert_same(was, state(model))


def test_left_out_of_order() -> None:
    model = tiny("llama")
    was, plain = state(model), logits(model)
    a, b = ExitStack(), ExitStack()
    a.enter_context(sg.swap(model, "softpick"))
    b.enter_context(sg.acting(model, sg.Evict(0, 8)))
    a.close()
    with sg.acting(tiny("llama"), sg.Evict(0, 8)) as other:
        assert torch.equal(logits(model), logits(other))
    b.close()
    assert torch.equal(logits(model), plain)
    assert_same(was, state(model))


def test_two_models_of_one_config() -> None:
    config = CONFIGS["llama"]()
    one, two = (AutoModelForCausalLM.from_config(config).eval() for _ in range(2))
    plain = logits(two)
    sg.set_weighting(one, "softpick")
    sg.set_weighting(two, "softpick")
    swapped = logits(two)
    sg.set_weighting(one, None)
    assert torch.equal(logits(two), swapped)
    sg.set_weighting(two, None)
    assert torch.equal(logits(two), plain)
    assert compat.implementation(config) == "sdpa"


def test_a_copy_lets_go_by_itself() -> None:
    model = tiny("llama")
    plain = logits(model)
    sg.set_weighting(model, "softpick")
    other = copy.deepcopy(model)
    sg.set_weighting(other, None)
    assert compat.implementation(other.config) == "sdpa"
    assert torch.equal(logits(other), plain)
    assert not torch.equal(logits(model), plain)
    sg.set_weighting(model, None)


def test_an_implementation_set_behind_an_outlet_is_noticed() -> None:
    for outlet in ("sink_logit", "gate", "sink_token"):
        model = tiny("llama")
        sg.add_outlet(model, outlet)
        model.set_attn_implementation("eager")
        with pytest.raises(UnsupportedError, match=r"'eager' would leave it out.*remove_outlet"):
            logits(model)


def test_the_model_inside_knows_the_sink_token() -> None:
    model = tiny("llama")
    with torch.no_grad():
        before = model.model(X).last_hidden_state
        scramble(sg.add_outlet(model, "sink_token"))
        one = model.model(X).last_hidden_state
        assert not torch.equal(one, before)
        logits(model)
        model.sinkgate_token.mul_(3.0)
        alone = model.model(X).last_hidden_state
        assert not torch.equal(alone, one)
        torch.testing.assert_close(model.lm_head(alone), logits(model))


def test_a_pickled_model_works_in_a_fresh_process(tmp_path: Any) -> None:
    for i, change in enumerate((lambda m: sg.add_outlet(m, "sink_logit"), lambda m: sg.set_weighting(m, "softpick"))):
        model = tiny("llama")
        change(model)
        torch.save(model, tmp_path / f"{i}.pt")
        code = (
            "import torch, sys; m = torch.load(sys.argv[1], weights_only=False)\n"
            "with torch.no_grad(): print(float(m(torch.arange(2, 20)[None]).logits.double().sum()))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / f"{i}.pt")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-500:]
        with torch.no_grad():
            expected = float(model(torch.arange(2, 20)[None]).logits.double().sum())
        assert abs(float(done.stdout) - expected) < 1e-3


class Wrapped(torch.nn.Module):
    """A hand-made LoRA whose second factor is still 0."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.a = base, torch.nn.Linear(base.in_features, 2, bias=False)
        self.b = torch.nn.Linear(2, base.out_features, bias=False)
        torch.nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a(x))


def test_a_fresh_lora_is_not_overlooked() -> None:
    model = tiny("llama")
    model.model.layers[1].self_attn.v_proj = Wrapped(model.model.layers[1].self_attn.v_proj)
    with pytest.raises(UnsupportedError, match="by nothing yet"):
        sg.add_outlet(model, sg.Gate("G2", preserve=2.0))
    sg.add_outlet(model, "gate")
