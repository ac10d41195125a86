"""Recall along a stream: a text of any length with questions about what was said some tokens back, and its score.

The StreamEval test of StreamingLLM (Xiao et al., arXiv 2309.17453), made again, since it was never released, with
three things said that a number needs: the distance of every question, what guessing gets, and the interval. It knows
no model: :func:`stream_recall` makes the text, the caller runs a model over ``text.ids`` and hands in what it
predicted, :func:`score` counts. Tasks with one question at the end are in :mod:`sinkgate.evaluate.needles`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.evaluate.recall_score import Bin, Outcome, RecallResult, score, wilson, words_found
from sinkgate.evaluate.recall_text import Fact, Question, RecallText, Writer, coded_facts, whole

__all__ = [
    "Bin", "Outcome", "Question", "RecallResult", "RecallText", "distance_grid", "score", "stream_recall", "wilson",
    "words_found",
]  # fmt: skip

NEAREST = 16  # the shortest distance of a grid, tokens
AHEAD = 32  # facts tried for a place in the schedule


def distance_grid(window: int, per_octave: int = 1) -> tuple[int, ...]:
    """Distances from 16 tokens to four windows, evenly on a log scale.

    Raises:
        ArgumentError: the window is not a whole number of at least 1, or ``per_octave`` is not.

    >>> distance_grid(256)
    (16, 32, 64, 128, 256, 512, 1024)
    """
    whole("window", window, 1)
    whole("per_octave", per_octave, 1)
    last = 4 * window
    first = min(NEAREST, last)
    n = max(1, round(per_octave * math.log2(last / first)))
    return tuple(sorted({round(first * (last / first) ** (i / n)) for i in range(n + 1)}))


@dataclass(frozen=True, order=True)
class _Due:
    """A question whose place is kept: tokens ``start`` to ``end``."""

    start: int
    end: int
    fact: Fact = dataclasses.field(compare=False)
    at: tuple[int, int] = dataclasses.field(compare=False)
    aim: int = dataclasses.field(compare=False)


def stream_recall(
    tokenizer: Any,
    *,
    window: int | None = None,
    distances: Sequence[int] | None = None,
    per_distance: int = 20,
    length: int | None = None,
    filler: float = 1.0,
    decoys: int = 9,
    digits: int = 5,
    warm: int = 2,
    seed: int = 0,
    prefix: Sequence[int] = (),
) -> RecallText:
    """A stream of filler, facts ("The code of the blue harbour is 52917.") and questions about them.

    Every fact has its own key and its own code. A question's answer follows it in the text, so that the stream goes on
    alike whatever a model says; a fact is therefore asked for once and never again. The first ``decoys`` facts are never
    asked for: guessing among the codes that no question has used is right at most once in ``decoys + 1``.

    The schedule: each fact has a time at which it may be stated, drawn evenly over the stream. It is stated at the
    first line from then on at which the place of its question, the aimed distance further, is still free, and that
    place is then kept. Filler lines fill up to it; what they leave is less than the shortest line, so a question comes
    early by that and never late, except where the aim is shorter than the question itself, which then follows its fact
    at once. ``Question.distance`` is what came out.

    Args:
        tokenizer: ``encode(text, add_special_tokens=False)``, or a function from a text to ids.
        window: tokens that a cache keeps; only used for ``distances``, when they are not given.
        distances: tokens to aim at from the fact's last to the answer's first; :func:`distance_grid` of the window if
            None.
        per_distance: questions for each of them.
        length: tokens of the stream at most, prefix included, filled up to a line; None: as many as it takes.
        filler: tokens of filler for every token of facts and questions, at least (far distances need more).
        decoys: facts stated at the beginning and never asked for.
        digits: of a code.
        warm: solved examples at the very beginning, from which a model learns the form; kind ``warm``, not scored.
        seed: of everything drawn.
        prefix: ids put first, such as the token that begins a text.

    Raises:
        ArgumentError: neither a window nor distances, a distance that does not fit into ``length``, a value out of
            range, or a tokenizer that does not tell the facts apart.
    """
    if window is not None:
        whole("window", window, 1)
    if distances is None and window is None:
        raise ArgumentError("give distances to aim at, or a window to choose them by")
    aims = distance_grid(window) if distances is None and window is not None else tuple(distances or ())
    if not aims:
        raise ArgumentError("distances is empty; give at least one, in tokens")
    for aim in aims:
        whole("each distance", aim, 1)
    for name, value, least in (("per_distance", per_distance, 1), ("decoys", decoys, 0), ("warm", warm, 0)):
        whole(name, value, least)
    if not isinstance(filler, int | float) or not 0 <= filler < math.inf:
        raise ArgumentError(f"filler must be a number of at least 0, got {filler!r}")
    if length is not None:
        whole("length", length, 1)
        if max(aims) >= length:
            raise ArgumentError(f"a distance of {max(aims)} tokens is longer than the text: length={length}")

    rng = random.Random(seed)
    w = Writer(tokenizer, prefix)
    facts = coded_facts(w, rng, len(aims) * per_distance + decoys + warm, digits)
    w.warm(facts[:warm])
    for fact in facts[warm : warm + decoys]:
        w.state(fact)
        w.write(w.sentence(rng))
    begin = len(w.ids)
    todo = _planned(rng, facts[warm + decoys :], aims, begin, length, filler)
    due: list[_Due] = []
    last = None  # whose code was written last
    while todo or due:
        t = len(w.ids)
        room = due[0].start - t if due else math.inf
        for i, (earliest, fact, aim) in enumerate(todo[:AHEAD]):
            if earliest <= t and (kept := _place(fact, aim, t, room, due)):
                del todo[i]
                insort(due, kept)
                w.state(fact)
                last = fact
                break
        else:
            if (line := w.filler(rng, room)) is not None:
                w.write(line)
                continue
            now = due.pop(0)
            w.ask(now.fact, now.at, "stream", chance=1 / (decoys + len(due) + 1), blind=1 / (9 * 10 ** (digits - 1)),
                  latest=last is now.fact, aim=now.aim)  # fmt: skip
            last = now.fact
    if length is not None:
        if len(w.ids) > length:
            raise ArgumentError(f"the questions do not fit into length={length}: this order takes {len(w.ids)} tokens")
        while (line := w.filler(rng, length - len(w.ids))) is not None:
            w.write(line)
    return w.done()


def _planned(
    rng: random.Random, facts: Sequence[Fact], aims: Sequence[int], begin: int, length: int | None, filler: float
) -> list[tuple[float, Fact, int]]:
    """(earliest time, fact, aim) of every question, by time: evenly over the times from which its answer is in time."""
    lines = [len(f.stated) + len(f.asked) for f in facts]
    each = [aims[i % len(aims)] for i in range(len(facts))]
    need = begin + max(sum(lines), *(a + n for a, n in zip(each, lines, strict=True)))
    if length is not None and need > length:
        raise ArgumentError(f"the questions do not fit into length={length}: they need at least {need} tokens")
    end = length or max(need, begin + math.ceil(sum(lines) * (1 + filler)))
    # the last tenth is left for those that have to wait for a free place
    planned = [
        (begin + 0.9 * rng.random() * (end - begin - a - n), f, a) for f, a, n in zip(facts, each, lines, strict=True)
    ]
    return sorted(planned, key=lambda x: x[0])


def _place(fact: Fact, aim: int, t: int, room: float, due: Sequence[_Due]) -> _Due | None:
    """Where the question of a fact stated at ``t`` goes; None if the fact or the question would be in another's way."""
    behind = t + len(fact.stated)
    if behind - t > room:
        return None
    at = (t, behind - len(fact.tail))
    start = max(behind, at[1] + aim - len(fact.ask))
    end = start + len(fact.asked)
    return None if any(d.start < end and start < d.end for d in due) else _Due(start, end, fact, at, aim)
