"""Bigram-backcopy: a chain of bigrams, and behind a trigger the token before it (Guo et al. 2024, arXiv 2410.13835).

A head is of use at triggers alone: *active* there, where it looks one token back, and *dormant* elsewhere, where its
surplus goes to the first token. So a sink forms within minutes, and one can see on which queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import LoopConfig, step_seed
from sinkgate.lab.decoder import Decoder, DecoderConfig
from sinkgate.lab.measure import watch
from sinkgate.lab.tasks.base import Found, Value, whole
from sinkgate.nn import Seen

__all__ = ["Backcopy", "BackcopyExperiment", "Chain"]

BOS = 0
HELD_OUT = {"select": -1, "test": -2}  # steps that training never reaches
ROWS = 128  # held-out sequences
DORMANT = 0.5  # a head with more than this on the first token at ordinary queries is dormant there


@dataclass(frozen=True)
class Chain:
    """The source of the sequences.

    Args:
        rows: ``P(next | this)`` over the tokens 1…vocab−1, a row each (row 0, BOS's, is where a sequence begins).
        triggers: the tokens behind which the one before is repeated.
    """

    rows: Float[np.ndarray, "v v"]
    triggers: tuple[int, ...]

    @property
    def entropy(self) -> Float[np.ndarray, " v"]:
        """Of each row, in nats."""
        return -np.where(self.rows > 0, self.rows * np.log(np.where(self.rows > 0, self.rows, 1)), 0).sum(1)

    def sample(self, count: int, length: int, seed: int) -> Int[Tensor, "count length"]:
        """Sequences that begin with BOS."""
        maker = np.random.default_rng(seed)
        ids = np.zeros((count, length), np.int64)
        cumulative = self.rows.cumsum(1)
        cumulative[:, -1] = 1.0
        is_trigger = np.isin(np.arange(len(self.rows)), self.triggers)
        drawn = maker.random((count, length))
        for i in range(1, length):
            here = ids[:, i - 1]
            following = (drawn[:, i, None] >= cumulative[here]).sum(1)
            ids[:, i] = np.where(is_trigger[here], ids[:, i - 2], following) if i > 1 else following
        return torch.from_numpy(ids)


@lru_cache(maxsize=4)
def make_chain(vocab: int, triggers: int, concentration: float, seed: int) -> Chain:
    """Rows from a Dirichlet distribution; a sequence does not begin with a trigger."""
    maker = np.random.default_rng(seed)
    rows = np.zeros((vocab, vocab))
    rows[:, 1:] = maker.dirichlet(np.full(vocab - 1, concentration), vocab)
    marks = tuple(int(x) for x in 1 + maker.permutation(vocab - 1)[:triggers])
    rows[BOS, list(marks)] = 0
    rows /= rows.sum(1, keepdims=True)
    return Chain(rows, marks)


@dataclass(frozen=True)
class Backcopy(Value):
    """The task.

    Args:
        vocab: tokens, BOS included.
        triggers: how many of them.
        concentration: of the Dirichlet distribution that bigram rows are drawn from; small: nearly certain.
        length: tokens in a sequence.
        bos: a sequence begins with BOS; False: with a token of the chain.
        dim: of the hidden state.
        layers: blocks.
        heads: query heads per block.
        batch: sequences in a step.
        chain: seed of the bigram rows, the same for every run.

    Raises:
        ArgumentError: a value is out of range.
    """

    vocab: int = 64
    triggers: int = 3
    concentration: float = 0.3
    length: int = 64
    bos: bool = True
    dim: int = 64
    layers: int = 1
    heads: int = 1
    batch: int = 16
    chain: int = 0

    name: ClassVar[str] = "backcopy"
    headline: ClassVar[str] = "excess_loss"
    shown: ClassVar[tuple[str, ...]] = (
        "backcopy_loss", "dormant_mass", "active_mass", "first_mass", "sink_rate", "max_activation", "kurtosis",
    )  # fmt: skip

    def __post_init__(self) -> None:
        whole(self, vocab=4, triggers=1, length=8, dim=2, layers=1, heads=1, batch=1, chain=0)
        if self.triggers > self.vocab - 3:
            raise ArgumentError(
                f"triggers={self.triggers} leave no ordinary tokens of vocab={self.vocab} (BOS is one); at most {self.vocab - 3}"
            )
        if not (isinstance(self.concentration, int | float) and 0 < self.concentration < math.inf):
            raise ArgumentError(f"concentration must be a positive number, got {self.concentration!r}")
        self.sizes()

    def sizes(self) -> DecoderConfig:
        """The decoder's."""
        return DecoderConfig(self.vocab, self.dim, self.layers, self.heads, context=self.length, tied=False)

    def source(self) -> Chain:
        """The chain."""
        return make_chain(self.vocab, self.triggers, float(self.concentration), self.chain)

    def loop(self, steps: int | None, lr: float | None, seed: int) -> LoopConfig:
        """AdamW, betas .9 and .95, a warmup, then constant; gradients cut to norm 1."""
        steps = 2000 if steps is None else steps
        return LoopConfig(
            steps=steps, lr=1e-2 if lr is None else lr, schedule="wsd", decay=0.2, warmup=min(50, steps // 10),
            weight_decay=0.01, decay_matrices=True, clip=1.0, seed=seed, save_every=max(1, steps // 4),
            evaluate_every=max(1, steps // 20),
        )  # fmt: skip

    @property
    def tokens_per_step(self) -> int:
        """Tokens that are predicted in a step."""
        return self.batch * self.length

    def make(self, arm: Arm, seed: int) -> BackcopyExperiment:
        """The experiment of one arm and seed."""
        return BackcopyExperiment(self, arm, seed)


class BackcopyExperiment:
    """One arm and seed of a :class:`Backcopy` task.

    Args:
        spec: the task.
        arm: what attends.
        seed: of start and data.
    """

    def __init__(self, spec: Backcopy, arm: Arm, seed: int) -> None:
        self.spec, self.seed, self.source = spec, seed, spec.source()
        self.model = Decoder(spec.sizes(), arm, seed)

    def parameters(self) -> dict[str, nn.Parameter]:
        """All of the model's."""
        return dict(self.model.named_parameters())

    def batch(self, step: int) -> Tensor:
        """``[batch, length + 1]`` tokens."""
        return self._draw(self.spec.batch, step)

    def loss(self, batch: Tensor, step: int) -> dict[str, Tensor]:
        """Cross entropy in nats per token."""
        return {"loss": self.model.loss(batch), "tokens": torch.tensor(batch.numel() - len(batch))}

    def project(self) -> None:
        """Nothing is bounded."""

    def evaluate(self, step: int) -> dict[str, float]:
        """The last measurement's numbers, on the part that chooses and a few sequences."""
        found = self._measure("select", rows=16)
        return {"held_out": found.pop("loss")} | {n: x for n, x in found.items() if isinstance(x, float)}

    @torch.no_grad()
    def final(self, split: str) -> Found:
        """Losses over their optimum, and who looks at the first token when.

        ``excess_loss`` is the mean loss over the chain's entropy at bigrams and over 0 behind triggers. ``dormant_mass``
        is the mean weight on the first key at ordinary queries, of the head where it is largest; ``active_mass`` that
        head's at triggers, ``back_mass`` its weight on the token before there.
        """
        return self._measure(split, rows=ROWS)

    # ---- private ------------------------------------------------------------------------------------------------

    def _draw(self, rows: int, step: int) -> Tensor:
        length = self.spec.length + 1
        ids = self.source.sample(rows, length + (not self.spec.bos), step_seed(self.seed if step >= 0 else 0, step))
        return ids[:, -length:].to(next(self.model.parameters()).device)

    @torch.no_grad()
    def _measure(self, split: str, rows: int) -> Found:
        ids = self._draw(rows, HELD_OUT[split])
        here, before = ids[:, :-1], torch.nn.functional.pad(ids[:, :-2], (1, 0), value=-1)
        trigger = torch.isin(here, torch.tensor(self.source.triggers, device=ids.device)) & (before >= 0)
        entropy = torch.from_numpy(self.source.entropy).to(ids.device)[here]
        losses = self.model.loss(ids, reduction="none").double()
        found: Found = {
            "loss": losses.mean().item(),
            "excess_loss": (losses - entropy.masked_fill(trigger, 0.0)).mean().item(),
            "bigram_loss": (losses - entropy)[~trigger].mean().item(),
            "backcopy_loss": losses[trigger].mean().item(),
        }
        found |= watch(self.model, here[:16], layers=split == "test")
        return found | self._heads(here[:16], trigger[:16])

    def _heads(self, ids: Tensor, trigger: Tensor) -> Found:
        """By head, the weight on the first key at ordinary queries and at triggers, and one back at triggers."""
        dormant, active, back = [], [], []
        sinks = self.model.arm.sink_tokens

        def see(_layer: int, seen: Seen) -> None:
            """One layer's heads, put behind those of the layers before."""
            weights = _weights(seen)[..., sinks:, :]
            later = torch.arange(ids.shape[1], device=ids.device) >= 2  # a query that has more than itself to see
            ordinary, marked = (x[:, None].expand(weights.shape[:3]) for x in (~trigger & later, trigger & later))
            one_back = weights.diagonal(sinks - 1, -2, -1)
            one_back = torch.nn.functional.pad(one_back, (weights.shape[2] - one_back.shape[-1], 0))
            mean = lambda x, where: (x * where).sum((0, 2)) / where.sum((0, 2)).clamp_min(1)  # noqa: E731
            dormant.extend(mean(weights[..., 0], ordinary).tolist())
            active.extend(mean(weights[..., 0], marked).tolist())
            back.extend(mean(one_back, marked).tolist())

        with self.model.watched(see):
            self.model.hidden(ids)
        most = int(np.argmax(dormant))
        return {
            "dormant_mass": dormant[most], "active_mass": active[most], "back_mass": back[most],
            "dormant_heads": float(np.mean(np.array(dormant) > DORMANT)), "dormant_mass_by_head": dormant,
            "active_mass_by_head": active, "back_mass_by_head": back,
        }  # fmt: skip


def _weights(seen: Seen) -> Any:
    """``[b, h, t, s]``: these sequences are short."""
    from sinkgate.lab.measure import band

    layer, (_, heads, t, d), s = seen.module, seen.q.shape, seen.k.shape[2]
    k = seen.k.repeat_interleave(heads // seen.k.shape[1], 1)
    return layer.weighting.weights(seen.q @ k.transpose(-1, -2) * d**-0.5, band(t, s, layer.window, layer.keep_first))
