"""``sinkgate kv``: the figures through the command, and one clear line for what it cannot read."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.test_bad_input import one_line
from sinkgate.cache import shape, sizes
from sinkgate.cli import kv
from sinkgate.hf import fetch

Run = Callable[..., Any]

KIB, MIB, GIB = 2**10, 2**20, 2**30
HYBRID = "--layers 16 --heads 24 --kv-heads 4 --head-dim 256 --linear-layers 48 --linear-heads 48 --linear-k-dim 128"
LATENT = "--heads 128 --head-dim 192 --v-dim 128 --latent 512 --rotary 64"
SMALL = "--layers 2 --heads 4 --head-dim 8 --context 1k"


def rows(run: Run, flags: str) -> dict[str, dict[str, Any]]:
    done = run("kv", *flags.split(), "--json")
    assert done.code == 0, done.err
    assert done.err == ""
    return {row["name"]: row for row in json.loads(done.out)["rows"]}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    def write(**numbers: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps(numbers), encoding="utf-8")
        return str(tmp_path)

    return write


@pytest.mark.parametrize("context", ["262144", "256k", "2**18"])
def test_figures_of_the_hybrid(run: Run, context: str) -> None:
    found = rows(run, f"{HYBRID} --context {context}")
    assert (found["MHA"]["token_bytes"], found["MHA"]["cache_bytes"]) == (393_216, 96 * GIB)
    assert (found["GQA-4"]["token_bytes"], found["GQA-4"]["cache_bytes"]) == (64 * KIB, 16 * GIB)
    assert (found["MQA"]["token_bytes"], found["MQA"]["cache_bytes"]) == (16 * KIB, 4 * GIB)
    assert found["this model"]["state_bytes"] == 144 * MIB
    assert found["this model"]["total_bytes"] == 16 * GIB + 144 * MIB
    assert (found["sinks+recent"]["token_bytes"], found["sinks+recent"]["cache_bytes"]) == (0, 8.25 * MIB)


def test_figures_of_deepseek(run: Run) -> None:
    grouped = rows(run, "--layers 95 --heads 64 --kv-heads 8 --head-dim 128 --context 1m")
    assert grouped["this model"]["token_bytes"] == grouped["GQA-8"]["token_bytes"] == 389_120
    assert grouped["MHA"]["token_bytes"] == 3_112_960
    assert grouped["this model"]["total_bytes"] == 380 * GIB
    latent = {n: rows(run, f"--layers {n} {LATENT} --context 2**20")["this model"] for n in (60, 61, 78)}
    assert {n: row["token_bytes"] for n, row in latent.items()} == {60: 69_120, 61: 70_272, 78: 89_856}
    assert latent[78]["total_bytes"] == 87.75 * GIB
    assert round(100 * (latent[60]["token_bytes"] / grouped["this model"]["token_bytes"] - 1), 1) == -82.2


def test_figures_from_configs(run: Run, config: Callable[..., str]) -> None:
    hybrid = config(
        text_config={
            "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
            "linear_num_value_heads": 48, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
            "max_position_embeddings": 262_144,
        }
    )  # fmt: skip
    found = rows(run, hybrid)
    assert [found[name]["cache_bytes"] for name in ("MHA", "GQA-4", "MQA")] == [96 * GIB, 16 * GIB, 4 * GIB]
    convolutions = 48 * 4 * (2 * 16 * 128 + 48 * 128) * 2
    assert found["this model"]["state_bytes"] == 144 * MIB + convolutions
    v3 = config(
        num_hidden_layers=61, num_attention_heads=128, num_key_value_heads=128, hidden_size=7168, kv_lora_rank=512,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
    )  # fmt: skip
    assert rows(run, f"{v3}/config.json --context 1m")["this model"]["token_bytes"] == 70_272


def test_what_the_flags_change(run: Run) -> None:
    base = rows(run, SMALL)
    assert rows(run, f"{SMALL} --batch 3")["MHA"]["total_bytes"] == 3 * base["MHA"]["total_bytes"]
    found = rows(run, f"{SMALL} --sinks 1 --recent 9 --window 50 --share 2 --top-k 7 --retrieval 0.25 --bits 32 4 3")
    token = 2 * 4 * 16 * 4  # 32 bits
    assert found["sinks+recent"]["cache_bytes"] == 10 * token
    assert found["window 50"]["cache_bytes"] == 50 * token
    assert found["2 layers share"]["cache_bytes"] == 512 * token
    assert found["top-7 reads"]["read_bytes"] == 7 * token
    assert found["top-7 reads"]["cache_bytes"] == 1024 * token
    assert found["streaming heads"]["cache_bytes"] == (1024 + 3 * 10) * token // 4
    assert [name for name in found if name.endswith("bits")] == ["4 bits", "3 bits"]
    assert rows(run, f"{SMALL} --latent 32 --rotary 8 --kv-heads 4")["MLA"]["token_bytes"] == 2 * 2 * 40
    grouped = rows(run, f"{SMALL} --residual 0 --group 8 --bits 4")["4 bits"]
    assert grouped["token_bytes"] == 2 * 4 * 16 * (4 + 32 / 8) / 8
    assert grouped["cache_bytes"] == 1024 * grouped["token_bytes"]
    half = rows(run, f"{SMALL} --linear-layers 1 --linear-v-dim 4 --state-bits 16 --sliding-layers 1 --window 5")
    assert half["this model"]["state_bytes"] == 4 * 8 * 4 * 2
    assert half["this model"]["cache_bytes"] == (1024 + 5) * 4 * 16 * 2


def test_text_and_json_say_the_same(run: Run, config: Callable[..., str]) -> None:
    path = config(num_hidden_layers=3, num_attention_heads=8, hidden_size=512, num_key_value_heads=2, n_positions=4096)
    done = run("kv", path)
    assert done.code == 0, done.err
    found = json.loads(run("kv", path, "--json").out)
    assert found["model"] == path
    assert found["options"]["context"] == 4096
    assert found["layers"] == [{"count": 3, "kind": "full", "heads": 8, "kv_heads": 2, "head_dim": 64, "v_dim": 64}]
    assert found["left_out"] == {}
    lines = done.out.splitlines()
    assert lines[1] == "  3 full layers: 8 heads, 2 key-value, of size 64"
    assert lines[2].startswith("one sequence of 4,096 tokens, 16 bits a number")
    for row in found["rows"]:
        line = next(line for line in lines if line.startswith(f"{row['name']} "))
        size, read = (sizes.human(row[key]) for key in ("total_bytes", "read_bytes"))
        assert line[18:31].strip() == sizes.human(row["token_bytes"])
        assert (line[31:43].strip(), line[43:56].strip()) == (size, read)
        assert line[56:67].strip() == f"{row['of_model']:.3g}×"
    said = " ".join(done.out.split())
    for words in ("saves reads, not bytes", "saves bytes, not reads", "keys per channel (32 tokens a group)"):
        assert words in said
    latent = run("kv", "--layers", "2", *LATENT.split(), "--context", "10")
    assert "No row for streaming heads: a latent is one for all heads." in latent.out
    assert "144 MiB of what this model keeps are states" in run("kv", *HYBRID.split(), "--context", "10").out


def test_known_models(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path))
    one_line(
        run("kv", "smollm2-135m"), "smollm2-135m is not on this machine", "sinkgate diagnose smollm2-135m", "--layers"
    )
    assert list(tmp_path.iterdir()) == []  # nothing was fetched

    def convert(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text('{"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16}')

    monkeypatch.setattr(fetch, "_fetch_gguf", lambda model, work: work / "model.gguf")
    fetch.fetch_known(fetch.known_models()["smollm2-135m"], convert)
    assert rows(run, "smollm2-135m")["this model"]["total_bytes"] == 16 * 2 * 8 * 2


def test_what_cannot_be_read(run: Run, tmp_path: Path) -> None:
    one_line(run("kv", "nothing", "--context", "1k"), "no file or folder 'nothing'", "smollm2-135m", "--layers")
    one_line(run("kv", str(tmp_path), "--context", "1k"), "config.json", "No such file")
    one_line(run("kv", "x" * 5000), "File name too long")
    for name, data, said in (
        ("text.json", b"hello", "is not JSON"),
        ("bytes.json", bytes(range(200, 256)), "is not JSON"),
        ("deep.json", b"[" * 200_000, "is not JSON"),
        ("list.json", b"[1, 2]", "got list"),
        ("empty.json", b"{}", "looked for num_hidden_layers"),
        ("zero.json", b'{"n_layer": 0}', "n_layer in the config must be a whole number from 1"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        one_line(run("kv", str(path), "--context", "1k"), name, said)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", "--layers, --heads, --head-dim missing"),
        ("--context 1k", "--layers, --heads, --head-dim missing"),
        ("--layers 2 --heads 4 --context 1k", "--head-dim missing"),
        ("--layers 2 --heads 4 --head-dim 8", "give --context"),
        (f"{SMALL} --context many", "context must be a number such as 262144, 256k, 1m or 2**20, got 'many'"),
        (f"{SMALL} --context 0", "context must be from 1"),
        (f"{SMALL} --context -5", "context must be a number"),
        (f"{SMALL} --layers 0", "layers must be a whole number from 1"),
        (f"{SMALL} --heads -4", "heads must be a whole number from 1 to 2**48, got -4"),
        (f"{SMALL} --head-dim 0", "head_dim"),
        (f"{SMALL} --kv-heads 3", "4 heads cannot share 3 key-value heads"),
        (f"{SMALL} --v-dim 0", "v_dim"),
        (f"{SMALL} --sliding-layers 3", "sliding_layers is 3, of 2 layers"),
        (f"{SMALL} --linear-layers -1", "linear_layers"),
        (f"{SMALL} --latent 0", "latent"),
        (f"{SMALL} --window -1", "window"),
        (f"{SMALL} --rotary 0", "rotary"),
        (f"{SMALL} --bits 5", "bits must be of 2, 3, 4, 8, 16, 32, got '5'"),
        (f"{SMALL} --bits four", "got 'four'"),
        (f"{SMALL} --state-bits 4", "state_bits"),
        (f"{SMALL} --batch 0", "batch"),
        (f"{SMALL} --retrieval 2", "retrieval"),
        (f"{SMALL} --share 0", "share"),
        (f"config.json {SMALL}", "a config or the numbers of a model, not both (--layers, --heads, --head-dim)"),
    ],
)  # fmt: skip
def test_bad_flags(run: Run, flags: str, said: str) -> None:
    one_line(run("kv", *flags.split()), said)


def test_the_verb_and_what_it_stands_on_import_no_torch() -> None:
    allowed = {
        "sinkgate.cache.shape",
        "sinkgate.cache.schemes",
        "sinkgate.cache.sizes",
        "sinkgate.errors",
        "sinkgate.hf.fetch",
    }
    for module in (kv, shape, sizes):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(n in allowed or n.split(".")[0] in sys.stdlib_module_names for n in names), names


def test_it_runs_without_torch() -> None:
    code = (
        "import sys; from sinkgate.cli import main\n"
        f"assert main(['kv', *{SMALL.split()!r}, '--json']) == 0\n"
        "loaded = {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules); assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
