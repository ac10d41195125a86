"""Over Ray workers: the same bits as in one process, and what happens when one is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.cli import main
from sinkgate.errors import ArgumentError, OutputError, UnsupportedError, WorkerError
from sinkgate.lab import spread
from sinkgate.lab.arms import as_arm
from sinkgate.lab.checkpoint import CHECKPOINT, LOG
from sinkgate.lab.comparison import in_turn
from sinkgate.lab.pieces import Piece
from sinkgate.lab.spread import ray_runner
from sinkgate.lab.tasks.backcopy import Backcopy, BackcopyExperiment
from sinkgate.probe.spread import diagnose_with_ray
from sinkgate.probe.text import Text
from sinkgate.workers import connected

STEPS = 12


@dataclass(frozen=True)
class Dying(Backcopy):
    """Kills the process it is in at a step, as long as there are lives left in a folder."""

    at: int = 0
    deaths: str = ""
    lives: int = 1

    def make(self, arm: Any, seed: int) -> Any:
        experiment = BackcopyExperiment(self, arm, seed)
        draw = experiment.batch

        def batch(step: int) -> torch.Tensor:
            for life in range(self.lives) if step == self.at else ():
                with suppress(FileExistsError):  # another worker's, maybe of this very moment
                    (Path(self.deaths) / str(life)).touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
            return draw(step)

        experiment.batch = batch  # type: ignore[method-assign]
        return experiment


SMALL: dict[str, Any] = {"vocab": 16, "triggers": 1, "length": 16, "dim": 16, "batch": 4}


def pieces(folder: Path, task: Any = None) -> list[tuple[Piece, Path]]:
    found = [
        Piece(task or Backcopy(**SMALL), as_arm(arm), 0.01, seed, STEPS)
        for arm in ("softmax", "softmax + g1")
        for seed in (0, 1)
    ]
    return [(p, folder / p.key) for p in found]


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker with one CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """But for what a step cost."""
    assert {n: x for n, x in a.items() if n != "cost"} == {n: x for n, x in b.items() if n != "cost"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two workers on this machine; no token in the home directory, nothing sent anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's workers are nice to a busy machine, and then take minutes
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have this file on their path
        yield
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        ray.shutdown()


@pytest.mark.slow
def test_pieces_are_those_of_one_process_to_the_bit(cluster: None, tmp_path: Path) -> None:
    alone_lines: list[Any] = []
    with one_thread():
        alone = in_turn(pieces(tmp_path / "a"), "cpu", [lambda piece, line: alone_lines.append((piece, line))])
    lines: list[Any] = []
    run = ray_runner()
    spread_out = run(pieces(tmp_path / "b"), "cpu", [lambda piece, line: lines.append((piece, line))])
    for a, b in zip(alone, spread_out, strict=True):  # in this order
        same(a, b)
        assert b["cost"]["attempts"] == 1
        assert b["environment"]["threads"] == 1
    for (_, a), (_, b) in zip(pieces(tmp_path / "a"), pieces(tmp_path / "b"), strict=True):
        for name in (LOG, CHECKPOINT):
            assert (a / "run" / name).read_bytes() == (b / "run" / name).read_bytes()
        same(json.loads((a / "piece.json").read_text()), json.loads((b / "piece.json").read_text()))
    for piece, _ in pieces(tmp_path):
        assert [x for p, x in lines if p == piece] == [x for p, x in alone_lines if p == piece]
    lines.clear()
    assert run(pieces(tmp_path / "b"), "cpu", [lambda piece, line: lines.append(line)]) == spread_out  # kept, not run
    assert not lines
    assert run([], "cpu", ()) == []
    assert ray.is_initialized()  # it was not ours to stop


@pytest.mark.slow
def test_a_killed_worker_is_begun_again_and_goes_on(cluster: None, tmp_path: Path) -> None:
    with one_thread():
        whole = in_turn(pieces(tmp_path / "whole"), "cpu", ())
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    task = Dying(**SMALL, at=7, deaths=str(deaths), lives=1)
    found = ray_runner(retries=2)(pieces(tmp_path / "killed", task), "cpu", ())
    assert len(list(deaths.iterdir())) == 1
    assert sum(r["cost"]["attempts"] - 1 for r in found) == 1
    for a, b in zip(whole, found, strict=True):
        same({**a, "piece": 0}, {**b, "piece": 0})
    timed = [r["cost"]["timed_steps"] for r in found if r["cost"]["attempts"] > 1]
    assert max(timed) < STEPS  # from its checkpoint on


@pytest.mark.slow
def test_a_worker_lost_at_every_attempt_is_named_and_the_others_are_kept(cluster: None, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    some = pieces(tmp_path / "out")
    task = Dying(**SMALL, at=3, deaths=str(deaths), lives=99)
    some[1] = (Piece(task, as_arm("softmax"), 0.02, 5, STEPS), tmp_path / "out" / "doomed")
    with pytest.raises(
        WorkerError, match=r"each of 2 attempts of: softmax at learning rate 0\.02, seed 5 \("
    ) as caught:
        ray_runner(retries=1)(some, "cpu", ())
    assert "\n" not in str(caught.value)
    assert "see to the workers" in str(caught.value)
    assert len(list(deaths.iterdir())) == 2
    assert [(folder / "piece.json").exists() for _, folder in some] == [True, False, True, True]
    some[1] = (Piece(Backcopy(**SMALL), as_arm("softmax"), 0.02, 5, STEPS), tmp_path / "out" / "file")
    some[1][1].write_text("")  # what the piece itself raises comes back as it is, and is not tried again
    with pytest.raises(OutputError, match="choose another --out"):
        ray_runner()(some, "cpu", ())


@pytest.mark.slow
def test_a_worker_with_other_code_is_refused(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "code_digest", lambda: "0123456789ab")
    with pytest.raises(UnsupportedError, match=r"than the caller \(0123456789ab\); install the same one"):
        ray_runner()(pieces(tmp_path)[:1], "cpu", ())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_diagnosis_over_workers_is_that_of_one_process_to_the_bit(
    cluster: None, tmp_path: Path, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny("gemma3").save_pretrained(tmp_path / "model")
    tokenizer(bos=True).save_pretrained(tmp_path / "model")
    texts = [Text(f"text {n}", words(n, n)) for n in (100, 60, 90, 71)]
    with one_thread():
        whole = sg.diagnose(tmp_path / "model", None, texts, tokens=100)
    calls: list[Any] = []
    found = diagnose_with_ray(
        tmp_path / "model", texts, tokens=100, workers=workers, progress=lambda *call: calls.append(call)
    )
    assert isinstance(whole, sg.Diagnosis)
    assert isinstance(found, sg.Diagnosis)
    assert calls == [(i + 1, workers, "shares") for i in range(workers)]
    assert found.arrays.keys() == whole.arrays.keys()
    for name, array in whole.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].tobytes() == array.tobytes(), name
    assert {**found.meta, "created": 0} == {**whole.meta, "created": 0}
    assert found.verdict() == whole.verdict()
    if workers == 2:
        (tmp_path / "text").write_text(texts[0].content)
        model, out = str(tmp_path / "model"), tmp_path / "out"
        args = ["diagnose", model, "--text", str(tmp_path / "text"), "--tokens", "50", "--out", str(out)]
        assert main([*args, "--workers", "2"]) == 0
        assert sg.Diagnosis.load(out).samples == 2
        one = diagnose_with_ray([model, model], texts, tokens=100)
        assert isinstance(one, sg.Series)
        assert [d.samples for _, d in one] == [4, 4]
        capsys.readouterr()


@pytest.mark.slow
def test_the_page_on_scale(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny("llama").save_pretrained(tmp_path / "my-model")
    tokenizer().save_pretrained(tmp_path / "my-model")
    calls: list[str] = []
    run = SimpleNamespace(log=lambda numbers, step: calls.append("log"), finish=lambda: calls.append("finish"))
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=lambda **_: run))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    found = list(re.finditer(r"```python\n(.*?)```", text, re.S))
    assert len(found) == 4
    for block in found:
        lines = text.count("\n", 0, block.start()) + 1
        exec(compile("\n" * lines + block.group(1), "docs/scale.md", "exec"), names)
    assert calls == ["log"] * 20 + ["finish"]
    assert names["piece"] == Piece.from_json(json.loads((tmp_path / "piece.json").read_text()))


@pytest.mark.slow
def test_what_was_started_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray.shutdown()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with connected("local") as found:
        assert found is ray
        assert ray.is_initialized()
        with connected() as inner:
            assert inner is ray
        assert ray.is_initialized()
        with pytest.raises(
            ArgumentError, match=r"already connected to the Ray at .*, not 10\.0\.0\.1:6379; ray\.shutdown"
        ):
            connected("10.0.0.1:6379").__enter__()
    assert not ray.is_initialized()
    with pytest.raises(WorkerError, match="Ray cannot be reached at auto: "), connected("auto"):
        pass
    assert not ray.is_initialized()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, message in (({"cpus": 0}, "cpus must be a whole"), ({"cpus": 0.5}, "cpus must be"),
                           ({"gpus": -1}, "gpus must be"), ({"retries": -1}, "retries must be")):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            ray_runner(**wrong)
    with pytest.raises(ArgumentError, match="cuda with gpus above 0; got 'cuda' and gpus=0"):
        ray_runner()(pieces(tmp_path), "cuda", ())
    for wrong, message in (({"workers": 0}, "workers must be"), ({"token": 3}, "no option token; there are tokens"),
                           ({"device": "cuda"}, "cuda with gpus above 0"), ({"device": "cuda:1", "gpus": 1}, "got 'cuda:1' and gpus=1"), ({"threshold": 2.0}, "threshold must be")):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            diagnose_with_ray("model", ["text"], **wrong)
    with pytest.raises(ArgumentError, match="give its name or path"):
        diagnose_with_ray(tiny("llama"), ["text"])
    assert main(["diagnose", "model", "--ray", "auto"]) == 1
    assert "say how many" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    for call in (ray_runner, lambda: diagnose_with_ray("model", ["text"])):
        with pytest.raises(ArgumentError, match=r"needs the ray package: pip install 'sinkgate\[ray\]'$"):
            call()
