"""What it costs when one layer forgets: each layer streams alone, the others keep everything.

A divergence is far less noisy than a difference of losses, so one short text orders the layers. Heads are ordered within their
layer by what the record says leaves the window: mass neither on the first tokens nor among the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from sinkgate.cache.per_head import PerLayer
from sinkgate.cache.recent import Dense
from sinkgate.cache.registry import as_policy
from sinkgate.errors import RecordError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.layers import evaluating
from sinkgate.hf.streaming import streaming
from sinkgate.planning.cost import Shape
from sinkgate.planning.store import Store
from sinkgate.probe.text import Piece
from sinkgate.record import Diagnosis

__all__ = ["far_mass", "forgetting", "order"]

CHUNK = 256
MOST = 1 << 29  # bytes of the untouched model's logits


@torch.no_grad()
def forgetting(
    model: nn.Module, shape: Shape, piece: Piece, policy: str, tokens: int, store: Store, progress: Any = None
) -> dict[int, float]:
    """KL(untouched ‖ one layer streams), nats per prediction, for every layer whose cache is free.

    Args:
        model: which.
        shape: its caches.
        piece: a text.
        policy: what the layer keeps, shorter than the text.
        tokens: of the text that are read.
        store: what is known.
        progress: called with (layers done, all).
    """
    vocabulary = model.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
    tokens = min(tokens, len(piece.ids), max(64, MOST // (2 * vocabulary)))
    ids = torch.tensor([piece.ids[:tokens]], device=compat.input_device(model))
    untouched: list[torch.Tensor] = []
    found = {}
    for done, layer in enumerate(shape.free):
        value = PerLayer(Dense(), (layer.index,), as_policy(policy))
        key = f"forget|{value}|{piece.id}|{tokens}"

        def make(value: Any = value) -> float:
            if not untouched:
                untouched.extend(_logits(model, Dense(), ids))
            here = _logits(model, value, ids)
            total = 0.0
            for i, (one, other) in enumerate(zip(here, untouched, strict=True)):
                part = ids[0, i * CHUNK : i * CHUNK + len(one) + 1]
                if len(part) > 1:
                    total += score(one[: len(part) - 1], part, untouched=other[: len(part) - 1]).kl * (len(part) - 1)
            return total / (tokens - 1)

        found[layer.index] = float(store.measured(key, make))
        if progress is not None:
            progress(done + 1, len(shape.free))
    return found


def _logits(model: nn.Module, policy: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    kept = []
    with evaluating(model), streaming(model, policy, positions="original", chunk=CHUNK) as cache:
        for i in range(0, ids.shape[1], CHUNK):
            kept.append(model(ids[:, i : i + CHUNK], cache=cache).logits[0].half())
    return kept


def far_mass(record: Diagnosis, shape: Shape) -> dict[tuple[int, int], float]:
    """(layer, key-value head) → mass that a stream of sinks and recent tokens would lose, the most of its query heads.

    The mass that is neither on the first four tokens nor on the last ``local_window`` ones, of the record's texts.

    Raises:
        RecordError: the record has other layers or heads than the model, or lacks what is needed.
    """
    if record.settings.detail != "full":
        raise RecordError(f"a plan needs a record of detail 'full', this one has {record.settings.detail!r}")
    layers, heads = record.shape
    if any(layer.index >= layers or layer.heads > heads for layer in shape.layers):
        raise RecordError(f"the record has {layers} layers of {heads} heads, the model others")
    alpha = record.arrays["alpha4"]
    there = np.isfinite(alpha)
    first = (np.where(there, alpha, 0.0).sum(0) / np.maximum(there.sum(0), 1)).sum(-1)
    far = 1.0 - np.nan_to_num(record.local_mass) - first - np.nan_to_num(record.learned_mass)
    found = {}
    for layer in shape.free:
        group = layer.heads // layer.kv_heads
        for kv in range(layer.kv_heads):
            found[layer.index, kv] = float(max(0.0, far[layer.index, kv * group : (kv + 1) * group].max()))
    return found


def order(
    cost: dict[int, float], far: dict[tuple[int, int], float]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Key-value heads and layers, those first that should keep most: a layer's cost, shared out by its heads' far mass."""
    total: dict[int, float] = {}
    for (layer, _), mass in far.items():
        total[layer] = total.get(layer, 0.0) + mass
    share = {(i, kv): cost[i] * (mass / total[i] if total[i] > 0 else 0.0) for (i, kv), mass in far.items()}
    heads = tuple(sorted(far, key=lambda x: (-share[x], -far[x], x)))
    return heads, tuple(sorted(cost, key=lambda i: (-cost[i], i)))
