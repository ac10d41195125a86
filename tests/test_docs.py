"""The documents say what the code does and what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.common import EXPERIMENTS, RESULTS
from benchmarks.render import DOCUMENTS, rendered

from sinkgate import schema
from sinkgate.cli import VERBS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_measured_numbers_are_todays_results(name: str) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    assert rendered(text, chinese="zh-CN" in name) == text, "run `make docs`"
    assert "<!-- table" in text or "README" not in name


def test_the_readmes_hold_every_table_and_figure() -> None:
    markers = [
        re.findall(r"<!-- (?:table|figure) [^>]*-->", (ROOT / n).read_text(encoding="utf-8")) for n in DOCUMENTS[:2]
    ]
    assert markers[0] == markers[1]
    assert len(markers[0]) >= 4


def test_head_kinds_are_the_ones_of_the_code_in_its_order() -> None:
    text = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
    section = text.split("## Head kinds")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d) \| (\w+) \| (.*) \|$", section, re.M)
    assert [kind for _, kind, _ in rows] == list(schema.HEAD_KINDS)
    rules = {kind: rule for _, kind, rule in rows}
    assert f"({schema.Settings().threshold:g})" in rules["sink"]
    assert f"over {schema.PREVIOUS_MASS:g}" in rules["previous"]
    assert f"last {schema.Settings().local_window} tokens over {schema.LOCAL_MASS:g}" in rules["local"]
    assert schema.LOCAL_OVER_NULL == 2
    assert f"over {schema.UNIFORM_ENTROPY:g} of uniform" in rules["uniform"]
    assert f"under {schema.SPECIFIC_KEYS}" in rules["specific"]


def test_links_and_pictures_are_there() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} points to {target}"


def test_the_readme_names_every_verb_or_the_help_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "sinkgate diagnose" in readme
    assert {verb.replace("-", "_") for verb in VERBS} == {p.stem for p in (ROOT / "src/sinkgate/cli").glob("*.py")} - {
        "__init__"
    }


def test_results_are_honest_json() -> None:
    paths = [*RESULTS.glob("*.json"), *EXPERIMENTS.glob("*.json")]
    assert len({path.name for path in paths}) == len(paths)  # a marker names its result without its folder
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["environment"]["cpu"], path.name
        assert found["environment"]["commit"], path.name


def test_acceptance_points_at_things_that_are_there() -> None:
    text = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert rows
    for row in rows:
        assert re.search(r"\| (green|red[^|]*) \|$", row), row
        places = re.findall(
            r"`([^`]+\.(?:py|md|json|txt|toml)|Makefile|LICENSE|\.ci/run|docs/stories/)(?:::(\w+))?[^`]*`",
            row.split("|")[3],
        )
        if "| red" in row:  # where it will be
            continue
        assert places, row
        for place, test in places:
            assert (ROOT / place).exists(), f"{place} is named in: {row}"
            if test:
                assert f"def {test}(" in (ROOT / place).read_text(encoding="utf-8"), f"{test} is named in: {row}"
