"""``sinkgate ls``: the registries, listed."""

from __future__ import annotations

import json

import pytest

from sinkgate.cli import main
from sinkgate.gate import POSITIONS
from sinkgate.lab.arms import ADDITIONS
from sinkgate.lab.tasks import TASKS
from sinkgate.ops.select import IMPLEMENTATIONS
from sinkgate.outlet import KINDS
from sinkgate.weighting import REGISTRY


def test_everything_registered_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["weightings", "gates", "outlets", "implementations", "policies", "tasks", "arms", "models"]
    assert list(found["weightings"]) == list(REGISTRY)
    assert set(POSITIONS) <= set(found["gates"])
    assert list(found["outlets"]) == list(KINDS)
    assert list(found["implementations"]) == list(IMPLEMENTATIONS)
    assert list(found["tasks"]) == list(TASKS)
    assert [f"+ {name}" for name in ADDITIONS] == list(found["arms"])
    assert "smollm2-135m" in found["models"]
    assert all(line for kind in found.values() for line in kind.values())


def test_a_new_line_in_the_registry_is_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTRY, "another", REGISTRY["softmax"])
    assert main(["ls", "weightings"]) == 0
    assert "\n  another " in capsys.readouterr().out


def test_text_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls"]) == 0
    out = capsys.readouterr().out
    assert "weightings:\n" in out
    assert "entmax" in out
    assert main(["ls", "nothing"]) == 1
    assert "there is no list of 'nothing'; there are weightings, gates," in capsys.readouterr().err
