"""Four tasks with questions at the end of a text, in the manner of RULER (Hsieh et al., arXiv 2404.06654).

Words, sentences and code are our own; texts are made piece by piece (:mod:`sinkgate.evaluate.recall_text`).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.evaluate.recall_text import (
    ADJECTIVES,
    NOUNS,
    Fact,
    Line,
    Question,
    RecallText,
    Writer,
    coded_facts,
    told_apart,
    whole,
)

__all__ = ["Question", "RecallText", "common_words", "multi_key", "single_needle", "variable_tracking"]


def _haystack(
    w: Writer, rng: random.Random, length: int, after: int, placed: Sequence[tuple[float, Fact]]
) -> list[tuple[int, int]]:
    """Filler with facts in it, in order of depth (0 at once, 1 last), leaving ``after`` tokens; where each fact stands."""
    room = length - after - len(w.ids) - sum(len(f.stated) for _, f in placed)
    if room < 0:
        raise ArgumentError(f"length={length} is too short: the facts and the question need {length - room} tokens")
    lines: list[Line] = []
    left = room
    while (line := w.filler(rng, left)) is not None:
        lines.append(line)
        left -= len(line)
    where, written, i = [], 0, 0
    for depth, fact in placed:
        while i < len(lines) and written + len(lines[i]) / 2 <= depth * (room - left):
            w.write(lines[i])
            written += len(lines[i])
            i += 1
        where.append(w.state(fact))
    for line in lines[i:]:
        w.write(line)
    return where


def _start(tokenizer: Any, prefix: Sequence[int], length: int, depth: float) -> Writer:
    whole("length", length, 1)
    if not isinstance(depth, int | float) or not 0 <= depth <= 1:
        raise ArgumentError(f"depth must be from 0 (the text's beginning) to 1 (its end), got {depth!r}")
    return Writer(tokenizer, prefix)


def multi_key(
    tokenizer: Any,
    *,
    length: int,
    depth: float = 0.5,
    keys: int = 4,
    digits: int = 5,
    warm: int = 1,
    seed: int = 0,
    prefix: Sequence[int] = (),
) -> RecallText:
    """One question at the end about one of ``keys`` facts that look alike; the others stand at random depths.

    Args:
        tokenizer: see :class:`Writer`.
        length: tokens of the whole text at most, the prefix and the answer included; the text comes within a line of it.
        depth: where the fact stands, 0 to 1.
        keys: facts in all; guessing among them is right once in ``keys``.
        digits: of a code.
        warm: solved examples at the beginning.
        seed: of everything drawn.
        prefix: ids put first.

    Raises:
        ArgumentError: the length is too short, or a value out of range.
    """
    w = _start(tokenizer, prefix, length, depth)
    whole("keys", keys, 1)
    whole("warm", warm, 0)
    rng = random.Random(seed)
    asked, *others = coded_facts(w, rng, keys + warm, digits)
    w.warm(others[keys - 1 :])
    placed = sorted([(depth, asked)] + [(rng.random(), f) for f in others[: keys - 1]], key=lambda p: p[0])
    where = _haystack(w, rng, length, len(asked.asked), placed)
    i = [f for _, f in placed].index(asked)
    w.ask(asked, where[i], "multikey" if keys > 1 else "single",
          chance=1 / keys, blind=1 / (9 * 10 ** (digits - 1)), latest=i == keys - 1)  # fmt: skip
    return w.done()


def single_needle(tokenizer: Any, *, length: int, depth: float = 0.5, **options: Any) -> RecallText:
    """One fact in filler, asked for at the end: :func:`multi_key` with one key, and the same options.

    Whoever repeats the only code in reach is right (``chance`` is 1): this asks how far a model sees, not whether it
    can choose.
    """
    return multi_key(tokenizer, length=length, depth=depth, keys=1, **options)


def variable_tracking(
    tokenizer: Any,
    *,
    length: int,
    depth: float = 0.0,
    hops: int = 2,
    chains: int = 2,
    digits: int = 5,
    warm: int = 1,
    seed: int = 0,
    prefix: Sequence[int] = (),
) -> RecallText:
    """``meadow = 12345``, later ``harbour = meadow``, …; what is the value of the last name?

    The fact, from which the distance counts, is the line with the value; the links stand behind it at random places, in
    order, and so do the ``chains − 1`` others, whose values are the wrong answers.

    Args:
        tokenizer: see :class:`Writer`.
        length: tokens at most, as in :func:`multi_key`; so are ``digits``, ``seed`` and ``prefix``.
        depth: where the value stands, 0 to 1.
        hops: links behind the value.
        chains: chains in all; guessing among their values is right once in ``chains``.
        warm: solved examples at the beginning, with one link each.

    Raises:
        ArgumentError: the length is too short, or a value out of range.
    """
    w = _start(tokenizer, prefix, length, depth)
    for name, value, least in (("hops", hops, 0), ("chains", chains, 1), ("warm", warm, 0)):
        whole(name, value, least)
    whole("digits", digits, 1, 9)
    rng = random.Random(seed)
    needed, codes = chains * (hops + 1) + 2 * warm, 9 * 10 ** (digits - 1)
    if needed > len(NOUNS) or chains + warm > codes:
        raise ArgumentError(f"{needed} names and {chains + warm} values are needed, there are {len(NOUNS)} and {codes}")
    names = iter(rng.sample(NOUNS, needed))
    values = [str(v) for v in rng.sample(range(codes // 9, 10 * codes // 9), chains + warm)]

    def chain(value: str, links: int) -> list[Fact]:
        mine = [next(names) for _ in range(links + 1)]
        ask = f"Question: what is the value of {mine[-1]}? Answer:"
        first = w.fact(f"Set {mine[0]} =", ask, value)
        tail, none = first.tail, Line("", ())
        return [first, *(Fact(w.line(f"Set {b} ="), w.line(f" {a}"), tail, none, none)
                         for a, b in pairwise(mine))]  # fmt: skip

    solved = [chain(v, 1) for v in values[chains:]]
    all_chains = [chain(v, hops) for v in values[:chains]]
    told_apart([c[0] for c in solved + all_chains])
    for first, link in solved:
        at = w.state(first)
        w.state(link)
        w.ask(first, at, "warm", chance=1.0, blind=0.0, latest=True)
    placed: list[tuple[float, Fact]] = []
    for n, links in enumerate(all_chains):
        start = depth if n == 0 else rng.random()
        depths = [start, *sorted(start + (1 - start) * rng.random() for _ in range(hops))]
        placed += zip(depths, links, strict=True)
    placed.sort(key=lambda p: p[0])
    asked = all_chains[0][0]
    where = _haystack(w, rng, length, len(asked.asked), placed)
    order = [f for _, f in placed]
    i = order.index(asked)
    w.ask(asked, where[i], "variable", chance=1 / chains, blind=1 / codes,
          latest=all(order.index(c[0]) <= i for c in all_chains))  # fmt: skip
    return w.done()


def common_words(
    tokenizer: Any, *, length: int, common: int = 3, seed: int = 0, prefix: Sequence[int] = ()
) -> RecallText:
    """A list of words, and the question which are the most frequent, the most frequent first.

    Each of the ``common`` words is a question (kind ``words``) and is scored in the stated order, which is known: the
    counts fall by one from word to word, and the rarest of them is at least twice as frequent as any other word. For a
    freely written answer, :func:`sinkgate.evaluate.recall.words_found` scores the set. The fact is the whole list: the
    distance counts from its end, and a window shows the fact only if it shows the list.

    Args:
        tokenizer: see :class:`Writer`.
        length: tokens at most, the prefix and the answer included.
        common: words to name, 1 to 10.
        seed: of everything drawn.
        prefix: ids put first.

    Raises:
        ArgumentError: the length is too short for a list in which the order is clear, or a value out of range.
    """
    w = _start(tokenizer, prefix, length, 0.0)
    whole("common", common, 1, 10)
    rng = random.Random(seed)
    words = [w.line(f" {x}") for x in rng.sample(ADJECTIVES + NOUNS, len(ADJECTIVES) + len(NOUNS))]
    if len({x.ids for x in words}) < len(words):
        raise ArgumentError("the tokenizer gives two different words the same tokens; use one that knows them")
    comma, stop, head = w.line(","), w.line(".\n"), w.line("List:")
    ask = w.line(f"Question: which {common} words are the most frequent in the list, in order? Answer:")
    top, rare = words[:common], words[common:]
    fixed = len(w.ids) + len(head) + len(ask) + 2 * len(stop) + sum(len(x) + len(comma) for x in top)

    def listing(others: int) -> list[Line]:
        # the counts fall by one; the common words are a third of the list or more
        least = max(3, others // (2 * common))
        often = [x for i, x in enumerate(top) for _ in range(least + common - 1 - i)]
        return often + [rare[i % len(rare)] for i in range(others)]

    def size(others: int) -> int:
        return fixed + sum(len(x) + len(comma) for x in listing(others))

    if size(1) > length:
        raise ArgumentError(f"length={length} is too short: the list and the question need {size(1)} tokens")
    listed = listing(bisect_right(range(1, length + 1), length, key=size))
    rng.shuffle(listed)
    start = w.write(head)
    for i, word in enumerate(listed):
        w.write(word if i == 0 else comma + word)
    at = (start, len(w.ids))
    w.write(stop)
    w.write(ask)
    different = len({x.text for x in listed})
    for i, word in enumerate(top):
        if i:
            w.write(comma)
        position = w.write(word)
        w.questions.append(
            Question(position, word.ids, position - at[1], "words", at, 1 / (different - i), 1 / (len(words) - i))
        )
    w.write(stop)
    return w.done()
