"""Getting the default model: converted from its GGUF into the cache once, then opened from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.common import write

CODE = "import json, time; import sinkgate as sg; sg.load; t = time.perf_counter(); sg.load('smollm2-135m'); print(json.dumps(time.perf_counter() - t))"


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "SINKGATE_CACHE": cache}

        def once() -> float:
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
            assert start
            return json.loads(done.stdout.strip().splitlines()[-1])

        first, later = once(), sorted(once() for _ in range(5))
    write(
        "load",
        {"model": "smollm2-135m", "first_seconds": round(first, 1), "later_seconds": round(later[2], 2), "runs": 5},
    )
