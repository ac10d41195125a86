"""Massive activations of a model: where they first stand, and the acts that remove them (arXiv 2402.17762)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.layers import decoder_blocks
from sinkgate.interventions.acts import SetMassive
from sinkgate.interventions.arms import Arm
from sinkgate.interventions.texts import Sample, Texts
from sinkgate.record import Diagnosis
from sinkgate.site import Site

__all__ = ["Largest", "arms"]


class Largest:
    """Keeps, per depth and component, the largest ``|h|`` of any token."""

    def __init__(self) -> None:
        self.found: dict[int, Tensor] = {}

    def site(self, site: Site) -> None:
        """Attention is not looked at."""

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """One depth of one text."""
        here = hidden.float().abs().amax((0, 1)).cpu()
        self.found[depth] = torch.maximum(self.found.get(depth, here), here)


@dataclass(frozen=True)
class _Massive:
    layer: int
    dimensions: tuple[int, ...]
    threshold: float
    largest: float


def arms(model: nn.Module, largest: Largest, diagnosis: Diagnosis, texts: Texts) -> list[Arm]:
    """Massive activations to 0, and to their mean over other texts; adds a note about which they are.

    The control sets the same components of an ordinary token to 0, or to their mean over ordinary tokens.
    """
    found = _first(largest, diagnosis)
    if found is None:
        texts.notes.append(
            "No activation is massive (over 100 and 1000 times the median), so none was changed."
            if largest.found
            else "The hidden states are not one stream of [batch, tokens, width]: no massive activation was looked for."
        )
        return []
    texts.notes.append(
        f"Massive activations: dimensions {', '.join(map(str, found.dimensions))} behind layer {found.layer}, up to "
        f"{found.largest:.4g}; every entry of these over {found.threshold:.4g} is set. The control sets the same "
        "dimensions of one ordinary token."
    )
    massive, ordinary = _means(model, found, texts)

    def arm(label: str, values: tuple[float, ...] | None, others: tuple[float, ...] | None) -> Arm:
        def control(sample: Sample) -> SetMassive:
            entries = tuple((sample.control, d) for d in found.dimensions)
            return SetMassive(found.layer, (), found.threshold, others, entries)

        return Arm(label, lambda _: SetMassive(found.layer, found.dimensions, found.threshold, values), control)

    return [
        arm("massive activations to 0", None, None),
        arm("massive activations to their mean", massive, ordinary),
    ]


def _first(largest: Largest, d: Diagnosis) -> _Massive | None:
    """The first layer behind which an entry is massive: over 100 and over 1000 times the median of ``|h|`` there."""
    for depth in sorted(largest.found):
        threshold = max(100.0, 1000 * float(d.stream_median[depth]))
        here = largest.found[depth]
        if depth > 0 and bool((here > threshold).any()):
            dimensions = tuple((here > threshold).nonzero().flatten().tolist())
            return _Massive(depth - 1, dimensions, threshold, float(here.max()))
    return None


def _means(model: nn.Module, found: _Massive, texts: Texts) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per dimension, the mean of the massive entries in the donors and that of the others; 0 where there is none."""
    columns: list[Tensor] = []

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        columns.append(hidden[0, :, list(found.dimensions)].double().cpu())

    handle = decoder_blocks(model)[found.layer].register_forward_hook(hook)
    try:
        with torch.no_grad():
            for donor in texts.donors:
                ids = torch.tensor([donor.ids[: texts.longest]], device=compat.input_device(model))
                forward(model, ids, last_only=True)
    finally:
        handle.remove()
    h = torch.cat(columns)
    over = h.abs() > found.threshold

    def mean(chosen: Tensor) -> tuple[float, ...]:
        return tuple((torch.where(chosen, h, 0).sum(0) / chosen.sum(0).clamp_min(1)).tolist())

    return mean(over), mean(~over)
