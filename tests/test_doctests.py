"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = (
    "geometry.sink", "geometry.simplex", "geometry.gradients", "cache.sizes", "gate.spec", "quantization", "ops.attention", "ops.select",
    "testing", "lab.aids", "evaluate.score", "probe.kinds", "probe.measure", "report.html", "report.text",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"sinkgate.{name}")
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert found.attempted > 0
    assert found.failed == 0
