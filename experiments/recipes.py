"""Settings that several experiments share."""

from __future__ import annotations

from typing import Any

__all__ = ["SINKING"]

# The cheapest recipe found whose softmax models sink on natural text (docs/experiments/emergence.md): within 2,000 steps.
SINKING: dict[str, Any] = {
    "preset": "tiny", "dim": 128, "layers": 6, "heads": 4, "context": 64, "tokenizer": "bpe:1024", "batch": 16, "watched": 8,
}  # fmt: skip
