"""Tables of the comparison with kvpress, for :mod:`benchmarks.render`."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.tables import result, signed, table

NAMES = {
    "streaming": "kvpress `StreamingLLMPress`, 4 sinks",
    "rerotated": "the same in `KeyRerotationPress`",
    "expected": "kvpress `ExpectedAttentionPress`, 4 sinks",
    "original": "sinkgate, recent + 4 sinks, `original`",
    "slots": "sinkgate, recent + 4 sinks, `slots`",
    "8 bits": "sinkgate, the same in 8 bits, `slots`",
    "4 bits": "sinkgate, the same in 4 bits, `slots`",
}
GROUPS = {
    **dict.fromkeys(("streaming", "rerotated", "expected"), "kvpress"),
    **dict.fromkeys(("original", "slots"), "sinkgate, 32 bits"),
    "8 bits": "sinkgate, 8 bits",
    "4 bits": "sinkgate, 4 bits",
}
SHORT = {
    "streaming": "`StreamingLLMPress`",
    "rerotated": "it in `KeyRerotationPress`",
    "expected": "`ExpectedAttentionPress`",
}


def _rows(found: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Every arm's row by budget; a plan stands at the smallest budget that holds it."""
    arms, rows = found["summary"]["arms"], dict[str, dict[int, dict[str, Any]]]()
    for name in NAMES:
        rows[name] = {budget: arms[f"{name} {budget}"] for budget in found["budgets"]}
    for name, row in arms.items():
        if name.startswith("plan "):
            rows[name] = {row["budget"] or found["budgets"][-1]: row}
    return rows


def _head(found: dict[str, Any], first: str) -> list[str]:
    return [first, *(f"{b} tokens' bytes" for b in found["budgets"])]


def losses(chinese: bool) -> str:
    """Loss over that of everything kept, by budget, and time."""
    found = result("kvpress")
    rows = []
    for name, row in _rows(found).items():
        cells = (signed(row[b]["over_dense"], "mean", "low", "high") if b in row else "–" for b in found["budgets"])
        times = [r["cpu_over_dense"] for r in row.values() if r["cpu_over_dense"] is not None]
        rows.append([NAMES.get(name, name), *cells, f"{statistics.median(times):.2f}" if times else "–"])
    return table([*_head(found, "kept of the prefix"), "time"], rows)


def reading(chinese: bool) -> str:
    """What the intervals decide, counted."""
    found = result("kvpress")
    lines = []
    for ours, label in (
        (("original", "slots"), "The same tokens in 32 bits"), (("8 bits", "4 bits"), "More tokens in fewer bits")
    ):  # fmt: skip
        for other in ("streaming", "expected"):
            cells = [row["over"][other] for name in ours for row in _rows(found)[name].values()]
            less, more = sum(x["high"] < 0 for x in cells), sum(x["low"] > 0 for x in cells)
            means = sum(x["mean"] < 0 for x in cells)
            lines.append(
                f"- {label} beside {SHORT[other]}: of {len(cells)} differences sinkgate's loss is lower in {means}, and the "
                f"interval decides {less + more} ({less} for sinkgate, {more} for kvpress)."
            )
    texts = found["summary"]["texts"]
    if texts < 6:
        lines.append(f"- With {texts} texts the intervals are wide: a mean is not a finding.")
    return "\n".join(lines)


def sizes(chinese: bool) -> str:
    """KiB at the first question and at the end; arms that hold the same share a row."""
    found = result("kvpress")
    dense = found["summary"]["arms"]["dense"]
    held: dict[tuple[str, ...], list[str]] = {tuple([_kib(dense)] * len(found["budgets"])): ["everything"]}
    for name, row in _rows(found).items():
        cells = tuple(_kib(row[b]) if b in row else "–" for b in found["budgets"])
        held.setdefault(cells, []).append(GROUPS.get(name, name))
    rows = [[", ".join(dict.fromkeys(names)), *cells] for cells, names in held.items()]
    return table(_head(found, "KiB at the first question → at the end"), rows)


def _kib(row: dict[str, Any]) -> str:
    first, end = (f"{row[k] / 1024:,.0f}" for k in ("bytes_first", "bytes_end"))
    return f"{first} → {end}"


def other_models(chinese: bool) -> str:
    """What the presses do with a model that has sliding windows."""
    rows = []
    for model, found in result("kvpress")["others"].items():
        for name in ("streaming", "expected"):
            row = found["presses"][name]
            rows.append([model, SHORT[name], *(_did(row[how], found["layers"]) for how in ("with", "without"))])  # fmt: skip
    return table(["model", "press", "cache with the model's windows", "plain cache"], rows)


def _did(row: dict[str, Any], layers: list[str]) -> str:
    if "error" in row:
        return f"`{row['error']}`"
    held = {kind: sorted({n for n, k in zip(row["held"], layers, strict=True) if k == kind}) for kind in set(layers)}
    return "; ".join(f"{kind.split('_')[0]} layers keep {', '.join(map(str, n))}" for kind, n in sorted(held.items()))


TABLES = {
    "kvpress_others": other_models,
    "kvpress": losses,
    "kvpress_bytes": sizes,
    "kvpress_reading": reading,
}
