"""What a stream must equal: one pass under a mask, and a step by step computation that rotates raw keys afresh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.hf.anatomy import reading
from sinkgate.hf.layers import attention_layers
from sinkgate.hf.rotary import KEYWORD, find_rotations
from sinkgate.rope import Rotation


def band(length: int, recent: int, sinks: int) -> Tensor:
    """True where query t sees key j: a sink, or one of the last ``recent`` tokens."""
    t, j = torch.arange(length)[:, None], torch.arange(length)
    return (j <= t) & ((j > t - recent) | (j < sinks))


@contextmanager
def exact(model: nn.Module) -> Iterator[None]:
    """The model's rotations from float64 angles, as a stream has them: its own are float32."""
    found, hooks = find_rotations(model), []
    for layer in attention_layers(model):
        rotation = found[layer.layer]
        if not isinstance(rotation, Rotation):
            continue

        def tables(_module: nn.Module, args: Any, kwargs: Any, rotation: Rotation = rotation) -> Any:
            cos = kwargs[KEYWORD][0]
            angle = torch.arange(cos.shape[-2]).double()[:, None] * rotation.omega
            angle = {"halves": torch.cat([angle, angle], -1), "once": angle}.get(
                rotation.layout, angle.repeat_interleave(2, -1)
            )
            both = ((f(angle) * rotation.scale)[None].to(cos.dtype) for f in (torch.cos, torch.sin))
            return args, {**kwargs, KEYWORD: tuple(both)}

        hooks.append(layer.module.register_forward_pre_hook(tables, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def masked(model: nn.Module, ids: Tensor, seen: Tensor) -> Tensor:
    """Logits of one pass of the untouched model under a bool mask ``[t, t]`` (or ``[1, heads, t, t]``, of sdpa)."""
    mask = torch.zeros(seen.shape, dtype=next(model.parameters()).dtype).masked_fill(~seen, -1e30)
    name = model.config._attn_implementation
    mask4: Any = mask[None, None] if name == "eager" else seen[None, None]
    if "sliding_attention" in (getattr(model.config, "layer_types", None) or []):
        mask4 = {"full_attention": mask4, "sliding_attention": _sliding(model, seen, name)}
    with torch.no_grad(), exact(model):
        return model(ids, attention_mask=mask4, use_cache=False).logits


def _sliding(model: Any, seen: Tensor, name: str) -> Tensor:
    length = seen.shape[-1]
    own = band(length, model.config.sliding_window, 0)
    if name == "eager":
        return torch.zeros(1, 1, length, length, dtype=next(model.parameters()).dtype).masked_fill(~own, -1e30)
    return own[None, None]


class _Raw:
    """Computes a layer's attention from raw queries and keys, each query with its own cache and positions."""

    def __init__(self, model: nn.Module, visible: Any) -> None:
        self.layers = {id(a.module): a.layer for a in attention_layers(model)}
        self.rotations = find_rotations(model)
        self.visible = visible

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        q, k, v = args[:3]
        index = self.layers[id(module)]
        if kwargs.get("sliding_window"):
            return function(module, *args, **kwargs)
        rotation, (b, h, length, _), group = self.rotations[index], q.shape, q.shape[1] // k.shape[1]
        out = torch.zeros(b, h, length, v.shape[3], dtype=v.dtype)
        for t in range(length):
            kept = self.visible(t)  # positions in the text, in order
            place = torch.arange(len(kept))
            keys = _turn(rotation, k[:, :, kept], place).repeat_interleave(group, 1)
            query = _turn(rotation, q[:, :, t : t + 1], place[-1:])
            scores = (query @ keys.transpose(-1, -2)) * kwargs["scaling"]
            if kwargs.get("softcap"):
                scores = kwargs["softcap"] * torch.tanh(scores / kwargs["softcap"])
            if kwargs.get("s_aux") is not None:
                scores = torch.cat([scores, kwargs["s_aux"].reshape(1, -1, 1, 1).expand(b, -1, 1, 1)], -1)
            weights = torch.softmax(scores, -1)[..., : len(kept)]
            out[:, :, t] = (weights @ v[:, :, kept].repeat_interleave(group, 1))[:, :, 0]
        return out.transpose(1, 2), None


def _turn(rotation: Any, x: Tensor, positions: Tensor) -> Tensor:
    """Straight from the formula, pair by pair."""
    out = x.clone()
    half = len(rotation.omega)
    for i in range(half):
        angle = positions.double() * rotation.omega[i]
        cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
        a, b = (2 * i, 2 * i + 1) if rotation.interleaved else (i, i + half)
        out[..., a], out[..., b] = x[..., a] * cos - x[..., b] * sin, x[..., b] * cos + x[..., a] * sin
    return out


def rotated_afresh(model: nn.Module, ids: Tensor, visible: Any) -> Tensor:
    """Logits where query t sees the tokens ``visible(t)`` at positions 0, 1, 2, …, itself at the last."""
    raw = _Raw(model, visible)
    found = find_rotations(model)
    hooks = []
    for layer in attention_layers(model):
        window = getattr(layer.module, "sliding_window", None)
        if window:
            continue

        def still(_module: nn.Module, args: Any, kwargs: Any, layer: Any = layer) -> Any:
            cos, sin = kwargs[KEYWORD]
            return args, {**kwargs, KEYWORD: (torch.ones_like(cos) * found[layer.layer].scale, torch.zeros_like(sin))}

        hooks.append((layer.module, still))
    held = []
    try:
        with torch.no_grad(), exact(model), reading(model, raw):  # of layers with a window of their own
            held += [m.register_forward_pre_hook(f, with_kwargs=True) for m, f in hooks]  # behind the exact ones
            return model(ids, use_cache=False).logits
    finally:
        for hook in held:
            hook.remove()


def sinks_and_recent(recent: int, sinks: int) -> Any:
    """The tokens a query sees, in order."""

    def visible(t: int) -> list[int]:
        first = range(min(sinks, max(0, t - recent + 1)))
        return [*first, *range(max(0, t - recent + 1), t + 1)]

    return visible


def in_parts(model: nn.Module, ids: Tensor, cache: Any, sizes: Sequence[int]) -> Tensor:
    """Logits of a stream given in passes of these sizes (the last one repeats)."""
    out, i, parts = [], 0, list(sizes)
    with torch.no_grad():
        while i < ids.shape[1]:
            size = parts.pop(0) if len(parts) > 1 else parts[0]
            out.append(model(ids[:, i : i + size], cache=cache).logits)
            i += size
    return torch.cat(out, 1)
