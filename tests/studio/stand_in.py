"""A studio's models in tests: tiny seeded ones under names of the command line, loaded by nobody."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
from torch import nn

from models import tiny, tokenizer
from sinkgate.studio import Studio
from sinkgate.studio.models import Models
from studio.watched import Serving


class StandIn(Models):
    """Models that are made when first asked for.

    Args:
        made: name → what makes the model.
    """

    def __init__(self, made: dict[str, Callable[[], nn.Module]] | None = None) -> None:
        self.made = made or {"tiny": lambda: tiny("llama", attn="sdpa")}
        super().__init__(list(self.made))

    def get(self, name: Any) -> Any:
        """The model of that name."""
        self.named(name)
        with self.lock:
            if name not in self._loaded:
                self._loaded[name] = SimpleNamespace(model=self.made[name](), tokenizer=tokenizer())
            return self._loaded[name]


def lines(serving: Serving, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Every line of a job's answer.

    Raises:
        AssertionError: it was refused.
    """
    answer = httpx.post(serving.address + path, json=asked, timeout=300)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def refused(serving: Serving, path: str, asked: Any) -> str:
    """The one line with which a request is refused, before or while it runs."""
    answer = httpx.post(serving.address + path, json=asked, timeout=300)
    said = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.status_code in (200, 400), answer.text
    assert "error" in said[-1], said[-1]
    assert "\n" not in said[-1]["error"]
    return str(said[-1]["error"])


def leave_after(serving: Serving, path: str, asked: dict[str, Any], until: Callable[[dict[str, Any]], bool]) -> None:
    """Read an answer until a line, and go away."""
    with httpx.stream("POST", serving.address + path, json=asked, timeout=300) as answer:
        for line in answer.iter_lines():
            if until(json.loads(line)):
                return
    raise AssertionError("the answer ended before the reader left")


def ends(studio: Studio, seconds: float = 60.0) -> bool:
    """Whether no job runs any more, within some seconds."""
    end = time.monotonic() + seconds
    while studio.jobs.running and time.monotonic() < end:
        time.sleep(0.05)
    return studio.jobs.running == 0


def told(many: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The last line."""
    return list(many)[-1]
