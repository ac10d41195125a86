"""Put the committed results into the documents: no measured number is typed by hand.

In a document, ``<!-- table NAME -->…<!-- /table -->`` is replaced by a table made here, and
``<!-- figure FILE PATH FORMAT -->…<!-- /figure -->`` by one number, such as
``<!-- figure startup help_seconds .2f -->0.05<!-- /figure -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.tables import TABLES as EXPERIMENTS

from benchmarks.common import result
from benchmarks.kvpress_tables import TABLES as KVPRESS
from benchmarks.plan_tables import TABLES as PLANS
from benchmarks.stream_tables import TABLES as STREAMS
from benchmarks.tables import TABLES as MORE
from sinkgate.report.weightings import write as weightings_of_the_report

ROOT = Path(__file__).parents[1]
DOCUMENTS = (  # all that may hold a table or a figure, so that none is forgotten
    "README.md",
    "README.zh-CN.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
LABELS = {
    "plain": ("plain sdpa forward", "普通 sdpa 前向"),
    "first": ("`--detail first`: mass, split, margin, sink rate of the first four keys", "`--detail first`：前四个键的质量、拆分、间隔与汇率"),
    "keys": ("`--detail keys`: α of every key", "`--detail keys`：每个键的 α"),
    "full": ("`--detail full`: everything", "`--detail full`：全部"),
    "keys_torch": ("α of every key, without the compiled kernels", "每个键的 α，不用编译内核"),
    "full_torch": ("everything, without the compiled kernels", "全部，不用编译内核"),
    "output_attentions": ("eager with `output_attentions=True`, the usual way", "eager 加 `output_attentions=True`（通常做法）"),
}  # fmt: skip


def cost(chinese: bool) -> str:
    """What reading costs, by length."""
    found = result("diagnose")
    lengths = sorted({row["tokens"] for row in found["rows"]})
    head = ["读什么" if chinese else "what is read"]
    for n in lengths:
        head += [f"{n} 时间" if chinese else f"time at {n}", f"{n} 内存" if chinese else f"memory at {n}"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for what, labels in LABELS.items():
        cells = [labels[chinese]]
        for n in lengths:
            row = next(r for r in found["rows"] if r["what"] == what and r["tokens"] == n)
            if "failed" in row:
                cells += ["failed", "failed"]
            else:
                digits = 1 if what == "output_attentions" else 2
                cells += [f"{row['ratio']:.{digits}f} ×", f"{row['memory_ratio']:.{digits}f} ×"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def models(chinese: bool) -> str:
    """The two real models on the demo speeches."""
    found = result("models")
    head = (
        ["模型", "首标记 BOS", "α₁ 均值（95% 区间）", "均匀零假设", "α₁ > 0.3 的头", "写入比（中位数）"]
        if chinese
        else [
            "model",
            "BOS first",
            "mean α₁ (95% interval)",
            "uniform null",
            "heads over 0.3",
            "write ratio of these (median)",
        ]
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in found["rows"]:
        ratio = "–" if row["write_ratio_median"] is None else f"{row['write_ratio_median']:.2f}"
        bos = {"auto": {"smollm2-135m": "no", "gemma3-270m": "yes"}.get(row["model"], "auto")}.get(
            row["bos"], row["bos"]
        )
        lines.append(
            f"| {row['model']} | {bos} | {row['mean']:.3f} ({row['low']:.3f}–{row['high']:.3f}) | {row['null']:.3f} | {row['sink_rate']:.0%} | {ratio} |"
        )
    return "\n".join(lines)


def machine(chinese: bool) -> str:
    """Where the cost table was measured."""
    e = result("diagnose")["environment"]
    flags = ", ".join(e["flags"])
    return f"{e['cpu']}, {e['cores']} {'核' if chinese else 'cores'}, {flags}; torch {e['torch']}, transformers {e['transformers']}; {e['date']}"


def weightings(chinese: bool) -> str:
    """Every registered weighting, from the registry: this one follows from the code, not from a result."""
    from sinkgate.weighting import as_weighting, names

    lines = ["| name | value | weights | mass | shift-invariant | exact zeros | source |", "|" + "---|" * 7]
    for name in names():
        w = as_weighting(name)
        formula = str(getattr(w, "formula", "")).replace("|", "\\|")
        yes = [("yes" if x else "no") for x in (w.shift_invariant, w.exact_zeros)]
        lines.append(
            f"| `{name}` | `{type(w).__name__}` | {formula} | {w.mass} | {' | '.join(yes)} | {getattr(w, 'source', '')} |"
        )
    return "\n".join(lines)


def speed(chinese: bool) -> str:
    """The operation against SDPA."""
    found = result("ops")
    lines = ["| weighting | fwd fp32 | fwd+bwd fp32 | fwd bf16 | fwd+bwd bf16 |", "|" + "---|" * 5]
    for name in dict.fromkeys(r["weighting"] for r in found["float32"]):
        if name == "sdpa":
            continue
        cells = []
        for dtype in ("float32", "bfloat16"):
            for kind in ("fwd", "fwd+bwd"):
                row = next(r for r in found[dtype] if r["weighting"] == name and r["pass"] == kind)
                bound = f" (≤ {row['bound']:g})" if row["bound"] else ""
                cells.append(f"{row['ratio']:.2f}{bound}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def growth(chinese: bool) -> str:
    """Forward time by length, and the exponent that fits."""
    rows = result("ops")["growth"]
    lines = ["| weighting | window | " + " | ".join(f"{t // 1024}k" for t in rows[0]["tokens"]) + " | exponent |"]
    lines.append("|" + "---|" * (len(rows[0]["tokens"]) + 3))
    for row in rows:
        times = " | ".join(f"{s:.3f} s" for s in row["seconds"])
        lines.append(f"| `{row['weighting']}` | {row['window'] or '–'} | {times} | {row['exponent']:.2f} |")
    return "\n".join(lines)


def closed(chinese: bool) -> str:
    """What a closed gate saves."""
    rows = result("ops")["closed"]
    lines = [
        "| share closed | " + " | ".join(f"{r['closed']:.0%}" for r in rows) + " |",
        "|" + "---|" * (len(rows) + 1),
    ]
    for kind in ("fwd", "fwd+bwd"):
        lines.append(f"| {kind}, over computing all | " + " | ".join(f"{r[kind]:.2f}" for r in rows) + " |")
    return "\n".join(lines)


def others(chinese: bool) -> str:
    """Decoding, the fast precision, memory, and what runs without a compiler."""
    found = result("ops")
    head = [
        "decode fp32",
        "decode bf16",
        "`fast` bf16",
        "bf16 error over SDPA's",
        "memory fwd+bwd",
        "no compiler, fwd fp32",
    ]
    lines = ["| weighting | " + " | ".join(head) + " |", "|" + "---|" * (len(head) + 1)]

    def pick(part: str, key: str = "ratio", **where: Any) -> str:
        row = next((r for r in found[part] if all(r[k] == v for k, v in where.items())), None)
        return "–" if row is None else f"{row[key]:.2f}"

    for name in dict.fromkeys(r["weighting"] for r in found["decode"]):
        if name == "sdpa":
            continue
        cells = [pick("decode", weighting=name, dtype=d) for d in ("float32", "bfloat16")]
        cells.append(pick("fast", weighting=name, **{"pass": "fwd"}))
        cells.append(pick("accuracy", weighting=name, precision="exact"))
        cells.append(pick("memory", weighting=name, **{"pass": "fwd+bwd"}))
        cells.append(pick("without", weighting=name, dtype="float32", impl="blocked", **{"pass": "fwd"}))
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[bool], str]] = {
    "cost": cost,
    "models": models,
    "machine": machine,
    "weightings": weightings,
    "speed": speed,
    "growth": growth,
    "closed": closed,
    "others": others,
    **MORE,
    **STREAMS,
    **PLANS,
    **KVPRESS,
    **EXPERIMENTS,
}


MISSING = "*not measured yet*"


def filled(name: str, chinese: bool) -> str:
    """A table, or that its result is not there yet."""
    try:
        return TABLES[name](chinese)
    except FileNotFoundError:
        return MISSING


def figure(name: str, path: str, form: str) -> str:
    """One number of one result; the path's parts are keys, or places in a list."""
    try:
        value: Any = result(name)
    except FileNotFoundError:
        return MISSING
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return format(value, form)


def rendered(text: str, *, chinese: bool = False) -> str:
    """A document with today's results in it."""
    text = re.sub(
        r"(<!-- table (\w+) -->\n)(?:(?!<!-- table ).)*?(<!-- /table -->)",
        lambda m: m.group(1) + filled(m.group(2), chinese) + "\n" + m.group(3),
        text,
        flags=re.S,
    )
    return re.sub(
        r"(<!-- figure (\S+) (\S+) (\S+) -->).*?(<!-- /figure -->)",
        lambda m: m.group(1) + figure(m.group(2), m.group(3), m.group(4)) + m.group(5),
        text,
    )


def main() -> None:
    """Rewrite the documents, and the report's copy of the registry."""
    weightings_of_the_report()
    for name in DOCUMENTS:
        path = ROOT / name
        if path.exists():
            path.write_text(rendered(path.read_text(encoding="utf-8"), chinese="zh-CN" in name), encoding="utf-8")


if __name__ == "__main__":
    main()
