"""Compiles the C++ kernels on the machine that will run them, once, and opens the result.

The wheel carries source, not binaries: one file that is compiled for exactly this processor is faster than a wheel for
the oldest one, and takes a few seconds. Without a compiler nothing breaks: :func:`library` raises
:class:`Unavailable`, and dispatch goes on to the blocked PyTorch code and says so.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["Unavailable", "library"]

HERE = Path(__file__).parent
SOURCES = ("kernel.cpp", "backward.h", "read.h", "forward.h", "maps.h", "common.h", "vec.h")
FLAGS = (
    "-O2",
    "-std=c++17",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fPIC",
    "-pthread",
)
log = logging.getLogger("sinkgate")


class Unavailable(Exception):
    """Why the kernels cannot be had here; the message is for people."""


def compilers() -> list[list[str]]:
    """C++ compilers to try, in this order: ``$CXX``, the usual names, the one in the ``ziglang`` package."""
    found = [os.environ["CXX"].split()] if os.environ.get("CXX") else []
    found += [[path] for name in ("c++", "g++", "clang++") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang") is not None:
        found.append([sys.executable, "-m", "ziglang", "c++"])
    return found


def processor() -> str:
    """What the compiled code depends on: a home directory may be shared by different machines."""
    info = Path("/proc/cpuinfo")
    flags = ""
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith(("flags", "Features", "model name")):
                flags += line
            if not line:
                break
    return f"{sys.platform} {platform.machine()} {platform.processor()} {flags}"


def cache() -> Path:
    """Where compiled kernels are kept: ``$SINKGATE_CACHE``, else the user's cache directory."""
    if os.environ.get("SINKGATE_CACHE"):
        return Path(os.environ["SINKGATE_CACHE"]) / "native"
    import platformdirs

    return Path(platformdirs.user_cache_dir("sinkgate")) / "native"


def library() -> ctypes.CDLL:
    """The kernels. Found or compiled once per process; that they cannot be had is remembered as well.

    Raises:
        Unavailable: see :func:`find`.
    """
    found = remembered()
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@functools.cache
def remembered() -> ctypes.CDLL | str:
    """The kernels, or why there are none: a compiler that fails must not be asked again by every layer."""
    try:
        return find()
    except Unavailable as reason:
        return str(reason)


def find() -> ctypes.CDLL:
    """The kernels, compiled if they are not in the cache yet.

    Raises:
        Unavailable: switched off by ``SINKGATE_NATIVE=0``, no compiler, or it failed.
    """
    if os.environ.get("SINKGATE_NATIVE") == "0":
        raise Unavailable("switched off by SINKGATE_NATIVE=0")
    if sys.platform == "win32":
        raise Unavailable("not built on Windows yet")
    digest = hashlib.sha256(f"{FLAGS}{processor()}".encode())
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    target = cache() / f"kernels-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        compile_to(target)
    try:
        return opened(target)
    except OSError as error:
        raise Unavailable(
            f"the compiled kernels cannot be opened ({error}); delete {target.parent} to compile anew"
        ) from None


def compile_to(target: Path) -> None:
    """Compile beside the target and move it there, so that a broken build or a second process leaves no half file."""
    choices = compilers()
    if not choices:
        raise Unavailable("no C++ compiler was found (install g++ or clang, or the ziglang package)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".build-", dir=target.parent)
    except OSError as error:
        raise Unavailable(f"the cache directory {target.parent} cannot be written ({error})") from None
    failures = []
    try:
        for compiler in choices:
            for openmp in (True, False):
                try:
                    half = compiled(compiler, Path(folder), openmp)
                    opened(half)
                except OSError as error:
                    failures.append(f"{compiler[-1]}: {error}")
                    continue
                half.replace(target)
                return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise Unavailable("the C++ kernels did not compile (" + "; ".join(failures) + ")")


def compiled(compiler: list[str], folder: Path, openmp: bool) -> Path:
    """One attempt. With OpenMP the library is linked without a runtime of its own: it finds torch's, whose threads it
    shares; where there is none to be found it cannot be opened, and plain threads are the next attempt.

    Raises:
        OSError: the compiler cannot be run or failed.
    """
    unit, half = folder / "kernels.o", folder / f"kernels-{openmp}.so"
    steps = [
        [
            *compiler,
            *FLAGS,
            native_flag(),
            *(["-fopenmp"] if openmp else []),
            "-c",
            str(HERE / "kernel.cpp"),
            "-o",
            str(unit),
        ],
        [*compiler, "-shared", "-pthread", str(unit), "-o", str(half)],
    ]
    for command in steps:
        log.info("compiling the CPU kernels, once: %s", " ".join(command))
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        except subprocess.TimeoutExpired as error:
            raise OSError(str(error)) from None
        if done.returncode:
            lines = done.stderr.splitlines()
            raise OSError(next((line for line in lines if "error" in line), lines[0] if lines else "failed"))
    return half


def native_flag() -> str:
    """The flag that asks for this very processor."""
    return "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def opened(path: Path) -> ctypes.CDLL:
    """Load a compiled file; OSError if it is not ours or of another layout."""
    from sinkgate.ops.native.call import Call

    found = ctypes.CDLL(str(path))
    if found.sinkgate_abi() != ctypes.sizeof(Call):
        raise OSError("its layout differs from this version's")
    return found
