"""Every act against its definition on dense weights in float64, on models of every kind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import sinkgate as sg
from models import VOCABULARY, tiny
from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.layers import attention_layers
from sinkgate.interventions.acts import SetMassive

MODELS = ["llama", "qwen3", "gemma3", "gemma2", "gpt2", "gpt_oss", "qwen3_next"]
BURN = 12


def ids(length: int = 40, rows: int = 1, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def dense(change: Any, heads: set[tuple[int, int]] | None) -> Any:
    """Eager attention in float64 whose weights a, values v and output a test may change: ``change(layer, a, s, v)``."""

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **kw: Any) -> Any:
        g = q.shape[1] // k.shape[1]
        layer = module.layer_idx
        k, v = k.repeat_interleave(g, 1).double(), v.repeat_interleave(g, 1).double()

        def weights(keys: Tensor) -> tuple[Tensor, Tensor]:
            s = q.double() @ keys.transpose(-1, -2) * (kw.get("scaling") or q.shape[-1] ** -0.5)
            if kw.get("softcap"):
                s = kw["softcap"] * torch.tanh(s / kw["softcap"])
            s = s + mask[..., : s.shape[-1]].double()
            return softmax(s, kw.get("s_aux")), s

        a, s = weights(k)
        out = a @ v
        new = change(layer, a, s, k, v, weights, kw.get("s_aux"))
        for h in range(q.shape[1]):
            if heads is None or (layer, h) in heads:
                out[:, h] = new[:, h]
        return out.to(q.dtype).transpose(1, 2).contiguous(), None

    return function


def softmax(s: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is not None:
        s = torch.cat([s, sinks.double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
        return s.softmax(-1)[..., :-1]
    return s.softmax(-1)


def rows_of(t: int, p: int, burn: int) -> Tensor:
    i = torch.arange(t)
    return (i >= burn) & (i > p)


def evict(positions: tuple[int, ...], burn: int) -> Any:
    def change(_l: int, _a: Tensor, s: Tensor, _k: Tensor, v: Tensor, _w: Any, sinks: Tensor | None) -> Tensor:
        s = s.clone()
        for p in positions:
            s[:, :, rows_of(s.shape[2], p, burn), p] = -1e30
        return softmax(s, sinks) @ v

    return change


def scalar_gate(p: int, burn: int) -> Any:
    def change(_l: int, a: Tensor, _s: Tensor, _k: Tensor, v: Tensor, _w: Any, _z: Any) -> Tensor:
        out = a @ v
        rows = rows_of(a.shape[2], p, burn)
        out[:, :, rows] -= a[:, :, rows, p, None] * v[:, :, None, p]
        return out

    return change


def constant_gate(p: int, burn: int, write: float = 1.0) -> Any:
    """Beside a learned sink logit too: ``o = p_s v_s + (1 − p_s)·rest``, the rest with the logit in its denominator."""

    def change(_l: int, a: Tensor, s: Tensor, _k: Tensor, v: Tensor, _w: Any, sinks: Tensor | None) -> Tensor:
        out, rows = a @ v, rows_of(a.shape[2], p, burn)
        share = a[:, :, rows, p]
        seen = share > 0
        mean = (share.sum(-1) / seen.sum(-1).clamp_min(1))[..., None, None]
        s = s.clone()
        s[..., p] = -1e30
        content = (softmax(s, sinks) @ v)[:, :, rows]
        mixed = write * mean * v[:, :, None, p] + (1 - mean) * content
        out[:, :, rows] = torch.where(seen[..., None], mixed, out[:, :, rows])
        return out

    return change


def transplant(p: int, burn: int, constants: Any, key: bool, value: bool) -> Any:
    def change(layer: int, a: Tensor, _s: Tensor, k: Tensor, v: Tensor, weights: Any, _z: Any) -> Tensor:
        out, rows = a @ v, rows_of(a.shape[2], p, burn)
        g = k.shape[1] // constants.keys[layer].shape[0]
        k, v = k.clone(), v.clone()
        if key:
            k[:, :, p] = constants.keys[layer].double().repeat_interleave(g, 0)
        if value:
            v[:, :, p] = constants.values[layer].double().repeat_interleave(g, 0)
        out[:, :, rows] = (weights(k)[0] @ v)[:, :, rows]
        return out

    return change


def under_dense(model: Any, change: Any, x: Tensor, heads: set[tuple[int, int]] | None = None) -> Tensor:
    attention, masks = compat.interfaces()
    model = copy.deepcopy(model)
    attention.register("tests_acts", dense(change, heads))
    masks.register("tests_acts", masks["eager"])
    for config in compat.configs(model):
        compat.set_implementation(config, "tests_acts")
    with torch.no_grad():
        return forward(model, x)


HEADS = [(1, 2), (1, 5), (2, 0)]


@pytest.mark.parametrize("heads", [None, HEADS], ids=["everywhere", "some heads"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "what", ["evict", "start", "several", "scalar", "constant", "nothing", "transplant", "value", "late"]
)
def test_against_dense_weights(what: str, name: str, heads: Any) -> None:
    model, x = tiny(name, dtype=torch.float64), ids()
    present = {a.layer for a in attention_layers(model)}
    heads = None if heads is None else [h for h in heads if h[0] in present]
    other = sg.capture(model, [ids(seed=5)[0], ids(seed=6)[0]], 0)
    third = sg.capture(model, [ids(seed=5)[0]], 3)
    acts: dict[str, tuple[Any, Any]] = {
        "evict": (sg.Evict(0, BURN), evict((0,), BURN)),
        "start": (sg.Evict(0, 0), evict((0,), 0)),
        "several": (sg.Evict((0, 3, 20), BURN), evict((0, 3, 20), BURN)),
        "late": (sg.Evict(30, BURN), evict((30,), BURN)),
        "scalar": (sg.ScalarGate(2, BURN), scalar_gate(2, BURN)),
        "constant": (sg.ConstantGate(1, BURN), constant_gate(1, BURN)),
        "nothing": (sg.ConstantGate(1, BURN, write=False), constant_gate(1, BURN, 0.0)),
        "transplant": (sg.Transplant(0, BURN, other), transplant(0, BURN, other, True, True)),
        "value": (sg.MeanValue(3, BURN, third), transplant(3, BURN, third, False, True)),
    }
    act, change = acts[what]
    with torch.no_grad(), sg.acting(model, act, heads=heads):
        got = forward(model, x)
    want = under_dense(model, change, x, None if heads is None else set(heads))
    assert not torch.allclose(want, forward(model, x), atol=1e-6), "the act changes nothing here, so this shows nothing"
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighting", [sg.Softmax(), sg.SinkSoftmax(torch.tensor([0.5, -1.0]))])
@pytest.mark.parametrize("positions", [(0,), (0, 3)])
def test_a_gate_that_is_constant_already_stays(weighting: Any, positions: tuple[int, ...]) -> None:
    """The same query in every row gives every row the same g: its mean is itself."""
    from sinkgate.call import Call

    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 30, 8, generator=g, dtype=torch.float64) for _ in range(3))
    call = Call(0, q[:, :, :1].expand(-1, -1, 30, -1), k, v, weighting, causal=False, start=0)
    got = sg.ConstantGate(positions, 4).attend(call, Call.run)
    torch.testing.assert_close(got, call.run(), rtol=1e-12, atol=1e-12)
    other = Call(0, q, k, v, weighting, causal=False, start=0)
    assert not torch.allclose(sg.ConstantGate(positions, 4).attend(other, Call.run), other.run(), atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gpt_oss"])
def test_padding_in_front_is_followed(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    x, pad = ids(30), 7
    both = torch.cat([torch.cat([torch.ones(1, pad, dtype=torch.long), x], 1), ids(30 + pad, seed=9)])
    mask = torch.ones_like(both)
    mask[0, :pad] = 0
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    for act in (sg.Evict(0, BURN), sg.ScalarGate((1, 14), BURN), sg.ConstantGate(0, BURN)):
        with torch.no_grad(), sg.acting(model, act):
            together = model(both, attention_mask=mask, position_ids=positions, use_cache=False).logits
            for row, alone in ((together[0, pad:], x), (together[1], both[1:])):
                torch.testing.assert_close(row, forward(model, alone)[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_cached_decoding_keeps_positions(name: str) -> None:
    model, x = tiny(name, dtype=torch.float64), ids(40)
    for act in (sg.Evict((0, 5), BURN), sg.ScalarGate(0, BURN)):
        with torch.no_grad(), sg.acting(model, act):
            whole = forward(model, x)
            out = model(x[:, :8], use_cache=True)
            logits = [out.logits]
            for i0, i1 in ((8, 9), (9, 10), (10, 20), (20, 21), *((i, i + 1) for i in range(21, 40))):
                out = model(x[:, i0:i1], cache=out.past_key_values, use_cache=True)
                logits.append(out.logits)
        torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=1e-8, atol=1e-8)


def test_own_key_and_value_change_nothing() -> None:
    """Transplanting what is there already is the identity, at a rotated position too."""
    model, x = tiny("llama", dtype=torch.float64), ids()
    before = forward(model, x)
    for position in (0, 6):
        own = sg.capture(model, [x[0]], position)
        with torch.no_grad(), sg.acting(model, sg.Transplant(position, BURN, own)):
            torch.testing.assert_close(forward(model, x), before, rtol=1e-5, atol=1e-5)  # constants are float32


def test_a_causal_models_first_key_depends_on_the_first_token_alone() -> None:
    model, x = tiny("llama"), ids()
    one, two = sg.capture(model, [x[0]], 0), sg.capture(model, [torch.cat([x[0, :1], ids(seed=7)[0]])], 0)
    for layer in one.keys:
        assert torch.equal(one.keys[layer], two.keys[layer])
        assert torch.equal(one.values[layer], two.values[layer])
    mean = sg.capture(model, [x[0], ids(seed=8)[0]], 0)
    assert mean.samples == 2
    assert mean.spread > 0


def test_massive_activations() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids()
    seen: list[Tensor] = []
    hook = model.model.layers[1].register_forward_pre_hook(lambda _m, args: seen.append(args[0].clone()))
    with torch.no_grad():
        forward(model, x)
        h = seen.pop()
        threshold = float(h.abs()[..., 7].flatten().sort().values[-4])
        for values, wanted in ((None, 0.0), ((2.5,), 2.5)):
            with sg.acting(model, SetMassive(0, (7,), threshold, values)):
                forward(model, x)
            new = seen.pop()
            over = h[..., 7].abs() > threshold
            assert int(over.sum()) == 3
            assert torch.equal(new[..., 7][over], torch.full((3,), wanted, dtype=torch.float64))
            assert torch.equal(new[..., 7][~over], h[..., 7][~over])
            rest = [d for d in range(h.shape[-1]) if d != 7]
            assert torch.equal(new[..., rest], h[..., rest])
        with sg.acting(model, SetMassive(0, values=(1.0, -1.0), entries=((3, 5), (4, 6)))):
            forward(model, x)
        new = seen.pop()
    hook.remove()
    assert (float(new[0, 3, 5]), float(new[0, 4, 6])) == (1.0, -1.0)
    assert int((new != h).sum()) == 2


class Largest(TorchDispatchMode):
    """The largest tensor that any operation made (a view of ``given`` is none)."""

    def __init__(self, given: Tensor | None) -> None:
        super().__init__()
        self.numel = 0
        self.given = 0 if given is None else given.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() != self.given:
                self.numel = max(self.numel, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.parametrize("window", [False, True])
def test_memory(window: bool) -> None:
    """No T×T beyond a block: with the model's own T×T mask (a window), not one of ours beside it."""
    from sinkgate.call import ROWS, Call

    t = 2048
    q, k, v = (torch.randn(1, 2, t, 8) for _ in range(3))
    mask = None
    if window:
        i = torch.arange(t)
        mask = ((i[:, None] >= i) & (i[:, None] - i < 100))[None, None]
    call = Call(0, q, k, v, sg.Softmax(), causal=mask is None, mask=mask)
    other = sg.Constants({0: torch.zeros(2, 8)}, {0: torch.zeros(2, 8)}, 0, 1)
    for act in (
        sg.Evict((0, 300), BURN),
        sg.ScalarGate(0, BURN),
        sg.Transplant(0, BURN, other),
        sg.ConstantGate(0, BURN),
    ):
        with Largest(mask) as seen:
            act.attend(call, Call.run)
        assert seen.numel <= 2 * ROWS * t, act.name


def test_errors() -> None:
    model = tiny("llama")
    other = sg.capture(model, [ids()[0]], 0)
    for make, words in (
        (lambda: sg.Evict(()), "at least one"),
        (lambda: sg.Evict(-1), "counted from 0"),
        (lambda: sg.Evict(0, -2), "burn_in"),
        (lambda: sg.Transplant(0), "constants="),
        (lambda: sg.Transplant(4, 8, other), "rotated to it; they cannot stand at 4"),
        (lambda: sg.Transplant((0, 1), 8, other), "one position at a time"),
        (lambda: SetMassive(0), "dimensions is empty"),
        (lambda: SetMassive(0, (1, 2), 1.0, (0.5,)), "one number for each"),
        (lambda: sg.capture(model, [ids(3)[0]], 5), "position 5"),
    ):
        with pytest.raises(ArgumentError, match=words):
            make()
    far = sg.Constants({9: torch.zeros(2, 8)}, {9: torch.zeros(2, 8)}, 0, 1)
    with sg.acting(model, sg.Transplant(0, 8, far)), pytest.raises(ArgumentError, match="another model"):
        forward(model, ids())
