"""What attention and the residual stream of a lab model do on a fixed batch: the sink measures, each with its null.

The definitions are those of :class:`~sinkgate.record.Diagnosis`; here they hold for every weighting, also where weights
do not sum to one, since the lab knows the weighting and a reading of a foreign model does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinkgate.errors import NonFiniteError
from sinkgate.lab.decoder import Decoder
from sinkgate.masks import Visibility
from sinkgate.nn import Seen
from sinkgate.site import OutputMap

__all__ = ["Reading", "band", "read", "watch"]

EPS = 0.3  # a head over this on one key is a sink head (Gu et al., ICLR 2025)
LEAST_QUERIES = 32  # a key that fewer see is no evidence
CLOSED = 0.1  # a gate under this is called closed
DEAD = 0.01  # a head that writes less than this share of its layer's mean is called dead
ROWS = 256  # queries at a time


@dataclass
class Reading:
    """Sums over a batch.

    Args (all float64; L layers, H heads):
        first: mean weight on the first key over the queries that see it, ``[L, H]``.
        null: the same for uniform attention of mass one, ``[L, H]``.
        first_share: the same of the share ``a / Σa`` of each row, over rows whose mass is not 0, ``[L, H]``.
        top: the largest α of any key that 32 queries see, ``[L, H]`` (NaN: none is seen by so many); ``top_key`` where.
        top_key: see there.
        mass: mean Σ of the weights, ``[L, H]``.
        entropy: mean entropy of the shares in nats, ``[L, H]``.
        written: mean ``‖W_O^h o_h‖``, ``[L, H]``.
        gate: mean of the gate, ``[L]``, NaN without.
        closed: share of gate values under 0.1, ``[L]``.
        largest: largest |h| of the residual stream before each layer and after the last, ``[L + 1]``.
        kurtosis: of all its entries (normal: 3), ``[L + 1]``.
    """

    first: Tensor
    null: Tensor
    first_share: Tensor
    top: Tensor
    top_key: Tensor
    mass: Tensor
    entropy: Tensor
    written: Tensor
    gate: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    kurtosis: list[float] = field(default_factory=list)

    def found(self, *, layers: bool = False) -> dict[str, Any]:
        """Plain numbers: over all layers, and the first key's mass of each layer; with ``layers`` lists instead, and more."""
        share = self.written / self.written.mean(1, keepdim=True).clamp_min(1e-30)
        gated = [x for x in self.gate if not math.isnan(x)]
        closed = [x for x in self.closed if not math.isnan(x)]
        numbers: dict[str, Any] = {
            "first_mass": float(self.first.mean()),
            "first_null": float(self.null.mean()),
            "first_share": float(self.first_share.nanmean()),
            "strongest_head": float(self.first.max()),
            "sink_rate": float((self.first > EPS).double().mean()),
            "any_sink_rate": math.nan if bool(self.top.isnan().any()) else float((self.top > EPS).double().mean()),
            "strongest_key": float(self.top.max()),
            "mass": float(self.mass.mean()),
            "entropy": float(self.entropy.mean()),
            "dead_heads": float((share < DEAD).double().mean()),
            "max_activation": max(self.largest),
            "kurtosis": max(self.kurtosis),
            "gate_mean": sum(gated) / len(gated) if gated else math.nan,
            "gate_closed": sum(closed) / len(closed) if closed else math.nan,
        }
        if layers:
            numbers |= {
                "first_mass_by_layer": self.first.mean(1).tolist(),
                "strongest_head_by_layer": self.first.amax(1).tolist(),
                "first_mass_by_head": self.first.tolist(),
                "max_activation_by_layer": self.largest,
                "kurtosis_by_layer": self.kurtosis,
                "gate_mean_by_layer": self.gate,
            }
        else:  # what a log can hold
            numbers |= {f"first_mass_layer_{i}": float(x) for i, x in enumerate(self.first.mean(1))}
        return numbers


@torch.no_grad()
def read(model: Decoder, ids: Int[Tensor, "b t"], *, autocast: torch.dtype | None = None) -> Reading:
    """Run the model on a batch and reduce what is seen, one layer and at most 256 queries of one row at a time.

    Args:
        model: of any arm; left as it was. Sink tokens count as the first keys.
        ids: tokens.
        autocast: as in training; None: in the parameters' dtype.

    Raises:
        NonFiniteError: NaN or infinity in a layer.
    """
    layers: dict[int, dict[str, Any]] = {}
    streams: list[tuple[float, float]] = []
    cast = torch.autocast(ids.device.type, autocast or torch.bfloat16, enabled=autocast is not None)
    with model.watched(lambda i, seen: layers.__setitem__(i, _layer(seen, i))), cast:
        model.hidden(ids, lambda x: streams.append(_stream(x)))
    stack = {n: torch.stack([layers[i][n] for i in sorted(layers)]) for n in layers[0] if n not in ("gate", "closed")}
    return Reading(
        **stack, gate=[layers[i]["gate"] for i in sorted(layers)], closed=[layers[i]["closed"] for i in sorted(layers)],
        largest=[a for a, _ in streams], kurtosis=[k for _, k in streams],
    )  # fmt: skip


def watch(model: Decoder, ids: Int[Tensor, "b t"], *, autocast: torch.dtype | None = None, layers: bool = False) -> Any:
    """:func:`read`, as plain numbers."""
    return read(model, ids, autocast=autocast).found(layers=layers)


def _stream(x: Float[Tensor, "b t D"]) -> tuple[float, float]:
    x = x.double().flatten()
    centred = x - x.mean()
    variance = centred.square().mean()
    return float(x.abs().max()), float(centred.pow(4).mean() / variance.square().clamp_min(1e-300))


def _layer(seen: Seen, index: int) -> dict[str, Any]:
    with torch.autocast(seen.q.device.type, enabled=False):  # which would round the scores to half precision again
        return _reduced(seen, index)


def _reduced(seen: Seen, index: int) -> dict[str, Any]:
    layer = seen.module
    b, heads, t, d = seen.q.shape
    s = seen.k.shape[2]
    group = heads // seen.k.shape[1]
    weighting = layer.weighting
    visibility = Visibility(
        t, s, mask=None if layer.window is None else band(t, s, layer.window, layer.keep_first), device=seen.q.device
    )
    wide = torch.float32 if seen.q.dtype in (torch.float16, torch.bfloat16) else seen.q.dtype
    zeros = lambda *shape: torch.zeros(*shape, dtype=torch.float64, device=seen.q.device)  # noqa: E731
    columns, first, shares, rows_with = zeros(heads, s), zeros(heads), zeros(heads), zeros(heads)
    mass, entropy = zeros(heads), zeros(heads)
    for row in range(b):
        k = seen.k[row].to(wide).repeat_interleave(group, 0)
        for i0 in range(0, t, ROWS):
            i1 = min(i0 + ROWS, t)
            scores = (seen.q[row, :, i0:i1].to(wide) @ k.transpose(-1, -2))[None] * d**-0.5
            visible = visibility.visible(i0, i1, 0, s)
            weights = weighting.for_rows(i0, i1, t).weights(scores, visible)[0].double()
            total = weights.sum(-1)
            if not bool(torch.isfinite(total).all()):
                raise NonFiniteError(f"NaN or infinity in the attention weights of layer {index}")
            columns += weights.sum(1)
            mass += total.sum(1)
            share = weights / total.clamp_min(1e-30)[..., None]
            some = (total > 0) & visible[0, :, :, 0]
            shares += (share[..., 0] * some).sum(1)
            rows_with += some.sum(1)
            entropy += -torch.special.xlogy(share, share.clamp_min(1e-300)).sum((1, 2))
            first += weights[..., 0].sum(1)
    counts, nulls = visibility.columns  # per key: queries that see it, Σ 1/n over them
    counts, nulls = counts[0, 0].double(), nulls[0, 0].double()
    alpha = columns / (b * counts)
    enough = counts >= min(LEAST_QUERIES, t)
    top = alpha.masked_fill(~enough, -1.0).max(-1)
    gram = OutputMap.from_weight(layer.o_proj.weight.T, heads)
    gate = None if seen.gate is None else seen.gate.double()
    return {
        "first": first / (b * counts[0]), "null": (nulls[0] / counts[0]).expand(heads).clone(),
        "first_share": shares / rows_with, "top": top.values if bool(enough.any()) else top.values * math.nan, "top_key": top.indices,
        "mass": mass / (b * t), "entropy": entropy / (b * t),
        "written": gram.length(seen.heads).double().mean((0, 2)),
        "gate": math.nan if gate is None else float(gate.mean()),
        "closed": math.nan if gate is None else float((gate < CLOSED).double().mean()),
    }  # fmt: skip


def band(t: int, s: int, window: int | None, keep: int) -> Bool[Tensor, "1 1 t s"]:
    """Which keys t queries see, the last at the last key: causal, the window's last ones, the first ``keep``."""
    back = torch.arange(s - t, s)[:, None] - torch.arange(s)
    seen = back >= 0
    if window is not None:
        seen &= (back < window) | (torch.arange(s) < keep)
    return seen[None, None]
