"""A tiny model on disk, and a way to run the command."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from models import tiny, tokenizer, words
from sinkgate.cli import main


@dataclass
class Ran:
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    tiny("llama").save_pretrained(path)
    tokenizer(bos=True).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(words(400), encoding="utf-8")
    return str(path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run ``sinkgate …`` in this process, with an empty standard input that is no file."""

    def command(*args: str) -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        capsys.readouterr()  # what the test itself caused to be printed
        try:
            code = main(list(args))
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return command
