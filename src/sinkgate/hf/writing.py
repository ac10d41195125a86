"""Writing through a cache: only new tokens go through the model, and text comes out as soon as it is certain."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, NonFiniteError
from sinkgate.hf import compat

__all__ = ["Sampling", "Writer", "end_ids", "pick"]

BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a decoder puts for the first bytes of a character
PATIENCE = 8  # tokens that may be waited for until a character is whole
CONTEXT = 4  # tokens of the prompt that decide how the first new one is spaced


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: 0: the most likely one.
        top_p: only the most likely tokens that together have so much probability.
        top_k: only so many of the most likely; 0: all.
        seed: of the choice.

    Raises:
        ArgumentError: a value out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ArgumentError(f"temperature must be a number of at least 0, got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p must be over 0 and at most 1, got {self.top_p!r}")
        if not 0 <= self.seed < 2**63:
            raise ArgumentError(f"seed must be a whole number from 0, below 2^63, got {self.seed!r}")
        if self.top_k < 0:
            raise ArgumentError(f"top_k must be at least 0 (0: no limit), got {self.top_k!r}")
        if self.temperature == 0 and (self.top_p < 1 or self.top_k):
            raise ArgumentError("at temperature 0 the most likely token is taken: top_p and top_k need a temperature")


def pick(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token of ``[vocabulary]`` logits.

    Raises:
        NonFiniteError: a logit is NaN.
    """
    scores = logits.detach().cpu().double()
    if bool(scores.isnan().any()):
        raise NonFiniteError("the model's logits hold NaN: fetch the model again, or try --dtype float32 or bfloat16")
    if sampling.temperature == 0:
        return int(scores.argmax())
    scores = scores / sampling.temperature
    if sampling.top_k:
        least = scores.topk(min(sampling.top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < least, -math.inf)
    shares = scores.softmax(-1)
    if sampling.top_p < 1:
        ordered, where = shares.sort(descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0)
        shares = torch.zeros_like(shares).scatter(-1, where, ordered)
    return int(torch.multinomial(shares, 1, generator=generator))


def end_ids(model: nn.Module, tokenizer: Any) -> set[int]:
    """Tokens with which the model ends a text."""
    found = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = {found} if isinstance(found, int) else set(found or ())
    own = getattr(tokenizer, "eos_token_id", None)
    return ids | ({own} if own is not None else set())


class _Text:
    """Text of tokens as they come; what may still change, or may become a stop text, is held back."""

    def __init__(self, tokenizer: Any, before: Sequence[int], stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(s for s in stop if s)
        self.ids = list(before)[-CONTEXT:]
        self.read = len(self.ids)
        self.held = ""
        self.rest: str | None = None  # from the stop text on

    def add(self, token: int) -> str:
        self.ids.append(token)
        whole, known = self._decode(self.ids), self._decode(self.ids[: self.read])
        if whole.endswith(BROKEN) and len(self.ids) - self.read < PATIENCE:
            return ""
        del self.ids[: max(0, self.read - CONTEXT)]  # a few tokens are enough to know the next one's spacing
        self.read = len(self.ids)
        return self._certain(whole[len(known) :])

    def flush(self) -> str:
        tail = self._decode(self.ids)[len(self._decode(self.ids[: self.read])) :]
        self.read = len(self.ids)
        text = self._certain(tail)
        held, self.held = self.held, ""
        return text + held

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _certain(self, new: str) -> str:
        text, self.held = self.held + new, ""
        found = [(text.find(s), s) for s in self.stop if s in text]
        if found:
            at = min(found)[0]
            self.rest = text[at:]
            return text[:at]
        keep = max((n for s in self.stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _never() -> bool:
    return False


class Writer:
    """A model that reads and writes through one cache of :func:`sinkgate.streaming`.

    Args:
        model: inside the ``with``.
        tokenizer: its own.
        cache: what the ``with`` gave.
        sampling: how tokens are chosen.
        stop: texts that end an answer; they are not part of it.
        ends: tokens that do; those of the model if None.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        cache: Any,
        sampling: Sampling | None = None,
        *,
        stop: Sequence[str] = (),
        ends: set[int] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.cache = model, tokenizer, cache
        self.sampling, self.stop = sampling or Sampling(), tuple(stop)
        self.ends = end_ids(model, tokenizer) if ends is None else ends
        self.generator = torch.Generator().manual_seed(self.sampling.seed)
        self.device = compat.input_device(model)
        takes = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.one: dict[str, Any] = {"logits_to_keep": 1} if takes else {}
        self.logits: Tensor | None = None
        self.tail: list[int] = []  # the last tokens that went through
        self.answer: list[int] = []  # tokens of the last answer
        self.why = ""  # it ended: "end", "stop", "length" or "interrupted"
        self.rest = ""  # text that went through after what was given out: a stop text
        self.read_seconds = self.write_seconds = 0.0

    @property
    def written(self) -> int:
        """Tokens of the last answer."""
        return len(self.answer)

    def read(self, ids: Sequence[int], until: Callable[[], bool] = _never) -> int:
        """Take new tokens, a chunk at a time; returns how many, fewer if ``until()`` became true."""
        start, i = time.perf_counter(), 0
        while i < len(ids) and not until():
            i += self._pass(ids[i : i + self.cache.chunk])
        self.read_seconds = time.perf_counter() - start
        return i

    def write(self, most: int, until: Callable[[], bool] = _never) -> Iterator[str]:
        """An answer to what was read, piece by piece; what is given out has gone through the cache when it ends."""
        text = _Text(self.tokenizer, self.tail, self.stop)
        self.answer, self.why, self.rest, self.write_seconds = [], "length", "", 0.0
        if self.logits is None:
            raise ArgumentError("there is nothing to go on from: give a prompt of at least one token")
        while self.written < most:
            if until():
                self.why = "interrupted"
                break
            start = time.perf_counter()
            token = pick(self.logits, self.sampling, self.generator)
            self.write_seconds += time.perf_counter() - start
            if token in self.ends:
                self.why = "end"
                break
            self.answer.append(token)
            if piece := text.add(token):
                yield piece
            start = time.perf_counter()
            self._pass([token])
            self.write_seconds += time.perf_counter() - start
            if text.rest is not None:
                break
        if text.rest is None and (piece := text.flush()):
            yield piece
        if text.rest is not None:
            self.why, self.rest = "stop", text.rest

    @torch.no_grad()
    def _pass(self, ids: Sequence[int]) -> int:
        tokens = torch.tensor([list(ids)], device=self.device)
        self.logits = self.model(tokens, cache=self.cache, **self.one).logits[0, -1].float()
        self.tail = [*self.tail, *ids][-CONTEXT:]
        return len(ids)
