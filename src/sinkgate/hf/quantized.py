"""``with sg.quantized(model, …):`` a model in fewer bits, to see what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf.linears import Found, Linear, find_linears
from sinkgate.hf.quantized_kv import GRADIENTS, as_pair, quantized_kv
from sinkgate.quantization import Quantization, as_quantization, quantize

__all__ = ["QuantizedModel", "QuantizedWeight", "first_tensor", "put_weights", "quantized"]

MARK = "_sinkgate_quantized"


@dataclass(frozen=True)
class QuantizedWeight:
    """One weight.

    Args:
        shape: as the module holds it.
        error: ``‖rounded − weight‖ / ‖weight‖`` (Frobenius).
    """

    shape: tuple[int, ...]
    error: float


@dataclass(eq=False)
class QuantizedModel:
    """What is quantised inside a ``with``.

    Args:
        how: ``weights``, ``activations``, ``keys``, ``values``: their quantization where there is one; ``keep``.
        weights: by the module's name.
        activations: the linear layers whose inputs are quantised, and how often each was called so far: one that stays 0
            while the model runs is not called as a module, and its input is not quantised.
        kv: the attention layers whose keys and values are.
        left_out: parameters of two or more dimensions that stay as they are, and why; empty if only kv is asked for.
        parameters: numbers in the whole model, shared ones once.
    """

    how: dict[str, Any]
    weights: dict[str, QuantizedWeight] = field(default_factory=dict)
    activations: dict[str, int] = field(default_factory=dict)
    kv: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    parameters: int = 0

    @property
    def count(self) -> int:
        """How many weights are quantised."""
        return len(self.weights)

    @property
    def numbers(self) -> int:
        """How many numbers they hold."""
        return sum(torch.Size(w.shape).numel() for w in self.weights.values())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "how": {k: x.to_json() if hasattr(x, "to_json") else x for k, x in self.how.items()},
            "weights": {n: {"shape": list(w.shape), "error": w.error} for n, w in self.weights.items()},
            "activations": dict(self.activations), "kv": list(self.kv), "left_out": dict(self.left_out),
            "numbers": self.numbers, "parameters": self.parameters,
        }  # fmt: skip

    def __str__(self) -> str:
        parts = []
        if self.weights:
            parts.append(
                f"{self.count} weights in {self.how['weights']}: {self.numbers:,} of {self.parameters:,} numbers"
            )
        if self.activations:
            parts.append(f"the inputs of {len(self.activations)} linear layers in {self.how['activations']}")
        if self.kv:
            keys, values = (self.how.get(x, "full precision") for x in ("keys", "values"))
            kept = f", but for {self.how['keep']}" if "keep" in self.how else ""
            parts.append(f"in {len(self.kv)} layers keys in {keys}, values in {values}{kept}")
        return "; ".join(parts) + (f"; {len(self.left_out)} parameters left out" if self.left_out else "")


@contextmanager
def quantized(
    model: nn.Module,
    *,
    weights: str | Quantization | None = None,
    activations: str | Quantization | None = None,
    kv: str | Quantization | Sequence[str | Quantization | None] | None = None,
    keep: int | Sinks = 0,
    lm_head: bool = False,
    embeddings: bool = False,
    skip: str | Sequence[str] = (),
) -> Iterator[QuantizedModel]:
    """Inside the ``with``, the model computes with numbers of fewer bits; outside it is bit for bit what it was.

    The numbers are rounded and computed with in the model's own dtype ("fake quantisation"): this shows what rounding costs,
    and saves neither time nor memory. Ranges are those of the very numbers that are rounded, never calibrated: weights' are
    taken once, activations', keys' and values' anew in every call, so per tensor, head or channel they depend on all tokens
    of the call, later ones included; activations per tensor on padding and the other rows too.

    Keys are rounded after rotation, as they lie in a cache, and values beside them: all tokens of a call, the newest too. Per
    token is per token and head. Padding and tokens that ``keep`` names count for no range.

    Args:
        model: any model with linear layers; for ``kv`` a transformers model whose attention goes through the interface, or
            one with :class:`sinkgate.nn.GatedAttention`.
        weights: of every linear layer, such as ``"int8"`` (per output channel) or ``"int4(group=64)"``.
        activations: the inputs of the same layers, such as ``"int8(token)"``.
        kv: keys and values, such as ``"int4(token)"``, or two: ``("uint4(channel)", "uint4(token)")``; None in it: not this.
        keep: so many first tokens of each row, padding in front not counted, whose keys and values stay as they are
            (KVQuant, IntactKV); or ``Sinks(n, token_ids=…)``. Texts packed into one row count as one, but for a
            GatedAttention's ``document_ids``.
        lm_head: the layer to the vocabulary too.
        embeddings: embeddings too (per channel: each row has its scale).
        skip: names of modules to leave out.

    Yields:
        :class:`QuantizedModel`: what was quantised, and what was left out.

    Raises:
        ArgumentError: nothing is asked for, or something that makes no sense; groups that do not divide.
        UnsupportedError: the model's parts cannot be found or are quantised already; and, inside, a pass that asks for
            gradients, which rounding does not have.

    >>> with sg.quantized(model, weights="int8", activations="int8(token)") as q:     # doctest: +SKIP
    ...     logits = model(ids).logits
    """
    how = {name: as_quantization(x, name) for name, x in (("weights", weights), ("activations", activations))
           if x is not None}  # fmt: skip
    pair = as_pair(tuple(kv) if isinstance(kv, list) else kv, keep)
    if not how and pair is None:
        raise ArgumentError("nothing to quantise: give weights=, activations= or kv=")
    if not how and (lm_head or embeddings or skip):
        raise ArgumentError("lm_head, embeddings and skip are for weights and activations; give one of these")
    if embeddings and "weights" not in how:
        raise ArgumentError("embeddings have no input that could be quantised: give weights= too")
    names = (skip,) if isinstance(skip, str) else tuple(skip)
    found = find_linears(model, lm_head=lm_head, embeddings=embeddings, skip=names) if how else None
    done = QuantizedModel(dict(how), parameters=sum(p.numel() for p in model.parameters()))
    with ExitStack() as stack:
        if pair is not None:
            done.how |= {n: x for n, x in (("keys", pair.keys), ("values", pair.values), ("keep", pair.keep)) if x}
            done.kv = stack.enter_context(quantized_kv(model, pair))
        if found is not None:
            done.left_out = found.left_out
            if "weights" in how:
                layers = (*found.linears, *found.embeddings)
                stack.enter_context(put_weights(layers, lambda _: how["weights"], done))
            if "activations" in how:
                stack.enter_context(_activations(found, how["activations"], done))
        yield done


# ---- weights --------------------------------------------------------------------------------------------------------


@contextmanager
def put_weights(
    layers: Sequence[Linear], how: Callable[[Linear], Quantization | Callable[[Tensor], Tensor]], done: QuantizedModel
) -> Iterator[None]:
    """Other parameters stand in the modules; the model's own, tied or not, are not touched and come back as they were.

    Args:
        layers: whose weights.
        how: of each layer its quantization, or a function from the weight ``[out, in]`` to the rounded one.
        done: gets an entry for each.

    Raises:
        ArgumentError: groups that do not divide.
        UnsupportedError: a weight that is quantised already; and, inside, a pass that asks for gradients.
    """
    new = [(layer, *_rounded(layer, how(layer))) for layer in layers]  # may refuse: nothing is changed yet
    with ExitStack() as stack:
        for layer, parameter, error in new:
            original = layer.module._parameters["weight"]
            stack.callback(layer.module._parameters.__setitem__, "weight", original)
            layer.module._parameters["weight"] = parameter
            if original is not None and original.requires_grad:
                stack.callback(layer.module.register_forward_pre_hook(_refuse_gradients).remove)
            done.weights[layer.name] = QuantizedWeight(tuple(parameter.shape), error)
        yield


@torch.no_grad()
def _rounded(layer: Linear, how: Quantization | Callable[[Tensor], Tensor]) -> tuple[nn.Parameter, float]:
    weight = layer.weight
    assert weight is not None
    if getattr(weight, MARK, False):
        raise UnsupportedError(f"the weight of {layer.name} is quantised already; leave the first with before a second")
    matrix = weight.T if layer.transposed else weight
    try:
        rounded = quantize(matrix, how, "weights") if isinstance(how, Quantization) else how(matrix)
    except ArgumentError as wrong:
        raise ArgumentError(f"the weight of {layer.name}: {wrong}") from None
    rounded = (rounded.T if layer.transposed else rounded).contiguous()
    size = torch.linalg.vector_norm(weight, dtype=torch.float64)
    error = torch.linalg.vector_norm(rounded.double() - weight.double()) / size.clamp_min(
        torch.finfo(torch.float64).tiny
    )
    parameter = nn.Parameter(rounded, requires_grad=False)
    setattr(parameter, MARK, True)
    return parameter, float(error)


def _refuse_gradients(_module: nn.Module, _args: Any) -> None:
    if torch.is_grad_enabled():
        raise UnsupportedError(GRADIENTS)


# ---- activations ----------------------------------------------------------------------------------------------------


@contextmanager
def _activations(found: Found, spec: Quantization, done: QuantizedModel) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in found.linears:
            done.activations[layer.name] = 0
            hook = partial(_rounding, layer.name, spec, done.activations)
            stack.callback(layer.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield


def _rounding(
    name: str,
    spec: Quantization,
    calls: dict[str, int],
    _module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    key, x = first_tensor(name, args, kwargs)
    try:
        rounded = quantize(x, spec, "activations")
    except ArgumentError as wrong:
        raise ArgumentError(f"the input of {name}: {wrong}") from None
    calls[name] += 1
    return (args, {**kwargs, key: rounded}) if key is not None else ((rounded, *args[1:]), kwargs)


def first_tensor(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, Tensor]:
    """The first tensor among the arguments of a linear layer is its input; its keyword, if it has one, and the tensor.

    Raises:
        UnsupportedError: there is none of floating-point numbers, or it asks for gradients.
    """
    key = next((k for k, x in kwargs.items() if isinstance(x, Tensor)), None) if not args else None
    x = args[0] if args else kwargs.get(key or "")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise UnsupportedError(f"{name} was called without a tensor of floating-point numbers; name it in skip")
    if torch.is_grad_enabled() and x.requires_grad:
        raise UnsupportedError(GRADIENTS)
    return key, x
