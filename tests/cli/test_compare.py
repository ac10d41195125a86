"""``sinkgate compare``: the whole command, its short forms, and one line for a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sinkgate.cli import main
from sinkgate.cli.compare import _steps
from sinkgate.errors import ArgumentError
from sinkgate.lab.comparison_record import Comparison
from sinkgate.lab.tasks import as_task

FAST = ["--set", "vocab=12", "length=16", "dim=16", "batch=4", "triggers=1", "--budget", "8", "--no-cost"]


def test_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "o"
    call = ["compare", "--task", "backcopy", "--arms", "softmax, softmax+g1, softmax+window(8), softmax+sink_token", "--seeds", "2",
            "--lrs", "1e-2,1e-3", "--out", str(out), *FAST]  # fmt: skip
    assert main(call) == 0
    printed = capsys.readouterr().out
    for arm in ("softmax", "softmax + g1", "softmax + window(8)", "softmax + sink_token"):
        assert arm in printed
    assert "no difference found at this size" in printed or "than softmax" in printed
    assert {"comparison.json", "record.json", "report.html", "pieces"} <= {p.name for p in out.iterdir()}
    record = Comparison.load(out)
    assert len(record.pieces) == 4 * 2 + 4
    assert main(call) == 1
    assert "already holds this comparison" in capsys.readouterr().err
    assert main([*call, "--resume", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["arms"]["softmax"]["told"] == "baseline"
    assert found["arms"]["softmax + g1"]["difference"]["samples"] == 2


def test_weightings_alone_and_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one two three four five six seven " * 200)
    call = ["compare", "--task", "text", "--weightings", "softmax,softpick", "--seeds", "1", "--text", str(tmp_path / "a.txt"),
            "--tokenizer", "bytes", "--set", "dim=16", "layers=1", "heads=2", "context=32", "batch=2", "held_out=2", "watched=1",
            "--budget", "192-tokens", "--out", str(tmp_path / "o"), "--no-cost"]  # fmt: skip
    assert main(call) == 0
    assert "one seed: no spread" in capsys.readouterr().out
    assert {p["steps"] for p in Comparison.load(tmp_path / "o").pieces} == {3}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "give --arms"),
        (["--arms", "softmax", "--weightings", "softmax"], "give --arms"),
        (["--arms", "softmin"], "no weighting 'softmin'"),
        (["--weightings", "softmax+g1"], "takes weightings alone"),
        (["--arms", "softmax", "--task", "chess"], "task 'chess' is not known"),
        (["--arms", "softmax", "--preset", "tiny"], "--preset belongs to --task text"),
        (["--arms", "softmax", "--set", "layers"], "--set takes NAME=VALUE"),
        (["--arms", "softmax", "--set", "depth=2"], "has no depth"),
        (["--arms", "softmax", "--lrs", "a,b"], "--lrs takes numbers"),
        (["--arms", "softmax", "--budget", "20min"], "a time would give a faster arm more steps"),
        (["--arms", "softmax", "--seeds", "0"], "seeds must be at least 1"),
        (["--arms", "softmax", "--task", "text", "--text", "nowhere.txt"], "cannot read the text"),
        (["--arms", "softmax", "--log-to", "nologger"], "nologger"),
    ],
)
def test_one_line_for_a_mistake(
    flags: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--out", str(tmp_path / "o"), *flags]) == 1
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "o").exists() or not any((tmp_path / "o").glob("pieces/*"))


def test_a_budget_is_the_same_for_every_arm() -> None:
    task = as_task("backcopy", length=100, batch=10)
    assert [_steps(x, task) for x in (None, "200", "2k", "2ksteps", "1M-tokens", "1.5Mtokens", "5tokens")] == [
        None, 200, 2000, 2000, 1000, 1500, 1,
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="has no tokens to count"):
        _steps("1M-tokens", as_task("trigger"))
