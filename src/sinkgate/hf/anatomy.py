"""What a model is made of, found by running a few tokens through it and watching: no list of classes.

For every decoder layer: the module that calls the attention interface, whether our reading of that call
rebuilds its output, the map from head outputs to the residual stream, the model's own gate before that map and
the norm behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.blocks import head_output
from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.call import call_visibility, to_site
from sinkgate.hf.kernel_lse import KernelLSE
from sinkgate.hf.output import OutputFinder
from sinkgate.hf.place import OUTLET, STOCK, at
from sinkgate.hf.register import OUR_NAMES, is_ours, listen, register, stop_listening
from sinkgate.hf.sharded import check_whole, gathered
from sinkgate.site import OutputMap

__all__ = ["Anatomy", "Layer", "fingerprint", "forward", "reading", "trace"]

# How far our reading may be from what the model computed, relative to it: rounding, not maths.
REBUILD = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@dataclass(eq=False)
class Layer:
    """One decoder layer. ``attention`` is None where it cannot be measured, and ``reason`` says why."""

    index: int
    name: str
    block: nn.Module
    attention: nn.Module | None = None
    reason: str | None = None
    window: int | None = None
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    learned_sink: bool = False
    output_map: OutputMap | None = None
    output_module: nn.Module | None = None
    norm_module: nn.Module | None = None
    norm_gain: Tensor | None = None
    no_map_reason: str | None = None


@dataclass(eq=False)
class Anatomy:
    """The layers of a model in order, and whether a stream of hidden states runs through them."""

    model: nn.Module
    layers: list[Layer]
    has_stream: bool
    implementation: str
    notes: list[str] = field(default_factory=list)

    def by_attention(self) -> dict[int, Layer]:
        """id of the attention module → its layer."""
        return {id(layer.attention): layer for layer in self.layers if layer.attention is not None}


@dataclass(eq=False)
class _Call:
    """What one attention call got and gave, and everything that happened after it."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    kwargs: dict[str, Any]
    out: Tensor
    lse: Tensor | None
    time: int


class _Watch:
    """Listens to the attention calls and to every module call of one forward pass, in order."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: list[_Call] = []
        self.modules: list[tuple[int, nn.Module, Tensor, Tensor]] = []  # time, module, first input, first output
        self.inputs: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}  # id of a module → its arguments
        self.time = 0
        self.autocast: tuple[str, bool, torch.dtype] | None = None  # as it was around the attention calls

    def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Make the call, and note it with what was around it."""
        with KernelLSE() as kernel:
            result = function(module, *args, **kwargs)
        self.time += 1
        where = result[0].device.type
        self.autocast = (where, torch.is_autocast_enabled(where), torch.get_autocast_dtype(where))
        q, k, v, mask = (*args, *(kwargs.pop(n) for n in ("query", "key", "value", "attention_mask")[len(args):]))  # fmt: skip
        self.calls.append(_Call(module, q, k, v, mask, kwargs, result[0], kernel.lse, self.time))
        return result

    @contextmanager
    def watching(self) -> Iterator[None]:
        started: dict[int, list[int]] = {}

        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.time += 1
            started.setdefault(id(module), []).append(self.time)
            self.inputs[id(module)] = (args, kwargs)

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            time = started[id(module)].pop()
            first = output[0] if isinstance(output, tuple) and output else output
            if args and isinstance(args[0], Tensor) and isinstance(first, Tensor):
                self.modules.append((time, module, args[0], first))

        hooks = []
        try:
            for module in self.model.modules():
                hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
                hooks.append(module.register_forward_hook(after))
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self.modules.sort(key=lambda m: m[0])


@contextmanager
def reading(model: nn.Module, listener: Any) -> Iterator[None]:
    """Show ``listener`` every attention call of ``model``; outside, the model is bit for bit what it was.

    Raises:
        UnsupportedError: an attention implementation whose calls cannot be shown, or a second reading.
    """
    register()
    holder, held = object(), []
    try:
        for config in compat.configs(model):
            compat.hold(config, holder, own_name)
            held.append(config)
        listen(model, listener)
        try:
            yield
        finally:
            stop_listening(model)
    finally:
        for config in held:
            compat.release(config, holder, STOCK)


def own_name(current: str | None) -> str | None:
    """Our name for an attention implementation.

    Raises:
        UnsupportedError: one whose calls cannot be seen.
    """
    if current is None or is_ours(current):
        return current
    if current not in OUR_NAMES:
        raise UnsupportedError(
            f"the model runs with attn_implementation={current!r}, whose calls cannot be read; "
            "use model.set_attn_implementation('sdpa') or 'eager' first"
        )
    return OUR_NAMES[current]


@torch.no_grad()
def trace(model: nn.Module, ids: Tensor) -> Anatomy:
    """Run ``ids`` ``[1, t]`` (a few dozen tokens) through the model and find its parts.

    Also checked here: reading does not change the logits by a bit, and the model is causal.

    Raises:
        UnsupportedError: no layer can be measured, the model is not causal, it is in training mode, or its parameters are
            spread over processes in a way that is not known here (fully_shard is).
    """
    if model.training:
        raise UnsupportedError(
            "the model is in training mode, where dropout changes every pass; call model.eval() first"
        )
    if getattr(compat.config(model), "is_encoder_decoder", False):
        raise UnsupportedError(
            f"{type(model).__name__} is an encoder-decoder; sinkgate measures decoder-only language models"
        )
    check_whole(model)
    plain = forward(model, ids)
    watch = _Watch(model)
    with reading(model, watch), watch.watching():
        read = forward(model, ids)
    layers, has_stream = _layers(model, watch)
    if not watch.calls:
        raise _nothing(model, layers)
    if not bool(((plain == read) | (plain.isnan() & read.isnan())).all()):
        raise UnsupportedError(
            f"{type(model).__name__} behaves differently under an attention name of ours (its code asks for the "
            "stock name), so it cannot be read without changing it"
        )
    _check_causal(model, ids, plain)
    implementation = next((n for c in compat.configs(model) if (n := compat.implementation(c)) is not None), "eager")
    by_module: dict[int, _Call] = {}
    notes = []
    for call in watch.calls:
        if id(call.module) in by_module:
            notes.append(f"{_name(model, call.module)} attends more than once in a pass; its first call is read")
        by_module.setdefault(id(call.module), call)
    assert watch.autocast is not None
    where, enabled, dtype = watch.autocast
    with reading(model, finder := OutputFinder(model, watch)):
        for layer in layers:
            if layer.attention is None:
                continue
            with gathered(model, layer.block), torch.autocast(where, enabled=False):
                call = by_module[id(layer.attention)]
                _describe(layer, call, ids.shape)
                if layer.attention is not None:
                    with torch.autocast(where, dtype, enabled):  # modules are called as the model calls them
                        finder.describe(layer, call)
    if not any(layer.attention is not None for layer in layers):
        raise _nothing(model, layers)
    return Anatomy(model, layers, has_stream, implementation, notes)


def forward(model: nn.Module, ids: Tensor, attention_mask: Tensor | None = None, *, last_only: bool = False) -> Tensor:
    """Logits, without a cache; ``last_only`` asks for those of the last position only, where the model can."""
    import inspect

    accepted = inspect.signature(model.forward).parameters
    kwargs: dict[str, Any] = {"attention_mask": attention_mask, "use_cache": False}
    if last_only and "logits_to_keep" in accepted:
        kwargs["logits_to_keep"] = 1
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        kwargs = {k: v for k, v in kwargs.items() if k in accepted}
    out = model(ids, **kwargs)
    return out.logits if hasattr(out, "logits") else out[0]


def fingerprint(model: nn.Module, *, outlets: bool = True) -> str:
    """Twelve hex digits of the config and of 64 numbers of every parameter: which weights a record is about.

    ``outlets=False`` leaves out what :func:`sinkgate.add_outlet` added: which model it was added to.
    """
    config = {
        k: v
        for k, v in compat.config(model).to_dict().items()
        if k not in ("transformers_version", "_name_or_path", "dtype", "architectures") and (outlets or k != OUTLET)
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, parameter in model.state_dict().items():
        if not outlets and "sinkgate_" in name:
            continue
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        if isinstance(parameter, Tensor) and parameter.device.type != "meta" and parameter.numel():
            flat = parameter.detach().flatten()
            few = flat[:: max(1, flat.numel() // 64)][:64]
            digest.update(
                few.float().cpu().numpy().tobytes() if few.is_floating_point() else bytes(str(few.tolist()), "ascii")
            )
    return digest.hexdigest()[:12]


# ---- private ---------------------------------------------------------------------------------------------------


def _nothing(model: nn.Module, layers: list[Layer]) -> UnsupportedError:
    reasons = sorted({layer.reason for layer in layers if layer.reason})
    return UnsupportedError(
        f"no layer of {type(model).__name__} can be measured: {'; '.join(reasons)[:400] or 'it has no decoder layers'}"
    )


def _check_causal(model: nn.Module, ids: Tensor, logits: Tensor) -> None:
    """A causal model's earlier logits do not know later tokens."""
    if ids.shape[1] < 2:
        return
    other = ids.clone()
    other[:, -1] = torch.where(ids[:, -1] == ids[:, 0], (ids[:, -1] + 1) % logits.shape[-1], ids[:, 0])
    changed = forward(model, other)[:, :-1].float()
    before = logits[:, :-1].float()
    if (changed - before).norm() > (1e-4 if logits.dtype == torch.float32 else 1e-2) * before.norm():
        raise UnsupportedError(
            f"{type(model).__name__} is not causal: an earlier position's output changes with a later token; "
            "sinkgate measures decoder-only language models"
        )


def _layers(model: nn.Module, watch: _Watch) -> tuple[list[Layer], bool]:
    """The list of decoder layers: the ModuleList with the most layers that attended, the outermost of equals."""
    called: dict[str, nn.Module] = {}
    for call in watch.calls:
        called.setdefault(_name(model, call.module), call.module)
    lists = dict(compat.module_lists(model))
    attended = {n: sum(any(c.startswith(f"{n}.{i}.") for c in called) for i in range(len(m))) for n, m in lists.items()}
    if not called:  # nothing can be measured: take the longest list, so that the error can name what is in it
        attended = {n: len(m) for n, m in lists.items()}
    name = max(attended, key=lambda n: (attended[n], -n.count(".")), default="")
    if not attended.get(name):
        return [Layer(i, n, m, m) for i, (n, m) in enumerate(called.items())], False
    modules = lists[name]
    layers = []
    ran = {id(m) for _, m, _, _ in watch.modules} | set(watch.inputs)
    ordinary: set[str] = set()
    for i, block in enumerate(modules):
        within = [(n, m) for n, m in called.items() if n.startswith(f"{name}.{i}.")]
        if within:
            layers.append(Layer(i, within[0][0], block, within[0][1]))
            ordinary |= {
                n for n, child in block.named_children() if not any(x is within[0][1] for x in child.modules())
            }
        else:
            layers.append(Layer(i, f"{name}.{i}", block))
    for layer in layers:
        if layer.attention is None:
            mixers = [
                f"{n} ({type(m).__name__})"
                for n, m in layer.block.named_children()
                if n not in ordinary and id(m) in ran
            ]
            layer.reason = f"{', '.join(mixers) or type(layer.block).__name__} did not go through transformers' attention interface"
    streams = [watch.inputs.get(id(block), ((), {})) for block in modules]
    hidden = [args[0] if args else kwargs.get("hidden_states") for args, kwargs in streams]
    return layers, all(isinstance(h, Tensor) and h.ndim == 3 for h in hidden)


def _describe(layer: Layer, call: _Call, ids: torch.Size) -> None:
    """Sizes of one layer, and whether our reading rebuilds its output."""
    assert layer.attention is not None
    shape = (call.q.shape[0], call.q.shape[-2], call.k.shape[-2])
    if shape != (ids[0], ids[1], ids[1]):
        layer.attention, layer.reason = (
            None,
            (
                f"{layer.name} does not attend from tokens to tokens: {shape[1]} queries and {shape[2]} keys for {ids[1]} tokens"
            ),
        )
        return
    layer.heads, layer.kv_heads, layer.head_dim = call.q.shape[1], call.k.shape[1], call.q.shape[-1]
    layer.window = call.kwargs.get("sliding_window") or None
    layer.learned_sink = call.kwargs.get("s_aux") is not None
    try:
        site = to_site(
            layer.index,
            call.q,
            call.k,
            call.v,
            call.out,
            call_visibility(layer.attention, call.q, call.k, call.mask, call.kwargs, None),
            call.kwargs,
            lse=call.lse,
        )
    except ValueError as err:
        layer.attention, layer.reason = None, str(err)
        return
    counts = site.visibility.counts
    if bool((counts != counts[:, :1]).any()):
        layer.attention, layer.reason = None, f"the heads of {layer.name} see different keys"
        return
    rebuilt = head_output(site)
    error = float((rebuilt - site.out.float()).norm() / site.out.float().norm().clamp_min(1e-30))
    limit = REBUILD.get(call.out.dtype, 1e-4)
    if error > limit:  # NaN passes: the probe names it with its head
        layer.reason = (
            f"{layer.name} computes more than sinkgate can read: rebuilding its output misses by {error:.1%}"
            f"{_more(layer.attention, call)}"
        )
        layer.attention = None


def _more(module: nn.Module, call: _Call) -> str:
    """What may be behind it: another weighting of ours, or tensors that the call is given besides."""
    config = getattr(module, "config", None)
    named = None if config is None else compat.implementation(config)
    if is_ours(named) and named not in OUR_NAMES.values():
        return f" (it runs with attn_implementation={named!r}: the probe reads softmax, with or without a learned sink)"
    place = at(module)[0]
    if place is not None and (place.weightings or place.acts):
        return " (a swap or an act is under way: the probe reads softmax, with or without a learned sink)"
    extra = sorted(k for k, v in call.kwargs.items() if isinstance(v, Tensor) and k not in ("s_aux", "position_ids"))
    return f" (it is also given {', '.join(extra)})" if extra else ""


def _name(model: nn.Module, module: nn.Module) -> str:
    return next((name for name, m in model.named_modules() if m is module), type(module).__name__)
