"""The operation against torch's SDPA: H=8, D=64, causal, one run, medians of paired rounds.

Each row also says which fraction it reaches of the rate of a matrix product of its dtype in the same run: two products
of T²·D/2·H multiply-adds forward, seven with the backward pass. ``blocked`` is the same without a compiler.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import RESULTS, in_process, paired, peak_rss_mb, reset_peak, write

H, D, T = 8, 64, 4096
BOUNDS = {  # fwd fp32, fwd+bwd fp32, fwd bf16, fwd+bwd bf16
    "softmax1": (1.03, 1.05, 1.03, 1.05), "sink_softmax": (1.03, 1.05, 1.03, 1.05),
    "relu": (1.05, 1.05, 0.8, 0.9), "sigmoid": (1.05, 1.05, 0.8, 0.9),
    "softpick": (1.3, 1.3, 1.0, 1.1), "clipped_softmax": (1.3, 1.3, 1.0, 1.1),
    "sparsemax": (2.5, 2.5, 2.0, 2.0), "entmax": (2.5, 2.5, 2.0, 2.0),
}  # fmt: skip
MORE = ("softmax", "topk_softmax")
LIMITS = {
    "memory": 1.2,
    "decode": 1.1,
    "maps_fwd": 20,
    "maps_fwd_bwd": 12,
    "bf16_error": 1.5,
    "fast": 0.5,
    "blocked": 4,
}


def tensors(dtype: str, t: int = T, s: int | None = None, h: int = H, hkv: int = H) -> list[Any]:
    import torch

    g = torch.Generator().manual_seed(0)
    s = t if s is None else s
    return [
        torch.randn(1, n, length, D, generator=g).to(getattr(torch, dtype))
        for n, length in ((h, t), (hkv, s), (hkv, s))
    ]


def passes(q: Any, k: Any, v: Any, **more: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward without gradients, and forward with the backward pass, of one weighting (``sdpa``: torch's own)."""
    import torch

    import sinkgate as sg

    name = more.pop("weighting")
    if name == "sink_softmax":
        name = sg.SinkSoftmax(torch.zeros(H, requires_grad=True))

    def call(q: Any, k: Any, v: Any) -> Any:
        if name == "sdpa":
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return sg.attention(q, k, v, weighting=name, **more)

    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    up = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q.dtype)

    def forward() -> Any:
        with torch.no_grad():
            return call(q, k, v)

    def both() -> Any:
        return torch.autograd.grad(call(*leaves), leaves, up)

    return forward, both


def gemm_rate(dtype: str) -> float:
    """Floating-point operations per second of one large matrix product, in units of 1e9."""
    import torch

    a = torch.randn(2048, 2048).to(getattr(torch, dtype))
    a @ a
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return 2 * 2048**3 / statistics.median(seconds) / 1e9


def table(dtype: str) -> list[dict[str, Any]]:
    import torch

    q, k, v = tensors(dtype)
    names = ["sdpa", *BOUNDS, *MORE]
    made = {name: passes(q, k, v, weighting=name) for name in names}
    a = torch.randn(2048, 2048).to(q.dtype)
    made["gemm"] = (lambda: a @ a, lambda: a @ a)
    rows = []
    for index, kind in enumerate(("fwd", "fwd+bwd")):
        times = paired({name: fns[index] for name, fns in made.items()}, base="sdpa")
        work = (2, 7)[index] * 2 * H * T * T * D / 2
        rate = 2 * 2048**3 / times.pop("gemm")["seconds"]
        for name, row in times.items():
            bound = BOUNDS[name][2 * (dtype == "bfloat16") + index] if name in BOUNDS else None
            rows.append({"weighting": name, "dtype": dtype, "pass": kind, **row, "bound": bound,
                         "gemm_fraction": round(work / row["seconds"] / rate, 3), "impl": impl_of(name, q, k, v)})  # fmt: skip
    return rows


def impl_of(name: str, q: Any, k: Any, v: Any) -> str:
    import sinkgate as sg

    return "sdpa" if name == "sdpa" else str(sg.explain(q, k, v, weighting=name).impl)


def stock_and_blocked() -> list[dict[str, Any]]:
    """The stock kernel's identity, and everything without a compiler."""
    rows = []
    for dtype in ("float32", "bfloat16"):
        q, k, v = tensors(dtype)
        for impl, names in (("stock", ("softmax1", "sink_softmax")), ("blocked", tuple(BOUNDS))):
            made = {"sdpa": passes(q, k, v, weighting="sdpa")}
            made |= {name: passes(q, k, v, weighting=name, impl=impl) for name in names}
            for index, kind in enumerate(("fwd", "fwd+bwd")):
                times = paired({name: fns[index] for name, fns in made.items()}, base="sdpa", rounds=3)
                rows += [
                    {"weighting": n, "dtype": dtype, "pass": kind, "impl": impl, **row}
                    for n, row in times.items()
                    if n != "sdpa"
                ]
    return rows


def accuracy() -> list[dict[str, Any]]:
    """bf16 errors against float64, relative to the largest output; SDPA's own on the same inputs beside."""
    import torch

    import sinkgate as sg

    q, k, v = tensors("bfloat16", t=2048)
    rows = []
    wide = [x.double() for x in (q, k, v)]
    exact = sg.attention(*wide, impl="stock")
    sdpa = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    own = float((sdpa.double() - exact).norm() / exact.norm())
    for name in BOUNDS:
        reference = sg.attention(*wide, weighting=name, impl="blocked")
        for precision in ("exact", "fast"):
            y = sg.attention(q, k, v, weighting=name, precision=precision)
            error = float((y.double() - reference).norm() / reference.norm())
            rows.append(
                {
                    "weighting": name,
                    "precision": precision,
                    "error": error,
                    "sdpa_error": own,
                    "ratio": round(error / own, 3),
                }
            )
    return rows


def fast() -> list[dict[str, Any]]:
    q, k, v = tensors("bfloat16")
    made = {"sdpa": passes(q, k, v, weighting="sdpa")}
    made |= {name: passes(q, k, v, weighting=name, precision="fast") for name in BOUNDS}
    return [
        {"weighting": name, "pass": kind, **row}
        for index, kind in enumerate(("fwd", "fwd+bwd"))
        for name, row in paired({n: fns[index] for n, fns in made.items()}, base="sdpa").items()
    ]


def memory_alone(name: str, kind: str) -> dict[str, Any]:
    """Growth of the peak over a warmed-up process: inputs, outputs and what is held between."""
    q, k, v = tensors("float32", t=64)
    for f in passes(q, k, v, weighting=name):
        f()
    reset_peak()
    before = peak_rss_mb()
    q, k, v = tensors("float32")
    passes(q, k, v, weighting=name)[kind == "fwd+bwd"]()
    return {"growth_mb": round(peak_rss_mb() - before, 1)}


def memory() -> list[dict[str, Any]]:
    rows = []
    for kind in ("fwd", "fwd+bwd"):
        found = {}
        for name in ("sdpa", *BOUNDS):
            runs = [in_process("benchmarks.ops", name, kind)["growth_mb"] for _ in range(3)]
            found[name] = statistics.median(runs)
        rows += [
            {"weighting": n, "pass": kind, "growth_mb": x, "ratio": round(x / found["sdpa"], 3)}
            for n, x in found.items()
        ]
    return rows


def decode() -> list[dict[str, Any]]:
    """One token against 32,768 keys."""
    import torch

    import sinkgate as sg

    rows = []
    for dtype in ("float32", "bfloat16"):
        q, k, v = tensors(dtype, t=1, s=32768)
        made: dict[str, Callable[[], Any]] = {
            "sdpa": lambda q=q, k=k, v=v: torch.nn.functional.scaled_dot_product_attention(q, k, v)
        }
        for name in BOUNDS:
            made[name] = lambda q=q, k=k, v=v, name=name: sg.attention(q, k, v, weighting=name)
        with torch.no_grad():
            times = paired(made, base="sdpa", rounds=15)
        rows += [{"weighting": name, "dtype": dtype, **row} for name, row in times.items()]
    return rows


def maps() -> list[dict[str, Any]]:
    """Sparsemax and entmax-1.5 alone on [4096, 4096] float32, against the entmax package."""
    import entmax
    import torch

    import sinkgate as sg

    x = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0))
    up = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(1))
    rows = []
    for name, theirs in (("sparsemax", entmax.sparsemax), ("entmax", entmax.entmax15)):
        functions: dict[str, Callable[[Any], Any]] = {
            "peer": lambda y, f=theirs: f(y, dim=-1),
            "ours": lambda y, n=name: sg.weights(y, n),
            "softmax": lambda y: torch.softmax(y, -1),
        }
        leaf = x.clone().requires_grad_()
        for kind in ("fwd", "fwd+bwd"):

            def one(f: Callable[[Any], Any], kind: str = kind, leaf: Any = leaf) -> Any:
                if kind == "fwd":
                    with torch.no_grad():
                        return f(x)
                return torch.autograd.grad(f(leaf), leaf, up)

            times = paired({n: (lambda f=f, one=one: one(f)) for n, f in functions.items()}, base="ours", rounds=3)
            rows.append({"weighting": name, "pass": kind, "peer_over_ours": times["peer"]["ratio"],
                         "ours_over_softmax": round(1 / times["softmax"]["ratio"], 2), "seconds": times["ours"]["seconds"]})  # fmt: skip
    return rows


def growth() -> list[dict[str, Any]]:
    """Forward time from 1k to 32k, and the exponent that fits; with a window of 1024 it must be 1."""
    import torch

    import sinkgate as sg

    rows = []
    lengths = (1024, 2048, 4096, 8192, 16384, 32768)
    for name, window in (("softmax1", None), ("sigmoid", None), ("entmax", None), ("softmax1", 1024), ("entmax", 1024)):
        seconds = []
        for t in lengths:
            q, k, v = tensors("float32", t=t, h=2, hkv=2)
            runs = []
            with torch.no_grad():
                for _ in range(3 if t > 8192 else 5):
                    start = time.perf_counter()
                    sg.attention(q, k, v, weighting=name, window=window)
                    runs.append(time.perf_counter() - start)
            seconds.append(statistics.median(runs))
        x, y = [math.log(t) for t in lengths[1:]], [math.log(s) for s in seconds[1:]]
        mx, my = statistics.mean(x), statistics.mean(y)
        slope = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
        rows.append({"weighting": name, "window": window, "tokens": lengths, "seconds": [round(s, 4) for s in seconds],
                     "exponent": round(slope, 3)})  # fmt: skip
    return rows


def closed() -> list[dict[str, Any]]:
    """Time against the share of closed gates (per query and head), forward and backward."""
    import torch

    q, k, v = tensors("float32")
    rows = []
    for share in (0.0, 0.25, 0.5, 0.75, 0.9, 0.99):
        g = torch.Generator().manual_seed(2)
        gate = (torch.rand(1, H, T, generator=g) >= share).float()
        made = {
            "whole": passes(q, k, v, weighting="softmax", gate=gate),
            "skipped": passes(q, k, v, weighting="softmax", gate=gate, skip_below=0.0),
        }
        row: dict[str, Any] = {"closed": share}
        for index, kind in enumerate(("fwd", "fwd+bwd")):
            row[kind] = paired({n: f[index] for n, f in made.items()}, base="whole", rounds=3)["skipped"]["ratio"]
        rows.append(row)
    return rows


PARTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "float32": lambda: table("float32"),
    "bfloat16": lambda: table("bfloat16"),
    "without": stock_and_blocked,
    "accuracy": accuracy,
    "fast": fast,
    "memory": memory,
    "decode": decode,
    "maps": maps,
    "growth": growth,
    "closed": closed,
}


def main() -> None:
    result: dict[str, Any] = {"heads": H, "head_dim": D, "tokens": T, "rounds": 5, "limits": LIMITS}
    for dtype in ("float32", "bfloat16"):
        result[f"gemm_{dtype}_gflops"] = round(gemm_rate(dtype), 1)
    for name, part in PARTS.items():
        print(name, flush=True)
        result[name] = part()
        write("ops", result)


def again(names: list[str]) -> None:
    """Measure some parts anew, beside what is kept of the others."""
    result = json.loads((RESULTS / "ops.json").read_text(encoding="utf-8"))
    result.pop("environment")
    for name in names:
        result[name] = PARTS[name]()
        write("ops", result)


if __name__ == "__main__" and sys.argv[1] == "again":
    again(sys.argv[2:])
elif __name__ == "__main__":
    print(json.dumps(memory_alone(sys.argv[1], sys.argv[2])))
