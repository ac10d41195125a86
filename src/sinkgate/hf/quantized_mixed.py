"""A model whose weights are in several kinds of numbers at once, and some of whose tokens or channels stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.linears import Linear, find_linears
from sinkgate.hf.quantized import QuantizedModel, first_tensor, put_weights
from sinkgate.quantization import Quantization, quantize

__all__ = ["Inputs", "Part", "kept_tokens", "quantized_mixed", "round_parts"]


@dataclass(frozen=True)
class Part:
    """Some rows (outputs) or columns (inputs) of one weight that are quantised by themselves.

    Args:
        module: its name in the model.
        axis: ``rows`` or ``columns`` of the weight ``[out, in]``, whichever way the module holds it.
        spans: which, as (first, one behind the last), in order and apart.
        how: their quantization.

    Raises:
        ArgumentError: another axis, or spans that are not so.
    """

    module: str
    axis: str
    spans: tuple[tuple[int, int], ...]
    how: Quantization

    def __post_init__(self) -> None:
        if self.axis not in ("rows", "columns"):
            raise ArgumentError(f"a part of a weight is rows or columns, got {self.axis!r}")
        flat = [x for span in self.spans for x in span]
        if not flat or flat[0] < 0 or any(a >= b for a, b in self.spans) or flat != sorted(flat):
            raise ArgumentError(f"the spans of {self.module} must be (first, last + 1) in order, got {self.spans!r}")

    @property
    def count(self) -> int:
        """How many rows or columns."""
        return sum(b - a for a, b in self.spans)

    def mask(self, size: int) -> Bool[Tensor, " size"]:
        """True at them.

        Raises:
            ArgumentError: the weight has fewer.
        """
        if self.spans[-1][1] > size:
            raise ArgumentError(f"{self.module} has {size} {self.axis}, the spans go to {self.spans[-1][1]}")
        found = torch.zeros(size, dtype=torch.bool)
        for a, b in self.spans:
            found[a:b] = True
        return found


@dataclass(frozen=True)
class Inputs:
    """How the inputs of linear layers are quantised.

    Args:
        how: all of them.
        keep: tokens whose inputs stay as they are and count for no range.
        channels: module → channels of its input that stay as they are and count for no range.
        heads: module → its input is that many heads side by side, each with a scale of its own over the row's tokens.
    """

    how: Quantization
    keep: tuple[Sinks, ...] = ()
    channels: Mapping[str, tuple[int, ...]] | None = None
    heads: Mapping[str, int] | None = None


def round_parts(weight: Float[Tensor, "out in"], how: Quantization | None, parts: Sequence[Part]) -> Tensor:
    """A weight whose parts are quantised by themselves, and what is left of it by itself (None: nothing may be left).

    Raises:
        ArgumentError: rows and columns at once, a row or column twice, or groups that do not divide what is there.
    """
    if len({part.axis for part in parts}) > 1:
        raise ArgumentError(f"{parts[0].module}: parts are rows or columns of a weight, not both")
    dim = 1 if parts and parts[0].axis == "columns" else 0
    left = torch.ones(weight.shape[dim], dtype=torch.bool)
    rounded = weight.clone()
    for part in parts:
        mask = part.mask(weight.shape[dim])
        if bool((mask & ~left).any()):
            raise ArgumentError(f"{part.module}: a row or column is in two parts")
        left &= ~mask
        _put(rounded, weight, mask, dim, part.how)
    if bool(left.any()):
        if how is None:
            raise ArgumentError("the parts leave something of the weight, and nothing says how to quantise it")
        _put(rounded, weight, left, dim, how)
    return rounded


def _put(rounded: Tensor, weight: Tensor, mask: Tensor, dim: int, how: Quantization) -> None:
    index = mask.nonzero().flatten().to(weight.device)
    rounded.index_copy_(dim, index, quantize(weight.index_select(dim, index), how, "weights"))


@contextmanager
def quantized_mixed(
    model: nn.Module,
    weights: Mapping[str, Quantization] | None = None,
    parts: Sequence[Part] = (),
    *,
    inputs: Inputs | None = None,
    prefix: int = 0,
) -> Iterator[QuantizedModel]:
    """Like :func:`sinkgate.quantized`, with a quantization for each linear layer; outside it is bit for bit what it was.

    Args:
        model: any with linear layers; a transformers model, fed ``input_ids``, where tokens are named.
        weights: name of a linear layer → how; a layer that is not named stays as it is.
        parts: rows or columns of named layers that are quantised by themselves; groups of the layer's own quantization
            divide what is left.
        inputs: of the layers named in ``weights`` too.
        prefix: the first so many tokens of each row go through the weights as they were. In a causal model their keys and
            values are then those of the model that is not quantised (IntactKV, Liu et al. 2024, arXiv 2403.01241; PrefixQuant,
            Chen et al. 2024, arXiv 2410.05265).

    Yields:
        :class:`QuantizedModel`; its ``how`` says ``mixed``.

    Raises:
        ArgumentError: a name that is no linear layer, groups that do not divide.
        UnsupportedError: quantised already; and, inside, gradients, or a layer that is given other rows than the tokens.
    """
    weights = dict(weights or {})
    if not weights:
        raise ArgumentError("nothing to quantise: name linear layers in weights=")
    found = find_linears(model, lm_head=True)
    known = {layer.name: layer for layer in found.linears}
    wrong = [n for n in (*weights, *(p.module for p in parts)) if n not in known]
    if inputs is not None:
        wrong += [n for n in (*(inputs.channels or {}), *(inputs.heads or {})) if n not in weights]
    if wrong:
        raise ArgumentError(f"{wrong[0]!r} is no linear layer of this model that is quantised")
    by_module: dict[str, list[Part]] = {}
    for part in parts:
        if part.module not in weights:
            raise ArgumentError(f"parts of {part.module} are named, and nothing says how the rest of it is quantised")
        by_module.setdefault(part.module, []).append(part)
    layers = [known[name] for name in known if name in weights]
    originals = {layer.name: layer.module._parameters["weight"] for layer in layers}
    done = QuantizedModel({"weights": "mixed"}, parameters=sum(p.numel() for p in model.parameters()))
    done.left_out = {f"{n}.weight": "not named" for n in known if n not in weights} | found.left_out

    def how(layer: Linear) -> Any:
        mine = by_module.get(layer.name)
        if mine is None:
            return weights[layer.name]
        return lambda weight: round_parts(weight, weights[layer.name], mine)

    tokens = _Tokens(inputs.keep if inputs is not None else (), prefix)
    with ExitStack() as stack:
        stack.enter_context(put_weights(layers, how, done))
        if tokens.keep or prefix:
            for module in compat.told(model):
                hook = module.register_forward_pre_hook(tokens.told, with_kwargs=True, prepend=True)
                stack.callback(hook.remove)
        for layer in layers:
            if inputs is not None:
                done.activations[layer.name] = 0
                rounding = partial(_rounding, layer.name, inputs, tokens, done.activations)
                stack.callback(layer.module.register_forward_pre_hook(rounding, with_kwargs=True).remove)
            if prefix:
                whole = partial(_whole, layer.name, originals[layer.name], tokens)
                stack.callback(layer.module.register_forward_hook(whole, with_kwargs=True).remove)
        yield done


# ---- tokens -----------------------------------------------------------------------------------------------------------


def kept_tokens(
    keep: Sequence[Sinks], positions: Tensor, ids: Tensor | None
) -> Bool[Tensor, "b s"]:  # positions [b, s], −1 at padding
    """Which tokens of whole rows are kept: of each part the first ones that no part before has taken.

    Raises:
        ArgumentError: tokens are named by their ids, which nobody told.
    """
    kept = torch.zeros_like(positions, dtype=torch.bool)
    for part in keep:
        wants = part.pins(positions, ids) & ~kept
        kept |= wants & (wants.cumsum(1) <= part.n)
    return kept


class _Tokens:
    """Which tokens of the pass that runs now are kept, and which belong to the prefix."""

    def __init__(self, keep: tuple[Sinks, ...], prefix: int) -> None:
        self.keep, self.prefix = keep, prefix
        self.seen: Tensor | None = None  # ids of each row, as far as they were fed
        self.kept: Tensor | None = None  # [b, t] of this pass
        self.first: Tensor | None = None

    def told(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the model is called with, before it runs: a forward pre-hook."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        given = ids if isinstance(ids, Tensor) else kwargs.get("inputs_embeds")
        if not isinstance(given, Tensor):
            return
        b, t = given.shape[:2]
        past = compat.cached_tokens(kwargs)
        mask = kwargs.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            positions = torch.where(mask != 0, mask.long().cumsum(1) - 1, -1)
        else:
            positions = torch.arange(past + t, device=given.device).expand(b, -1)
        named = any(part.wants_ids for part in self.keep)
        whole = None
        if named:
            whole = self._whole(ids if given is ids else None, past, b)
            positions = positions[:, : whole.shape[1]]
        self.kept = kept_tokens(self.keep, positions, whole)[:, -t:]
        self.first = ((positions >= 0) & (positions < self.prefix))[:, -t:]

    def _whole(self, ids: Tensor | None, past: int, rows: int) -> Tensor:
        if ids is None or (past and (self.seen is None or self.seen.shape[1] < past or rows > 1)):
            raise UnsupportedError(
                "tokens are kept by their ids, which have to be known: give the model input_ids, and go on from a cache only "
                "with one row whose tokens were all fed inside this with"
            )
        self.seen = ids if not past or self.seen is None else torch.cat([self.seen[:, :past], ids], 1)
        return self.seen

    def rows(self, name: str, x: Tensor, which: Tensor | None) -> Tensor | None:
        """The tokens among the rows of a layer's input; None: none of them."""
        if which is None:
            raise UnsupportedError(f"{name} was called before the model was: call the model, with input_ids")
        if x.shape[:-1].numel() != which.numel():
            raise UnsupportedError(
                f"{name} was given {x.shape[:-1].numel()} rows for {which.numel()} tokens, so nobody knows which belongs to "
                "which; leave this layer out"
            )
        return which.reshape(x.shape[:-1]).to(x.device) if bool(which.any()) else None


# ---- what hangs at a layer ----------------------------------------------------------------------------------------------


def _rounding(
    name: str, inputs: Inputs, tokens: _Tokens, calls: dict[str, int], _module: nn.Module, args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    key, x = first_tensor(name, args, kwargs)
    kept = tokens.rows(name, x, tokens.kept) if inputs.keep else None
    heads = (inputs.heads or {}).get(name)
    try:
        if heads is not None:
            rounded = _by_head(x, heads, inputs.how, kept)
            stays = None if kept is None else kept[..., None]
        else:
            stays = _stays(x, kept, (inputs.channels or {}).get(name))
            rounded = quantize(x, inputs.how, "activations", None if stays is None else ~stays)
    except ArgumentError as wrong:
        raise ArgumentError(f"the input of {name}: {wrong}") from None
    if stays is not None:
        rounded = torch.where(stays, x, rounded)
    calls[name] += 1
    return (args, {**kwargs, key: rounded}) if key is not None else ((rounded, *args[1:]), kwargs)


def _stays(x: Tensor, kept: Tensor | None, channels: tuple[int, ...] | None) -> Tensor | None:
    found = None if kept is None else kept[..., None]
    if channels:
        if max(channels) >= x.shape[-1]:
            raise ArgumentError(f"it has {x.shape[-1]} channels, and channel {max(channels)} is to be kept")
        here = torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
        here[list(channels)] = True
        found = here if found is None else found | here
    return found


def _by_head(x: Tensor, heads: int, how: Quantization, kept: Tensor | None) -> Tensor:
    """One scale per row and head, over the tokens that are not kept."""
    if x.shape[-1] % heads:
        raise ArgumentError(f"{x.shape[-1]} channels are not {heads} heads")
    shape = x.shape if x.ndim == 3 else (1, *x.shape[-2:])
    split = x.reshape(shape).unflatten(-1, (heads, -1)).transpose(1, 2)  # [b, h, t, dv]
    among = None if kept is None else ~kept.reshape(shape[:2])[:, None, :, None]
    whole = Quantization(how.bits, how.symmetric, "head", None, how.offset)
    return quantize(split, whole, "kv", among).transpose(1, 2).reshape(x.shape)


def _whole(
    name: str, original: nn.Parameter | None, tokens: _Tokens, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
    out: Tensor,
) -> Tensor | None:  # fmt: skip
    """The prefix through the weight as it was."""
    _, x = first_tensor(name, args, kwargs)
    rows = tokens.rows(name, x, tokens.first)
    if rows is None:
        return None
    now = module._parameters["weight"]
    module._parameters["weight"] = original
    try:
        some = module.forward(x[rows])
    finally:
        module._parameters["weight"] = now
    out = out.clone()
    out[rows] = some
    return out
