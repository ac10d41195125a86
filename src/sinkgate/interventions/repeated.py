"""Text that repeats one token: every copy looks like a first token, and sinks multiply (arXiv 2503.08908)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, trace
from sinkgate.hf.layers import evaluating
from sinkgate.hf.reading import Reader
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import BURN_IN, Evict
from sinkgate.probe.probe import Probe
from sinkgate.probe.residual import LIKE_FIRST
from sinkgate.schema import Settings
from sinkgate.site import Site

__all__ = ["Repeated", "repeated_tokens"]


@dataclass(frozen=True)
class Repeated:
    """What a text of one repeated token does, beside ordinary text of the same length where that is given.

    Args:
        token: the token.
        tokens: how many copies.
        sinks: positions over the threshold in some head (of those that enough queries see).
        first_mass: mean α of the first copy over heads.
        null_mass: uniform attention's.
        like_first: share of the later copies whose hidden state has a cosine over 0.9 with the first one's at most depths.
        norm_ratio: largest ‖h‖ of the first copy over the mean of the others, over depths: 1 where all look alike.
        loss: of predicting the next copy, nats.
        evicted: the same with the first copy evicted from the burn-in on.
        kl: of that, against the untouched model.
    """

    token: str
    tokens: int
    sinks: list[dict[str, Any]]
    first_mass: float
    null_mass: float
    like_first: float
    norm_ratio: float
    loss: float
    evicted: float
    kl: float

    def __str__(self) -> str:
        where = ", ".join(str(s["position"]) for s in self.sinks[:12]) or "nowhere"
        more = f" and {len(self.sinks) - 12} more" if len(self.sinks) > 12 else ""
        return (
            f"{self.tokens} × {self.token!r}: sinks at {where}{more}; the first copy takes {self.first_mass:.3f} on average "
            f"(null {self.null_mass:.3f}); {self.like_first:.0%} of the later copies look like the first; its norm is up to "
            f"{self.norm_ratio:.3g} times theirs. Loss {self.loss:.3f}, with the first copy evicted {self.evicted:.3f} (KL "
            f"{self.kl:.4f})."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def repeated_tokens(
    model: nn.Module, tokenizer: Any, *, token: str | int = " the", tokens: int = 512, burn_in: int = BURN_IN,
    threshold: float = 0.3,
) -> Repeated:  # fmt: skip
    """Where sinks appear on a text of one repeated token, and what evicting the first copy does.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        token: a string that is one token, or an id.
        tokens: how many copies.
        burn_in: of the eviction.
        threshold: a head sinks over this.

    Raises:
        ArgumentError: the string is not one token, or the text is too short for the burn-in.
    """
    if isinstance(token, str):
        found = tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(found) != 1:
            raise ArgumentError(f"token must be one token of this tokenizer, {token!r} is {len(found)}")
        token = int(found[0])
    if tokens < burn_in + 2:
        raise ArgumentError(f"tokens={tokens} leave nothing to score behind the burn-in of {burn_in}")
    ids = torch.full((1, tokens), token, device=compat.input_device(model))
    name = tokenizer.decode([token])
    with evaluating(model), torch.no_grad():
        probe = Probe(Settings("full", threshold, tokens=tokens))
        watch = _Watch(probe, tokens)
        reader = Reader(trace(model, ids[:, :32]), watch)
        sample = {"id": "repeated", "source": "repeated", "tokens": [name] * tokens, "bos": False}
        with reader.open(), probe.sample([sample]):
            reader.run(ids)
        layers = [
            {"index": a.index, "name": a.name, "kind": "full", "window": a.window, "heads": a.heads, "reason": a.reason,
             "write_reason": a.no_map_reason, "learned_sink": a.learned_sink}
            for a in reader.anatomy.layers
        ]  # fmt: skip
        d = probe.finish(model={"name": "repeated", "fingerprint": ""}, layers=layers)
        plain = forward(model, ids)[0]
        with acting(model, Evict((0,), burn_in)):
            evicted = forward(model, ids)[0]
    before = score(plain, ids[0], start=burn_in)
    after = score(evicted, ids[0], start=burn_in, untouched=plain)
    sinks = sorted(d.meta["samples"][0]["sinks"], key=lambda s: s["position"])
    return Repeated(
        name, tokens, sinks, float(np.nanmean(d.first_token_mass)), float(np.nanmean(d.null_mass)), watch.share,
        watch.ratio, before.loss, after.loss, after.kl,
    )  # fmt: skip


class _Watch:
    """Shows a probe everything, and counts at how many depths each token looks like the first."""

    def __init__(self, probe: Probe, tokens: int) -> None:
        self.probe = probe
        self.like = torch.zeros(tokens)
        self.depths = 0
        self.ratio = float("nan")

    def site(self, site: Site) -> None:
        self.probe.site(site)

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        self.probe.stream(depth, hidden, real)
        h = hidden[0].float()
        norms = h.norm(dim=-1)
        if depth == 0:  # the embeddings of one token are all alike
            return
        self.depths += 1
        self.like += ((h @ h[0]) / (norms * norms[0]).clamp_min(1e-30) > LIKE_FIRST).cpu()
        ratio = float(norms[0] / norms[1:].mean())
        self.ratio = ratio if self.ratio != self.ratio else max(self.ratio, ratio)

    @property
    def share(self) -> float:
        """Share of later tokens that look like the first at most depths."""
        return float((self.like[1:] > self.depths / 2).float().mean()) if self.depths else float("nan")
