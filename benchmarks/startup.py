"""``sinkgate --help``: the whole process, median of 20."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import write


def main() -> None:
    command = [str(Path(sys.executable).with_name("sinkgate")), "--help"]
    seconds = []
    for _ in range(21):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    write("startup", {"help_seconds": round(statistics.median(seconds[1:]), 4), "runs": 20, "bound": 0.3})
