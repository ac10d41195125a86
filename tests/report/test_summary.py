"""What is printed and what the page is given."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.report.html import render
from sinkgate.report.payload import payload
from sinkgate.report.summary import printable, strongest, text, verdict


@pytest.fixture(scope="module")
def d() -> Any:
    return sg.diagnose(tiny("llama"), tokenizer(), [words(120, s) for s in range(3)], tokens=100, threshold=0.1)


def test_the_verdict_counts_what_the_record_holds(d: Any) -> None:
    over = (d.first_token_mass > 0.1).sum()
    first = verdict(d)[0]
    assert first.startswith(f"{over} of 18 heads ({over / 18:.0%}) give the first token more than 0.1")
    assert (
        f"{d.mean_mass().mean:.3f} on average (95% interval {d.mean_mass().low:.3f} to {d.mean_mass().high:.3f})"
        in first
    )
    assert "would give it 0.052" in first
    sure = next(line for line in verdict(d) if line.startswith("How sure"))
    low, high = d.excess().low, d.excess().high
    assert (
        f"above 0 in {(low > 0).sum()} heads, below 0 in {(high < 0).sum()}, and cannot tell in {((low <= 0) & (high >= 0)).sum()}"
        in sure
    )
    assert all("\n" not in line and line.endswith(".") for line in verdict(d))


def test_the_table_is_sorted_and_right(d: Any) -> None:
    rows = strongest(d, 5)
    masses = [r["mass"] for r in rows]
    assert masses == sorted(d.first_token_mass.ravel(), reverse=True)[:5]
    for row in rows:
        at = (row["layer"], row["head"])
        assert row["null"] == d.null_mass[at]
        assert row["write_ratio"] == d.sink_write_ratio[at]
    assert str(d) == text(d)
    assert max(map(len, str(d).splitlines())) <= 100


def test_where_it_went_when_the_first_token_is_no_sink() -> None:
    q = torch.randn(1, 2, 128, 8, generator=torch.Generator().manual_seed(0))
    lines = verdict(sg.measure(q, q * 3, q))
    assert any(line.startswith("The first token is no sink here. Instead") for line in lines)


def test_control_characters_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mb\u202ec\n") == "a\\x1b[31mb\\u202ec\\n"
    z = torch.zeros(1, 1, 64, 4)
    z[0, 0, 5, 0] = 50
    q = torch.ones_like(z)
    hostile = ["x"] * 64
    hostile[5] = "\x1b]0;owned\x07\u202e"
    d = sg.measure(q, z, z, tokens=[hostile])
    assert d.sinks[0].position == 5
    assert "\x1b" not in str(d)
    assert "\u202e" not in str(d)


def test_the_payload_says_what_the_record_says(d: Any) -> None:
    p = payload(d)
    maps = {m["id"]: m["values"] for m in p["metrics"]}
    for name in ("first_token_mass", "sink_write_ratio", "margin", "entropy_ratio", "local_mass"):
        np.testing.assert_allclose(np.array(maps[name], dtype=float), getattr(d, name), rtol=1e-3)
    np.testing.assert_allclose(np.array(maps["excess_ratio"], dtype=float), d.first_token_mass / d.null_mass, rtol=1e-3)
    assert maps["head_kind"] == d.head_kind.tolist()
    assert p["metrics"][0]["id"] == "excess_ratio"
    assert set(p["heads"]) == {f"{layer}.{head}" for layer in range(3) for head in range(6)}
    head = p["heads"]["1.2"]
    np.testing.assert_allclose(head["curve"]["p"], d.curve(1, 2)["mass"], rtol=1e-3)
    assert sum(head["hist"]) == 3 * 99
    assert head["split"]["p"] == pytest.approx(d.first_token_mass[1, 2], rel=1e-3)
    assert p["verdict"] == d.verdict()
    json.dumps(p, allow_nan=False)
    assert render(p).startswith("<!doctype html>")


@pytest.mark.parametrize("detail", ["first", "keys"])
def test_cheap_records_have_a_page_too(detail: str) -> None:
    d = sg.diagnose(tiny("qwen3_next"), tokenizer(), [words(100)], tokens=80, samples=1, detail=detail)
    p = payload(d)
    json.dumps(p, allow_nan=False)
    render(p)
    assert "head_kind" not in {m["id"] for m in p["metrics"]}


def test_a_notebook_shows_it(d: Any) -> None:
    html = d._repr_html_()
    assert html.startswith("<iframe")
    assert "sandbox" in html
    assert "<script>" not in html.split("srcdoc")[0]


def test_massive_activations_are_listed_once(d: Any) -> None:
    massive = payload(d)["residual"]["massive"]
    assert len({(m["layer"], m["dimension"]) for m in massive}) == len(massive)
