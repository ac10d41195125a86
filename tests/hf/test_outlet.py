"""Outlets on models of every kind: start at nothing, compute what their formulas say in float64, move when trained."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from test_reading import assert_same, ids, state
from torch import Tensor, nn

import sinkgate as sg
from models import VOCABULARY, tiny
from sinkgate.errors import UnsupportedError
from sinkgate.gate import ACTIVATIONS
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.layers import attention_layers
from sinkgate.outlet import GateOutlet

MODELS = ["llama", "qwen3", "gemma3", "gpt2", "gpt_oss", "qwen3_next"]
SCORED = ["sink_logit", "key_bias", "kv_bias", "sink_token"]
GATES = [
    sg.Gate("G1", elementwise=False, preserve=2.0),
    sg.Gate("G1", shared=True, preserve=1.0),
    sg.Gate("G1", additive=True, activation="silu"),
    sg.Gate("G1", input_dependent=False, preserve=2.0),
    sg.Gate("G2", preserve=2.0),
    sg.Gate("G2", elementwise=False, activation="silu", preserve=2.0),
    sg.Gate("G3", preserve=2.0),
    sg.Gate("G3", additive=True, activation="centred_sigmoid"),
    sg.Gate("G4", preserve=2.0, shared=True),
    sg.Gate("G4", additive=True, activation="silu"),
    sg.Gate("G5", preserve=2.0),
    sg.Gate("G5", elementwise=False, preserve=2.0),
    sg.Gate("G5", additive=True, activation="silu"),
]


def named(gate: sg.Gate) -> str:
    parts = [gate.position, gate.activation, "elementwise" if gate.elementwise else "per head"]
    parts += ["shared"] * gate.shared + ["additive"] * gate.additive + ["constant"] * (not gate.input_dependent)
    return " ".join(parts)


def scramble(found: Any, seed: int = 0) -> None:
    """Random parameters, so that the outlet is felt."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in found.named_parameters().items():
            if name.endswith(".w"):
                p.copy_(torch.rand(p.shape, generator=g) * 2 + 0.1)
            else:
                p.copy_(torch.randn(p.shape, generator=g) * 0.5)


def dense(model: nn.Module, outlets: dict[int, Any]) -> nn.Module:
    """A copy without outlets that attends densely in float64, with one more column for the outlet's key."""
    columns = {i: (copy.deepcopy(o), getattr(o, "made", None)) for i, o in outlets.items()}

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **kw: Any) -> Any:
        g = q.shape[1] // k.shape[1]
        scale = kw.get("scaling") or q.shape[-1] ** -0.5
        s = q @ k.repeat_interleave(g, 1).transpose(-1, -2) * scale + mask[..., : k.shape[-2]]
        v = v.repeat_interleave(g, 1)
        if module.layer_idx in columns:
            outlet, made = columns[module.layer_idx]
            logit = (outlet.level + outlet.w.log())[None, :, None, None].expand(*s.shape[:3], 1)
            key = made[0] if made else getattr(outlet, "key", None)
            value = made[1] if made else getattr(outlet, "value", None)
            if key is not None:
                logit = logit + (q @ key.repeat_interleave(g, 0)[None, :, :, None]) * scale
            logit = torch.where(outlet.on[None, :, None, None], logit, -torch.inf)
            s = torch.cat([logit, s], -1)
            extra = (
                torch.zeros_like(v[:, :, :1])
                if value is None
                else value.repeat_interleave(g, 0)[None, :, None].expand(len(v), -1, 1, -1)
            )
            v = torch.cat([extra, v], 2)
        return (s.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    attention, masks = compat.interfaces()
    attention.register("tests_outlet", function)
    masks.register("tests_outlet", masks["eager"])
    other = copy.deepcopy(model)
    sg.remove_outlet(other)
    for config in compat.configs(other):
        compat.set_implementation(config, "tests_outlet")
    return other


@pytest.mark.parametrize("some", [False, True], ids=["all heads", "some heads"])
@pytest.mark.parametrize("outlet", SCORED)
@pytest.mark.parametrize("name", [n for n in MODELS if n != "gpt_oss"])
def test_scored_outlets_against_dense_float64(name: str, outlet: str, some: bool) -> None:
    model, x = tiny(name, dtype=torch.float64), ids(40, 2)
    plain = forward(model, x)
    layers = [a.layer for a in attention_layers(model)]
    found = sg.add_outlet(model, outlet, heads=[(layers[0], 1), (layers[-1], 4)] if some else None)
    scramble(found)
    mask = torch.ones_like(x)
    mask[1, :6] = 0
    with torch.no_grad():
        got, padded = forward(model, x), forward(model, x, mask)
        want = dense(model, found.layers)
        torch.testing.assert_close(got, forward(want, x), rtol=1e-7, atol=1e-7)
        # padding is counted off the positions, or the outlet's key would stand further away
        where = None if name == "gpt2" or outlet == "sink_logit" else (mask.cumsum(-1) - 1).clamp_min(0)
        expected = want(x, attention_mask=mask, position_ids=where, use_cache=False).logits
        torch.testing.assert_close(padded[mask.bool()], expected[mask.bool()], rtol=1e-7, atol=1e-7)
        if where is not None and name != "qwen3_next":  # whose linear layers do not quite skip padding
            alone = forward(model, x[1:, 6:])[0]
            torch.testing.assert_close(padded[1, 6:], alone, rtol=1e-6, atol=1e-6)
    assert (got - plain).norm() > 1e-3 * plain.norm()


def parts_of(name: str, layer: Any) -> tuple[Any, ...]:
    """Where queries, keys and values of a test model come from, and the module behind the heads: known by name here."""
    attn = layer.attn if name == "gpt2" else layer.self_attn
    if name == "gpt2":
        c, n = attn.c_attn, 48
        return (c, slice(0, n)), (c, slice(n, 2 * n)), (c, slice(2 * n, 3 * n)), attn.c_proj
    q = slice(None)
    if name == "qwen3_next":  # q and gate interleaved by head
        q = torch.cat([torch.arange(h * 16, h * 16 + 8) for h in range(6)])
    return (attn.q_proj, q), (attn.k_proj, slice(None)), (attn.v_proj, slice(None)), attn.o_proj


def gated_by_hand(name: str, model: nn.Module, outlets: dict[int, GateOutlet]) -> nn.Module:
    """The same gates written with hooks on modules that are known by name, from the formula of the paper."""
    other = copy.deepcopy(model)
    sg.remove_outlet(other)
    blocks = other.transformer.h if name == "gpt2" else other.model.layers
    for i, outlet in outlets.items():
        spec, gate = outlet.spec, outlet.gate
        attn = blocks[i].attn if name == "gpt2" else blocks[i].self_attn
        seen: dict[str, Tensor] = {}

        def before(_m: Any, args: Any, kwargs: Any, seen: dict[str, Tensor] = seen) -> None:
            seen["x"] = args[0] if args else kwargs["hidden_states"]

        attn.register_forward_pre_hook(before, with_kwargs=True)
        count = {"G1": 6, "G4": 6, "G5": 1}.get(spec.position, outlet.sizes.kv_heads)

        def act(y: Tensor, spec: Any = spec, gate: Any = gate, seen: Any = seen, count: int = count) -> Tensor:
            flat = seen["x"] @ gate.proj.weight.T if spec.input_dependent else gate.logits.expand(*y.shape[:2], -1)
            logits = flat.unflatten(-1, (1 if spec.shared else count, -1))
            f = ACTIVATIONS[spec.activation]
            heads = y.unflatten(-1, (count, -1))
            if spec.additive:
                return (heads + f(logits)).flatten(-2)
            b = torch.tensor(spec.preserve, dtype=y.dtype)
            return (heads * f(b + logits) / f(b)).flatten(-2)

        q, k, v, out = parts_of(name, blocks[i])
        if spec.position == "G1":
            out.register_forward_pre_hook(lambda _m, args, act=act: (act(args[0]),))
        elif spec.position == "G5":
            out.register_forward_hook(lambda _m, _a, y, act=act: act(y))
        else:
            module, columns = {"G2": v, "G3": k, "G4": q}[spec.position]

            def hook(_m: Any, _a: Any, y: Tensor, columns: Any = columns, act: Any = act) -> Tensor:
                y = y.clone()
                y[..., columns] = act(y[..., columns])
                return y

            module.register_forward_hook(hook)
    return other


@pytest.mark.parametrize("gate", GATES, ids=named)
@pytest.mark.parametrize("name", MODELS)
def test_gates_against_the_formula(name: str, gate: sg.Gate) -> None:
    if name == "qwen3_next" and gate.position == "G1":
        pytest.skip("it has a gate there; test_outlet_errors")
    model, x = tiny(name, dtype=torch.float64), ids(30, 2)
    with torch.no_grad():
        plain = forward(model, x)
        found = sg.add_outlet(model, gate)
        assert torch.equal(forward(model, x), plain)  # exact at the start
        scramble(found)
        got = forward(model, x)
        want = forward(gated_by_hand(name, model, found.layers), x)
    torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-7)
    assert (got - plain).norm() > 1e-3 * plain.norm()


@pytest.mark.parametrize("outlet", SCORED)
@pytest.mark.parametrize("name", [n for n in MODELS if n != "gpt_oss"])
def test_scored_outlets_start_at_nothing_and_leave_it(name: str, outlet: str) -> None:
    model, x = tiny(name, dtype=torch.float64), ids(60, 2)
    with torch.no_grad():
        plain = forward(model, x)
        found = sg.add_outlet(model, outlet, ids=ids(200, 1))
        assert (forward(model, x) - plain).norm() < 1e-5 * plain.norm()
    moves(model, found, x, plain)


@pytest.mark.parametrize("gate", GATES, ids=named)
def test_gates_move_when_trained(gate: sg.Gate) -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(60, 2)
    with torch.no_grad():
        plain = forward(model, x)
    moves(model, sg.add_outlet(model, gate), x, plain)


def moves(model: nn.Module, found: Any, x: Tensor, plain: Tensor) -> None:
    """A few steps on the outlet alone lower the loss and change the model."""
    for p in model.parameters():
        p.requires_grad_(False)
    trained = list(found.named_parameters().values())
    for p in trained:
        p.requires_grad_(True)
    optimizer = torch.optim.Adam(trained, lr=0.05)
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(forward(model, x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.project()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1e-4
    with torch.no_grad():
        assert (forward(model, x) - plain).norm() > 1e-3 * plain.norm()
    assert all((p >= 0).all() for n, p in found.named_parameters().items() if n.endswith(".w"))


def test_parameter_counts() -> None:
    sizes = {"dim": 48, "heads": 6, "kv_heads": 2, "head_dim": 8}
    for gate in GATES:
        model = tiny("llama")
        before = sum(p.numel() for p in model.parameters())
        found = sg.add_outlet(model, gate)
        assert found.parameters == 3 * gate.parameters(**sizes) == sum(p.numel() for p in model.parameters()) - before
    for outlet, each in (("sink_logit", 6), ("key_bias", 6 + 2 * 8), ("kv_bias", 6 + 2 * 2 * 8)):
        assert sg.add_outlet(tiny("llama"), outlet).parameters == 3 * each
    assert sg.add_outlet(tiny("llama"), "sink_token").parameters == 3 * 6 + 48


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "outlet", ["sink_logit", "sink_token", "gate", sg.Gate("G2", preserve=2.0), sg.Gate("G5", preserve=2.0)], ids=str
)
def test_removing_leaves_the_model_as_it_was(name: str, outlet: Any) -> None:
    if (name == "gpt_oss" and isinstance(outlet, str) and outlet != "gate") or (
        name == "qwen3_next" and outlet == "gate"
    ):
        pytest.skip("it has one by birth; test_outlet_errors")
    model, x = tiny(name), ids(30)
    with torch.no_grad():
        plain, was = forward(model, x), state(model)
        scramble(sg.add_outlet(model, outlet))
        assert not torch.equal(forward(model, x), plain)
        sg.remove_outlet(model)
        assert_same(was, state(model))
        assert torch.equal(forward(model, x), plain)


@pytest.mark.parametrize("outlet", [*SCORED, "gate", sg.Gate("G3", preserve=2.0)], ids=str)
def test_a_copy_has_outlets_of_its_own(outlet: Any) -> None:
    model, x = tiny("llama"), ids(30)
    found = sg.add_outlet(model, outlet)
    other = copy.deepcopy(model)
    with torch.no_grad():
        plain = forward(model, x)
        scramble(sg.outlets(other))
        assert not torch.equal(forward(other, x), plain)
        assert torch.equal(forward(model, x), plain)
        scramble(found)
        assert torch.equal(forward(other, x), forward(model, x))


@pytest.mark.parametrize("outlet", [*SCORED, "gate", sg.Gate("G2", preserve=2.0), sg.Gate("G5", preserve=2.0)], ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_cached_decoding_agrees_with_prefill(name: str, outlet: Any) -> None:
    model, x = tiny(name, dtype=torch.float64), ids(30, 2)
    scramble(sg.add_outlet(model, outlet))
    with torch.no_grad():
        whole = forward(model, x)
        out = model(x[:, :20], use_cache=True)
        logits = [out.logits]
        for i in range(20, 30):
            out = model(x[:, i : i + 1], cache=out.past_key_values, use_cache=True)
            logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1), whole, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("outlet", [*SCORED, "gate", sg.Gate("G2", preserve=2.0)], ids=str)
def test_gradients_with_and_without_checkpointing(outlet: Any) -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    scramble(sg.add_outlet(model, outlet))
    model.train()
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(x, labels=x, use_cache=False).loss.backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters()})
    for n in grads[0]:
        torch.testing.assert_close(grads[0][n], grads[1][n], rtol=1e-9, atol=1e-12, msg=n)
    assert any("sinkgate" in n and g.abs().sum() > 0 for n, g in grads[0].items())


@pytest.mark.parametrize("outlet", [*SCORED, "gate", sg.Gate("G2", preserve=2.0), sg.Gate("G5", preserve=2.0)], ids=str)
def test_without_outlets_the_model_is_what_it_was(outlet: Any) -> None:
    model, x = tiny("llama"), ids(30)
    with torch.no_grad():
        plain = forward(model, x)
        scramble(sg.add_outlet(model, outlet))
        with sg.without_outlets(model):
            assert torch.equal(forward(model, x), plain)
        assert not torch.equal(forward(model, x), plain)


def test_a_sink_token_is_the_token_put_in_front() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(30)
    embedding = model.get_input_embeddings().weight[5].detach()
    together = torch.cat([embedding[None, None], model.get_input_embeddings()(x)], 1)
    with torch.no_grad():
        want = model(inputs_embeds=together, use_cache=False).logits[:, 1:]
        found = sg.add_outlet(model, sg.SinkToken(start=None))
        found.token.copy_(embedding)
        # one position further on, and the model's cosines are float32
        torch.testing.assert_close(forward(model, x), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outlet", [*SCORED, "gate"])
def test_a_diagnosis_reads_a_model_with_an_outlet(outlet: str) -> None:
    """The record's learned mass is what the outlet takes, and the output map sees the gate."""
    from models import tokenizer, words

    model = tiny("llama")
    found = sg.add_outlet(model, outlet)
    scramble(found)
    d = sg.diagnose(model, tokenizer(), [words(80)], tokens=64, samples=1)
    assert all(layer["reason"] is None for layer in d.layers)
    assert all(layer["write_reason"] is None for layer in d.layers)
    if outlet == "gate":
        assert float(d.learned_mass.max()) == 0
    else:
        assert float(d.learned_mass.min()) > 0.01


def test_an_outlet_stands_beside_acts() -> None:
    model, x = tiny("llama", dtype=torch.float64), ids(40)
    found = sg.add_outlet(model, "kv_bias")
    scramble(found)
    with torch.no_grad():
        before = forward(model, x)
        with sg.acting(model, sg.Evict(0, 10)):
            got = forward(model, x)
        assert not torch.equal(got, before)
        attention, _ = compat.interfaces()
        other = dense(model, found.layers)
        plain = attention["tests_outlet"]

        def evicted(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **kw: Any) -> Any:
            mask = mask.expand(-1, 1, -1, -1).clone()
            mask[:, :, 10:, 0] = -1e30
            return plain(module, q, k, v, mask, **kw)

        attention.register("tests_outlet", evicted)
        torch.testing.assert_close(got, forward(other, x), rtol=1e-7, atol=1e-7)
        assert torch.equal(forward(model, x), before)


@pytest.mark.slow
@pytest.mark.parametrize("outlet", ["sink_logit", "kv_bias", "gate"])
def test_compiled(outlet: str) -> None:
    model, x = tiny("llama"), ids(32, 2)
    scramble(sg.add_outlet(model, outlet))
    with torch.no_grad():
        expected = forward(model, x)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, use_cache=False).logits, expected, rtol=1e-5, atol=1e-5)


def test_half_precision() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model, x = tiny("llama", dtype=dtype), ids(30)
        exact = tiny("llama").float()
        exact.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
        for one in (model, exact):
            found = sg.add_outlet(one, "kv_bias", ids=ids(100))
            assert all(layer.w.dtype == layer.level.dtype == torch.float32 for layer in found.layers.values())
            scramble(found)
        with torch.no_grad():
            for a, b in zip(sg.outlets(model).layers.values(), sg.outlets(exact).layers.values(), strict=True):
                b.level.copy_(a.level)
                for (_, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
                    q.copy_(p.float())
            got, want = forward(model, x).float(), forward(exact, x)
        assert (got - want).norm() < (5e-2 if dtype == torch.bfloat16 else 1e-2) * want.norm()


assert VOCABULARY > 90


def test_reentrant_checkpointing_of_a_sink_token_is_refused() -> None:
    model = tiny("llama")
    sg.add_outlet(model, "sink_token")
    ids = torch.arange(12)[None]
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UnsupportedError, match="'use_reentrant': False"):
        model(ids, labels=ids)
    with torch.no_grad():
        assert torch.isfinite(model(ids).logits).all()
    model.activation_checkpointing_enable({"use_reentrant": False})
    model(ids, labels=ids).loss.backward()
