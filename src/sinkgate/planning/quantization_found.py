"""What a record says that a quantization plan can use: sink tokens, outlier channels, sink heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from sinkgate.cache.base import Sum
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError
from sinkgate.hf.head_parts import LayerParts
from sinkgate.hf.layers import decoder_blocks
from sinkgate.probe.policy import sinks_policy
from sinkgate.record import Diagnosis

__all__ = ["Group", "Outliers", "Promoted", "check_record", "outliers", "promoted", "record_tokens"]

MASSIVE, TIMES = 100.0, 1000.0  # massive: over both, the second times the median (Sun et al. 2024, arXiv 2402.17762)
SHARE = 0.25  # of the key-value heads, at most, get more bits


@dataclass(frozen=True)
class Outliers:
    """Massive activations of the residual stream.

    Args:
        channels: of the stream.
        first: the first depth they stand at (0: the embeddings; i: behind block i − 1).
        last: the last.
        largest: of their absolute values.
    """

    channels: tuple[int, ...]
    first: int
    last: int
    largest: float


@dataclass(frozen=True)
class Group:
    """A key-value head with the query heads that share it."""

    layer: int
    kv_head: int
    mass: float  # on the first token or another sink, mean over its query heads


@dataclass(frozen=True)
class Promoted:
    """Heads that get more bits, strongest first, others for comparison, and in words which they are."""

    groups: tuple[Group, ...]
    others: tuple[Group, ...]
    words: str
    sinks: bool


def check_record(model: nn.Module, diagnosis: Diagnosis, parts: list[LayerParts]) -> None:
    """The record has the layers and heads of this model.

    Raises:
        ArgumentError: it has not.
    """
    layers, heads = diagnosis.shape
    blocks, most = len(decoder_blocks(model)), max(p.heads for p in parts)
    if (layers, heads) != (blocks, most):
        raise ArgumentError(
            f"the record is of a model with {layers} layers of up to {heads} heads, this one has {blocks} of up to {most}; "
            "diagnose this model"
        )


def record_tokens(diagnosis: Diagnosis, tokenizer: Any) -> tuple[Sinks, ...]:
    """The sinks of a record as the first so many tokens, or tokens with certain ids.

    Raises:
        ArgumentError: the record has no sink, or one that only a tokenizer can name.
    """
    policy = sinks_policy(diagnosis, tokenizer)
    return tuple(p for p in (policy.of_ if isinstance(policy, Sum) else (policy,)) if isinstance(p, Sinks))


def outliers(diagnosis: Diagnosis) -> Outliers:
    """The massive activations of a record.

    Raises:
        ArgumentError: it has none, or was made without looking at the residual stream.
    """
    median = diagnosis.stream_median
    found = [m for m in diagnosis.massive if abs(m["value"]) > max(MASSIVE, TIMES * float(median[m["layer"]]))]
    if not found:
        raise ArgumentError(f"the record has no massive activation (over {MASSIVE:g} and {TIMES:g} times the median)")
    depths = sorted({m["layer"] for m in found})
    channels = tuple(sorted({int(m["dimension"]) for m in found}))
    return Outliers(channels, depths[0], depths[-1], max(abs(m["value"]) for m in found))


def promoted(diagnosis: Diagnosis, parts: list[LayerParts]) -> Promoted:
    """The key-value heads with the most mass on sinks, at most a quarter of all, and as many others for comparison.

    The others are drawn from the heads that are no sink heads (seed 0); where these are too few they are the weakest. Sink heads are those over the record's threshold; where there is none, those with the most first-token mass.

    Raises:
        ArgumentError: no head was measured.
    """
    mass = np.array(diagnosis.first_token_mass)
    if diagnosis.settings.detail != "first":
        mass = np.fmax(mass, diagnosis.top_other_mass)
    groups = []
    for p in parts:
        per = mass[p.layer, : p.heads].reshape(p.kv_heads, -1)
        groups += [Group(p.layer, j, float(per[j].mean())) for j in range(p.kv_heads) if np.isfinite(per[j]).all()]
    if not groups:
        raise ArgumentError("the record has no head that could be measured")
    ranked = sorted(groups, key=lambda g: (-g.mass, g.layer, g.kv_head))
    most = max(1, int(SHARE * len(ranked)))
    threshold = diagnosis.settings.threshold
    over = [g for g in ranked if g.mass > threshold]
    chosen = (over or ranked)[:most]
    rest = ranked[len(chosen) :]
    plain = [g for g in rest if g.mass <= threshold]
    pool = plain if len(plain) >= len(chosen) else rest[-len(chosen) :]  # too few that are no sink heads: the weakest
    drawn = np.random.default_rng(0).permutation(len(pool))[: len(chosen)]
    others = tuple(pool[i] for i in sorted(drawn.tolist()))
    if over:
        cut = (
            f" ({len(over)} are over {threshold:g}; the strongest {len(chosen)} are taken)" if len(over) > most else ""
        )
        words = f"{len(chosen)} of {len(ranked)} key-value heads with the most mass on sinks{cut}"
    else:
        words = (
            f"no key-value head is over {threshold:g} on a sink; the {len(chosen)} of {len(ranked)} with the most mass"
        )
    return Promoted(tuple(chosen), others, words, bool(over))
