"""Loading: what comes out is what was saved, and everything that can be wrong is one line that says so."""

from __future__ import annotations

import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AttentionInterface,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    ViTConfig,
)
from transformers.utils import logging as hf_logging

from sinkgate.errors import ArgumentError, ModelError, SinkgateError, UnsupportedError
from sinkgate.hf import fetch
from sinkgate.hf.load import Loaded, known_models, load

VOCAB = 64


def llama(**changes: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": VOCAB}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "bos_token_id": 1, "eos_token_id": 2, **changes}))


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound directory; never written to after this."""
    folder = tmp_path_factory.mktemp("saved")
    llama().save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "hello": 3, "world": 4}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    if "slow" not in request.keywords:  # the slow tests use the real cache
        monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the Hub."""

    def answers(self: object, name: str, timeout: float) -> None:
        validate_repo_id(name)

    def unreachable(name: str, **_: object) -> str:
        raise LocalEntryNotFoundError("no network in tests")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answers)
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)


def refusal(kind: type[SinkgateError], *words: str, name: object, **options: object) -> str:
    """The message of the refusal to load ``name``: of the right kind, on one line, with the words."""
    with pytest.raises(SinkgateError) as caught:
        load(name, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    assert len(message) < 700
    for word in words:
        assert word in message, message
    return message


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# --------------------------------------------------------------------------------------- what comes out


def test_directory_round_trip(folder: Path) -> None:
    loaded = load(str(folder))
    assert isinstance(loaded, Loaded)
    assert not loaded.model.training
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    for name, value in llama().state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value), name
    assert loaded.tokenizer("hello world")["input_ids"] == [3, 4]
    assert loaded.source == {
        "name": str(folder),
        "kind": "directory",
        "format": "safetensors",
        "sha256": None,
        "notice": None,
    }


def test_accepts_a_path_and_a_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(folder).source["name"] == str(folder)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load("~/model").source["kind"] == "directory"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", torch.bfloat16),
        ("float32", torch.float32),
        ("fp32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("bf16", torch.bfloat16),
        ("float16", torch.float16),
        ("fp16", torch.float16),
    ],
)
def test_dtype(saved: Path, tmp_path: Path, name: str, expected: torch.dtype) -> None:
    shutil.copytree(saved, tmp_path / "half")
    llama().to(torch.bfloat16).save_pretrained(tmp_path / "half")
    model = load(tmp_path / "half", dtype=name).model
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_device_auto(saved: Path) -> None:
    wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if not torch.backends.mps.is_available():
        assert load(saved, device="auto").model.device.type == wanted


def test_attn_implementation(saved: Path) -> None:
    assert load(saved, attn_implementation="eager").model.config._attn_implementation == "eager"
    assert load(saved).model.config._attn_implementation == "sdpa"
    assert "sdpa" in AttentionInterface().valid_keys()


def test_sharded(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors").unlink()
    llama().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    model = load(tmp_path / "shards").model
    for name, value in llama().state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_tied_weights_are_not_missing(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "tied")
    llama(tie_word_embeddings=True).save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    model = load(tmp_path / "tied").model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_nothing_is_printed_and_no_state_is_left(
    saved: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook(bar: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return bar(*args, **kwargs)

    def state() -> list[object]:
        inner = hf_logging.set_tqdm_hook(hook)
        hf_logging.set_tqdm_hook(inner)
        rng = torch.random.get_rng_state().sum().item()
        bars = hf_logging.is_progress_bar_enabled()
        return [inner, hf_logging.get_verbosity(), bars, torch.get_default_dtype(), rng, dict(os.environ)]

    hf_logging.set_tqdm_hook(hook)
    old = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.INFO)
    try:
        before = state()
        load(saved)
        refusal(ModelError, name=saved / "config.json")
        assert state() == before
    finally:
        hf_logging.set_verbosity(old)
        hf_logging.set_tqdm_hook(None)
    assert capfd.readouterr() == ("", "")


def test_nothing_is_logged(folder: Path) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)
    old = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.INFO)
    try:
        edit_json(folder / "config.json", bos_token_id=1000, num_hidden_layers=3)
        refusal(ModelError, "lacks 9 weights", name=folder)  # transformers logs a table of these
    finally:
        hf_logging.set_verbosity(old)
        logging.getLogger("transformers").removeHandler(handler)
    assert records == []


def test_unused_weights_are_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.extra.weight": torch.ones(2)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match=r"1 weights .* not used .*model\.extra\.weight"):
        load(folder)


# ------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_empty_name(name: object) -> None:
    refusal(ArgumentError, "model name", "smollm2-135m", name=name)


@pytest.mark.parametrize("dtype", ["int8", "", "float64", None, torch.float32])
def test_bad_dtype(saved: Path, dtype: object) -> None:
    refusal(ArgumentError, "dtype", "bfloat16", "fp16", repr(dtype), name=saved, dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "", "meta", "cuda:x", None])
def test_bad_device(saved: Path, device: object) -> None:
    refusal(ArgumentError, "device", "cpu, cuda, cuda:N, mps or auto", repr(device), name=saved, device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:99", "mps"])
def test_absent_device(saved: Path, device: str) -> None:
    there = torch.backends.mps.is_available() if device == "mps" else torch.cuda.is_available()
    if there and device != "cuda:99":
        pytest.skip(f"{device} is there")
    refusal(ArgumentError, "not there", repr(device), "device='cpu'", name=saved, device=device)


def test_bad_attn_implementation(saved: Path) -> None:
    refusal(ArgumentError, "attn_implementation", "eager", "'flush'", name=saved, attn_implementation="flush")


# ------------------------------------------------------------------------------------- names for nothing


@pytest.mark.parametrize(
    "name", ["nobody/nothing", "nothing", "./nothing", "/no/such/dir", "a/b/c", "bad name!", "x" * 5000, "a\nb"]
)
def test_unknown_name(name: str) -> None:
    start = time.monotonic()
    refusal(ModelError, "smollm2-135m", "gemma3-270m", "directory", ".gguf", "Hub", name=name)
    assert time.monotonic() - start < 2


def test_near_miss() -> None:
    assert list(known_models()) == ["smollm2-135m", "gemma3-270m"]
    refusal(ModelError, "did you mean 'smollm2-135m'?", name="SmolLM2-135")
    refusal(ModelError, "did you mean 'gemma3-270m'?", name="gemma-270m")
    assert "did you mean" not in refusal(ModelError, name="gpt2")


# ------------------------------------------------------------------------------------------ directories


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refusal(ModelError, "no config.json", "save_pretrained", name=folder)
    (folder / "x.gguf").write_bytes(b"GGUF")
    refusal(ModelError, "no config.json", "x.gguf", name=folder)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\udcff", "[" * 100_000])
def test_corrupt_config(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    refusal(ModelError, "config.json", "JSON", name=folder)


def test_unusable_config(folder: Path) -> None:
    edit_json(folder / "config.json", hidden_size="wide")
    refusal(ModelError, "config.json", "cannot be used", "hidden_size", name=folder)
    edit_json(folder / "config.json", hidden_size=32, model_type="none-such")
    refusal(ModelError, "config.json", "cannot be used", "none-such", name=folder)


def test_config_that_contradicts_itself(folder: Path) -> None:
    edit_json(folder / "config.json", num_attention_heads=0)
    refusal(ModelError, str(folder), name=folder)


@pytest.mark.parametrize("names", [["pytorch_model.bin"], ["weights.pt"], ["consolidated.00.pth"], ["m.ckpt"]])
def test_pickled_weights(folder: Path, names: list[str]) -> None:
    (folder / "model.safetensors").unlink()
    for name in names:
        torch.save({}, folder / name)
    refusal(ModelError, "pickled", names[0], "save_pretrained", name=folder)


def test_pickled_weights_are_not_read_beside_safetensors(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    load(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refusal(ModelError, "no weights", "model.safetensors", name=folder)


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
def test_truncated_safetensors(folder: Path, keep: int) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    refusal(ModelError, "model.safetensors", "damaged or cut short", name=folder)


def test_corrupt_safetensors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(b"\xff" * 64 + weights.read_bytes()[64:])
    refusal(ModelError, "model.safetensors", "damaged", name=folder)


def test_missing_shards(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors").unlink()
    llama().save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    shards[1].unlink()
    refusal(ModelError, f"1 of its {len(shards)} weight files", shards[1].name, name=tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    refusal(ModelError, "index.json", "damaged", name=tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors.index.json").write_text('{"weight_map"')
    refusal(ModelError, "index.json", "JSON", name=tmp_path / "shards")


def test_missing_keys(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    gone = [name for name in weights if ".layers.1." in name]
    kept = {name: value for name, value in weights.items() if name not in gone}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    message = refusal(ModelError, f"lacks {len(gone)} weights", "random", "...", name=folder)
    assert sorted(gone)[0] in message


def test_untied_head_is_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refusal(ModelError, "lacks 1 weights", "lm_head.weight", name=folder)


def test_mismatched_shapes(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=48)
    refusal(ModelError, "wrong shape", "mlp.down_proj", "(32, 64)", "(32, 48)", name=folder)


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_remote_code(folder: Path, where: str) -> None:
    edit_json(folder / where, auto_map={"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.T", None]})
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    refusal(ModelError, "auto_map", "trust_remote_code", name=folder)
    assert not (folder / "ran").exists()


def test_remote_code_that_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = str(folder.parent / "modules")  # where transformers copies the code to
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "from transformers import LlamaConfig, LlamaForCausalLM\n"
    code += "class MyConfig(LlamaConfig):\n    model_type = 'mine'\n"
    code += "class MyModel(LlamaForCausalLM):\n    config_class = MyConfig\n"
    (folder / "mine.py").write_text(code)
    auto_map = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}
    edit_json(folder / "config.json", auto_map=auto_map, model_type="mine", architectures=["MyModel"])
    assert type(load(folder, trust_remote_code=True).model).__name__ == "MyModel"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (T5Config(), "encoder-decoder"),
        (T5Config(is_encoder_decoder=False), "no causal language model"),
        (ViTConfig(), "no causal language model"),
        (BertConfig(), "is an encoder"),
    ],
)
def test_not_causal(folder: Path, config: T5Config, why: str) -> None:
    config.save_pretrained(folder)
    refusal(UnsupportedError, "not a decoder-only (causal) language model", why, name=folder)


def test_bert_as_a_decoder_and_gpt2_pass(saved: Path, tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    shutil.copytree(saved, tmp_path / "bert")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertLMHeadModel(BertConfig(**sizes, vocab_size=VOCAB, is_decoder=True)).save_pretrained(tmp_path / "bert")
    assert load(tmp_path / "bert").model.config.is_decoder
    shutil.copytree(saved, tmp_path / "gpt2")
    tiny = GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=VOCAB, bos_token_id=1, eos_token_id=2)
    GPT2LMHeadModel(tiny).save_pretrained(tmp_path / "gpt2")
    load(tmp_path / "gpt2")


def test_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refusal(ModelError, "no tokenizer", "tokenizer.json", "vocab.txt", "save_pretrained", name=folder)


@pytest.mark.parametrize("text", ["{", '{"model": 3}', "[]"])
def test_corrupt_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    refusal(ModelError, "tokenizer", str(folder), "cannot be read", name=folder)


def test_the_hub_path(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot(name: str, allow_patterns: list[str], **_: object) -> str:
        asked.append((name, "model.safetensors" in allow_patterns, "*.py" in allow_patterns))
        return str(saved)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    loaded = load("someone/tiny")
    assert loaded.source["kind"] == "hub"
    assert asked == [("someone/tiny", False, False), ("someone/tiny", True, False)]  # code is not fetched


def test_a_hub_model_is_refused_before_its_weights_are_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot(name: str, allow_patterns: list[str], **_: object) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    T5Config().save_pretrained(folder)
    refusal(UnsupportedError, "encoder-decoder", name="someone/t5")
    assert len(asked) == 1


# ------------------------------------------------------------------------------------------------- GGUF


def write_gguf(path: Path, model: LlamaForCausalLM, add_bos: bool | None, **extra: np.ndarray | int | str) -> Path:
    """A llama GGUF with a byte-level tokenizer, as llama.cpp would write it, with extra tensors and fields."""
    import gguf
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    tokens = ["<unk>", "<s>", "</s>", *bytes_to_unicode().values(), "he"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        data = value.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:  # llama.cpp keeps the two halves of a rotary pair side by side
                data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        if "mlp" in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name, gguf.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, np.ascontiguousarray(data))
    for name, value in extra.items():
        name = name.replace("__", ".")
        if isinstance(value, np.ndarray):
            writer.add_tensor(name, value)
        else:
            (writer.add_uint32 if isinstance(value, int) else writer.add_string)(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def source_model() -> LlamaForCausalLM:
    return llama(vocab_size=260)


@pytest.fixture(scope="session")
def good_gguf(tmp_path_factory: pytest.TempPathFactory, source_model: LlamaForCausalLM) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", source_model, add_bos=True)


def check_gguf_weights(model: LlamaForCausalLM, source: LlamaForCausalLM) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType.Q8_0
    for name, value in source.state_dict().items():
        if "mlp" in name:
            value = torch.from_numpy(gguf.dequantize(gguf.quantize(value.numpy(), kind), kind))
        assert torch.equal(model.state_dict()[name], value), name


@pytest.mark.parametrize("kept", [True, False])
def test_gguf(
    good_gguf: Path,
    source_model: LlamaForCausalLM,
    cache: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kept: bool,
) -> None:
    if not kept:
        monkeypatch.setattr("sinkgate.hf.load.CONVERT_BELOW", 0)
    loaded = load(good_gguf)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ([f"sinkgate: converting tiny.gguf once, into {cache}"] if kept else [])
    assert cache.exists() is kept
    check_gguf_weights(loaded.model, source_model)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert not loaded.model.training
    assert loaded.source["kind"] == loaded.source["format"] == "gguf"
    assert (loaded.source["sha256"] == fetch.sha256_of(good_gguf)) is kept
    assert loaded.model.config.num_key_value_heads == 2
    load(good_gguf)
    assert capfd.readouterr() == ("", "")
    loaded.model.save_pretrained(cache.parent / "again")  # no mark of the packed file is left on it
    assert load(good_gguf, dtype="bf16").model.dtype == torch.bfloat16


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_gguf_bos_is_what_the_file_says(
    tmp_path: Path,
    source_model: LlamaForCausalLM,
    add_bos: bool | None,
    kept: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not kept:
        monkeypatch.setattr("sinkgate.hf.load.CONVERT_BELOW", 0)
    path = write_gguf(tmp_path / "bos.gguf", source_model, add_bos)
    tokenizer = load(path).tokenizer
    ids = tokenizer("he")["input_ids"]
    assert (ids[0] == 1) is bool(add_bos)
    assert ids[-1] == 259  # "he" is one token
    assert tokenizer("he", add_special_tokens=False)["input_ids"] == [259]


def test_other_files_beside_a_gguf_are_not_taken_for_its_own(folder: Path, good_gguf: Path) -> None:
    shutil.copy(good_gguf, folder / "tiny.gguf")
    (folder / "config.json").write_text("{")
    loaded = load(folder / "tiny.gguf")
    assert loaded.model.config.vocab_size == 260
    assert loaded.tokenizer("he", add_special_tokens=False)["input_ids"] == [259]


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"rope_freqs__weight": np.ones(4, dtype=np.float32)}, "rotary frequencies (rope_freqs.weight)"),
        ({"llama__rope__scaling__type": "yarn"}, "rotary frequencies (llama.rope.scaling.type)"),
        ({"llama__attention__sliding_window": 16}, "attention window of 16"),
    ],
)
def test_what_transformers_would_drop_from_a_gguf(
    tmp_path: Path, source_model: LlamaForCausalLM, extra: dict[str, np.ndarray | int | str], word: str
) -> None:
    path = write_gguf(tmp_path / "more.gguf", source_model, True, **extra)
    refusal(UnsupportedError, "more.gguf", word, "transformers drops", "safetensors", name=path)


def test_a_gguf_that_says_it_scales_nothing(tmp_path: Path, source_model: LlamaForCausalLM) -> None:
    extra = {"llama__rope__scaling__type": "none", "llama__attention__sliding_window": 0}
    load(write_gguf(tmp_path / "plain.gguf", source_model, True, **extra))


@pytest.mark.parametrize("name", ["notes.txt", "fake.gguf", "empty.gguf"])
def test_not_a_gguf(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"" if "empty" in name else b"PK\x03\x04\n\n....")
    refusal(ModelError, name, "not a GGUF file", name=tmp_path / name)


def test_absent_gguf(tmp_path: Path) -> None:
    refusal(ModelError, "cannot read", "No such file", name=tmp_path / "gone.gguf")


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 0.999])
def test_truncated_gguf(
    good_gguf: Path, tmp_path: Path, cache: Path, share: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr("sinkgate.hf.load.CONVERT_BELOW", 0)
    whole = good_gguf.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: max(4, int(share * len(whole)))])
    refusal(ModelError, "cut.gguf", "damaged or cut short", name=tmp_path / "cut.gguf")
    assert not list(cache.glob("models/gguf-*"))
    assert not list(cache.glob("models/.*.part-*"))


def test_corrupt_gguf(good_gguf: Path, tmp_path: Path) -> None:
    """Whatever byte of the header is changed, the file loads or is refused in one line."""
    whole = bytearray(good_gguf.read_bytes())
    rng = np.random.default_rng(0)
    messages = []
    for position in [4, 8, 15, 16, 23, *rng.integers(24, 1500, 25)]:
        bad = bytearray(whole)
        bad[position] ^= 0xFF
        (tmp_path / "bad.gguf").write_bytes(bad)
        try:
            load(tmp_path / "bad.gguf")
        except SinkgateError as err:
            messages.append(str(err))
    assert len(messages) > 10
    assert all("bad.gguf" in message and "\n" not in message for message in messages)


def test_gguf_with_a_weight_that_is_not_finite(good_gguf: Path, source_model: LlamaForCausalLM, tmp_path: Path) -> None:
    import gguf

    weight = source_model.state_dict()["model.layers.0.mlp.up_proj.weight"].numpy()
    block = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0).tobytes()[:34]  # a scale and 32 integers
    whole = good_gguf.read_bytes()
    assert whole.count(block) == 1
    infinite = np.float16(np.inf).tobytes() + b"\0" + block[3:]
    (tmp_path / "inf.gguf").write_bytes(whole.replace(block, infinite))
    refusal(ModelError, "damaged", "layers.0.mlp.up_proj.weight is not finite", name=tmp_path / "inf.gguf")


def test_gguf_that_names_millions_of_blocks(good_gguf: Path, tmp_path: Path) -> None:
    count = b"llama.block_count" + struct.pack("<II", 4, 2)
    assert count in good_gguf.read_bytes()
    more = count[:-4] + struct.pack("<I", 1 << 24)
    (tmp_path / "many.gguf").write_bytes(good_gguf.read_bytes().replace(count, more))
    refusal(ModelError, "damaged", "more blocks than the 2 it has", name=tmp_path / "many.gguf")


def test_gguf_of_an_unknown_architecture(tmp_path: Path, good_gguf: Path) -> None:
    whole = good_gguf.read_bytes()
    key = b"general.architecture" + struct.pack("<IQ", 8, 5)
    assert key + b"llama" in whole
    (tmp_path / "odd.gguf").write_bytes(whole.replace(key + b"llama", key + b"odder"))
    refusal(ModelError, "odd.gguf", "odder", name=tmp_path / "odd.gguf")


# ------------------------------------------------------------------------------------- the real models


@pytest.mark.slow
def test_smollm2() -> None:
    first = load("smollm2-135m")  # fetched here if need be
    start = time.monotonic()
    loaded = load("smollm2-135m")
    assert time.monotonic() - start < 10  # about 1 s; the bound leaves room for a busy machine
    assert first.source == loaded.source
    assert loaded.source["kind"] == "known"
    assert loaded.tokenizer("hello")["input_ids"] == [28120]
    assert loaded.model.config.num_hidden_layers == 30
    text = (
        "The history of the lighthouse goes back a very long way. For centuries sailors relied on fires that "
        "were lit on hilltops near the coast, and the keepers who tended them had to climb up every evening."
    )
    ids = loaded.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert 15 < loaded.model(ids, labels=ids).loss.exp() < 60


@pytest.mark.slow
def test_a_second_start_needs_no_network_and_says_nothing() -> None:
    load("smollm2-135m")
    code = "from sinkgate.hf.load import load; load('smollm2-135m')"
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9", "HF_ENDPOINT": "http://127.0.0.1:9", "PATH": ""}
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, **nowhere, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
