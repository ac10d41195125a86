"""The repository itself: what is pinned, what is checked, what must not be in it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import sinkgate

ROOT = Path(__file__).parents[1]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split(
        "\n"
    )
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def test_torch_is_pinned_for_us_and_a_range_for_others() -> None:
    assert "torch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    torch = next(d for d in project["dependencies"] if d.startswith("torch"))
    assert "==" not in torch
    assert project["version"] == sinkgate.__version__
    assert project["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their bare name: a second one stops the collection, or is taken for the first."""
    names = [
        p.name for p in tracked() if p.suffix == ".py" and p.is_relative_to(ROOT / "tests") and p.name != "conftest.py"
    ]
    assert sorted(set(names)) == sorted(names)
    for path in tracked():
        if path.suffix == ".py" and path.is_relative_to(ROOT / "tests"):
            assert not re.search(r"^\s*from conftest import", path.read_text(), re.M), f"{path.name}: which conftest?"


def test_ci_runs_exactly_what_the_readme_says() -> None:
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-1] == "make test"
    assert "make test" in (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "-c constraints.txt" in makefile
    assert re.search(r"^test: .*\bchromium\b", makefile, re.M)  # CI has a browser without being told
    for tool in ("ruff check", "ruff format --check", "mypy", "pytest"):
        assert tool in makefile


def test_warnings_are_errors_and_every_dependency_has_its_reason() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert config["tool"]["pytest"]["ini_options"]["filterwarnings"] == ["error"]
    reasons = (ROOT / "docs/dependencies.md").read_text()
    extras = config["project"]["optional-dependencies"]
    wanted = config["project"]["dependencies"] + [d for group in extras.values() for d in group]
    for dependency in wanted:
        name = re.split(r"[\[=<>~!]", dependency)[0]
        assert name == "sinkgate" or re.search(rf"\b{re.escape(name)}\b", reasons), (
            f"{name} has no reason in docs/dependencies.md"
        )


def test_the_repository_speaks_of_the_project_alone() -> None:
    here = str(ROOT)
    for path in tracked():
        assert path.stat().st_size < 1_000_000, f"{path.name} is over 1 MB"
        if path.suffix in (".png",):
            continue
        text = path.read_text(encoding="utf-8")
        assert here == "/" or here not in text, f"{path.name} carries a path of this machine"
        assert not re.search(r"^(<{7}|>{7}) ", text, re.M), f"{path.name} has a merge marker"
