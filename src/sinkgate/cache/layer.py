"""One layer of a stream: its banks, each for some of the key-value heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.cache.bank import Ask, Bank
from sinkgate.cache.base import Keep
from sinkgate.cache.dynamic_bank import ByHead, ByQuery
from sinkgate.cache.earned_bank import EarnedBank
from sinkgate.cache.quantized_bank import QuantizedBank, ring_slots
from sinkgate.cache.track import Step, Track
from sinkgate.errors import UnsupportedError
from sinkgate.rope import Rotation

__all__ = ["Layer", "Tracks"]


class Tracks:
    """The tracks of a stream, shared by all banks that keep the same tokens.

    Args:
        rows: of the batch.
        slack: tokens beyond ``recent`` that can be cropped.
        device: of the positions.
    """

    def __init__(self, rows: int, slack: int = 0, device: torch.device | str = "cpu") -> None:
        self.rows, self.slack, self.device = rows, slack, device
        self.all: dict[object, Track] = {}

    def of(self, keep: Keep) -> Track:
        """The track of what is kept, made when first asked for."""
        slack = self.slack
        if keep.storage.bits is not None:
            if slack:
                raise UnsupportedError("tokens cannot be taken back from a quantised cache: use rollback=0")
            assert keep.recent is not None
            slack = ring_slots(keep) - keep.recent
        key = (keep.recent, keep.pinned, slack, keep.rule)
        if key not in self.all:
            self.all[key] = Track(keep, self.rows, slack, self.device)
        return self.all[key]


class Layer:
    """The banks of one layer.

    Args:
        keeps: from the policy.
        tracks: of the stream.
        rotation: the layer's, if positions are counted inside the cache.
    """

    def __init__(self, keeps: Sequence[Keep], tracks: Tracks, rotation: Rotation | None) -> None:
        self.banks = [_bank(keep, tracks, rotation) for keep in keeps]

    def attend(self, ask: Ask, step: Step) -> Float[Tensor, "b h c dv"]:
        """Head outputs of the new tokens; the banks hold them afterwards."""
        if len(self.banks) == 1:
            return self.banks[0].attend(ask, step)
        out: Tensor | None = None
        group = ask.q.shape[1] // ask.k.shape[1]
        for bank in self.banks:
            part = bank.attend(ask.of(bank.keep.kv), step)
            if out is None:
                out = part.new_empty(part.shape[0], ask.q.shape[1], *part.shape[2:])
            out[:, [j * group + i for j in bank.keep.kv for i in range(group)]] = part
        assert out is not None
        return out

    def each(self, do: Callable[[Bank], None]) -> None:
        """For every bank."""
        for bank in self.banks:
            do(bank)

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(bank.nbytes for bank in self.banks)


def _bank(keep: Keep, tracks: Tracks, rotation: Rotation | None) -> Bank:
    if keep.rule is not None:
        return (ByHead if keep.rule.rule == "head" else ByQuery)(keep, tracks, rotation)
    if keep.earned:
        return EarnedBank(keep, tracks, rotation)
    if keep.storage.bits is not None:
        return QuantizedBank(keep, tracks.of(keep), rotation)
    return Bank(keep, tracks.of(keep), rotation)
