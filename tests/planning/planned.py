"""The texts that the plans of these tests are made on, and what most of them ask for."""

from __future__ import annotations

from typing import Any

from models import words

TEXTS = [words(300, seed=i) for i in range(12)]
ASKED: dict[str, Any] = {
    "max_increase": 0.05,
    "context": 128,
    "effort": "quick",
    "quantization": False,
    "recall": False,
}
