"""The two real models on the demo speeches: the figures the README shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.common import write

TOKENS, SAMPLES = 512, 8


def main() -> None:
    import sinkgate as sg

    rows = []
    for name, bos in (
        ("smollm2-135m", "auto"),
        ("smollm2-135m", "yes"),
        ("gemma3-270m", "auto"),
        ("gemma3-270m", "no"),
    ):
        d = sg.diagnose(name, tokens=TOKENS, samples=SAMPLES, bos=bos)
        assert isinstance(d, sg.Diagnosis)
        rows.append({"model": name, "bos": bos, **summary(d)})
    write("models", {"tokens": TOKENS, "samples": SAMPLES, "rows": rows})


def summary(d: Any) -> dict[str, Any]:
    mean = d.mean_mass()
    over = d.first_token_mass > 0.3
    full = np.array([layer["window"] is None for layer in d.layers])
    ratio = d.sink_write_ratio[over]
    return {
        "heads": int(d.measured.sum()),
        "mean": round(float(mean.mean), 3),
        "low": round(float(mean.low), 3),
        "high": round(float(mean.high), 3),
        "null": round(float(np.nanmean(d.null_mass)), 4),
        "sink_rate": round(d.sink_rate(), 3),
        "sink_rate_sample": round(d.sink_rate(convention="sample"), 3),
        "sink_rate_full_layers": round(float(over[full].mean()), 3),
        "write_ratio_median": round(float(np.median(ratio)), 3) if ratio.size else None,
        "local_mass": round(float(np.nanmean(d.local_mass)), 3),
        "local_null": round(float(np.nanmean(d.local_null)), 3),
        "largest_activation": round(max(abs(m["value"]) for m in d.massive), 1),
    }
