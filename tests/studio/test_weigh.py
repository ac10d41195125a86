"""The server's weights of one row: Python's own, and one clear line for what cannot be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from sinkgate.errors import ArgumentError
from sinkgate.studio import Studio, create_app
from sinkgate.studio.models import Models
from sinkgate.studio.records import Shelf
from sinkgate.studio.weigh import MOST_SCORES, weights_of
from sinkgate.weighting import as_weighting, from_json, names, register_weighting
from sinkgate.weighting.base import Value

Ask = Callable[..., Any]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    studio = Studio(Shelf([]), Models([]), tmp_path / "runs", frozenset({"testserver"}))
    client = TestClient(create_app(studio), raise_server_exceptions=False)

    def ask(said: Any) -> Any:
        text = said if isinstance(said, str) else json.dumps(said)
        return client.post("/api/weigh", content=text, headers={"Content-Type": "application/json"})

    return ask


@pytest.mark.parametrize("name", names())
def test_it_is_the_weighting(ask: Ask, name: str) -> None:
    scores = [0.04, 0.36, 0.0, -2.0, 3.5]
    answer = ask({"weighting": {"name": name, **({"k": 2} if name == "topk_softmax" else {})}, "scores": scores})
    weighting = from_json({"name": name, "k": 2}) if name == "topk_softmax" else as_weighting(name)
    expected = weighting.weights(torch.tensor([scores], dtype=torch.float64), None)[0].tolist()
    assert answer.status_code == 200
    assert answer.json()["weights"] == pytest.approx(expected, abs=1e-15)
    assert answer.json()["mass"] == pytest.approx(math.fsum(expected), abs=1e-15)
    assert answer.json()["declared"] == weighting.mass


def test_a_hidden_key_is_in_no_sum(ask: Ask) -> None:
    answer = ask({"weighting": {"name": "softmax"}, "scores": [0, None, 0]}).json()
    assert answer["weights"] == [0.5, 0.0, 0.5]
    assert ask({"weighting": {"name": "softmax"}, "scores": [None]}).json()["mass"] == 0.0


def test_the_bound_itself_is_taken(ask: Ask) -> None:
    answer = ask({"weighting": {"name": "softmax"}, "scores": [1.0] * MOST_SCORES}).json()
    assert answer["mass"] == pytest.approx(1.0, abs=1e-12)


GOOD = {"name": "softmax"}


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"weighting": {"name": "softmaxx"}, "scores": [1]}, "'softmaxx' is not registered; there are softmax"),
        ({"weighting": "softmax", "scores": [1]}, "weighting must be an object with a name"),
        ({"weighting": {"name": ["softmax"]}, "scores": [1]}, "weighting must be an object with a name"),
        ({"scores": [1]}, "weighting must be an object with a name"),
        ({"weighting": GOOD}, "scores must be a list of 1 to 64 numbers, got None"),
        ({"weighting": GOOD, "scores": []}, "scores must be a list of 1 to 64 numbers, got 0"),
        ({"weighting": GOOD, "scores": [0.0] * 65}, "scores must be a list of 1 to 64 numbers, got 65"),
        ({"weighting": GOOD, "scores": "1,2"}, "scores must be a list of 1 to 64 numbers, got '1,2'"),
        ({"weighting": GOOD, "scores": [1, "2"]}, "scores[1] must be a finite number, or null for a hidden key, got '2'"),
        ({"weighting": GOOD, "scores": [True]}, "scores[0] must be a finite number"),
        ({"weighting": GOOD, "scores": [[1]]}, "scores[0] must be a finite number"),
        ('{"weighting": {"name": "softmax"}, "scores": [NaN]}', "not JSON"),
        ('{"weighting": {"name": "softmax"}, "scores": [0, -Infinity]}', "not JSON"),
        ('{"weighting": {"name": "softmax"}, "scores": [1e999]}', "scores[0] must be a finite number"),
        ({"weighting": GOOD, "scores": [10**400]}, "scores[0] must be a finite number"),
        ('{"weighting": {"name": "entmax", "alpha": NaN}, "scores": [1]}', "not JSON"),
        ({"weighting": {"name": "entmax", "alpha": 1}, "scores": [1]}, "alpha must be above 1"),
        ({"weighting": {"name": "entmax", "alpha": "2"}, "scores": [1]}, "weighting.alpha must be a finite number"),
        ({"weighting": {"name": "sink_softmax", "z": [1, 2]}, "scores": [1]}, "weighting.z must be a finite number"),
        ({"weighting": {"name": "softmax", "alpha": 2}, "scores": [1]}, "cannot be built from {'alpha': 2}"),
        ({"weighting": {"name": "topk_softmax", "k": 0}, "scores": [1]}, "k must be at least 1"),
        ({"weighting": {"name": "topk_softmax", "k": 10**30}, "scores": [1]}, "weighting.k must be a finite number"),
        ({"weighting": {"name": "relu", "squared": True}, "scores": [1e200]}, "gives weights that are not finite"),
        ({"weighting": GOOD, "scores": [1], "rows": 3}, "'rows' is unknown"),
        ([1, 2], "not an object"),
        ("{", "not JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_one_line(ask: Ask, said: Any, line: str) -> None:
    answer = ask(said)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert line in error
    assert "\n" not in error
    assert len(error) < 400


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_though_it_came_another_way(bad: float) -> None:
    with pytest.raises(ArgumentError, match=r"scores\[1\] must be a finite number"):
        weights_of({"weighting": GOOD, "scores": [0.0, bad]})
    with pytest.raises(ArgumentError, match=r"weighting\.alpha must be a finite number"):
        weights_of({"weighting": {"name": "entmax", "alpha": bad}, "scores": [0.0]})


def test_a_long_name_is_not_echoed_whole(ask: Ask) -> None:
    assert len(ask({"weighting": {"name": "x" * 100_000}, "scores": [1]}).json()["error"]) < 500


def test_a_weighting_that_fails_leaves_the_studio_answering(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    import sinkgate.weighting as registry

    class Broken(Value):
        name = "broken"

        def weights(self, scores: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
            raise RuntimeError("no")

    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))
    register_weighting("broken", Broken)
    failed = ask({"weighting": {"name": "broken"}, "scores": [1]})
    assert failed.status_code == 500
    assert "RuntimeError" in failed.json()["error"]
    assert ask({"weighting": GOOD, "scores": [1]}).status_code == 200
