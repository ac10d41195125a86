"""Tables of the experiments, for :mod:`benchmarks.render`: one function per table, named after its experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables import result, table

from experiments.comparison_tables import TABLES as COMPARISONS


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _steps(s: dict[str, Any]) -> str:
    if not s["solved"]:
        return "–"
    low, high = (f"{s[name]:,.0f}" for name in ("steps_low", "steps_high"))
    return low if low == high else f"{low} to {high}"


def _rows(form: str, columns: dict[str, tuple[str, str]]) -> str:
    """One arm per row: how often solved, and columns of (entry of the summary, format)."""
    rows = []
    for arm, found in result("trigger")["forms"][form]["arms"].items():
        s = found["summary"]
        cells = [_number(s[name], how) for name, how in columns.values()]
        rows.append([f"`{arm}`", f"{s['solved']} of {s['seeds']}", _steps(s), *cells])
    return table(["arm", "solved", "steps", *columns], rows)


ERROR = {"largest error, median seed": ("linf", ".2g")}
SINK = {
    "weight on the BOS off the trigger": ("bos", ".4f"),
    "least, any row and example": ("bos_least", ".4f"),
    "over uniform": ("bos_over_null", ".2f"),
    "mass off the trigger": ("mass", ".3f"),
}
GATE = {"gate off the trigger": ("gate_off", ".3f"), "gate at it": ("gate_at", ".3f")}


def one_layer(chinese: bool) -> str:
    """One layer and head, the BOS visible."""
    return _rows("one_layer", ERROR | SINK | {"what the BOS would write, over other tokens": ("written_ratio", ".3f")})


def masked(chinese: bool) -> str:
    """One layer and head, the BOS hidden from every later query."""
    return _rows("masked", ERROR | {"mass off the trigger": ("mass", ".3f"), "mass at it": ("mass_at", ".3f")} | GATE)


def two_heads(chinese: bool) -> str:
    """One layer of two heads."""
    return _rows("two_heads", ERROR | SINK)


def two_layers(chinese: bool) -> str:
    """Two layers of two heads."""
    most = {
        "largest over layers, heads, rows; mean over examples": ("bos_most", ".4f"),
        "least example": ("bos_most_least", ".4f"),
    }
    return _rows("two_layers", ERROR | {"mean over all of them": ("bos", ".4f")} | most)


def statements(chinese: bool) -> str:
    """How often each statement held, over arms and seeds that it speaks of."""
    found = result("trigger")
    wanted = {
        "single_layer": "one layer and head, softmax that solves it: a sink at every row off the trigger",
        "multilayer": "more heads or layers, softmax that solves it: a sink at some layer, head and row, in every example",
        "relu_trained": "ReLU that was trained and solves it: no sink anywhere",
    }
    rows = []
    for claim, words in wanted.items():
        for form, data in found["forms"].items():
            said = [text for arm in data["arms"].values() for text in arm["claims"].get(claim, [])]
            held, failed = (sum(text.startswith(state) for text in said) for state in ("held", "did not hold"))
            unsolved = sum("did not solve it" in text for text in said)
            if held + failed + unsolved:
                rows.append([words, form.replace("_", " "), str(held), str(failed), str(unsolved)])
    head = ["statement", "form", "held", "did not hold", "not applicable: not solved"]
    return table(head, rows)


TABLES: dict[str, Callable[[bool], str]] = {
    "trigger_one_layer": one_layer,
    "trigger_masked": masked,
    "trigger_two_heads": two_heads,
    "trigger_two_layers": two_layers,
    "trigger_statements": statements,
    **COMPARISONS,
}
