"""Tables of the experiments that are comparisons, for :mod:`experiments.tables`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from benchmarks.common import result
from benchmarks.tables import table

__all__ = ["TABLES"]

Row = dict[str, Any]


def plain(entry: Row | None, form: str = ".3f") -> str:
    """A mean with half its interval."""
    if entry is None or entry["mean"] is None:
        return "–"
    if entry["low"] is None:
        return format(entry["mean"], form)
    return f"{entry['mean']:{form}} ± {(entry['high'] - entry['low']) / 2:{form.lstrip('+')}}"


def change(entry: Row | None, form: str = "+.3f") -> str:
    """A difference with its interval."""
    if entry is None or entry["mean"] is None:
        return "–"
    if entry["low"] is None:
        return format(entry["mean"], form)
    return f"{entry['mean']:{form}} ({entry['low']:{form}} to {entry['high']:{form}})"


def _gates(which: str, columns: dict[str, tuple[str, str]]) -> Callable[[bool], str]:
    def made(chinese: bool) -> str:
        found = result(f"gates_{which}")
        rows = []
        for arm, entry in found["arms"].items():
            headline = found["headline"]
            smallest = found["smallest_difference"].get(arm)
            rows.append([
                f"`{arm}`", f"{entry['lr']:g}", plain(entry["numbers"][headline]),
                "" if arm == found["baseline"] else change(entry["differences"][headline]),
                "baseline" if arm == found["baseline"] else entry["told"],
                "" if smallest is None or math.isnan(smallest) else f"{smallest:.3f}",
                *(plain(entry["numbers"].get(name), form) for name, form in columns.values()),
                "–" if entry["cost"] is None else f"{entry['cost']:.2f}",
            ])  # fmt: skip
        head = ["arm", "rate", found["headline"].replace("_", " "), "difference (95%)", "told apart", "smallest it could have seen",
                *columns, "time of a step"]  # fmt: skip
        return table(head, rows)

    return made


def stability(chinese: bool) -> str:
    """How many seeds diverged, by arm and rate, and the loss of the others."""
    found = result("stability")
    rates = list(next(iter(found["arms"].values())))
    rows = []
    for arm, by in found["arms"].items():
        cells = []
        for lr in rates:
            entry = by[lr]
            lost = f"{entry['diverged']} of {entry['of']} diverged" if entry["diverged"] else ""
            loss = "" if entry["excess_loss"] is None else f"{entry['excess_loss']:.3f}"
            cells.append("; ".join(x for x in (loss, lost) if x))
        rows.append([f"`{arm}`", *cells])
    return table(["arm", *(f"rate {lr}" for lr in rates)], rows)


def emergence(chinese: bool) -> str:
    """By learning rate, and by weight decay at the rate 1e-2."""
    found = result("emergence_backcopy")
    rows = []
    for kind, words in (("lr", "rate"), ("weight_decay", "weight decay")):
        for value, entry in found[kind].items():
            rows.append([
                f"{words} {value}", *(plain(entry[n], ".3f") for n in ("dormant_mass", "active_mass", "excess_loss")),
                plain(entry["max_activation"], ".1f"), plain(entry["kurtosis"], ".1f"), str(entry["diverged"]),
            ])  # fmt: skip
    head = [
        "",
        "first token, ordinary queries",
        "first token, triggers",
        "excess loss",
        "largest activation",
        "kurtosis",
        "diverged",
    ]
    return table(head, rows)


def emergence_curve(chinese: bool) -> str:
    """The curve of one seed, by rate."""
    found = result("emergence_backcopy")["lr"]
    steps = [p["step"] for p in next(iter(found.values()))["curve"]]
    chosen = steps[:: max(1, len(steps) // 8)]
    rows = []
    for lr, entry in found.items():
        at = {p["step"]: p["dormant_mass"] for p in entry["curve"]}
        rows.append([f"rate {lr}", *(f"{at[s]:.2f}" if s in at else "–" for s in chosen)])
    return table(["", *(f"step {s:,}" for s in chosen)], rows)


def emergence_text(chinese: bool) -> str:
    """Recipes tried on natural text, and where they ended."""
    rows = []
    for name, entry in result("emergence_text")["recipes"].items():
        task, test = entry["plan"]["task"], entry["test"]
        size = f"{entry['parameters'] / 1e6:.2f}M, context {task['context'] or 128}, {task['tokenizer']}"
        rows.append([
            name, size, f"{entry['plan']['lrs'][0]:g}", f"{entry['tokens'] / 1e6:.1f}M", f"{test['loss']:.3f}",
            f"{test['first_mass']:.3f} ({test['first_null']:.3f})", f"{test['strongest_head']:.3f}", f"{test['sink_rate']:.0%}",
            f"{test['max_activation']:.0f}", f"{test['kurtosis']:.0f}",
        ])  # fmt: skip
    head = ["recipe", "model", "rate", "tokens", "held-out loss", "first-token mass (null)", "strongest head", "heads over 0.3",
            "largest activation", "kurtosis"]  # fmt: skip
    return table(head, rows)


def emergence_text_curve(chinese: bool) -> str:
    """Strongest head along each recipe."""
    rows = []
    for name, entry in result("emergence_text")["recipes"].items():
        curve = entry["curve"]
        some = curve[:: max(1, len(curve) // 7)]
        rows.append([name, "; ".join(f"{p['step']:,}: {p['strongest_head']:.2f}" for p in some)])
    return table(["recipe", "step: strongest head's mass on the first token"], rows)


def sink_tokens(chinese: bool) -> str:
    """Perplexity behind the window, by arm and tokens kept."""
    found = result("sink_tokens")
    names = ["whole", *map(str, found["kept"])]
    rows = []
    for arm, by in found["loss"].items():
        rows.append([
            f"`{arm}`", *(f"{math.exp(by[n]['mean']):.2f}" for n in names), plain(found["first_mass"][arm], ".3f"),
        ])  # fmt: skip
    return table(["arm", "everything seen", *(f"{n} kept" for n in found["kept"]), "first-token mass"], rows)


def length(chinese: bool) -> str:
    """Loss of the last quarter at longer contexts."""
    found = result("length")["arms"]
    rows = []
    for arm, entry in found.items():
        for name, words in (("loss_by_length", "as trained"), ("yarn_loss_by_length", "YaRN")):
            rows.append([f"`{arm}`", words, *(plain(x) for x in entry[name])])
    lengths = next(iter(found.values()))["length"]
    return table(["arm", "rotation", *(f"{n:.0f} tokens" for n in lengths)], rows)


def _quantization(which: str) -> Callable[[bool], str]:
    def made(chinese: bool) -> str:
        found = result("quantization")
        if which not in found:
            raise FileNotFoundError(f"the result of quantization has nothing on {which}")
        rows = []
        for arm, by in found[which].items():
            cells = (by[scheme] for scheme in found["schemes"])
            rows.append([f"`{arm}`", *("–" if "refused" in cell else plain(cell["rise"], "+.4f") for cell in cells)])
        return table(["arm", *found["schemes"]], rows)

    return made


def correlations(chinese: bool) -> str:
    """Spearman's ρ over pieces, the interval from resampling arms."""
    found = result("correlations")
    words = {"recall": "recall", "recall_loss": "loss where it has to recall", "tokens_per_second": "tokens/s",
             "gradient_variance": "variance of the gradient norm", "eight_bits": "cost of W8A8"}  # fmt: skip
    circulated = {
        "recall": "recall",
        "tokens_per_second": "speed",
        "gradient_variance": "stability",
        "eight_bits": "quantization",
    }
    rows = []
    for task in (name for name in ("backcopy", "text") if name in found):
        for x in ("sink_rate", "first_mass"):
            for y, entry in found[task]["against"][x].items():
                if entry["rho"] is None:
                    continue
                claim = found["unverified"].get(circulated.get(y, ""), None)
                rows.append([
                    task, x.replace("_", " "), words[y], f"{entry['rho']:+.2f} ({entry['low']:+.2f} to {entry['high']:+.2f})",
                    f"{entry['n']} of {entry['arms']} arms", "" if claim is None else f"{claim:+.2f} (unverified)",
                ])  # fmt: skip
    return table(["task", "", "with", "ρ here (95%)", "pieces", "in circulation"], rows)


TABLES: dict[str, Callable[[bool], str]] = {
    "gates_backcopy": _gates("backcopy", {
        "first token, ordinary queries": ("dormant_mass", ".3f"), "first token, triggers": ("active_mass", ".3f"),
        "largest activation": ("max_activation", ".1f"), "kurtosis": ("kurtosis", ".1f"), "gate": ("gate_mean", ".3f"),
    }),
    "gates_text": _gates("text", {
        "first-token mass": ("first_mass", ".3f"), "strongest head": ("strongest_head", ".3f"),
        "largest activation": ("max_activation", ".1f"), "kurtosis": ("kurtosis", ".1f"), "gate": ("gate_mean", ".3f"),
    }),
    "stability": stability,
    "emergence_backcopy": emergence,
    "emergence_curve": emergence_curve,
    "emergence_text": emergence_text,
    "emergence_text_curve": emergence_text_curve,
    "sink_tokens": sink_tokens,
    "length": length,
    "quantization_backcopy": _quantization("backcopy"),
    "quantization_text": _quantization("text"),
    "correlations": correlations,
}  # fmt: skip
