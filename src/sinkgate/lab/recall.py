"""Needles for small models: a string of random tokens that stood earlier in the text, and its beginning once more."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sinkgate.lab.corpus import Corpus
from sinkgate.lab.decoder import Decoder
from sinkgate.lab.tasks.base import Found

__all__ = ["needle"]

LENGTH = 8  # tokens of a needle; the first two ask, the others are answers
ASKED = 2
ROWS = 16  # per depth
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)  # where it lies, in shares of the context


@torch.no_grad()
def needle(model: Decoder, corpus: Corpus, split: str, length: int, *, bos: bool, seed: int = 0) -> Found:
    """Recall of a needle by depth: what a small model that copies can do, and a bounded one cannot.

    Random tokens are written over the text at a depth, and again at the end; predicted are the last six of the eight.
    Chance is beside: the same questions in text that has no such needle.

    Args:
        model: to ask.
        corpus: of the text around.
        split: its part.
        length: tokens of a sequence.
        bos: BOS stands first.
        seed: of the needles.

    Returns:
        ``recall`` and ``recall_chance`` (share right), ``recall_loss`` (nats), ``recall_by_depth``, ``recall_depth``.
        NaN where text or context is too short.
    """
    nothing: Found = {"recall": math.nan, "recall_chance": math.nan, "recall_loss": math.nan}
    if len(corpus.ids[split]) < length or length < 8 * LENGTH:
        return nothing
    device = next(model.parameters()).device
    ids = corpus.held_out(split, ROWS, length, bos=bos).to(device)
    maker = torch.Generator().manual_seed(seed)
    ordinary = torch.from_numpy(corpus.ids["train"].astype("int64"))
    right, losses = [], []
    for depth in (*DEPTHS, None):
        drawn = torch.randint(0, len(ordinary), (len(ids), LENGTH), generator=maker)
        strings = ordinary[drawn].to(device)
        rows = ids.clone()
        rows[:, -LENGTH:] = strings
        if depth is not None:
            start = 1 + round(depth * (length - 3 * LENGTH))
            rows[:, start : start + LENGTH] = strings
        answers = rows[:, -LENGTH + ASKED :]
        logits = torch.cat([_last(model, part) for part in rows.split(8)])
        right.append((logits.argmax(-1) == answers).double().mean().item())
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten()).item())
    return {
        "recall": sum(right[:-1]) / len(DEPTHS), "recall_chance": right[-1],
        "recall_loss": sum(losses[:-1]) / len(DEPTHS), "recall_chance_loss": losses[-1],
        "recall_depth": list(DEPTHS), "recall_by_depth": right[:-1],
    }  # fmt: skip


def _last(model: Decoder, rows: Tensor) -> Tensor:
    """Logits for the answers."""
    hidden = model.hidden(rows[:, :-1])[:, -(LENGTH - ASKED) :]
    return model.head(hidden).float()
