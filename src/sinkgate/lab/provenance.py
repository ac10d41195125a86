"""Where a result comes from: machine, threads, versions, and the code itself."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["code_digest", "environment"]


@lru_cache(maxsize=1)
def code_digest() -> str:
    """SHA-256 of every source file of the package, the first 12 digits: a version that a dirty tree cannot hide."""
    root = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".cpp", ".h") and path.is_file():
            found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a bit-identical repetition needs to be the same."""
    import torch

    import sinkgate

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sinkgate": sinkgate.__version__,
        "code": code_digest(),
    }
