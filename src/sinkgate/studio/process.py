"""Processes that outlive the studio, told apart from others that are later given the same number."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["alive", "born", "end", "launch"]

GRACE = 5.0  # seconds between asking a process to end and ending it


def launch(command: Sequence[str], log: Path) -> int:
    """Start a command in a session of its own, so that no signal to the studio reaches it; it writes to ``log``.

    Returns:
        Its number. Nobody has to wait for it: :func:`alive` does, once it has ended.

    Raises:
        OSError: it cannot be started, or the log not be written.
    """
    with log.open("ab") as out, Path(os.devnull).open("rb") as nothing:
        to = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 0), *((os.POSIX_SPAWN_DUP2, out.fileno(), n) for n in (1, 2))]
        return os.posix_spawn(command[0], list(command), os.environ, file_actions=to, setsid=True)


def born(pid: int) -> str | None:
    """When a process began, as a text that no other process of that number has; None: there is none.

    On Linux the boot's id and the clock tick of its start; elsewhere what ``ps`` says.
    """
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        try:
            said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        except OSError:
            return None
        return said.stdout.strip() or None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{stat.read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return None


def alive(pid: int | None, birth: str | None) -> bool:
    """Whether the process that began then still runs (one that has ended and waits for its parent does not)."""
    if pid is None or birth is None or born(pid) != birth:
        return False
    try:
        if os.waitpid(pid, os.WNOHANG)[0]:  # a child of ours that has ended
            return False
    except ChildProcessError:
        pass
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return not Path("/proc/self/stat").exists()


def end(pid: int, birth: str, grace: float = GRACE) -> None:
    """Ask the process and its session to end, and end them if they do not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if not alive(pid, birth):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:  # it leads its session: a worker of its own ends, too
                os.killpg(pid, sign)
            else:
                os.kill(pid, sign)
        until = time.monotonic() + grace
        while alive(pid, birth) and time.monotonic() < until:
            time.sleep(0.02)
