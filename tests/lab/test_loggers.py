"""Lines on their way to a service with wandb's API."""

from __future__ import annotations

import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import as_arm
from sinkgate.lab.comparison import in_turn
from sinkgate.lab.config import LoopConfig
from sinkgate.lab.loggers import api_logger
from sinkgate.lab.loop import train
from sinkgate.lab.pieces import Piece
from sinkgate.lab.tasks.backcopy import Backcopy

STEPS = 6
TASK = Backcopy(vocab=16, triggers=1, length=16, dim=16, batch=2)
PIECES = [Piece(TASK, as_arm("softmax + g1"), 0.01, seed, STEPS) for seed in (0, 1)]


class Service(types.ModuleType):
    """Has wandb's API, and keeps what it is told; fails at the n-th call of ``fails``."""

    def __init__(self, **fails: int) -> None:
        super().__init__("service")
        self.calls: list[tuple[Any, ...]] = []
        self.fails, self.count = fails, {"init": 0, "log": 0, "finish": 0}

    def _called(self, name: str, *what: Any) -> None:
        self.count[name] += 1
        if self.fails.get(name) == self.count[name]:
            raise ConnectionError("no route")
        self.calls.append((name, *what))

    def init(self, **given: Any) -> Any:
        self._called("init", given)
        run = types.SimpleNamespace()
        run.log = lambda numbers, step: self._called("log", numbers, step)
        run.finish = lambda: self._called("finish")
        return run


def places(folder: Path) -> list[tuple[Piece, Path]]:
    return [(p, folder / p.key) for p in PIECES]


def test_one_run_per_piece_with_the_numbers_of_every_line(tmp_path: Path) -> None:
    service = Service()
    in_turn(places(tmp_path), "cpu", [api_logger(service, "sinks", group="a comparison", tags=["x"])])
    assert [call[0] for call in service.calls] == (["init", *["log"] * STEPS, "finish"]) * 2
    for i, (piece, folder) in enumerate(places(tmp_path)):
        begun, *logged = service.calls[i * (STEPS + 2) : (i + 1) * (STEPS + 2) - 1]
        assert begun[1] == {
            "project": "sinks", "name": f"softmax + g1, lr 0.01, seed {piece.seed}", "group": "a comparison",
            "config": piece.to_json(), "tags": ["x"],
        }  # fmt: skip
        lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
        for (_, numbers, step), line in zip(logged, lines, strict=True):
            assert step == line.pop("step")
            assert numbers == {n: x for n, x in line.items() if x is not None}
            assert all(type(x) is float for x in numbers.values())
    before = len(service.calls)
    in_turn(places(tmp_path), "cpu", [api_logger(service, "sinks")])  # nothing new
    assert len(service.calls) == before


def test_what_is_not_a_number_stays_at_home_and_no_step_is_sent_twice() -> None:
    service = Service()
    logger = api_logger(service, "sinks")
    for step in (0, 1, 2, 1, 2, 3):  # killed behind 2, taken up at 1
        logger(PIECES[0], {"step": step, "loss": None if step == 1 else 2.5, "spike": True, "why": "x", "heads": [1.0]})
    assert [call[2] for call in service.calls[1:]] == [0, 1, 2, 3]
    assert service.calls[1][1] == {"loss": 2.5, "spike": 1.0}
    assert service.calls[2][1] == {"spike": 1.0}
    logger(PIECES[1], {"step": 0, "loss": 1.0})  # the first one did not come to its end
    assert [call[0] for call in service.calls[5:]] == ["finish", "init", "log"]
    logger.close()
    logger.close()
    assert [call[0] for call in service.calls[8:]] == ["finish"]


def test_the_loop_and_named_runs_have_it_too() -> None:
    service = Service()
    with api_logger(service, "sinks") as logger:
        train(TASK.make(as_arm("softmax"), 0), LoopConfig(steps=3, lr=0.01), progress=logger)
        logger("control", {"step": 0, "loss": 1.0})
        logger("outlet", {"step": 0, "loss": 1.0, "done": True})
    assert [call[0] for call in service.calls] == ["init", *["log"] * 3, "finish", *["init", "log", "finish"] * 2]
    assert [call[1]["name"] for call in service.calls if call[0] == "init"] == ["sinks", "control", "outlet"]


@pytest.mark.parametrize(("fails", "calls"), [
    ({"init": 1}, ["init", *["log"] * STEPS, "finish"]),
    ({"log": 3}, ["init", "log", "log", "init", *["log"] * STEPS, "finish"]),
    ({"finish": 1}, ["init", *["log"] * STEPS, "init", *["log"] * STEPS, "finish"]),
    ({"init": 1, "finish": 1}, ["init", *["log"] * STEPS]),
])  # fmt: skip
def test_a_service_that_fails_does_not_end_the_training(
    tmp_path: Path, fails: dict[str, int], calls: list[str]
) -> None:
    service = Service(**fails)
    logger = api_logger(service, "sinks")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = in_turn(places(tmp_path), "cpu", [logger])
    assert [r["steps"] for r in records] == [STEPS, STEPS]
    assert [call[0] for call in service.calls] == calls
    assert logger.failures == len(fails)
    (warning,) = caught  # once
    assert str(warning.message).startswith(
        "service failed (ConnectionError: no route); the rest of this run is not sent"
    )


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", Service())
    assert api_logger("trackio", "sinks").module is sys.modules["trackio"]
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ArgumentError, match=r"sending the log to wandb needs its package: pip install 'sinkgate\[wandb\]'$"
    ):
        api_logger("wandb", "sinks")
    with pytest.raises(ArgumentError, match=r"pip install no_such_tracker$"):
        api_logger("no_such_tracker", "sinks")
    with pytest.raises(ArgumentError, match=r"'json' has no init\(…\)"):
        api_logger("json", "sinks")
