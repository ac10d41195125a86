"""A record's summary numbers sample by sample: what two records are compared by."""

from __future__ import annotations

from typing import Any

import numpy as np

from sinkgate.record import Diagnosis

__all__ = ["summary_rows"]


def summary_rows(d: Diagnosis) -> dict[str, Any]:
    """Every summary number of a record, one for each sample, in the record's order of samples.

    Each is a mean over the measured heads of what :class:`~sinkgate.record.Diagnosis` derives, before it is averaged
    over samples; what a record's detail does not hold is left out.

    Returns:
        ``{"ids": the samples' ids, "rows": [{"id", "label", "unit", "values": one number for each sample}]}``. Equal ids
        are the same tokens, so that two records of them can be compared in pairs.
    """
    measured, arrays, eps = d.measured, d.arrays, d.settings.threshold

    def heads(values: np.ndarray) -> np.ndarray:
        """Mean over the measured heads, ``[sample, layer, head]`` → ``[sample]``."""
        return np.asarray(values[:, measured].mean(1))

    def per_query(total: str, n: str) -> np.ndarray:
        count = arrays[n][..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(count > 0, arrays[total] / np.where(count > 0, count, 1), np.nan)

    alpha = d.mass_by_sample()
    null = np.broadcast_to(d.null_by_sample(), alpha.shape)
    rows: list[tuple[str, str, str, np.ndarray]] = [
        ("first_token_mass", "first-token mass", "", heads(alpha)),
        ("null_mass", "null of the first-token mass", "", heads(null)),
        ("sink_rate", "sink rate", "", heads((alpha > eps).astype(float))),
        ("margin", "margin", "nats", heads(per_query("margin_sum", "margin_n"))),
        ("learned_mass", "learned sink mass", "", heads(per_query("learned_sum", "queries"))),
    ]
    if d.settings.detail != "first":
        rows.append(("top_other_mass", "strongest other key", "", heads(arrays["top_mass"])))
    if d.settings.detail == "full":
        rows += [
            ("sink_write_ratio", "sink write ratio", "", heads(_safe(arrays["sink_write"], arrays["head_write"]))),
            ("entropy_ratio", "entropy over uniform", "", heads(per_query("entropy_ratio_sum", "entropy_n"))),
            ("local_mass", "local mass", "", heads(per_query("local_sum", "queries"))),
            ("value_norm_ratio", "value norm ratio", "×", heads(_safe(arrays["value_first"], arrays["value_rest"]))),
        ]
    if "stream_first" in arrays:
        rows.append(("stream_first", "largest norm of the first token", "", arrays["stream_first"].max(1)))
        rows.append(("stream_rest", "largest mean norm of the others", "", arrays["stream_rest"].max(1)))
    return {
        "ids": [sample["id"] for sample in d.meta["samples"]],
        "rows": [
            {"id": name, "label": label, "unit": unit, "values": [_round(v) for v in values]}
            for name, label, unit, values in rows
        ],
    }


def _safe(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.where(b > 0, a / np.where(b > 0, b, 1), np.nan)


def _round(x: Any) -> float | None:
    """Five significant digits, as the page keeps them; None for NaN."""
    return float(f"{float(x):.5g}") if np.isfinite(x) else None
