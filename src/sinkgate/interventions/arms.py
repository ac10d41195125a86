"""The acts by name, each with its matched control, and the constants that transplants put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from sinkgate.hf import compat
from sinkgate.interventions.acts import ConstantGate, Evict, MeanValue, ScalarGate, Transplant
from sinkgate.interventions.constants import Constants, capture
from sinkgate.interventions.probing import probed
from sinkgate.interventions.texts import DONORS, Sample, Texts
from sinkgate.probe.text import Piece

__all__ = ["Arm", "Donors", "acts_at", "transplants"]


TRIES = 100  # draws of random tokens that are not the sample's


@dataclass(frozen=True)
class Arm:
    """An act on each sample, and the same act elsewhere: its control. ``own``: a caller's act."""

    label: str
    act: Callable[[Sample], Any]
    control: Callable[[Sample], Any] | None = None
    own: bool = False


def both(label: str, make: Callable[[Sample, int], Any]) -> Arm:
    """An arm whose control is the same at a random other position."""
    return Arm(label, lambda s: make(s, s.target), lambda s: make(s, s.control))


def acts_at(name: str, burn_in: int, sweep: Sequence[int], donors: Donors) -> list[Arm]:
    """The arms of one named act on the sink."""

    def plain(label: str, kind: Any, burn: int) -> Arm:
        return both(label, lambda _, p: kind((p,), burn))

    if name == "evict":
        swept = [plain(f"evict from query {b}", Evict, b) for b in sweep if b != burn_in]
        return [plain("evict", Evict, burn_in), *swept]
    if name == "start":
        return [plain("masked from the start", Evict, 0)]
    if name == "mean value":
        return mean_values(burn_in, donors)
    if name == "transplant":
        return transplants(burn_in, donors)
    if name == "scalar gate":
        return [plain(name, ScalarGate, burn_in)]
    nothing = both("constant gate, v_s = 0", lambda _, p: ConstantGate((p,), burn_in, write=False))
    return [plain(name, ConstantGate, burn_in), nothing]


def transplants(burn_in: int, donors: Donors) -> list[Arm]:
    """Key and value of another text's first token, of BOS, their mean; and the first token's key with a value of 0."""
    if not donors.texts.first:
        donors.texts.notes.append(
            "Further in, another text's token is no sink: there the mean value of other texts' sinks was put in, and "
            "nothing was transplanted."
        )
        return []

    def arm(label: str, constants: Callable[[Sample, int], Constants]) -> Arm:
        return both(label, lambda s, p: Transplant((p,), burn_in, constants(s, p)))

    arms = [arm("transplant: another text", donors.other)]
    if donors.bos_id is not None and any(s.piece.ids[0] != donors.bos_id for s in donors.texts.samples):
        arms.append(arm("transplant: BOS", donors.bos))
    arms.append(arm("transplant: mean of other texts", lambda _, p: donors.mean(p)))
    if donors.texts.bos:
        donors.texts.notes.append(
            "Every text begins with the same beginning-of-text token; what was transplanted in its place is the first token "
            "of another text without it."
        )
    return [*arms, both("key kept, value 0 from query 1", lambda _, p: ScalarGate((p,), 1))]


def mean_values(burn_in: int, donors: Donors) -> list[Arm]:
    """The sink's value becomes the mean of other texts' sinks; an ordinary one that of other tokens at its position."""
    if donors.texts.bos:
        donors.texts.notes.append("The sink is the same token in every text, so the mean of its value is its own.")
        return []
    sinks = donors.mean(0) if donors.texts.first else donors.sinks_further_in()
    if sinks is None:
        donors.texts.notes.append("No other text has a sink further in, so there was no mean value to put in.")
        return []
    return [
        Arm(
            "mean value",
            lambda s: MeanValue((s.target,), burn_in, sinks),
            lambda s: MeanValue((s.control,), burn_in, donors.mean(s.control)),
        )
    ]


class Donors:
    """Keys and values of texts that are not scored, captured when they are first asked for.

    At a position inside the beginning-of-text prefix a donor stands without it: with it, its token would be the same.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any, texts: Texts, random: np.random.Generator, burn_in: int
    ) -> None:
        self.model, self.texts, self.burn_in = model, texts, burn_in
        self.bos_id: int | None = getattr(tokenizer, "bos_token_id", None)
        self._random = random
        self._kept: dict[Any, Constants] = {}
        if not texts.donors:
            texts.donors = self._random_donors()
            texts.notes.append("There is too little text to take constants from: they come from random tokens.")

    def other(self, sample: Sample, position: int) -> Constants:
        """Of one other text, whose tokens up to the position are not the sample's."""
        start = self.texts.samples.index(sample) % len(self.texts.donors)
        ids = self._reaching(position, start, unlike=sample.piece.ids)[0]
        return self._captured([ids], position)

    def bos(self, _sample: Sample, position: int) -> Constants:
        """Of the beginning-of-text token; at a later position, behind another text's tokens."""
        assert self.bos_id is not None
        return self._captured([[*self._reaching(position)[0][:position], self.bos_id]], position)

    def mean(self, position: int) -> Constants:
        """The mean over other texts at one position."""
        return self._captured(self._reaching(position), position)

    def sinks_further_in(self) -> Constants | None:
        """The mean over the donors' strongest sinks behind the first token; None if they have none."""
        found = {s["id"]: s["sinks"] for s in probed(self.model, self.texts.donors).meta["samples"]}
        texts, positions = [], []
        for donor in self.texts.donors:
            where = [s["position"] for s in found[donor.id] if 0 < s["position"] < self.burn_in]
            if where:
                texts.append(donor.ids)
                positions.append(where[0])
        return capture(self.model, texts, positions) if texts else None

    def _reaching(self, position: int, start: int = 0, unlike: list[int] | None = None) -> list[list[int]]:
        """Other texts with a token at the position, from number ``start`` on; random ones if there are none."""

        def ids(donors: list[Piece]) -> list[list[int]]:
            found = [d.ids[len(self.texts.prefix) :] if position < len(self.texts.prefix) else d.ids for d in donors]
            return [
                x
                for x in found
                if len(x) > position and (unlike is None or x[: position + 1] != unlike[: position + 1])
            ]

        donors = self.texts.donors
        if found := ids(donors[start:] + donors[:start]):
            return found
        note = "Where other texts are too short or begin with the same tokens, constants come from random tokens."
        if note not in self.texts.notes:
            self.texts.notes.append(note)
        return next(found for _ in range(TRIES) if (found := ids(self._random_donors())))

    def _captured(self, texts: list[list[int]], position: int) -> Constants:
        key = (position, *(tuple(ids[: position + 1]) for ids in texts))
        if key not in self._kept:
            self._kept[key] = capture(self.model, texts, position)
        return self._kept[key]

    def _random_donors(self) -> list[Piece]:
        vocabulary = int(compat.config(self.model).get_text_config().vocab_size)
        rows = self._random.integers(0, vocabulary, (DONORS, self.texts.longest)).tolist()
        every = [self.texts.prefix + row for row in rows]
        return [Piece(f"random {i}", "random tokens", ids, ["?"] * len(ids), False) for i, ids in enumerate(every)]
