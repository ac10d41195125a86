"""What every benchmark shares: where it ran, paired timing, one JSON file per benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
EXPERIMENTS = Path(__file__).parents[1] / "experiments" / "results"


def environment() -> dict[str, Any]:
    """The machine and the versions; flags because kernels choose by them."""
    import torch
    import transformers

    import sinkgate

    cpu, flags = platform.processor(), ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = dict(line.split(":", 1) for line in info.read_text().split("\n\n")[0].splitlines() if ":" in line)
        lines = {k.strip(): v.strip() for k, v in lines.items()}
        cpu, flags = lines.get("model name", cpu), lines.get("flags", "")
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile")

    def git(*what: str) -> str:
        return subprocess.run(["git", *what], capture_output=True, text=True, check=False).stdout.strip()

    # "-dirty" where the tree that was measured is not the commit's (results written by a run are no part of it)
    commit = git("describe", "--always", "--exclude=*")
    commit += (
        "-dirty" if git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!experiments/results") else ""
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "flags": [f for f in wanted if f in flags.split()],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sinkgate": sinkgate.__version__,
        "commit": commit,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def paired(functions: dict[str, Callable[[], Any]], *, rounds: int = 5, base: str) -> dict[str, dict[str, Any]]:
    """Run all functions in turn, ``rounds`` times after one warm-up; ratios are taken round by round.

    A machine that slows down slows both sides of a round, so the median of the ratios is what is quoted.
    """
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "seconds": round(statistics.median(times), 4),
            "ratio": round(statistics.median(t / b for t, b in zip(times, seconds[base], strict=True)), 3),
            "ratios": [round(t / b, 3) for t, b in zip(times, seconds[base], strict=True)],
        }
        for name, times in seconds.items()
    }


def in_process(module: str, *args: str) -> dict[str, Any]:
    """Run ``python -m module args`` alone; it prints one JSON object on its last line."""
    done = subprocess.run([sys.executable, "-m", module, *args], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"failed": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def reset_peak() -> None:
    """Forget the peak so far (loading a model has its own), where the kernel lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss_mb() -> float:
    """Peak resident memory of this process since :func:`reset_peak`, MB."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def result(name: str) -> dict[str, Any]:
    """One committed result, of a benchmark or of an experiment."""
    path = next((path for folder in (RESULTS, EXPERIMENTS) if (path := folder / f"{name}.json").exists()), None)
    if path is None:
        raise FileNotFoundError(f"there is no result {name!r}")
    return json.loads(path.read_text(encoding="utf-8"))


def write(name: str, result: dict[str, Any]) -> None:
    """Keep a result beside its environment."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"environment": environment(), **result}, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    print(f"wrote {name}.json")
