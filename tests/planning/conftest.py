"""A cache folder of the tests' own, and one plan of a tiny model."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Generator
from typing import Any

import pytest
from planned import ASKED, TEXTS

import sinkgate as sg
from models import tiny, tokenizer

FOLDER = tempfile.mkdtemp(prefix="plans")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """No test of this folder reads or writes the user's cache, from the first of its fixtures on; the others' tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SINKGATE_CACHE", FOLDER)
        return (yield)


@pytest.fixture(scope="session")
def llama() -> Any:
    return tiny("llama")


@pytest.fixture(scope="session")
def plan_of_llama(llama: Any) -> sg.Plan:
    return sg.plan(llama, tokenizer(), TEXTS, name="a tiny llama", **ASKED)
