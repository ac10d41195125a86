"""Two gloo processes and FSDP2: one process's run to rounding, and its own to the bit after a kill."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models import words
from sinkgate.errors import SinkgateError
from sinkgate.lab.arms import as_arm
from sinkgate.lab.checkpoint import CHECKPOINT, LOG, History
from sinkgate.lab.pieces import Piece, run_piece
from sinkgate.lab.sharded import main, run_sharded
from sinkgate.lab.tasks.backcopy import Backcopy
from sinkgate.lab.tasks.language import Language

STEPS = 20
LINE = 1e-5  # of a logged loss or norm, relative; 50 to 100 times what is seen
PARAMETER = 1e-5  # of a parameter whose peak rate is 4e-3; Adam makes a whole step of a gradient that is only rounding
STOPPED = 13


def piece(folder: Path, arm: str = "sink_softmax + g1") -> Piece:
    """A layer norm, a tied head, logits and gates: parameters of every shape; a checkpoint every second step."""
    task = Language(
        texts=(str(folder / "text"),), tokenizer="bytes", dim=32, layers=2, heads=2, context=32, batch=4, dtype="float32",
        held_out=4, watched=2, lengths=(1, 2),
    )  # fmt: skip
    return Piece(task, as_arm(arm), 4e-3, 0, STEPS)


OTHER = "softmax + sink_token(n=3) + head_norm + qk_norm"  # odd sizes: some shards are empty or unequal


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``one``, ``one_other``: one process; ``two``: the command; ``two_other``, ``killed``: below; ``cut``: from ``killed``."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "text").write_text(words(4000))
    (folder / "piece.json").write_text(json.dumps(piece(folder).to_json()))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # or a restart reads dead addresses (docs/scale.md)
    }  # fmt: skip
    both = [
        subprocess.Popen(
            [*command, *rest], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rest in (
            [
                "--standalone",
                "--max-restarts",
                "4",
                "-m",
                "sinkgate.lab.sharded",
                str(folder / "piece.json"),
                str(folder / "two"),
            ],
            ["--standalone", "--max-restarts", "4", __file__, str(folder)],
        )
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_piece(piece(folder), folder / "one")
        run_piece(piece(folder, OTHER), folder / "one_other")
        said = [process.communicate(timeout=300)[0] for process in both]
        for process, text in zip(both, said, strict=True):
            assert process.returncode == 0, text
        assert "20 steps" in said[0]
        run_piece(piece(folder), folder / "cut")
    finally:
        torch.set_num_threads(threads)
        for process in both:
            process.kill()
    return folder


def close(a: Any, b: Any, at: str = "") -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), at
        for name in a:
            close(a[name], b[name], f"{at}.{name}")
    elif isinstance(a, list):
        assert len(a) == len(b), at
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            close(x, y, f"{at}[{i}]")
    elif isinstance(a, float):
        assert b == pytest.approx(a, rel=LINE, abs=LINE), at
    else:
        assert a == b, at


def compare(a: Path, b: Path) -> None:
    """Log, checkpoint and record of two runs, to the bounds above."""
    close(History.load(a / "run").steps, History.load(b / "run").steps)
    one, two = load_file(a / "run" / CHECKPOINT), load_file(b / "run" / CHECKPOINT)
    assert one.keys() == two.keys()
    for name, x in one.items():
        assert two[name].dtype == x.dtype
        assert two[name].shape == x.shape
        off = (two[name] - x).abs().max().item()
        assert off <= PARAMETER, f"{name}: {off}"
    records = [json.loads((folder / "piece.json").read_text()) for folder in (a, b)]
    assert records[0].pop("environment") != {}
    for record in records:
        record.pop("environment", None)
        record.pop("cost")
    close(*records)


@pytest.mark.slow
def test_two_processes_are_one_to_rounding(runs: Path) -> None:
    compare(runs / "one", runs / "two")
    compare(runs / "one_other", runs / "two_other")
    page = " ".join((Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8").split())
    assert f"every logged number is within {LINE:.0e} (relative) and every parameter within {PARAMETER:.0e} of" in page
    record = json.loads((runs / "two" / "piece.json").read_text())
    assert record["environment"]["processes"] == 2
    alone = json.loads((runs / "one" / "piece.json").read_text())
    assert alone["cost"]["bytes"]["parameters"] / 2 <= record["cost"]["bytes"]["parameters"]
    assert record["cost"]["bytes"]["parameters"] < 0.55 * alone["cost"]["bytes"]["parameters"]
    start = load_file(runs / "start.safetensors")  # the bounds are small beside what training did
    trained = load_file(runs / "one" / "run" / CHECKPOINT)
    moved = [(trained[n] - x).abs().max().item() for n, x in start.items() if n.startswith("parameter/")]
    assert min(moved) > 100 * PARAMETER
    assert run_piece(piece(runs), runs / "two") == record  # a comparison takes it as it is


@pytest.mark.slow
def test_a_killed_process_begins_all_again_from_the_checkpoint(runs: Path) -> None:
    for name in (LOG, CHECKPOINT):
        assert (runs / "killed" / "run" / name).read_bytes() == (runs / "two" / "run" / name).read_bytes()
    record = json.loads((runs / "killed" / "piece.json").read_text())
    assert record["cost"]["attempts"] >= 2  # gloo itself may fail in a restart, and torchrun begins again
    assert record["cost"]["timed_steps"] < STEPS


@pytest.mark.slow
def test_one_process_goes_on_from_the_checkpoint_of_two(runs: Path) -> None:
    assert json.loads((runs / "cut" / "piece.json").read_text())["cost"]["timed_steps"] < STEPS - STOPPED + 2
    compare(runs / "one", runs / "cut")


@pytest.mark.slow
def test_every_process_says_what_is_wrong(runs: Path) -> None:
    for rank in range(2):
        wrong = (runs / f"wrong-{rank}").read_text().splitlines()
        assert len(wrong) == 3
        assert "a batch of 3 sequences does not deal out evenly to 2 processes" in wrong[0]
        assert "is the record of another piece" in wrong[1]
        assert "only pieces of the text task" in wrong[2]


def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["piece.json", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("sinkgate: start this with torchrun")


def work(folder: Path) -> None:
    """In each of two processes, which are begun again once."""
    import torch.distributed as dist

    from sinkgate.lab.tasks import language

    dist.init_process_group("gloo")
    rank, kept = dist.get_rank(), piece(folder)
    wrong: list[str] = []
    run_sharded(piece(folder, OTHER), folder / "two_other")
    for task, where in (
        (dataclasses.replace(kept.task, batch=3), "wrong"),  # type: ignore[type-var]
        (kept.task, "two_other"),
        (Backcopy(), "other"),
    ):
        try:
            run_sharded(dataclasses.replace(kept, task=task), folder / where)
        except SinkgateError as err:
            wrong.append(str(err))
    (folder / f"wrong-{rank}").write_text("\n".join(wrong))
    draw = language.LanguageExperiment.batch

    def batch(self: Any, step: int) -> torch.Tensor:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step == STOPPED and rank == 1:
            while not (folder / "cut" / "there").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(self, step)

    language.LanguageExperiment.batch = batch  # type: ignore[method-assign]

    def copy(_piece: Piece, line: dict[str, Any]) -> None:
        if line["step"] == 0 and not (folder / "start.safetensors").exists():
            shutil.copy(folder / "killed" / "run" / CHECKPOINT, folder / "start.safetensors")
        if line["step"] == STOPPED - 1 and not (folder / "cut").exists():
            shutil.copytree(folder / "killed" / "run", folder / "cut" / "run")
            (folder / "cut" / "there").touch()

    run_sharded(kept, folder / "killed", progress=[copy])
    dist.destroy_process_group()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
