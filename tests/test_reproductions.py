"""The experiments that are comparisons: plans that are whole, models opened again, correlations against scipy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import correlations, emergence, gates, quantization, sink_tokens, stability, trained
from scipy import stats

from sinkgate.lab.arms import as_arm
from sinkgate.lab.comparison import Plan
from sinkgate.lab.measure import band
from sinkgate.lab.pieces import Piece, run_piece
from sinkgate.lab.tasks import as_task

PLANS = {
    **{f"gates {n}": p for n, p in gates.PLANS.items()}, **{f"emergence {n}": p for n, p in emergence.TEXT.items()},
    "stability": stability.PLAN, "sink tokens": sink_tokens.PLAN,
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_whole(name: str) -> None:
    plan = PLANS[name]
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.rates


def test_the_arms_of_the_comparison_of_gates_are_those_asked_for() -> None:
    assert [str(a) for a in gates.PLANS["backcopy"].arms] == [
        "softmax", "softmax + wider(g1)", "softmax + g1", "softmax + g1_head", "softmax + g2", "softmax + g1_constant", "sink_softmax",
        "softmax1", "sigmoid", "softpick", "softmax + head_norm",
    ]  # fmt: skip
    assert len(gates.PLANS["text"].arms) == 5


def test_a_trained_model_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("to and fro, and to and fro again, " * 200)
    task = as_task("text", texts=(str(tmp_path / "a.txt"),), tokenizer="bytes", dim=16, layers=1, heads=2, context=24, batch=2,
                   held_out=4, watched=1, dtype="float32", bos=False)  # fmt: skip
    piece = Piece(task, as_arm("softmax + sink_token"), 1e-2, 0, 6)
    record = run_piece(piece, tmp_path / "x" / "pieces" / piece.key)
    monkeypatch.setattr(trained, "PLACE", tmp_path)
    experiment = trained.load("x", record)
    assert experiment.final("test")["loss"] == pytest.approx(record["test"]["loss"], abs=1e-12)
    whole = trained.losses(experiment, "test")
    assert whole.mean().item() == pytest.approx(record["test"]["loss"], abs=1e-6)
    narrow = trained.losses(experiment, "test", window=5, kept=2)
    assert torch.equal(trained.losses(experiment, "test"), whole)  # the window is gone again
    torch.testing.assert_close(narrow[:, :3], whole[:, :3])  # nothing is hidden from the first ones
    assert not torch.equal(narrow[:, 12:], whole[:, 12:])
    layer = experiment.model.blocks[0].attention
    ids = experiment.corpus.held_out("test", 4, 25, bos=False)
    with trained.reading_with(experiment, 5, 2):
        assert (layer.window, layer.keep_first) == (5, 2)
        seen: list[Any] = []
        with experiment.model.watched(lambda _i, call: seen.append(call)), torch.no_grad():
            experiment.model(ids[:, :-1])
        q, k, v = seen[0].q, seen[0].k, seen[0].v
        weights = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(~band(25, 25, 5, 2), -torch.inf).softmax(-1)
        torch.testing.assert_close(weights @ v, seen[0].heads, rtol=1e-4, atol=1e-5)


def test_rank_correlations() -> None:
    maker = np.random.default_rng(0)
    rows = [
        {
            "arm": f"arm {i % 6}",
            "x": float(x),
            "y": float(-x + 0.3 * maker.normal()),
            "z": None if i % 7 == 0 else 1.0,
            "w": 2.0,
        }
        for i, x in enumerate(maker.normal(size=30))
    ]
    found = correlations.rank(rows, "x", "y")
    assert found["rho"] == pytest.approx(stats.spearmanr([r["x"] for r in rows], [r["y"] for r in rows]).statistic)
    assert found["low"] < found["rho"] < found["high"] < 0
    assert (found["n"], found["arms"]) == (30, 6)
    noise = correlations.rank([{**r, "y": float(maker.normal())} for r in rows], "x", "y")
    assert noise["low"] < 0 < noise["high"]
    assert correlations.rank(rows, "x", "w")["rho"] is None  # a number that never changes goes with nothing


def test_every_scheme_is_understood() -> None:
    import sinkgate as sg
    from sinkgate.lab.decoder import Decoder, DecoderConfig

    model, ids = Decoder(DecoderConfig(40, dim=32, layers=1, heads=2, tied=False)), torch.arange(20)[None]
    with torch.no_grad():
        plain = model(ids)
        for name, how in quantization.SCHEMES.items():
            with sg.quantized(model, **how):
                assert not torch.equal(model(ids), plain), name
            assert torch.equal(model(ids), plain), name
