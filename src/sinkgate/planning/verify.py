"""The chosen setting on text that the search never saw, and what else there is to say of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sinkgate.planning.measure import Measurer
from sinkgate.planning.promise import SPLIT, Mean, ahead, mean_of, needed
from sinkgate.planning.request import Request
from sinkgate.planning.search import Search, Trial
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import Choice, Space
from sinkgate.probe.text import Piece

__all__ = ["HEAVIER", "LIGHTER", "Verdict", "compared", "following", "in_order", "lighter", "verify"]

LIGHTER = 1  # settings that may be tried where the search's own passes with room
SAVES = 0.95  # of the bytes: a lighter setting that keeps more is not worth its texts
HEAVIER = 2  # settings that may be tried where the search's own does not pass
WIDER = 1.25  # the next window, up or down
ROOM = 0.8  # of the tolerance: a bound below leaves room for a lighter setting
HOPE = 0.5  # standard deviations that a mean before the last look has to stay below the tolerance
PLAIN = 4.0  # standard errors at which a difference needs no more texts


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


def in_order(
    it: Search, kept: Sequence[Trial], read: Callable[[Setting, float], Verdict]
) -> tuple[list[Verdict], Verdict | None]:
    """The search's own setting and lighter ones while they pass, or else heavier ones.

    Args:
        it: the search.
        kept: its trials that keep the tolerance on the tuning texts, the best first.
        read: verifies a setting with a share of the 5%.

    Returns:
        Every candidate's verdict, and the last that passed.
    """
    verdicts: list[Verdict] = []

    def passes(choice: Choice, share: float) -> bool:
        verdicts.append(read(it.space.setting(choice), share))
        return verdicts[-1].kept

    choice: Choice | None = Choice(**kept[0].choice)
    assert choice is not None
    if passes(choice, SPLIT[0]):
        for _ in range(LIGHTER):
            choice = lighter(choice, verdicts[-1], it.trials, it.space, it.request)
            if choice is None or not passes(choice, SPLIT[0]):
                break
    else:
        for tried, share in enumerate(SPLIT[1 : 1 + HEAVIER]):
            choice = following(choice, kept, it.space, tried, it.request.batch, it.request.budget)
            if choice is None or passes(choice, share):
                break
    return verdicts, next((v for v in reversed(verdicts) if v.kept), None)


def following(
    failed: Choice, kept: Sequence[Trial], space: Space, tried: int, batch: int = 1, budget: int | None = None
) -> Choice | None:
    """What is verified when a candidate could not be: its window longer, or a kept trial that weighs as little as that.

    Args:
        failed: the last candidate.
        kept: trials that keep the tolerance on the tuning texts.
        space: what can be chosen.
        tried: how many heavier ones there were already.
        batch: sequences.
        budget: bytes that a longer window keeps to, as every trial does; None: no limit.

    Returns:
        None: there is nothing more to try. The last of all is the trial that was tuned to the least loss.
    """
    if tried >= HEAVIER:
        return None
    now = space.bytes(failed, batch)
    heavier = [t for t in kept if t.bytes > now]
    if tried == HEAVIER - 1 and heavier:
        return Choice(**min(heavier, key=lambda t: float(np.mean(t.nats))).choice)
    longer = min(math.ceil(failed.window * WIDER), max(failed.window, space.reach - space.pinned(failed)))
    wider = space.whole(dataclasses.replace(failed, window=longer))
    options = [Choice(**t.choice) for t in heavier]
    if wider.window > failed.window and (budget is None or space.bytes(wider, batch) <= budget):
        enough = space.bytes(wider, batch)
        options = [c for c in options if space.bytes(c, batch) >= enough] + [wider]
    return min(options, key=lambda c: space.bytes(c, batch), default=None)


def lighter(passed: Choice, verdict: Verdict, trials: Sequence[Trial], space: Space, request: Request) -> Choice | None:
    """What is verified when a candidate passed with room to spare: its window shorter.

    The order is fixed before a text of the verification is read, and goes on only while each passes.

    Returns:
        None: there is no room, nothing that saves enough, or the tuning texts have shown that it breaks the tolerance.
    """
    tolerance = request.nats
    if tolerance is None or request.aim == "quality" or verdict.bound is None or verdict.bound > ROOM * tolerance:
        return None
    shorter = space.whole(dataclasses.replace(passed, window=max(1, math.floor(passed.window / WIDER))))
    if shorter.window >= passed.window or shorter.window < (2 if passed.spread == "heavy" else 1):
        return None
    if space.bytes(shorter, request.batch) > SAVES * space.bytes(passed, request.batch):
        return None
    broken = (t for t in trials if t.state == "refuted" and float(np.mean(t.nats)) > tolerance)
    return None if any(shorter.keeps_less(Choice(**t.choice)) for t in broken) else shorter


def verify(
    measurer: Measurer,
    setting: Setting,
    pieces: Sequence[Piece],
    request: Request,
    share: float = 1.0,
    progress: Any = None,
) -> Verdict:
    """Read texts until there is no hope, and decide behind the last.

    Args:
        measurer: of the model.
        setting: the candidate.
        pieces: texts; of the effort's looks those before the last may only give the candidate up.
        request: its tolerance.
        share: of the 5%.
        progress: called with (texts read, all).
    """
    verdict = Verdict(setting)
    looks = sorted({min(n, len(pieces)) for n in request.much.looks})
    tolerance = request.nats
    for look in looks:
        while len(verdict.nats) < look:
            whole, parts = measurer.difference(setting, pieces[len(verdict.nats)])
            verdict.nats.append(whole)
            verdict.late.append(parts[-1])
            if progress is not None:
                progress(len(verdict.nats), looks[-1])
        verdict.looked.append(look)
        if tolerance is None:
            continue
        verdict.bound = ahead(verdict.nats, share)
        found = mean_of(verdict.nats)
        if found.mean + HOPE * (found.sd or 0.0) > tolerance:
            break
    whole_way = verdict.looked[-1] == looks[-1]
    verdict.kept = tolerance is None or (whole_way and verdict.bound is not None and verdict.bound <= tolerance)
    if tolerance is not None and not verdict.kept:
        verdict.more = needed(verdict.nats, tolerance, share)
    return verdict


def compared(measurer: Measurer, setting: Setting, other: Setting, pieces: Sequence[Piece], at_once: int = 4) -> Mean:
    """Nats that ``setting`` loses more than ``other``, paired over texts: above 0 where the other is better.

    It is looked at every ``at_once`` texts, and no more are read where they leave no doubt.
    """
    found: list[float] = []
    for i in range(0, len(pieces), at_once):
        for piece in pieces[i : i + at_once]:
            found.append(measurer.difference(setting, piece)[0] - measurer.difference(other, piece)[0])
        result = mean_of(found)
        if result.sd is not None and abs(result.mean) > PLAIN * result.sd / math.sqrt(result.n):
            break
    return result
