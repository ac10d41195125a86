"""How the compiled kernels come to be there, and what happens where they cannot; reading with them."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sinkgate as sg
from sinkgate.masks import Visibility
from sinkgate.ops.native import build
from sinkgate.ops.native.call import Call
from sinkgate.probe import rows
from sinkgate.site import Site
from weightings import able


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SINKGATE_CACHE", str(tmp_path))
    return tmp_path / "native"


def fresh() -> ctypes.CDLL:
    return build.find()


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKGATE_NATIVE", "0")
    with pytest.raises(build.Unavailable, match="switched off by SINKGATE_NATIVE=0"):
        fresh()


def test_no_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compilers", list)
    with pytest.raises(
        build.Unavailable, match=r"no C\+\+ compiler was found \(install g\+\+ or clang, or the ziglang"
    ):
        fresh()


def test_what_cannot_be_had_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fails() -> ctypes.CDLL:
        asked.append(1)
        raise build.Unavailable("it fails")

    monkeypatch.setattr(build, "find", fails)
    build.remembered.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(build.Unavailable, match="it fails"):
                build.library()
    finally:
        build.remembered.cache_clear()
    assert len(asked) == 1


def test_a_compiler_that_fails_leaves_nothing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compilers", lambda: [["false"], ["no-such-compiler"]])
    with pytest.raises(build.Unavailable, match=r"did not compile \(false: failed; false: failed; no-such-compiler: "):
        fresh()
    assert list(empty_cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    monkeypatch.setenv("SINKGATE_CACHE", str(file))
    monkeypatch.setattr(build, "compilers", lambda: [["true"]])
    with pytest.raises(build.Unavailable, match="cannot be written"):
        fresh()


@pytest.mark.slow
def test_compiled_once_and_opened_later(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    able("native", torch.float32, sg.Softmax())
    found = fresh()
    assert found.sinkgate_abi() == ctypes.sizeof(Call)
    assert [p.suffix for p in empty_cache.iterdir()] == [".so"]
    monkeypatch.setattr(build, "compilers", list)  # not needed any more
    fresh()


def test_a_damaged_file_says_what_to_do(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compile_to", lambda target: (target.parent.mkdir(), target.write_bytes(b"damaged")))
    with pytest.raises(build.Unavailable, match=r"cannot be opened .* delete .* to compile anew"):
        fresh()


def test_without_kernels_everything_still_works() -> None:
    code = (
        "import torch, sinkgate as sg; q = torch.randn(1, 2, 40, 8)\n"
        "for name in ('softmax', 'relu', 'entmax', 'softpick'):\n"
        "    choice = sg.explain(q, q, q, weighting=name)\n"
        "    assert choice.impl in ('stock', 'blocked') and 'SINKGATE_NATIVE=0' in choice.reasons['native'], choice\n"
        "    a, b = (sg.attention(q, q, q, weighting=name, impl=i) for i in ('auto', 'reference'))\n"
        "    assert (a - b).abs().max() < 1e-5\n"
        "assert sg.weights(torch.randn(3, 5), 'sparsemax').sum(-1).sub(1).abs().max() < 1e-6\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "SINKGATE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ---- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize(
    ("b", "h", "hkv", "t", "s", "d", "window"),
    [(1, 9, 3, 400, 400, 64, None), (2, 4, 2, 333, 333, 40, 100), (1, 2, 1, 150, 210, 17, None), (1, 1, 1, 3, 3, 8, None),
     (1, 2, 2, 200, 200, 16, 1), (1, 2, 1, 1, 70, 16, 20), (1, 2, 2, 700, 700, 16, 300)],
)  # fmt: skip
@pytest.mark.parametrize("full", [True, False])
def test_reading_with_the_kernels_equals_reading_in_torch(
    b: int, h: int, hkv: int, t: int, s: int, d: int, window: int | None, full: bool, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    able("native", dtype, sg.Softmax())
    g = torch.Generator().manual_seed(t)
    q, k = (torch.randn(b, n, m, d, generator=g).to(dtype) for n, m in ((h, t), (hkv, s)))
    k[:, :, 0] *= 3
    seen = Visibility(t, s, window=window)
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k.double().repeat_interleave(h // hkv, 1)) * d**-0.5
    lse = scores.masked_fill(~seen.visible(0, t, 0, s), -math.inf).logsumexp(-1).float()
    site = Site(layer=0, q=q, k=k, v=k, out=q, visibility=seen, lse=lse)
    fast = rows.read_rows(site, local_window=64, full=full)

    def gone() -> None:
        raise build.Unavailable("left out")

    monkeypatch.setattr(rows, "library", gone)
    slow = rows.read_rows(site, local_window=64, full=full)
    assert rows.reader() == "torch (left out)"
    for name in ("log_first", "rest", "first_keys", "columns", "entropy", "local", "previous", "own"):
        a, z = getattr(fast, name), getattr(slow, name)
        if z is None:
            assert a is None
            continue
        if name == "log_first":  # something below −1e29 where the first key is not seen
            assert torch.equal(a > -1e29, z > -1e29)
            a, z = a.clamp_min(-1e29), z.clamp_min(-1e29)
        size = float(torch.where(z > -1e29, z, 0).abs().max().clamp_min(1.0))
        torch.testing.assert_close(a, z, rtol=2e-5, atol=2e-5 * size, msg=name)


def test_plain_layers_are_read_by_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    able("native", torch.float32, sg.Softmax())
    x = torch.randn(1, 1, 8, 4)
    lse = torch.zeros(1, 1, 8)

    def read(site: Site) -> bool:
        return rows._compiled(site, 64, True) is not None

    assert read(Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(8, 8), lse=lse))
    assert not read(Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(8, 8)))
    assert not read(Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(8, 8, causal=False), lse=lse))
    assert not read(Site(layer=0, q=x, k=x, v=x, out=x, visibility=Visibility(8, 8), lse=lse, softcap=1.0))
    assert not read(Site(layer=0, q=x.double(), k=x.double(), v=x, out=x, visibility=Visibility(8, 8), lse=lse))
