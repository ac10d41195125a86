"""What may be asked, and how it is written."""

from __future__ import annotations

import math

import pytest

from sinkgate.errors import ArgumentError
from sinkgate.planning.request import EFFORTS, Request, parse_bytes, parse_increase


@pytest.mark.parametrize(
    ("text", "value"),
    [("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("200MB", 200 * 10**6), ("4096", 4096), (" 8 kib ", 8192), ("1b", 1)],
)
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["", "MiB", "-4MiB", "0", "0.2", "4 parsecs", "1e9", "nan", "9" * 40, "4 MiB MiB", "٤MiB"]
)
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ArgumentError, match="budget must be bytes such as 64MiB"):
        parse_bytes(text)


def test_increases() -> None:
    assert parse_increase("1%") == 0.01
    assert parse_increase(" 0.5 % ") == 0.005
    assert parse_increase("0.02") == 0.02
    with pytest.raises(ArgumentError, match=r"such as 1% or 0\.01"):
        parse_increase("one")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "say what the plan has to keep to"),
        ({"max_increase": 0.0}, "above 0, such as 1%"),
        ({"max_increase": -0.01}, "above 0, such as 1%"),
        ({"max_increase": math.nan}, "must be a number such as 0.01"),
        ({"max_increase": math.inf}, "must be a number such as 0.01"),
        ({"max_increase": True}, "must be a number such as 0.01"),
        ({"max_increase": 1.0}, "would allow the perplexity to double"),
        ({"budget": 0}, "budget must be a whole number of at least 1"),
        ({"budget": 1.5}, "budget must be a whole number"),
        ({"budget": 10, "context": 15}, "context must be a whole number of at least 16"),
        ({"budget": 10, "batch": 0}, "batch must be a whole number of at least 1"),
        ({"budget": 10, "batch": None}, "batch must be a whole number of at least 1"),
        ({"budget": 10, "goal": "speed"}, "goal must be one of memory, latency, quality"),
        ({"budget": 10, "effort": "heroic"}, "effort must be one of quick, default, thorough"),
        ({"budget": 10, "seed": -1}, "seed must be a whole number"),
    ],
)
def test_what_is_refused(given: dict, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Request(**given)


def test_the_goal_where_none_is_said() -> None:
    assert Request(budget=10).aim == "quality"
    assert Request(max_increase=0.01).aim == "memory"
    assert Request(budget=10, max_increase=0.01).aim == "memory"
    assert Request(budget=10, max_increase=0.01, goal="latency").aim == "latency"
    assert Request(max_increase=0.01).nats == pytest.approx(math.log(1.01))


def test_round_trip_and_efforts() -> None:
    asked = Request(10, 0.02, 512, 3, None, "memory", "quick", 7)
    assert Request.from_json(asked.to_json()) == asked
    sizes = [(e.trials, e.tune, e.looks[-1], e.tokens) for e in EFFORTS.values()]
    assert sizes == sorted(sizes)
