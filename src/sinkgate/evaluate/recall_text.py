"""Texts with known answers, put together from pieces: the values, and the writer.

A text is a list of token ids made **piece by piece**: what comes before an answer, the answer, and what comes after it are
encoded each for itself and the ids put together, so that an answer begins and ends at a token's border and has the same ids
in the fact and behind the question. What is fed is exactly ``ids``; encoding ``text`` in one may give other tokens. Tokens
that every code begins with (a space standing alone, where digits stand alone) belong to the question, not to the answer.

Nothing here knows a model. The same arguments give the same text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["Fact", "Line", "Question", "RecallText", "Writer", "coded_facts", "told_apart", "whole"]


def _list(text: str) -> list[str]:
    return text.split(",")


ADJECTIVES = _list(
    "amber,ancient,black,blue,brass,bright,broad,bronze,brown,calm,clear,cold,copper,crimson,dark,deep,distant,dusty,early,"
    "eastern,empty,faded,fertile,frozen,gentle,golden,grand,green,grey,hidden,hollow,humble,iron,ivory,jade,late,little,"
    "lofty,lonely,marble,misty,narrow,northern,old,pale,plain,purple,quiet,red,remote,rough,rusty,sandy,scarlet,silent,"
    "silver,slender,small,southern,steep,stony,sunny,tall,violet,warm,western,white,wide,wild,wooden,yellow,young"
)
NOUNS = _list(
    "abbey,arch,barn,basin,bay,bridge,brook,cabin,canal,castle,cave,cellar,chapel,cliff,cottage,court,dam,desert,dock,farm,"
    "ferry,field,fort,fountain,garden,gate,glacier,grove,harbour,hill,inn,island,lagoon,lake,library,lighthouse,market,"
    "marsh,meadow,mill,mine,monastery,museum,orchard,palace,park,pier,plateau,pond,port,quarry,railway,ravine,reef,ridge,"
    "river,school,shrine,spring,square,stable,station,temple,theatre,tower,tunnel,valley,village,vineyard,wall,well"
)
WHO = _list(
    "A clerk,A traveller,An old friend,The baker,The carpenter,The doctor,The driver,The gardener,The neighbour,The painter,"
    "The postman,The singer,The teacher,The tailor,Her brother,His aunt,My cousin,Our guest,Someone,The children"
)
DID = _list(
    "asked for more tea,bought a loaf of bread,carried the chairs inside,closed the window,cut some flowers,fed the horses,"
    "forgot the umbrella,heard a song,laughed about it,lit the lamp,looked at the clouds,mended the fence,read the newspaper,"
    "repaired a bicycle,sat by the fire,spoke about the weather,swept the floor,waited for the bus,washed the dishes,"
    "went home early,wrote a long letter,told a story"
)
WHEN = _list(
    "after lunch,all morning,and nobody minded,as always,at noon,before it grew dark,before the meeting,for a while,"
    "in the evening,in the rain,on Monday,once again,while the others slept,with great care,without a word"
)
SHORT = _list("Yes.,Hush.,It rained.,Time passed.,Nobody spoke.,The wind turned.,All was well.,So it went on.")


@dataclass(frozen=True)
class Question:
    """A place in a text where a known answer begins.

    Args:
        position: index in ``ids`` of the answer's first token; the tokens before it are the prompt.
        answer_ids: the answer, ``ids[position : position + len(answer_ids)]``.
        distance: tokens between the last token of the fact and ``position``.
        kind: ``stream``, ``single``, ``multikey``, ``variable``, ``words``; ``warm`` for a solved example, not scored.
        fact: where the fact stands: index of its first token and the one behind its last (a code's last token).
        chance: how often somebody is right who has read everything before, guesses among the codes (or words) that
            no question has used yet, and does not know which was asked for.
        blind: the same for somebody who has not seen the fact and knows only what answers look like.
        latest: whether the answer is the last code before the question: repeating that one would be right.
        aim: the distance that was asked for, None where none was.
    """

    position: int
    answer_ids: tuple[int, ...]
    distance: int
    kind: str
    fact: tuple[int, int]
    chance: float
    blind: float
    latest: bool = False
    aim: int | None = None

    @property
    def reach(self) -> int:
        """Tokens back to the fact's first, from the one that predicts the answer's last, both counted.

        A window of so many tokens (the query's own counted) shows the whole fact for the whole answer.
        """
        return self.position + len(self.answer_ids) - 1 - self.fact[0]


@dataclass(frozen=True)
class RecallText:
    """A text to feed, and its questions in the order of their positions.

    Args:
        ids: token ids. The right answers are part of it (teacher forcing), each behind its question.
        questions: see :class:`Question`; the solved examples (``warm``) are among them.
        text: the pieces as they were before encoding, for reading.
    """

    ids: list[int]
    questions: tuple[Question, ...]
    text: str

    @property
    def scored(self) -> tuple[Question, ...]:
        """The questions that count: all but the solved examples."""
        return tuple(q for q in self.questions if q.kind != "warm")


@dataclass(frozen=True)
class Line:
    """A piece of text and its tokens."""

    text: str
    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Line) -> Line:
        return Line(self.text + other.text, self.ids + other.ids)


@dataclass(frozen=True)
class Fact:
    """A fact and its question: ``head + code + tail`` states it, ``ask + code + tail`` asks and answers."""

    head: Line
    code: Line
    tail: Line
    ask: Line
    answer: Line

    @property
    def stated(self) -> Line:
        """The whole line of the fact."""
        return self.head + self.code + self.tail

    @property
    def asked(self) -> Line:
        """The whole line of the question."""
        return self.ask + self.answer + self.tail


class Writer:
    """Encodes pieces and puts them one behind the other.

    Args:
        tokenizer: something with ``encode(text, add_special_tokens=False)`` (transformers, tokenizers), or a function
            from a text to its ids.
        prefix: ids put first, such as the token that begins a text.
    """

    def __init__(self, tokenizer: Any, prefix: Sequence[int] = ()) -> None:
        self._raw = raw = _encoder(tokenizer)
        # SentencePiece puts a space before every piece of its own: there, pieces go without theirs
        here, kept, without = raw("it is 5"), raw("it is") + raw(" 5"), raw("it is") + raw("5")
        self._strip = here == without != kept
        probes = [self.line(f" {d * 5}").ids for d in "123456789"]  # no digit in common: what they share is no code
        shared = [len(set(column)) == 1 for column in zip(*probes, strict=False)]
        n = min([*(i for i, same in enumerate(shared) if not same), *(len(p) - 1 for p in probes)])
        self._lead = probes[0][: max(0, n)]
        self._short = [self.line(s + "\n") for s in SHORT]
        self._longest = sum(len(max(map(self.line, words), key=len)) for words in (WHO, DID, WHEN)) + 8
        self.ids = list(prefix)
        self.text = ""
        self.questions: list[Question] = []

    def line(self, text: str) -> Line:
        """Encode one piece; a space in front joins it to the piece before."""
        return Line(text, tuple(self._raw(text.lstrip(" ") if self._strip else text)))

    def write(self, line: Line) -> int:
        """Append; returns the index of its first token."""
        self.ids += line.ids
        self.text += line.text
        return len(self.ids) - len(line)

    def fact(self, head: str, ask: str, code: str) -> Fact:
        """A fact line and its question."""
        whole, n = self.line(f" {code}"), len(self._lead)
        if not whole.ids:
            raise ArgumentError(f"the tokenizer has no tokens for {code!r}; use one that knows digits and words")
        lead, answer = Line("", ()), whole
        if n and whole.ids[:n] == self._lead and len(whole) > n:
            lead, answer = Line(" ", self._lead), Line(code, whole.ids[n:])
        return Fact(self.line(head), whole, self.line(".\n"), self.line(ask) + lead, answer)

    def state(self, fact: Fact) -> tuple[int, int]:
        """Write a fact; returns where it stands, up to the end of its code."""
        start = self.write(fact.stated)
        return start, len(self.ids) - len(fact.tail)

    def ask(self, fact: Fact, at: tuple[int, int], kind: str, **known: Any) -> None:
        """Write a question with its answer behind it, and note it down."""
        self.write(fact.ask)
        position = self.write(fact.answer)
        self.questions.append(Question(position, fact.answer.ids, position - at[1], kind, at, **known))
        self.write(fact.tail)

    def warm(self, facts: Sequence[Fact]) -> None:
        """Solved examples: each fact is asked for at once."""
        for fact in facts:
            self.ask(fact, self.state(fact), "warm", chance=1.0, blind=0.0, latest=True)

    def sentence(self, rng: random.Random) -> Line:
        """A line without facts."""
        when = f" {rng.choice(WHEN)}" if rng.random() < 0.6 else ""
        return self.line(f"{rng.choice(WHO)} {rng.choice(DID)}{when}.\n")

    def filler(self, rng: random.Random, room: float) -> Line | None:
        """A line without facts of at most ``room`` tokens, None if none fits; near the room's end, one that fills it."""
        if room > 2 * self._longest:
            return self.sentence(rng)
        lines = [self.sentence(rng) for _ in range(8)] + rng.sample(self._short, len(self._short))
        least = min(map(len, self._short))
        fit = [line for line in lines if 0 < len(line) <= room]
        # the rest is best nothing, or long enough for another line
        return min(fit, key=lambda x: 0 if room - len(x) >= least else room - len(x), default=None)

    def done(self) -> RecallText:
        """The text."""
        return RecallText(self.ids, tuple(self.questions), self.text)


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    if hasattr(tokenizer, "encode") and not isinstance(tokenizer, str):

        def encode(text: str) -> list[int]:  # a list, or an Encoding that has one
            got = tokenizer.encode(text, add_special_tokens=False)
            return [int(i) for i in getattr(got, "ids", got)]

        return encode
    if callable(tokenizer):
        return lambda text: [int(i) for i in tokenizer(text)]
    raise ArgumentError(
        f"tokenizer must have encode(…) or be a function from text to ids, got {type(tokenizer).__name__}"
    )


def coded_facts(w: Writer, rng: random.Random, n: int, digits: int) -> list[Fact]:
    """``n`` facts with keys and codes that occur once; refuses what the tokenizer does not tell apart."""
    whole("digits", digits, 1, 9)
    keys, codes = len(ADJECTIVES) * len(NOUNS), 9 * 10 ** (digits - 1)
    if n > min(keys, codes):
        raise ArgumentError(f"{n} facts are too many: there are {keys} keys and {codes} codes of {digits} digits")
    names = [divmod(k, len(NOUNS)) for k in rng.sample(range(keys), n)]
    found = []
    for (a, b), code in zip(names, rng.sample(range(codes // 9, 10 * codes // 9), n), strict=True):
        key = f"{ADJECTIVES[a]} {NOUNS[b]}"
        found.append(w.fact(f"The code of the {key} is", f"Remember: the code of the {key} is", str(code)))
    told_apart(found)
    return found


def told_apart(facts: Sequence[Fact]) -> None:
    """Refuse facts of which two have the same tokens, in the answer or in the question."""
    if len({f.answer.ids for f in facts}) < len(facts) or len({f.ask.ids for f in facts}) < len(facts):
        raise ArgumentError(
            "the tokenizer gives two different facts the same tokens; use one that knows digits and words"
        )


def whole(name: str, value: Any, least: int, most: float = math.inf) -> None:
    """Refuse what is not a whole number from ``least`` to ``most``."""
    if type(value) is not int or not least <= value <= most:
        limit = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ArgumentError(f"{name} must be a whole number {limit}, got {value!r}")
