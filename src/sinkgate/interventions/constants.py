"""Keys and values that a model made at one position, to be put in elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.layers import attention_layers, evaluating

__all__ = ["Constants", "capture"]


@dataclass(frozen=True, eq=False)
class Constants:
    """Per layer, the key (rotated to ``position``) and the value of one token, or their mean over several texts.

    Args:
        keys: layer → ``[kv, d]``.
        values: layer → ``[kv, dv]``.
        position: where they were captured; None: at a place of its own in each text (their keys are then of no use).
        samples: over how many texts they are means.
        spread: largest standard deviation over the texts, relative to the mean's norm, among all layers' keys and values.
    """

    keys: dict[int, Float[Tensor, "kv d"]]
    values: dict[int, Float[Tensor, "kv dv"]]
    position: int | None
    samples: int
    spread: float = 0.0

    def at(self, layer: int, heads: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Key and value of one layer, for these key-value heads."""
        if layer not in self.keys:
            raise ArgumentError(f"these constants have no layer {layer}; they were captured from another model")
        index = list(heads)
        return self.keys[layer][index], self.values[layer][index]


@torch.no_grad()
def capture(
    model: nn.Module, texts: Iterable[Int[Tensor, " t"] | Sequence[int]], position: int | Sequence[int] = 0
) -> Constants:
    """Key and value at ``position`` (one for all, or one for each), averaged over texts given as token ids.

    Nothing behind the position is read: in a causal model nothing behind it matters. Texts that do not reach it are
    left out.

    Raises:
        ArgumentError: no text reaches that far.
    """
    modules = {id(layer.module): layer.layer for layer in attention_layers(model)}
    rows = list(texts)
    where = [position] * len(rows) if isinstance(position, int) else list(position)
    listener, used = _Capture(modules), []
    with evaluating(model), reading(model, listener):
        for ids, at in zip(rows, where, strict=True):
            row = torch.as_tensor(ids, dtype=torch.long, device=compat.input_device(model)).flatten()
            if row.numel() > at:
                listener.position = at
                forward(model, row[None, : at + 1], last_only=True)
                used.append(at)
    if not used:
        raise ArgumentError(f"no text has a token at position {position}")
    count = len(used)
    keys = {layer: torch.stack(found).double() for layer, found in listener.keys.items()}
    values = {layer: torch.stack(found).double() for layer, found in listener.values.items()}
    spread = 0.0
    for found in (*keys.values(), *values.values()):
        if count > 1:
            deviation = found.std(0).square().sum(-1).sqrt() / found.mean(0).norm(dim=-1).clamp_min(1e-30)
            spread = max(spread, float(deviation.max()))
    return Constants(
        {layer: x.mean(0).float() for layer, x in keys.items()},
        {layer: x.mean(0).float() for layer, x in values.items()},
        used[0] if len(set(used)) == 1 else None, count, spread,
    )  # fmt: skip


class _Capture:
    """Keeps one position's key and value of every layer."""

    def __init__(self, modules: dict[int, int]) -> None:
        self.modules, self.position = modules, 0
        self.keys: dict[int, list[Tensor]] = {}
        self.values: dict[int, list[Tensor]] = {}

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        layer = self.modules.get(id(module))
        if layer is not None:
            k = kwargs["key"] if len(args) < 2 else args[1]
            v = kwargs["value"] if len(args) < 3 else args[2]
            self.keys.setdefault(layer, []).append(k[0, :, self.position].clone())
            self.values.setdefault(layer, []).append(v[0, :, self.position].clone())
        return function(module, *args, **kwargs)
