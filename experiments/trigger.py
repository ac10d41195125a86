"""The trigger task of arXiv 2603.11487, every arm, form and seed: ``python -m experiments.trigger``.

One process, one thread: ``OMP_NUM_THREADS=1 nice python -m experiments.trigger``. What is finished is kept in the
user's cache folder, and ``experiments/results/trigger.json`` is written anew after every piece.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.pieces import PLACE, RESULTS, described, kept, piece, write
from sinkgate.lab.arms import as_arm
from sinkgate.lab.tasks.trigger import Trigger
from sinkgate.lab.tasks.trigger_claims import claims, construction_error

EPSILON = 0.01
WITH_BOS = (
    "softmax", "relu", "relu(normalize=False)", "softpick", "softmax+g1_head", "softmax+g1", "sink_softmax",
    "softmax1", "sigmoid", "sigmoid(n=16)", "sparsemax", "entmax", "clipped_softmax", "topk_softmax(k=4)",
)  # fmt: skip
MASKED = ("softmax", "softmax+g1_head", "sink_softmax", "softmax1", "relu", "softpick")
LAYERED = ("softmax", "relu", "sink_softmax", "softmax1", "softmax+g1_head")


@dataclass(frozen=True)
class Form:
    """One form of the task: what is trained on it, how often, and for how many steps at most."""

    task: Trigger
    arms: tuple[str, ...]
    seeds: int
    steps: int


FORMS: dict[str, Form] = {
    "one_layer": Form(Trigger(), WITH_BOS, 5, 10_000),
    "masked": Form(Trigger(bos=False), MASKED, 5, 10_000),
    "all_keys": Form(Trigger(relu_over="keys"), ("relu",), 5, 10_000),
    "two_heads": Form(Trigger(heads=2), ("softmax", "relu"), 5, 10_000),
    "two_layers": Form(Trigger(layers=2, heads=2), LAYERED, 3, 20_000),
}


def run(forms: dict[str, Form], place: Path = PLACE / "trigger", folder: Path = RESULTS) -> dict[str, Any]:
    """Every piece that is missing, seed by seed; the result as it is written."""
    exact = construction_error(seed=0)
    done = {key: record for key in _pieces(forms) if (record := _kept(forms, key, place)) is not None}
    result = _result(forms, done, exact)
    for form, arm, seed in _pieces(forms):
        if (form, arm, seed) in done:
            continue
        spec = forms[form]
        done[form, arm, seed] = record = piece(spec.task, as_arm(arm), seed, place, steps=spec.steps)
        result = _result(forms, done, exact)
        write("trigger", result, done.values(), folder)
        found = record["found"] or {}
        print(
            form,
            arm,
            seed,
            record["failed"] or f"{found['taken']} steps, largest error {found['linf']:.2g}",
            flush=True,
        )
    write("trigger", result, done.values(), folder)
    return result


def summary(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """One arm over its seeds: means, and least or largest where the claims are about those; None: not to be had."""
    found = [p["found"] for p in pieces if p["found"] is not None]

    def over(name: str, take: Any) -> float | None:
        values = [f[name] for f in found if f.get(name) is not None]
        return float(f"{take(values):.6g}") if values else None

    means = ("mse", "bos", "bos_most", "bos_over_null", "mass", "mass_at", "gate_off", "gate_at", "gate_bos")
    written = [statistics.mean(f["written_bos"]) / statistics.mean(f["written_others"]) for f in found]
    return {
        "seeds": len(pieces), "failed": sum(p["found"] is None for p in pieces),
        "solved": sum(int(f["solved"]) for f in found), "steps_low": over("steps", min), "steps_high": over("steps", max),
        "steps": over("steps", statistics.median), "taken_most": over("taken", max),
        "linf": over("linf", statistics.median), "linf_worst": over("linf", max), "bos_least": over("bos_least", min),
        "bos_most_least": over("bos_most_least", min), "bos_highest": over("bos_highest", max),
        "written_ratio": float(f"{statistics.mean(written):.6g}") if written else None,
        **{name: over(name, statistics.mean) for name in means},
    }  # fmt: skip


# ---- private -------------------------------------------------------------------------------------------------------

Key = tuple[str, str, int]


def _pieces(forms: dict[str, Form]) -> list[Key]:
    """Seeds outermost: a run that is cut short has something of every arm."""
    every = [(name, arm, seed) for name, form in forms.items() for arm in form.arms for seed in range(form.seeds)]
    return sorted(every, key=lambda key: key[2])


def _kept(forms: dict[str, Form], key: Key, place: Path) -> dict[str, Any] | None:
    form = forms[key[0]]
    return kept(described(form.task, as_arm(key[1]), key[2], form.steps), place)[1]


def _result(forms: dict[str, Form], done: dict[Key, dict[str, Any]], exact: float) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, form in forms.items():
        arms: dict[str, Any] = {}
        for arm in form.arms:
            there = [done[name, arm, seed] for seed in range(form.seeds) if (name, arm, seed) in done]
            if there:
                said = [claims(form.task, as_arm(arm), p["found"], epsilon=EPSILON) for p in there if p["found"]]
                arms[arm] = {
                    "summary": summary(there),
                    "claims": {c: [str(s[c]) for s in said] for c in (said[0] if said else ()) if c != "relu"},
                    "seeds": [_rounded(p["found"]) if p["found"] else {"failed": p["failed"]} for p in there],
                }
        out[name] = {"task": form.task.to_json(), "most_steps": form.steps, "arms": arms}
    missing = len(_pieces(forms)) - len(done)
    return {"epsilon": EPSILON, "construction_error": exact, "missing": missing, "forms": out}


def _rounded(value: Any) -> Any:
    """Six digits are enough of anything here."""
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def main() -> None:
    import torch

    torch.set_num_threads(1)
    run(FORMS)


if __name__ == "__main__":
    main()
