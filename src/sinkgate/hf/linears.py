"""The linear layers of any model, found by what they do: a 2-D weight, applied as a linear map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat

__all__ = ["Found", "Linear", "find_linears"]


@dataclass(frozen=True, eq=False)
class Linear:
    """A module with a weight of two dimensions.

    Args:
        name: in the model.
        module: which.
        transposed: the weight is ``[in, out]``, as in GPT-2, not ``[out, in]``.
        embedding: no linear layer but a table of rows.
    """

    name: str
    module: nn.Module
    transposed: bool = False
    embedding: bool = False

    @property
    def weight(self) -> Tensor | None:
        """As the module holds it; None where it is made from other parameters."""
        return self.module._parameters.get("weight")


@dataclass(frozen=True, eq=False)
class Found:
    """What there is to quantise.

    Args:
        linears: linear layers that are asked for, in the order of the model.
        embeddings: likewise.
        left_out: every other parameter with two dimensions or more, and why.
    """

    linears: tuple[Linear, ...]
    embeddings: tuple[Linear, ...]
    left_out: dict[str, str]


def find_linears(model: nn.Module, *, lm_head: bool = False, embeddings: bool = False,
                 skip: tuple[str, ...] = ()) -> Found:  # fmt: skip
    """Every linear layer but the one to the vocabulary, and on request that and the embeddings.

    The layer to the vocabulary is the one that the model names (``get_output_embeddings``), any that shares its weight with
    an embedding, and in a model that cannot be asked its last linear layer, if its weight has the shape of its first embedding.

    Args:
        model: any model.
        lm_head: the layer to the vocabulary too.
        embeddings: embeddings too.
        skip: names of modules to leave out, with all that is inside them.

    Raises:
        ArgumentError: ``skip`` names no module, or nothing is left.
        UnsupportedError: a weight that is not there as floating-point numbers.
    """
    names = {name for name, _ in model.named_modules()}
    for name in skip:
        if not name or name not in names:
            raise ArgumentError(f"skip names {name!r}, which is no module of this model")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise UnsupportedError("a lazy layer of this model has no weights yet; run the model once")
    tables = [Linear(n, m, embedding=True) for n, m in model.named_modules() if isinstance(m, nn.Embedding)]
    layers = list(_linears(model))
    heads = _heads(model, layers, tables)
    left: dict[str, str] = {}

    def wanted(layer: Linear) -> bool:
        reason = None
        if any(layer.name == name or layer.name.startswith(f"{name}.") for name in skip):
            reason = "named in skip"
        elif layer.embedding and not embeddings:
            reason = "an embedding (embeddings=True takes it too)"
        elif id(layer.module) in heads and not lm_head:
            reason = "leads to the vocabulary (lm_head=True takes it too)"
        if reason is not None:
            left[f"{layer.name}.weight".lstrip(".")] = reason
        return reason is None

    found = Found(tuple(filter(wanted, layers)), tuple(filter(wanted, tables)), left)
    if not found.linears and not found.embeddings:
        raise ArgumentError(f"{type(model).__name__} has no linear layer to quantise" + (
            f"; left out: {', '.join(f'{n} ({r})' for n, r in list(left.items())[:3])}" if left else ""))  # fmt: skip
    for layer in (*found.linears, *found.embeddings):
        _check(layer)
    taken = {id(x.module) for x in (*layers, *tables)}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.ndim >= 2 and not (id(module) in taken and key == "weight"):
                left[f"{name}.{key}".lstrip(".")] = "not the weight of a linear layer"
    return found


def _linears(model: nn.Module) -> Iterator[Linear]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield Linear(name, module)
        elif not isinstance(module, nn.Embedding) and (transposed := _by_trial(module)) is not None:
            yield Linear(name, module, transposed)


@torch.no_grad()
def _by_trial(module: nn.Module) -> bool | None:
    """Whether a module of another class computes ``x W + b`` (True) or ``x Wᵀ + b`` (False); None: neither."""
    own = {name: p for name, p in module._parameters.items() if p is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if weight is None or weight.ndim != 2 or set(own) - {"weight", "bias"} or module._modules or module._buffers:
        return None
    if not weight.is_floating_point() or weight.is_meta:
        return None
    generator = torch.Generator().manual_seed(0)
    for transposed in (True, False):
        matrix = weight if transposed else weight.T
        x = torch.randn(3, matrix.shape[0], generator=generator).to(weight)
        try:
            y = module.forward(x)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):  # it wants something else than x
            continue
        expected = x.double() @ matrix.double() + (0.0 if bias is None else bias.double())
        bound = 4 * torch.finfo(weight.dtype).eps ** 0.5 * expected.abs().max().clamp_min(1e-30)
        if isinstance(y, Tensor) and y.shape == expected.shape and bool(((y.double() - expected).abs() <= bound).all()):
            return transposed
    return None


def _heads(model: nn.Module, layers: list[Linear], tables: list[Linear]) -> set[int]:
    rows = {id(table.weight) for table in tables if table.weight is not None}
    heads = {id(x.module) for x in layers if id(x.weight) in rows}
    named = compat.output_embeddings(model)
    if named is not None:
        heads.add(id(named))
    elif not hasattr(model, "get_output_embeddings") and tables and layers and not heads:
        last, first = layers[-1].weight, tables[0].weight
        if last is not None and first is not None and last.shape == first.shape:
            heads.add(id(layers[-1].module))
    return heads


def _check(layer: Linear) -> None:
    weight = layer.weight
    if weight is None:
        raise UnsupportedError(
            f"{layer.name} makes its weight from other parameters, which cannot be quantised; name it in skip"
        )
    if weight.is_meta or not weight.is_floating_point():
        what = "is not in memory" if weight.is_meta else f"is {weight.dtype}"
        raise UnsupportedError(
            f"the weight of {layer.name} {what}; quantising needs floating-point numbers (or name it in skip)"
        )
