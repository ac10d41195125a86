"""The loop: schedules, multipliers, the log, and that a killed run goes on to the same bits."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, NonFiniteError, OutputError, RecordError
from sinkgate.lab.checkpoint import CHECKPOINT, CONFIG, LOG
from sinkgate.lab.loop import History, LoopConfig, learning_rate, step_seed, train


class Toy:
    """A regression with all that a checkpoint must bring back: dropout, momentum, a buffer, a constraint."""

    def __init__(self, size: int = 4) -> None:
        maker = torch.Generator().manual_seed(7)
        self.w = nn.Parameter(torch.randn(size, 3, generator=maker) * 0.3)
        self.b = nn.Parameter(torch.zeros(size))
        self.seen = torch.zeros(())

    def parameters(self) -> dict[str, nn.Parameter]:
        return {"w": self.w, "b": self.b}

    def batch(self, step: int) -> Any:
        maker = torch.Generator().manual_seed(1000 + step)
        x = torch.randn(8, 3, generator=maker)
        return x, torch.sin(x.sum(-1, keepdim=True)).expand(-1, self.b.numel())

    def loss(self, batch: Any, step: int) -> dict[str, Tensor]:
        x, y = batch
        self.seen += 1
        out = nn.functional.dropout(x, 0.3) @ self.w.T + self.b + 0.01 * self.seen
        return {"loss": (out - y).square().mean(), "tokens": torch.tensor(8), "mean": out.mean(), "bad": y.sum() / 0}

    def project(self) -> None:
        self.b.clamp_(min=0)

    def state(self) -> dict[str, Tensor]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.seen = state["seen"].clone()

    def evaluate(self, step: int) -> dict[str, float]:
        assert not torch.is_grad_enabled()
        return {"norm": self.w.norm().item(), "noise": torch.rand(()).item()}


CONFIG_8 = LoopConfig(steps=8, lr=0.05, warmup=2, weight_decay=0.1, save_every=3, evaluate_every=4, accumulate=2)


class Quadratic:
    """``Σ p·g``: the gradient is ``gradient`` always."""

    def __init__(self, gradient: Tensor) -> None:
        self.gradient, self.p = gradient, nn.Parameter(torch.ones_like(gradient))
        self.q = nn.Parameter(torch.ones(2))

    def parameters(self) -> dict[str, nn.Parameter]:
        return {"p": self.p, "q": self.q}

    def batch(self, step: int) -> float:
        return 1.0

    def loss(self, batch: float, step: int) -> dict[str, Tensor]:
        return {"loss": batch * (self.p * self.gradient).sum() + self.q.sum()}

    def project(self) -> None:
        pass


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def stop_at(step: int, error: type[BaseException] = KeyboardInterrupt) -> Callable[[dict[str, Any]], None]:
    def progress(line: dict[str, Any]) -> None:
        if line["step"] == step:
            raise error

    return progress


# ---- schedules and configuration ----------------------------------------------------------------------------------


def test_schedules_against_closed_forms() -> None:
    base = {"steps": 100, "lr": 2.0, "warmup": 9, "final_lr": 0.25}
    for name in ("constant", "cosine", "linear", "wsd"):
        config = LoopConfig(schedule=name, **base)
        assert [learning_rate(config, i) for i in range(10)] == pytest.approx([2.0 * (i + 1) / 10 for i in range(10)])
    at = {name: LoopConfig(schedule=name, **base) for name in ("constant", "cosine", "linear", "wsd")}
    for step in range(9, 101):
        done = (step - 9) / 91
        assert learning_rate(at["constant"], step) == 2.0
        assert learning_rate(at["linear"], step) == pytest.approx(2.0 - 1.5 * done)
        assert learning_rate(at["cosine"], step) == pytest.approx(0.5 + 1.5 * math.cos(math.pi * done / 2) ** 2)
        assert learning_rate(at["wsd"], step) == pytest.approx(2.0 if step < 80 else 2.0 - 1.5 * (step - 80) / 20)
    assert learning_rate(LoopConfig(steps=1, lr=3.0), 0) == 3.0
    assert all(learning_rate(LoopConfig(steps=5, lr=1.0, final_lr=0.0), i) > 0 for i in range(5))


def test_config_round_trip_and_refusals() -> None:
    config = LoopConfig(steps=10, lr=1e-3, clip=None, betas=(0.8, 0.9), schedule="wsd")
    assert LoopConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    with pytest.raises(ArgumentError, match="unknown in a training configuration: learn, rate;"):
        LoopConfig.from_json({**config.to_json(), "rate": 1, "learn": 2})
    with pytest.raises(ArgumentError, match="must give lr"):
        LoopConfig.from_json({"steps": 3})
    wrong = {
        "steps": 0, "lr": 0.0, "schedule": "step", "warmup": 10, "final_lr": 1.5, "decay": 0.0, "weight_decay": -1.0,
        "betas": [0.9], "eps": math.nan, "clip": 0.0, "accumulate": True, "seed": 1.5, "save_every": -1,
        "evaluate_every": -1, "spike_window": 0, "spike_factor": 1.0, "decay_matrices": 1,
    }  # fmt: skip
    assert wrong.keys() == config.to_json().keys()
    for name, value in wrong.items():
        with pytest.raises(ArgumentError, match=f"^{name} must be"):
            LoopConfig.from_json({**config.to_json(), name: value})


# ---- the update ---------------------------------------------------------------------------------------------------


def test_the_update_is_adamw_on_the_mean_of_the_micro_batches() -> None:
    config = LoopConfig(steps=4, lr=0.1, schedule="linear", weight_decay=0.1, clip=0.5, accumulate=2, seed=3)
    toy, other = Toy(), Toy()
    history = train(toy, config)
    optimizer = torch.optim.AdamW([other.w, other.b], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    for step in range(4):
        torch.manual_seed(step_seed(3, step))
        optimizer.param_groups[0]["lr"] = learning_rate(config, step)
        optimizer.zero_grad()
        losses = [other.loss(other.batch(2 * step + i), step)["loss"] for i in range(2)]
        (losses[0] / 2).backward()
        (losses[1] / 2).backward()
        norm = nn.utils.clip_grad_norm_([other.w, other.b], 0.5)
        optimizer.step()
        with torch.no_grad():
            other.project()
        line = history.steps[step]
        assert line["loss"] == pytest.approx(sum(x.item() for x in losses) / 2)
        assert line["grad_norm"] == pytest.approx(norm.item())
        assert line["tokens"] == 16
        assert line["bad"] is None
    torch.testing.assert_close(toy.w, other.w, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(toy.b, other.b, rtol=1e-6, atol=1e-7)
    assert bool((toy.b >= 0).all())
    assert toy.w.grad is None


def test_only_matrices_decay() -> None:
    for alone in (False, True):
        toy = Toy()
        toy.project = lambda: None  # type: ignore[method-assign]
        with torch.no_grad():
            toy.b.fill_(1.0)
        w, b = toy.w.detach().clone(), toy.b.detach().clone()
        gone = LoopConfig(steps=1, lr=0.1, schedule="constant", weight_decay=0.5, decay_matrices=alone)
        there = LoopConfig(steps=1, lr=0.1, schedule="constant", weight_decay=0.0)
        other = Toy()
        other.project = lambda: None  # type: ignore[method-assign]
        with torch.no_grad():
            other.b.fill_(1.0)
        train(toy, gone)
        train(other, there)
        torch.testing.assert_close(toy.w.detach() - other.w.detach(), -0.05 * w)
        torch.testing.assert_close(toy.b.detach() - other.b.detach(), 0 * b if alone else -0.05 * b)


def test_a_task_may_end_its_training(tmp_path: Path) -> None:
    class Short(Toy):
        def done(self, line: dict[str, Any]) -> bool:
            return line["step"] == 5

    history = train(Short(), CONFIG_8, tmp_path)
    assert history.final_step == 5
    assert [line.get("done") for line in history.steps] == [None] * 5 + [True]
    again = Short()
    assert train(again, CONFIG_8, tmp_path, resume=True).steps == history.steps
    whole = Short()
    train(whole, CONFIG_8)
    assert torch.equal(again.w, whole.w)


def test_multipliers_scale_the_update() -> None:
    gradient = torch.tensor([[3.0, -0.01], [5.0, 2.0], [-1.0, 0.5]])
    config = LoopConfig(steps=1, lr=0.1, schedule="constant", clip=None, weight_decay=0.2)

    def step(multipliers: Any, steps: int = 1) -> Quadratic:
        task = Quadratic(gradient)
        train(task, LoopConfig.from_json({**config.to_json(), "steps": steps}), multipliers=multipliers)
        return task

    plain = step(None)
    torch.testing.assert_close(plain.p, 1 - 0.02 - 0.1 * gradient.sign())  # what Adam makes of any gradient
    assert torch.equal(step({"p": 0.0}, 5).p, torch.ones(3, 2))
    torch.testing.assert_close(step({"p": 2.0}).p - 1, 2 * (plain.p - 1))
    rows = step({"p": torch.tensor([[1.0], [0.0], [3.0]])})
    torch.testing.assert_close(rows.p - 1, torch.tensor([[1.0], [0.0], [3.0]]) * (plain.p - 1))
    toys = [Toy(64), Toy(64), Toy(64)]
    for toy, m in zip(toys, (None, torch.ones(64, 1), torch.arange(64.0)[:, None]), strict=True):
        train(toy, CONFIG_8, multipliers=None if m is None else {"w": m})
    assert torch.equal(toys[0].w, toys[1].w)  # m = 1 is no multiplier at all, to the bit
    assert torch.equal(Toy(64).w[0], toys[2].w[0])
    assert not torch.equal(Toy(64).w[1], toys[2].w[1])
    for wrong, message in (({"x": 1.0}, "multipliers for no parameter: x; there are p, q"), ({"p": -1.0}, "at least 0"),
                           ({"p": torch.ones(3)}, "does not broadcast"), ({"q": math.inf}, "finite")):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            step(wrong)


def test_a_wrong_task_is_refused() -> None:
    config = LoopConfig(steps=1, lr=0.1)

    def with_(**change: Any) -> Quadratic:
        task = Quadratic(torch.ones(2))
        for name, value in change.items():
            setattr(task, name, value)
        return task

    p = nn.Parameter(torch.ones(2))
    cases = [
        (with_(parameters=dict), "no parameters"),
        (with_(parameters=lambda: {"a": p, "b": p}), "a and b are the same parameter"),
        (with_(parameters=lambda: {"a": nn.Parameter(p.detach(), requires_grad=False)}), "a does not require"),
        (with_(parameters=lambda: {"a": p}), "depends on none of the task's parameters: a"),
        (with_(loss=lambda b, s: {"loss": torch.ones(())}), "needs gradients"),
        (with_(loss=lambda b, s: {"loss": p.sum(), "lr": torch.ones(())}), "must not name lr"),
        (with_(loss=lambda b, s: {"loss": p.sum(), "x": p}), "x must be one number"),
        (with_(state=dict), "both state"),
    ]
    for task, message in cases:
        with pytest.raises(ArgumentError, match=message):
            train(task, config)
    with pytest.raises(ArgumentError, match="needs a task with evaluate"):
        train(with_(), LoopConfig(steps=1, lr=0.1, evaluate_every=1))
    with pytest.raises(ArgumentError, match="must not name loss"):
        train(with_(evaluate=lambda s: {"loss": 1.0}), LoopConfig(steps=1, lr=0.1, evaluate_every=1))
    with pytest.raises(ArgumentError, match="needs the folder"):
        train(with_(), config, resume=True)


def test_the_callers_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    train(Toy(), CONFIG_8)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(KeyboardInterrupt):
        train(Toy(), CONFIG_8, progress=stop_at(2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    first, second = Toy(), Toy()
    assert train(first, CONFIG_8) == train(second, CONFIG_8)
    assert torch.equal(first.w, second.w)
    other = Toy()
    train(other, LoopConfig.from_json({**CONFIG_8.to_json(), "seed": 1}))
    assert not torch.equal(first.w, other.w)


# ---- log, spikes, divergence --------------------------------------------------------------------------------------


def test_the_log_is_one_line_per_step(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    history = train(Toy(), CONFIG_8, tmp_path / "new" / "run", progress=seen.append)
    lines = [json.loads(line) for line in (tmp_path / "new/run" / LOG).read_text().splitlines()]
    assert lines == history.steps == seen
    assert list(lines[0]) == ["step", "loss", "lr", "grad_norm", "tokens", "mean", "bad"]
    assert history.final_step == 7
    assert [x is not None for x in history.column("norm")] == [False, False, False, True, False, False, False, True]
    assert LoopConfig.from_json(json.loads((tmp_path / "new/run" / CONFIG).read_text())) == CONFIG_8
    assert History.load(tmp_path / "new/run") == history
    with (tmp_path / "new/run" / LOG).open("ab") as f:
        f.write(b'{"step": 8, "lo')  # as a killed run leaves it
    assert History.load(tmp_path / "new/run") == history
    with pytest.raises(RecordError, match="no training log"):
        History.load(tmp_path)
    assert History().final_step == -1


class Scripted(Quadratic):
    """Losses from a list."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__(torch.zeros(2))
        self.losses = losses

    def batch(self, step: int) -> float:
        return self.losses[step]

    def loss(self, batch: float, step: int) -> dict[str, Tensor]:
        return {"loss": batch + (self.p - self.p.detach()).sum() * batch}


def test_spikes() -> None:
    losses = [9.0, 1.0, 1.0, 2.0, 1.0, 4.0, 3.0, 1.0, 1.0, 1.0, 2.1, -1.0, -1.0, -1.0, 5.0]
    history = train(Scripted(losses), LoopConfig(steps=len(losses), lr=1e-3, spike_window=3, spike_factor=2.0))
    assert history.spikes == [5, 10]  # 4 > 2·1; 2 is not over 2·1; 3 is not over 2·2; no median above 0 at the end
    assert history.steps[5]["spike"] is True
    assert "spike" not in history.steps[4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_stops_the_run_and_keeps_the_last_checkpoint(tmp_path: Path, bad: float) -> None:
    config = LoopConfig(steps=9, lr=0.01, save_every=2)
    task = Scripted([1.0] * 5 + [bad] + [1.0] * 3)
    with pytest.raises(NonFiniteError, match=r"^loss is (nan|inf) at step 5: nothing was updated"):
        train(task, config, tmp_path)
    assert bool(torch.isfinite(task.p).all())
    history = History.load(tmp_path)
    assert history.final_step == 5
    assert history.steps[-1]["loss"] is None
    again = Scripted([1.0] * 9)  # the checkpoint of step 4 is sound: the run goes on from there
    assert train(again, config, tmp_path, resume=True).column("loss") == [1.0] * 9
    whole = Scripted([1.0] * 9)
    train(whole, config)
    assert torch.equal(again.p, whole.p)

    class Steep(Scripted):
        def loss(self, batch: float, step: int) -> dict[str, Tensor]:
            return {"loss": ((self.p - self.p.detach()) * (math.inf if step == 1 else 1)).sum().nan_to_num()}

    with pytest.raises(NonFiniteError, match="grad_norm is nan at step 1"):
        train(Steep([1.0] * 9), config)


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    class Broken(Quadratic):
        def project(self) -> None:
            self.p.div_(0)

    with pytest.raises(NonFiniteError, match="parameter p is not finite after 1 steps"):
        train(Broken(torch.ones(2)), LoopConfig(steps=3, lr=0.1, save_every=1), tmp_path)
    task = Quadratic(torch.ones(2))
    assert train(task, LoopConfig(steps=3, lr=0.1, save_every=1), tmp_path, resume=True).final_step == 2


# ---- going on -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multipliers", [None, {"w": torch.tensor([[2.0], [0.0], [1.0], [0.5]]), "b": 3.0}])
def test_resumed_at_every_step_is_the_whole(tmp_path: Path, multipliers: Any) -> None:
    whole = Toy()
    history = train(whole, CONFIG_8, tmp_path / "whole", multipliers=multipliers)
    for step in range(8):
        folder = tmp_path / str(step)
        with pytest.raises(KeyboardInterrupt):
            train(Toy(), CONFIG_8, folder, multipliers=multipliers, progress=stop_at(step))
        assert History.load(folder).final_step == step
        toy = Toy()
        with torch.no_grad():
            toy.w.zero_()  # the checkpoint holds where the run began, too
        assert train(toy, CONFIG_8, folder, resume=True, multipliers=multipliers) == history
        assert torch.equal(toy.w, whole.w)
        assert torch.equal(toy.b, whole.b)
        assert torch.equal(toy.seen, whole.seen)
        assert files(folder) == files(tmp_path / "whole")
        with pytest.raises(OutputError, match=r"already holds checkpoint\.safetensors: resume that run, or choose"):
            train(Toy(), CONFIG_8, folder, multipliers=multipliers)
    finished = Toy()
    calls: list[Any] = []
    assert train(finished, CONFIG_8, folder, resume=True, multipliers=multipliers, progress=calls.append) == history
    assert not calls
    assert torch.equal(finished.w, whole.w)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """At each write of a run: the process ends before it, or just behind it; then the next one goes on."""
    from sinkgate.lab import checkpoint

    whole = Toy()
    train(whole, CONFIG_8, tmp_path / "whole")
    write = checkpoint.write_atomically
    for kill in range(5):
        folder, count = tmp_path / str(kill), iter(range(99))

        def dies(path: Path, data: bytes, count: Any = count, kill: int = kill) -> None:
            now = next(count) == kill
            if now and when == "before":
                (path.parent / f".{path.name}.litter").write_bytes(data[: len(data) // 2])
                raise KeyboardInterrupt
            write(path, data)
            if now:
                raise KeyboardInterrupt

        monkeypatch.setattr(checkpoint, "write_atomically", dies)
        with pytest.raises(KeyboardInterrupt):
            train(Toy(), CONFIG_8, folder)
        monkeypatch.setattr(checkpoint, "write_atomically", write)
        with (folder / LOG).open("ab") as f:
            f.write(b'{"ste' if (folder / CHECKPOINT).exists() else b"")
        toy = Toy()
        train(toy, CONFIG_8, folder, resume=True)
        assert torch.equal(toy.w, whole.w)
        (folder / f".{CONFIG}.litter").unlink(missing_ok=True)
        assert files(folder) == files(tmp_path / "whole")


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Toy(), CONFIG_8, tmp_path, multipliers={"b": 2.0}, progress=stop_at(4))
    before = files(tmp_path)

    def resumed(task: Any, multipliers: Any, **change: Any) -> None:
        config = LoopConfig.from_json({**CONFIG_8.to_json(), **change})
        train(task, config, tmp_path, resume=True, multipliers=multipliers)

    with pytest.raises(RecordError, match=r"config: lr is 0\.05 there and 0\.1 here; resume with the same"):
        resumed(Toy(), {"b": 2.0}, lr=0.1)
    with pytest.raises(RecordError, match=r"parameters: b is float32\[4\] there and float32\[5\] here"):
        resumed(Toy(5), {"b": 2.0})
    with pytest.raises(RecordError, match=r"multipliers: b is 2\.0 there and absent here"):
        resumed(Toy(), None)
    toy = Toy()
    toy.parameters = lambda: {"w": toy.w, "b": toy.b, "c": nn.Parameter(torch.ones(1))}  # type: ignore[method-assign]
    with pytest.raises(RecordError, match=r"parameters: c is absent there and float32\[1\] here"):
        resumed(toy, {"b": 2.0})
    assert files(tmp_path) == before


def test_damage_is_found(tmp_path: Path) -> None:
    def folder(name: str) -> Path:
        with pytest.raises(KeyboardInterrupt):
            train(Toy(), CONFIG_8, tmp_path / name, progress=stop_at(4))
        return tmp_path / name

    def refused(where: Path, message: str) -> None:
        with pytest.raises(RecordError, match=message):
            train(Toy(), CONFIG_8, where, resume=True)

    data = (folder("a") / CHECKPOINT).read_bytes()
    for cut in (0, 5, 100, len(data) - 1):
        (tmp_path / "a" / CHECKPOINT).write_bytes(data[:cut])
        refused(tmp_path / "a", "is damaged")
    for at in (len(data) - 3, data.index(b"log_bytes") + 13, *random.Random(0).sample(range(8, len(data)), 50)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        (tmp_path / "a" / CHECKPOINT).write_bytes(flipped)
        refused(tmp_path / "a", "is damaged|is no checkpoint")
    (folder("b") / LOG).write_bytes(b"")
    refused(tmp_path / "b", "lacks lines")
    log = (folder("c") / LOG).read_bytes()
    (tmp_path / "c" / LOG).write_bytes(b"x" + log[1:])
    refused(tmp_path / "c", r"log\.jsonl is damaged")
    (folder("d") / CHECKPOINT).unlink()
    refused(tmp_path / "d", r"has lines but checkpoint\.safetensors is missing")


def test_a_folder_that_is_no_runs_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text('{"model_type": "llama"}')
    with pytest.raises(OutputError, match=r"already holds config\.json"):
        train(Toy(), CONFIG_8, tmp_path)
    with pytest.raises(RecordError, match="is of another run: config: accumulate is absent there"):
        train(Toy(), CONFIG_8, tmp_path, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == [CONFIG]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot use the folder"):
        train(Toy(), CONFIG_8, tmp_path / "file")


# ---- a real kill --------------------------------------------------------------------------------------------------

LONG = LoopConfig(steps=400, lr=0.01, warmup=20, weight_decay=0.1, save_every=2, evaluate_every=50)


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    whole = Toy(64)
    train(whole, LONG, tmp_path / "whole")
    chance, kills = random.Random(0), 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for start in (0.05, 0.3, 0.55, 0.8):  # of the log: let it come so far, then kill at any moment
        size = start * (tmp_path / "whole" / LOG).stat().st_size
        run = subprocess.Popen([sys.executable, __file__, str(tmp_path / "killed")], env=environment)
        log = tmp_path / "killed" / LOG
        while run.poll() is None and not (log.exists() and log.stat().st_size >= size):
            time.sleep(0.001)
        time.sleep(chance.random() * 0.1)
        run.send_signal(signal.SIGKILL)
        kills += run.wait() == -signal.SIGKILL
    assert kills >= 3
    done = subprocess.run([sys.executable, __file__, str(tmp_path / "killed")], env=environment, check=False)
    assert done.returncode == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


if __name__ == "__main__":
    train(Toy(64), LONG, sys.argv[1], resume=True)
