"""The Triton kernels against the reference, in Triton's interpreter, and compiled for cards that are not here.

Whether ``@triton.jit`` interprets is decided when the kernels are imported, so both runs have a process of their own:
this file as a script, ``python test_triton.py interpreted`` or ``compiled``, prints one JSON line per case.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_conformance import compare, tensors
from torch import Tensor

import sinkgate as sg
from sinkgate.ops import external
from sinkgate.ops.attention import attention, prepared
from sinkgate.ops.request import Request
from sinkgate.ops.select import IMPLEMENTATIONS
from sinkgate.ops.triton import ops
from weightings import cast

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
H = 2
FAMILIES: dict[str, Any] = {
    "softmax": sg.Softmax(),
    "sink": sg.SinkSoftmax(torch.tensor([-0.5, 1.5], dtype=torch.float64)),
    "softmax1": sg.Softmax1(),
    "sigmoid": sg.Sigmoid(),
    "sigmoid(n=64)": sg.Sigmoid(n=64),
    "sigmoid(bias)": sg.Sigmoid(bias=torch.tensor([-1.0, -2.5], dtype=torch.float64)),
    "relu": sg.Relu(),
    "relu(raw)": sg.Relu(normalize=False),
    "relu(squared)": sg.Relu(squared=True),
    "relu(n=100)": sg.Relu(n=100),
    "softpick": sg.Softpick(),
}
FOUR = ("sink", "sigmoid(bias)", "relu", "softpick")


def made(name: str) -> Any:
    """A weighting in float32."""
    return cast(FAMILIES[name], F32)


# ---- cases: each raises where something is not as it has to be -----------------------------------------------------


def structure(kind: str, b: int, t: int, s: int) -> dict[str, Any]:
    """Arguments of attention that make one kind of visibility."""
    g = torch.Generator().manual_seed(3)
    if kind == "window":
        return {"window": 20}
    if kind == "first":
        return {"window": 9, "keep_first": 3}
    if kind == "documents":
        return {"cu_seqlens": torch.tensor([0, 5, 6, 36, t]), "window": 8, "keep_first": 2}
    if kind == "both ways":
        return {"causal": False, "document_ids": torch.sort(torch.randint(0, 4, (b, t), generator=g), dim=-1).values}
    if kind == "all":
        return {"causal": False}
    if kind == "softcap":
        return {"softcap": 2.0, "window": 30}
    if kind == "bool mask":
        return {"mask": torch.rand(1, H, t, s, generator=g) < 0.6}
    if kind == "padding":
        return {"mask": (torch.arange(s) >= 7)[None, None, None], "causal": True}
    if kind == "float mask":
        bias = torch.randn(b, 1, t, s, generator=g)
        return {"mask": bias.masked_fill(torch.rand(bias.shape, generator=g) < 0.3, -math.inf), "softcap": 4.0}
    if kind == "open":
        gate = (torch.rand(b, H, t, generator=g) < 0.5).double()
        gate[:, 0, :40] = 0.0  # whole blocks that are closed
        return {"gate": gate, "skip_below": 0.0}
    return {}


SHAPES = {"t<s": (7, 50), "decoding": (1, 50), "t>s": (45, 20)}


def values(name: str, dtype: torch.dtype, kind: str = "causal") -> None:
    """Output and all gradients: odd head dimensions, two query heads on one key head."""
    b = 2 if kind in ("both ways", "float mask", "open") else 1
    t, s = SHAPES.get(kind, (50, 50))
    more = {"causal": False} if kind == "t>s" else structure(kind, b, t, s)
    compare("triton", dtype, FAMILIES[name], *tensors(b, H, 1, t, s, 20, 33), **more)


def extreme(name: str) -> None:
    """Scores given exactly, d = 1 and q = 1."""
    v = torch.randn(1, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    w = made(name)
    w = w.with_tensors(**{n: x[:1] for n, x in w.tensors().items()}) if w.tensors() else w
    for row in (
        [1e4, -1e4, 0.0, 1.0, 9999.0, -3.0], [-1e4] * 6, [1e4] * 6, [0.0] * 6, [-100.0, -101, -100.5, -130, -100, -200],
        [90.0, 89.0, 0.0, -1.0, 88.0, 50.0], [1e-4, -1e-4, 2e-5, 0.0, 0.0, -3e-3],
    ):  # fmt: skip
        found = []
        for impl, dtype in (("triton", F32), ("reference", torch.float64)):
            k = torch.tensor(row, dtype=F32)[None, None, :, None]
            leaves = [x.to(dtype).requires_grad_() for x in (torch.ones(1, 1, 1, 1), k, v)]
            y = attention(*leaves, weighting=cast(w, dtype), causal=False, scale=1.0, impl=impl)
            found.append([y.detach(), *torch.autograd.grad(y.sum(), leaves)])
        for i, (a, z) in enumerate(zip(*found, strict=True)):
            assert bool(torch.isfinite(a).all()), (row, a)
            size = max(float(z.abs().max()), 1.0)
            rounded = 4e-7 * max(abs(x) for x in row) if i == 1 else 0.0  # dq: the rounding of do·o, times keys
            assert float((a.double() - z).abs().max()) < 2e-4 * size + rounded, (row, a, z)


def sinks(z: float) -> None:
    """z far above and far below every score; the mass adds up."""
    w = sg.SinkSoftmax(torch.tensor([z, 0.5], requires_grad=True))
    found = []
    for impl, dtype in (("triton", F32), ("reference", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in tensors(1, 2, 1, 9, 9, 8, 8)]
        y, mass = attention(*leaves, weighting=cast(w, dtype), impl=impl, return_mass=True)
        found.append([y, *mass, *torch.autograd.grad(y.sum(), [*leaves, w.z])])
    for a, e in zip(*found, strict=True):
        torch.testing.assert_close(a.double(), e.double(), rtol=1e-5, atol=2e-6)


def empty(name: str) -> None:
    """A row that sees nothing, by mask: zeros, no gradient, and all of the mass to the sink."""
    q, k, v = (x.float().requires_grad_() for x in tensors(1, 2, 1, 18, 18, 8, 8))
    mask = torch.ones(1, 1, 18, 18, dtype=torch.bool)
    mask[..., 2, :] = False
    y, mass = attention(q, k, v, weighting=made(name), mask=mask, impl="triton", return_mass=True)
    dq, dk, dv = torch.autograd.grad(y.sum() + y.square().sum(), (q, k, v))
    y = y.detach()
    assert all(bool(torch.isfinite(x).all()) for x in (y, dq, dk, dv, *mass))
    assert (
        float(y[:, :, 2].abs().max()) == float(dq[:, :, 2].abs().max()) == float(mass.total[:, :, 2].abs().max()) == 0
    )
    assert float(mass.sink[0, 0, 2]) == (1.0 if name in ("sink", "softmax1") else 0.0)
    q, k, v = (x.detach() for x in (q, k, v))
    nothing = attention(q, k[:, :, :0], v[:, :, :0], weighting=made(name), causal=False, impl="triton")
    assert float(nothing.abs().max()) == 0
    for part in (slice(0, 0), slice(0, 1)):
        assert attention(q[part], k[part], v[part], weighting=made(name), impl="triton").shape[0] == part.stop


def mass(name: str) -> None:
    """Σ of the weights and the sink's share, under a window, for open rows."""
    q, k, v = tensors(1, 2, 1, 50, 50, 8, 8)
    more = structure("open", 1, 50, 50) | {"window": 33}
    _, found = attention(*(x.float() for x in (q, k, v)), weighting=made(name), impl="triton", return_mass=True, **more)
    _, exact = attention(q, k, v, weighting=FAMILIES[name], impl="reference", return_mass=True, **more)
    for a, z in zip(found, exact, strict=True):
        assert a.dtype == F32
        assert not a.requires_grad
        torch.testing.assert_close(a.double(), z, rtol=1e-5, atol=2e-6)


def containment(name: str, bad: float) -> None:
    """What is not finite reaches the rows that see it and their keys, and nothing else, forward and backward."""
    t, at, window = 50, 33, 9
    plain = [x.float() for x in tensors(1, 2, 1, t, t, 8, 8)]
    up = torch.randn(1, 2, t, 8, generator=torch.Generator().manual_seed(1))

    def run(inputs: list[Tensor], up: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = attention(*leaves, weighting=made(name), window=window, impl="triton")
        return [y.detach(), *torch.autograd.grad(y, leaves, up)]

    expected = run(plain, up)
    for which in range(4):  # q, k, v, do
        broken, g = [x.clone() for x in plain], up.clone()
        target = g if which == 3 else broken[which]
        target[0, 1 if which in (0, 3) else 0, at, 3] = bad
        found = run(broken, g)
        lost = torch.zeros(2, t, dtype=torch.bool)
        if which in (0, 3):
            lost[1, at] = True
        else:
            lost[:, at : at + window] = True
        seen = torch.zeros(t, dtype=torch.bool)  # keys that a lost row sees
        for row in lost.any(0).nonzero():
            seen[max(0, int(row) - window + 1) : int(row) + 1] = True
        out_lost = torch.zeros_like(lost) if which == 3 else lost
        assert bool(torch.isnan(found[0][0][out_lost]).all()), (which, "out")
        assert bool(torch.isnan(found[1][0][lost]).all()), (which, "dq")
        for name_of, a, z, hit in (
            ("out", found[0][0], expected[0][0], out_lost), ("dq", found[1][0], expected[1][0], lost),
            ("dk", found[2][0, 0], expected[2][0, 0], seen), ("dv", found[3][0, 0], expected[3][0, 0], seen),
        ):  # fmt: skip
            torch.testing.assert_close(a[~hit], z[~hit], rtol=1e-5, atol=1e-6, msg=f"{name_of}, {which}")
    mask = torch.rand(1, 1, t, t, generator=torch.Generator().manual_seed(0)) < 0.5
    for which in (1, 2):
        broken = [x.clone() for x in plain]
        broken[which][0, 0, 7] = bad
        y = attention(*broken, weighting=made(name), impl="triton", mask=mask)
        sees = mask[0, 0, :, 7] & (torch.arange(t) >= 7)
        assert bool(torch.isfinite(y[0, :, ~sees]).all())
        assert not bool(torch.isfinite(y[0, :, sees]).any())


def layout() -> None:
    """Strided and expanded inputs, and a last dimension that is not contiguous."""
    base = torch.randn(2, 18, 2, 3 * 8, generator=torch.Generator().manual_seed(0))  # [b, t, h, qkv]
    q, k, v = (x.transpose(1, 2) for x in base.chunk(3, -1))
    plain = attention(*(x.contiguous() for x in (q, k, v)), impl="triton")
    assert torch.equal(attention(q, k, v, impl="triton"), plain)
    assert torch.equal(attention(q.mT.contiguous().mT, k, v, impl="triton"), plain)
    wide = k[:, :1].expand(-1, 2, -1, -1)
    assert torch.equal(attention(q, wide, wide, impl="triton"), attention(q, k[:, :1], k[:, :1], impl="triton"))


def long_row() -> None:
    """One query over many keys."""
    q, k, v = tensors(1, 1, 1, 1, 1500, 4, 4)
    for name in ("softmax1", "softpick"):
        y = attention(*(x.float() for x in (q, k, v)), weighting=made(name), impl="triton")
        exact = attention(*(x.float().double() for x in (q, k, v)), weighting=FAMILIES[name], impl="reference")
        torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=1e-6)


@contextlib.contextmanager
def products() -> Iterator[list[int]]:
    """Counts the products of tiles that the interpreter does."""
    import numpy as np

    count, real = [0], np.matmul

    def counted(*args: Any, **more: Any) -> Any:
        count[0] += 1
        return real(*args, **more)

    np.matmul = counted
    try:
        yield count
    finally:
        np.matmul = real


def skipping() -> None:
    """Tiles that no row sees are not computed, nor blocks without an open row; forward and backward."""
    q, k, v = (x.float().requires_grad_() for x in tensors(1, 2, 2, 64, 64, 8, 8))

    def work(**more: Any) -> int:
        with products() as count:
            torch.autograd.grad(attention(q, k, v, impl="triton", **more).sum(), (q, k, v))
        return count[0]

    whole = work(causal=False)  # 2 heads · (2·4 tiles · (2 products forward, 3 for dq) + 4·2 tiles · 4 for dk and dv)
    assert whole == 2 * 8 * 9
    assert work() == 2 * 6 * 9
    assert work(window=4) < work()
    assert work(cu_seqlens=torch.tensor([0, 32, 64])) == 2 * 4 * 9
    gate = torch.ones(1, 2, 64)
    gate[:, 0] = 0.0
    gate[:, 1, :32] = 0.0
    assert work(causal=False, gate=gate, skip_below=0.0) == whole // 4


def repeatable() -> None:
    """The same bits every time."""
    q, k, v = (x.float().requires_grad_() for x in tensors(1, 2, 1, 40, 40, 8, 8))
    y = [attention(q, k, v, weighting=made("sigmoid(bias)"), impl="triton") for _ in range(2)]
    a, z = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in y)
    assert all(torch.equal(x, y) for x, y in zip(a, z, strict=True))


def opcheck(name: str) -> None:
    """The custom operation as torch.library wants it."""
    w = made(name)
    learned = {n: x.clone().requires_grad_() for n, x in w.tensors().items()}
    calls, real = [], ops.forward_op
    q, k, v = (x.float().requires_grad_() for x in tensors(1, 2, 1, 12, 12, 16, 16))

    def spy(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    ops.forward_op = spy  # type: ignore[assignment]
    try:
        attention(q, k, v, weighting=w.with_tensors(**learned) if learned else w, return_mass=True, impl="triton")
    finally:
        ops.forward_op = real
    torch.library.opcheck(torch.ops.sinkgate.triton_forward.default, calls[0])


def traced() -> None:
    """Inside torch.compile without a break."""
    z = torch.zeros(2, requires_grad=True)

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q * 1.5, k, v, weighting=sg.SinkSoftmax(z), window=7, impl="triton").tanh()

    q, k, v = (x.float().requires_grad_() for x in tensors(1, 2, 1, 12, 12, 16, 16))
    found = [f(q, k, v) for f in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager"))]
    torch.testing.assert_close(*found)
    for a, b in zip(*(torch.autograd.grad(y.sum(), (q, k, v, z)) for y in found), strict=True):
        torch.testing.assert_close(a, b)


def choice() -> None:
    """CPU tensors are taken when asked for, and never preferred."""
    r = request()
    assert ops.refuses(r) is None
    assert not ops.prefers(r)


CASES: dict[str, Callable[[], None]] = {
    **{f"values {name}": partial(values, name, F32) for name in FAMILIES},
    **{f"values {name} {str(d)[6:]}": partial(values, name, d) for name in (*FOUR, "relu(squared)") for d in (F16, BF16)},
    **{
        f"values {name}, {kind}": partial(values, name, F32, kind)
        for kind, names in {
            "window": FOUR, "first": ("sink", "softpick"), "documents": FOUR, "both ways": ("sink", "sigmoid"),
            "all": ("softmax", "relu"), "softcap": FOUR, "bool mask": ("sink", "sigmoid"), "padding": ("softpick", "relu"),
            "float mask": ("sigmoid(bias)", "softpick"), "open": ("sink", "relu"), "t<s": ("softmax1", "softpick"), "decoding": ("sink", "relu"),
            "t>s": ("softmax", "sigmoid"),
        }.items()
        for name in names
    },
    **{f"extreme {name}": partial(extreme, name) for name in ("softmax", "relu(squared)", *FOUR)},
    **{f"z = {z}": partial(sinks, z) for z in (100.0, -100.0, -math.inf)},
    **{f"empty {name}": partial(empty, name) for name in ("softmax", "softmax1", *FOUR)},
    **{f"mass {name}": partial(mass, name) for name in FOUR},
    **{f"containment {name}": partial(containment, name, math.nan) for name in FOUR},
    **{f"containment {name} -inf": partial(containment, name, -math.inf) for name in ("sink", "relu")},
    **{f"opcheck {name}": partial(opcheck, name) for name in ("sink", "softpick")},
    "layout": layout, "long row": long_row, "skipping": skipping, "repeatable": repeatable, "traced": traced,
    "choice": choice,
}  # fmt: skip


# ---- compiled for cards that are not here --------------------------------------------------------------------------


class Compiler:
    """Stands where a kernel stands: compiles what is launched, checks that it fits, runs nothing."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self.kernel, self.capability = kernel, capability

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.compile

    def compile(self, *args: Any, **named: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        names = self.kernel.arg_names
        options = {name: named.pop(name) for name in [*named] if name not in names}
        given = dict(zip(names, args, strict=False)) | named
        kinds = {F32: "fp32", F16: "fp16", BF16: "bf16", torch.int32: "i32", torch.uint8: "u8", torch.bool: "i1"}
        signature, constants, facts = {}, {}, {}
        for i, name in enumerate(names):
            x = given[name]
            if isinstance(x, Tensor):
                signature[name] = "*" + kinds[x.dtype]
                facts[(i,)] = [["tt.divisibility", 16]]
            elif isinstance(x, float):
                signature[name] = "fp32"
            elif name.isupper() or x == 1:
                signature[name], constants[name] = "constexpr", x
            else:
                signature[name] = "i32"
                if x % 16 == 0:
                    facts[(i,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, facts)
        done = triton.compile(source, target=GPUTarget("cuda", self.capability, 32), options=options)
        assert len(done.asm["cubin"]) > 0
        assert done.metadata.shared <= 99 * 1024, (
            f"{self.kernel.__name__} needs {done.metadata.shared} bytes of shared memory"
        )


def compiled(name: str, dtype: torch.dtype, d: int, capability: int, **more: Any) -> None:
    """Forward and backward kernels as they would be launched on a card."""
    real = ops.kernels()

    class Kernels:
        INTERPRETED = False

        def __getattr__(self, kernel: str) -> Compiler:
            return Compiler(getattr(real, kernel), capability)

    ops.kernels, ops.capability = Kernels, lambda index: capability  # type: ignore[assignment]
    q, k, v = (torch.zeros(1, h, 128, d, dtype=dtype, requires_grad=True) for h in (2, 1, 1))
    try:
        y, _ = ops.run(request(q, k, v, weighting=made(name), **more))
        torch.autograd.grad(y.sum(), (q, k, v))
    finally:
        ops.kernels = lambda: real  # type: ignore[assignment]


COMPILED: dict[str, Callable[[], None]] = {
    "bfloat16 softmax, 9.0": partial(compiled, "softmax", BF16, 128, 90),
    "bfloat16 sink with first keys and mass, 8.0": partial(compiled, "sink", BF16, 128, 80, window=32, keep_first=4, return_mass=True),
    "float16 sigmoid under a mask with softcap, 9.0": partial(
        compiled, "sigmoid(bias)", F16, 64, 90, mask=torch.zeros(1, 2, 128, 128), softcap=5.0
    ),
    "float16 relu, odd d, 8.6": partial(compiled, "relu", F16, 33, 86),
    "float32 softpick with closed gates, 8.6": partial(
        compiled, "softpick", F32, 64, 86, gate=torch.zeros(1, 2, 128), skip_below=0.0
    ),
    "bfloat16 softpick, d 256, 10.0": partial(compiled, "softpick", BF16, 256, 100),
}  # fmt: skip


# ---- running them --------------------------------------------------------------------------------------------------


def main(cases: dict[str, Callable[[], None]]) -> None:
    """One JSON line per case: its name, and what went wrong (empty: nothing)."""
    IMPLEMENTATIONS.setdefault("triton", ops)  # type: ignore[arg-type]
    torch.set_num_threads(1)
    for name, case in cases.items():
        error, start = "", time.perf_counter()
        try:
            case()
        except Exception:  # noqa: BLE001  whatever it is, the test of this case shows it
            error = traceback.format_exc()
        seconds = round(time.perf_counter() - start, 2)
        print(json.dumps({"name": name, "error": error, "seconds": seconds}), flush=True)


MODES = {"interpreted": CASES, "compiled": COMPILED}
RUNNING: dict[str, tuple[subprocess.Popen[str], Any]] = {}


def start(mode: str) -> None:
    """Run this file as a script, in the background: the interpreter is slow and another core may be free."""
    output = tempfile.TemporaryDirectory()
    env = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(Path(__file__).parents[1]), "TRITON_CACHE_DIR": output.name, "OMP_NUM_THREADS": "1"}
    env |= {"TRITON_INTERPRET": "1"} if mode == "interpreted" else {}
    with (Path(output.name) / "out").open("w") as out, (Path(output.name) / "err").open("w") as err:
        command = [sys.executable, "-W", "ignore", __file__, mode]
        RUNNING[mode] = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=env), output


def result(mode: str) -> dict[str, str]:
    """What went wrong in a run, by case."""
    reason = ops.missing()
    if reason:
        return {"": reason}
    if mode not in RUNNING:
        start(mode)
    process, output = RUNNING.pop(mode)
    process.wait()
    folder = Path(output.name)
    found = [json.loads(line) for line in (folder / "out").read_text().splitlines() if line.startswith("{")]
    ended = f"the run ended before this case: {(folder / 'err').read_text()[-2000:]}"
    output.cleanup()
    return dict.fromkeys(MODES[mode], ended) | {x["name"]: x["error"] for x in found}


@pytest.fixture(scope="session")
def interpreted() -> dict[str, str]:
    return result("interpreted")


@pytest.fixture(scope="session")
def on_no_card() -> dict[str, str]:
    return result("compiled")


def judge(found: dict[str, str], name: str) -> None:
    if "" in found:
        pytest.skip(found[""])
    assert not found[name], found[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_in_the_interpreter(name: str, interpreted: dict[str, str]) -> None:
    judge(interpreted, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_for_a_card(name: str, on_no_card: dict[str, str]) -> None:
    judge(on_no_card, name)


# ---- what is refused, in this process ------------------------------------------------------------------------------


def request(q: Any = None, k: Any = None, v: Any = None, **more: Any) -> Request:
    """A call's arguments in the form that implementations get; small float32 tensors by default."""
    zeros = torch.zeros(1, 2, 4, 16)
    defaults: dict[str, Any] = {
        "weighting": "softmax", "causal": True, "window": None, "keep_first": 0, "mask": None, "cu_seqlens": None,
        "document_ids": None, "scale": None, "softcap": None, "gate": None, "skip_below": None, "dropout_p": 0.0,
        "precision": "exact", "return_mass": False,
    }  # fmt: skip
    return prepared(*(zeros if x is None else x for x in (q, k, v)), **(defaults | more))[0]


def on_cuda(r: Request) -> Request:
    """The same request with tensors that say they are on a CUDA device."""
    from dataclasses import replace
    from types import SimpleNamespace

    def moved(x: Tensor) -> Any:
        device = SimpleNamespace(type="cuda", index=0)
        return SimpleNamespace(
            device=device, dtype=x.dtype, shape=x.shape, requires_grad=x.requires_grad, numel=x.numel
        )

    return replace(r, q=moved(r.q), k=moved(r.k), v=moved(r.v))


@pytest.mark.parametrize("name", ["topk_softmax", "sparsemax", "entmax", "clipped_softmax"])
def test_refuses_other_families(name: str) -> None:
    assert "sigmoid, relu and softpick, not for " + name in str(ops.refuses(request(weighting=name)))


def test_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.zeros(1, 1, 2, 300)
    double = torch.zeros(1, 1, 2, 8, dtype=torch.float64)
    assert "up to 256, got 300" in str(ops.refuses(request(wide, wide, wide)))
    assert "not float64" in str(ops.refuses(request(double, double, double)))
    assert "no gradient to a mask" in str(ops.refuses(request(mask=torch.zeros(4, 4, requires_grad=True))))
    monkeypatch.setattr(ops, "missing", lambda: "")
    monkeypatch.setattr(ops, "capability", lambda index: 75)
    assert "8.0 or above, this one has 7.5" in str(ops.refuses(on_cuda(request())))
    monkeypatch.setattr(ops, "capability", lambda index: 90)
    assert ops.refuses(on_cuda(request())) is None
    assert ops.prefers(on_cuda(request()))
    assert not ops.prefers(request())


def test_refuses_the_cpu_and_a_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.environ.get("TRITON_INTERPRET"):
        assert any(text in str(ops.refuses(request())) for text in ("TRITON_INTERPRET=1", "not installed"))
    ops.missing.cache_clear()
    monkeypatch.setattr(ops.importlib.util, "find_spec", lambda name: None)
    assert ops.refuses(request()) == "triton is not installed (pip install triton)"
    ops.missing.cache_clear()


def test_asking_on_the_cpu_imports_no_kernels() -> None:
    code = (
        "import sys, torch, sinkgate.ops.triton.ops as ops\n"
        "assert 'CUDA' in ops.unavailable('cpu') or 'installed' in ops.unavailable('cpu')\n"
        "assert 'sinkgate.ops.triton.kernels' not in sys.modules"
    )
    env = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


def test_flex_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = external.flex.refuses
    assert "these are on cpu" in str(refuses(request()))
    assert not external.flex.prefers(request())
    z = torch.zeros(2, requires_grad=True)
    for text, more in {
        "not sigmoid": {"weighting": "sigmoid"},
        "without gradients only": {"weighting": sg.SinkSoftmax(z)},
        "T×T": {"mask": torch.ones(4, 4, dtype=torch.bool)},
        "closed": {"gate": torch.zeros(1, 2, 4), "skip_below": 0.0},
    }.items():
        assert text in str(refuses(on_cuda(request(**more))))
    small, double = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 4, 16, dtype=torch.float64)
    assert "at least 16" in str(refuses(on_cuda(request(small, small, small))))
    assert "not float64" in str(refuses(on_cuda(request(double, double, double))))
    assert refuses(on_cuda(request(softcap=3.0, window=2, keep_first=1))) is None
    assert refuses(on_cuda(request(weighting=sg.SinkSoftmax(z.detach())))) is None
    monkeypatch.setattr(external, "has", lambda module: False)
    assert refuses(request()) == "this torch has no FlexAttention"


def test_adasplash_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = external.adasplash.refuses
    assert "not softmax" in str(refuses(request()))
    monkeypatch.setattr(external, "has", lambda module: False)
    assert refuses(request(weighting="entmax")) == "adasplash is not installed (pip install adasplash)"
    monkeypatch.setattr(external, "has", lambda module: True)
    assert "these are on cpu" in str(refuses(request(weighting="entmax")))
    one, odd = torch.zeros(1, 1, 4, 16), torch.zeros(1, 2, 4, 20)
    for text, given, more in (
        ("got a tensor", (), {"weighting": sg.Entmax(torch.tensor(1.5))}),
        ("causal and full", (), {"window": 2}),
        ("causal and full", (torch.zeros(1, 2, 1, 16),), {}),
        ("no softcap", (), {"softcap": 2.0}),
        ("as many key heads", (None, one, one), {}),
        ("16, 32, 64", (odd, odd, odd), {}),
        ("its scale", (), {"scale": 1.0}),
    ):
        assert text in str(refuses(on_cuda(request(*given, **({"weighting": "entmax"} | more)))))
    assert refuses(on_cuda(request(weighting="sparsemax", causal=False))) is None


def test_flash4_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = external.flash4.refuses
    assert "flash-attn-4 is not installed" in str(refuses(request()))
    monkeypatch.setattr(external, "has", lambda module: True)
    assert "these are on cpu" in str(refuses(request()))
    assert "not float32" in str(refuses(on_cuda(request())))
    half = torch.zeros(1, 2, 4, 16, dtype=BF16)
    for text, more in {
        "not relu": {"weighting": "relu"},
        "plain causal": {"window": 2},
        "full attention only": {"mask": torch.ones(4, 4, dtype=torch.bool)},
        "the mass": {"return_mass": True},
    }.items():
        assert text in str(refuses(on_cuda(request(half, half, half, **more))))
    for weighting in ("softmax", "softmax1", sg.SinkSoftmax(torch.zeros(2, requires_grad=True))):
        assert refuses(on_cuda(request(half, half, half, weighting=weighting))) is None


def test_flex_sees_what_the_bands_say() -> None:
    """The block mask that would go to the kernel, written out."""
    from torch.nn.attention.flex_attention import create_mask

    more = {"cu_seqlens": torch.tensor([0, 3, 20]), "window": 4, "keep_first": 2}
    x = torch.zeros(2, 1, 20, 16)
    for r in (request(x, x, x, **more), request(x, x, x, document_ids=torch.tensor([[0] * 20, [0] * 7 + [1] * 13]))):
        found = create_mask(external.visibility(r).mask_mod, 2, 1, 20, 20, device="cpu")
        assert torch.equal(found, r.bands.dense().expand(2, 1, 20, 20))


if __name__ == "__main__":
    main({"interpreted": CASES, "compiled": COMPILED}[sys.argv[1]])
