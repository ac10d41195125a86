"""Outlets on a Hugging Face model: found by structure, added, counted, taken away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.gate import Gate
from sinkgate.hf import compat
from sinkgate.hf.anatomy import Layer, _Watch, forward, own_name, reading, trace
from sinkgate.hf.first_token import alone, before_text, check_rotation, learned_positions
from sinkgate.hf.layers import Attention, attention_layers, chosen, evaluating
from sinkgate.hf.levels import levels, mean_embedding
from sinkgate.hf.outlet_hooks import Before, Guard, Hook, MakeToken, Positions, Projected, Written
from sinkgate.hf.place import OUTLET, STOCK, at
from sinkgate.hf.projections import Columns, find_columns
from sinkgate.hf.register import OUR_NAMES, register
from sinkgate.outlet import (
    ExtraKey,
    GateOutlet,
    LayerOutlet,
    Level,
    SinkLogit,
    SinkLogitOutlet,
    SinkToken,
    Sizes,
    as_outlet,
)
from sinkgate.outlet.registry import Spec, to_json

__all__ = ["OUTLET_KEPT", "Outlets", "add_outlet", "describe", "outlets", "remove_outlet", "without_outlets"]

OUTLET_KEPT = "_sinkgate_outlet_spec"  # on a model with outlets: what was added
TRACE_TOKENS = 24
LEVEL_TOKENS = 256


class Outlets:
    """The outlets of a model: their specification, their layers, their parameters.

    Args:
        spec: what was added.
        layers: layer → the module that stands there.
        token: a sink token's embedding, else None.
    """

    def __init__(self, spec: Spec, layers: dict[int, LayerOutlet], token: nn.Parameter | None = None) -> None:
        self.spec, self.layers, self.token = spec, layers, token

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """``layer.name`` → parameter; a sink token's embedding is ``token``."""
        found = {f"{i}.{n}": p for i, layer in self.layers.items() for n, p in layer.named_parameters()}
        return found if self.token is None else {"token": self.token, **found}

    @property
    def parameters(self) -> int:
        """How many numbers can be trained."""
        return sum(p.numel() for p in self.named_parameters().values())

    def project(self) -> None:
        """Bring parameters back to where they must be, after an update."""
        for layer in self.layers.values():
            layer.project()

    def heads(self) -> list[tuple[int, int]] | None:
        """The ``(layer, head)`` pairs it is for; None: all."""
        if all(layer.everywhere for layer in self.layers.values()):
            return None
        return [(i, h) for i, layer in self.layers.items() for h in layer.chosen()]

    def __repr__(self) -> str:
        return f"Outlets({self.spec!r}, {len(self.layers)} layers, {self.parameters:,} parameters)"


def add_outlet(
    model: nn.Module,
    outlet: str | Spec = "sink_logit",
    *,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
    ids: Int[Tensor, "b t"] | None = None,
) -> Outlets:
    """Give a trained model an outlet; it computes what it did until the outlet is trained.

    Args:
        model: a transformers model, found by structure: what calls the attention interface, what takes its output.
        outlet: ``sink_logit``, ``gate``, ``key_bias``, ``kv_bias``, ``sink_token``, or a value: :class:`SinkLogit`,
            :class:`sinkgate.Gate` (any position and kind), :class:`KeyBias`, :class:`KVBias`, :class:`SinkToken`.
        layers: only these.
        heads: only these ``(layer, head)`` pairs (a gate at G2 or G3: key-value heads).
        ids: text ``[b, t]`` from which each head's median log-sum-exp is read, the scale of a sink's logit; default:
            random tokens, which are rough but do.

    Returns:
        :class:`Outlets`, whose parameters are part of ``model.parameters()``.

    Raises:
        ArgumentError: no such outlet, layer or head; an outlet that would change the model.
        UnsupportedError: the model has one already, is gated or has learned sinks already, or a part is not found;
            lists what was seen.
    """
    spec = as_outlet(outlet)
    if OUTLET_KEPT in model.__dict__:
        raise UnsupportedError(
            f"this model has an outlet already ({outlets(model)!r}); sg.remove_outlet(model) first, or train that one"
        )
    if any(OUTLET in module._modules for module in model.modules()):
        raise UnsupportedError("a part of this model has an outlet of its own; sg.remove_outlet it from there first")
    if getattr(spec, "distance", None) is not None:
        check_rotation(model)
    wanted = chosen(model, layers, heads if not _by_key_heads(spec) else None)
    pairs = _key_heads(model, heads) if _by_key_heads(spec) and heads is not None else None
    if pairs is not None:
        wanted = [(a, pairs[a.layer]) for a in attention_layers(model) if a.layer in pairs]
    if isinstance(spec, Gate) and spec.position == "G5" and heads is not None:
        raise ArgumentError("a gate at G5 stands behind the sum over heads; it takes layers, not heads")
    device = compat.input_device(model)
    vocabulary = int(compat.config(model).get_text_config().vocab_size)
    if ids is None:
        limit = getattr(compat.config(model).get_text_config(), "max_position_embeddings", None) or LEVEL_TOKENS
        length = min(LEVEL_TOKENS, int(limit))
        ids = torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(0)).to(device)
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise ArgumentError(f"ids must be [batch, tokens] with at least 2 tokens, got {list(ids.shape)}")
    with evaluating(model):
        anatomy = trace(model, ids[:1, :TRACE_TOKENS])
        described = anatomy.by_attention()
        parts = {a.layer: _check(described.get(id(a.module)), a, spec) for a, _ in wanted}
        watch = _Watch(model)
        with torch.no_grad(), reading(model, watch), watch.watching():
            forward(model, ids[:1, :TRACE_TOKENS])
        calls = {id(call.module): call for call in watch.calls}
        token, keys = None, None
        if isinstance(spec, SinkToken):
            token = nn.Parameter(mean_embedding(model, vocabulary))
            with torch.no_grad():
                keys = {layer: k[0] for layer, (k, _) in alone(model, token[None], before_text(model)).items()}
        found_levels = {} if isinstance(spec, Gate) else levels(model, ids[:, :LEVEL_TOKENS], keys)
        made: dict[int, LayerOutlet] = {}
        columns: dict[int, Columns] = {}
        for attention, some in wanted:
            args, kwargs = watch.inputs[id(attention.module)]
            call = calls[id(attention.module)]
            if call.kwargs.get("softcap") and not isinstance(spec, Gate | SinkLogit):
                raise UnsupportedError(
                    f"{attention.name} caps its scores (softcap), beside which a key of one's own has no plain score; a "
                    "sink_logit or a gate can be added"
                )
            hidden = args[0] if args else kwargs["hidden_states"]
            sizes = Sizes(
                attention.layer, hidden.shape[-1], call.q.shape[1], call.k.shape[1], call.q.shape[-1], call.v.shape[-1]
            )
            made[attention.layer] = _make(spec, sizes, some, found_levels.get(attention.layer)).for_model(call.q)
            if isinstance(spec, Gate) and spec.position in ("G2", "G3", "G4"):
                which = {"G4": 0, "G3": 1, "G2": 2}[spec.position]
                found = find_columns(model, attention.module, args, kwargs, which, attention.name)
                if found.normed and not spec.elementwise and not spec.additive:
                    raise UnsupportedError(
                        f"{attention.name} norms each head behind its projection, so one factor per head would change "
                        "nothing; use elementwise=True, or a gate at G1"
                    )
                columns[attention.layer] = found
    _install(model, spec, [(a, made[a.layer], parts[a.layer], columns.get(a.layer)) for a, _ in wanted], token)
    return outlets(model)


def outlets(model: nn.Module) -> Outlets:
    """The outlets of a model.

    Raises:
        ArgumentError: it has none.
    """
    kept = model.__dict__.get(OUTLET_KEPT)
    if kept is None:
        raise ArgumentError("this model has no outlet; sg.add_outlet gives it one")
    found = {
        a.layer: getattr(a.module, OUTLET)
        for a in attention_layers(model)
        if getattr(a.module, OUTLET, None) is not None
    }
    return Outlets(kept["spec"], found, getattr(model, "sinkgate_token", None))


def describe(model: nn.Module) -> dict[str, Any]:
    """What :func:`sinkgate.hf.outlet_files.load_outlet` needs to build the outlets again; plain JSON types."""
    found = outlets(model)
    where = {str(i): layer.chosen() for i, layer in found.layers.items()}
    return {"outlet": to_json(found.spec), "heads": where, "parameters": found.parameters}


def remove_outlet(model: nn.Module) -> None:
    """Take the outlets away; the model is what it was before, weights that were trained beside them apart.

    Raises:
        ArgumentError: it has none.
    """
    outlets(model)
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [k for k, hook in hooks.items() if isinstance(hook, Hook)]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
        module._modules.pop(OUTLET, None)
    if "sinkgate_token" in model._parameters:
        del model._parameters["sinkgate_token"]
    others = any(at(module)[0] is not None for module in model.modules())
    for config in compat.configs(model):
        compat.release(config, ("outlet", id(model)), {} if others else STOCK)
    compat.config(model).__dict__.pop(OUTLET, None)
    del model.__dict__[OUTLET_KEPT]


@contextmanager
def without_outlets(model: nn.Module) -> Iterator[nn.Module]:
    """Inside, the model computes what it did before it was given outlets (the teacher of a distillation)."""
    layers = [m for m in model.modules() if isinstance(m, LayerOutlet) and m.active]
    for layer in layers:
        layer.active = False
    try:
        yield model
    finally:
        for layer in layers:
            layer.active = True


# ---- installing -----------------------------------------------------------------------------------------------------


def _install(
    model: nn.Module, spec: Spec, parts: list[tuple[Attention, LayerOutlet, Layer, Columns | None]],
    token: nn.Parameter | None,
) -> None:  # fmt: skip
    register()
    configs = compat.configs(model)
    position, rotary = before_text(model), not learned_positions(model)  # asked before anything is changed
    model.__dict__[OUTLET_KEPT] = {"spec": spec}
    for attention, outlet, layer, columns in parts:
        attention.module.add_module(OUTLET, outlet)
        distance = getattr(spec, "distance", None)
        if isinstance(spec, Gate) or distance is not None:
            attention.module.register_forward_pre_hook(Before(outlet), with_kwargs=True)
        else:
            attention.module.register_forward_pre_hook(Guard(outlet), with_kwargs=True)
        if isinstance(outlet, GateOutlet) and columns is not None:
            columns.module.register_forward_hook(Projected(outlet, columns))
        if isinstance(outlet, GateOutlet) and outlet.spec.position == "G5":
            assert layer.output_module is not None
            layer.output_module.register_forward_hook(Written(outlet))
    if not isinstance(spec, Gate | SinkLogit) and rotary:
        for module in compat.told(model):
            module.register_forward_pre_hook(Positions(), with_kwargs=True)
    if token is not None:
        model.register_parameter("sinkgate_token", token)
        making = MakeToken(model, position)
        for module in compat.told(model):
            module.register_forward_pre_hook(making, with_kwargs=True)
    for config in configs:
        compat.hold(config, ("outlet", id(model)), lambda name: own_name(name) or OUR_NAMES["sdpa"])
    setattr(
        compat.config(model), OUTLET, describe(model)
    )  # written with the model, so that a saved one says what it has


# ---- looking ----------------------------------------------------------------------------------------------------------


def _by_key_heads(spec: Spec) -> bool:
    return isinstance(spec, Gate) and spec.position in ("G2", "G3")


def _key_heads(model: nn.Module, heads: Iterable[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    pairs = list(heads)
    chosen(model, None, pairs)  # refuses what is no pair or no layer
    found = {a.layer: a for a in attention_layers(model)}
    result: dict[int, list[int]] = {}
    for layer, head in pairs:
        if head >= found[layer].kv_heads:
            raise ArgumentError(f"layer {layer} has key-value heads 0 to {found[layer].kv_heads - 1}, got {head}")
        result.setdefault(layer, []).append(head)
    return {layer: tuple(sorted(set(some))) for layer, some in result.items()}


def _check(layer: Layer | None, attention: Attention, spec: Spec) -> Layer:
    """Refuse a layer that has such an outlet by birth, or whose output map is not found."""
    if layer is None:
        raise UnsupportedError(
            f"{attention.name} computes more than sinkgate can read, so an outlet cannot be added to it"
        )
    if isinstance(spec, Gate):
        if layer.no_map_reason is not None or layer.output_module is None:
            raise UnsupportedError(
                f"no single output projection is found behind the attention of {layer.name}: {layer.no_map_reason}"
            )
        if layer.output_map is not None and layer.output_map.gated and spec.position == "G1":
            raise UnsupportedError(f"{layer.name} has an output gate of its own already; a second one is not added")
    elif layer.learned_sink:
        raise UnsupportedError(f"{layer.name} has learned sink logits of its own already; train those")
    return layer


def _make(spec: Spec, sizes: Sizes, heads: tuple[int, ...] | None, level: Level | None) -> LayerOutlet:
    if isinstance(spec, Gate):
        return GateOutlet(sizes, heads, spec)
    assert level is not None
    if isinstance(spec, SinkLogit):
        return SinkLogitOutlet(sizes, heads, level, spec.start)
    return ExtraKey(sizes, heads, level, spec)
