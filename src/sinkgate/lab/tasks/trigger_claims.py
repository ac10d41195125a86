"""What the paper of the trigger task states, as statements about numbers that were measured.

A gate or a sink logit is not among them: that either removes a sink where there is a BOS is not what this task shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.lab.tasks.base import Found
from sinkgate.lab.tasks.trigger import Trigger, sequences
from sinkgate.lab.tasks.trigger_model import TriggerModel, generator
from sinkgate.weighting.elementwise import Relu

__all__ = ["Claim", "claims", "construction", "construction_error"]

HELD, FAILED, NOT_APPLICABLE = "held", "did not hold", "not applicable"
EXACT = 1e-12  # float64: what counts as exact


@dataclass(frozen=True)
class Claim:
    """Whether a statement held in what was measured.

    Args:
        state: ``"held"``, ``"did not hold"`` or ``"not applicable"``.
        words: with the numbers, or the reason why it is not applicable.
    """

    state: str
    words: str

    def __str__(self) -> str:
        return f"{self.state}: {self.words}"


def construction(task: Trigger) -> TriggerModel:
    """The ReLU head that solves the task of one layer exactly, in float64.

    ``W_K = W_V = W_O = I`` and ``W_Q = e_2 (e_2 + e_3)ᵀ`` where e_2 marks the trigger and e_3 the other tokens: only a
    trigger asks, and every token but the BOS answers with 1; divided by ``max(i, 1)`` that is the mean.

    Raises:
        ArgumentError: the task is not the one it solves.
    """
    if task.layers > 1 or task.heads > 1 or task.relu_over != "tokens":
        raise ArgumentError("the construction is of one layer of one head with relu_over='tokens'")
    model = TriggerModel(
        Arm(Relu()), layers=1, heads=1, length=task.length, dim=task.dim, bos=task.bos, relu_over="tokens", seed=0
    ).double()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in "kvo":
            parameters[f"layers.0.{name}"].copy_(torch.eye(task.dim))
        parameters["layers.0.q"].zero_()
        parameters["layers.0.q"][1, [1, task.dim - 1]] = 1
    return model


@torch.no_grad()
def construction_error(task: Trigger | None = None, count: int = 1000, seed: int = 0) -> float:
    """The largest error of :func:`construction` over sequences with triggers anywhere, in float64."""
    task = Trigger() if task is None else task
    source = generator(seed, "trigger/construction")
    at = torch.randint(2, task.length, (count,), generator=source)
    data = sequences(at, task.length, task.dim, source, dtype=torch.float64)
    return float((construction(task)(data.x) - data.y).abs().max())


def claims(
    task: Trigger, arm: Arm, found: Found, *, epsilon: float = 0.01, exact: float | None = None
) -> dict[str, Claim]:
    """What one trained arm says about each statement.

    Args:
        task: what was trained on.
        arm: what was trained.
        found: of :meth:`~sinkgate.lab.tasks.trigger.TriggerExperiment.final`; NaN may be None.
        epsilon: a weight of ``1 − ε`` is a sink, one of ε or less is none.
        exact: the error of :func:`construction_error`; None: it was not computed.

    Returns:
        ``"single_layer"``: plain softmax of one layer and head that solves the task has a sink at every row off the
        trigger. ``"multilayer"``: with more, in every example some layer, head and row has one. ``"relu"``: the ReLU
        construction is exact. ``"relu_trained"``: trained ReLU that solves it has no sink anywhere.

    Raises:
        ArgumentError: ε is not between 0 and 1/2.
    """
    if not 0 < epsilon < 0.5:
        raise ArgumentError(f"epsilon must be above 0 and below 0.5, got {epsilon}")
    number = {name: math.nan if value is None else value for name, value in found.items()}
    line = 1 - epsilon
    said: dict[str, Claim] = dict.fromkeys(("single_layer", "multilayer"), _no("stated for softmax alone"))
    if arm == Arm() and not task.bos:
        said = dict.fromkeys(said, _no("there is no BOS to be seen"))
    elif arm == Arm() and not number["solved"]:
        said = dict.fromkeys(said, _unsolved(number))
    elif arm == Arm() and task.layers == task.heads == 1:
        least = number["bos_least"]
        words = f"least weight on the BOS off the trigger {least:.4f}, to be at least {line:g}"
        said = {"single_layer": _says(least >= line, words), "multilayer": _no("one layer of one head")}
    elif arm == Arm():
        most, where = number["bos_most_least"], f"{task.layers} × {task.heads}"
        words = f"in every example some head and row gives the BOS at least {most:.4f}, to be at least {line:g}"
        single = _no(f"stated for one layer and head; this is {where}, where heads can cancel each other")
        said = {"single_layer": single, "multilayer": _says(most >= line, words)}

    if exact is None:
        said["relu"] = _no("the construction's error was not computed")
    else:
        said["relu"] = _says(exact < EXACT, f"largest error of the construction {exact:.1e}, to be under {EXACT:g}")
    if not isinstance(arm.weighting, Relu) or arm != Arm(arm.weighting):
        said["relu_trained"] = _no("stated for ReLU alone")
    elif not task.bos:
        said["relu_trained"] = _no("there is no BOS to be seen")
    elif not number["solved"]:
        said["relu_trained"] = _unsolved(number)
    else:
        highest = max(number["bos_highest"], 0.0)
        words = f"largest weight on the BOS anywhere off the trigger {highest:.4f}, to be at most {epsilon:g}"
        said["relu_trained"] = _says(highest <= epsilon, words)
    return said


def _says(held: bool, words: str) -> Claim:
    return Claim(HELD if held else FAILED, words)


def _no(why: str) -> Claim:
    return Claim(NOT_APPLICABLE, why)


def _unsolved(number: Found) -> Claim:
    return _no(f"did not solve it (largest error {number['linf']:.3g} after {int(number['taken']):,} steps)")
