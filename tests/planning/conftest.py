"""A cache folder of the tests' own, and one plan of a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkgate as sg
from models import tiny, tokenizer, words

TEXTS = [words(300, seed=i) for i in range(12)]
ASKED: dict[str, Any] = {"max_increase": 0.5, "context": 128, "effort": "quick", "quantization": False, "recall": False}


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test writes into the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKGATE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def llama() -> Any:
    return tiny("llama")


@pytest.fixture(scope="session")
def plan_of_llama(llama: Any, own_cache: Path) -> sg.Plan:
    return sg.plan(llama, tokenizer(), TEXTS, name="a tiny llama", **ASKED)
