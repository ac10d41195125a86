"""Which positions are sinks, on what kind of token, and which look like the first token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sinkgate as sg
from sinkgate.probe.kinds import token_kind
from sinkgate.schema import Settings


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (",", "delimiter"), (".\n", "delimiter"), ("\n\n", "delimiter"), (" —", "delimiter"), ("。", "delimiter"),
        ("\u200b", "delimiter"), ("$", "delimiter"), (" the", "other"), ("7", "other"), ("the,", "other"), ("", "other"),
        ("<|im_start|>", "other"),
    ],
)  # fmt: skip
def test_kinds_of_token(token: str, kind: str) -> None:
    assert token_kind(token, first=False, bos=False) == kind
    assert token_kind(token, first=True, bos=True) == "bos"
    assert token_kind(token, first=True, bos=False) == "first"


def planted(position: int, share: float, length: int = 200, heads: int = 4) -> tuple[Any, Any, Any]:
    """Head 0 gives ``share`` to one key from a fixed margin on, the others attend uniformly."""
    q, k = torch.zeros(1, heads, length, 4), torch.zeros(1, heads, length, 4)
    q[0, 0, :, 0] = 1.0
    k[0, 0, position, 0] = float(sg.geometry.required_margin(length, share)) * 2  # scale is 1/2
    return q, k, torch.ones(1, heads, length, 4)


def test_a_sink_further_in_is_listed_with_its_token() -> None:
    q, k, v = planted(17, 0.9)
    tokens = [f"w{j}" for j in range(200)]
    tokens[17] = ","
    d = sg.measure(q, k, v, tokens=[tokens])
    assert [(s.position, s.token, s.kind, s.heads) for s in d.sinks] == [(17, ",", "delimiter", 1)]
    sink = d.sinks[0]
    # at the last query the share is the planted one; before, fewer keys compete and it is larger
    i = np.arange(18, 201)
    delta = float(sg.geometry.required_margin(200, 0.9))
    expected = (np.exp(delta) / (np.exp(delta) + i - 1)).mean()
    assert sink.top == pytest.approx(expected, abs=1e-6)
    assert d.top_other_mass[0, 0] == pytest.approx(expected, abs=1e-6)
    assert d.arrays["top_position"][0, 0, 0] == 17
    assert d.key_mass[0, 0, 17] == pytest.approx(expected, abs=1e-6)
    assert d.head_kind[0].tolist() == ["sink", "uniform", "uniform", "uniform"]


def test_what_few_queries_see_is_no_evidence() -> None:
    q, k, v = planted(190, 0.9)
    d = sg.measure(q, k, v)
    assert d.sinks == []
    assert np.isnan(d.key_mass[0, 0, 169:]).all()
    assert sg.measure(q, k, v, min_queries=5).sinks[0].position == 190


def test_what_the_key_writes_is_told() -> None:
    q, k, v = planted(17, 0.9)
    weight = torch.eye(16)
    assert sg.measure(q, k, v, output_weight=weight).sinks[0].write == pytest.approx(0.84, abs=0.15)
    v[0, 0, 17] = 0
    assert sg.measure(q, k, v, output_weight=weight).sinks[0].write == pytest.approx(0, abs=1e-6)
    assert sg.measure(q, k, v).sinks[0].write is None


def test_secondary_sinks_by_the_cosine_rule() -> None:
    """A hidden state within 0.9 of the first token's, in more than four layers: five will do, four will not."""
    q, k, v = planted(17, 0.9)
    hidden = torch.randn(1, 200, 32, generator=torch.Generator().manual_seed(0))
    alike = hidden.clone()
    alike[0, 17] = -3 * alike[0, 0]  # the rule takes the absolute value
    for count, expected in ((4, False), (5, True)):
        probe = sg.Probe(Settings(tokens=200))
        with probe.sample([{"id": "a", "source": "", "tokens": ["x"] * 200, "bos": False}]):
            site = sg.Site(layer=0, q=q, k=k, v=v, out=v, visibility=sg.Visibility(200, 200))
            probe.site(site)
            for depth in range(8):
                probe.stream(depth, alike if depth < count else hidden)
        d = probe.finish(model={"name": "x"})
        assert [s.secondary for s in d.sinks] == [expected]


def test_equal_positions_of_several_samples_are_one_entry() -> None:
    q, k, v = (x.expand(3, -1, -1, -1) for x in planted(17, 0.9))
    d = sg.measure(q, k, v)
    assert len(d.sinks) == 1
    assert d.sinks[0].samples == 3


def test_curves_and_the_law() -> None:
    """Equal content scores and one sink of constant margin over each: the margin falls as −ln t."""
    q, k, v = planted(0, 0.9)
    curve = sg.measure(q, k, v).curve(0, 0)
    delta = float(sg.geometry.required_margin(200, 0.9))
    exact = {int(t): i for i, t in enumerate(curve["t"]) if t == int(t) and curve["n"][i] == 1}
    assert {0, 1, 2, 3, 4} <= set(exact)
    for t, i in exact.items():
        assert curve["mass"][i] == pytest.approx(np.exp(delta) / (np.exp(delta) + t), abs=1e-6)
        assert curve["null"][i] == pytest.approx(1 / (t + 1), abs=1e-9)
        if t:
            assert curve["margin"][i] == pytest.approx(delta - np.log(t), abs=1e-4)
    assert curve["n"].sum() == 200
    share = sg.measure(q, k, v).mass_by_sample(first_query=False)[0, 0, 0]
    np.testing.assert_allclose(curve["law"][1:], np.log(curve["t"][1:]) + sg.geometry.margin(share))
    assert np.isnan(curve["law"][0])
    assert np.isnan(curve["margin"][0])
