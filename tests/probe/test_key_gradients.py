"""What a key's gradient is made of, against autograd of the model's own attention in float64."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinkgate.probe.key_gradients as module
from models import CONFIGS, VOCABULARY, tiny, tokenizer, words
from sinkgate.errors import ArgumentError, NonFiniteError, TextError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.probe.key_gradients import KeyGradients, key_gradients

SEEN: list[dict[str, Any]] = []


def _capture(mod: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    """The function the model runs with: eager attention would round its softmax to float32 in a float64 model."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    eager = mod.config._attn_implementation == "test_keys_eager"
    function = sys.modules[type(mod).__module__].eager_attention_forward if eager else sdpa_attention_forward
    out, weights = function(mod, q, k, v, mask, **kwargs)
    SEEN.append({"q": q, "k": k, "v": v, "mask": mask, "out": out, "weights": weights, **kwargs})
    return out, weights


def random_ids(length: int, seed: int = 3) -> Tensor:
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def cross_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])


def autograd(model: Any, ids: Tensor, loss: Any = cross_entropy) -> list[dict[str, Any]]:
    """What every attention call of one pass got, with ``dk = ∂L/∂k`` and ``r = ∂L/∂o`` from autograd."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    SEEN.clear()
    before = model.config._attn_implementation
    ours = f"test_keys_{before}"
    ALL_ATTENTION_FUNCTIONS.register(ours, _capture)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ours, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation(ours)
    try:
        value = loss(model(ids, use_cache=False).logits, ids)
    finally:
        model.set_attn_implementation(before)
    calls = list(SEEN)
    found = torch.autograd.grad(value, [c[n] for c in calls for n in ("k", "out")])
    for call, dk, r in zip(calls, found[::2], found[1::2], strict=True):
        call |= {"dk": dk[0], "r": r[0].transpose(0, 1), "loss": value.item()}
    return calls


def terms(call: dict[str, Any]) -> Tensor:
    """``[H, t, j, d]``: what each query contributes to ``∂L/∂k_j``, by autograd of its row alone, in float64."""
    q, k, v = (call[n][0].detach().double() for n in ("q", "k", "v"))
    group = len(q) // len(k)
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    length = q.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    out = []
    for t in range(length):
        leaf = k.clone().requires_grad_()
        scores = (leaf @ q[:, t, :, None])[..., 0] * call["scaling"]
        if call.get("softcap") is not None:
            scores = call["softcap"] * torch.tanh(scores / call["softcap"])
        scores = scores.masked_fill(hidden[t], -torch.inf)
        if call["mask"] is not None:
            scores = scores + call["mask"][0, 0, t].double()
        if call.get("s_aux") is not None:
            scores = torch.cat([scores, call["s_aux"].detach().double()[:, None]], -1)
        weights = scores.softmax(-1)[:, :length]
        output = (weights[..., None] * v).sum(1)
        (gradient,) = torch.autograd.grad((output * call["r"][:, t].double()).sum(), leaf)
        out.append(gradient)
    return torch.stack(out, 1)


def assert_close(found: np.ndarray, expected: Tensor, size: Tensor, tolerance: float = 1e-5) -> None:
    """Equal to ``tolerance`` of ``size``: our weights are float32, so an error scales with what is added up."""
    error = np.abs(found - expected.numpy())
    assert (error <= tolerance * size.numpy() + 1e-15).all(), float((error / (size.numpy() + 1e-15)).max())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_sum_equals_the_terms_by_autograd(name: str) -> None:
    """Twenty tokens with a window of sixteen: softcap, masks, sinks and windows all bite."""
    model, ids = tiny(name, dtype=torch.float64), random_ids(20)
    calls = autograd(model, ids)
    found = key_gradients(model, ids=ids)
    assert len(calls) == len(found.layers) == len(found.terms)
    assert found.loss == pytest.approx(calls[0]["loss"], rel=1e-6)
    for i, call in enumerate(calls):
        each = terms(call)  # [H, t, j, d]
        lengths = each.norm(dim=-1)
        size = lengths.sum(1)
        assert_close(found.sum_of_norms[i], size, size)
        assert_close(found.norm_of_sum[i], each.sum(1).norm(dim=-1), size)
        assert_close(found.root_sum_of_squares[i], lengths.square().sum(1).sqrt(), size)
        grouped = each.sum(1).unflatten(0, (len(call["dk"]), -1)).sum(1)
        per_group = size.unflatten(0, (len(call["dk"]), -1)).sum(1)
        assert_close(found.per_key_head[i], grouped.norm(dim=-1), per_group)
        seen = torch.ones(20, 20, dtype=torch.bool).tril()
        if call["mask"] is not None:
            seen &= call["mask"][0, 0] > -1
        np.testing.assert_array_equal(found.terms[i], seen.sum(0).numpy())


@pytest.mark.parametrize("attn", [None, "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_total_is_autograds_gradient_of_k(name: str, attn: str | None) -> None:
    """∂L/∂k of the model's own graph, whichever kernel ran."""
    model, ids = tiny(name, attn=attn, dtype=torch.float64), random_ids(60)
    calls = autograd(model, ids)
    found = key_gradients(model, ids=ids)
    for i, call in enumerate(calls):
        size = torch.tensor(found.sum_of_norms[i]).unflatten(0, (len(call["dk"]), -1)).sum(1)
        assert_close(found.per_key_head[i], call["dk"].double().norm(dim=-1), size)


def test_the_models_show_what_they_are_here_for() -> None:
    """Otherwise the tests above would pass without a softcap, a sink or a window."""
    ids = random_ids(20)
    calls = {name: autograd(tiny(name), ids) for name in ("gemma2", "gpt_oss", "mistral", "llama")}
    raw = calls["gemma2"][1]
    scores = raw["q"][0] @ raw["k"][0].repeat_interleave(3, 0).mT * raw["scaling"]
    assert raw["softcap"] == 2.0
    assert float(scores.detach().abs().max()) > 1.0
    assert float(calls["gpt_oss"][0]["weights"].detach().sum(-1).min()) < 0.9
    assert int((calls["mistral"][0]["mask"][0, 0, -1] < -1).sum()) == 4
    assert calls["llama"][0]["k"].shape[1] == 2


def test_blocks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("gemma2", dtype=torch.float64), random_ids(50)
    whole = key_gradients(model, ids=ids)
    monkeypatch.setattr(module, "TILE", 50 * 3 * 7)
    parts = key_gradients(model, ids=ids)
    for name in ("sum_of_norms", "norm_of_sum", "root_sum_of_squares", "per_key_head"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-5, atol=1e-9)


def test_no_block_is_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    blocks = module.weight_blocks

    def counted(*args: Any, **kwargs: Any) -> Any:
        for block in blocks(*args, **kwargs):
            sizes.append(block.weights.numel())
            yield block

    monkeypatch.setattr(module, "weight_blocks", counted)
    monkeypatch.setattr(module, "TILE", 1500)
    key_gradients(tiny("llama"), ids=random_ids(100))
    assert max(sizes) <= 1500


def test_cancellation_and_its_null() -> None:
    found = key_gradients(tiny("llama", dtype=torch.float64), ids=random_ids(40))
    assert (found.norm_of_sum <= found.sum_of_norms * (1 + 1e-12)).all()
    assert (found.root_sum_of_squares <= found.sum_of_norms * (1 + 1e-12)).all()
    # the last query predicts nothing: the last key has no gradient, the one before a single term in the last layer
    assert np.isnan(found.cancellation[:, :, -1]).all()
    assert np.isnan(found.over_random[:, :, -1]).all()
    np.testing.assert_allclose(found.cancellation[-1, :, -2], 0, atol=1e-12)
    np.testing.assert_allclose(found.over_random[-1, :, -2], 1, atol=1e-12)
    inner = found.cancellation[:, :, :-2]
    assert ((inner >= 0) & (inner <= 1)).all()
    np.testing.assert_array_equal(found.terms, np.broadcast_to(40 - np.arange(40), (3, 40)))


def test_the_null_is_what_random_signs_leave() -> None:
    each = terms(autograd(tiny("llama", dtype=torch.float64), random_ids(20))[0])[:, :, :4]
    found = key_gradients(tiny("llama", dtype=torch.float64), ids=random_ids(20))
    signs = torch.randint(0, 2, (20000, 20), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    sums = torch.einsum("nt,htjd->nhjd", signs, each).square().sum(-1).mean(0).sqrt()
    np.testing.assert_allclose(found.root_sum_of_squares[0, :, :4], sums, rtol=0.03)


def test_any_loss_and_any_layers() -> None:
    model, ids = tiny("qwen3", dtype=torch.float64), random_ids(30)

    def loss(logits: Tensor, ids: Tensor) -> Tensor:
        return logits[0, -1, ids[0, 0]]

    calls = autograd(model, ids, loss)
    found = key_gradients(model, ids=ids, loss=loss, layers=[2, 0])
    assert found.layers == (0, 2)
    whole = key_gradients(model, ids=ids, loss=loss)
    for i, layer in enumerate(found.layers):
        np.testing.assert_array_equal(found.norm_of_sum[i], whole.norm_of_sum[layer])
        size = torch.tensor(found.sum_of_norms[i]).unflatten(0, (2, -1)).sum(1)
        assert_close(found.per_key_head[i], calls[layer]["dk"].norm(dim=-1), size)
    # a loss on the last logit reaches the last layer through the last query alone
    assert np.allclose(found.cancellation[1], 0, atol=1e-9)
    assert (found.sum_of_norms[1] > 0).any()


def test_lower_precision_is_near() -> None:
    ids = random_ids(40)
    exact = key_gradients(tiny("llama", dtype=torch.float64), ids=ids)
    for dtype, limit in ((torch.float32, 1e-4), (torch.float16, 0.02), (torch.bfloat16, 0.15)):
        found = key_gradients(tiny("llama", dtype=dtype), ids=ids)
        size = np.linalg.norm(exact.sum_of_norms)
        assert np.linalg.norm(found.sum_of_norms - exact.sum_of_norms) < limit * size, dtype
        assert np.linalg.norm(found.norm_of_sum - exact.norm_of_sum) < limit * size, dtype


def test_float16_gradients_do_not_underflow() -> None:
    """A loss ten thousand times smaller: without scaling its gradients would be off by 8%."""
    ids = random_ids(40)

    def small(logits: Tensor, ids: Tensor) -> Tensor:
        return cross_entropy(logits.float(), ids) / 10_000

    found = key_gradients(tiny("llama", dtype=torch.float16), ids=ids, loss=small)
    exact = key_gradients(tiny("llama", dtype=torch.float64), ids=ids)
    size = np.linalg.norm(exact.sum_of_norms)
    assert np.linalg.norm(found.sum_of_norms * 10_000 - exact.sum_of_norms) < 0.01 * size


@pytest.mark.slow
def test_a_real_sink() -> None:
    """Where one key has nearly all of the weight, `v_j − o_t` is small: the digits must not go with it."""
    import sinkgate as sg

    loaded = sg.load("smollm2-135m", dtype="float32")
    model = loaded.model.double()
    found = key_gradients(model, loaded.tokenizer, "The quick brown fox jumps over the lazy dog. " * 4, bos="no")
    ids = torch.tensor([loaded.tokenizer("The quick brown fox jumps over the lazy dog. " * 4)["input_ids"]])
    for i, call in enumerate(autograd(model, ids)):
        size = torch.tensor(found.sum_of_norms[i]).unflatten(0, (3, -1)).sum(1)
        assert_close(found.per_key_head[i], call["dk"].norm(dim=-1), size)
    assert np.median(found.cancellation[..., 0]) > np.nanmedian(found.cancellation[..., 1:32])


# ---- the model is left alone ---------------------------------------------------------------------------------


def state(model: Any) -> dict[str, Any]:
    return {
        "weights": {n: p.detach().clone() for n, p in model.state_dict().items()},
        "flags": {n: p.requires_grad for n, p in model.named_parameters()},
        "grads": {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        "training": [m.training for m in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "names": [compat.implementation(c) for c in compat.configs(model)],
        "config": copy.deepcopy(model.config.to_dict()),
        "forwards": [m.__dict__.get("forward") for m in model.modules()],
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in ("weights", "grads"):
        for key, x in before[name].items():
            y = after[name][key]
            assert (x is None and y is None) or torch.equal(x, y), (name, key)
    for name in ("flags", "training", "hooks", "names", "config", "forwards"):
        assert before[name] == after[name], name


@pytest.mark.parametrize("name", ["llama", "gpt_oss", "qwen3_next"])
def test_the_model_is_bit_for_bit_what_it_was(name: str) -> None:
    model, ids = tiny(name), random_ids(24)
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 2 == 0)
        if i % 4 == 0:
            parameter.grad = torch.full_like(parameter, 0.25)
    with torch.no_grad():
        logits = model(ids).logits
    before = state(model)
    key_gradients(model, ids=ids)
    assert_same(before, state(model))
    with torch.no_grad():
        assert torch.equal(model(ids).logits, logits)


@pytest.mark.parametrize("where", ["forward", "loss", "scalar"])
def test_an_exception_leaves_the_model_as_it_was(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), random_ids(24)
    before = state(model)

    def fails(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("on purpose")

    if where == "forward":
        monkeypatch.setattr(module, "to_site", fails)
    loss = {"forward": None, "loss": fails, "scalar": lambda logits, ids: logits}[where]
    with pytest.raises((RuntimeError, ArgumentError)):
        key_gradients(model, ids=ids, loss=loss)
    assert_same(before, state(model))
    monkeypatch.undo()
    assert np.isfinite(key_gradients(model, ids=ids).sum_of_norms).all()


def test_frozen_weights_and_a_caller_without_gradients() -> None:
    ids = random_ids(24)
    expected = key_gradients(tiny("llama"), ids=ids)
    frozen = tiny("llama").requires_grad_(False)
    with torch.no_grad():
        found = key_gradients(frozen, ids=ids)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        again = key_gradients(frozen, ids=ids)
    np.testing.assert_allclose(found.norm_of_sum, expected.norm_of_sum, rtol=1e-4, atol=1e-9)
    np.testing.assert_array_equal(found.norm_of_sum, again.norm_of_sum)


# ---- what goes in and comes out ----------------------------------------------------------------------------------


def test_a_text_and_its_table() -> None:
    found = key_gradients(tiny("llama"), tokenizer(bos=True), words(60), tokens=50)
    assert isinstance(found, KeyGradients)
    assert found.tokens == ["<s>", *words(60).split()[:49]]
    assert key_gradients(tiny("llama"), tokenizer(bos=True), words(60), tokens=50, bos="no").tokens[0] != "<s>"
    i, h, j = found.strongest(1)[0]
    assert found.sum_of_norms[i, h, j] == found.sum_of_norms.max()
    lines = str(found).splitlines()
    assert lines[0].startswith("Gradients of 50 keys in 3 layers of 6 query heads, loss ")
    row = lines[2].split()
    assert row[:5] == [str(i), str(h), str(j), repr(found.tokens[j]), str(50 - j)]
    assert row[5:8] == [f"{x[i, h, j]:.3e}" for x in (found.sum_of_norms, found.norm_of_sum, found.root_sum_of_squares)]
    assert row[8] == f"{found.cancellation[i, h, j]:.1%}"
    first = np.median(found.over_random[:, :, 0])
    others = np.median(found.over_random[:, :, 1:19])
    assert lines[-2].endswith(f"{first:.2f} times random signs.")
    assert lines[-1].endswith(f"{others:.2f} times random signs.")
    assert "at least 32 terms: none has a gradient" in str(key_gradients(tiny("llama"), ids=[1, 2, 3]))


def test_ids_as_they_are() -> None:
    model, ids = tiny("gpt2"), random_ids(12)
    a, b, c = (key_gradients(model, ids=x) for x in (ids, ids[0].tolist(), ids[0].int()))
    np.testing.assert_array_equal(a.norm_of_sum, b.norm_of_sum)
    np.testing.assert_array_equal(a.norm_of_sum, c.norm_of_sum)
    assert a.tokens[0] == f"#{int(ids[0, 0])}"
    assert key_gradients(model, tokenizer(), ids=ids).tokens[0] == tokenizer().decode([int(ids[0, 0])])


def test_layers_that_cannot_be_measured_are_named() -> None:
    model = tiny("qwen3_next")
    found = key_gradients(model, ids=random_ids(24))
    assert found.layers == (1, 2)
    assert list(found.unmeasured) == [0]
    assert "linear_attn" in found.unmeasured[0]
    assert "Layer 0 is not measured: linear_attn" in str(found)
    with pytest.raises(ArgumentError, match="layer 0 cannot be measured: linear_attn"):
        key_gradients(model, ids=random_ids(24), layers=[0, 1])


def test_layers_with_different_numbers_of_heads_are_filled_with_nan() -> None:
    stacked = module._stack([np.ones((2, 3)), np.ones((4, 3))])
    assert stacked.shape == (2, 4, 3)
    assert np.isnan(stacked[0, 2:]).all()
    assert (stacked[0, :2] == 1).all()


def test_bad_requests() -> None:
    model, tok, ids = tiny("llama"), tokenizer(), random_ids(24)
    with pytest.raises(ArgumentError, match="needs its tokenizer"):
        key_gradients(model, text=words(30))
    with pytest.raises(ArgumentError, match="not both"):
        key_gradients(model, tok, words(30), ids=ids)
    with pytest.raises(TextError, match="1 token long; at least 2"):
        key_gradients(model, tok, "w1")
    with pytest.raises(TextError, match="empty"):
        key_gradients(model, tok, "")
    for few in ([], [3]):
        with pytest.raises(TextError, match=f"{len(few)} ids; at least 2"):
            key_gradients(model, ids=few)
    for wrong in (torch.zeros(2, 5, dtype=torch.long), torch.zeros(5), ["w1", "w2"]):
        with pytest.raises(ArgumentError, match="ids must be integers"):
            key_gradients(model, ids=wrong)
    with pytest.raises(ArgumentError, match="ids from 0 to 96: it has 512 positions and 96 ids"):
        key_gradients(model, ids=[0, VOCABULARY])
    with pytest.raises(ArgumentError, match="cannot take these 513 tokens"):
        key_gradients(tiny("gpt2"), ids=random_ids(513))
    with pytest.raises(ArgumentError, match="between 0 and 2, got 3"):
        key_gradients(model, ids=ids, layers=[3])
    with pytest.raises(ArgumentError, match="layers is empty"):
        key_gradients(model, ids=ids, layers=[])
    with pytest.raises(UnsupportedError, match="training mode"):
        key_gradients(tiny("llama").train(), ids=ids)


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda logits, ids: 1.0, "got float"),
        (lambda logits, ids: logits, r"got a tensor \[1, 24, 96\]"),
        (lambda logits, ids: logits.detach().sum(), r"got a tensor \[\] without a gradient"),
    ],
)
def test_a_loss_that_is_none(loss: Any, got: str) -> None:
    with pytest.raises(ArgumentError, match=f"scalar tensor computed from the logits by torch operations; {got}"):
        key_gradients(tiny("llama"), ids=random_ids(24), loss=loss)


def test_numbers_that_are_not_finite_are_named() -> None:
    ids = random_ids(24)
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[8:] = torch.nan  # the second key-value head
    with pytest.raises(NonFiniteError, match=r"layer 1, heads 3, 4, 5: NaN or infinity in the attention output"):
        key_gradients(model, ids=ids)
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    with pytest.raises(NonFiniteError, match="the loss is nan, though every layer's attention output is finite"):
        key_gradients(model, ids=ids)

    def cliff(logits: Tensor, ids: Tensor) -> Tensor:
        return (logits - logits.detach()).abs().sum().sqrt()  # 0, with an infinite slope

    with pytest.raises(NonFiniteError, match=r"layer 2, heads 0, .*NaN or infinity in the gradient of the attention"):
        key_gradients(tiny("llama"), ids=ids, loss=cliff)


def test_weights_made_for_inference_only() -> None:
    with torch.inference_mode():
        model = tiny("llama")
    with pytest.raises(UnsupportedError, match="inference_mode, which forbids gradients"):
        key_gradients(model, ids=random_ids(24))
