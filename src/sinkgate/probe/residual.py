"""The residual stream between layers: massive activations, norms, kurtosis, and who looks like the first token."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkgate.schema import FLOAT_BINS

__all__ = ["LIKE_FIRST", "StreamStats", "read_stream"]

LIKE_FIRST = 0.9  # the secondary-sink rule: |cos(h_t, h_first)| over this …
LIKE_LAYERS = 4  # … in more than this many layers


class StreamStats(dict[str, Any]):
    """moments [5], first, rest, histogram [FLOAT_BINS], like_first [t] bool, top: list of the largest entries."""


def read_stream(hidden: Float[Tensor, "t D"], real: Bool[Tensor, " t"] | None = None, *, top: int = 5) -> StreamStats:
    """One sample's hidden states at one depth, in one pass each; peak: three copies of ``hidden``.

    Padding is dropped first. ``top`` dimensions with the largest ``|h|`` give one entry each.
    """
    h = (hidden if real is None else hidden[real]).float()
    squares = h * h
    per_token = squares.sum(-1)
    moments = torch.stack(
        [
            torch.tensor(float(h.numel()), dtype=torch.float64, device=h.device),
            h.sum(-1).double().sum(),
            per_token.double().sum(),
            (squares * h).sum(-1).double().sum(),
            squares.square().sum(-1).double().sum(),
        ]
    )
    norms = per_token.double().sqrt()
    # sixteen bins an octave straight from the float's bits: exponent and four bits of mantissa
    bits = (h.abs().view(torch.int32) >> 19) - ((127 - 64) << 4)
    histogram = torch.bincount(bits.clamp(0, FLOAT_BINS - 1).flatten(), minlength=FLOAT_BINS)
    largest, token = h.abs().max(dim=0)
    _, dimensions = largest.topk(min(top, h.shape[-1]))
    cosine = (h @ h[0]).double() / (norms * norms[0]).clamp_min(1e-30)
    return StreamStats(
        moments=moments.cpu().numpy(),
        first=float(norms[0]),
        rest=float(norms[1:].mean()) if len(norms) > 1 else float("nan"),
        histogram=histogram.cpu().numpy(),
        like_first=(cosine.abs() > LIKE_FIRST).cpu().numpy(),
        top=[
            {"value": float(h[token[d], d]), "dimension": int(d), "position": int(token[d])}
            for d in dimensions.tolist()
        ],
    )
