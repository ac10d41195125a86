"""The screening's estimate is the derivative of the loss along ``o + ε(o' − o)``, head by head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinkgate as sg
from hf.test_reading import assert_same, state
from interventions.test_acts import BURN, ids
from models import tiny
from sinkgate.hf.anatomy import forward
from sinkgate.hf.layers import attention_layers
from sinkgate.interventions.screen import screen

START = 20
HEADS = [0, 3, 5]


class Towards:
    """Part of the way to an act, on the heads it is put on."""

    name = "towards"

    def __init__(self, act: Any, step: float) -> None:
        self.act, self.step = act, step

    def attend(self, call: Any, run: Any) -> Tensor:
        out = run(call)
        return out + self.step * (self.act.attend(call, run) - out)


def derivative(model: Any, x: Tensor, act: Any, layer: int, head: int, loss: Any, step: float) -> float:
    """Central differences of fourth order: most models round to float32 in their norms, so the step cannot be small."""

    def value(by: float) -> float:
        with torch.no_grad(), sg.acting(model, Towards(act, by), heads=[(layer, head)]):
            return float(loss(forward(model, x)[0], x[0]))

    return (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)


def cross_entropy(logits: Tensor, x: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits[START:-1], x[START + 1 :])


def agree(model: Any, act: Any, loss: Any = None, *, step: float = 0.1, rtol: float = 1e-3, atol: float = 5e-6) -> None:
    x = ids(40)
    estimates = screen(model, x[0], act, start=START, loss=loss)
    layers = attention_layers(model)
    assert set(estimates) == {layer.layer for layer in layers}
    for layer in layers:
        got = estimates[layer.layer]
        assert got.shape == (layer.heads,)
        wanted = [derivative(model, x, act, layer.layer, head, loss or cross_entropy, step) for head in HEADS]
        torch.testing.assert_close(got[HEADS], torch.tensor(wanted, dtype=torch.float64), rtol=rtol, atol=atol)
    assert max(float(e.abs().max()) for e in estimates.values()) > 1e-4


@pytest.mark.parametrize("act", [sg.Evict(0, BURN), sg.ScalarGate(3, BURN)], ids=lambda a: a.name)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
def test_the_estimate_is_the_derivative(name: str, act: Any) -> None:
    # a larger step sends GPT-OSS's tokens to another expert
    step, atol = (0.01, 2e-5) if name == "gpt_oss" else (0.1, 5e-6)
    agree(tiny(name, dtype=torch.float64), act, step=step, atol=atol)


def test_for_any_loss_to_more_digits() -> None:
    """GPT-2 is float64 throughout."""
    model, act = tiny("gpt2", dtype=torch.float64), sg.Evict(0, BURN)
    agree(model, act, rtol=1e-6, atol=1e-8)
    agree(model, act, lambda logits, x: logits[-1, 5] - logits[-1, x[0]], rtol=1e-5, atol=1e-7)


def test_with_what_stands_in_the_model_already() -> None:
    """A swap, an outlet and an act around it are part of the model that is screened."""
    model, x = tiny("llama", dtype=torch.float64), ids(40)
    act = sg.Evict(0, BURN)
    plain = screen(model, x[0], act, start=START)
    with sg.swap(model, "softmax1"):
        agree(model, act)
        assert not torch.allclose(screen(model, x[0], act, start=START)[1], plain[1], rtol=1e-2)
    with sg.acting(model, sg.ScalarGate(1, BURN)):
        agree(model, act)
    sg.add_outlet(model, sg.Gate("G1", preserve=2.0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "outlet" in name:
                parameter.normal_(0, 0.3)
    agree(model, act)


def test_the_model_is_left_as_it_was() -> None:
    model, x = tiny("llama").train(), ids(40)
    next(model.parameters()).requires_grad_(False)
    was = state(model)
    with torch.no_grad():
        screen(model, x[0], sg.Evict(0, BURN), start=START)
    assert_same(was, state(model))
    with pytest.raises(ZeroDivisionError):
        screen(model, x[0], sg.Evict(0, BURN), start=START, loss=lambda *_: 1 / 0)
    assert_same(was, state(model))
    assert all(p.grad is None for p in model.parameters())
