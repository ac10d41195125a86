"""A model under acts: alone, nested, beside a swap; and what it was, bit for bit, when they are left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinkgate as sg
from hf.test_reading import assert_same, state
from interventions.test_acts import BURN, ids
from models import tiny
from sinkgate.errors import ArgumentError
from sinkgate.hf.anatomy import forward


def fails_inside(model: Any, x: Tensor) -> None:
    with sg.acting(model, sg.Evict(0, BURN)), sg.acting(model, sg.ScalarGate(1, BURN), heads=[(1, 1)]):
        forward(model, x)
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gpt_oss", "qwen3_next"])
def test_leaving_restores_bit_for_bit(name: str) -> None:
    model, x = tiny(name), ids()
    with torch.no_grad():
        before, was = forward(model, x), state(model)
        with pytest.raises(RuntimeError, match="on purpose"):
            fails_inside(model, x)
        assert_same(was, state(model))
        with sg.acting(model, sg.Evict(0, BURN)):
            first, inside = forward(model, x), state(model)
            with sg.acting(model, sg.SetMassive(0, (1,), 0.1)):
                assert not torch.equal(forward(model, x), first)
            assert_same(inside, state(model))
            assert torch.equal(forward(model, x), first)
        assert_same(was, state(model))
        assert torch.equal(forward(model, x), before)


def test_untouched_heads_and_layers_keep_their_bits() -> None:
    model, x = tiny("llama"), ids()
    seen: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        return lambda _m, args: seen.__setitem__(layer, args[0].clone())

    hooks = [model.model.layers[i].self_attn.o_proj.register_forward_pre_hook(keep(i)) for i in range(3)]
    with torch.no_grad():
        forward(model, x)
        before = dict(seen)
        with sg.acting(model, sg.Evict(0, BURN), heads=[(1, 2)]):
            forward(model, x)
    for hook in hooks:
        hook.remove()
    assert torch.equal(seen[0], before[0])
    changed = (seen[1] != before[1]).unflatten(-1, (6, -1)).any(-1)[0]  # [t, h]
    assert changed[:, [0, 1, 3, 4, 5]].sum() == 0
    assert changed[BURN:, 2].all()


def test_acts_nest() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids()
    with torch.no_grad():
        with sg.acting(model, sg.Evict((0, 5), BURN)):
            both = forward(model, x)
        with sg.acting(model, sg.Evict(0, BURN)), sg.acting(model, sg.Evict(5, BURN)):
            torch.testing.assert_close(forward(model, x), both, rtol=1e-9, atol=1e-9)
        with sg.acting(model, sg.Evict(0, BURN), layers=[1]), sg.acting(model, sg.Evict(0, BURN), layers=[0, 2]):
            apart = forward(model, x)
        with sg.acting(model, sg.Evict(0, BURN)):
            torch.testing.assert_close(forward(model, x), apart, rtol=1e-9, atol=1e-9)


def test_acts_stand_beside_a_swap_and_a_named_weighting() -> None:
    sg.register()
    model, named, x = tiny("llama"), tiny("llama", attn="sinkgate_softmax1"), ids()
    with torch.no_grad():
        with sg.swap(model, "softmax1"), sg.acting(model, sg.Evict(0, BURN), heads=[(0, 1), (2, 3)]):
            swapped = forward(model, x)
        with sg.acting(model, sg.Evict(0, BURN), heads=[(0, 1), (2, 3)]), sg.swap(model, "softmax1"):
            torch.testing.assert_close(forward(model, x), swapped)
        with sg.acting(named, sg.Evict(0, BURN), heads=[(0, 1), (2, 3)]):
            torch.testing.assert_close(forward(named, x), swapped)
        with sg.swap(model, "softmax1"):
            assert not torch.allclose(forward(model, x), swapped, atol=1e-4)


def test_an_act_of_ones_own() -> None:
    class Half:
        """Half of what a head writes."""

        name = "half"

        def attend(self, call: Any, run: Any) -> Tensor:
            return 0.5 * run(call)

    model, x = tiny("llama", dtype=torch.float64), ids()
    with torch.no_grad():
        with sg.acting(model, Half(), layers=1):
            got = forward(model, x)
        model.model.layers[1].self_attn.o_proj.weight.mul_(0.5)
        torch.testing.assert_close(got, forward(model, x))


def test_gradients_flow_through_an_act() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(20)
    with sg.acting(model, sg.Evict(0, 5)):
        forward(model, x).square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_errors() -> None:
    model = tiny("llama")
    for act, arguments, words in (
        (sg.Evict(0), {"layers": 5}, "layer 5"),
        (sg.Evict(0), {"heads": [(0, 9)]}, "heads 0 to 5"),
        (sg.SetMassive(0, (1,)), {"heads": [(0, 0)]}, "takes no layers or heads"),
        ("evict", {}, "attend"),
    ):
        with pytest.raises(ArgumentError, match=words), sg.acting(model, act, **arguments):
            pass
