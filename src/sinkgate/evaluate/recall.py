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
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError, NonFiniteError, RecordError
from sinkgate.evaluate.needles import Fact, Question, RecallText, Writer, coded_facts, whole

__all__ = [
    "Bin", "Outcome", "Question", "RecallResult", "RecallText", "distance_grid", "score", "stream_recall", "wilson",
    "words_found",
]  # fmt: skip

FORMAT, VERSION = "sinkgate.recall", 1
Z95 = 1.959963984540054  # the normal quantile of a two-sided 95%
NEAREST = 16  # the shortest distance of a grid, tokens
AHEAD = 32  # facts tried for a place in the schedule
PLACES = ("any", "inside", "across", "outside")


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


@dataclass(frozen=True)
class Outcome:
    """What came of one question.

    Args:
        kind: see :class:`Question`, as are ``distance``, ``reach``, ``chance``, ``blind`` and ``latest``.
        distance: tokens.
        reach: tokens.
        right: whether every token of the answer was the most likely one behind the true tokens before it.
        logprob: mean log-probability of the answer's tokens, nats.
        chance: share.
        blind: share.
        latest: whether repeating the last code was right.
    """

    kind: str
    distance: int
    reach: int
    right: bool
    logprob: float
    chance: float
    blind: float
    latest: bool


@dataclass(frozen=True)
class Bin:
    """Questions of one kind with ``low <= distance < high``, on one side of the window.

    Args:
        kind: see :class:`Question`.
        low: tokens.
        high: tokens; infinite for the last bin.
        place: ``inside``: the window shows the whole fact for the whole answer; ``outside``: nothing of it, from the
            first token on; ``across``: part of it; ``any`` without a window.
        n: how many.
        right: how many of them were answered exactly.
        interval: Wilson's 95% interval of the accuracy, as if the questions were independent.
        logprob: mean over the questions, nats per token.
        chance: what guessing among the codes not used yet gets, mean.
        blind: what guessing without sight of the fact gets, mean.
        latest: what repeating the last code gets.
    """

    kind: str
    low: int
    high: float
    place: str
    n: int
    right: int
    interval: tuple[float, float]
    logprob: float
    chance: float
    blind: float
    latest: float

    @property
    def accuracy(self) -> float:
        """Share answered exactly."""
        return self.right / self.n


@dataclass(frozen=True)
class RecallResult:
    """Outcomes of all scored questions; prints as a table by distance.

    Args:
        outcomes: one for each question.
        window: tokens that the cache keeps, the query's own counted and kept first tokens not; None for no window.
        edges: where bins begin, tokens; the window and 0 are added. None: the powers of two.
    """

    outcomes: tuple[Outcome, ...]
    window: int | None = None
    edges: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            whole("window", self.window, 1)
        if self.edges is not None:
            for edge in self.edges:
                whole("each edge", edge, 0)
            object.__setattr__(self, "edges", tuple(self.edges))

    def place(self, outcome: Outcome) -> str:
        """``inside``, ``across`` or ``outside`` the window; ``any`` without one."""
        if self.window is None:
            return "any"
        if outcome.reach <= self.window:
            return "inside"
        return "outside" if outcome.distance >= self.window else "across"

    @property
    def bins(self) -> tuple[Bin, ...]:
        """By kind, distance and place; the empty ones are left out."""
        far = max((o.distance for o in self.outcomes), default=0)
        edges = {2**i for i in range(far.bit_length() + 1)} if self.edges is None else set(self.edges)
        starts = sorted(edges | {0} | ({self.window} if self.window is not None else set()))
        groups: dict[tuple[str, int, str], list[Outcome]] = {}
        for o in self.outcomes:
            groups.setdefault((o.kind, bisect_right(starts, o.distance) - 1, self.place(o)), []).append(o)
        found = []
        for (kind, i, place), group in sorted(groups.items(), key=lambda g: (*g[0][:2], PLACES.index(g[0][2]))):
            n, right = len(group), sum(o.right for o in group)
            means = [sum(getattr(o, x) for o in group) / n for x in ("logprob", "chance", "blind", "latest")]
            high = starts[i + 1] if i + 1 < len(starts) else math.inf
            found.append(Bin(kind, starts[i], high, place, n, right, wilson(right, n), *means))
        return tuple(found)

    def accuracy(self, place: str | None = None) -> tuple[float, tuple[float, float], int]:
        """Share answered exactly, its Wilson 95% interval and n, of all questions or of those at one place.

        Raises:
            ArgumentError: there are none.
        """
        chosen = [o for o in self.outcomes if place in (None, self.place(o))]
        if not chosen:
            raise ArgumentError(f"no question is {place or 'there'}")
        right = sum(o.right for o in chosen)
        return right / len(chosen), wilson(right, len(chosen)), len(chosen)

    def merge(self, other: RecallResult) -> RecallResult:
        """The outcomes of both, as of several texts.

        Raises:
            ArgumentError: their windows or edges differ.
        """
        if (self.window, self.edges) != (other.window, other.edges):
            raise ArgumentError("results with different windows or edges cannot be put together")
        return dataclasses.replace(self, outcomes=self.outcomes + other.outcomes)

    def __str__(self) -> str:
        window = "no window" if self.window is None else f"a window of {self.window} tokens"
        lines = [
            f"recall of {len(self.outcomes)} answers, {window}; [95% interval], log-probability in nats per token",
            f"{'kind':<9} {'distance':>13}  {'fact':<8} {'n':>4}  {'right':>5} {'':<12}  {'log-prob':>8}  {'chance':>6}  {'latest':>6}",
        ]
        for b in self.bins:
            low, high = (f"{100 * x:.0f}" for x in b.interval)
            span = f"{b.low}–{'' if b.high == math.inf else b.high - 1}"
            lines.append(
                f"{b.kind:<9} {span:>13}  {b.place:<8} {b.n:>4}  {100 * b.accuracy:>4.0f}% {f'[{low}, {high}]':<12}"
                f"  {b.logprob:>8.2f}  {100 * b.chance:>5.1f}%  {100 * b.latest:>5.0f}%"
            )
        blind = max((o.blind for o in self.outcomes), default=0.0)
        lines.append(
            f"chance: guessing among what was stated and not yet asked for; latest: repeating the last code; "
            f"without sight of the fact: {100 * blind:.2g}% at most"
        )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: the outcomes, from which everything else follows."""
        edges = None if self.edges is None else list(self.edges)
        rows = [dataclasses.asdict(o) for o in self.outcomes]
        return {"format": FORMAT, "version": VERSION, "window": self.window, "edges": edges, "outcomes": rows}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RecallResult:
        """The inverse of :meth:`to_json`.

        Raises:
            RecordError: it is no recall result, of another version, or damaged.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise RecordError("this is not a recall result")
        if data.get("version") != VERSION:
            raise RecordError(f"a recall result of version {data.get('version')!r}; this sinkgate reads {VERSION}")
        try:
            edges = None if data["edges"] is None else tuple(data["edges"])
            return cls(tuple(Outcome(**o) for o in data["outcomes"]), data["window"], edges)
        except (KeyError, TypeError, ArgumentError) as err:
            raise RecordError(f"the recall result is damaged: {err}") from err


def score(
    text: RecallText,
    predicted: Sequence[Sequence[int]],
    logprob: Sequence[Sequence[float]],
    *,
    window: int | None = None,
    edges: Sequence[int] | None = None,
) -> RecallResult:
    """Count exact answers and average log-probabilities.

    The token before an answer's j-th token predicts it, having read the true ones: with one row of logits for every
    token, the rows ``position − 1 + j``.

    Args:
        text: what was fed.
        predicted: for each of ``text.questions`` (the warm ones too), the most likely token at each answer token.
        logprob: the same for the log-probability of the true token, nats.
        window: see :class:`RecallResult`.
        edges: see :class:`RecallResult`.

    Raises:
        ArgumentError: the rows do not go with the questions, or there is no question to score.
        NonFiniteError: a log-probability is NaN or infinite.
    """
    if not len(predicted) == len(logprob) == len(text.questions):
        raise ArgumentError(
            f"the text has {len(text.questions)} questions, got {len(predicted)} predictions and {len(logprob)} log-probabilities"
        )
    outcomes = []
    for i, (q, said, logs) in enumerate(zip(text.questions, predicted, logprob, strict=True)):
        if not len(said) == len(logs) == len(q.answer_ids):
            raise ArgumentError(
                f"question {i} has an answer of {len(q.answer_ids)} tokens, got {len(said)} predictions and {len(logs)} log-probabilities"
            )
        values = [float(x) for x in logs]
        if not all(math.isfinite(x) for x in values):
            raise NonFiniteError(f"question {i}: a log-probability is NaN or infinite")
        if max(values) > 1e-3:
            raise ArgumentError(f"question {i}: a log-probability is over 0: {max(values):g}")
        if q.kind != "warm":
            right = tuple(int(x) for x in said) == q.answer_ids
            mean = sum(values) / len(values)
            outcomes.append(Outcome(q.kind, q.distance, q.reach, right, mean, q.chance, q.blind, q.latest))
    if not outcomes:
        raise ArgumentError("the text has no question to score, only solved examples")
    return RecallResult(tuple(outcomes), window, None if edges is None else tuple(edges))


def words_found(text: RecallText, generated: Sequence[int]) -> float:
    """Share of the answers that stand anywhere in freely generated tokens: an answer as a set, in any order.

    Args:
        text: such as :func:`sinkgate.evaluate.needles.common_words` makes.
        generated: what a model wrote behind ``ids`` up to the first scored question's position.
    """
    said = tuple(int(i) for i in generated)
    wanted = [q.answer_ids for q in text.scored]
    hit = [any(said[i : i + len(a)] == a for i in range(len(said) - len(a) + 1)) for a in wanted]
    return sum(hit) / max(1, len(hit))


def wilson(right: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share (JASA 22:209, 1927).

    >>> [round(x, 3) for x in wilson(0, 20)], [round(x, 3) for x in wilson(19, 20)]
    ([0.0, 0.161], [0.764, 0.991])
    """
    middle = (right + z * z / 2) / (n + z * z)
    half = z * math.sqrt(right * (n - right) / n + z * z / 4) / (n + z * z)
    return max(0.0, middle - half), min(1.0, middle + half)
