"""Texts from a dataset of the ``datasets`` package, saved in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from models import words
from sinkgate.errors import TextError
from sinkgate.lab.corpus import read_corpus


@pytest.mark.slow
def test_a_saved_dataset_is_the_text_of_its_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = [words(60, seed) for seed in range(12)]
    one = datasets.Dataset.from_dict({"text": rows, "other": [f"{row} x" for row in rows]})
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one.select(range(8)), "validation": one.select(range(8, 12))}).save_to_disk(
        tmp_path / "split"
    )

    def same(name: str, text: str) -> None:
        (tmp_path / "text").write_text(text)
        found, expected = read_corpus([name]), read_corpus([str(tmp_path / "text")])
        assert found.about["sources"] == [name]
        assert found.about["sha256"] == expected.about["sha256"]
        for part, ids in expected.ids.items():
            np.testing.assert_array_equal(found.ids[part], ids)

    same(f"hf:{tmp_path / 'one'}", "\n\n".join(rows))
    same(f"hf:{tmp_path / 'one'}:train:other", "\n\n".join(f"{row} x" for row in rows))
    same(f"hf:{tmp_path / 'split'}:train:text", "\n\n".join(rows[:8]))
    same(f"hf:{tmp_path / 'split'}:validation", "\n\n".join(rows[8:]))
    for name, message in (
        ("one:train:body", "has no column 'body'; it has text, other"),
        ("split:test", "split 'test'"),
    ):
        with pytest.raises(TextError, match=message):
            read_corpus([f"hf:{tmp_path}/{name}"])


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TextError, match=r"pip install 'sinkgate\[datasets\]'"):
        read_corpus(["hf:somewhere"])
