"""Texts of one length: some to tune on, others to verify on, from different sources where there are several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinkgate.errors import TextError
from sinkgate.probe.text import Piece, Text, default_texts, pieces

__all__ = ["DEFAULT_TEXTS", "Split", "split"]

RUN = 64  # tokens; so many in a row are no coincidence
DEFAULT_TEXTS = 96  # speeches that are looked at when no text is given


@dataclass(frozen=True)
class Split:
    """Pieces, all of one length.

    Args:
        tune: what settings are tuned on.
        verify: what the chosen one is verified on; no source is in both where others hold enough.
        length: tokens of each.
        bos: a sentence about the token in front.
        sources: how many texts they come from.
        wanted: pieces that the effort asks for.
        repeated: pieces that were not verified on, as they repeat what is tuned on.
    """

    tune: tuple[Piece, ...]
    verify: tuple[Piece, ...]
    length: int
    bos: str
    sources: int
    wanted: int
    repeated: int = 0

    @property
    def short(self) -> bool:
        """Whether there was less text than the effort asks for."""
        return len(self.tune) + len(self.verify) < self.wanted

    def to_json(self) -> dict[str, Any]:
        """Which pieces, without their text."""
        parts = {n: [{"id": p.id, "source": p.source, "tokens": len(p.ids)} for p in part]
                 for n, part in (("tune", self.tune), ("verify", self.verify))}  # fmt: skip
        return {**parts, "length": self.length, "bos": self.bos, "sources": self.sources}


def split(
    tokenizer: Any, texts: Iterable[str | Text] | str | None, *, length: int, tune: int, verify: int, least: int, seed: int
) -> Split:  # fmt: skip
    """Cut texts into pieces of ``length`` tokens and deal them out.

    Args:
        tokenizer: of the model.
        texts: None: the demo speeches.
        length: tokens of a piece; what is shorter is left out.
        tune: pieces to tune on.
        verify: pieces to verify on, at most.
        least: to verify on, at least.
        seed: of the choice.

    Raises:
        TextError: there are not enough; says how many tokens are.
    """
    given = default_texts(DEFAULT_TEXTS) if texts is None else [texts] if isinstance(texts, str | Text) else list(texts)
    rng = np.random.default_rng(seed)
    named = [t if isinstance(t, Text) else Text(f"text {i}", t) for i, t in enumerate(given)]
    given = [named[i] for i in rng.permutation(len(named))]  # not the first ones of a list that has an order
    wanted = tune + verify
    few = len(given) < 2 * wanted
    samples = 4 * wanted if few else 2 * wanted
    while True:
        found, bos = pieces(tokenizer, given, tokens=length, samples=samples)
        whole = [p for p in found if len(p.ids) == length]
        if len(whole) >= wanted or len(found) < samples:
            break
        samples *= 2  # what is too short took the places of what is not
    if len(whole) < tune + least:
        longest = max(len(p.ids) for p in found)
        have = f"there are {len(whole)}" + (f", the longest has {longest}" if longest < length else "")
        raise TextError(
            f"the text is too short: a plan needs {tune + least} pieces of {length} tokens, {(tune + least) * length:,} tokens "
            f"in all ({have}); give more text, or a smaller context"
        )
    sources: dict[str, list[Piece]] = {}
    for piece in whole:
        sources.setdefault(piece.source.rsplit("[", 1)[0], []).append(piece)
    names = [sorted(sources)[i] for i in rng.permutation(len(sources))]
    first: list[Piece] = []
    rest: list[Piece] = []
    if len(names) > 1:  # one piece of each source in turn; the sources of the first pieces are not read again
        queue = _tuned(names, sources, tune, verify, least)
        front = list(queue)
        while queue and len(first) < tune:
            first.append(sources[queue.pop(0)][0])
        while len(first) < tune:  # fewer sources than pieces: more of the same
            extra = [p for name in front for p in sources[name] if p not in first]
            if not extra:
                break
            first.append(extra[0])
        used = {p.source.rsplit("[", 1)[0] for p in first}
        depth = 0
        others = [name for name in names if name not in used]
        while len(rest) < verify and any(len(sources[name]) > depth for name in others):
            rest += [sources[name][depth] for name in others if len(sources[name]) > depth]
            depth += 1
    if len(first) < tune or len(rest) < least:  # one text, or few: a stretch for each
        first, rest = whole[:tune], whole[tune:]
    first = first[:tune]
    apart = [p for p in rest if not _shared(first, p)]
    if len(apart) < least:
        raise TextError(
            f"{len(rest) - len(apart)} of {len(rest)} pieces to verify on repeat {RUN} tokens or more of those that are tuned on, which "
            f"leaves {len(apart)} and {least} are needed: give texts that are not parts of one another"
        )
    return Split(tuple(first), tuple(apart[:verify]), length, bos, len(sources), wanted, len(rest) - len(apart))


def _shared(tuned: list[Piece], piece: Piece) -> bool:
    """Whether a piece repeats a run of tokens of the others: the same book under two names, a page quoted in another."""
    runs = {tuple(p.ids[i : i + RUN]) for p in tuned for i in range(len(p.ids) - RUN + 1)}
    return any(tuple(piece.ids[i : i + RUN]) in runs for i in range(len(piece.ids) - RUN + 1))


def _tuned(names: list[str], sources: dict[str, list[Piece]], tune: int, verify: int, least: int) -> list[str]:
    """Sources to tune on: as many as leave enough pieces of others to verify on, and hold enough themselves."""
    for wanted in (verify, least):
        for n in range(min(tune, len(names) - 1), 0, -1):
            held, left = (sum(len(sources[name]) for name in part) for part in (names[:n], names[n:]))
            if held >= tune and left >= wanted:
                return names[:n]
    return names[: max(1, len(names) // 2)]
