"""Answers scored by distance: outcomes, bins that never mix what the window held and what it did not, intervals."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError, NonFiniteError, RecordError
from sinkgate.evaluate.recall_text import RecallText, whole
from sinkgate.files import typed

__all__ = ["Bin", "Outcome", "RecallResult", "score", "wilson", "words_found"]

FORMAT, VERSION = "sinkgate.recall", 1
Z95 = 1.959963984540054  # the normal quantile of a two-sided 95%
PLACES = ("any", "inside", "across", "outside")
_SHARE = (int, float)
_OUTCOME = {"kind": str, "distance": int, "reach": int, "right": bool, "logprob": (*_SHARE, type(None)), "chance": _SHARE, "blind": _SHARE, "latest": bool}  # fmt: skip


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
            for i, outcome in enumerate(data["outcomes"]):
                typed(f"outcome {i}", outcome, _OUTCOME)
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
