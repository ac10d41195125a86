"""One sample of 32,768 tokens, everything measured, in one process: time and peak memory."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.common import in_process, peak_rss_mb, write

LENGTH = 32768


def alone() -> dict[str, Any]:
    import numpy as np

    import sinkgate as sg
    from sinkgate.probe.text import default_texts

    text = "\n".join(t.content for t in default_texts(64))
    start = time.perf_counter()
    d = sg.diagnose("smollm2-135m", None, [text], tokens=LENGTH, samples=1, dtype="float32")
    return {
        "seconds": round(time.perf_counter() - start),
        "peak_mb": round(peak_rss_mb()),
        "tokens": d.meta["samples"][0]["length"],
        "first_token_mass": round(float(d.first_token_mass.mean()), 4),
        "null_mass": round(float(d.null_mass.mean()), 6),
        "finite": bool(np.isfinite(d.sink_write_ratio).all()),
    }


def main() -> None:
    write(
        "long",
        {"model": "smollm2-135m", "dtype": "float32", "detail": "full", **in_process("benchmarks.long", "alone")},
    )


if __name__ == "__main__" and sys.argv[1:] == ["alone"]:
    print(json.dumps(alone()))
