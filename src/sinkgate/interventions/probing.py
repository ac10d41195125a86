"""A probe on exactly the tokens that are acted on: where each text's sinks stand, in the model as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import trace
from sinkgate.hf.reading import Reader, Watcher
from sinkgate.probe.diagnose import TRACE_TOKENS, _run, layer_entries
from sinkgate.probe.probe import Probe
from sinkgate.probe.text import Piece
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings
from sinkgate.site import Site

__all__ = ["probed"]


def probed(
    model: nn.Module, pieces: Sequence[Piece], *, threshold: float = 0.3, also: Watcher | None = None
) -> Diagnosis:
    """The full record of these pieces, one pass each; ``also`` is shown the same sites and hidden states.

    Raises:
        UnsupportedError: no layer can be measured; says what was looked for.
        ArgumentError: a piece is longer than the model's positions.
        NonFiniteError: NaN or infinity; names layer and head.
    """
    where = compat.input_device(model)
    if where.type == "mps":
        raise UnsupportedError("mps has no float64, which the sums of a record need; use device='cpu'")
    longest = max(pieces, key=lambda piece: len(piece.ids))
    probe = Probe(Settings("full", threshold, tokens=len(longest.ids)))
    try:
        anatomy = trace(model, torch.tensor([longest.ids[:TRACE_TOKENS]], device=where))
        reader = Reader(anatomy, probe if also is None else _Both(probe, also))
        with reader.open():
            _run(reader, probe, list(pieces), 1, where)
    except IndexError as err:
        limit = getattr(compat.config(model), "max_position_embeddings", None)
        raise ArgumentError(
            f"the model cannot take {len(longest.ids)} tokens (it has {limit} positions); use fewer tokens"
        ) from err
    return probe.finish(model={"name": type(model).__name__}, layers=layer_entries(anatomy))


class _Both:
    """Two watchers of one reading."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def site(self, site: Site) -> None:
        for watcher in self.watchers:
            watcher.site(site)

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        for watcher in self.watchers:
            watcher.stream(depth, hidden, real)
