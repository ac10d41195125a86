"""The search: what is measured, what is decided without, what a kill leaves, and what runs out of memory."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from formula import Formula, piece, space, window

from sinkgate.errors import NonFiniteError, UnsupportedError
from sinkgate.planning.request import Request
from sinkgate.planning.search import Search, Trial, expected, search
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import Choice

STATES = ("kept", "refuted", "skipped", "out of memory", "failed")


def forgetting(setting: Setting, text: int) -> float:
    """Nats that fall as the window grows; fewer bits and no sinks cost more."""
    bits = min((k.storage.bits or 16) for k in setting.value.kinds)
    sinks = any(k.pinned for k in setting.value.kinds)
    return 0.4 / window(setting) + {16: 0.0, 8: 0.0002, 4: 0.004}[bits] + (0.0 if sinks else 0.05) + 1e-4 * (text % 3)


def made(f: Callable[[Setting, int], float] = forgetting, *, texts: int = 3, **asked: Any) -> Search:
    request = Request(**{"max_increase": 0.02, "context": 256, "effort": "quick", **asked})
    return Search(request, space(), [piece(i) for i in range(texts)], Formula(f), None)  # type: ignore[arg-type]


START = [Choice(sinks=2, window=192, bits=8), Choice(sinks=2, window=96, bits=8), Choice(sinks=2, window=192)]


def test_it_finds_a_light_setting_that_keeps_the_tolerance(tmp_path: Path) -> None:
    it = made()
    search(it, START, tmp_path)
    best = it.kept()[0]
    tolerance = math.log1p(0.02)
    assert expected(it.request, best.nats) <= tolerance
    plain = [t for t in it.kept() if t.choice["spread"] == "alike" and not t.choice["bits"]]
    assert not plain or best.bytes <= plain[0].bytes
    # the lightest of a fine grid of what the formula allows: the search may miss it, not by much
    s = it.space
    grid = [s.bytes(c) for b in (0, 8, 4) for w in range(8, 256, 8) for c in [s.whole(Choice(sinks=1, window=w, bits=b))]
            if expected(it.request, [forgetting(s.setting(c), t) for t in range(3)]) <= tolerance]  # fmt: skip
    assert best.bytes <= 1.35 * min(grid)


def test_nothing_is_measured_that_is_known(tmp_path: Path) -> None:
    it = made()
    search(it, START, tmp_path)
    assert len(it.measured) <= it.request.much.trials
    measured = [t for t in it.trials if t.state in ("kept", "refuted")]
    assert len({t.setting for t in measured}) == len(measured)
    best = math.inf
    refuted: list[Trial] = []
    for t in it.trials:
        if t.state in ("kept", "refuted"):
            assert t.bytes < best, "a setting was measured that could not have been better"
            assert not any(Choice(**t.choice).keeps_less(Choice(**r.choice)) for r in refuted)
        if t.state == "kept":
            best = t.bytes
        if t.state == "refuted":
            refuted.append(t)
        assert (t.why == "") == (t.state == "kept")
    assert any(t.state == "skipped" for t in it.trials)


def test_a_trial_ends_at_the_text_that_refutes_it(tmp_path: Path) -> None:
    it = made(lambda setting, text: 1.0 + 1e-3 * text)
    search(it, START, tmp_path)
    assert not it.kept()
    assert all(len(t.nats) == 1 and t.state == "refuted" for t in it.measured)
    assert len(it.measurer.asked) == len(it.measured)  # type: ignore[attr-defined]


def test_every_trial_is_in_the_study(tmp_path: Path) -> None:
    it = made()
    search(it, START, tmp_path)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log")))
    study = optuna.load_study(study_name="plan", storage=storage)
    kept = [Trial.from_json(json.loads(t.user_attrs["trial"])) for t in study.trials if "trial" in t.user_attrs]
    assert kept == it.trials
    assert {t.state for t in it.trials} <= set(STATES)
    assert [t.number for t in it.trials] == sorted(t.number for t in it.trials)


def test_a_finished_search_is_read_again(tmp_path: Path) -> None:
    one, two = made(), made()
    search(one, START, tmp_path)
    search(two, START, tmp_path)
    assert two.trials == one.trials
    assert not two.measurer.asked  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_killed_search_goes_on_to_the_same_trials(tmp_path: Path, after: int) -> None:
    whole = made()
    search(whole, START, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def dying(setting: Setting, text: int) -> float:
        if len({key for key, _ in it.measurer.asked}) > after and text == 1:  # type: ignore[attr-defined]
            raise Killed
        return forgetting(setting, text)

    it = made(dying)
    with pytest.raises(Killed):
        search(it, START, tmp_path / "cut")
    again = made()
    search(again, START, tmp_path / "cut")
    settings = [(t.setting, t.state, t.nats) for t in again.trials]
    assert settings == [(t.setting, t.state, t.nats) for t in whole.trials]


def test_a_process_that_was_killed_leaves_a_study_that_goes_on(tmp_path: Path) -> None:
    """For real: SIGKILL in the middle of a measurement."""
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
        from test_plan_search import START, forgetting, made, search
        from pathlib import Path
        count = 0
        def f(setting, text):
            global count
            count += 1
            if count == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            return forgetting(setting, text)
        search(made(f), START, Path({str(tmp_path / "study")!r}))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    it = made()
    search(it, START, tmp_path / "study")
    whole = made()
    search(whole, START, tmp_path / "whole")
    assert [t.setting for t in it.trials] == [t.setting for t in whole.trials]


@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), torch.OutOfMemoryError("CUDA out of memory"),
     RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes")],
)  # fmt: skip
def test_a_trial_that_runs_out_of_memory_is_recorded_and_the_search_goes_on(tmp_path: Path, error: Exception) -> None:
    def f(setting: Setting, text: int) -> float:
        if window(setting) >= 150:
            raise error
        return forgetting(setting, text)

    it = made(f)
    search(it, START, tmp_path)
    out = [t for t in it.trials if t.state == "out of memory"]
    assert out
    assert all(str(error)[:10] in t.why for t in out)
    assert it.kept()


def test_a_loss_that_is_not_finite_fails_its_trial_alone(tmp_path: Path) -> None:
    def f(setting: Setting, text: int) -> float:
        if window(setting) == 192:
            raise NonFiniteError("a loss is NaN")
        return forgetting(setting, text)

    it = made(f)
    search(it, START, tmp_path)
    assert [t.state for t in it.trials if window(t.setting) == 192][:1] == ["failed"]
    assert it.kept()


def test_other_errors_are_not_hidden(tmp_path: Path) -> None:
    def f(setting: Setting, text: int) -> float:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        search(made(f), START, tmp_path)


def test_a_budget_is_kept_and_used_up(tmp_path: Path) -> None:
    budget = 30_000
    it = made(max_increase=None, budget=budget)
    search(it, START, tmp_path)
    assert it.measured
    assert all(t.bytes <= budget for t in it.measured)
    assert it.kept()[0].nats == min((t.nats for t in it.measured), key=lambda x: sum(x) / len(x))
    for t in it.measured:  # no longer window of the same kind would have fitted
        c = Choice(**t.choice)
        longer = it.space.bytes(dataclasses.replace(c, window=c.window + 40))
        assert longer > budget or c.window + 40 > it.space.context - 4


def test_two_searches_in_one_folder_are_refused(tmp_path: Path) -> None:
    from filelock import FileLock

    with (
        FileLock(str(tmp_path / "lock")),
        pytest.raises(UnsupportedError, match="another process searches for this plan"),
    ):
        search(made(), START, tmp_path)


def test_optuna_is_left_as_it_was(tmp_path: Path, capfd: Any) -> None:
    before = optuna.logging.get_verbosity()
    search(made(), START, tmp_path)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_latency_as_the_goal(tmp_path: Path) -> None:
    from sinkgate.planning.cost import Latency

    it = made(goal="latency")
    it.latency = Latency(1.0, 10.0, 40.0, 0.0, 3)  # unpacking is what costs
    search(it, START, tmp_path)
    best = it.kept()[0]
    assert best.milliseconds == min(t.milliseconds for t in it.kept() if t.milliseconds is not None)
    assert not best.choice["bits"]
