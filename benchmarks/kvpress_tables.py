"""Tables of the comparison with kvpress, for :mod:`benchmarks.render`."""

from __future__ import annotations

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
    """Loss over that of everything kept, by budget."""
    found = result("kvpress")
    rows = [
        [NAMES.get(name, name), *(signed(row[b]["over_dense"], "mean", "low", "high") if b in row else "–" for b in found["budgets"])]
        for name, row in _rows(found).items()
    ]  # fmt: skip
    return table(_head(found, "kept of the prefix"), rows)


def against(chinese: bool) -> str:
    """Our arms over theirs, text by text."""
    found = result("kvpress")
    rows = []
    for name, row in _rows(found).items():
        if name in SHORT:
            continue
        for other in SHORT:
            cells = (signed(row[b]["over"][other], "mean", "low", "high") if "over" in row.get(b, {}) else "–" for b in found["budgets"])  # fmt: skip
            rows.append([NAMES.get(name, name), SHORT[other], *cells])
    return table(["arm", "over", *_head(found, "")[1:]], rows)


def sizes(chinese: bool) -> str:
    """Bytes at the first question and at the end, and time."""
    found = result("kvpress")
    dense = found["summary"]["arms"]["dense"]
    rows = [["everything", *[_kib(dense)] * len(found["budgets"]), "1"]]
    for name, row in _rows(found).items():
        times = ", ".join(f"{x:.2f}" for x in sorted({r["seconds_over_dense"] for r in row.values()}))
        low, _, high = times.partition(", ")
        rows.append(
            [NAMES.get(name, name), *(_kib(row[b]) if b in row else "–" for b in found["budgets"]),
             low if not high else f"{low} to {high.rpartition(', ')[2]}"]
        )  # fmt: skip
    return table([*_head(found, "KiB at the first question → at the end"), "time over everything's"], rows)


def _kib(row: dict[str, Any]) -> str:
    first, end = (f"{row[k] / 1024:,.0f}" for k in ("bytes_first", "bytes_end"))
    return f"{first} → {end}"


TABLES = {"kvpress": losses, "kvpress_against": against, "kvpress_bytes": sizes}
