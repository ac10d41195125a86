"""Tables of streams, for :mod:`benchmarks.render`."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import result, signed, table

NONE = "–"


def number(x: Any, form: str = ".2f") -> str:
    """One number, or a dash."""
    return NONE if x is None else format(x, form)


def streams(chinese: bool) -> str:
    """Perplexity along the stream, every arm."""
    found = result("stream")
    head = (
        ["缓存", "位置", "6,000", "100,000", "与重新计算之差（nat）", "缓存 KiB"]
        if chinese
        else ["cache", "positions", "6,000", "100,000", "over the window read afresh, nats", "cache, KiB"]
    )
    rows = []
    for name, arm in sorted(found["arms"].items(), key=_order):
        over = arm["over_recompute"]
        short = name.split(",")[0]
        rows.append(
            [
                f"{short}: `{arm['policy']}`", arm["positions"], number(arm["perplexity"]["6000"]),
                number(arm["perplexity"]["100000"]),
                signed(over, "mean", "low", "high") if over["places"] == 300 else f"{signed(over, 'mean', 'low', 'high')}, {over['places']} places",
                f"{arm['cache_kib']:,.0f}",
            ]
        )  # fmt: skip
    return table(head, rows)


def _order(item: tuple[str, Any]) -> tuple[int, int, str]:
    """Everything, nothing but the window, then sinks by their number."""
    name = item[0]
    first = {"dense": 0, "window": 1}.get(name, 2)
    return first, int(name.split()[0]) if first == 2 else 0, "" if name.endswith("slots") else name


def steps(chinese: bool) -> str:
    """What a step costs."""
    found = result("stream_steps")
    flat, stream = found["flat"], found["stream"]
    head = ["比较", "比值"] if chinese else ["compared", "ratio"]
    rows = [
        [
            "第 100,000 个标记与第 2,000 个标记处的一步（界限 1.03）" if chinese else "a step at 100,000 tokens over one at 2,000 (asked: at most 1.03)",
            f"{flat['ratio']:.3f}",
        ],
        [
            "沿流的常驻内存：最大值超过最小值（界限 1%）" if chinese else "resident memory along the stream, most over least (asked: 1% at most)",
            f"{stream['resident_growth']:.2%}",
        ],
    ]  # fmt: skip
    for window in (256, 1024, 4096):
        row = found[f"w{window}"]
        label = f"{window}"
        rows += [
            [
                f"{label}：原位置 / 同长稠密缓存（界限 1.05）" if chinese else f"{label} tokens held: original positions over a dense cache of that length (asked: at most 1.05)",
                f"{row['original_over_dense']:.2f}",
            ],
            [
                f"{label}：缓存位置 / 同长稠密缓存（界限 1.05）" if chinese else f"{label} tokens held: cache positions over a dense cache of that length (asked: at most 1.05)",
                f"{row['slots_over_dense']:.2f}",
            ],
            [
                f"{label}：重新计算窗口 / 缓存位置的一步" if chinese else f"{label} tokens held: the window read afresh over a step",
                f"{row['recompute_over_slots']:.0f}",
            ],
        ]  # fmt: skip
    return table(head, rows)


def quantized(chinese: bool) -> str:
    """8 and 4 bits, with the sinks kept or not."""
    found = result("stream_quantized")
    head = ["缓存", "困惑度", "损失变化", "保留", "KiB"] if chinese else ["cache", "perplexity", "loss change (interval over stretches)", "tokens held", "KiB"]  # fmt: skip
    rows = []
    for name, arm in found["arms"].items():
        change = "" if name == "32 bits" else signed(arm, "change", "low", "high")
        rows.append([name, f"{arm['perplexity']:.2f}", change, str(arm["held"]), f"{arm['cache_kib']:,.0f}"])
    return table(head, rows)


def recall(chinese: bool) -> str:
    """Share of right answers by distance, with how many were asked."""
    found = result("recall")
    head = ["策略，距离（标记）" if chinese else "kept; distance in tokens:", *found["distances"]]
    rows = []
    for row in found["rows"].values():
        cells = [NONE if n is None else f"{right}/{n}" for right, n in zip(row["right"], row["of"], strict=True)]
        rows.append([f"{row['name']}: `{row['policy']}`, {row['positions']}", *cells])
    chance = max(x for row in found["rows"].values() for x in row["chance"] if x is not None)
    end = (
        f"窗口 {found['window']}；猜中的机会至多 {chance:.0%}。"
        if chinese
        else f"A window of {found['window']} tokens; guessing is right in at most {chance:.0%}."
    )
    return f"{table(head, rows)}\n\n{end}"


def stream_short(chinese: bool) -> str:
    """The README's few rows."""
    arms = result("stream")["arms"]
    head = ["缓存（256 个标记）", "6,000 的困惑度", "100,000 的困惑度"] if chinese else ["cache", "perplexity, 6,000 tokens", "perplexity, 100,000 tokens"]  # fmt: skip
    names = {
        "dense": ("everything, while the model's context lasts", "全部（模型上下文之内）"),
        "window": ("the last 256 tokens", "最后 256 个标记"),
        "1 sinks, slots": ("1 sink and the last 255", "1 个汇与最后 255 个"),
        "4 sinks, slots": ("4 sinks and the last 252", "4 个汇与最后 252 个"),
        "4 sinks, original": ("the same, positions of the text", "同上，文本中的位置"),
    }
    rows = [
        [names[name][chinese], number(arms[name]["perplexity"]["6000"]), number(arms[name]["perplexity"]["100000"])]
        for name in names
    ]
    return table(head, rows)


TABLES = {"streams": streams, "steps": steps, "quantized": quantized, "recall": recall, "stream_short": stream_short}
