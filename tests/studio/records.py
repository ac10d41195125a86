"""Small records for the studio's pages, made without a model of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import sinkgate as sg
from sinkgate.interventions.effects import Effects, HeadEffect, Row
from sinkgate.record import Diagnosis


def diagnosis(seed: int = 0, *, heads: int = 4, samples: int = 3, push: float = 0.0, tokens: Any = None) -> Diagnosis:
    """One layer of random queries and keys, read as a model would be; ``push`` raises the first key's scores (by 2·push/√8)."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(samples, heads, 96, 8, generator=generator) for _ in range(3))
    q[..., 0] += 2
    k[:, :, 0, 0] += push
    d = sg.measure(q, k, v, output_weight=torch.randn(heads * 8, 16, generator=generator), tokens=tokens, name="drawn")
    d.meta["model"]["fingerprint"] = "0123456789ab"
    return d


def effects(d: Diagnosis, *, single: bool = True, samples: int = 3, fingerprint: str | None = None) -> Effects:
    """Made-up effects of the same model: every number is another."""
    layers, heads = d.shape
    loss = np.linspace(3.0, 3.4, samples)

    def change(by: float) -> dict[str, list[float]]:
        return {
            "loss": (loss + by * (1 + 0.1 * np.arange(samples))).tolist(),
            "kl": (abs(by) * (1 + 0.05 * np.arange(samples))).tolist(),
            "agreement": [0.9 - abs(by) / 10] * samples,
        }

    meta = {
        "model": {"name": d.meta["model"]["name"], "fingerprint": fingerprint or d.meta["model"]["fingerprint"]},
        "target": "the first token", "bos": False, "targets": [0] * samples, "where": "everywhere", "notes": [],
        "texts": ["a"] * samples, "controls": [5] * samples, "donors": [],
        "settings": {"tokens": 96, "burn_in": 16, "sweep": [], "scored_from": 16, "position": "auto", "seed": 0},
    }  # fmt: skip
    rows = [
        Row("untouched", "untouched", "untouched", {}, loss.tolist(), [0.0] * samples, [1.0] * samples),
        Row("evict", "act", "evict", {}, **change(0.5)),
        Row("evict", "control", "evict", {}, **change(0.02)),
    ]
    chosen = [(0, 1, "top", 0.31), (0, heads - 1, "random", -0.017)] if single else []
    return Effects(
        meta,
        rows,
        [HeadEffect(a, h, kind, by / 2, 1.5, 0.2, **change(by)) for a, h, kind, by in chosen],
        [{"layer": a, "head": h, "value": 0.01 * (h + 1) - 0.015} for a in range(layers) for h in range(heads)]
        if single
        else [],
    )


def saved(d: Diagnosis | Effects, folder: Path) -> Path:
    """The record in a folder of its own."""
    folder.mkdir(parents=True)
    d.save(folder)
    return folder
