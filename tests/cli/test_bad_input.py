"""One clear line, an exit code, no traceback, nothing half-written."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import models as hf

from models import tiny, tokenizer, words

Run = Callable[..., Any]


def one_line(done: Any, *expected: str, code: int = 1) -> None:
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("sinkgate: ")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    for words_in_it in expected:
        assert words_in_it in done.err, done.err


def test_models(run: Run, text_file: str, tmp_path: Path, model_dir: str) -> None:
    def diagnose(path: object) -> Any:
        return run("diagnose", str(path), "--text", text_file, "--tokens", "60")

    one_line(diagnose("smollm3-135m"), "smollm2-135m")
    broken = Path(shutil.copytree(model_dir, tmp_path / "broken"))
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    one_line(diagnose(broken), "model.safetensors")
    pickled = Path(shutil.copytree(model_dir, tmp_path / "pickled"))
    (pickled / "model.safetensors").unlink()
    torch.save(tiny("llama").state_dict(), pickled / "pytorch_model.bin")
    one_line(diagnose(pickled), "pickled weights", "save_pretrained")
    remote = Path(shutil.copytree(model_dir, tmp_path / "remote"))
    config = (remote / "config.json").read_text()
    (remote / "config.json").write_text(config.replace("{", '{"auto_map": {"AutoModelForCausalLM": "m.M"},', 1))
    one_line(diagnose(remote), "trust")
    (tmp_path / "encoder").mkdir()
    torch.manual_seed(0)
    hf.bert.BertModel(
        hf.bert.BertConfig(
            vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
    ).save_pretrained(tmp_path / "encoder")
    tokenizer().save_pretrained(tmp_path / "encoder")
    one_line(diagnose(tmp_path / "encoder"), "causal")
    falcon = tmp_path / "falcon"
    hf.falcon.FalconForCausalLM(
        hf.falcon.FalconConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ).save_pretrained(falcon)
    tokenizer().save_pretrained(falcon)
    one_line(diagnose(falcon), "FalconAttention", "attention interface")


def test_texts(run: Run, model_dir: str, tmp_path: Path) -> None:
    def diagnose(name: str, data: bytes | None) -> Any:
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        return run("diagnose", model_dir, "--text", str(path))

    one_line(diagnose("missing.txt", None), "missing.txt", "No such file")
    one_line(diagnose("empty.txt", b""), "empty.txt is empty")
    one_line(diagnose("blank.txt", b" \n\t"), "is empty")
    one_line(diagnose("binary.bin", bytes(range(256))), "not UTF-8")
    one_line(diagnose("nul.txt", b"abc\0def"), "NUL")
    one_line(run("diagnose", model_dir, "--text", str(tmp_path)), "Is a directory")
    one_line(
        run("diagnose", model_dir, "--bos", "no", "--text", _write(tmp_path / "one.txt", "w1")), "at least 2 tokens"
    )


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_nan_in_the_weights(run: Run, text_file: str, tmp_path: Path) -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[8 * 4] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    tokenizer().save_pretrained(tmp_path / "nan")
    out = tmp_path / "out"
    done = run("diagnose", str(tmp_path / "nan"), "--text", text_file, "--tokens", "60", "--out", str(out))
    one_line(done, "layer 1, head 4", "q_proj.weight")
    assert list(out.iterdir()) == []


def test_settings(run: Run, model_dir: str, text_file: str) -> None:
    one_line(run("diagnose", model_dir, "--text", text_file, "--threshold", "1.5"), "threshold must be between 0 and 1")
    one_line(run("diagnose", model_dir, "--text", text_file, "--dtype", "int3"), "int3", "bfloat16")
    one_line(run("diagnose", model_dir, "--text", text_file, "--device", "tpu"), "tpu")
    if not torch.cuda.is_available():
        one_line(run("diagnose", model_dir, "--text", text_file, "--device", "cuda"), "cuda")
    one_line(run("diagnose", model_dir, "--text", text_file, "--tokens", "1"), "tokens must be at least 2")
    assert run("diagnose", "--tokens", "many").code == 2
    assert run("diagnoze").code == 2
    assert run().code == 2


def test_out(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    one_line(run("diagnose", model_dir, "--text", text_file, "--out", str(tmp_path / "file")), "--out")
    one_line(run("diagnose", model_dir, "--text", text_file, "--out", str(tmp_path / "file" / "below")), "--out")
    one_line(run("diagnose", model_dir, "--text", text_file, "--out", "/proc/nowhere"), "--out")
    one_line(run("show", str(tmp_path)), "no record at")
    one_line(run("show", str(tmp_path / "file")), "not a readable record")


def test_a_full_disk_leaves_the_old_record_whole(model_dir: str, text_file: str, tmp_path: Path) -> None:
    """A write that fails half-way (here a file size limit): one line, and what was there before is untouched."""
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "sinkgate",
        "diagnose",
        model_dir,
        "--text",
        text_file,
        "--tokens",
        "100",
        "--out",
        str(out),
    ]
    assert subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [*command, "--threshold", "0.2"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_ctrl_c(model_dir: str, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(words(400_000))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "sinkgate", "diagnose", model_dir, "--text", str(text), "--tokens", "100", "--samples", "4000", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        # a suite that runs in a shell's background has the signal ignored, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(6)  # libraries loaded, reading under way
    process.send_signal(signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stdout == ""
    assert stderr == "sinkgate: interrupted; nothing was written\n"
    assert list(out.iterdir()) == []


def test_debug_shows_the_traceback(run: Run, model_dir: str) -> None:
    done = run("diagnose", model_dir, "--text", "/nowhere", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("sinkgate: cannot read the text '/nowhere'")


def test_a_bug_is_one_line_too(run: Run, model_dir: str, text_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sinkgate.probe.diagnose as module

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("never\nseen")

    monkeypatch.setattr(module, "trace", broken)
    one_line(run("diagnose", model_dir, "--text", text_file), "unexpected KeyError", "--debug")


def test_a_reader_that_goes_away(model_dir: str, text_file: str) -> None:
    """``sinkgate … | head -1``."""
    command = f"{sys.executable} -m sinkgate diagnose {model_dir} --text {text_file} --tokens 60 --json | head -c 1 >/dev/null"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=os.environ
    )
    assert "Traceback" not in done.stderr
