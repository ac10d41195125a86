"""What an intervention is measured on: texts to score, others that give constants, each text's sink and its control."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkgate.errors import ArgumentError, TextError
from sinkgate.probe.text import Piece, Text, bos_prefix, default_texts, pieces
from sinkgate.record import Diagnosis

__all__ = ["DONORS", "Sample", "Texts", "check_position", "place", "read_pairs", "read_texts"]

DONORS = 4  # texts that constants are taken from; nothing is scored on them


@dataclass(eq=False)
class Sample:
    """One text, where its sink stands, and a random other position."""

    piece: Piece
    ids: Tensor
    target: int = 0
    control: int = 1
    corrupted: Tensor | None = None


@dataclass(eq=False)
class Texts:
    """Samples and donors; every one begins with ``prefix``, the tokenizer's beginning-of-text tokens.

    Args:
        samples: what is scored.
        donors: what constants are taken from, never scored.
        prefix: ids that were put first.
        sentence: about the prefix, for the page.
        notes: what a reader has to know.
    """

    samples: list[Sample]
    donors: list[Piece]
    prefix: list[int]
    sentence: str
    notes: list[str] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """Tokens of the longest sample."""
        return max(len(s.ids) for s in self.samples)

    @property
    def first(self) -> bool:
        """Whether it is the first token of every text that is acted on."""
        return all(s.target == 0 for s in self.samples)

    @property
    def bos(self) -> bool:
        """Whether what is acted on is the same beginning-of-text token in every text: a constant already."""
        return self.first and bool(self.prefix)

    def target(self) -> str:
        """The sink in words."""
        where = {s.target for s in self.samples}
        if where == {0}:
            return "the first token"
        if len(where) == 1:
            return f"the token at position {where.pop()}"
        return "each text's sink further in" if 0 not in where else "each text's strongest sink"


def read_texts(
    tokenizer: Any, texts: Iterable[str | Text] | str | None, *, tokens: int, samples: int, bos: str, start: int
) -> Texts:
    """Cut texts into pieces: the first ``samples`` are scored from position ``start`` on, the next give constants.

    Raises:
        TextError: nothing is long enough.
    """
    given = list(default_texts()) if texts is None else [texts] if isinstance(texts, str | Text) else list(texts)
    prefix, _ = bos_prefix(tokenizer, bos)
    parts, sentence = pieces(tokenizer, given, tokens=tokens, samples=samples + DONORS, bos=bos)
    long = [p for p in parts if len(p.ids) >= start + 2]
    if not long:
        raise TextError(
            f"no text is long enough: {start + 2} tokens are needed to score behind a burn-in of {start}; give longer text "
            "or a smaller burn-in"
        )
    scored, donors = long[:samples], long[samples:]
    if not donors and len(scored) > 2:  # too little text for both: a third of it gives the constants
        keep = len(scored) - max(1, len(scored) // 3)
        scored, donors = scored[:keep], scored[keep:]
    found = Texts([Sample(p, torch.tensor(p.ids)) for p in scored], donors, prefix, sentence)
    if len(long) < len(parts):
        found.notes.append(f"{len(parts) - len(long)} pieces of fewer than {start + 2} tokens were left out.")
    if len(scored) < samples:
        found.notes.append(f"There is text for {len(scored)} samples and {len(donors)} others, not for {samples}.")
    return found


def read_pairs(tokenizer: Any, pairs: Iterable[Sequence[str]], *, bos: str, start: int) -> Texts:
    """Clean prompts to score, each with its corrupted one; the corrupted ones give constants.

    Raises:
        TextError: no pairs, not two strings, or a prompt that is too short.
    """
    prefix, sentence = bos_prefix(tokenizer, bos)
    samples, donors = [], []
    for i, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
            raise TextError(f"pairs must be (clean, corrupted) prompts, two strings each; pair {i} is {pair!r}")
        clean, corrupted = (
            Piece(f"pair {i} {which}", f"pair {i}", ids, [tokenizer.decode([x]) for x in ids], bool(prefix))
            for which, ids in (
                (which, prefix + [int(x) for x in tokenizer(prompt, add_special_tokens=False)["input_ids"]])
                for which, prompt in zip(("clean", "corrupted"), pair, strict=True)
            )
        )
        if len(clean.ids) < start + 2 or not corrupted.ids:
            raise TextError(
                f"pair {i} has a clean prompt of {len(clean.ids)} tokens and a corrupted one of {len(corrupted.ids)}; "
                f"at least {start + 2} and 1 are needed behind a burn-in of {start}"
            )
        samples.append(Sample(clean, torch.tensor(clean.ids), corrupted=torch.tensor(corrupted.ids)))
        donors.append(corrupted)
    if not samples:
        raise TextError("pairs is empty; give at least one (clean, corrupted)")
    return Texts(samples, donors, prefix, sentence)


def place(texts: Texts, diagnosis: Diagnosis, position: int | str, burn_in: int, random: np.random.Generator) -> None:
    """Give each sample its sink and its control, both under the burn-in, so that all scored queries are concerned.

    Args:
        texts: gets targets, controls and notes; loses samples without a sink further in, where that is asked for.
        diagnosis: of exactly the samples.
        position: ``auto``: the first token, or each text's strongest sink if that is another one in most of them;
            ``further``: the strongest but the first token; or a position.
        burn_in: keys from here on are not acted on.
        random: of the controls.

    Raises:
        TextError: no text has a sink further in.
    """
    sinks = {s["id"]: [x["position"] for x in s["sinks"]] for s in diagnosis.meta["samples"]}  # strongest first
    chosen = {i: [p for p in here if p < burn_in and (p or position != "further")] for i, here in sinks.items()}
    note, n = texts.notes.append, len(texts.samples)
    if position == "further":
        texts.samples = [s for s in texts.samples if chosen[s.piece.id]]
        if not texts.samples:
            raise TextError(f"no text has a sink further in than its first token under the burn-in of {burn_in}")
        if len(texts.samples) < n:
            note(f"{n - len(texts.samples)} of {n} texts have no sink further in under the burn-in and were left out.")
    if position == "auto":
        others = sum(chosen[s.piece.id][:1] not in ([], [0]) for s in texts.samples)
        nowhere = sum(not chosen[s.piece.id] for s in texts.samples)
        behind = any(sinks[s.piece.id] and not chosen[s.piece.id] for s in texts.samples)
        first = 2 * others <= n
        if nowhere:
            note(
                f"In {nowhere} of {n} texts no position under the burn-in is over the sink threshold in any head; the first "
                "token was acted on there." + (" A sink stands behind the burn-in: raise it." if behind else "")
            )
        if others and first:
            note(
                f"In {others} of {n} texts another position is the stronger sink; the first token was acted on in all."
            )
    for sample in texts.samples:
        strongest = chosen[sample.piece.id][:1] or [0]
        sample.target = position if isinstance(position, int) else 0 if position == "auto" and first else strongest[0]
    _controls(texts, sinks, burn_in, random)


def _controls(texts: Texts, sinks: dict[str, list[int]], burn_in: int, random: np.random.Generator) -> None:
    """A random position of each text that is neither its target, nor a sink, nor the first token."""
    loose, crowded, n = 0, 0, len(texts.samples)
    for sample in texts.samples:
        taken = {0, sample.target, *sinks[sample.piece.id]}
        early = [p for p in range(burn_in) if p not in taken]
        free = early or [p for p in range(len(sample.ids) - 1) if p not in taken]
        loose += not early and bool(free)
        crowded += not free
        free = free or [p for p in range(len(sample.ids) - 1) if p != sample.target]
        sample.control = int(random.choice(free))
    if crowded:
        texts.notes.append(f"In {crowded} of {n} texts every position is a sink, so the control is one too.")
    if loose:
        texts.notes.append(
            f"In {loose} of {n} texts the burn-in leaves no room for a control: it stands anywhere before the last token, "
            "and concerns the queries behind it."
        )


def check_position(position: int | str, burn_in: int) -> None:
    """Refuse a position that cannot be acted on for every scored query.

    Raises:
        ArgumentError: it is none, or it does not lie under the burn-in.
    """
    if isinstance(position, str) and position not in ("auto", "further"):
        raise ArgumentError(f"position must be 'auto', 'further' or a number, got {position!r}")
    if isinstance(position, int) and not 0 <= position < burn_in:
        raise ArgumentError(
            f"position must lie under the burn-in of {burn_in}, so that all scored queries are concerned; got {position} "
            f"(burn_in={max(position, 0) + 1} would do)"
        )
