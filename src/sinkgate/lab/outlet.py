"""Fine-tuning an outlet: the model is frozen, the outlet learns to stand in for the first token."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from sinkgate.call import EXTRA, extra_logits
from sinkgate.errors import ArgumentError, TextError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.call import arguments
from sinkgate.hf.outlet import outlets, without_outlets
from sinkgate.hf.place import to_call
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import BURN_IN, Evict
from sinkgate.lab.aids import EntropyRegulariser, attention_entropy, context_length, head_multipliers
from sinkgate.lab.loop import step_seed
from sinkgate.outlet import GateOutlet

__all__ = ["OutletConfig", "OutletTask", "frozen"]


@dataclass(frozen=True)
class OutletConfig:
    """What an outlet is trained for.

    Args:
        tokens: length of a training text.
        text: weight of the next-token loss.
        distill: weight of KL(original ‖ with outlet), in nats.
        evict: share of the steps in which the first tokens are evicted while the model predicts.
        evicted: which tokens.
        burn_in: queries that still see them.
        also: patterns of parameter names to train beside the outlet (``*.o_proj.weight``).
        entropy: regularise the attention entropy: ``+λ`` sharpens, ``−λ`` spreads; 0: not at all.
        context: first context length of a progressive schedule; None: ``tokens`` from the start.
        multiplier: learning rate of what belongs to the marked heads, over that of the rest.
        seed: of the order of texts.
    """

    tokens: int = 512
    text: float = 1.0
    distill: float = 1.0
    evict: float = 0.5
    evicted: tuple[int, ...] = (0,)
    burn_in: int = BURN_IN
    also: tuple[str, ...] = ()
    entropy: float = 0.0
    context: int | None = None
    multiplier: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "evicted", tuple(self.evicted))
        object.__setattr__(self, "also", tuple(self.also))
        if not self.evicted or min(self.evicted) < 0 or max(self.evicted) >= max(self.burn_in, 1):
            raise ArgumentError(f"evicted must be tokens under the burn-in of {self.burn_in}, got {self.evicted}")
        if self.tokens < self.burn_in + 2 and self.evict > 0:
            raise ArgumentError(f"tokens={self.tokens} leave nothing behind the burn-in of {self.burn_in}; use more")
        if self.text < 0 or self.distill < 0 or self.text + self.distill == 0:
            raise ArgumentError(
                f"text and distill must be 0 or more, and not both 0, got {self.text} and {self.distill}"
            )
        if not 0 <= self.evict <= 1:
            raise ArgumentError(f"evict must be a share from 0 to 1, got {self.evict}")
        if self.multiplier < 0:
            raise ArgumentError(f"multiplier must be 0 or more, got {self.multiplier}")
        if self.context is not None and not 2 <= self.context <= self.tokens:
            raise ArgumentError(f"context must be from 2 to tokens={self.tokens}, got {self.context}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


@contextmanager
def frozen(model: nn.Module, trained: Sequence[nn.Parameter]) -> Iterator[None]:
    """Inside, only these parameters want gradients; outside, those that did before."""
    before = [(p, p.requires_grad) for p in model.parameters()]
    for p, _ in before:
        p.requires_grad_(False)
    for p in trained:
        p.requires_grad_(True)
    try:
        yield
    finally:
        for p, wanted in before:
            p.requires_grad_(wanted)


class OutletTask:
    """The task that :func:`sinkgate.lab.loop.train` runs.

    Args:
        model: with an outlet; in eval mode.
        ids: the training text, ``[n]``.
        config: what for.
        steps: of the whole run, for schedules.
        marked: ``(layer, head)`` pairs whose learning rate is multiplied.
        prefix: ids that stand before every text (a beginning-of-text token).

    Raises:
        TextError: the text is shorter than one training text.
        ArgumentError: a pattern names no parameter.
    """

    def __init__(
        self, model: nn.Module, ids: Int[Tensor, " n"], config: OutletConfig, steps: int,
        marked: Sequence[tuple[int, int]] = (), prefix: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.prefix = torch.tensor(list(prefix), dtype=torch.long)
        if len(ids) < config.tokens + 1:
            raise TextError(
                f"the training text has {len(ids)} tokens, fewer than tokens={config.tokens}; give more text"
            )
        self.model, self.ids, self.config, self.steps = model, ids, config, steps
        self.outlets = outlets(model)
        self.others = _matching(model, config.also)
        self.teacher = model
        if self.others and config.distill:
            self.teacher = copy.deepcopy(model)  # the original, where its own weights are trained too
        self.marked = list(marked)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The outlet's, and the chosen others."""
        return {**{f"outlet.{n}": p for n, p in self.outlets.named_parameters().items()}, **self.others}

    def project(self) -> None:
        """w ≥ 0."""
        self.outlets.project()

    def batch(self, step: int) -> tuple[Tensor, bool]:
        """A piece of text ``[1, t]`` that depends on the step alone, and whether to evict."""
        config = self.config
        length = config.tokens
        if config.context is not None:
            length = context_length(step, start=config.context, end=config.tokens, steps=self.steps, warm=0.5)
        generator = torch.Generator().manual_seed(step_seed(config.seed, step))
        length = max(length - len(self.prefix), 2)
        start = int(torch.randint(0, len(self.ids) - length, (1,), generator=generator))
        evict = float(torch.rand((), generator=generator)) < config.evict
        text = torch.cat([self.prefix, self.ids[start : start + length]])
        return text[None].to(compat.input_device(self.model)), evict

    def loss(self, batch: tuple[Tensor, bool], step: int) -> dict[str, Tensor]:
        """Text loss and distillation behind the burn-in where tokens are evicted, from the start where not."""
        ids, evict = batch
        config = self.config
        evict = evict and ids.shape[1] > config.burn_in + 1
        first = config.burn_in if evict else 0
        entropies: list[Tensor] = []
        with ExitStack() as stack:
            if evict:
                stack.enter_context(acting(self.model, Evict(config.evicted, config.burn_in)))
            if config.entropy:
                stack.enter_context(reading(self.model, _Entropies(entropies)))
            logits = forward(self.model, ids)[0, first:-1].float()
        text = F.cross_entropy(logits, ids[0, first + 1 :])
        total = config.text * text
        logged = {"text": text.detach(), "evicted": torch.tensor(float(evict))}
        if config.distill:
            with torch.no_grad(), without_outlets(self.teacher):
                target = forward(self.teacher, ids)[0, first:-1].float().log_softmax(-1)
            kl = F.kl_div(logits.log_softmax(-1), target, reduction="none", log_target=True).sum(-1).mean()
            total = total + config.distill * kl
            logged["kl"] = kl.detach()
        if config.entropy:
            regulariser = EntropyRegulariser(abs(config.entropy), "+" if config.entropy > 0 else "-")
            total = regulariser(total, *entropies)
            logged["entropy"] = torch.stack([e.detach().mean() for e in entropies]).mean()
        return {"loss": total, **logged, "tokens": torch.tensor(float(ids.shape[1]))}

    def multipliers(self) -> dict[str, float | Tensor]:
        """Learning-rate multipliers of what belongs to the marked heads."""
        if self.config.multiplier == 1.0 or not self.marked:
            return {}
        found: dict[str, float | Tensor] = {}
        for layer, outlet in self.outlets.layers.items():
            sizes = outlet.sizes
            heads = sorted({h for i, h in self.marked if i == layer})
            groups = sorted({h * sizes.kv_heads // sizes.heads for h in heads})
            for name, p in outlet.named_parameters() if heads else ():
                count, some = (sizes.kv_heads, groups) if name in ("key", "value") else (sizes.heads, heads)
                if isinstance(outlet, GateOutlet):
                    if outlet.spec.shared or outlet.spec.position == "G5":
                        continue  # it belongs to no head
                    count = outlet.spec.heads(sizes.heads, sizes.kv_heads)
                    some = groups if outlet.spec.position in ("G2", "G3") else heads
                found[f"outlet.{layer}.{name}"] = head_multipliers(
                    tuple(p.shape), axis=0, heads=count, chosen=some, m=self.config.multiplier
                )
        return found


class _Entropies:
    """Every layer's attention entropy, with gradients."""

    def __init__(self, found: list[Tensor]) -> None:
        self.found = found

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The listener's part: note the entropy, then make the call."""
        q, k, v, mask, others = arguments(args, kwargs)
        call = to_call(module, q, k, v, mask, others, 0)
        extra = kwargs.get(EXTRA)
        sink = None if extra is None else extra_logits(extra, q, k, call.scale)
        if sink is not None and sink.ndim > 1:
            sink = None  # a logit per query: the entropy of the weights over the text's own keys
        self.found.append(
            attention_entropy(
                q, k, scale=q.shape[-1] ** -0.5 if call.scale is None else call.scale, softcap=call.softcap or None,
                causal=call.causal, mask=mask, sink_logit=sink,
            )
        )  # fmt: skip
        return function(module, *args, **kwargs)


def _matching(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters whose names match."""
    own = {n: p for n, p in model.named_parameters() if "sinkgate_" not in n}
    found: dict[str, nn.Parameter] = {}
    for pattern in patterns:
        names = fnmatch.filter(own, pattern)
        if not names:
            example = next((n for n in own if "proj" in n), next(iter(own)))
            raise ArgumentError(f"no parameter matches {pattern!r}; names look like {example}")
        found |= {n: own[n] for n in names}
    return found
