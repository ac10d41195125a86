"""(g) What eight and four bits cost models with and without a sink: ``python -m experiments.quantization``.

Reads what ``python -m experiments.gates`` trained, on Bigram-backcopy and on text.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

import sinkgate as sg
from experiments.comparisons import interval, keep, ran
from experiments.gates import PLANS
from experiments.trained import load
from sinkgate.errors import ArgumentError
from sinkgate.lab.comparison_record import Comparison
from sinkgate.record import student_interval

SCHEMES: dict[str, dict[str, Any]] = {
    "W8A8, per tensor": {"weights": "int8(tensor)", "activations": "int8(tensor)"},
    "W8A8, per channel and token": {"weights": "int8(channel)", "activations": "int8(token)"},
    "W4, per channel": {"weights": "int4(channel)"},
    "W4, groups of 16": {"weights": "int4(group=16)"},
    "W4A8, per channel and tensor": {"weights": "int4(channel)", "activations": "int8(tensor)"},
}


@torch.no_grad()
def costs(name: str, record: Comparison) -> dict[str, Any]:
    """By arm and scheme, what the loss rises by, over seeds, and the difference from the first arm."""
    found: dict[str, Any] = {}
    base: dict[str, np.ndarray] = {}
    for arm in record.arms:
        rises: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
        refused: dict[str, str] = {}
        for piece in record.at_best(arm):
            if piece["diverged"]:
                continue
            experiment = load(name, piece)
            plain = experiment.final("test")["loss"]
            for scheme, how in SCHEMES.items():
                try:
                    with sg.quantized(experiment.model, **how):
                        rises[scheme].append(experiment.final("test")["loss"] - plain)
                except ArgumentError as err:  # a width that the groups do not divide
                    refused[scheme] = str(err)
        found[arm] = {scheme: {"refused": why} for scheme, why in refused.items()}
        for scheme, values in rises.items():
            if not values:
                continue
            numbers = np.array(values)
            base.setdefault(scheme, numbers)
            entry = {"rise": interval(student_interval(numbers))}
            if arm != record.arms[0] and numbers.shape == base[scheme].shape:
                entry["difference"] = interval(student_interval(numbers - base[scheme]))
            found[arm][scheme] = entry
    return found


def main(*which: str) -> None:
    """Write what it costs on each task."""
    result: dict[str, Any] = {"schemes": SCHEMES}
    for name in which or ("backcopy", "text"):
        record = ran(f"gates_{name}", PLANS[name])
        result[name] = costs(f"gates_{name}", record)
    keep("quantization", result, record)


if __name__ == "__main__":
    main(*sys.argv[1:])
