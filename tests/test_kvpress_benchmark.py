"""The comparison with kvpress: what its committed result must hold, and how it behaves without kvpress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import kvpress
from benchmarks.common import RESULTS
from benchmarks.kvpress_worker import presses

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads((RESULTS / "kvpress.json").read_text(encoding="utf-8"))


def test_a_token_of_smollm2_weighs_what_its_config_says() -> None:
    config = SimpleNamespace(num_hidden_layers=30, num_key_value_heads=3, hidden_size=576, num_attention_heads=9)
    assert kvpress.token_bytes(config) == 30 * 3 * (64 + 64) * 4 == 46080


@pytest.mark.parametrize("kept", kvpress.BUDGETS)
def test_kvpress_rounds_the_ratio_down_to_the_budget(kept: int) -> None:
    class Press:
        def __init__(self, compression_ratio: float = 0.0, n_sink: int = 0) -> None:
            self.ratio = compression_ratio

    fake = SimpleNamespace(
        StreamingLLMPress=Press, ExpectedAttentionPress=Press, KeyRerotationPress=lambda press: press
    )
    for press in presses(fake, kept, kvpress.PREFIX, kvpress.SINKS).values():
        assert int(kvpress.PREFIX * (1 - press.ratio)) == kept  # as kvpress counts


def test_both_environments_hold_one_model(found: dict[str, Any]) -> None:
    assert found["same_model"]["largest_logit_difference"] < 1e-3
    assert found["summary"]["texts"] >= 2
    for text in found["texts"]:
        if {"dense", "dense of kvpress"} <= set(text["arms"]):
            assert text["arms"]["dense"]["loss"] == pytest.approx(text["arms"]["dense of kvpress"]["loss"], abs=1e-4)
    assert found["timing"]["largest_difference_to_the_shared_pass"] < 1e-4


def test_bytes_are_equal_at_the_first_question(found: dict[str, Any]) -> None:
    token, arms = found["token_bytes"], found["summary"]["arms"]
    for kept in found["budgets"]:
        budget = kept * token
        for name in kvpress.THEIRS:
            assert arms[f"{name} {kept}"]["bytes_first"] == budget
            assert arms[f"{name} {kept}"]["bytes_end"] == budget + found["scored"] * token  # it grows
        for name in kvpress.OURS:
            row = arms[f"{name} {kept}"]
            assert row["bytes_first"] == row["bytes_end"] <= budget  # a stream does not
            everything = f"recent({kvpress.PREFIX + kvpress.SCORED - kvpress.SINKS})"
            whole = everything in found["policies"][f"{name} {kept}"]["policy"]
            assert whole or row["bytes_first"] > budget - 32 * token  # what would fit is held: a group is 32 tokens
    assert arms["dense"]["bytes_first"] == found["prefix"] * token


def test_the_page_says_what_the_result_says_of_sliding_windows(found: dict[str, Any]) -> None:
    other = found["others"][kvpress.OTHER]
    assert not other["in_its_list"]
    assert "sliding_attention" in other["layers"]
    assert set(other["presses"]) == set(kvpress.THEIRS)


def test_a_summary_pairs_text_by_text() -> None:
    found = kvpress.begun() | {"token_bytes": 10, "policies": {"plan x": {"policy": "recent(9)", "positions": "slots"}}}
    found["timing"] = {"cpu_over_dense": {n: [1.0] for n in kvpress.THEIRS}}
    for i in range(3):
        arms = {
            f"{n} {k}": {"loss": 2.0 + i, "bytes_first": 10 * k, "bytes_end": 10 * k}
            for k in kvpress.BUDGETS
            for n in kvpress.THEIRS
        }
        same = {"loss": 1.5 + i, "bytes_first": 20480, "bytes_end": 20480}
        plan = {"loss": 1.75 + i, "bytes_first": 2000, "bytes_end": 2000, "cpu_over_dense": 0.5}
        found["texts"].append({"source": str(i), "arms": {**arms, "dense": same, "dense of kvpress": same, "plan x": plan}})  # fmt: skip
    found["texts"].append({"source": "unfinished", "arms": {"dense": same}})
    summary = kvpress.summary(found)
    assert summary["texts"] == 3
    assert summary["arms"]["streaming 128"]["over_dense"] == {"mean": 0.5, "low": 0.5, "high": 0.5}
    row = summary["arms"]["plan x"]
    assert row["budget"] == 256  # the smallest that holds its bytes
    assert row["over_dense"]["mean"] == 0.25
    assert row["over"]["expected"]["mean"] == -0.25
    assert row["cpu_over_dense"] == 0.5


def test_a_plan_is_read_by_its_policy(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"setting": {"policy": {"policy": "recent", "n": 9}, "positions": "slots"}}))
    assert kvpress.plan_of(path) == {"policy": "recent(9)", "positions": "slots"}
    path.write_text(json.dumps({"setting": {"policy": "recent(9) + sinks(2)", "positions": "original"}}))
    assert kvpress.plan_of(path) == {"policy": "recent(9) + sinks(2)", "positions": "original"}


def test_without_the_environment_one_line_says_how_to_make_it(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != kvpress.VARIABLE}
    argv = [sys.executable, "-m", "benchmarks.kvpress", "--texts", "1000"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert done.stderr.strip() == kvpress.HOW
    assert "kvpress_requirements.txt" in kvpress.HOW
    done = subprocess.run([sys.executable, "-c", "from benchmarks import kvpress as k; k.BUDGETS = (7,); k.main()"],
                          capture_output=True, text=True, check=False, cwd=ROOT, env=environment)  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.strip() == kvpress.HOW
