"""``sinkgate plan`` and ``sinkgate generate --plan`` as a person uses them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    tiny("llama").save_pretrained(path)
    tokenizer(bos=True).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("text")
    for i in range(12):
        (folder / f"{i}.txt").write_text(words(300, seed=i))
    return [str(p) for p in sorted(folder.iterdir())]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capsys.readouterr()
        try:
            code = main(list(args))
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


QUICK = ("--effort", "quick", "--context", "128", "--no-quantization", "--no-recall")


@pytest.fixture(scope="session")
def plan_file(model_dir: str, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", model_dir, "--max-ppl-increase", "50%", "--text", *texts, "--out", str(path), *QUICK]) == 0
    return path


def test_what_it_writes(plan_file: Path, model_dir: str) -> None:
    assert sorted(p.name for p in plan_file.parent.iterdir()) == ["keep.json", "plan.json", "report.html"]
    plan = sg.Plan.load(plan_file)
    assert plan.answer == "change"
    assert plan.request.max_increase == 0.5
    assert plan.meta["model"]["name"] == model_dir
    page = plan_file.with_name("report.html").read_text()
    assert plan.setting.policy.split("(")[0] in page


def test_it_prints_the_plan_or_its_json(run: Run, model_dir: str, texts: list[str], plan_file: Path) -> None:
    asked = ("plan", model_dir, "--max-ppl-increase", "0.5", "--text", *texts, *QUICK)
    code, out, err = run(*asked)
    assert code == 0, err
    assert out.startswith(f"{model_dir} (LlamaForCausalLM, float32): perplexity at most 50% higher, at 128 tokens")
    assert "Answer: change: " in out
    code, out, err = run(*asked, "--json")
    assert code == 0, err
    assert sg.Plan.from_json(json.loads(out)).setting == sg.Plan.load(plan_file).setting


def test_generate_uses_it(run: Run, model_dir: str, plan_file: Path) -> None:
    plan = sg.Plan.load(plan_file)
    asked = ("generate", model_dir, "--prompt", words(100), "--max-new-tokens", "8")
    code, out, err = run(*asked, "--plan", str(plan_file))
    assert code == 0, err
    assert plan.setting.policy in err
    assert f"positions: {plan.setting.positions}" in err
    code, other, _ = run(*asked, "--policy", plan.setting.policy, "--positions", plan.setting.positions)
    assert code == 0
    assert out == other


def test_generate_refuses_another_models_plan(run: Run, plan_file: Path, tmp_path: Path) -> None:
    tiny("llama", seed=3).save_pretrained(tmp_path / "other")
    tokenizer(bos=True).save_pretrained(tmp_path / "other")
    code, out, err = run("generate", str(tmp_path / "other"), "--prompt", "w1 w2", "--plan", str(plan_file))
    assert (code, out) == (1, "")
    assert "this plan was made for" in err
    assert err.count("\n") == 1


def test_generate_refuses_a_plan_beside_a_policy(run: Run, model_dir: str, plan_file: Path) -> None:
    for flag, value in (("--policy", "recent(4)"), ("--positions", "slots")):
        code, _, err = run("generate", model_dir, "--prompt", "w1", "--plan", str(plan_file), flag, value)
        assert code == 1
        assert "not both" in err
    code, _, err = run("generate", model_dir, "--prompt", "w1", "--plan", str(plan_file.with_name("report.html")))
    assert code == 1
    assert "is not a readable plan" in err


@pytest.mark.parametrize(
    ("flags", "words_"),
    [
        ((), "say what the plan has to keep to"),
        (("--max-ppl-increase", "0"), "above 0, such as 1%"),
        (("--max-ppl-increase=-1%",), "above 0, such as 1%"),
        (("--max-ppl-increase", "much"), "must be a number such as 1% or 0.01"),
        (("--budget", "lots"), "budget must be bytes such as 64MiB"),
        (("--budget", "200B", "--context", "128"), "the least that"),
        (("--budget", "1MiB", "--context", "soon"), "context must be a number such as"),
        (("--budget", "1MiB", "--batch", "0"), "batch must be a whole number of at least 1"),
        (("--budget", "1MiB", "--goal", "memory", "--context", "128"), "without a tolerance would keep nothing"),
        (("--budget", "1MiB", "--seed", "-1"), "seed must be a whole number"),
        (("--budget", "1MiB", "--text", "nowhere.txt"), "nowhere.txt"),
        (("--budget", "1MiB", "--record", "nowhere"), "nowhere"),
        (("--budget", "1MiB", "--minutes", "3"), "--minutes belongs to --training"),
        (("--training", "--budget", "1MiB"), "--budget does not belong to --training"),
        (("--training",), "a plan needs a budget"),
        (("--max-ppl-increase", "1%", "--out", "plan.txt"), "--out is a file for the plan, such as plan.json"),
    ],
)
def test_bad_flags_are_one_line(
    run: Run, model_dir: str, flags: tuple[str, ...], words_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run("plan", model_dir, *flags)
    assert code == 1, out
    assert words_ in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_text_that_is_too_short(run: Run, model_dir: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(words(50))
    code, _, err = run("plan", model_dir, "--max-ppl-increase", "5%", "--text", str(tmp_path / "a.txt"), *QUICK)
    assert code == 1
    assert "the text is too short: a plan needs 6 pieces of 128 tokens, 768 tokens in all" in err


def test_a_training_plan(run: Run, tmp_path: Path) -> None:
    code, out, err = run(
        "plan",
        "trigger",
        "--training",
        "--steps",
        "4",
        "--arms",
        "softmax, softmax1",
        "--out",
        str(tmp_path / "pilots"),
    )
    assert code == 0, err
    assert "not distinguishable" in out
    assert "sg." in out
    assert (tmp_path / "pilots" / "plan.json").is_file()
