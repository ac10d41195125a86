"""``sinkgate intervene`` as a person uses it, and what it says to what it cannot do."""

from __future__ import annotations

import json
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

import sinkgate as sg
from cli.test_bad_input import one_line
from models import tiny, tokenizer, words
from sinkgate.cli.intervene import ACTS, summary
from sinkgate.interventions.intervene import ACTS as KNOWN
from sinkgate.interventions.verdict import kind
from sinkgate.probe.text import Text

Run = Callable[..., Any]

SMALL = ("--tokens", "60", "--samples", "2", "--burn-in", "20", "--confirm", "1")


def test_the_whole_of_it(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    done = run(
        "intervene", model_dir, "--text", text_file, "--out", str(out), *SMALL, "--repeated", "w5", "--sweep", "9", "30"
    )
    assert done.code == 0, done.err
    assert "Evicting the first token from query 20 on changes the loss by" in done.out
    for label in ("evict from query 9", "evict from query 30", "masked from the start", "constant gate", "its control"):
        assert label in done.out
    assert "predictions from position 30 on" in done.out
    assert "60 × 'w5': sinks at" in done.out
    assert done.err == f"\nWrote {out / 'effects.json'}.\n"
    assert [p.name for p in out.iterdir()] == ["effects.json"]
    effects = sg.Effects.load(out)
    assert f"{effects}\n" == done.out
    assert effects.meta["model"]["name"] == model_dir
    assert effects.meta["model"]["source"]["kind"] == "directory"


def test_json_and_what_the_flags_mean(run: Run, model_dir: str, text_file: str) -> None:
    done = run(
        "intervene", model_dir, "--text", text_file, *SMALL, "--acts", "evict", "scalar-gate", "mean-value", "--position", "3",
        "--layers", "1", "2", "--bos", "no", "--seed", "5", "--dtype", "float32", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    wanted = sg.intervene(
        model_dir, None, [Text(text_file, Path(text_file).read_text())], acts=["evict", "scalar gate", "mean value"],
        tokens=60, samples=2, burn_in=20, confirm=1, position=3, layers=[1, 2], bos="no", seed=5,
    )  # fmt: skip
    assert found == json.loads(json.dumps(summary(wanted)))
    assert found["targets"] == [3, 3]
    assert found["kind"] == kind(wanted)
    assert [arm["label"] for arm in found["arms"] if arm["kind"] == "act"] == ["evict", "scalar gate"]
    assert "No other text has a sink further in, so there was no mean value to put in." in found["notes"]
    assert {"loss_change", "loss_change_low", "loss_change_high", "kl", "kl_low", "agreement", "agreement_high"} <= set(
        found["arms"][1]
    )
    assert {h["layer"] for h in found["heads"]} <= {1, 2}
    assert found["heads"][0]["amplification"] is None  # NaN is no JSON


def test_heads_and_pairs(run: Run, model_dir: str, tmp_path: Path) -> None:
    tabs, lines = tmp_path / "pairs.tsv", tmp_path / "pairs.jsonl"
    tabs.write_text("w1 w2 w3 w4\tw5 w6\n\nw7 w8 w9\tw10 w11 w12\n")
    lines.write_text('["w1 w2 w3 w4", "w5 w6"]\n{"clean": "w7 w8 w9", "corrupted": "w10 w11 w12"}\n')
    said = []
    for path in (tabs, lines):
        done = run("intervene", model_dir, "--pairs", str(path), "--heads", "0.1", "2.5", "--acts", "evict", "--json")
        assert done.code == 0, done.err
        said.append(json.loads(done.out))
    assert said[0] == said[1]
    assert said[0]["where"] == [[0, 1], [2, 5]]
    assert said[0]["arms"][1]["samples"] == 2
    assert {"kept", "metric"} <= set(said[0]["arms"][1])


def test_text_from_a_pipe(model_dir: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sinkgate", "intervene", model_dir, *SMALL, "--acts", "evict"],
        input=words(200), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "sinkgate: reading the text from standard input\n"
    assert "its control" in done.stdout


def test_help_names_every_act_without_torch() -> None:
    assert [act.replace("-", " ") for act in ACTS] == list(KNOWN)
    code = (
        "import sys; from sinkgate.cli import main\n"
        "try: main(['intervene', '--help'])\nexcept SystemExit as e: assert e.code == 0\n"
        "assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for flag in ("--acts", "--burn-in", "--sweep", "--position", "--layers", "--heads", "--confirm", "--pairs",
                 "--repeated", "--bos", "--seed", "--trust-remote-code"):  # fmt: skip
        assert flag in done.stdout


def test_bad_flags(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    def intervene(*flags: str) -> Any:
        return run("intervene", model_dir, "--text", text_file, *flags)

    for flags in (
        ("--acts", "evicted"),
        ("--position", "last"),
        ("--heads", "5"),
        ("--heads", "a.b"),
        ("--tokens", "many"),
        ("--bos", "perhaps"),
    ):
        done = intervene(*flags)
        assert done.code == 2
        assert done.out == ""
        assert "Traceback" not in done.err
    one_line(intervene("--tokens", "65"), "tokens=65", "burn-in of 64", "at least 66")
    one_line(intervene("--tokens", "500", "--burn-in", "450"), "452 tokens are needed")
    one_line(intervene("--burn-in", "0"), "burn_in and sweep must be at least 1")
    one_line(intervene("--sweep", "0"), "'start'")
    one_line(intervene("--position", "64"), "under the burn-in of 64")
    one_line(intervene(*SMALL, "--layers", "3"), "layer 3", "0 to 2")
    one_line(intervene(*SMALL, "--heads", "0.6"), "heads 0 to 5")
    one_line(intervene(*SMALL, "--heads", "0.1", "--layers", "1"), "not both")
    one_line(intervene("--samples", "0"), "samples must be at least 1")
    one_line(intervene("--confirm", "-1"), "confirm")
    one_line(intervene("--dtype", "int3"), "int3")
    one_line(intervene(*SMALL, "--repeated", "w1 w2"), "must be one token")
    one_line(intervene("--pairs", text_file), "--text or --pairs")
    one_line(run("intervene", "smollm3-135m", "--text", text_file), "smollm2-135m")
    one_line(run("intervene", model_dir, "--text", "/nowhere"), "cannot read the text '/nowhere'")
    (tmp_path / "file").write_text("x")
    one_line(intervene("--out", str(tmp_path / "file")), "--out")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("pairs.tsv", "w1 w2 w3\n", "line 1 is no pair"),
        ("pairs.tsv", "w1 w2 w3\tw4\nw1\tw2\tw3\n", "line 2 is no pair"),
        ("pairs.tsv", "w1 w2 w3\t\n", "line 1 is no pair"),
        ("pairs.tsv", "\n \n", "holds no pairs"),
        ("pairs.jsonl", '["w1 w2 w3", "w4"]\n[1, 2]\n', "line 2 is no pair"),
        ("pairs.jsonl", '{"clean": "w1 w2 w3"}\n', "line 1 is no pair"),
        ("pairs.jsonl", "w1\tw2\n", "line 1 is not JSON"),
        ("pairs.jsonl", "[" * 100_000 + "\n", "line 1 is not JSON"),
        ("pairs.tsv", "w1\tw4\n", "at least 3 and 1 are needed"),
        ("pairs.tsv", b"\xff\xfe", "not UTF-8"),
        ("missing.tsv", None, "cannot read the pairs"),
    ],
)
def test_bad_pairs(run: Run, model_dir: str, tmp_path: Path, name: str, content: Any, expected: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    one_line(run("intervene", model_dir, "--pairs", str(path)), expected)


def test_nan_in_the_weights(run: Run, text_file: str, tmp_path: Path) -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[8 * 4] = float("nan")
    model.save_pretrained(tmp_path / "nan")
    tokenizer().save_pretrained(tmp_path / "nan")
    out = tmp_path / "out"
    one_line(run("intervene", str(tmp_path / "nan"), "--text", text_file, *SMALL, "--out", str(out)), "layer 1, head 4")
    assert list(out.iterdir()) == []


def test_a_full_disk_leaves_the_old_record_whole(model_dir: str, text_file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "sinkgate", "intervene", model_dir, "--text", text_file, *SMALL, "--out", str(out)]
    assert subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    done = subprocess.run(
        [*command, "--seed", "9"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot write the effects" in done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_ctrl_c(model_dir: str, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text(words(40_000))
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "sinkgate", "intervene", model_dir, "--text", str(text), "--tokens", "100", "--samples", "390",
         "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        # a suite that runs in a shell's background has the signal ignored, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(6)  # libraries loaded, acting under way
    process.send_signal(signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stdout == ""
    assert stderr == "sinkgate: interrupted; nothing was written\n"
    assert list(out.iterdir()) == []


def test_a_model_of_another_kind_is_one_line(run: Run, model_dir: str, text_file: str, tmp_path: Path) -> None:
    from transformers import models as hf

    falcon = tmp_path / "falcon"
    hf.falcon.FalconForCausalLM(
        hf.falcon.FalconConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ).save_pretrained(falcon)
    tokenizer().save_pretrained(falcon)
    one_line(run("intervene", str(falcon), "--text", text_file, *SMALL), "FalconAttention", "attention interface")
    broken = Path(shutil.copytree(model_dir, tmp_path / "broken"))
    os.truncate(broken / "model.safetensors", 1000)
    one_line(run("intervene", str(broken), "--text", text_file, *SMALL), "model.safetensors")
