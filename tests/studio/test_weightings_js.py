"""Each weighting of the page is its Python twin: the same weights and the same mass, within 1e-12."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page

from report.payloads import payload
from sinkgate.report.html import page_sources, render
from sinkgate.report.weightings import described, known_weightings
from sinkgate.weighting import from_json, names, register_weighting
from sinkgate.weighting.softmax import Softmax

TOLERANCE = 1e-12
INF = math.inf

# parameters beside the defaults, their ends included
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "softmax": [],
    "softmax1": [],
    "sparsemax": [],
    "sink_softmax": [{"z": z} for z in (-INF, -700.0, -6.0, 0.5, 6.0, 100.0, 1e4)],
    "sigmoid": [{"bias": b} for b in (-1e3, -6.0, 0.0, 3.0)] + [{"n": 1}, {"n": 64}, {"n": 131072}],
    "relu": [{"normalize": False}, {"squared": True}, {"n": 100}, {"normalize": False, "squared": True}],
    "softpick": [{"eps": 0.0}, {"eps": 0.1}],
    "topk_softmax": [
        {"k": k, "delta": delta, "keep_rest": rest} for k in (1, 2, 3, 64) for delta in (0.0, 0.5, 1e-6) for rest in (False, True)
    ],
    "entmax": [{"alpha": a} for a in (1.01, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)],
    "clipped_softmax": [
        {"zeta": 1.2, "gamma": -0.1}, {"zeta": 1.0, "gamma": 0.0}, {"strength": 0.0}, {"strength": 8.0}, {"strength": 2.0, "n": 20},
        {"zeta": 0.5, "gamma": -3.0},
    ],
}  # fmt: skip


def rows() -> list[tuple[list[float], list[bool]]]:
    """Seeded rows of scores and which are seen: ordinary, tied, huge, −∞, short and of 64, some or all hidden."""
    rng = random.Random(20)
    found: list[tuple[list[float], list[bool]]] = []
    for n in (1, 2, 3, 4, 7, 16, 33, 64):
        for size in (0.1, 1.0, 4.0, 30.0, 1e3, 1e4):
            found.append(([rng.gauss(0, size) for _ in range(n)], [True] * n))
        found.append(([0.0] * n, [True] * n))
        found.append(([rng.choice([-1.0, 0.0, 0.5, 1.0]) for _ in range(n)], [True] * n))
        found.append(([rng.choice([-1e4, 1e4, 1e4 - 0.5]) for _ in range(n)], [True] * n))
        found.append(([rng.gauss(-100, 1) for _ in range(n)], [True] * n))
        found.append(([rng.gauss(0, 3) for _ in range(n)], [rng.random() < 0.6 for _ in range(n)]))
        found.append(([rng.gauss(0, 2) for _ in range(n)], [False] * n))
        found.append(([rng.choice([-INF, rng.gauss(0, 1)]) for _ in range(n)], [True] * n))
        found.append(([rng.gauss(0, 1e-9) for _ in range(n)], [rng.random() < 0.9 for _ in range(n)]))
        found.append(([-INF] * n, [True] * n))
    found.append(([1e-3, -1e-3, 0.0, 0.0], [True] * 4))
    found.append(([0.04, 0.36, 0.0], [True] * 3))
    return found


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    path = tmp_path_factory.mktemp("twins") / "report.html"
    path.write_text(render(payload(layers=2, heads=2, kv_heads=1)), encoding="utf-8")
    opened = browser.new_page()
    opened.goto(path.as_uri())
    opened.wait_for_selector('html[data-ready="yes"]')
    yield opened
    opened.close()


def in_the_page(
    page: Page, name: str, cases: list[tuple[list[float], list[bool], dict[str, Any]]]
) -> list[list[float]]:
    """The weights that the page's module gives, in full precision."""

    def plain(value: Any) -> Any:  # JSON has no infinity
        return "-inf" if value == -INF else value

    sent = [
        [[plain(s) for s in scores], seen, {k: plain(v) for k, v in given.items()}] for scores, seen, given in cases
    ]
    got = page.evaluate(
        """async ([name, cases]) => {
          const { weigh } = await import("sinkgate/simulator/weightings.js"), back = (v) => (v === "-inf" ? -Infinity : v);
          return JSON.stringify(JSON.parse(cases).map(([scores, seen, given]) =>
            weigh(name, scores.map(back), seen, Object.fromEntries(Object.entries(given).map(([k, v]) => [k, back(v)])))));
        }""",
        [name, json.dumps(sent)],
    )
    found: list[list[float]] = json.loads(got)
    return found


def defaults(name: str) -> dict[str, Any]:
    (mine,) = [each for each in described() if each["name"] == name]
    return {p["name"]: p["default"] for p in mine["parameters"]}


@pytest.mark.parametrize("name", [n for n in names() if n in PARAMETERS])
def test_the_twin_is_python(page: Page, name: str) -> None:
    worst, checked = 0.0, 0
    for given in ({}, *PARAMETERS[name]):
        given = defaults(name) | given
        weighting = from_json({"name": name, **given})
        for width in sorted({len(scores) for scores, _ in rows()}):
            cases = [(scores, seen, given) for scores, seen in rows() if len(scores) == width]
            scores, seen = torch.tensor([c[0] for c in cases], dtype=torch.float64), torch.tensor([c[1] for c in cases])
            theirs, ours = weighting.weights(scores, seen).numpy(), np.array(in_the_page(page, name, cases))
            sums = [np.array([math.fsum(row) for row in each])[:, None] for each in (ours, theirs)]
            for got, expected in ((ours, theirs), sums):
                assert np.isfinite(got).all(), given
                apart = np.abs(got - expected) / np.maximum(1.0, np.abs(expected))
                row = int(apart.max(-1).argmax())
                assert apart.max() <= TOLERANCE, (given, cases[row], got[row], expected[row])
                worst = max(worst, float(apart.max()))
            checked += len(cases)
    print(f"{name}: {checked} rows, at most {worst:.1e} apart")


def test_every_twin_is_of_a_registered_weighting_and_tested() -> None:
    """A twin that Python does not know, or that no test holds to it, is not shown as one."""
    source = page_sources()["sinkgate/simulator/weightings.js"]
    twins = re.findall(r"^  (\w+): \{", source.split("export const TWINS = {")[1], flags=re.M)
    assert set(twins) == set(PARAMETERS)
    assert set(twins) <= set(names())


def test_what_only_python_knows_has_no_twin(page: Page) -> None:
    assert page.evaluate(
        """async () => {
          const { weigh } = await import("sinkgate/simulator/weightings.js");
          return ["halved", "toString", "constructor"].map((name) => weigh(name, [0, 1]));
        }"""
    ) == [None, None, None]


# ---- the list that the page is given ----


def test_the_copy_for_drawing_without_torch_is_the_registry() -> None:
    import importlib.resources

    text = importlib.resources.files("sinkgate.report").joinpath("weightings.json").read_text(encoding="utf-8")
    assert json.loads(text) == described(), "run `python -m sinkgate.report.weightings`"


def test_every_parameter_of_every_weighting_is_told_with_its_default() -> None:
    told = {w["name"]: w for w in known_weightings()}
    assert list(told) == names()
    for name, entry in told.items():
        given = {p["name"]: p["default"] for p in entry["parameters"]}
        built = from_json({"name": name, **given})
        assert (built.mass, built.shift_invariant, built.exact_zeros) == (
            entry["mass"],
            entry["shift_invariant"],
            entry["exact_zeros"],
        )


def test_a_weighting_of_ones_own_is_in_the_list_by_its_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sinkgate.weighting as registry

    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))
    register_weighting("mine", Softmax)
    assert known_weightings()[-1]["name"] == "mine"
    text = render(payload(layers=2, heads=2, kv_heads=1))
    data = json.loads(re.findall(r'id="payload">(.*?)</script>', text, flags=re.S)[0])
    assert [w["name"] for w in data["weightings"]] == [*names()]
    assert data["weightings"][-1]["name"] == "mine"
