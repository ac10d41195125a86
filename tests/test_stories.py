"""The five user stories in docs/stories run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STORIES = sorted((Path(__file__).parents[1] / "docs" / "stories").glob("*.md"))
REAL = re.compile(r"smollm2-135m|gemma3-270m")


def blocks(path: Path) -> list[tuple[int, str]]:
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start()) + 1, m.group(1)) for m in re.finditer(r"```python\n(.*?)```", text, re.S)]


def test_there_is_one_for_each_kind_of_user() -> None:
    assert [p.stem for p in STORIES] == [
        "architecture_researcher", "inference_engineer", "interpretability_researcher", "quantization_engineer", "student",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow) if REAL.search("".join(b for _, b in blocks(p))) else p for p in STORIES],
    ids=lambda p: p.stem,
)
def test_story(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "story"}
    found = blocks(path)
    assert found
    for line, code in found:
        exec(compile("\n" * line + code, str(path), "exec"), names)
    assert any("assert" in code for _, code in found)
