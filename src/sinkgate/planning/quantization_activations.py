"""Activations in 8 bits beside weights in 8 bits: four ways to take their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.head_parts import LayerParts
from sinkgate.hf.quantized_mixed import kept_tokens
from sinkgate.planning.quantization_found import outliers, record_tokens
from sinkgate.planning.quantization_record import Arms, Planned
from sinkgate.planning.quantization_spec import ActivationSpec
from sinkgate.planning.quantization_weights import Matrix, matrices
from sinkgate.quantization import Quantization
from sinkgate.record import Diagnosis

__all__ = ["activation_arms", "mean_bits"]

WHOLE = 16  # bits of a number that is not quantised


def activation_arms(
    model: nn.Module, diagnosis: Diagnosis | None, tokenizer: Any, parts: list[LayerParts], texts: Sequence[Sequence[int]],
    *, bits: int, first: int,
) -> Arms:  # fmt: skip
    """The arms: one scale per tensor; what is kept counts for no range and stays in 16 bits, which the size says.

    Args:
        model: a transformers model.
        diagnosis: None: what needs it is skipped, with the reason.
        tokenizer: names the tokens of sinks that stand further in.
        parts: of the model's attention layers.
        texts: token ids, to count what is kept.
        bits: of the inputs.
        first: tokens kept in ``preserve-first-n``.
    """
    found = matrices(model)
    uniform = ActivationSpec(
        tuple(m.name for m in found), Quantization(8, granularity="channel"), Quantization(bits, granularity="tensor")
    )
    arms = Arms()

    def add(name: str, words: str, spec: ActivationSpec) -> None:
        arms.add(Planned(name, words, spec, mean_bits(found, spec, texts)))

    add("uniform", f"weights in 8 bits per channel, inputs in {bits} bits with one scale per tensor", uniform)
    add(f"preserve-first-{first}", f"the inputs of the first {first} tokens stay and count for no range",
        replace(uniform, tokens=(Sinks(first),)))  # fmt: skip
    if diagnosis is None:
        arms.skipped["sink-aware"] = "there is no record: give a diagnosis of this model"
    else:
        try:
            add("sink-aware", *_aware(model, diagnosis, tokenizer, parts, found, uniform))
        except ArgumentError as err:
            arms.skipped["sink-aware"] = str(err)
    widths = {m.name: m.columns for m in found}
    heads = tuple((p.output, p.heads) for p in parts if p.output in widths)
    if heads:
        words = f"the inputs of {len(heads)} output projections have a scale per head, whichever heads are sinks"
        add("per-head", words, replace(uniform, heads=heads))
    else:
        arms.skipped["per-head"] = next((p.reason for p in parts if p.reason), "no layer takes the heads' outputs")
    return arms


def _aware(
    model: nn.Module, diagnosis: Diagnosis, tokenizer: Any, parts: list[LayerParts], found: list[Matrix], uniform: ActivationSpec
) -> tuple[str, ActivationSpec]:  # fmt: skip
    """Tokens and channels of the record; one of the two is enough.

    Raises:
        ArgumentError: the record has neither.
    """
    tokens: tuple[Sinks, ...] = ()
    channels: tuple[tuple[str, tuple[int, ...]], ...] = ()
    missing, words = [], []
    try:
        tokens = record_tokens(diagnosis, tokenizer)
        words.append(f"the record's sinks, {' + '.join(map(str, tokens))}")
    except ArgumentError as err:
        missing.append(str(err))
    try:
        there, width, outputs = outliers(diagnosis), compat.width(model), {p.output for p in parts}
        reading = [m.name for m in found if m.columns == width and m.name not in outputs]
        channels = tuple((name, there.channels) for name in reading)
        words.append(
            f"channels {', '.join(map(str, there.channels))} of the {len(reading)} linear layers that read the stream"
        )
    except ArgumentError as err:
        missing.append(str(err))
    if not tokens and not channels:
        raise ArgumentError("; ".join(missing))
    beside = f" ({'; '.join(missing)})" if missing else ""
    spec = replace(uniform, tokens=tokens, channels=channels)
    return f"{' and '.join(words)} stay and count for no range{beside}", spec


def mean_bits(found: Sequence[Matrix], spec: ActivationSpec, texts: Sequence[Sequence[int]]) -> float:
    """Bits per number of the inputs, mean over layers, tokens and texts; what stays counts 16, scales nothing."""
    channels, mine = dict(spec.channels), [m for m in found if m.name in set(spec.modules)]
    every = sum(m.columns for m in mine)
    some = sum(len(channels.get(m.name, ())) for m in mine)
    total = kept = 0
    for ids in texts:
        row = torch.tensor([list(ids)])
        tokens = int(kept_tokens(spec.tokens, torch.arange(len(ids))[None], row).sum()) if spec.tokens else 0
        total += len(ids) * every
        kept += tokens * every + (len(ids) - tokens) * some
    return (spec.inputs.bits * (total - kept) + WHOLE * kept) / total
