"""Texts with known answers: how they are put together from pieces, and four tasks in the manner of RULER.

The tasks are those of RULER (Hsieh et al., arXiv 2404.06654); words, sentences and code are our own. A text is a list
of token ids made **piece by piece**: what comes before an answer, the answer, and what comes after it are encoded each
for itself and the ids put together, so that an answer begins and ends at a token's border and has the same ids in the
fact and behind the question. What is fed is exactly ``ids``; encoding ``text`` in one may give other tokens. Tokens that
every code begins with (a space standing alone, where digits stand alone) belong to the question, not to the answer.

Nothing here knows a model. The same arguments give the same text.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["Question", "RecallText", "common_words", "multi_key", "single_needle", "variable_tracking"]


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
