"""Tasks of the lab: one file each; one line here makes a task known to ``sinkgate compare`` and ``sinkgate ls``."""

from __future__ import annotations

import importlib
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.lab.tasks.base import Specification

__all__ = ["TASKS", "as_task", "from_json"]

# name → (module:class, one line)
TASKS: dict[str, tuple[str, str]] = {
    "trigger": ("trigger:Trigger", "at a trigger, the mean of what came before; elsewhere nothing (arXiv 2603.11487)"),
    "backcopy": ("backcopy:Backcopy", "a bigram chain, and behind a trigger the token before it (arXiv 2410.13835)"),
    "text": ("language:Language", "next-token prediction on text files, by tokens or bytes"),
}


def as_task(task: str | Specification, **settings: Any) -> Specification:
    """A task from its name and settings, or itself.

    Raises:
        ArgumentError: unknown, or a setting it does not take.
    """
    if not isinstance(task, str):
        return task
    return from_json({"name": task, **settings})


def from_json(data: dict[str, Any]) -> Specification:
    """The task of ``to_json``.

    Raises:
        ArgumentError: unknown, or a setting it does not take.
    """
    if not isinstance(data, dict) or data.get("name") not in TASKS:
        what = data.get("name") if isinstance(data, dict) else data
        raise ArgumentError(f"task {what!r} is not known; there are {', '.join(TASKS)}")
    module, _, attribute = TASKS[data["name"]][0].partition(":")
    return getattr(importlib.import_module(f"sinkgate.lab.tasks.{module}"), attribute).from_json(data)
