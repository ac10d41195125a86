"""How a run is trained, as a value: what it is, what it is saved as, and the two functions of a step it gives."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["LoopConfig", "learning_rate", "step_seed"]

SCHEDULES = ("constant", "cosine", "linear", "wsd")

# the least value of each whole number, and what each real number must be
_WHOLE = {"steps": 1, "warmup": 0, "accumulate": 1, "seed": 0, "save_every": 0, "evaluate_every": 0, "spike_window": 1}
_REAL: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda x: x > 0, "above 0"),
    "final_lr": (lambda x: 0 <= x <= 1, "a fraction of lr from 0 to 1"),
    "decay": (lambda x: 0 < x <= 1, "a fraction of steps above 0 and at most 1"),
    "weight_decay": (lambda x: x >= 0, "0 or more"),
    "eps": (lambda x: x > 0, "above 0"),
    "clip": (lambda x: x > 0, "above 0, or None for no clipping"),
    "spike_factor": (lambda x: x > 1, "above 1"),
}


@dataclass(frozen=True)
class LoopConfig:
    """How to train; AdamW.

    Args:
        steps: updates.
        lr: learning rate at its peak.
        schedule: see :func:`learning_rate`.
        warmup: steps before the peak.
        final_lr: what the schedule falls to, a fraction of ``lr``; ``"constant"`` has no use for it.
        decay: the fraction of steps, the last ones, in which ``"wsd"`` falls; for it alone.
        weight_decay: decoupled, for every parameter of the task alike.
        decay_matrices: only parameters of two or more dimensions decay: no gains, biases or logits.
        betas: of AdamW.
        eps: of AdamW.
        clip: the gradient norm is cut to this; None: never.
        accumulate: micro-batches per step; step n reads ``batch(n·accumulate)`` and those that follow.
        seed: of everything random in a step.
        save_every: steps between checkpoints; 0: only at the start and the end.
        evaluate_every: steps between evaluations; 0: never.
        spike_window: a loss is a spike if it is over ``spike_factor`` times the median of this many losses before it
            (and so many there are, and their median is positive).
        spike_factor: see there.

    Raises:
        ArgumentError: a value is out of range; the message names it.
    """

    steps: int
    lr: float
    schedule: str = "cosine"
    warmup: int = 0
    final_lr: float = 0.1
    decay: float = 0.2
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float | None = 1.0
    accumulate: int = 1
    seed: int = 0
    save_every: int = 100
    evaluate_every: int = 0
    spike_window: int = 20
    spike_factor: float = 2.0
    decay_matrices: bool = False

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name, (ok, need) in _REAL.items():
            value = getattr(self, name)
            if not (value is None and name == "clip") and not (_is_number(value) and ok(value)):
                raise ArgumentError(f"{name} must be {need}, got {value!r}")
        if type(self.decay_matrices) is not bool:
            raise ArgumentError(f"decay_matrices must be true or false, got {self.decay_matrices!r}")
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}")
        if self.warmup >= self.steps:
            raise ArgumentError(f"warmup must be less than steps={self.steps}, got {self.warmup}")
        betas = self.betas
        if (
            not isinstance(betas, list | tuple)
            or len(betas) != 2
            or not all(_is_number(x) and 0 <= x < 1 for x in betas)
        ):
            raise ArgumentError(f"betas must be two numbers from 0 to below 1, got {betas!r}")
        object.__setattr__(self, "betas", tuple(betas))  # JSON has lists

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, by field."""
        return {**dataclasses.asdict(self), "betas": list(self.betas)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoopConfig:
        """The inverse of :meth:`to_json`; fields with a default may be left out.

        Raises:
            ArgumentError: a key is unknown or missing, or a value out of range.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        if not isinstance(data, dict):
            raise ArgumentError(f"a training configuration must be a JSON object, got {type(data).__name__}")
        if unknown := sorted(data.keys() - fields.keys()):
            raise ArgumentError(
                f"unknown in a training configuration: {', '.join(unknown)}; known: {', '.join(fields)}"
            )
        if missing := [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in data]:
            raise ArgumentError(f"a training configuration must give {', '.join(missing)}")
        return cls(**data)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def learning_rate(config: LoopConfig, step: int) -> float:
    """The learning rate of a step, from 0: never 0 by the warmup, and ``final_lr`` is where step ``steps`` would be.

    ``lr·(step+1)/(warmup+1)`` up to the peak at step ``warmup``. Then ``"constant"`` stays, ``"linear"`` and
    ``"cosine"`` fall to ``final_lr·lr`` along a line or half a cosine, and ``"wsd"`` stays (warmup, stable, decay) and
    falls along a line in the last ``decay·steps`` steps.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / (config.warmup + 1)
    if config.schedule == "constant":
        return config.lr
    start = config.warmup
    if config.schedule == "wsd":
        start = max(start, config.steps - round(config.decay * config.steps))
    done = max(0, step - start) / max(1, config.steps - start)
    height = (1 + math.cos(math.pi * done)) / 2 if config.schedule == "cosine" else 1 - done
    return config.lr * (config.final_lr + (1 - config.final_lr) * height)


def step_seed(seed: int, step: int) -> int:
    """A seed of 63 bits for one step of a run; near arguments give unrelated seeds."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest(), "big") >> 1
