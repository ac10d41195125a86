"""Tables of the planner, for :mod:`benchmarks.render`."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import result, table

MIB = 2**20


def _percent(row: dict[str, Any]) -> str:
    return f"{row['mean']:+.2%} ({row['low']:+.2%} to {row['high']:+.2%}); ≤ {row['upper']:+.2%}"


def promise(chinese: bool) -> str:
    """What held on the held-out texts."""
    found = result("plan")
    texts = found["held_out"]
    head = (
        ["模型", "允许", "方案", f"困惑度变化，{texts} 篇留出文本（95% 区间；上界）", "承诺", "兑现"]
        if chinese
        else [
            "model",
            "allowed",
            "plan",
            f"perplexity, {texts} held-out texts (95% interval; upper bound)",
            "promised",
            "kept",
        ]
    )
    rows = []
    for name, model in found["models"].items():
        for s in model["searches"]:
            promised = "–" if s["promised"] is None else f"≤ {s['promised']:+.2%}"
            rows.append(
                [
                    name,
                    f"{s['tolerance']:.0%}",
                    f"`{_short(s['setting'])}`",
                    _percent(s["increase"]),
                    promised,
                    _yes(s["kept"], chinese),
                ]
            )
    return table(head, rows)


def grid(chinese: bool) -> str:
    """What it weighs beside the plain grid's best, and beside recent + sinks(4) of the same bytes."""
    found = result("plan")
    head = (
        [
            "模型",
            "允许",
            "方案 MiB",
            "全部缓存 MiB",
            "网格中最轻且满足者",
            "与之之比（界限 1.2）",
            "比同字节的 recent + sinks(4) 多损失（nat，95% 区间）",
        ]
        if chinese
        else [
            "model",
            "allowed",
            "plan, MiB",
            "whole cache, MiB",
            "the grid's lightest that keeps it",
            "over its bytes (asked ≤ 1.2)",
            "loses more than recent + sinks(4) of the same bytes (nats, 95% interval)",
        ]
    )
    rows = []
    for name, model in found["models"].items():
        for s in model["searches"]:
            d = s.get("plain", {}).get("difference")
            over = "–" if s["over_grid"] is None else f"{s['over_grid']:.2f}"
            plain = "–" if d is None else f"{d['mean']:+.4f} ({d['low']:+.4f} to {d['high']:+.4f})"
            best = s["grid"]["best"]
            none = "无" if chinese else "none"
            lightest = none if best is None else f"`{best['policy']}`, {best['positions']}"
            rows.append(
                [
                    name,
                    f"{s['tolerance']:.0%}",
                    f"{s['bytes'] / MIB:.2f}",
                    f"{s['dense_bytes'] / MIB:.2f}",
                    lightest,
                    over,
                    plain,
                ]
            )
    return table(head, rows)


def cost(chinese: bool) -> str:
    """Predicted beside measured."""
    found = result("plan")
    head = (
        ["模型", "允许", "字节：预测 / 测得", "一步耗时与全缓存之比：预测", "测得（95% 区间）"]
        if chinese
        else [
            "model",
            "allowed",
            "bytes, predicted over measured",
            "a step over one with everything kept: predicted",
            "measured (95% interval)",
        ]
    )
    rows = []
    for name, model in found["models"].items():
        for s in model["searches"]:
            if s["measured_bytes"] is None:
                continue
            r = s["measured_ratio"]
            rows.append([
                name, f"{s['tolerance']:.0%}", f"{s['predicted_bytes'] / s['measured_bytes']:.4f}", f"{s['predicted_ratio']:.2f}",
                f"{r['mean']:.2f} ({r['low']:.2f} to {r['high']:.2f})",
            ])  # fmt: skip
    return table(head, rows)


def time(chinese: bool) -> str:
    """Minutes of a whole plan, and where they go."""
    found = result("plan_time")
    asked = found["asked_seconds"] / 60
    head = (
        ["模型", "首次（分钟）", f"校准已缓存（要求 ≤ {asked:.0f}）", "其中：搜索", "验证", "更少位数", "召回"]
        if chinese
        else [
            "model",
            "first time, minutes",
            f"calibration passes cached (asked ≤ {asked:.0f})",
            "of them search",
            "verification",
            "fewer bits",
            "recall",
        ]
    )
    rows = []
    for name, m in found["models"].items():
        parts = [m["stages"].get(stage, 0.0) / 60 for stage in ("search", "verification", "fewer bits", "recall")]
        minutes = [m["seconds"] / 60, (m["seconds"] - m["calibration"]) / 60, *parts]
        rows.append([name, *(f"{x:.1f}" for x in minutes)])
    return table(head, rows)


def _short(setting: dict[str, Any], most: int = 90) -> str:
    text = f"{setting['policy']}, {setting['positions']}"
    return text if len(text) <= most else text[: most - 1] + "…"


def _yes(kept: bool, chinese: bool) -> str:
    return ("是" if kept else "否") if chinese else ("yes" if kept else "no")


TABLES = {"plan_promise": promise, "plan_grid": grid, "plan_cost": cost, "plan_time": time}
