"""One training loop for any task: a configuration, a schedule, a log, and a checkpoint to go on from.

What is bit for bit the same after a kill and a resume: parameters and log, on the same machine, number of threads and
versions, wherever the task's own operations are deterministic. No random state is kept for that: every step seeds its
own, so dropout and the like are a function of (seed, step).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.files import jsonable
from sinkgate.lab.checkpoint import History, Snapshot
from sinkgate.lab.config import LoopConfig, learning_rate, step_seed
from sinkgate.lab.spikes import is_spike
from sinkgate.lab.together import ALONE, Alone, Files

__all__ = ["History", "LoopConfig", "Task", "learning_rate", "step_seed", "train"]

OURS = ("step", "lr", "grad_norm", "spike", "done")  # columns of the log that a task cannot name


class Task(Protocol):
    """What is trained, on what, for what.

    Optional methods: ``state() -> dict[str, Tensor]`` and ``load_state(dict)``, both or neither, for what a checkpoint
    holds besides parameters (buffers); ``evaluate(step) -> dict[str, float]``, called without gradients after the
    update of the steps ``evaluate_every`` names and of the last one, and logged with them; ``done(line) -> bool``, asked
    of every step's line before it is logged: True makes this step the last one, and its line says ``"done": true``.
    """

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name; the same objects at every call. Everything else is the task's to freeze."""
        ...

    def batch(self, step: int) -> Any:
        """The data of a micro-batch, a function of its number alone: a resumed run reads what the whole one did."""
        ...

    def loss(self, batch: Any, step: int) -> dict[str, Tensor]:
        """``"loss"``, a scalar to minimise; the rest is logged: the mean over micro-batches, of ``"tokens"`` the sum."""
        ...

    def project(self) -> None:
        """Called after every update, without gradients: put parameters back where they must be (``w >= 0``)."""
        ...


def train(
    task: Task,
    config: LoopConfig,
    folder: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    multipliers: dict[str, float | Tensor] | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    together: Alone = ALONE,
) -> History:
    """Train a task; the caller's random state is as before when this returns or raises.

    Args:
        task: changed in place.
        config: how.
        folder: gets ``log.jsonl``, ``checkpoint.safetensors`` and ``config.json``; None keeps nothing.
        resume: go on from the folder's checkpoint, or from the start if there is none yet. A run that is finished
            gives its history (and the task its final parameters) without training.
        multipliers: of the learning rate, by parameter name: a number or a tensor that broadcasts to the parameter. They
            scale the *update*, weight decay included (Adam forgets the scale of a gradient): 0 freezes.
        progress: called with each step's line when it is in the log.
        together: with which other processes; see :mod:`sinkgate.lab.sharded`.

    Returns:
        The log, from step 0 on.

    Raises:
        ArgumentError: the task, a multiplier or the combination of arguments is wrong.
        NonFiniteError: the loss or the gradient norm is not finite. That step is in the log, its update was not made,
            and the checkpoint is the last one before it. Or a parameter is not, when a checkpoint is due; or the task's
            ``evaluate`` says so.
        OutputError: the folder cannot be written, or holds a run and ``resume`` is False.
        RecordError: the folder's checkpoint or log is damaged or of another run; the message names what differs.
        UnsupportedError: a parameter is neither on a CPU nor on a CUDA device.
    """
    if resume and folder is None:
        raise ArgumentError("resume=True needs the folder of the run to go on with")
    parameters = _parameters(task, config)
    factors = _factors(multipliers or {}, parameters)
    done: Callable[[dict[str, Any]], bool] | None = getattr(task, "done", None)
    devices = sorted({p.get_device() for p in parameters.values() if p.is_cuda})
    optimizer = _optimizer(parameters, config)
    run = {
        "config": config.to_json(),
        "parameters": {n: f"{str(p.dtype).removeprefix('torch.')}{list(p.shape)}" for n, p in parameters.items()},
        "multipliers": {n: m if isinstance(m, float) else _fingerprint(m) for n, m in factors.items()},
    }
    files = None if folder is None else together.open(folder, run, resume)
    history = History() if files is None else files.history
    with files or nullcontext(), torch.random.fork_rng(devices=devices):
        if files and files.snapshot:
            _restore(files.snapshot, task, parameters, optimizer, together)
        elif files:  # at once, so that a resume never depends on how the task began
            _save(files, 0, task, parameters, optimizer, together)
        ended = bool(history.steps) and history.steps[-1].get("done", False)
        for step in range(config.steps if ended else history.final_step + 1, config.steps):
            _seed(step_seed(config.seed, step), devices)
            lr = learning_rate(config, step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            logged = together.agree(_gradients(task, config, step))
            norm = _clip(parameters, config.clip, together)
            line = {"step": step, "loss": logged.pop("loss"), "lr": lr, "grad_norm": norm, **logged}
            bad = next((name for name in ("loss", "grad_norm") if not math.isfinite(line[name])), None)
            trouble = None
            if bad is None:
                _update(task, optimizer, parameters, factors)
                try:
                    line |= _evaluation(task, config, step, line)
                except NonFiniteError as err:  # the step was made and belongs in the log
                    trouble = NonFiniteError(f"after step {step}: {err}; the last checkpoint stands")
            before = [earlier["loss"] for earlier in history.steps[-config.spike_window :]]
            if is_spike(before, line["loss"], config.spike_window, config.spike_factor):
                line["spike"] = True
            if bad is None and done is not None and done(line):
                line["done"] = ended = True
            if files:
                files.append(jsonable(line))
            else:
                history.steps.append(jsonable(line))
            if trouble is not None:
                raise trouble
            if bad is not None:
                raise NonFiniteError(
                    f"{bad} is {line[bad]} at step {step}: nothing was updated in this step and the last checkpoint "
                    "stands; lower lr, lengthen warmup or set clip"
                )
            last = ended or step + 1 == config.steps
            if files and (last or (config.save_every and (step + 1) % config.save_every == 0)):
                _save(files, step + 1, task, parameters, optimizer, together)
            if progress is not None:
                progress(history.steps[-1])
            if ended:
                break
        optimizer.zero_grad()
    return history


# ---- one step ----------------------------------------------------------------------------------------------------


def _seed(seed: int, devices: list[int]) -> None:
    """The generators this run uses and no others: the caller's random state can then be put back whole."""
    torch.default_generator.manual_seed(seed)
    for device in devices:
        torch.cuda.default_generators[device].manual_seed(seed)


def _gradients(task: Task, config: LoopConfig, step: int) -> dict[str, float]:
    """Leaves the gradient of the mean loss over a step's micro-batches; returns what is logged of them."""
    logged: dict[str, float] = {}
    for i in range(config.accumulate):
        found = task.loss(task.batch(step * config.accumulate + i), step)
        loss = found.get("loss")
        if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
            raise ArgumentError(f"loss() must give 'loss', a scalar tensor that needs gradients; got {loss!r}")
        if taken := found.keys() & set(OURS):
            raise ArgumentError(f"loss() must not name {', '.join(sorted(taken))}: the loop logs that itself")
        (loss / config.accumulate).backward()
        for name, value in found.items():
            share = 1 if name == "tokens" else config.accumulate
            logged[name] = logged.get(name, 0.0) + _number(name, value) / share
    return logged


def _clip(parameters: dict[str, nn.Parameter], clip: float | None, together: Alone) -> float:
    """The norm of all gradients together, before they are cut to ``clip``."""
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    if not gradients:
        raise ArgumentError(f"the loss depends on none of the task's parameters: {', '.join(parameters)}")
    norm = nn.utils.get_total_norm(gradients, foreach=False)
    if clip is not None:
        nn.utils.clip_grads_with_norm_(parameters.values(), clip, norm, foreach=False)
    return together.number(norm)


@torch.no_grad()
def _update(
    task: Task,
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, nn.Parameter],
    factors: dict[str, float | Tensor],
) -> None:
    before = {name: parameters[name].clone() for name in factors}
    optimizer.step()
    for name, factor in factors.items():
        p = parameters[name]
        p.copy_(torch.lerp(before[name], p, factor))  # before + m·(p − before), and exactly p at m = 1
    task.project()


def _optimizer(parameters: dict[str, nn.Parameter], config: LoopConfig) -> torch.optim.Optimizer:
    """AdamW in its fused form, which is one pass over each parameter."""
    flat = [p for p in parameters.values() if config.decay_matrices and p.ndim < 2]
    rest = [p for p in parameters.values() if not (config.decay_matrices and p.ndim < 2)]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": flat, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps,
        weight_decay=config.weight_decay, fused=True,
    )  # fmt: skip


def _evaluation(task: Task, config: LoopConfig, step: int, line: dict[str, Any]) -> dict[str, float]:
    due = config.evaluate_every and ((step + 1) % config.evaluate_every == 0 or step + 1 == config.steps)
    if not due:
        return {}
    evaluate: Callable[[int], dict[str, float]] = getattr(task, "evaluate")  # noqa: B009 (no part of the protocol)
    with torch.no_grad():
        found = {name: _number(name, value) for name, value in evaluate(step).items()}
    if taken := found.keys() & {*line, *OURS}:
        raise ArgumentError(f"evaluate() must not name {', '.join(sorted(taken))}: the step's line has it already")
    return found


def _number(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ArgumentError(f"{name} must be one number to be logged, got a tensor of shape {list(value.shape)}")
    return float(value.item() if isinstance(value, Tensor) else value)


# ---- what is checked, kept and restored ---------------------------------------------------------------------------


def _parameters(task: Task, config: LoopConfig) -> dict[str, nn.Parameter]:
    """The task's parameters, when all of the task is as it must be."""
    if hasattr(task, "state") != hasattr(task, "load_state"):
        raise ArgumentError("a task has both state() and load_state(), or neither")
    if config.evaluate_every and not hasattr(task, "evaluate"):
        raise ArgumentError(f"evaluate_every={config.evaluate_every} needs a task with evaluate(); set it to 0")
    parameters = dict(task.parameters())
    if not parameters:
        raise ArgumentError("the task has no parameters to train")
    names: dict[int, str] = {}
    for name, p in parameters.items():
        if not p.requires_grad:
            raise ArgumentError(f"parameter {name} does not require gradients: leave it out, or unfreeze it")
        if id(p) in names:
            raise ArgumentError(f"{names[id(p)]} and {name} are the same parameter: give it once")
        if p.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(f"training runs on cpu or cuda; parameter {name} is on {p.device}")
        names[id(p)] = name
    return parameters


def _factors(multipliers: dict[str, float | Tensor], parameters: dict[str, nn.Parameter]) -> dict[str, float | Tensor]:
    """The multipliers, checked; tensors with the dtype and device of their parameter."""
    if unknown := sorted(multipliers.keys() - parameters.keys()):
        raise ArgumentError(f"multipliers for no parameter: {', '.join(unknown)}; there are {', '.join(parameters)}")
    factors: dict[str, float | Tensor] = {}
    for name, given in multipliers.items():
        p = parameters[name]
        m = given.detach().to(p) if isinstance(given, Tensor) else torch.tensor(float(given))
        if not bool((torch.isfinite(m) & (m >= 0)).all()):
            raise ArgumentError(f"the multiplier of {name} must be finite and at least 0")
        if m.ndim > p.ndim or any(a not in (1, b) for a, b in zip(m.shape[::-1], p.shape[::-1], strict=False)):
            raise ArgumentError(f"the multiplier of {name}, {list(m.shape)}, does not broadcast to {list(p.shape)}")
        factors[name] = m if isinstance(given, Tensor) else float(given)
    return factors


def _fingerprint(x: Tensor) -> str:
    data = x.detach().cpu().double().contiguous().numpy().tobytes()
    return f"tensor {list(x.shape)} {hashlib.sha256(data).hexdigest()[:12]}"


def _save(
    files: Files,
    step: int,
    task: Task,
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    together: Alone,
) -> None:
    """The checkpoint after ``step`` steps: ``parameter/NAME``, ``adam.PART/NAME``, ``state/NAME``."""
    tensors: dict[str, Tensor] = {}
    for name, p in parameters.items():
        if not together.number(torch.isfinite(p).all()):  # the checkpoint there is would be the better one
            raise NonFiniteError(f"parameter {name} is not finite after {step} steps and was not saved; lower lr")
        tensors[f"parameter/{name}"] = together.whole(p)
        tensors |= {f"adam.{part}/{name}": together.whole(x) for part, x in optimizer.state[p].items()}
    state: Callable[[], dict[str, Tensor]] | None = getattr(task, "state", None)
    files.save(step, tensors | {f"state/{name}": x for name, x in (state() if state else {}).items()})


@torch.no_grad()
def _restore(
    snapshot: Snapshot,
    task: Task,
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    together: Alone,
) -> None:
    kept: dict[str, dict[str, Tensor]] = {}
    for full, tensor in snapshot.tensors.items():
        kind, _, name = full.partition("/")
        kept.setdefault(kind, {})[name] = tensor
    for name, p in parameters.items():
        p.copy_(together.share(kept["parameter"][name], p))
        for part in ("step", "exp_avg", "exp_avg_sq"):
            if (x := kept.get(f"adam.{part}", {}).get(name)) is not None:
                optimizer.state[p][part] = together.share(x, p)  # fused: the count of steps is there too
    load_state: Callable[[dict[str, Tensor]], None] | None = getattr(task, "load_state", None)
    if load_state is not None:
        load_state(kept.get("state", {}))
