"""Swaps, weightings that stay, outlets, acts and readings come and go in any order without undoing each other."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import torch
from test_outlet import scramble
from test_reading import assert_same, ids, state
from transformers import AutoModelForCausalLM

import sinkgate as sg
from models import CONFIGS, tiny
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
