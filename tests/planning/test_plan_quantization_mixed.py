"""Mixed weights and inputs are those that loops would make by hand; left, the model is what it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import tiny
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf.anatomy import forward
from sinkgate.hf.head_parts import layer_parts
from sinkgate.hf.linears import find_linears
from sinkgate.hf.quantized_mixed import Inputs, Part, kept_tokens, quantized_mixed, round_parts
from sinkgate.quantization import Quantization, as_quantization
from test_quantization import brute

INT8, INT4 = (as_quantization(x, "weights") for x in ("int8", "int4(group=8)"))
X = torch.arange(5, 29)[None]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in model.state_dict().items()}


def untouched(model: nn.Module, before: dict[str, Tensor], modules: dict[str, int]) -> None:
    after = model.state_dict()
    assert all(torch.equal(after[n], before[n]) for n in before)
    assert {n: id(p) for n, p in model.named_parameters()} == modules
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def by_hand(weight: Tensor, how: str, mine: Tensor, more: str, axis: str) -> Tensor:
    """Rows or columns where ``mine`` is true in ``more``, the others in ``how``, each alone."""
    out = weight.clone()
    for mask, text in ((mine, more), (~mine, how)):
        spec = as_quantization(text, "weights")
        if axis == "rows":
            out[mask] = brute(weight[mask], spec, "weights")
        else:
            out[:, mask] = brute(weight[:, mask], spec, "weights")
    return out


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_parts_are_quantised_by_themselves(axis: str) -> None:
    weight = torch.randn(24, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.zeros(24 if axis == "rows" else 32, dtype=torch.bool)
    mask[8:16] = True
    got = round_parts(weight, INT4, [Part("x", axis, ((8, 12), (12, 16)), INT8)])
    torch.testing.assert_close(got, by_hand(weight, "int4(group=8)", mask, "int8", axis), rtol=1e-12, atol=1e-12)
    whole = round_parts(weight, None, [Part("x", axis, ((0, len(mask)),), INT8)])
    torch.testing.assert_close(whole, brute(weight, INT8, "weights"), rtol=1e-12, atol=1e-12)


def test_parts_that_make_no_sense() -> None:
    weight = torch.randn(8, 8)
    with pytest.raises(ArgumentError, match="rows or columns, got 'heads'"):
        Part("x", "heads", ((0, 1),), INT8)
    for spans in ((), ((3, 3),), ((4, 6), (2, 3)), ((-1, 2),)):
        with pytest.raises(ArgumentError, match="in order"):
            Part("x", "rows", spans, INT8)
    with pytest.raises(ArgumentError, match="has 8 rows, the spans go to 9"):
        round_parts(weight, INT4, [Part("x", "rows", ((0, 9),), INT8)])
    with pytest.raises(ArgumentError, match="not both"):
        round_parts(weight, INT4, [Part("x", a, ((0, 4),), INT8) for a in ("rows", "columns")])
    with pytest.raises(ArgumentError, match="in two parts"):
        round_parts(weight, INT4, [Part("x", "rows", ((0, 4),), INT8), Part("x", "rows", ((3, 5),), INT8)])
    with pytest.raises(ArgumentError, match="nothing says"):
        round_parts(weight, None, [Part("x", "rows", ((0, 4),), INT8)])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_mixed_model_is_one_made_by_hand(name: str) -> None:
    model, other = (tiny(name, dtype=torch.float64) for _ in range(2))
    linears = find_linears(model).linears
    weights = {x.name: INT4 if i % 2 else INT8 for i, x in enumerate(linears[:-1])}
    target = linears[1].name
    parts = [Part(target, "rows", ((0, 8),), INT8)]
    for layer in find_linears(other).linears[:-1]:
        w: Any = layer.module.weight.detach()
        w = w.T if layer.transposed else w
        mask = torch.zeros(w.shape[0], dtype=torch.bool)
        mask[:8] = layer.name == target
        w = by_hand(w, str(weights[layer.name]), mask, "int8", "rows")
        layer.module.weight = nn.Parameter((w.T if layer.transposed else w).contiguous())  # type: ignore[assignment]
    before, modules = state(model), {n: id(p) for n, p in model.named_parameters()}
    with torch.no_grad(), quantized_mixed(model, weights, parts) as done:
        got = forward(model, X)
        assert set(done.weights) == set(weights)
        assert f"{linears[-1].name}.weight" in done.left_out
    with torch.no_grad():
        torch.testing.assert_close(got, forward(other, X), rtol=1e-9, atol=1e-9)
        assert (got - forward(model, X)).abs().max() > 1e-3
    untouched(model, before, modules)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_the_prefix_is_what_a_cache_of_the_full_model_gives(name: str) -> None:
    """IntactKV done the long way: the full model reads the first tokens, the quantised one goes on from its cache."""
    model = tiny(name, dtype=torch.float64)
    weights = {x.name: INT4 for x in find_linears(model).linears}
    for n in (1, 5):
        with torch.no_grad():
            past = model(X[:, :n], use_cache=True)
            with quantized_mixed(model, weights):
                rest = model(X[:, n:], cache=past.past_key_values).logits
                plain = forward(model, X)
            with quantized_mixed(model, weights, prefix=n):
                got = forward(model, X)
                begun = model(X[:, :2], use_cache=True)
                parts = [begun.logits, model(X[:, 2:], cache=begun.past_key_values).logits]
        torch.testing.assert_close(got[:, n:], rest, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(got[:, :n], past.logits, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(torch.cat(parts, 1), got, rtol=1e-8, atol=1e-8)
        assert (got - plain)[:, n:].abs().max() > 1e-3


def rounding(x: Tensor, kept: Tensor, channels: tuple[int, ...], heads: int | None) -> Tensor:
    """The inputs of one row ``[t, features]``: int8, one scale for all that is not kept, or one for each head."""
    stays = kept[:, None].expand(x.shape).clone()
    stays[:, list(channels)] = True
    out = x.clone()
    for block in torch.arange(x.shape[1]).chunk(heads or 1):
        here, there = x[:, block], ~stays[:, block]
        if there.any():
            step = here[there].abs().max() / 127
            out[:, block] = torch.where(there, (here / step).round().clamp(-127, 127) * step, here)
    return out


@pytest.mark.parametrize("keep", [(), (Sinks(3),), (Sinks(1), Sinks(2, token_ids=(9, 14, 20)))], ids=str)
def test_inputs_are_rounded_but_for_what_is_kept(keep: tuple[Sinks, ...]) -> None:
    model, other = (tiny("llama", dtype=torch.float64) for _ in range(2))
    names = [x.name for x in find_linears(model).linears]
    channels, heads = {names[0]: (3, 7)}, {names[3]: 6}
    ids = X[0].tolist()
    kept = torch.zeros(24, dtype=torch.bool)
    if keep:
        kept[[0, 1, 2] if len(keep) == 1 else [0, ids.index(9), ids.index(14)]] = True
    for layer in find_linears(other).linears:
        module: Any = layer.module
        module.weight = nn.Parameter(brute(module.weight.detach(), INT8, "weights"))
        plain, mine = module.forward, (channels.get(layer.name, ()), heads.get(layer.name))
        module.forward = lambda x, plain=plain, mine=mine: plain(rounding(x[0], kept, *mine)[None])
    inputs = Inputs(as_quantization("int8(tensor)", "activations"), keep, channels, heads)
    with torch.no_grad(), quantized_mixed(model, dict.fromkeys(names, INT8), inputs=inputs) as done:
        got = forward(model, X)
        assert done.activations == dict.fromkeys(names, 1)
    with torch.no_grad():
        torch.testing.assert_close(got, forward(other, X), rtol=1e-7, atol=1e-7)


def test_kept_tokens_of_padded_rows() -> None:
    positions = torch.tensor([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    ids = torch.tensor([[7, 7, 1, 7, 2], [7, 1, 7, 7, 2]])
    assert kept_tokens([Sinks(1)], positions, None).tolist() == [
        [False, False, True, False, False],
        [True, *[False] * 4],
    ]
    got = kept_tokens([Sinks(1), Sinks(1, token_ids=(7,))], positions, ids)
    assert got.tolist() == [[False, False, True, True, False], [True, False, True, False, False]]
    model = tiny("llama", dtype=torch.float64)
    weights = {x.name: INT4 for x in find_linears(model).linears}
    row = X[:, :6]
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), row], 1)
    mask = torch.tensor([[0] * 3 + [1] * 6])
    with torch.no_grad(), quantized_mixed(model, weights, prefix=2):
        alone = forward(model, row)
        got = model(padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0)).logits[:, 3:]
    torch.testing.assert_close(got, alone, rtol=1e-8, atol=1e-8)


def test_the_model_comes_back_after_an_exception() -> None:
    model = tiny("gpt2")
    before, modules = state(model), {n: id(p) for n, p in model.named_parameters()}
    weights = {x.name: INT4 for x in find_linears(model).linears}
    inputs = Inputs(as_quantization("int8(tensor)", "activations"), (Sinks(2),))

    def broken(*_: Any) -> None:
        raise RuntimeError("half way")

    model.requires_grad_(False)
    last = next(iter(model.modules())).transformer.h[2].register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="half way"), quantized_mixed(model, weights, inputs=inputs, prefix=2):
        forward(model, X)
    last.remove()
    untouched(model, before, modules)
    with pytest.raises(ArgumentError, match="does not divide"), quantized_mixed(model, weights | {
        "transformer.h.2.mlp.c_fc": Quantization(4, group=7)}):  # fmt: skip
        pass
    untouched(model, before, modules)


def test_what_cannot_be() -> None:
    model = tiny("llama")
    name = find_linears(model).linears[0].name
    inputs = Inputs(as_quantization("int8(tensor)", "activations"), channels={name: (99,)})
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, "nothing to quantise"),
        ({"nowhere": INT8}, {}, "'nowhere' is no linear layer"),
        ({name: INT8}, {"parts": [Part("model.layers.1.mlp.up_proj", "rows", ((0, 1),), INT8)]}, "nothing says how the rest"),
        ({name: INT8}, {"inputs": Inputs(inputs.how, heads={"lm_head": 2})}, "'lm_head' is no linear layer"),
    ]  # fmt: skip
    for weights, more, what in cases:
        with pytest.raises(ArgumentError, match=what), quantized_mixed(model, weights, **more):
            pass
    with torch.no_grad(), quantized_mixed(model, {name: INT8}, inputs=inputs):
        with pytest.raises(ArgumentError, match="channel 99 is to be kept"):
            forward(model, X)
        with pytest.raises(UnsupportedError, match="quantised already"), quantized_mixed(model, {name: INT8}):
            pass
    named = Inputs(inputs.how, (Sinks(1, token_ids=(9,)),))
    with (
        torch.no_grad(),
        quantized_mixed(model, {name: INT8}, inputs=named),
        pytest.raises(UnsupportedError, match="input_ids"),
    ):
        model(inputs_embeds=model.get_input_embeddings()(X))
    with (
        torch.no_grad(),
        quantized_mixed(model, {name: INT8}, prefix=1),
        pytest.raises(UnsupportedError, match="was called before"),
    ):
        model.model.layers[0].self_attn.q_proj(torch.zeros(1, 1, 48))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "qwen3_next"])
def test_the_rows_and_columns_of_a_head_are_all_that_it_depends_on(name: str) -> None:
    """Zero rows and columns found for a key-value head: as if its query heads were cut out; other heads stay."""
    model = tiny(name, dtype=torch.float64)
    part = layer_parts(model)[0]
    known = {x.name: x for x in find_linears(model).linears}
    group = part.heads // part.kv_heads
    module = dict(model.named_modules())[part.output or ""]
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach().clone()))
    with torch.no_grad():
        forward(model, X)
        for rows, heads in zip(part.made, (range(group), (0,), (0,)), strict=True):
            layer = known[rows[0]]
            weight: Any = layer.weight.T if layer.transposed else layer.weight  # type: ignore[union-attr]
            for head in heads:
                for a, b in rows[1][head]:
                    weight[a:b] += 0.5
        forward(model, X)
    hook.remove()
    width = part.output_width // part.heads
    changed = (seen[0] - seen[1]).abs().amax((0, 1)).unflatten(0, (part.heads, width)).amax(1) > 1e-9
    assert changed.tolist() == [h < group for h in range(part.heads)]
    assert part.kv_numbers == 2 * part.kv_heads * width
