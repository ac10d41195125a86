"""A training by two processes, watched: FSDP2 (by layer, and one unit around everything) and DDP, on CPUs by gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from ranks import EVERY, KINDS, STEPS, network, train

# Two processes add up their gradients, and a sum of two equal float32 numbers halved is that number again.
BOUND = 1e-6
PARAMETER = 1e-5  # a thousandth of a step of 0.01: Adam divides by the gradient, also where it is mostly rounding


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    folder = tmp_path_factory.mktemp("ranks")
    network().save_pretrained(folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    command = [sys.executable, str(Path(__file__).parent / "ranks.py"), str(folder)]
    running = []
    for rank in ("0", "1"):
        environment = {**os.environ, **world, "RANK": rank, "LOCAL_RANK": rank}
        with (folder / f"{rank}.log").open("w") as log:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0, 0], "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in (0, 1))
    kept: dict[Any, Any] = {
        (kind, watched, rank): torch.load(folder / f"{kind}-{watched}-{rank}.pt", weights_only=False)
        for kind in KINDS
        for watched in (True, False)
        for rank in (0, 1)
    }
    kept |= {("refused", rank): torch.load(folder / f"refused-{rank}.pt", weights_only=False) for rank in (0, 1)}
    for kind in KINDS:
        kept[kind, "file"] = [json.loads(line) for line in (folder / f"{kind}.jsonl").read_text().splitlines()]
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_random_state_are_the_same_with_and_without_it(kind: str, found: Any) -> None:
    for rank in (0, 1):
        (_, watched, drawn), (_, plain, also) = found[kind, True, rank], found[kind, False, rank]
        assert watched.keys() == plain.keys()
        assert all(torch.equal(watched[name], plain[name]) for name in plain)
        assert drawn == also


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("trainer")])
def test_readings_are_those_of_one_process(kind: str, found: Any) -> None:
    alone, parameters, _ = train("plain", True, None)
    for rank in (0, 1):
        lines, together, _ = found[kind, True, rank]
        assert [line and line["step"] for line in lines] == [0, None, 2, None, 4, None]
        for mine, theirs in zip(alone, lines, strict=True):
            close(mine, theirs)
        for name, p in parameters.items():
            torch.testing.assert_close(together[name], p, rtol=0, atol=PARAMETER)
    assert found[kind, True, 0][0] == found[kind, True, 1][0]
    assert found[kind, "file"] == [line for line in found[kind, True, 0][0] if line]  # by rank 0 alone


@pytest.mark.slow
def test_in_the_trainer_too(found: Any) -> None:
    for kind in ("trainer-ddp", "trainer-fsdp"):
        lines = found[kind, "file"]
        assert [line["step"] for line in lines] == [0, 2, 4]
        for rank in (0, 1):
            logged = [entry["sinks/first_token_mass"] for entry in found[kind, True, rank][0]]
            assert logged == [line["first_token_mass"] for line in lines]
    for a, b in zip(found["trainer-ddp", "file"], found["trainer-fsdp", "file"], strict=True):
        close(a, b)
    assert len(lines) == STEPS // EVERY + 1


@pytest.mark.slow
def test_refused_with_the_way_out(found: Any) -> None:
    for rank in (0, 1):
        assert "sees only some of the heads" in found["refused", rank]["tensor parallel"]
        assert "fully_shard" in found["refused", rank]["FSDP 1"]


def close(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            close(a[name], b[name])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            close(x, y)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=BOUND, abs=BOUND)
    else:
        assert a == b
