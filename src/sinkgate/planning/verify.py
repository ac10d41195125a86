"""The chosen setting on text that the search never saw, and what else there is to say of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sinkgate.planning.measure import TOGETHER, Measurer
from sinkgate.planning.promise import CANDIDATES, SPLIT, Mean, ahead, mean_of, needed
from sinkgate.planning.request import Request
from sinkgate.planning.search import Trial
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import Choice, Space
from sinkgate.probe.text import Piece

__all__ = ["Verdict", "compared", "following", "verify"]

WIDER = 1.15  # the next window, where one could not be verified


@dataclass
class Verdict:
    """One candidate on the verification texts.

    Args:
        setting: which.
        nats: loss differences to the model as it is, one per text.
        late: of them, in the last quarter.
        bound: for other texts, nats (:func:`sinkgate.planning.promise.ahead`); None without a tolerance.
        kept: whether the bound is within the tolerance; True without one.
        more: texts with which it would have been, were mean and spread as here; None: no number, or it was.
        looked: texts at each look.
    """

    setting: Setting
    nats: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    bound: float | None = None
    kept: bool = False
    more: int | None = None
    looked: list[int] = field(default_factory=list)

    @property
    def increase(self) -> Mean:
        """Of the perplexity, relative."""
        return mean_of(self.nats).map(math.expm1)


def following(
    failed: Choice, kept: Sequence[Trial], space: Space, tried: int, batch: int = 1, budget: int | None = None
) -> Choice | None:
    """What is verified when a candidate could not be: its window a little longer, or a kept trial that weighs less than that.

    Args:
        failed: the last candidate.
        kept: trials that keep the tolerance on the tuning texts.
        space: what can be chosen.
        tried: how many candidates there were.
        batch: sequences.
        budget: bytes that a longer window keeps to, as every trial does; None: no limit.

    Returns:
        None: there is nothing more to try. The last candidate of all is the trial that was tuned to the least loss.
    """
    if tried >= CANDIDATES:
        return None
    now = space.bytes(failed, batch)
    heavier = [t for t in kept if t.bytes > now]
    if tried == CANDIDATES - 1 and heavier:
        return Choice(**min(heavier, key=lambda t: float(np.mean(t.nats))).choice)
    longer = min(math.ceil(failed.window * WIDER), max(failed.window, space.reach - space.pinned(failed)))
    wider = space.whole(dataclasses.replace(failed, window=longer))
    options = [Choice(**t.choice) for t in heavier]
    if wider.window > failed.window and (budget is None or space.bytes(wider, batch) <= budget):
        options.append(wider)
    return min(options, key=lambda c: space.bytes(c, batch), default=None)


def verify(
    measurer: Measurer,
    setting: Setting,
    pieces: Sequence[Piece],
    request: Request,
    tried: int = 0,
    progress: Any = None,
) -> Verdict:
    """Read texts until it is plain that the tolerance is broken, and decide behind the last.

    Args:
        measurer: of the model.
        setting: the candidate.
        pieces: texts; of the effort's looks those before the last may only give the candidate up.
        request: its tolerance.
        tried: candidates before this one: which share of the 5% is its own.
        progress: called with (texts read, all).
    """
    verdict = Verdict(setting)
    looks = sorted({min(n, len(pieces)) for n in request.much.looks})
    share, tolerance = SPLIT[tried], request.nats
    for look in looks:
        while len(verdict.nats) < look:
            some = pieces[len(verdict.nats) : min(look, len(verdict.nats) + TOGETHER)]
            for whole, parts in measurer.differences(setting, some):
                verdict.nats.append(whole)
                verdict.late.append(parts[-1])
            if progress is not None:
                progress(len(verdict.nats), looks[-1])
        verdict.looked.append(look)
        if tolerance is None:
            continue
        verdict.bound = ahead(verdict.nats, share)
        low = mean_of(verdict.nats).low
        if low is not None and low > tolerance:
            break
    whole_way = verdict.looked[-1] == looks[-1]
    verdict.kept = tolerance is None or (whole_way and verdict.bound is not None and verdict.bound <= tolerance)
    if tolerance is not None and not verdict.kept:
        verdict.more = needed(verdict.nats, tolerance, share)
    return verdict


def compared(measurer: Measurer, setting: Setting, other: Setting, pieces: Sequence[Piece]) -> Mean:
    """Nats that ``setting`` loses more than ``other``, paired over texts: above 0 where the other is better."""
    both = zip(measurer.differences(setting, pieces), measurer.differences(other, pieces), strict=True)
    return mean_of([one[0] - two[0] for one, two in both])
