"""Tables of interventions and outlets, for :mod:`benchmarks.render`."""

from __future__ import annotations

from typing import Any

from benchmarks.common import result


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def signed(row: dict[str, Any], mean: str, low: str, high: str) -> str:
    """``+0.123 (+0.1 to +0.2)``."""
    return f"{row[mean]:+.3f} ({row[low]:+.3f} to {row[high]:+.3f})"


SHORT = (
    "evict",
    "masked from the start",
    "scalar gate",
    "constant gate",
    "constant gate, v_s = 0",
    "transplant: another text",
)
CHINESE = {
    "evict": "逐出", "masked from the start": "从一开始就屏蔽（只是让下一个标记成为第一个）",
    "scalar gate": "标量门：权重保留，v = 0", "constant gate": "常数门：g 取均值", "constant gate, v_s = 0": "常数门，且 v = 0", "transplant: another text": "移植：另一文本首标记的键与值",
}  # fmt: skip
ENGLISH = {
    "evict": "evicted", "masked from the start": "masked from the start (the next token becomes the first)",
    "scalar gate": "scalar gate: weights kept, v = 0", "constant gate": "constant gate: g at its mean", "constant gate, v_s = 0": "constant gate and v = 0",
    "transplant: another text": "transplant: key and value of another text's first token",
}  # fmt: skip


def acts(chinese: bool) -> str:
    """The README's five rows."""
    rows = result("intervene")["models"][0]["rows"]
    names = CHINESE if chinese else ENGLISH
    head = (
        ["干预", "困惑度", "损失变化", "对照"]
        if chinese
        else ["act", "perplexity", "loss change (95% interval)", "control"]
    )
    plain = next(r for r in rows if r["kind"] == "untouched")
    lines = [["未改动" if chinese else "untouched", f"{plain['perplexity']:.1f}", "", ""]]
    for label in SHORT:
        act = next(r for r in rows if r["label"] == label and r["kind"] == "act")
        control = next((r for r in rows if r["label"] == label and r["kind"] == "control"), None)
        beside = "–" if control is None else f"{control['loss_change']:+.3f}"
        lines.append(
            [
                names[label],
                f"{act['perplexity']:.1f}",
                signed(act, "loss_change", "loss_change_low", "loss_change_high"),
                beside,
            ]
        )
    return table(head, lines)


def interventions(chinese: bool) -> str:
    """Every arm of every model."""
    parts = []
    for model in result("intervene")["models"]:
        rows = []
        for r in model["rows"]:
            if r["kind"] == "untouched":
                rows.append(["untouched", f"{r['perplexity']:.2f}", "", "", "", ""])
            elif r["kind"] == "act":
                c = next((x for x in model["rows"] if x["label"] == r["label"] and x["kind"] == "control"), None)
                beside = "–" if c is None else signed(c, "loss_change", "loss_change_low", "loss_change_high")
                change = signed(r, "loss_change", "loss_change_low", "loss_change_high")
                rows.append(
                    [r["label"], f"{r['perplexity']:.2f}", change, beside, f"{r['kl']:.4f}", f"{r['agreement']:.1%}"]
                )
        bos = {"auto": "as the tokenizer does", "yes": "with BOS", "no": "without BOS"}[model["bos"]]
        head = ["act", "perplexity", "loss change, nats", "its control", "KL", "same top token"]
        correlations = "; ".join(f"{n}: ρ = {c['rho']:.2f} (n = {c['n']})" for n, c in model["correlations"].items())
        text = f"**{model['model']}, {bos}.** {' '.join(model['verdict'][:2])}"
        if correlations:
            text += f" Rank correlation with the KL of single heads: {correlations}."
        parts.append(f"{text}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def repeated(chinese: bool) -> str:
    """One repeated token."""
    rows = []
    for model in result("intervene")["models"]:
        r = model["repeated"]
        where = ", ".join(map(str, r["where"])) or "nowhere"
        more = f" and {r['sinks'] - len(r['where'])} more" if r["sinks"] > len(r["where"]) else ""
        text = f"{r['tokens']} × {r['token']!r}" + (f" behind {r['before']!r}" if r["before"] else "")
        rows.append([model["model"], text, where + more, f"{r['first_mass']:.3f} ({r['null_mass']:.3f})",
                     f"{r['like_first']:.0%}", f"{r['loss']:.3f} → {r['evicted']:.3f}", f"{r['control']:.3f}"])  # fmt: skip
    head = [
        "model", "text", "sinks at", "first token's mass (null)", "later tokens that look like it",
        "loss, first token evicted", "a copy evicted",
    ]  # fmt: skip
    return table(head, list({r[0] + r[1]: r for r in rows}.values()))


def fold(chinese: bool) -> str:
    """Ways × arms."""
    arms = result("fold")["arms"]
    window = arms[0]["settings"]["window"]
    heads = [
        f"{a['model']}, {'before the text' if a['distance'] is None else 'at ' + str(a['distance'])}" for a in arms
    ]
    rows = []
    for way in arms[0]["rows"]:
        if way == "untouched":
            rows.append(["untouched (perplexity)", *(f"{a['rows'][way]['perplexity']:.2f}" for a in arms)])
        else:
            rows.append([way, *(signed(a["rows"][way], "change", "low", "high") for a in arms)])
    folded = "; ".join(dict.fromkeys(f"{a['model']} from {', '.join(map(repr, a['tokens'][:3]))}" for a in arms))
    return table(["way", *heads], rows) + f"\n\nFolded: {folded}. Window: {window} tokens, positions of the text."


def outlets(chinese: bool) -> str:
    """Can an outlet take over?"""
    rows = []
    found = result("train_outlet")
    for name, arm in found["arms"].items():
        for which, label in (("before", "without"), ("after", name), ("control", f"{name}, random heads")):
            if which not in arm["rows"] or (which == "before" and rows):
                continue
            r = arm["rows"][which]
            rows.append([
                label, "" if which == "before" else f"{arm['parameters']:,}", "" if which == "before" else str(arm.get("steps", found["steps"])),
                f"{r['loss']:.3f}", "" if which == "before" else signed(r, "change", "change_low", "change_high"), f"{r['evicted']:.3f}",
                signed(r, "cost", "cost_low", "cost_high"), f"{r['first_mass']:.3f}", f"{r['outlet_mass']:.3f}",
                "" if which == "before" else f"{r['taken_over']:.0%}",
            ])  # fmt: skip
    head = [
        "outlet",
        "parameters",
        "steps",
        "held-out loss",
        "change",
        "first token evicted",
        "what that costs",
        "first-token mass",
        "outlet's mass",
        "taken over",
    ]
    return table(head, rows)


def aids(chinese: bool) -> str:
    """Each aid beside none."""
    rows = []
    for name, arm in result("aids")["arms"].items():
        r = arm["rows"]["after"]
        rows.append([name, signed(r, "change", "change_low", "change_high"), signed(r, "cost", "cost_low", "cost_high"),
                     f"{r['first_mass']:.3f}", f"{r['outlet_mass']:.3f}", f"{r['taken_over']:.0%}"])  # fmt: skip
    return table(
        [
            "aid",
            "change of the held-out loss",
            "what eviction costs then",
            "first-token mass",
            "outlet's mass",
            "taken over",
        ],
        rows,
    )


def gates(chinese: bool) -> str:
    """What gates and swaps cost."""
    found = result("outlets")
    share = found["share_of_a_layer_s_multiplications"]
    bounds = {
        "swapped softmax": "≤ 1.02",
        "G1 per head": "≤ 1.03",
        "G1 elementwise": f"≤ {1 + share['G1 elementwise'] + 0.03:.3f}",
    }
    rows = [
        [
            n,
            f"{share[n]:.1%}" if n in share else "–",
            f"{found['training'][n]['ratio']:.3f}",
            f"{found['decoding'][n]['ratio']:.3f}",
            bounds[n],
        ]
        for n in bounds
    ]
    return table(["", "share of a layer's multiplications", "training", "decoding", "asked"], rows)


def lab_speed(chinese: bool) -> str:
    """Training throughput of the lab's arms, over the plain loop's and over its own softmax."""
    found = result("lab")
    bounds = {"softmax": "≥ 1.00", "softmax+g1_head": "≥ 0.97", "sink_softmax": "≥ 0.98"}
    share = found["bfloat16"]["elementwise_flop_share"]
    bounds["softmax+g1"] = f"≥ {1 / (1 + share + 0.03):.3f} (its share of the operations, {share:.1%}, and 3%)"
    rows = []
    for arm in found["bfloat16"]["throughput_over_softmax"]:
        cells = []
        for dtype in ("bfloat16", "float32"):
            over = found[dtype]["throughput_over_plain"][arm], found[dtype]["throughput_over_softmax"][arm]
            cells += [f"{over[0]:.3f}", "" if arm == "softmax" else f"{over[1]:.3f}"]
        rows.append([f"`{arm}`", *cells, bounds.get(arm, "")])
    head = [
        "arm",
        "bf16, over the plain loop",
        "over our softmax",
        "fp32, over the plain loop",
        "over our softmax",
        "asked",
    ]
    return table(head, rows)


def studio(chinese: bool) -> str:
    """How the studio feels."""
    found = result("studio")
    bounds, readers, (layers, heads) = found["bounds"], found["readers"], found["map"]
    rows = [
        ["first paint from a local server", f"{found['first_paint_ms']:.0f} ms", f"< {bounds['first_paint_ms']} ms"],
        ["the page is drawn whole", f"{found['ready_ms']:.0f} ms", ""],
        [f"a slider of the simulator, {found['keys']} keys (the slowest: {found['slowest_slider']})", f"{found['slider_ms']:.1f} ms", f"≤ {bounds['slider_ms']} ms"],
        [f"a map of {layers} × {heads} heads is drawn", f"{found['map_ms']:.0f} ms", f"< {bounds['map_ms']} ms"],
        [f"{readers['at_once']} readers at once while the default model writes: 95th percentile", f"{readers['p95_ms']:.0f} ms", f"≤ {bounds['readers_p95_ms']} ms"],
        ["errors among them", f"{readers['errors']} of {readers['at_once'] * readers['waves']}", "0"],
        ["`report.html` of the default model", f"{found['report_bytes'] / 1e6:.2f} MB", f"≤ {bounds['report_bytes'] / 1e6:.0f} MB"],
    ]  # fmt: skip
    return table(["", f"median of {found['rounds']}", "asked"], rows)


TABLES = {
    "studio": studio,
    "lab_speed": lab_speed,
    "acts": acts, "interventions": interventions, "repeated": repeated, "fold": fold, "outlets": outlets, "aids": aids, "gates": gates,
}  # fmt: skip
