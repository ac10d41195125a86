"""A quantised model is the one that somebody would make by hand; left, it is what it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from test_reading import assert_same, ids, state
from torch import Tensor, nn

import sinkgate as sg
from models import tiny
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, SinkgateError, UnsupportedError
from sinkgate.evaluate.quantization import quantization_cost
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.linears import find_linears
from sinkgate.hf.quantized import QuantizedModel
from sinkgate.lab.arms import Arm
from sinkgate.lab.decoder import Decoder, DecoderConfig
from sinkgate.quantization import Quantization, as_quantization
from test_quantization import brute, line

MODELS = ["llama", "gpt2", "gemma3"]  # nn.Linear; Conv1D and tied; windows and tied
X = ids(24)
T = 24


@torch.no_grad()
def logits(model: Any, x: Tensor = X, mask: Tensor | None = None) -> Tensor:
    return forward(model, x, mask)


def linears(model: nn.Module) -> dict[str, nn.Module]:
    """Said by class and by name, as our code must not."""
    return {
        n: m
        for n, m in model.named_modules()
        if type(m).__name__ in ("Linear", "Conv1D") and n.rpartition(".")[2] != "lm_head"
    }


def by_hand(name: str, weights: str | None, activations: str | None = None, *, head: bool = False) -> Any:
    """A model whose weights were replaced by loops, and whose linear layers round what they are given."""
    model = tiny(name, dtype=torch.float64)
    chosen = linears(model)
    if head:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        chosen["lm_head"] = model.lm_head
    for module in chosen.values():
        turned = type(module).__name__ == "Conv1D"
        if weights is not None:
            w: Any = module.weight.detach()
            w = brute(w.T if turned else w, as_quantization(weights, "weights"), "weights")
            module.weight = nn.Parameter(w.T if turned else w)  # type: ignore[assignment]
        if activations is not None:
            how, plain = as_quantization(activations, "activations"), module.forward
            module.forward = lambda x, how=how, plain=plain: plain(brute(x, how, "activations"))  # type: ignore[method-assign]
    return model


# ---- weights and activations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["int8", "int4(group=8)", "uint3(tensor)", "uint4(channel)"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_a_model_made_by_hand(name: str, how: str) -> None:
    model = tiny(name, dtype=torch.float64)
    with sg.quantized(model, weights=how) as q:
        got = logits(model)
    torch.testing.assert_close(got, logits(by_hand(name, how)), rtol=1e-9, atol=1e-9)
    assert list(q.weights) == list(linears(model))
    assert q.numbers == sum(m.weight.numel() for m in linears(model).values())  # type: ignore[operator, union-attr]
    assert q.parameters == sum(p.numel() for p in model.parameters())
    assert (got - logits(model)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("weights", "activations"), [(None, "int8(token)"), ("int8", "int4(tensor)"), ("int4", "uint4(group=8)")]
)
@pytest.mark.parametrize("name", MODELS)
def test_activations_are_rounded_at_the_same_layers(name: str, weights: str | None, activations: str) -> None:
    model = tiny(name, dtype=torch.float64)
    with sg.quantized(model, weights=weights, activations=activations) as q:
        got = logits(model, X[:, :10])
    torch.testing.assert_close(got, logits(by_hand(name, weights, activations), X[:, :10]), rtol=1e-7, atol=1e-7)
    assert q.activations == dict.fromkeys(linears(model), 1)
    assert bool(q.weights) == (weights is not None)


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_a_tied_head_can_be_quantised_and_the_embedding_stays(name: str) -> None:
    model = tiny(name, dtype=torch.float64)
    embedding = model.get_input_embeddings()
    assert embedding.weight is model.lm_head.weight
    with sg.quantized(model, weights="int4", lm_head=True) as q:
        got, inside = logits(model), embedding.weight
        assert model.lm_head.weight is not embedding.weight
        assert embedding.weight is inside
    torch.testing.assert_close(got, logits(by_hand(name, "int4", head=True)), rtol=1e-9, atol=1e-9)
    assert "lm_head" in q.weights
    assert embedding.weight is model.lm_head.weight
    with sg.quantized(model, weights="int4", embeddings=True, skip=list(linears(model))[:1]) as q:
        table = embedding.weight.clone()
        assert torch.equal(
            model.lm_head.weight, next(p for n, p in model.state_dict().items() if n == "lm_head.weight")
        )
    torch.testing.assert_close(table, brute(embedding.weight, as_quantization("int4", "weights"), "weights"))
    assert "lm_head" not in q.weights
    assert q.left_out["lm_head.weight"].startswith("leads to the vocabulary")
    assert next(iter(linears(model))) not in q.weights


def test_what_is_left_out_is_said() -> None:
    model = tiny("gpt_oss")
    with sg.quantized(model, weights="int8") as q:
        pass
    experts = [n for n, p in model.named_parameters() if p.ndim == 3]
    assert experts
    assert all(q.left_out[n] == "not the weight of a linear layer" for n in experts)
    named = {f"{n}.weight" for n in q.weights} | set(q.left_out)
    assert named == {n for n, p in model.named_parameters() if p.ndim >= 2}
    assert f"{q.count} weights in int8(channel)" in str(q)
    assert "left out" in str(q)
    data = q.to_json()
    assert data["how"] == {"weights": Quantization(granularity="channel").to_json()}
    assert Quantization.from_json(data["how"]["weights"]) == q.how["weights"]
    assert data["weights"]["model.layers.0.self_attn.q_proj"]["shape"] == [48, 48]


def test_the_error_of_a_weight() -> None:
    model = tiny("llama", dtype=torch.float64)
    for how in ("int8", "int4", "int2"):
        with sg.quantized(model, weights=how) as q:
            pass
        for name, module in linears(model).items():
            w: Any = module.weight.detach()  # type: ignore[union-attr, operator]
            want = (brute(w, as_quantization(how, "weights"), "weights") - w).norm() / w.norm()
            assert q.weights[name].error == pytest.approx(float(want), rel=1e-9)


# ---- keys and values ------------------------------------------------------------------------------------------------


def rounded(x: Tensor, how: str | None, real: Tensor, kept: Tensor) -> Tensor:
    """Keys or values of real tokens of a text, by loops; kept tokens and padding stay."""
    if how is None:
        return x
    out = x.clone()
    for b in range(len(x)):
        for_range = real[b] & ~kept[b]
        if not for_range.any():
            continue
        some = x[b : b + 1, :, for_range]
        out[b, :, for_range] = brute(some, as_quantization(how, "kv"), "kv")[0].to(x.dtype)
    return out


@contextmanager
def dense(model: Any, how: Any, real: Tensor, kept: Tensor, burn_in: int | None = None) -> Iterator[None]:
    """Eager attention in float64 over keys and values that loops have rounded; from ``burn_in`` on key 0 is hidden."""
    keys, values = how if isinstance(how, tuple) else (how, how)

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **kw: Any) -> Any:
        k, v = rounded(k, keys, real, kept), rounded(v, values, real, kept)
        g = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(g, 1).double(), v.repeat_interleave(g, 1).double()
        s = q.double() @ k.transpose(-1, -2) * kw["scaling"] + mask[..., : k.shape[2]].double()
        if burn_in is not None:
            s[:, :, burn_in:, 0] = -1e30
        if kw.get("s_aux") is not None:
            s = torch.cat([s, kw["s_aux"].double().reshape(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
        return (s.softmax(-1)[..., : k.shape[2]] @ v).to(q.dtype).transpose(1, 2).contiguous(), None

    attention, masks = compat.interfaces()
    attention.register("tests_quantized", function)
    masks.register("tests_quantized", masks["eager"])
    configs = compat.configs(model)
    before = [compat.implementation(c) for c in configs]
    for config in configs:
        compat.set_implementation(config, "tests_quantized")
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            compat.set_implementation(config, name)


KV = ["int4(token)", "uint4(group=4)", "int8(head)", "uint4(channel)", "int4(tensor)", ("int4(channel)", "uint3(token)"),
      (None, "int4(head)"), ("int3", None)]  # fmt: skip


@pytest.mark.parametrize("how", KV, ids=str)
@pytest.mark.parametrize("keep", [0, 3])
@pytest.mark.parametrize("name", [*MODELS, "gpt_oss"])
def test_keys_and_values_against_dense_attention_over_rounded_ones(name: str, how: Any, keep: int) -> None:
    attn = "eager" if name == "gpt_oss" else None
    model, other = (tiny(name, dtype=torch.float64, attn=attn) for _ in range(2))
    kept = (torch.arange(T) < keep)[None]
    with dense(other, how, torch.ones(1, T, dtype=torch.bool), kept):
        want = logits(other)
    with sg.quantized(model, kv=how, keep=keep) as q:
        got = logits(model)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert (got - logits(model)).abs().max() > 1e-3
    assert len(q.kv) == 3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", ["int4(token)", "int4(head)", "uint4(channel)", "int4(tensor)"])
@pytest.mark.parametrize("name", MODELS)
def test_padding_is_no_token(name: str, how: str, side: str) -> None:
    """A padded text gives what it gives alone: ranges without padding, the kept tokens are its own first ones."""
    model = tiny(name, dtype=torch.float64)
    x, mask = ids(T, 2), torch.ones(2, T, dtype=torch.long)
    text = slice(7, None) if side == "left" else slice(None, T - 7)
    mask[1] = 0
    mask[1, text] = 1
    where = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad(), sg.quantized(model, kv=how, keep=2):
        got = model(x, attention_mask=mask, position_ids=where, use_cache=False).logits
        alone = [model(row, use_cache=False).logits for row in (x[:1], x[1:, text])]
    torch.testing.assert_close(got[:1], alone[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(got[1:, text], alone[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_decoding_from_a_cache_equals_one_pass(name: str, left: int) -> None:
    """Per token nothing looks ahead; a cache that keeps a window has lost the first tokens, and knows it."""
    model, x = tiny(name, dtype=torch.float64), ids(40)
    mask = torch.ones(1, 40, dtype=torch.long)
    mask[:, :left] = 0
    where = (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad(), sg.quantized(model, kv="int3(token)", keep=2):
        whole = model(x, attention_mask=mask, position_ids=where, use_cache=False).logits
        cache, parts = None, []
        for i, j in ((0, 12), (12, 30), *((n, n + 1) for n in range(30, 40))):
            out = model(x[:, i:j], attention_mask=mask[:, :j], position_ids=where[:, i:j], cache=cache)
            parts.append(out.logits)
            cache = out.past_key_values
    torch.testing.assert_close(torch.cat(parts, 1)[:, left:], whole[:, left:], rtol=1e-6, atol=1e-6)


def test_kept_by_token_id() -> None:
    model, other = (tiny("llama", dtype=torch.float64) for _ in range(2))
    x = ids(T)
    wanted = tuple(int(x[0, i]) for i in (2, 19, 20, 21))  # more than are kept; two come in the third part
    kept = torch.isin(x, torch.tensor(wanted))
    keep = Sinks(3, token_ids=wanted)
    kept &= kept.cumsum(1) <= 3
    with dense(other, "int3(head)", torch.ones(1, T, dtype=torch.bool), kept):
        want = logits(other, x)
    with torch.no_grad(), sg.quantized(model, kv="int3(head)", keep=keep) as q:
        torch.testing.assert_close(logits(model, x), want, rtol=1e-6, atol=1e-6)
        assert q.how["keep"] == keep
        assert str(keep) in str(q)
    with torch.no_grad(), sg.quantized(model, kv="int3", keep=keep):
        whole = logits(model, x)
        first = model(x[:, :15], use_cache=True)
        rest = model(x[:, 15:19], cache=first.past_key_values)
        last = model(x[:, 19:], cache=first.past_key_values)
        got = torch.cat([first.logits, rest.logits, last.logits], 1)
        torch.testing.assert_close(got, whole, rtol=1e-9, atol=1e-9)
        two = model(x[:, :15].expand(2, -1), use_cache=True)
        with pytest.raises(UnsupportedError, match="only with one row"):
            model(x[:, 15:].expand(2, -1), cache=two.past_key_values)
        with pytest.raises(UnsupportedError, match="input_ids"):
            model(inputs_embeds=model.get_input_embeddings()(x))
    elsewhere = model(x[:, :15], use_cache=True).past_key_values
    with (
        torch.no_grad(),
        sg.quantized(model, kv="int3", keep=keep),
        pytest.raises(UnsupportedError, match="inside this"),
    ):
        model(x[:, 15:], cache=elsewhere)


@pytest.mark.parametrize("within", [True, False])
def test_keys_are_rounded_before_any_act_however_the_withs_are_nested(within: bool) -> None:
    """An act may go through the queries in parts, with the keys of each: the range is that of all keys."""
    model, other = (tiny("llama", dtype=torch.float64) for _ in range(2))
    real, kept = torch.ones(1, T, dtype=torch.bool), (torch.arange(T) < 1)[None]
    with dense(other, "uint3(channel)", real, kept, burn_in=8):
        want = logits(other)
    contexts = [
        lambda: sg.quantized(model, kv="uint3(channel)", keep=1),
        lambda: sg.acting(model, sg.Evict(0, burn_in=8)),
        lambda: sg.acting(model, sg.Evict(0, burn_in=8), heads=[(0, 0)]),
    ]
    with ExitStack() as stack:
        for context in contexts if within else contexts[::-1]:
            stack.enter_context(context())  # type: ignore[arg-type]
        torch.testing.assert_close(logits(model), want, rtol=1e-6, atol=1e-6)


def test_beside_a_swap_and_an_outlet() -> None:
    model, other = (tiny("llama", dtype=torch.float64) for _ in range(2))
    for m in (model, other):
        found = sg.add_outlet(m, "sink_logit", layers=[1])
        found.layers[1].level.data.fill_(1.0)  # type: ignore[union-attr, operator]
    with sg.swap(model, "softpick", layers=[0]):
        plain = logits(model)
        with sg.quantized(model, kv="int8(token)", weights="int8"):
            got = logits(model)
        assert torch.equal(logits(model), plain)
    with (
        sg.quantized(other, weights="int8"),
        sg.quantized(other, kv="int8(token)"),
        sg.swap(other, "softpick", layers=[0]),
    ):
        torch.testing.assert_close(logits(other), got, rtol=1e-12, atol=1e-12)
    assert (got - plain).abs().max() > 0


# ---- coming and going -----------------------------------------------------------------------------------------------

ALL: dict[str, Any] = {"weights": "int4", "activations": "int8", "kv": ("int4(channel)", "int4(token)"), "keep": 2,
                       "lm_head": True, "embeddings": True}  # fmt: skip


def fails_inside(model: Any) -> None:
    with sg.quantized(model, **ALL):
        logits(model)
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("name", [*MODELS, "gpt_oss", "qwen3_next"])
def test_leaving_restores_bit_for_bit(name: str) -> None:
    model = tiny(name)
    before, was = logits(model), state(model)
    objects = dict(model.named_parameters(remove_duplicate=False))
    with pytest.raises(RuntimeError, match="on purpose"):
        fails_inside(model)
    assert_same(was, state(model))
    with sg.quantized(model, **ALL):
        assert not torch.equal(logits(model), before)
    assert_same(was, state(model))
    assert torch.equal(logits(model), before)
    now = dict(model.named_parameters(remove_duplicate=False))
    assert now.keys() == objects.keys()
    assert all(now[n] is objects[n] for n in objects)  # the same tensors, tied as they were


def test_a_refusal_on_the_way_in_changes_nothing() -> None:
    model = tiny("llama")
    was = state(model)
    with pytest.raises(ArgumentError, match=r"the weight of model.layers.0.mlp.down_proj: group=48 does not divide 64"):
        sg.quantized(model, weights="int4(group=48)", kv="int8").__enter__()
    assert_same(was, state(model))


def test_left_in_another_order() -> None:
    model = tiny("llama")
    before, was = logits(model), state(model)
    one, two, three = (sg.quantized(model, **{k: "int4"}) for k in ("weights", "activations", "kv"))
    for context in (one, two, three):
        context.__enter__()
    for context in (one, three, two):
        context.__exit__(None, None, None)
    assert_same(was, state(model))
    assert torch.equal(logits(model), before)
    with sg.quantized(model, weights="int8", kv="int8"):
        with pytest.raises(UnsupportedError, match="is quantised already"), sg.quantized(model, weights="int4"):
            pass
        with pytest.raises(UnsupportedError, match="quantised already"), sg.quantized(model, kv="int4"):
            pass
    assert_same(was, state(model))


# ---- models of one's own --------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A language model without transformers."""

    def __init__(self, *, tied: bool = False, gate: bool = True, window: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.attend = sg.nn.GatedAttention(
            16, 4, 2, weighting="softpick", gate=sg.Gate() if gate else None, window=window
        )
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16, bias=False)
        self.out = nn.Linear(16, 50, bias=False)
        if tied:
            self.out.weight = self.table.weight

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        h = self.table(x)
        h = h + self.attend(h, **kwargs)
        return self.out(h + self.down(self.up(h).relu()))


def own(**options: Any) -> Own:
    torch.manual_seed(3)
    return Own(**options).double().eval()


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_ones_own(tied: bool) -> None:
    model, x = own(tied=tied), ids(12) % 50
    names = ["attend.q_proj", "attend.k_proj", "attend.v_proj", "attend.o_proj", "attend.gate.proj", "up", "down"]
    other = copy.deepcopy(model)
    for name in names:
        module = other.get_submodule(name)
        module.weight = nn.Parameter(brute(module.weight.detach(), as_quantization("int4", "weights"), "weights"))  # type: ignore[arg-type, assignment]
    before = model(x).detach()
    with torch.no_grad(), sg.quantized(model, weights="int4", activations="int8") as q:
        assert list(q.weights) == names
        assert set(q.left_out) == {"table.weight", "out.weight"}
        model(x)
        assert set(q.activations.values()) == {1}
    with torch.no_grad(), sg.quantized(model, weights="int4"):
        torch.testing.assert_close(model(x), other(x), rtol=1e-9, atol=1e-9)
    with torch.no_grad(), sg.quantized(model, weights="int4", lm_head=True, skip="attend") as q:
        assert list(q.weights) == ["up", "down", "out"]
        model(x)
    assert torch.equal(model(x), before)


def whole(k: Tensor, v: Tensor, how: str, starts: Tensor, keep: int, real: Tensor) -> tuple[Tensor, Tensor]:
    place = torch.arange(k.shape[2]) - starts
    kept = (place >= 0) & (place < keep)
    return rounded(k, how, real, kept), rounded(v, how, real, kept)


@pytest.mark.parametrize("how", ["int4(token)", "uint4(channel)", "int4(head)"])
def test_keys_and_values_of_gated_attention(how: str) -> None:
    model, x = own(window=6), ids(12, 2) % 50
    every = torch.ones(2, 12, dtype=torch.bool)
    starts = torch.zeros(2, 12, dtype=torch.long)
    documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 12])
    padded = torch.ones(2, 1, 1, 12, dtype=torch.bool)
    padded[1, ..., :4] = False
    cases: list[tuple[dict[str, Any], Tensor, Tensor]] = [
        ({}, starts, every),
        ({"document_ids": documents}, torch.tensor([[0] * 5 + [5] * 7, [0] * 12]), every),
        ({"mask": padded}, torch.tensor([[0] * 12, [4] * 12]), padded[:, 0, 0]),
        ({"mask": torch.where(padded, 0.0, -1e30)}, torch.tensor([[0] * 12, [4] * 12]), padded[:, 0, 0]),
    ]
    for kwargs, begin, real in cases:
        with torch.no_grad():
            before = model(x, **kwargs)
            with sg.quantized(model, kv=how, keep=2) as q:
                got = model(x, **kwargs)
            assert model.attend.kv_map is None
            model.attend.kv_map = lambda k, v, *_, begin=begin, real=real: whole(k, v, how, begin, 2, real)
            want = model(x, **kwargs)
            model.attend.kv_map = None
        torch.testing.assert_close(got[real], want[real], rtol=1e-9, atol=1e-9)
        assert (got - before)[real].abs().max() > 1e-4
        assert q.kv == ["attend"]
        assert torch.equal(model(x, **kwargs), before)


def test_gated_attention_decodes_quantised() -> None:
    layer, x = own().attend, torch.randn(1, 12, 16, dtype=torch.float64)
    with torch.no_grad(), sg.quantized(layer, kv="int3", keep=2) as q:
        one_pass, cache = layer(x), sg.nn.KVCache()
        parts = [layer(x[:, i:j], cache=cache) for i, j in ((0, 7), (7, 8), (8, 12))]
        assert q.kv == [""]
    torch.testing.assert_close(torch.cat(parts, 1), one_pass, rtol=1e-9, atol=1e-9)
    layer.kv_map = lambda k, v, *_: (k, v)
    with pytest.raises(UnsupportedError, match="kv_map already"), sg.quantized(layer, kv="int8"):
        pass
    assert layer.kv_map is not None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arm", ["softmax", "softpick"])
def test_the_labs_decoder(arm: str, tied: bool) -> None:
    model = Decoder(DecoderConfig(vocab=40, dim=32, layers=2, heads=4, kv_heads=2, tied=tied, std=0.3), Arm(arm)).eval()
    x = ids(20, 2) % 40
    costs = [
        quantization_cost(model, x, weights=f"int{n}", activations=f"int{n}", kv=f"int{n}(head)", keep=1)
        for n in (4, 8)
    ]
    assert costs[0].after.kl > 3 * costs[1].after.kl > 0
    what = costs[0].what
    assert what.kv == ["blocks.0.attention", "blocks.1.attention"]
    assert set(what.left_out) == {"embedding.weight", "head.weight"}
    assert what.count == len(what.activations) == 2 * 7


class Turned(nn.Module):
    """A linear map of somebody else's, its weight the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Squared(Turned):
    """Not linear."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).square()


def test_linear_layers_are_known_by_what_they_do() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Turned(), Squared(), nn.Linear(5, 5), nn.MultiheadAttention(8, 2))
    found = find_linears(model)
    assert [(x.name, x.transposed) for x in found.linears] == [("0", True), ("2", False), ("3.out_proj", False)]
    assert set(found.left_out) == {"1.weight", "3.in_proj_weight"}
    with torch.no_grad(), sg.quantized(model, weights="int4(channel)", activations="int8") as q:
        for row, want in zip(model[0].weight.T, q.weights, strict=False):  # one output at a time
            assert len((row / row.abs().max() * 7).round(decimals=4).unique()) <= 15
            assert want in q.weights
        model[3](*[torch.randn(3, 1, 8)] * 3)
        assert q.activations == {"0": 0, "2": 0, "3.out_proj": 0}  # torch's own attention does not call its projection
        model[2](torch.randn(2, 5))
        model[2](input=torch.randn(2, 5))
        assert q.activations["2"] == 2


# ---- gradients, scores, refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [{"weights": "int8"}, {"activations": "int8"}, {"kv": "int8"}], ids=str)
def test_a_pass_that_wants_gradients_is_refused(what: dict[str, str]) -> None:
    for model, x in ((tiny("llama"), X), (own(), X % 50)):
        with sg.quantized(model, **what):  # type: ignore[arg-type]
            with pytest.raises(UnsupportedError, match="rounding has no gradient"):
                model(x)
            with torch.no_grad():
                model(x)
        model.requires_grad_(False)
        with sg.quantized(model, **what):  # type: ignore[arg-type]
            model(x)


def test_what_it_costs() -> None:
    model, x = tiny("llama"), ids(40, 2)
    model.train()
    found = quantization_cost(model, x, start=4, weights="int4", kv="int4", keep=1)
    assert model.training
    model.eval()
    plain = [score(logits(model, row[None])[0], row, start=4) for row in x]
    assert found.before.loss == pytest.approx(sum(s.loss for s in plain) / 2)
    with sg.quantized(model, weights="int4", kv="int4", keep=1):
        after = [score(logits(model, row[None])[0], row, start=4) for row in x]
    assert found.after.loss == pytest.approx(sum(s.loss for s in after) / 2, rel=1e-6)
    assert found.after.tokens == 2 * 35
    assert found.after.kl > 0
    assert found.change == found.after.loss - found.before.loss
    assert "nats" in str(found)
    plainer = own().float()
    costs = [quantization_cost(plainer, x % 50, weights=f"int{bits}").after.kl for bits in (2, 4, 8)]
    assert costs[0] > costs[1] > costs[2] > 0
    with pytest.raises(ArgumentError, match=r"\[texts, tokens\], got \[40\]"):
        quantization_cost(model, x[0], weights="int8")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "nothing to quantise"),
        ({"weights": "int8(token)"}, "belongs to no token"),
        ({"activations": "int8(channel)"}, "taken out of the sum"),
        ({"weights": 8}, "weights must be a text"),
        ({"weights": "int8", "keep": 4}, "keep is for keys and values"),
        ({"kv": "int8", "keep": -1}, "number of first tokens"),
        ({"kv": "int8", "keep": True}, "number of first tokens"),
        ({"kv": "int8", "keep": Sinks(folded=(3,))}, "number of first tokens"),
        ({"kv": (None, None)}, "two: (keys, values)"),
        ({"kv": ("int8",)}, "two: (keys, values)"),
        ({"kv": "int8", "lm_head": True}, "are for weights and activations"),
        ({"activations": "int8", "embeddings": True}, "give weights= too"),
        ({"weights": "int8", "skip": "nowhere"}, "skip names 'nowhere'"),
        ({"weights": "int8", "skip": "model"}, "no linear layer to quantise"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    model = tiny("llama")
    was = state(model)
    with pytest.raises(SinkgateError) as caught, sg.quantized(model, **settings):
        pass
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_same(was, state(model))


def test_models_that_cannot_be_quantised_say_why() -> None:
    def refused(model: nn.Module, **how: Any) -> str:
        with pytest.raises(SinkgateError) as caught, sg.quantized(model, **how):
            pass
        return str(caught.value)

    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert "has no sinkgate.nn.GatedAttention" in refused(plain, kv="int8")
    assert "no linear layer" in refused(nn.ReLU(), weights="int8")
    assert "run the model once" in refused(nn.Sequential(nn.LazyLinear(3)), weights="int8")
    assert "is not in memory" in refused(nn.Linear(3, 3, device="meta"), weights="int8")
    assert "from other parameters" in refused(
        torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), weights="int8"
    )
    assert "no token ids" in refused(own(), kv="int8", keep=Sinks(2, token_ids=(1,)))
    with (
        torch.no_grad(),
        sg.quantized(plain, activations="int8(group=3)"),
        pytest.raises(ArgumentError, match="input of 0"),
    ):
        plain(torch.randn(2, 4))


def test_the_record_of_what_was_done() -> None:
    model = tiny("qwen3_next")  # its first layer has no keys and values
    with sg.quantized(model, kv=("int4(channel)", None), keep=4) as q:
        assert isinstance(q, QuantizedModel)
    assert q.kv == ["model.layers.1.self_attn", "model.layers.2.self_attn"]
    assert str(q) == "in 2 layers keys in int4(channel), values in full precision, but for sinks(4)"
    assert q.to_json()["how"]["keep"] == {"policy": "sinks", "n": 4}
    assert line([1.0, -3.0], Quantization(2)) == [0.0, -3.0]
