"""Which layers and heads should keep most: against whole passes under a mask, and by hand from the record."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formula import shape
from planned import TEXTS

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.cache.registry import as_policy
from sinkgate.errors import RecordError
from sinkgate.planning.cost import Shape
from sinkgate.planning.measure import Measurer
from sinkgate.planning.passes import spans
from sinkgate.planning.screen import far_mass, forgetting, order
from sinkgate.planning.setting import LEAVE, Setting
from sinkgate.planning.store import Store
from sinkgate.probe.text import pieces


@pytest.fixture(scope="module")
def record(llama: Any) -> sg.Diagnosis:
    found = sg.diagnose(llama, tokenizer(), TEXTS[:3], tokens=128, samples=3, local_window=16)
    assert isinstance(found, sg.Diagnosis)
    return found


def one_piece(tokens: int = 100, which: int = 0) -> Any:
    found, _ = pieces(tokenizer(), TEXTS, tokens=tokens, samples=6)
    return found[which]


@torch.no_grad()
def test_forgetting_against_single_steps(llama: Any, tmp_path: Path) -> None:
    piece = one_piece()
    found = forgetting(llama, shape(), piece, "recent(12) + sinks(2)", 90, Store("a", "b", tmp_path))
    assert list(found) == [0, 1, 2]
    ids = torch.tensor([piece.ids[:90]])
    plain = llama(ids).logits[0].double().log_softmax(-1)
    for layer, kl in found.items():
        policy = f"per_layer(dense, [{layer}], recent(12) + sinks(2))"
        with sg.streaming(llama, policy, positions="original") as cache:
            rows = (
                torch.cat([llama(ids[:, i : i + 1], cache=cache).logits[0] for i in range(90)]).double().log_softmax(-1)
            )
        by_hand = (plain.exp() * (plain - rows)).sum(-1)[:-1].mean()
        assert kl == pytest.approx(float(by_hand), rel=2e-2, abs=1e-5)  # logits are kept in half precision
    assert len(set(found.values())) == 3


def test_it_is_measured_once(llama: Any, tmp_path: Path) -> None:
    store = Store("a", "b", tmp_path)
    one = forgetting(llama, shape(), one_piece(), "recent(8)", 64, store)
    again = Store("a", "b", tmp_path)
    assert forgetting(llama, shape(), one_piece(), "recent(8)", 64, again) == one
    assert again.reused == 3
    assert Store("a", "other", tmp_path).known == {}


def test_layers_with_a_window_of_their_own_are_left_out(tmp_path: Path) -> None:
    gemma = tiny("gemma3")
    assert list(forgetting(gemma, Shape.of(gemma), one_piece(), "recent(8)", 64, Store("a", "b", tmp_path))) == [1]


def test_far_mass_by_hand(record: sg.Diagnosis) -> None:
    found = far_mass(record, shape())
    first = record.arrays["alpha4"].mean(0).sum(-1)
    far = 1 - record.local_mass - first
    for (layer, kv), mass in found.items():
        assert mass == pytest.approx(max(0.0, far[layer, 3 * kv : 3 * kv + 3].max()), abs=1e-9)
    assert len(found) == 6


def test_the_order() -> None:
    heads, layers = order(
        {0: 0.1, 1: 0.4, 2: 0.0}, {(0, 0): 0.5, (0, 1): 0.5, (1, 0): 0.9, (1, 1): 0.1, (2, 0): 0.2, (2, 1): 0.0}
    )
    assert layers == (1, 0, 2)
    # 1.0 gets .36; 0.0 and 0.1 .05 each; 1.1 .04; layer 2 costs nothing, its heads by their mass
    assert heads == ((1, 0), (0, 0), (0, 1), (1, 1), (2, 0), (2, 1))


def test_a_record_of_other_heads(record: sg.Diagnosis) -> None:
    wide = dataclasses.replace(shape(), layers=tuple(dataclasses.replace(x, heads=12) for x in shape().layers))
    with pytest.raises(RecordError, match="the record has 3 layers of 6 heads"):
        far_mass(record, wide)


# ---- passes ----------------------------------------------------------------------------------------------------------


def test_passes_end_behind_sinks_that_are_packed() -> None:
    def sizes(policy: str, tokens: int, ids: list[int] | None = None) -> list[int]:
        return [j - i for i, j in spans(as_policy(policy), [1] * tokens if ids is None else ids)]

    assert sizes("recent(64)", 1200) == [512, 512, 176]
    assert sizes("quantized(recent(64) + sinks(4))", 1200) == [512, 512, 176]
    assert sizes("quantized(recent(64) + sinks(4), keep_sinks=false)", 1200) == [4, 508, 512, 176]
    assert sizes("quantized(recent(64) + sinks(4), keep_sinks=false)", 3) == [3]
    assert sizes("per_layer(recent(9), [0], quantized(recent(64) + sinks(2), keep_sinks=false))", 70) == [2, 68]
    text = [1, 1, 7, 1, 1, 1, 1, 1, 1, 1, 7, 1]  # one of the tokens is kept wherever it stands
    assert sizes("quantized(recent(64) + sinks(1, token_ids=[7]), keep_sinks=false)", 12, text) == [3, 9]


@torch.no_grad()
@pytest.mark.parametrize(
    "policy",
    ["recent(20) + sinks(4)", "quantized(recent(40) + sinks(4), bits=4)", "quantized(recent(32) + sinks(1), keep_sinks=false)",
     "per_layer(quantized(recent(40), bits=4), [1], quantized(recent(40), bits=8))", "recent(12) + heavy(4) + sinks(1)",
     "quantized(recent(40) + sinks(1) + sinks(3, token_ids=[9, 20, 33]), bits=4)", "quantized(recent(500) + sinks(4), bits=4)",
     "per_head(quantized(recent(40), bits=4), [[0, 0]], quantized(recent(480), bits=4))", "recent(500) + heavy(4) + sinks(1)"],
)  # fmt: skip
def test_losses_are_those_of_single_steps(policy: str, tmp_path: Path) -> None:
    llama = tiny(
        "llama", dtype=torch.float64
    )  # a rounding that falls to the other side changes a loss by more than rounding
    piece = one_piece(120)
    measurer = Measurer(llama, Store("a", "b", tmp_path))
    for positions in ("slots", "original"):
        nats = []
        with sg.streaming(llama, policy, positions=positions) as cache:
            for i in range(119):
                logits = llama(torch.tensor([[piece.ids[i]]]), cache=cache).logits[0, -1].double()
                nats.append(float(logits.logsumexp(-1) - logits[piece.ids[i + 1]]))
        found = measurer.loss(Setting(policy, positions), piece)
        assert found.mean == pytest.approx(np.mean(nats), abs=1e-7)
        assert found.parts == pytest.approx([p.mean() for p in np.array_split(np.array(nats), 4)], abs=1e-7)
        whole, parts = measurer.difference(Setting(policy, positions), piece)
        assert whole == pytest.approx(found.mean - measurer.loss(LEAVE, piece).mean, abs=1e-12)
        assert len(parts) == 4


def test_a_torn_line_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    store = Store("a", "b", tmp_path)
    store.measured("one", lambda: 1)
    store.measured("two", lambda: {"x": 2})
    data = store.path.read_bytes()
    store.path.write_bytes(data[:-4])
    again = Store("a", "b", tmp_path)
    assert again.known == {"one": 1}
    assert again.measured("two", lambda: {"x": 3}) == {"x": 3}
    assert Store("a", "b", tmp_path).known == {"one": 1, "two": {"x": 3}}


@torch.no_grad()
def test_around_is_entered_for_the_setting_alone(llama: Any, tmp_path: Path) -> None:
    piece = one_piece(80)
    store = Store("a", "b", tmp_path)
    plain = Measurer(llama, store)
    fewer = Measurer(llama, store, lambda: sg.quantized(llama, weights="int4"), "int4")
    change, _ = fewer.difference(LEAVE, piece)
    with sg.quantized(llama, weights="int4"):
        text = torch.tensor([piece.ids])
        logits = llama(text).logits[0, :-1].double()
        quantised = float((logits.logsumexp(-1) - logits.gather(-1, text[0, 1:, None])[:, 0]).mean())
    assert change == pytest.approx(quantised - plain.loss(LEAVE, piece).mean, abs=1e-5)
    assert fewer.untouched(piece) == plain.untouched(piece)
