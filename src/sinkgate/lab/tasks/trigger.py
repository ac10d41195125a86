"""The trigger task: at one marked token write the mean of the tokens so far, everywhere else write nothing.

Ran-Milo 2026, arXiv 2603.11487. A head that has nothing to say at most positions: with softmax it must put its weight
somewhere that says nothing. Tokens are vectors of d numbers: coordinate 0 marks the BOS, 1 the trigger, d−1 the others;
2 to d−2 are drawn from U(−1, 1) for every token but the BOS.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import LoopConfig, step_seed
from sinkgate.lab.tasks.base import Found, Value, whole
from sinkgate.lab.tasks.trigger_model import Noted, TriggerModel, generator

__all__ = ["Sequences", "Trigger", "TriggerExperiment", "sequences"]


class Sequences(NamedTuple):
    """A batch.

    Args:
        x: the tokens.
        y: what has to stand at each position.
        at: where the trigger is, from 0.
    """

    x: Float[Tensor, "b t d"]
    y: Float[Tensor, "b t d"]
    at: Int[Tensor, " b"]


def sequences(
    at: Int[Tensor, " b"], length: int, dim: int, source: torch.Generator, *, residual: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Sequences:  # fmt: skip
    """Sequences with their triggers at ``at``, and their targets.

    The target at the trigger, position j from 0, is the mean of the whole token vectors at 1 to j (no BOS, the trigger
    itself too), and 0 elsewhere; with ``residual`` that is added to the tokens.
    """
    count = at.shape[0]
    x = torch.zeros(count, length, dim, dtype=dtype)
    x[:, 1:, 2 : dim - 1].uniform_(-1, 1, generator=source)
    x[:, 0, 0] = 1
    x[:, 1:, dim - 1] = 1
    rows = torch.arange(count)
    x[rows, at, 1], x[rows, at, dim - 1] = 1, 0
    position = torch.arange(length)
    share = ((position >= 1) & (position <= at[:, None])).to(dtype) / at[:, None]
    y = x.clone() if residual else torch.zeros_like(x)
    y[rows, at] += (share[:, None] @ x)[:, 0]
    return Sequences(x, y, at)


@dataclass(frozen=True)
class Trigger(Value):
    """The trigger task as a value.

    Args:
        layers: 1, or more with a residual around each.
        heads: per layer, each as wide as a token.
        length: of a sequence, its BOS included.
        dim: of a token.
        batch: sequences per step.
        bos: False hides the BOS from every later query, which leaves no token that says nothing.
        stop: training ends when the largest error in a batch is under this.
        position: of the trigger in what is measured, from 1 as in the paper; in training it is uniform from 3 to
            ``length``.
        examples: how many are measured.
        relu_over: what the arm ``relu`` is divided by: ``"tokens"``, the keys it sees but for the BOS and at least 1,
            so that the row at position i from 0 has ``max(i, 1)`` as in the author's code; ``"keys"``: all keys that the
            row sees, i + 1 of them, as that weighting is defined elsewhere here. ``relu(n=…)`` and
            ``relu(normalize=False)`` are what they say in either case.

    Raises:
        ArgumentError: a value is out of range.
    """

    layers: int = 1
    heads: int = 1
    length: int = 16
    dim: int = 16
    batch: int = 128
    bos: bool = True
    stop: float = 5e-3
    position: int = 8
    examples: int = 1000
    relu_over: str = "tokens"

    name: ClassVar[str] = "trigger"
    headline: ClassVar[str] = "linf"
    shown: ClassVar[tuple[str, ...]] = ("solved", "steps", "bos", "bos_least", "bos_most", "mass")

    def __post_init__(self) -> None:
        whole(self, layers=1, heads=1, length=3, dim=4, batch=1, position=3, examples=1)
        if self.position > self.length:
            raise ArgumentError(f"position must be from 3 to length={self.length}, got {self.position}")
        if type(self.bos) is not bool:
            raise ArgumentError(f"bos must be true or false, got {self.bos!r}")
        stop = self.stop
        if isinstance(stop, bool) or not isinstance(stop, int | float) or not 0 <= stop < math.inf:
            raise ArgumentError(f"stop must be a number of 0 or more, got {stop!r}")
        if self.relu_over not in ("tokens", "keys"):
            raise ArgumentError(f"relu_over must be tokens or keys, got {self.relu_over!r}")

    def loop(self, steps: int | None = None, lr: float | None = None, seed: int = 0) -> LoopConfig:
        """Adam at a constant rate, nothing clipped, nothing decayed; 50,000 steps at most, and 1e−3 for one layer."""
        usual = 1e-3 if self.layers == 1 else 1e-4
        return LoopConfig(
            steps=50_000 if steps is None else steps, lr=usual if lr is None else lr, schedule="constant",
            betas=(0.9, 0.95), clip=None, seed=seed, save_every=1000,
        )  # fmt: skip

    def make(self, arm: Arm, seed: int) -> TriggerExperiment:
        """The experiment of one arm and seed."""
        return TriggerExperiment(self, arm, seed)


class TriggerExperiment:
    """One arm and seed of the task; see :class:`~sinkgate.lab.tasks.base.Experiment`.

    Args:
        task: the task.
        arm: what is compared.
        seed: of the data and of the start.
    """

    def __init__(self, task: Trigger, arm: Arm, seed: int) -> None:
        self.task, self.arm, self.seed = task, arm, seed
        self.model: TriggerModel = TriggerModel(
            arm, layers=task.layers, heads=task.heads, length=task.length, dim=task.dim, bos=task.bos,
            relu_over=task.relu_over, seed=seed,
        )  # fmt: skip
        self._parameters = dict(self.model.named_parameters())
        self.taken, self.solved = 0, False

    def parameters(self) -> dict[str, nn.Parameter]:
        """All of the model's."""
        return self._parameters

    def batch(self, step: int) -> Sequences:
        """A function of (seed, step) alone."""
        source = torch.Generator().manual_seed(step_seed(self.seed, step))
        at = torch.randint(2, self.task.length, (self.task.batch,), generator=source)
        return self._sequences(at, source)

    def loss(self, batch: Sequences, step: int) -> dict[str, Tensor]:
        """The mean squared error, and ``linf``, the largest error."""
        error = self.model(batch.x) - batch.y
        return {"loss": error.square().mean(), "linf": error.detach().abs().max()}

    def project(self) -> None:
        """Nothing is held anywhere."""

    def done(self, line: dict[str, Any]) -> bool:
        """Whether the batch's largest error was under ``stop``."""
        self.taken, self.solved = line["step"] + 1, bool(line["linf"] < self.task.stop)
        return self.solved

    def state(self) -> dict[str, Tensor]:
        """How many steps were made, and whether the last one met the rule."""
        return {"taken": torch.tensor(self.taken), "solved": torch.tensor(self.solved)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """The inverse of :meth:`state`."""
        self.taken, self.solved = int(state["taken"]), bool(state["solved"])

    @torch.no_grad()
    def final(self, split: str) -> Found:
        """What came out on ``examples`` new sequences, the same for every arm of the seed.

        *Off* are the rows that are neither the BOS's nor the trigger's; means are over examples and such rows. Lists by
        head have layers before heads; ``bos_position`` has layers before heads before positions.

        ========================  ======================================================================================
        ``linf``, ``mse``         largest and mean squared error
        ``solved``, ``steps``     whether training met its rule (1 or 0), and after how many steps (else NaN)
        ``taken``                 steps made
        ``bos``, ``bos_least``    weight on the BOS off the trigger: mean and least over layers, heads, rows, examples
        ``bos_most``              of each example the largest over layers, heads and rows; mean over examples
        ``bos_most_least``        … and the least of them
        ``bos_highest``           … and the largest: the most that the BOS is given anywhere off the trigger
        ``null``                  what uniform weights would give the BOS there
        ``bos_over_null``         ``bos / null``; NaN where no such row sees the BOS
        ``mass``, ``mass_at``     Σ of the weights of a row, off the trigger and at it
        ``sink_token``            weight on the learned sink tokens, off the trigger; NaN without them
        ``bos_head``              by head: mean weight on the BOS off the trigger
        ``bos_least_head``        by head: the least
        ``bos_position``          by head and position, the trigger's and the BOS's own too: mean weight on the BOS
        ``mass_head``             by head: Σ of the weights off the trigger
        ``written_bos``           by head: length of what the BOS's value would write at weight 1
        ``written_others``        by head: mean length for the other tokens
        ``out_off``, ``out_at``   by layer: mean length of what is written, off the trigger and at it
        ``gate_off``              mean of the gate's values at tokens off the trigger; NaN without a gate
        ``gate_at``, ``gate_bos``  … at the trigger, and at the BOS
        ``gate_low``, ``gate_high``  least and largest value anywhere
        ``learned_z`` …           by head: what a weighting has learned
        ========================  ======================================================================================

        Raises:
            ArgumentError: no such split.
        """
        if split not in ("select", "test"):
            raise ArgumentError(f"split must be select or test, got {split!r}")
        at = torch.full((self.task.examples,), self.task.position - 1)
        data = self._sequences(at, generator(self.seed, f"trigger/{split}"))
        noted: list[Noted] = []
        error = self.model(data.x, noted) - data.y
        solved = {"solved": float(self.solved), "steps": float(self.taken) if self.solved else math.nan}
        return {
            "linf": float(error.abs().max()), "mse": float(error.square().mean()), **solved, "taken": self.taken,
            **self._weights(noted), **self._outputs(noted), **self._gates(noted),
        }  # fmt: skip

    # ---- private ------------------------------------------------------------------------------------------------

    def _sequences(self, at: Tensor, source: torch.Generator) -> Sequences:
        task, dtype = self.task, self._parameters["layers.0.q"].dtype
        return sequences(at, task.length, task.dim, source, residual=task.layers > 1, dtype=dtype)

    def _off(self) -> list[int]:
        return [i for i in range(1, self.task.length) if i != self.task.position - 1]

    def _weights(self, noted: list[Noted]) -> Found:
        n, off, trigger = self.model.sinks, self._off(), self.task.position - 1
        weights = torch.stack([x.weights[:, :, n:] for x in noted])  # [layer, b, h, row, key]
        bos, mass = weights[..., n], weights.sum(-1)
        there = bos[..., off]
        most = there.amax((0, 2, 3))
        seen = self.model.visible[n:][off]
        null = float((seen[:, n] / seen.sum(-1)).mean())
        tokens = weights[..., off, :n].sum(-1)
        return {
            "bos": float(there.mean()), "bos_least": float(there.min()), "bos_most": float(most.mean()),
            "bos_most_least": float(most.min()), "bos_highest": float(most.max()), "null": null,
            "bos_over_null": float(there.mean()) / null if null else math.nan,
            "mass": float(mass[..., off].mean()), "mass_at": float(mass[..., trigger].mean()),
            "sink_token": float(tokens.mean()) if n else math.nan,
            "bos_head": _list(there.mean((1, 3))), "bos_least_head": _list(there.amin((1, 3))),
            "bos_position": _list(bos.mean(1)), "mass_head": _list(mass[..., off].mean((1, 3))),
        }  # fmt: skip

    def _outputs(self, noted: list[Noted]) -> Found:
        n, off, trigger = self.model.sinks, self._off(), self.task.position - 1
        out = torch.stack([x.out[:, n:].norm(dim=-1) for x in noted])  # [layer, b, row]
        written = torch.stack([x.written[:, :, n:].norm(dim=-1) for x in noted])  # [layer, b, h, token]
        learned: Found = {}
        for name, p in self._parameters.items():
            if ".learned." in name:
                learned.setdefault(f"learned_{name.rpartition('.')[2]}", []).extend(_list(p))
        return {
            "written_bos": _list(written[..., 0].mean(1)), "written_others": _list(written[..., 1:].mean((1, 3))),
            "out_off": _list(out[:, :, off].mean((1, 2))), "out_at": _list(out[:, :, trigger].mean(1)), **learned,
        }  # fmt: skip

    def _gates(self, noted: list[Noted]) -> Found:
        names = ("gate_off", "gate_at", "gate_bos", "gate_low", "gate_high")
        values = [x.gate for x in noted if x.gate is not None]
        if not values:
            return dict.fromkeys(names, math.nan)
        gate = torch.stack(values)[..., self.model.sinks :, :]  # the tokens are the last but one, whatever the position
        parts = (gate[..., self._off(), :].mean(), gate[..., self.task.position - 1, :].mean(), gate[..., 0, :].mean())
        return dict(zip(names, map(float, (*parts, gate.min(), gate.max())), strict=True))


def _list(x: Tensor) -> list[float]:
    return [float(value) for value in x.flatten()]
