"""Comparisons that a page started: each a process of its own, which goes on when the server ends.

``<folder>/<id>/`` is the comparison's own folder, ``<id>.json`` beside it says what it is and who runs it, ``<id>.log``
what it said. Another server over the same folder lists, stops and resumes the same runs.
"""

from __future__ import annotations

import fcntl
import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, OutputError, SinkgateError
from sinkgate.files import save_json
from sinkgate.studio import process
from sinkgate.studio.orders import Order
from sinkgate.studio.run_log import RunLog

__all__ = ["MOST_AT_ONCE", "MOST_KEPT", "Runs"]

FORMAT, VERSION = "sinkgate.run", 1
MOST_AT_ONCE, MOST_KEPT = 2, 200
IDENT = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
LIVE = ("starting", "running", "stopping")
STATES = (*LIVE, "stopped", "done", "failed")
SLOW_START = 30.0  # seconds after which a run that never got a process is given up
TAIL, LINE = 4096, 500  # bytes of a log's end that are looked at, characters of its last line


class Runs:
    """The runs of a folder.

    Args:
        folder: made when the first run starts.
        most: processes at a time.
    """

    def __init__(self, folder: Path, most: int = MOST_AT_ONCE) -> None:
        self.folder, self.most = Path(folder), most
        self._logs: dict[str, RunLog] = {}

    # ---- asked ------------------------------------------------------------------------------------------------------

    def list(self) -> list[dict[str, Any]]:
        """All runs, the newest first."""
        if not self.folder.is_dir():
            return []
        names = sorted((p.stem for p in self.folder.glob("*.json") if IDENT.fullmatch(p.stem)), reverse=True)
        return [self.get(name) for name in names[:MOST_KEPT]]

    def get(self, ident: str) -> dict[str, Any]:
        """One run: id, state, created, task, arms, seeds, budget, command, error, progress.

        Raises:
            ArgumentError: there is none of that id.
        """
        self._known(ident)
        try:
            state = self._state(ident)
            order = self._order(state)
        except (OutputError, ValueError) as err:
            return {"id": ident, "state": "failed", "created": None, "task": None, "arms": [], "seeds": 0, "budget": 0, "command": "",
                    "error": str(err), "progress": None}  # fmt: skip
        shown = {key: state.get(key) for key in ("id", "state", "created", "error")}
        return {**shown, **order.to_json(), "command": shlex.join(["sinkgate", *order.words(str(self.folder / ident))]),
                "progress": self.log(ident).progress(order, done=state["state"] == "done")}  # fmt: skip

    def log(self, ident: str) -> RunLog:
        """What a run has logged so far; see :meth:`get` for errors."""
        self._known(ident)
        return self._logs.setdefault(ident, RunLog(self.folder / ident))

    def record(self, ident: str) -> Path:
        """The file of a finished run's record.

        Raises:
            ArgumentError: there is no such run, or it has none yet.
        """
        self._known(ident)
        path = self.folder / ident / "record.json"
        if not path.is_file():
            raise ArgumentError(f"run {ident} has no record yet: it is written when the last piece has ended")
        return path

    # ---- started and ended ------------------------------------------------------------------------------------------

    def start(self, order: Order) -> dict[str, Any]:
        """Start a comparison.

        Raises:
            ArgumentError: as many run, or are kept, as may.
            OutputError: the folder cannot be written, or the process not be started.
        """
        with self._locked():
            self._room()
            if len(list(self.folder.glob("*.json"))) >= MOST_KEPT:
                raise ArgumentError(f"{self.folder} holds {MOST_KEPT} runs, as many as are kept; remove some of them")
            ident = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
            state = {"format": FORMAT, "version": VERSION, "id": ident, "created": time.time(), **order.to_json()}
            self._launch(state, order, resume=False)
        return self.get(ident)

    def resume(self, ident: str) -> dict[str, Any]:
        """Go on with a run that was stopped or failed.

        Raises:
            ArgumentError: there is no such run, it is running or done, or as many run as may.
            OutputError: the process cannot be started.
        """
        self._known(ident)
        with self._locked():
            state = self._settle(ident)
            if state["state"] not in ("stopped", "failed"):
                raise ArgumentError(
                    f"run {ident} is {state['state']}: only one that was stopped, or failed, can be resumed"
                )
            self._room()
            self._launch(state, self._order(state), resume=True)
        return self.get(ident)

    def stop(self, ident: str) -> dict[str, Any]:
        """End a run's process; what it wrote stays, and it can be resumed.

        Raises:
            ArgumentError: there is no such run, or it is not running.
        """
        self._known(ident)
        with self._locked():
            state = self._settle(ident)
            if state["state"] not in ("running", "stopping"):
                raise ArgumentError(f"run {ident} is not running: it is {state['state']}")
            self._save({**state, "state": "stopping"})
            process.end(state["pid"], state["started"])
            self._settle(ident)
        return self.get(ident)

    # ---- private ----------------------------------------------------------------------------------------------------

    def _launch(self, state: dict[str, Any], order: Order, *, resume: bool) -> None:
        ident = state["id"]
        self._save({**state, "state": "starting", "pid": None, "started": None, "error": None, "launched": time.time()})
        command = order.command(self.folder / ident, resume=resume)
        try:
            pid = process.launch(command, self.folder / f"{ident}.log")
        except OSError as err:
            self._save(
                {**state, "state": "failed", "pid": None, "started": None, "error": f"it could not be started: {err}"}
            )
            raise OutputError(f"the run could not be started: {err.strerror or err}") from err
        self._save(
            {
                **state,
                "state": "running",
                "pid": pid,
                "started": process.born(pid),
                "error": None,
                "command": command,
            }
        )

    def _room(self) -> None:
        running = sum(run["state"] in LIVE for run in self.list())
        if running >= self.most:
            raise ArgumentError(
                f"{running} comparisons are running, as many as the studio starts at once; wait, or stop one"
            )

    def _known(self, ident: str) -> Path:
        path = self.folder / f"{ident}.json"
        if not IDENT.fullmatch(ident) or not path.is_file():
            raise ArgumentError(f"there is no run {ident[:40]!r} here")
        return path

    def _state(self, ident: str) -> dict[str, Any]:
        """What the state file says, brought up to date with the process; nothing is written."""
        path = self._known(ident)
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as err:
            raise OutputError(f"its state file {path.name} cannot be read: {err}") from err
        if (
            not isinstance(state, dict)
            or state.get("format") != FORMAT
            or state.get("version") != VERSION
            or state.get("id") != ident
        ):
            raise OutputError(f"{path.name} is no state of a run of version {VERSION}")
        pid, started = state.get("pid"), state.get("started")
        if (
            state.get("state") not in STATES
            or not (pid is None or (type(pid) is int and pid > 1))
            or not isinstance(started, str | None)
        ):
            raise OutputError(f"{path.name} is damaged: state {str(state.get('state'))[:40]!r}, pid {str(pid)[:40]!r}")
        if state["state"] not in LIVE or process.alive(pid, started):
            return state
        if state["state"] == "starting" and 0 <= time.time() - float(state.get("launched") or 0) < SLOW_START:
            return state
        done, stopped = (self.folder / ident / "record.json").is_file(), state["state"] == "stopping"
        return state | {
            "state": "done" if done else "stopped" if stopped else "failed",
            "error": None if done or stopped else self._last_line(ident), "settled": False,
        }  # fmt: skip

    def _settle(self, ident: str) -> dict[str, Any]:
        """The state, written down if the process ended meanwhile. Under the lock."""
        state = self._state(ident)
        if state.pop("settled", True) is False:
            self._save(state)
        return state

    def _order(self, state: dict[str, Any]) -> Order:
        """What the run is; read as strictly as from a page, since a file can be changed by anybody."""
        try:
            return Order.read({key: state.get(key) for key in ("task", "arms", "seeds", "budget")})
        except SinkgateError as err:
            raise OutputError(f"the state of run {state['id']} is damaged: {err}") from err

    def _last_line(self, ident: str) -> str:
        try:
            with (self.folder / f"{ident}.log").open("rb") as f:
                f.seek(max(0, f.seek(0, 2) - TAIL))
                lines = [line.strip() for line in f.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        return lines[-1][:LINE] if lines else "it ended without a word; perhaps it was killed"

    def _save(self, state: dict[str, Any]) -> None:
        save_json(self.folder / f"{state['id']}.json", state, indent=1)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time, also of other servers over the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / ".lock").open("w")
        except OSError as err:
            raise OutputError(f"cannot write to {self.folder}: {err.strerror or err}; choose another --runs") from err
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
