"""What a training plan gives to paste: Python that makes the arm and the configuration of its training."""

from __future__ import annotations

import dataclasses
from typing import Any

from sinkgate.gate import Gate
from sinkgate.lab.arms import Arm
from sinkgate.lab.config import LoopConfig
from sinkgate.lab.outlet import OutletConfig
from sinkgate.lab.tasks import from_json
from sinkgate.outlet.registry import Spec
from sinkgate.planning.training_arms import OutletArm
from sinkgate.planning.training_outlets import LOOP
from sinkgate.weighting import as_weighting

__all__ = ["settings"]


def settings(meta: dict[str, Any], config: dict[str, Any]) -> str:
    """Of one arm of a plan.

    Args:
        meta: of the plan.
        config: of the arm.
    """
    return (
        _recipe(meta, Arm.from_json(config)) if meta["kind"] == "recipe" else _model(meta, OutletArm.from_json(config))
    )


def _recipe(meta: dict[str, Any], arm: Arm) -> str:
    request = meta["request"]
    task = from_json(request["task"])
    whole = LoopConfig.from_json({**task.loop(None, None, 0).to_json(), **_changed(request)})
    lines = [
        "import sinkgate as sg",
        "from sinkgate.lab.tasks import from_json",
        "",
        f"task = from_json({task.to_json()!r})",
        f"arm = {_arm(arm)}",
        f"loop = {_call('sg.LoopConfig', whole, steps=None, lr=None)}",
    ]
    train = "from sinkgate.lab.loop import train"
    if arm.outlet_lr == 1:
        return "\n".join([*lines[:2], train, *lines[2:], "train(task.make(arm, loop.seed), loop)"])
    rates = "from sinkgate.lab.pieces import multipliers"
    return "\n".join([
        lines[0], train, rates, *lines[1:], "experiment = task.make(arm, loop.seed)",
        "train(experiment, loop, multipliers=multipliers(task, arm, experiment, loop.seed))",
    ])  # fmt: skip


def _model(meta: dict[str, Any], arm: OutletArm) -> str:
    request = meta["request"]
    if arm.outlet is None:
        return "# the model as it is: no outlet to add"
    loop = LoopConfig.from_json({**request["loop"], "lr": request["loop"]["lr"] * arm.outlet_lr})
    task = dataclasses.replace(OutletConfig(**request["for"]), multiplier=arm.sink_lr)
    outlet = _outlet(arm.outlet)
    fields = _fields(OutletConfig(), task)
    more = f", task=sg.OutletConfig({fields})" if fields else ""
    usual = LoopConfig(**LOOP)
    how = "" if loop == usual else f", loop={_call('sg.LoopConfig', loop, steps=None, lr=None)}"
    return "\n".join([
        "import sinkgate as sg",
        "",
        f"# trained: {_rate(arm)}",
        f"sg.train_outlet(model, tokenizer, texts, outlet={outlet}, heads={request['heads']!r}{how}{more})",
        f"# or to train in a loop of your own, every head: sg.add_outlet(model, {outlet})",
    ])  # fmt: skip


def _rate(arm: OutletArm) -> str:
    parts = [f"learning rate of the outlet × {arm.outlet_lr:g} (in lr)"] if arm.outlet_lr != 1 else []
    parts += [f"of sink heads × {arm.sink_lr:g}"] if arm.sink_lr != 1 else []
    return ", ".join(parts) or "at the recipe's learning rate"


def _changed(request: dict[str, Any]) -> dict[str, Any]:
    """What was asked to differ from the task's loop; that pilots are not evaluated on the way is their own affair."""
    return {n: x for n, x in request["loop_changes"].items() if n != "evaluate_every"}


def _arm(arm: Arm) -> str:
    parts = []
    usual = as_weighting(arm.weighting.name)
    if usual != arm.weighting:
        fields = {n: x for n, x in arm.weighting.to_json().items() if n != "name"}  # type: ignore[attr-defined]
        named = ", ".join(f"{n}={x!r}" for n, x in fields.items())
        parts.append(f"weighting=sg.{type(arm.weighting).__name__}({named})")
    elif arm.weighting.name != "softmax":
        parts.append(f"weighting={arm.weighting.name!r}")
    for field in dataclasses.fields(Arm)[1:]:
        value = getattr(arm, field.name)
        if value != field.default:
            parts.append(f"{field.name}={_gate(value) if isinstance(value, Gate) else repr(value)}")
    return f"sg.Arm({', '.join(parts)})"


def _gate(gate: Gate) -> str:
    return f"sg.Gate({_fields(Gate(), gate, gate.preserve is not None)})"


def _outlet(outlet: Spec) -> str:
    if isinstance(outlet, Gate):
        return _gate(outlet)
    return f"sg.{type(outlet).__name__}({_fields(type(outlet)(), outlet)})"


def _call(name: str, value: Any, **always: Any) -> str:
    """A constructor with the fields that are not at their default, and those named in any case."""
    shown = {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if f.name in always or f.default is dataclasses.MISSING or getattr(value, f.name) != f.default
    }
    return f"{name}({', '.join(f'{n}={x!r}' for n, x in shown.items())})"


def _fields(usual: Any, value: Any, preserve: bool = False) -> str:
    shown = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return ", ".join(f"{n}={x!r}" for n, x in shown if x != getattr(usual, n) or (preserve and n == "position"))
