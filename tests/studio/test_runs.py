"""The lab's runs: started from a list of what is allowed, alive without the server, bounded, told apart from strangers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sinkgate.errors import ArgumentError, OutputError
from sinkgate.lab.arms import split_arms
from sinkgate.lab.comparison_record import Comparison
from sinkgate.report.lab_payload import lines_to_series
from sinkgate.studio import process
from sinkgate.studio.lab_runs import Runs
from sinkgate.studio.orders import TASKS, Order
from studio.watched import Serving

SMALL = {"task": "backcopy", "arms": "softmax, softmax + g1", "seeds": 1, "budget": 20}
LONG = {"task": "trigger", "arms": "softmax, softmax + g1", "seeds": 5, "budget": 5000}
BAD = [
    ({**SMALL, "task": "tetris"}, "task must be one of backcopy, trigger, text, got 'tetris'"),
    ({**SMALL, "task": ["text"]}, "task must be one of"),
    ({**SMALL, "arms": "softmix"}, "no weighting 'softmix'"),
    ({**SMALL, "arms": "softmax, softmax"}, "an arm is there twice"),
    ({**SMALL, "arms": ""}, "arms must be a text such as"),
    ({**SMALL, "arms": "softmax; rm -rf /"}, "cannot read the arm"),
    ({**SMALL, "arms": "softmax + __import__('os').system('id')"}, "cannot read the arm"),
    ({**SMALL, "arms": "softmax + g1, " * 60}, "characters long; at most 400"),
    ({**SMALL, "arms": "softmax, softpick, sigmoid, softmax+g1, softmax+g2, softmax+g3, softmax+g4"}, "7 arms are more than the 6"),
    ({**SMALL, "arms": "softmax + sink_token(100000000)"}, "sink_token(100000000) is more than the 16"),
    ({**SMALL, "seeds": 6}, "seeds must be a whole number from 1 to 5, got '6'"),
    ({**SMALL, "seeds": 0}, "seeds must be a whole number from 1 to 5"),
    ({**SMALL, "seeds": True}, "seeds must be a whole number"),
    ({**SMALL, "seeds": None}, "seeds must be a whole number"),
    ({**SMALL, "budget": 3001}, "budget of backcopy must be a whole number from 20 to 3000, got '3001'"),
    ({**SMALL, "budget": 1e3}, "budget of backcopy must be a whole number"),
    ({**SMALL, "task": "text", "budget": 601}, "budget of text must be a whole number from 20 to 600"),
    ({**SMALL, "out": "/etc"}, "'out' is not known"),
]  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path / "runs")
    yield made
    for run in made.list():
        if run["state"] in ("running", "starting", "stopping"):
            made.stop(run["id"])


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that only wait, for what is about processes and not about training."""
    monkeypatch.setattr(
        Order, "command", lambda self, out, resume: [sys.executable, "-c", "import time; time.sleep(120)"]
    )


def until(done: Callable[[], Any], seconds: float = 240) -> Any:
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, "this takes too long"
        time.sleep(0.1)
    return found


def order(**changes: Any) -> Order:
    return Order.read({**SMALL, **changes})


# ---- what may be asked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "line"), BAD, ids=[line[:40] for _, line in BAD])
def test_what_is_not_allowed_is_refused_with_one_line(said: dict[str, Any], line: str) -> None:
    with pytest.raises(ArgumentError) as err:
        Order.read(said)
    assert line in str(err.value)
    assert "\n" not in str(err.value)


@pytest.mark.parametrize("arms", ["softmax,softmax+g1", "softpick, sigmoid(bias=-4) + g1_head", "entmax(alpha=1.5)", "softmax + window(8) + keep(2), softmax + sink_token(2)", "softmax + wider(g1) + qk_norm"])  # fmt: skip
def test_the_command_trains_the_arms_that_were_asked_for(arms: str) -> None:
    asked = Order.read({**SMALL, "arms": arms, "task": "text"})
    command = asked.command(Path("there"), resume=True)
    assert split_arms(command[command.index("--arms") + 1]) == split_arms(arms)
    assert command[:4] == [sys.executable, "-m", "sinkgate", "compare"]
    assert command[command.index("--preset") + 1] == "tiny"
    assert command[-1] == "--resume"
    assert Order.read(asked.to_json()) == asked


def test_the_page_is_told_the_same_bounds() -> None:
    import importlib.resources
    import re

    source = importlib.resources.files("sinkgate.report").joinpath("page", "lab", "runs.js").read_text()
    said = re.findall(r"(\w+): \{ least: (\d+), most: (\d+), usual: (\d+) \}", source)
    assert {name: tuple(map(int, rest)) for name, *rest in said} == TASKS


# ---- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("asleep")
def test_two_at_once_and_each_is_stopped_and_resumed(runs: Runs) -> None:
    one, two = runs.start(order()), runs.start(order(task="trigger"))
    assert [r["state"] for r in runs.list()] == ["running", "running"]
    with pytest.raises(ArgumentError, match="2 comparisons are running, as many as the studio starts at once"):
        runs.start(order())
    with pytest.raises(ArgumentError, match="only one that was stopped, or failed, can be resumed"):
        runs.resume(one["id"])
    assert runs.stop(one["id"])["state"] == "stopped"
    with pytest.raises(ArgumentError, match="is not running: it is stopped"):
        runs.stop(one["id"])
    three = runs.start(order())
    with pytest.raises(ArgumentError, match="2 comparisons are running"):
        runs.resume(one["id"])
    runs.stop(three["id"])
    assert runs.resume(one["id"])["state"] == "running"
    other = Runs(runs.folder)  # another server over the same folder
    assert {r["id"]: r["state"] for r in other.list()} == {
        one["id"]: "running",
        two["id"]: "running",
        three["id"]: "stopped",
    }
    assert other.stop(one["id"])["state"] == "stopped"
    assert {r["id"]: r["state"] for r in runs.list()}[one["id"]] == "stopped"


@pytest.mark.usefixtures("asleep")
def test_many_at_once_start_no_more_than_may(runs: Runs) -> None:
    said: list[str] = []

    def start() -> None:
        try:
            said.append(runs.start(order())["state"])
        except ArgumentError as err:
            said.append(str(err)[:20])

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == ["2 comparisons are ru"] * 4 + ["running"] * 2


def test_a_run_that_fails_says_its_last_line(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Order,
        "command",
        lambda self, out, resume: [sys.executable, "-c", "print('one'); raise SystemExit('sinkgate: no disk')"],
    )
    run = runs.start(order())
    found = until(lambda: (r := runs.get(run["id"]))["state"] == "failed" and r)
    assert found["error"] == "sinkgate: no disk"
    monkeypatch.setattr(Order, "command", lambda self, out, resume: [str(out / "nothing")])
    with pytest.raises(OutputError, match="could not be started"):
        runs.resume(run["id"])
    assert runs.get(run["id"])["state"] == "failed"


@pytest.mark.usefixtures("asleep")
def test_a_reused_pid_is_not_taken_for_the_run(runs: Runs) -> None:
    run = runs.start(order())
    path = runs.folder / f"{run['id']}.json"
    state = json.loads(path.read_text())
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        path.write_text(json.dumps({**state, "pid": stranger.pid}))
        assert runs.get(run["id"])["state"] == "failed"
        with pytest.raises(ArgumentError, match="is not running"):
            runs.stop(run["id"])
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        process.end(state["pid"], state["started"])


def test_damaged_and_foreign_state_files(runs: Runs) -> None:
    runs.folder.mkdir()
    good = {
        "format": "sinkgate.run",
        "version": 1,
        "state": "stopped",
        "pid": None,
        "started": None,
        "created": 0,
        **order().to_json(),
    }
    cases = {
        "20260101-000000-000001": "{",
        "20260101-000000-000002": json.dumps([1]),
        "20260101-000000-000003": json.dumps({**good, "id": "20260101-000000-000003", "pid": 1}),
        "20260101-000000-000004": json.dumps({**good, "id": "20260101-000000-000004", "arms": ["softmax; id"]}),
        "20260101-000000-000005": json.dumps({**good, "id": "20260101-000000-000005", "version": 2}),
        "20260101-000000-000006": json.dumps({**good, "id": "../../etc"}),
    }
    for name, text in cases.items():
        (runs.folder / f"{name}.json").write_text(text)
    (runs.folder / "notes.json").write_text("{}")
    found = runs.list()
    assert sorted(r["id"] for r in found) == sorted(cases)
    assert all(r["state"] == "failed" and r["error"] for r in found)
    for name in cases:
        with pytest.raises(OutputError):
            runs.resume(name)
    for name in ("../x", "20260101-000000-0000011", "", "20260101-000000-00000g", "notes"):
        with pytest.raises(ArgumentError, match="there is no run"):
            runs.get(name)


# ---- over HTTP, with real trainings ------------------------------------------------------------------------------------


def test_bad_requests_over_http(serving: Callable[..., Serving]) -> None:
    served = serving()
    with httpx.Client(base_url=served.address) as client:
        for said, line in BAD:
            answer = client.post("api/lab/runs", json=said)
            assert answer.status_code == 400
            assert line in answer.json()["error"]
        for ident in ("..%2F..%2Fetc", "%2e%2e", "20260101-000000-abcdef", "x" * 300):
            for path in ("curves", "record"):
                assert client.get(f"api/lab/runs/{ident}/{path}").status_code in (400, 404)
            for act in ("stop", "resume"):
                assert client.post(f"api/lab/runs/{ident}/{act}", json={}).status_code in (400, 404)
        assert (
            client.post("api/lab/runs", content=b"[]", headers={"content-type": "application/json"}).status_code == 400
        )
        assert client.get("api/lab/runs").json()["runs"] == []
    assert not (served.studio.runs).exists()


def test_a_real_comparison_from_start_to_record(serving: Callable[..., Serving]) -> None:
    served = serving()
    with httpx.Client(base_url=served.address, timeout=60) as client:
        run = client.post("api/lab/runs", json=SMALL).json()
        ident, after, got = run["id"], "", {}
        lines: dict[int, dict[str, dict[str, list[Any]]]] = {}

        def read() -> bool:
            nonlocal after, got
            got = client.get(f"api/lab/runs/{ident}/curves", params={"after": after} if after else None).json()
            after = got["next"]
            for i, piece in enumerate(got["pieces"]):
                for name, column in piece["series"].items():
                    mine = lines.setdefault(i, {}).setdefault(name, {"x": [], "y": []})
                    mine["x"] += column["x"]
                    mine["y"] += column["y"]
            return got["run"]["state"] == "done"

        until(read)
        read()
        assert got["run"]["progress"]["made"] == 40
        record = Comparison.load(served.studio.runs / ident)
        assert [lines[i] for i in range(2)] == [
            lines_to_series(p["curve"]) for a in record.arms for p in record.at_best(a)
        ]
        assert "first_mass_layer_0" in lines[0]
        payload = client.get(f"api/lab/runs/{ident}/record").json()
        assert payload["table"] == dict(zip(("columns", "rows"), record.table(), strict=True))
        assert [sentence.format(**values) for sentence, values in payload["said"]] == record.sentences()
        assert client.get(f"api/lab/runs/{ident}/curves", params={"after": "1:2;3"}).status_code == 400
        assert client.post(f"api/lab/runs/{ident}/stop", json={}).json()["error"].endswith("it is done")
        assert client.get("api/lab/runs").json()["runs"][0]["id"] == ident


def start_studio(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A studio in a process of its own, and its address."""
    made = subprocess.Popen(
        [sys.executable, "-m", "sinkgate", "studio", "--no-open", "--runs", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ},
    )  # fmt: skip
    assert made.stdout is not None
    address = made.stdout.readline().split()[2]
    made.stdout.close()

    def answers() -> bool:
        try:
            return httpx.get(f"{address}api/records", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    until(answers)
    return made, address


def test_a_run_outlives_a_killed_server_and_another_stops_and_resumes_it(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    first, address = start_studio(folder)
    ident = httpx.post(f"{address}api/lab/runs", json=LONG, timeout=60).json()["id"]
    path = folder / f"{ident}.json"
    state = json.loads(path.read_text())
    made = lambda url: httpx.get(f"{url}api/lab/runs", timeout=60).json()["runs"][0]["progress"]["made"]  # noqa: E731
    until(lambda: made(address) > 0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert process.alive(state["pid"], state["started"])
    second, address = start_studio(folder)
    try:
        found = httpx.get(f"{address}api/lab/runs", timeout=60).json()["runs"]
        assert [(r["id"], r["state"]) for r in found] == [(ident, "running")]
        before = made(address)
        until(lambda: made(address) > before)
        stopped = httpx.post(f"{address}api/lab/runs/{ident}/stop", json={}, timeout=60).json()
        assert stopped["state"] == "stopped"
        assert not process.alive(state["pid"], state["started"])
        assert json.loads(path.read_text())["state"] == "stopped"
        cursor = httpx.get(f"{address}api/lab/runs/{ident}/curves", timeout=60).json()["next"]
        assert httpx.post(f"{address}api/lab/runs/{ident}/resume", json={}, timeout=60).json()["state"] == "running"

        def taken_up() -> Any:
            said = httpx.get(f"{address}api/lab/runs/{ident}/curves", params={"after": cursor}, timeout=60).json()
            return next((piece for piece in said["pieces"] if piece["reset"] and piece["series"]), None)

        again = until(taken_up)
        assert again["series"]["loss"]["x"][0] == 0  # the whole of it, cut back to the checkpoint
        httpx.post(f"{address}api/lab/runs/{ident}/stop", json={}, timeout=60)
    finally:
        second.send_signal(signal.SIGTERM)
        second.wait(20)
        now = json.loads(path.read_text())
        process.end(now["pid"], now["started"])
