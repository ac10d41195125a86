"""Every statistic once more, the slow way: whole attention matrices from the model's own eager attention, float64.

Nothing here is shared with the package: masks, sums, the output map and its norm are written out by hand.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

SEEN: list[dict[str, Any]] = []


def _capture(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any) -> Any:
    function = sys.modules[type(module).__module__].eager_attention_forward
    out, weights = function(module, q, k, v, mask, **kwargs)
    SEEN.append({"q": q, "k": k, "v": v, "weights": weights, "out": out, "s_aux": kwargs.get("s_aux")})
    return out, weights


def _register() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("test_capture", _capture)
    ALL_MASK_ATTENTION_FUNCTIONS.register("test_capture", ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def _output(model: Any, layer: Any) -> tuple[Any, np.ndarray, Any]:
    """(module, weight [in, D], norm behind or None), by name: the test knows its models."""
    if hasattr(layer, "attn"):
        return layer.attn.c_proj, layer.attn.c_proj.weight.detach().double().numpy(), None
    if hasattr(layer, "attention"):
        return layer.attention.dense, layer.attention.dense.weight.detach().double().numpy().T, None
    module = layer.self_attn.o_proj
    norm = layer.post_attention_layernorm if "Gemma" in type(layer).__name__ else None
    return module, module.weight.detach().double().numpy().T, norm


def _layers(model: Any) -> Any:
    for path in (("model", "layers"), ("transformer", "h"), ("gpt_neox", "layers")):
        if hasattr(model, path[0]):
            return getattr(getattr(model, path[0]), path[1])
    raise AssertionError(type(model))


@torch.no_grad()
def statistics(
    model: Any, ids: Tensor, mask: Tensor | None = None, *, window: int = 64, min_queries: int = 32
) -> list[dict[str, Any]]:
    """One dict of statistics per sample; arrays are [layer, head, …] with NaN at layers without attention."""
    _register()
    SEEN.clear()
    before = model.config._attn_implementation
    mapped: dict[int, Tensor] = {}
    normed: dict[int, tuple[Tensor, Tensor]] = {}
    streams: list[Tensor] = []
    hooks = []
    attending: list[int] = []
    layers = _layers(model)
    for i, layer in enumerate(layers):
        hooks.append(layer.register_forward_pre_hook(
            lambda m, a, kw: streams.append((a[0] if a else kw["hidden_states"]).clone()), with_kwargs=True))  # fmt: skip
        if hasattr(layer, "linear_attn"):
            continue
        attending.append(i)
        module, _, norm = _output(model, layer)
        hooks.append(module.register_forward_pre_hook(lambda m, a, i=i: mapped.__setitem__(i, a[0].clone())))
        if norm is not None:
            hooks.append(
                norm.register_forward_hook(lambda m, a, o, i=i: normed.__setitem__(i, (a[0].clone(), o.clone())))
            )
    hooks.append(
        layers[-1].register_forward_hook(lambda m, a, o: streams.append((o[0] if isinstance(o, tuple) else o).clone()))
    )
    model.set_attn_implementation("test_capture")
    try:
        model(ids, attention_mask=mask, use_cache=False)
    finally:
        model.set_attn_implementation(before)
        for hook in hooks:
            hook.remove()
    assert len(SEEN) == len(attending)
    return [
        _one(
            model,
            layers,
            attending,
            b,
            (torch.ones_like(ids) if mask is None else mask)[b].bool(),
            mapped,
            normed,
            streams,
            window,
            min_queries,
        )
        for b in range(len(ids))
    ]


def _one(
    model: Any,
    layers: Any,
    attending: list[int],
    b: int,
    real: Tensor,
    mapped: Any,
    normed: Any,
    streams: Any,
    window: int,
    min_queries: int,
) -> dict[str, Any]:
    keep = real.nonzero().flatten().numpy()
    n = len(keep)
    heads = SEEN[0]["weights"].shape[1]
    names = ("mass", "null", "margin", "log_amplification", "entropy", "entropy_ratio", "local", "local_null", "previous", "learned",
             "write", "content_write", "head_write", "value_ratio_first", "value_ratio_rest", "cosine")  # fmt: skip
    result: dict[str, Any] = {name: np.full((len(layers), heads), np.nan) for name in names}
    result["alpha"] = np.full((len(layers), heads, n), np.nan)
    result["alpha_null"] = np.full((len(layers), n), np.nan)
    for seen, i in zip(SEEN, attending, strict=True):
        a = seen["weights"][b].double().numpy()[:, keep][:, :, keep]
        layer_window = None
        attention = next(m for m in layers[i].modules() if hasattr(m, "is_causal"))
        layer_window = getattr(attention, "sliding_window", None) or getattr(
            getattr(attention, "config", None), "sliding_window", None
        )
        if getattr(attention, "layer_type", "sliding_attention") != "sliding_attention":
            layer_window = None
        position = np.arange(n)
        visible = position[:, None] >= position[None]
        if layer_window:
            visible &= position[:, None] - position[None] < layer_window
        assert (a[:, ~visible] == 0).all()
        counts = visible.sum(1)
        sees = visible[:, 0]
        later = sees & (position > 0)
        p = a[:, :, 0]
        z = 1 - a.sum(-1) if seen["s_aux"] is not None else np.zeros_like(p)
        rest = a[:, :, 1:].sum(-1) + z
        result["mass"][i] = p[:, sees].mean(1)
        result["null"][i] = (1 / counts[sees]).mean()
        with np.errstate(divide="ignore"):
            result["margin"][i] = (np.log(p) - np.log(rest))[:, later].mean(1)
            result["log_amplification"][i] = -np.log(rest)[:, later].mean(1)
            logs = np.where(a > 0, np.log(np.where(a > 0, a, 1)), 0)
            entropy = -(a * logs).sum(-1) - np.where(z > 1e-12, z * np.log(np.where(z > 1e-12, z, 1)), 0)
        result["entropy"][i] = entropy.mean(1)
        choices = counts + (seen["s_aux"] is not None)
        more = choices > 1
        result["entropy_ratio"][i] = (entropy[:, more] / np.log(choices[more])).mean(1)
        near = (position[:, None] - position[None] < window) & visible
        result["local"][i] = (a * near).sum((1, 2)) / n
        result["local_null"][i] = (near.sum(1) / counts).mean()
        result["previous"][i] = np.trace(a, offset=-1, axis1=1, axis2=2) / n
        result["learned"][i] = z.mean(1)
        enough = visible.sum(0) >= min_queries
        result["alpha"][i][:, enough] = a.sum(1)[:, enough] / visible.sum(0)[enough]
        result["alpha_null"][i][enough] = ((visible / counts[:, None]).sum(0) / visible.sum(0))[enough]
        # what is written
        group = heads // seen["v"].shape[1]
        v = seen["v"][b].double().numpy()[:, keep].repeat(group, 0)
        k = seen["k"][b].double().numpy()[:, keep].repeat(group, 0)
        q = seen["q"][b].double().numpy()[:, keep]
        out = seen["out"][b].double().numpy()[keep].transpose(1, 0, 2)
        _, weight, norm = _output(model, layers[i])
        dv = v.shape[-1]
        u = mapped[i][b].double().numpy()[keep].reshape(n, heads, dv).transpose(1, 0, 2)
        gate = np.where(out == 0, 1, u / np.where(out == 0, 1, out))
        factor = np.ones(n)
        gain = np.ones(weight.shape[1])
        if norm is not None:
            y = normed[i][0][b].double().numpy()[keep]
            gain = 1 + norm.weight.detach().double().numpy()
            factor = 1 / np.sqrt((y**2).mean(-1) + norm.eps)
            np.testing.assert_allclose(
                normed[i][1][b].double().numpy()[keep], y * gain * factor[:, None], rtol=2e-2, atol=2e-2
            )
        w = (weight * gain).reshape(heads, dv, -1)
        sink = np.linalg.norm(np.einsum("htd,hdD->htD", gate * v[:, :1], w), axis=-1) * p * factor
        whole = np.linalg.norm(np.einsum("htd,hdD->htD", u, w), axis=-1) * factor
        content = np.linalg.norm(np.einsum("htd,hdD->htD", u - p[..., None] * gate * v[:, :1], w), axis=-1) * factor
        for name, value in (("write", sink), ("head_write", whole), ("content_write", content)):
            result[name][i] = value[:, sees].sum(1)
        norms = np.linalg.norm(v, axis=-1)
        result["value_ratio_first"][i], result["value_ratio_rest"][i] = norms[:, 0], norms[:, 1:].mean(1)
        mean = q.mean(1)
        result["cosine"][i] = (
            (mean * k[:, 0]).sum(-1) / np.linalg.norm(mean, axis=-1) / np.linalg.norm(k[:, 0], axis=-1)
        )
    result["streams"] = [s[b].double().numpy()[keep] for s in streams]
    return result


def assert_agree(d: Any, samples: list[dict[str, Any]], *, atol: float = 1e-5, stream_rtol: float = 1e-5) -> None:
    """Every statistic of a diagnosis against the reference samples."""

    def mean(name: str) -> np.ndarray:
        return np.mean([s[name] for s in samples], axis=0)

    def close(ours: np.ndarray, theirs: np.ndarray, scale: float = 1.0) -> None:
        np.testing.assert_allclose(ours, theirs, atol=atol * scale, rtol=atol)

    close(d.first_token_mass, mean("mass"))
    close(d.null_mass, mean("null"))
    close(d.margin, mean("margin"))
    close(np.log(d.amplification), mean("log_amplification"))
    close(d.entropy, mean("entropy"))
    close(d.entropy_ratio, mean("entropy_ratio"))
    close(d.local_mass, mean("local"))
    close(d.local_null, np.where(np.isfinite(mean("mass")), mean("local_null"), np.nan))
    close(d.previous_mass, mean("previous"))
    close(d.learned_mass, mean("learned"))
    whole = sum(s["head_write"] for s in samples)
    close(d.sink_write_ratio, sum(s["write"] for s in samples) / whole)
    close(d.content_write_ratio, sum(s["content_write"] for s in samples) / whole)
    close(d.value_norm_ratio, mean("value_ratio_first") / mean("value_ratio_rest"))
    close(d.query_key_cosine, mean("cosine"))
    length = max(s["alpha"].shape[-1] for s in samples)

    def padded(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.full((*x.shape[:-1], length - x.shape[-1]), np.nan)], -1)

    with np.errstate(all="ignore"):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # mean of an empty slice: a key that no sample counts is NaN, as it should be
            close(d.key_mass, np.nanmean([padded(s["alpha"]) for s in samples], axis=0))
            close(d.key_null, np.nanmean([padded(s["alpha_null"]) for s in samples], axis=0))
    depths = len(samples[0]["streams"])
    for depth in range(depths):
        x = np.concatenate([s["streams"][depth].ravel() for s in samples])
        kurtosis = ((x - x.mean()) ** 4).mean() / x.var() ** 2
        np.testing.assert_allclose(d.kurtosis[depth], kurtosis, rtol=max(1e-4, stream_rtol))
        largest = max(abs(m["value"]) for m in d.massive if m["layer"] == depth)
        np.testing.assert_allclose(largest, np.abs(x).max(), rtol=stream_rtol)
        np.testing.assert_allclose(d.stream_median[depth], np.median(np.abs(x)), rtol=0.063)
        np.testing.assert_allclose(
            d.arrays["stream_first"][:, depth].mean(),
            np.mean([np.linalg.norm(s["streams"][depth][0]) for s in samples]),
            rtol=stream_rtol,
        )
