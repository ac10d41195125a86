"""Comparisons: pairing, best rates, intervals, divergence, and that a killed one goes on to the same bits."""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import sinkgate as sg
from sinkgate.errors import ArgumentError, OutputError, RecordError, TextError
from sinkgate.lab import pieces as piece_module
from sinkgate.lab.arms import as_arm
from sinkgate.lab.comparison import Plan, best_rate, compare
from sinkgate.lab.comparison_record import Comparison
from sinkgate.lab.pieces import Piece, run_piece
from sinkgate.lab.tasks import as_task

FEW = {"evaluate_every": 10}  # evaluations cost more than steps here
TINY = {"vocab": 12, "length": 16, "dim": 16, "batch": 4, "triggers": 1}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Everything but the times."""
    strip = lambda record: {n: x for n, x in record.items() if n != "cost"}  # noqa: E731
    return json.dumps(strip(a)) == json.dumps(strip(b))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    out = tmp_path_factory.mktemp("comparison") / "out"
    record = compare(
        "backcopy", "softmax, softmax + g1, softpick", seeds=3, lrs=[1e-2, 1e-3], steps=30, sweep=2, out=out, cost_rounds=2,
        loop_changes=FEW,
        **TINY,
    )  # fmt: skip
    return record, out


def test_arms_are_paired(done: tuple[Comparison, Path]) -> None:
    record, _ = done
    assert len(record.pieces) == 3 * 2 * 2 + 3
    for arm in record.arms:
        assert [p["piece"]["seed"] for p in record.at_best(arm)] == [0, 1, 2]
    task = as_task("backcopy", **TINY)
    a, b = (task.make(as_arm(arm), 1) for arm in ("softmax", "softpick + g1"))
    assert torch.equal(a.batch(5), b.batch(5))
    assert not torch.equal(a.batch(5), a.batch(6))
    assert not torch.equal(a.batch(5), task.make(as_arm("softmax"), 2).batch(5))
    shared = dict(b.model.named_parameters())
    assert all(torch.equal(p, shared[n]) for n, p in a.model.named_parameters())
    for part in ("select", "test"):  # all arms and seeds are asked the same
        first = [p[part]["loss"] for p in record.pieces]
        assert len(set(first)) == len(first)


def test_the_rate_is_chosen_on_separate_data(done: tuple[Comparison, Path]) -> None:
    record, _ = done
    for arm in record.arms:
        sweep = record.sweep(arm)
        assert sorted(sweep) == [1e-3, 1e-2]
        for lr, values in sweep.items():
            want = [p["select"]["excess_loss"] for p in record.pieces
                    if p["arm"] == arm and p["piece"]["lr"] == lr and p["piece"]["seed"] < 2]  # fmt: skip
            assert values == want
        assert record.meta["best_lr"][arm] == min(sweep, key=lambda lr: sum(sweep[lr]))
    plan = Plan(as_task("backcopy", **TINY), (as_arm("softmax"),), (0, 1), (1e-3, 1e-2, 1e-1), 5, 2)
    made = lambda lr, x, bad=None: {"piece": {"lr": lr}, "select": {"excess_loss": x}, "diverged": bad}  # noqa: E731
    records = [
        made(1e-3, 2.0),
        made(1e-3, 2.0),
        made(1e-2, 1.0),
        made(1e-2, 1.5),
        made(1e-1, 0.1),
        made(1e-1, 0.1, {"step": 3}),
    ]
    assert best_rate(plan, records) == 1e-2  # the highest one diverged once
    assert best_rate(plan, [made(lr, None, {"step": 0}) for lr in (1e-2, 1e-3)]) == 1e-3


def test_intervals_against_scipy(done: tuple[Comparison, Path]) -> None:
    record, _ = done
    a, b = record.values("softmax", "loss"), record.values("softpick", "loss")
    found = record.difference("softpick", "loss")
    want = stats.ttest_rel(b, a).confidence_interval(0.95)
    assert float(found.low) == pytest.approx(want.low)
    assert float(found.high) == pytest.approx(want.high)
    assert float(found.mean) == pytest.approx(np.mean(b - a))
    assert "softmax + g1" in str(record)
    assert len(record.table()[1]) == 3


def fake(values: dict[str, list[float | None]], *, higher: bool = False, seeds: int = 3) -> Comparison:
    """A record with these headlines."""
    pieces = [
        {"arm": arm, "piece": {"lr": 0.1, "seed": i}, "select": {"score": x}, "test": {"score": x}, "spikes": [], "steps": 9,
         "parameters": 5, "diverged": {"step": 3, "why": "loss"} if x is None else None,
         "cost": {"seconds_per_step": 1.0, "attempts": 1 + (i == 2)}}
        for arm, numbers in values.items() for i, x in enumerate(numbers)
    ]  # fmt: skip
    arms = list(values)
    meta = {"plan": {"seeds": list(range(seeds)), "sweep": 1, "task": {"name": "fake"}}, "headline": "score", "higher": higher,
            "shown": [], "arms": arms, "best_lr": dict.fromkeys(arms, 0.1), "cost": {},
            "environment": {"device": "cpu", "threads": 1, "code": "x"}}  # fmt: skip
    return Comparison(meta, pieces)


def test_what_is_said() -> None:
    record = fake({"a": [1.0, 1.1, 0.9], "lower": [0.5, 0.6, 0.42], "same": [1.1, 1.0, 0.95], "gone": [None, None, None],
                   "one": [0.5, None, None]})  # fmt: skip
    told = {arm: record.told_apart(arm) for arm in record.arms[1:]}
    assert told == {
        "lower": "better", "same": "no difference found", "gone": "nothing to compare (diverged)",
        "one": "one seed: no spread, nothing can be said",
    }  # fmt: skip
    said = " ".join(record.sentences())
    low, high = stats.t.interval(0.95, 2, -0.4933333, stats.sem([-0.5, -0.5, -0.48]))
    assert f"lower is better than a: score -0.493 [{low:+.3g}, {high:+.3g}], paired over 3 seeds" in said
    assert "same against a: no difference found at this size" in said
    half = stats.t.ppf(0.975, 2) * np.std([0.1, -0.1, 0.05], ddof=1) / math.sqrt(3)
    assert f"one smaller than {half:.2g} could not have been seen" in said
    assert "gone diverged at learning rate 0.1 (3 runs)" in said
    assert "5 times a piece was taken up again" in said
    assert fake({"a": [1.0, 1.1, 0.9], "b": [0.5, 0.6, 0.42]}, higher=True).told_apart("b") == "worse"
    assert "nan" not in str(record).lower()


def test_a_record_is_saved_and_opened(done: tuple[Comparison, Path], tmp_path: Path) -> None:
    record, out = done
    again = Comparison.load(out)
    assert again.pieces == json.loads(json.dumps(record.pieces))
    assert str(again) == str(record)
    config = record.pieces[0]
    assert config["loop"]["lr"] == config["piece"]["lr"]
    assert {"code", "torch", "threads", "cpu"} <= config["environment"].keys()
    assert Plan.from_json(record.meta["plan"]).to_json() == record.meta["plan"]
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(RecordError, match="not a readable comparison"):
        Comparison.load(tmp_path / "x.json")


def test_resumed_it_trains_nothing_again(done: tuple[Comparison, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    record, out = done
    monkeypatch.setattr(piece_module, "train", None)
    again = compare(
        "backcopy",
        "softmax, softmax + g1, softpick",
        seeds=3,
        lrs=[1e-2, 1e-3],
        steps=30,
        sweep=2,
        loop_changes=FEW,
        out=out,
        resume=True,
        **TINY,
    )
    assert all(same(a, b) for a, b in zip(again.pieces, record.pieces, strict=True))


def test_another_comparison_is_not_gone_on_with(done: tuple[Comparison, Path], tmp_path: Path) -> None:
    _, out = done
    given: dict[str, Any] = {
        "seeds": 3,
        "lrs": [1e-2, 1e-3],
        "steps": 30,
        "sweep": 2,
        "out": out,
        "loop_changes": FEW,
        **TINY,
    }
    with pytest.raises(OutputError, match="already holds this comparison: resume it"):
        compare("backcopy", "softmax, softmax + g1, softpick", **given)
    with pytest.raises(RecordError, match=r"steps is 30 there and 31 here; task.dim is 16 there and 32 here"):
        compare("backcopy", "softmax, softmax + g1, softpick", resume=True, **{**given, "steps": 31, "dim": 32})
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match="is not empty and holds no comparison"):
        compare("backcopy", out=tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "x"


def test_a_diverging_arm_stops_and_the_others_go_on(tmp_path: Path) -> None:
    record = compare(
        "backcopy", "relu(normalize=false,squared=true), softmax", seeds=2, lrs=[1e18], steps=30, out=tmp_path / "o",
        cost_rounds=0, **TINY,
    )  # fmt: skip
    gone = [p for p in record.pieces if p["diverged"]]
    assert len(gone) >= 2
    assert len(record.pieces) == 4
    for piece in gone:
        assert piece["test"] == {}
        assert piece["diverged"]["why"]
        assert piece["curve"]
    assert "diverged" in str(record)


def test_a_run_that_learned_nothing_is_called_diverged(tmp_path: Path) -> None:
    piece = Piece(as_task("backcopy", **TINY), as_arm("softmax"), 1e-300, 0, 25)
    record = run_piece(piece, tmp_path / "p")
    assert record["diverged"] is None or record["diverged"]["why"] == "the training loss ended no lower than it began"
    history = piece_module.History([{"step": i, "loss": 1.0 + i, "lr": 1.0, "grad_norm": 1.0} for i in range(30)])
    assert piece_module._unlearned(history)
    falling = piece_module.History([{"step": i, "loss": 1.0 / (1 + i), "lr": 1.0, "grad_norm": 1.0} for i in range(30)])
    assert piece_module._unlearned(falling) is None


def test_what_is_wrong_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    for given, error, says in (
        ({"arms": ""}, ArgumentError, "an arm is empty"),
        ({"arms": []}, ArgumentError, "no arms"),
        ({"seeds": 0}, ArgumentError, "seeds must be at least 1"),
        ({"seeds": [1, 1]}, ArgumentError, "different"),
        ({"lrs": [0.1, 0.1]}, ArgumentError, "different"),
        ({"lrs": [-1.0]}, ArgumentError, "lr must be above 0"),
        ({"sweep": 3}, ArgumentError, "sweep must be from 1 to"),
        ({"steps": 0}, ArgumentError, "steps must be"),
        ({"layers": 0}, ArgumentError, "layers must be"),
        ({"colour": 1}, ArgumentError, "has no colour"),
        ({"task": "chess"}, ArgumentError, "task 'chess' is not known"),
        ({"task": "text", "texts": ("nowhere.txt",)}, TextError, "cannot read the text"),
    ):
        args: dict[str, Any] = {"task": "backcopy", "arms": "softmax", "seeds": 1, "out": tmp_path / "o", **given}
        with pytest.raises(error, match=says) as caught:
            compare(args.pop("task"), args.pop("arms"), **args)
        assert "\n" not in str(caught.value)
        shutil.rmtree(tmp_path / "o", ignore_errors=True)


KILLED = """
import sys
from sinkgate.lab.comparison import compare
compare({task!r}, "softmax, softpick + g1", seeds=2, steps=40, out=sys.argv[1], resume=True, cost_rounds=0, **{settings!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("task", ["backcopy", "text"])
def test_killed_at_any_moment_it_goes_on_to_the_same_bits(task: str, tmp_path: Path) -> None:
    """kill −9 at growing times, resumed until it ends: every record is that of a run that was never killed."""
    settings: dict[str, Any] = TINY
    if task == "text":
        (tmp_path / "a.txt").write_text("so it goes, and so it went, as it was in the beginning " * 300)
        settings = {"texts": (str(tmp_path / "a.txt"),), "tokenizer": "bytes", "dim": 16, "layers": 2, "heads": 2,
                    "context": 32, "batch": 4, "held_out": 2, "watched": 2}  # fmt: skip
    code = KILLED.format(task=task, settings=settings)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole = tmp_path / "whole"
    subprocess.run([sys.executable, "-c", code, str(whole)], check=True, env=env, timeout=300)
    out, kills = tmp_path / "out", 0
    for attempt in range(20):
        process = subprocess.Popen([sys.executable, "-c", code, str(out)], env=env)
        start = time.monotonic()
        while process.poll() is None and not (out / "pieces").exists() and time.monotonic() - start < 120:
            time.sleep(0.01)  # until it has begun to train
        try:
            process.wait(0.2 + 1.0 * attempt**2)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills >= 2
    a, b = Comparison.load(whole), Comparison.load(out)
    assert len(a.pieces) == len(b.pieces) == 4
    for one, other in zip(a.pieces, b.pieces, strict=True):
        assert same(one, other)
    assert sum(p["cost"]["attempts"] for p in b.pieces) > 4
    logs = lambda at: {p.relative_to(at): p.read_bytes() for p in sorted(at.glob("pieces/**/run/*"))}  # noqa: E731
    assert logs(whole) == logs(out)


def test_the_loop_is_changed_for_every_arm(tmp_path: Path) -> None:
    record = compare("backcopy", "softmax, softpick", steps=4, loop_changes={"weight_decay": 0.5, "clip": None}, out=tmp_path / "o",
                     cost_rounds=0, **TINY)  # fmt: skip
    assert [(p["loop"]["weight_decay"], p["loop"]["clip"]) for p in record.pieces] == [(0.5, None)] * 2
    assert Plan.from_json(record.meta["plan"]).loop_changes == {"weight_decay": 0.5, "clip": None}
    assert Piece.from_json(record.pieces[0]["piece"]).loop.weight_decay == 0.5
    with pytest.raises(RecordError, match="loop_changes"):
        compare("backcopy", "softmax, softpick", steps=4, out=tmp_path / "o", resume=True, **TINY)
    with pytest.raises(ArgumentError, match="unknown in a training configuration: colour"):
        compare("backcopy", "softmax", loop_changes={"colour": 1}, out=tmp_path / "p", **TINY)


def test_a_piece_leaves_nothing_in_memory(tmp_path: Path) -> None:
    alive = lambda: sum(1 for x in gc.get_objects() if type(x) is torch.Tensor)  # noqa: E731
    counts = []
    for i in range(3):
        record = run_piece(Piece(as_task("backcopy", **TINY), as_arm("softmax"), 1e-2, i, 3), tmp_path / str(i))
        assert record["cost"]["bytes"]["activations"] > 0
        gc.collect()
        counts.append(alive())
    assert counts[2] == counts[1]


def test_a_full_disk_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sinkgate.lab.checkpoint.write_atomically", full)
    with pytest.raises(OutputError, match="No space left on device"):
        compare("backcopy", "softmax", steps=3, out=tmp_path / "o", **TINY)
    monkeypatch.undo()
    record = compare("backcopy", "softmax", steps=3, out=tmp_path / "o", resume=True, cost_rounds=0, **TINY)
    assert len(record.pieces) == 1


def test_public_names() -> None:
    assert sg.compare is compare
    assert sg.Comparison is Comparison
    assert str(sg.Arm()) == "softmax"


def test_timing_the_steps_is_a_small_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("sinkgate.lab.comparison.cost_per_step", lambda *_a, rounds, **_k: asked.append(rounds) or {})
    for i, steps in enumerate((4, 800, 2000)):
        monkeypatch.setattr(
            "sinkgate.lab.comparison.in_turn",
            lambda pieces, *_, steps=steps: [
                {"steps": steps, "piece": {"lr": p.lr}, "select": {}, "diverged": None, "arm": str(p.arm)}
                for p, _ in pieces
            ],
        )
        compare("backcopy", "softmax, softpick", seeds=1, steps=steps, out=tmp_path / str(i), **TINY)
    assert asked == [1, 3, 5]


def test_what_an_arm_adds_learns_at_a_rate_of_its_own(tmp_path: Path) -> None:
    import safetensors.torch

    from sinkgate.lab.pieces import multipliers

    task = as_task("backcopy", **TINY)
    ends = {}
    for text in ("softmax + g1", "softmax + g1 + outlet_lr(0)", "softmax + g1 + outlet_lr(0.5)"):
        piece = Piece(task, as_arm(text), 1e-2, 0, 1, {"weight_decay": 0.0})
        run_piece(piece, tmp_path / piece_module.slug(text))
        kept = safetensors.torch.load_file(tmp_path / piece_module.slug(text) / "run" / "checkpoint.safetensors")
        ends[text] = {n.removeprefix("parameter/"): x for n, x in kept.items() if n.startswith("parameter/")}
    whole, none, half = ends.values()
    start = dict(task.make(as_arm("softmax + g1"), 0).model.named_parameters())
    added = {"blocks.0.attention.gate.proj.weight"}
    assert (
        set(multipliers(task, as_arm("softmax + g1 + outlet_lr(2)"), task.make(as_arm("softmax + g1"), 0), 0)) == added
    )
    for name, begun in start.items():
        if name in added:
            assert torch.equal(none[name], begun)
            torch.testing.assert_close(half[name] - begun, (whole[name] - begun) / 2, rtol=1e-4, atol=1e-7)
            assert not torch.equal(whole[name], begun)
        else:  # one step: nothing has come back from the gate yet
            assert torch.equal(none[name], whole[name])
    with pytest.raises(ArgumentError, match=r"outlet_lr\(3\) has no meaning in 'softpick \+ outlet_lr\(3\)'"):
        compare(task, ["softmax", "softpick + outlet_lr(3)"], steps=2, out=tmp_path / "none")
