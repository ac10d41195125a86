"""Text that repeats one token: copies come to look like the first token, and sinks multiply (arXiv 2503.08908)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.layers import evaluating
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import BURN_IN, Evict
from sinkgate.interventions.probing import probed
from sinkgate.probe.probe import SINKS_KEPT
from sinkgate.probe.residual import LIKE_FIRST
from sinkgate.probe.text import Piece, bos_prefix
from sinkgate.site import Site

__all__ = ["Repeated", "repeated_tokens"]

LISTED = 12  # sinks that are printed


@dataclass(frozen=True)
class Repeated:
    """What a text of one repeated token does.

    Args:
        token: the token.
        tokens: length of the text.
        before: what stands first; empty if the first token is a copy itself.
        sinks: the strongest positions over the threshold in some head (of those that enough queries see), in order.
        first_mass: mean α of the first token over heads.
        null_mass: uniform attention's.
        like_first: share of the later tokens whose hidden state has a cosine over 0.9 with the first one's at more than
            half of the depths behind the embeddings.
        norm_ratio: largest ‖h‖ of the first token over the mean of the others, over depths: 1 where all look alike.
        loss: of predicting the next copy, nats.
        evicted: the same with the first token evicted from the burn-in on.
        kl: of that, against the untouched model.
        control: the loss with one of the copies evicted the same way.
        control_position: where that copy stands.
    """

    token: str
    tokens: int
    before: str
    sinks: list[dict[str, Any]]
    first_mass: float
    null_mass: float
    like_first: float
    norm_ratio: float
    loss: float
    evicted: float
    kl: float
    control: float
    control_position: int

    def __str__(self) -> str:
        where = ", ".join(str(s["position"]) for s in self.sinks[:LISTED]) or "nowhere"
        kept = f"{len(self.sinks) - LISTED}" + (" or more" if len(self.sinks) >= SINKS_KEPT else "")
        more = f" and {kept} others" if len(self.sinks) > LISTED else ""
        first = f"the first token ({self.before!r})" if self.before else "the first copy"
        return (
            f"{self.tokens} × {self.token!r}: sinks at {where}{more}; {first} takes {self.first_mass:.3f} on average (null "
            f"{self.null_mass:.3f}); {self.like_first:.0%} of the later tokens look like it; its norm is up to "
            f"{self.norm_ratio:.3g} times theirs. Loss {self.loss:.3f}, with it evicted {self.evicted:.3f} (KL {self.kl:.4f}), "
            f"with the copy at {self.control_position} evicted instead {self.control:.3f}."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Repeated:
        """From a record, where what could not be measured is null."""
        filled: dict[str, Any] = {name: float("nan") if value is None else value for name, value in data.items()}
        return cls(**filled)


def repeated_tokens(
    model: nn.Module, tokenizer: Any, *, token: str | int = " the", tokens: int = 512, bos: str | None = None,
    burn_in: int = BURN_IN, threshold: float = 0.3,
) -> Repeated:  # fmt: skip
    """Where sinks appear on a text of one repeated token, and what evicting the first token does.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        token: a string that is one token, or an id.
        tokens: length of the text.
        bos: ``auto``, ``yes`` or ``no``, as in :func:`sinkgate.diagnose`; None: yes if the tokenizer has such a token.
            (With nothing else in front, a model that knows relative positions alone cannot tell one copy from another.)
        burn_in: of the eviction.
        threshold: a head sinks over this.

    Raises:
        ArgumentError: the string is not one token, or the text is too short for the burn-in.
    """
    if isinstance(token, str):
        found = tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(found) != 1:
            raise ArgumentError(f"the repeated token must be one token of this tokenizer, {token!r} is {len(found)}")
        token = int(found[0])
    vocabulary = int(compat.config(model).get_text_config().vocab_size)
    if not 0 <= token < vocabulary:
        raise ArgumentError(f"the repeated token must be an id under {vocabulary}, got {token}")
    bos = bos or ("no" if getattr(tokenizer, "bos_token_id", None) is None else "yes")
    prefix, _ = bos_prefix(tokenizer, bos)
    copy = (len(prefix) + burn_in) // 2  # between the prefix and the burn-in
    if not len(prefix) + 1 < burn_in < tokens - 1:
        raise ArgumentError(
            f"the burn-in must leave room for a copy before it and for something to score behind it: tokens={tokens} and "
            f"burn_in={burn_in} do not"
        )
    ids = [*prefix, *[token] * (tokens - len(prefix))]
    names = {i: tokenizer.decode([i]) for i in set(ids)}
    piece = Piece("repeated", "repeated", ids, [names[i] for i in ids], bool(prefix))
    row = torch.tensor(ids, device=compat.input_device(model))
    watch = _Watch(tokens)
    with evaluating(model), torch.no_grad():
        d = probed(model, [piece], threshold=threshold, also=watch)
        plain = forward(model, row[None])[0]
        scores = [score(plain, row, start=burn_in)]
        for position in (0, copy):
            with acting(model, Evict((position,), burn_in)):
                scores.append(score(forward(model, row[None])[0], row, start=burn_in, untouched=plain))
    before, after, control = scores
    sinks = sorted(d.meta["samples"][0]["sinks"], key=lambda s: s["position"])
    return Repeated(
        names[token], tokens, tokenizer.decode(prefix), sinks, float(np.nanmean(d.first_token_mass)),
        float(np.nanmean(d.null_mass)), watch.share, watch.ratio, before.loss, after.loss, after.kl, control.loss, copy,
    )  # fmt: skip


class _Watch:
    """Counts at how many depths each token looks like the first, and how much longer the first is."""

    def __init__(self, tokens: int) -> None:
        self.like = torch.zeros(tokens)
        self.depths = 0
        self.ratio = float("nan")

    def site(self, site: Site) -> None:
        """Attention is not looked at."""

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """One depth; the embeddings of one token are all alike and do not count."""
        if depth == 0:
            return
        h = hidden[0].float()
        norms = h.norm(dim=-1)
        self.depths += 1
        self.like += ((h @ h[0]) / (norms * norms[0]).clamp_min(1e-30) > LIKE_FIRST).cpu()
        ratio = float(norms[0] / norms[1:].mean())
        self.ratio = ratio if self.ratio != self.ratio else max(self.ratio, ratio)

    @property
    def share(self) -> float:
        """Share of later tokens that look like the first at more than half of the depths."""
        return float((self.like[1:] > self.depths / 2).float().mean()) if self.depths else float("nan")
