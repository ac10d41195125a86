"""``plan_training``: which outlet to train with, its start and its rate, from short paired pilots within a budget."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sinkgate.errors import ArgumentError, OutputError, RecordError, UnsupportedError
from sinkgate.files import jsonable, read_json, save_json, typed
from sinkgate.lab.outlet import OutletConfig
from sinkgate.lab.provenance import code_digest, environment
from sinkgate.lab.tasks import TASKS, as_task
from sinkgate.lab.tasks.base import Specification
from sinkgate.planning.training_budget import LEAST_ARMS, LEAST_SEEDS, Allotment, Cost, allot, as_seconds
from sinkgate.planning.training_lab import Progress, Recipe
from sinkgate.planning.training_outlets import Outlets
from sinkgate.planning.training_record import TrainingPlan

__all__ = ["plan_training"]

REQUEST, TIMING, PILOTS, PLAN = "request.json", "timing.json", "pilots", "plan.json"


def plan_training(
    recipe_or_model: str | Specification | nn.Module,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int | Sequence[int] = LEAST_SEEDS,
    arms: str | Iterable[Any] | None = None,
    text: Iterable[Any] | str | None = None,
    held_out: Iterable[Any] | str | None = None,
    tokenizer: Any = None,
    heads: str | Sequence[Sequence[int]] = "sinks",
    task: OutletConfig | None = None,
    samples: int = 8,
    loop_changes: dict[str, Any] | None = None,
    device: str = "cpu",
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainingPlan:
    """Try every arm for a little while with the same seeds and say which to train with, and what cannot be told.

    A recipe of the lab trains from its start (:func:`sinkgate.compare`); a trained model is frozen, and outlets are trained
    on it (:func:`sinkgate.train_outlet`). With every seed all arms see the same data in the same order, and start alike.
    The answer is the cheapest arm (least extra parameters, then least time), unless another is told apart from it.

    Finished pilots are kept and a killed one goes on: the same call in the same ``out`` takes up where it ended, with the
    steps that were decided then, and gives the same numbers on the same machine, threads and versions.

    Args:
        recipe_or_model: a task of the lab (``trigger``, ``backcopy``, ``text``, or a value), a model's name (``./text`` for a
            folder called like a task), or a loaded model without an outlet.
        minutes: the budget of wall-clock time. Each arm is timed for a few steps, on the budget; arms that do not fit are
            dropped from the end of the list; what is left decides how long pilots are. A machine that gets busier takes longer.
        steps: the length of every pilot, instead (then all arms are tried and nothing is timed before), or together with
            ``minutes`` (then arms are dropped until the rest fits).
        seeds: how many, from 0, or which; at least 3.
        arms: texts or values, the first the reference. Of a recipe those of :func:`sinkgate.compare`, with
            ``g1_head(preserve=2)`` for a gate's start and ``outlet_lr(3)`` for the rate of what is added. Of a model
            ``unchanged``, ``sink_logit``, ``key_bias``, ``kv_bias``, ``gate(preserve=4)``, with ``outlet_lr(3)`` and
            ``sink_lr(3)``.
        text: of a model, to train on; default: the demo speeches.
        held_out: of a model, to measure on; default: the last of the texts.
        tokenizer: of a loaded model.
        heads: of a model, where an outlet stands; see :func:`sinkgate.train_outlet`.
        task: of a model, what outlets are trained for.
        samples: of a model, held-out texts.
        loop_changes: fields of ``LoopConfig`` for every arm, such as ``{"lr": 0.01}`` (of a recipe: not steps, lr or seed).
        device: where a recipe is trained, and a model given by name.
        out: a folder for pilots, timing and ``plan.json``; default: one of the cache directory, by what is asked and the
            version of the code.
        progress: called with the pilot's name and each line of its log.
        settings: of a task given by name; of a model given by name ``dtype`` and ``trust_remote_code``.

    Returns:
        The plan, also saved.

    Raises:
        BudgetError: two arms with these seeds do not fit; says the least budget that would do.
        ArgumentError: the budget, seeds, an arm or a setting is wrong.
        UnsupportedError: no attention was found in the model, or it cannot have an outlet that was asked for.
        TextError: too little text.
        RecordError: ``out`` holds another plan, or a damaged one.
        OutputError: ``out`` cannot be written.
    """
    began = time.perf_counter()
    seconds = None if minutes is None else as_seconds(minutes)
    if steps is not None and (type(steps) is not int or steps < 1):
        raise ArgumentError(f"steps must be a whole number of at least 1, got {steps!r}")
    if seconds is None and steps is None:
        raise ArgumentError("a plan needs a budget: give minutes=… (timed first) or steps=… of every pilot")
    numbers = _seeds(seeds)
    if isinstance(recipe_or_model, Specification) or (isinstance(recipe_or_model, str) and recipe_or_model in TASKS):
        if text is not None or held_out is not None or tokenizer is not None or task is not None:
            raise ArgumentError(
                "text, held_out, tokenizer and task belong to a model; of the text task give texts=['FILE']"
            )
        if taken := sorted({"steps", "lr", "seed"} & (loop_changes or {}).keys()):
            raise ArgumentError(f"loop_changes cannot set {', '.join(taken)} of a recipe: the plan, or the task, does")
        subject: Recipe | Outlets = Recipe(
            as_task(recipe_or_model, **settings), arms, loop_changes or {}, device, progress
        )
    else:
        subject = _outlets(
            recipe_or_model, text, held_out, tokenizer, arms, heads, task, samples, loop_changes or {}, device, progress, settings,
        )  # fmt: skip
    names = [str(arm) for arm in subject.arms]
    if len(set(names)) < len(names):
        raise ArgumentError(f"an arm is there twice: {', '.join(names)}")
    if len(names) < LEAST_ARMS:
        raise ArgumentError(f"a plan compares at least {LEAST_ARMS} arms, got {', '.join(names) or 'none'}")
    request = {
        "kind": subject.kind, **subject.request(), "arms": subject.configs(), "seeds": numbers, "minutes": minutes, "steps": steps,
        "device": device,
    }  # fmt: skip
    folder = _claim(out, json.loads(json.dumps(jsonable(request))))
    costs, spent, untimed = _timing(subject, names, numbers[0], seconds, folder, began)
    if seconds is None:
        assert steps is not None
        chosen = Allotment(steps, tuple(names), (), 0.0)
    else:
        chosen = allot(costs, seconds=seconds, spent=spent or 0.0, seeds=len(numbers), most=subject.most, steps=steps)
    rows = subject.pilots(chosen.arms, numbers, chosen.steps, folder / PILOTS)
    configs = subject.configs()
    meta = {
        "kind": subject.kind, "name": subject.name, "request": request, "headline": subject.headline, "higher": subject.higher,
        "unit": subject.unit, "lr": subject.lr, "seeds": numbers, "steps": chosen.steps, "whole": subject.most, "minutes": minutes,
        "asked_steps": steps, "spent": spent, "costs": [vars(c) for c in costs],
        "dropped": [{"arm": arm, "why": why} for arm, why in (*chosen.dropped, *untimed)], "notes": subject.notes,
        "environment": environment(device),
    }  # fmt: skip
    found = [{**row, "config": configs[row["arm"]]} for row in rows]
    plan = TrainingPlan.from_json(
        json.loads(
            json.dumps(jsonable({"format": "sinkgate.training_plan", "version": 1, "meta": meta, "arms": found}))
        )
    )
    plan.save(folder / PLAN)
    return plan


# ---- private -----------------------------------------------------------------------------------------------------


def _seeds(seeds: int | Sequence[int]) -> list[int]:
    given = list(range(seeds)) if type(seeds) is int else seeds
    if not isinstance(given, list | tuple) or not all(type(s) is int and s >= 0 for s in given):
        raise ArgumentError(f"seeds must be a number of them or a list of whole numbers from 0, got {seeds!r}")
    if len(set(given)) < len(given) or len(given) < LEAST_SEEDS:
        raise ArgumentError(
            f"a plan needs at least {LEAST_SEEDS} different seeds to know how far they lie apart, got {seeds!r}"
        )
    return list(given)


def _outlets(
    model: Any, text: Any, held_out: Any, tokenizer: Any, arms: Any, heads: Any, task: OutletConfig | None, samples: int,
    loop_changes: dict[str, Any], device: str, progress: Progress | None, loading: dict[str, Any],
) -> Outlets:  # fmt: skip
    from sinkgate.probe.text import Text, default_texts

    name = ""
    if isinstance(model, str | os.PathLike):
        from sinkgate.hf.load import load

        name = os.fspath(model)
        loaded = load(name, device=device, **loading)
        model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
    elif loading:
        raise ArgumentError(f"a loaded model takes no settings, got {', '.join(loading)}")
    if not isinstance(model, nn.Module):
        raise ArgumentError(
            f"give a task ({', '.join(TASKS)}), a model's name or a loaded model, got {type(model).__name__}"
        )
    if not hasattr(model, "config"):
        raise UnsupportedError(
            f"{type(model).__name__} is no transformers language model (it has no config), so no attention is found in it; give "
            "one that AutoModelForCausalLM makes"
        )
    if tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: plan_training(model, tokenizer=…, minutes=…)")
    listed = lambda given: [given] if isinstance(given, str | Text) else list(given)  # noqa: E731
    texts = default_texts(24) if text is None else listed(text)
    held = None if held_out is None else listed(held_out)
    name = name or getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
    return Outlets(model, tokenizer, texts, held, arms, heads, loop_changes, task, samples, name, progress)


def _claim(out: str | os.PathLike[str] | None, request: dict[str, Any]) -> Path:
    """The folder: new, of a request that nothing was done for yet, or of this one."""
    if out is None:
        from sinkgate.hf.fetch import cache_dir

        key = hashlib.sha256(json.dumps([request, code_digest()], sort_keys=True).encode()).hexdigest()[:16]
        folder = cache_dir() / "plans" / f"training-{key}"
    else:
        folder = Path(out)
    path = folder / REQUEST
    begun = folder.is_dir() and any(p.name in (TIMING, PILOTS) for p in folder.iterdir())
    if path.exists() and begun:
        there = read_json(path, "the readable request of a plan")
        if there != request:
            odd = [n for n in request if not isinstance(there, dict) or there.get(n) != request[n]]
            raise RecordError(f"{folder} holds another plan ({', '.join(odd) or 'more'} differ); choose another out=")
        return folder
    if folder.exists() and (not folder.is_dir() or any(p.name != REQUEST for p in folder.iterdir())):
        raise OutputError(f"{folder} is not empty and holds no training plan; choose another out=")
    save_json(path, request, indent=1)
    return folder


def _timing(
    subject: Recipe | Outlets, names: list[str], seed: int, seconds: float | None, folder: Path, began: float
) -> tuple[list[Cost], float | None, list[tuple[str, str]]]:
    """What arms cost, what was spent until it was known, and the arms there was no time to try; kept, so that a resumed
    plan is the same one."""
    if seconds is None:
        return [], None, []
    path = folder / TIMING
    if path.exists():
        data = read_json(path, "the readable timing of a plan")
        typed(str(path), data, {"costs": list, "spent": (int, float), "untimed": list})
        for cost in data["costs"]:
            typed(str(path), cost, {"arm": str, "step": (int, float), "pilot": (int, float), "once": (int, float)})
        if [c["arm"] for c in data["costs"]] + [u[0] for u in data["untimed"]] != names:
            raise RecordError(f"{path} is of other arms; remove it, and they are timed again")
        return [Cost(**c) for c in data["costs"]], data["spent"], [(u[0], u[1]) for u in data["untimed"]]
    costs: list[Cost] = []
    untimed: list[tuple[str, str]] = []
    for name in names:
        if len(costs) >= LEAST_ARMS and time.perf_counter() - began > seconds / 2:
            untimed.append((name, "timing the arms before it took half of the budget"))
        else:
            costs.append(subject.cost(name, seed))
    spent = time.perf_counter() - began
    save_json(path, {"costs": [vars(c) for c in costs], "spent": spent, "untimed": untimed}, indent=1)
    return costs, spent, untimed
