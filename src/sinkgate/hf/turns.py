"""A conversation turn by turn: what goes between what the user and the model say, so that history is never encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["Turns", "turns"]

# stand for what is said, to see what a template puts around it
FIRST, ANSWER, SECOND = "placeholder alpha", "placeholder beta", "placeholder gamma"


@dataclass(frozen=True)
class Turns:
    """Texts around the turns of a conversation.

    Args:
        head: in front of the user's first turn.
        between: from the end of an answer to the user's next turn.
        tail: from the end of the user's turn to the answer.
        stop: texts at which an answer ends.
        ends: tokens at which it does, beside those of the model.
        prefix: ids in front of everything.
        note: what a user should know.
    """

    head: str
    between: str
    tail: str
    stop: tuple[str, ...] = ()
    ends: frozenset[int] = frozenset()
    prefix: tuple[int, ...] = ()
    note: str = ""

    def ids(self, tokenizer: Any, said: str, *, begun: bool, rest: str = "") -> list[int]:
        """Tokens of the user's next turn with what goes around it.

        Args:
            tokenizer: encodes them, and nothing else.
            said: by the user.
            begun: whether there was an answer before.
            rest: text behind the answer that the model has read already.
        """
        front = self.between if begun else self.head
        front = front[len(rest) :] if begun and rest and front.startswith(rest) else front
        text = front + said + self.tail
        encoded = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [*(() if begun else self.prefix), *encoded]


def turns(tokenizer: Any, system: str | None = None, prefix: Sequence[int] = ()) -> Turns:
    """From the tokenizer's chat template; plain lines of text if it has none.

    Args:
        tokenizer: of the model.
        system: what the model is told first.
        prefix: ids in front of plain lines; a template has its own.

    Raises:
        ArgumentError: the template refuses a system message.
    """
    if not getattr(tokenizer, "chat_template", None):
        return _plain(prefix, system, "this tokenizer has no chat template: plain text turns")
    asks = [] if system is None else [{"role": "system", "content": system}]
    user = lambda text: {"role": "user", "content": text}  # noqa: E731
    first = [*asks, user(FIRST)]
    try:
        begin = _render(tokenizer, first)
        whole = _render(tokenizer, [*first, {"role": "assistant", "content": ANSWER}, user(SECOND)])
    except Exception as err:
        if system is not None:
            raise ArgumentError(f"this model's chat template takes no --system message: {err}") from err
        return _plain(prefix, system, f"the chat template cannot be used ({err}): plain text turns")
    head, _, tail = begin.partition(FIRST)
    before, _, behind = whole.partition(ANSWER)
    between, _, last = behind.partition(SECOND)
    if [begin.count(FIRST), whole.count(FIRST), whole.count(ANSWER), whole.count(SECOND)] != [1] * 4 or (
        last != tail or not before.startswith(head)
    ):
        note = "the chat template does not put turns one behind the other: plain text turns"
        return _plain(prefix, system, note)
    special = set(tokenizer.all_special_ids)
    ends = [i for i in tokenizer(between, add_special_tokens=False)["input_ids"][:1] if i in special]
    return Turns(head, between, tail, ends=frozenset(ends))


def _render(tokenizer: Any, messages: Sequence[dict[str, str]]) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _plain(prefix: Sequence[int], system: str | None, note: str) -> Turns:
    """Lines that begin with who speaks."""
    head = f"{system}\n\n" if system else ""
    return Turns(f"{head}User: ", "\nUser: ", "\nAssistant:", ("\nUser:",), prefix=tuple(prefix), note=note)
