"""The Triton kernels on a CUDA card: correct first, then against SDPA's flash kernel. bfloat16, H=16, D=128, causal.

Correctness: the largest difference from the reference in float64, relative to the largest number, beside the dtype's
own step. Speed: medians of 5, each over a few calls between two CUDA events, in turn with SDPA on the same inputs; peak
memory over what was allocated before the call. Without a card the planned rows are written, as not run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.common import write

H, D = 16, 128
LENGTHS = (4096, 16384)
ROUNDS, CALLS = 5, 5
NAMES = ("softmax", "softmax1", "sink_softmax", "sigmoid", "relu", "softpick")
PASSES = ("fwd", "fwd+bwd")
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "grouped heads": {"hkv": 1},
    "window and first keys": {"window": 70, "keep_first": 4},
    "packed": {"cu_seqlens": [0, 90, 91, 300]},
    "one query": {"t": 1},
    "softcap": {"softcap": 5.0},
}
STEPS = {"float32": 2.0**-23, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def planned() -> list[dict[str, Any]]:
    """Every row, without its numbers."""
    rows: list[dict[str, Any]] = [
        {"part": "accuracy", "weighting": name, "case": case, "dtype": dtype}
        for name in NAMES
        for case in CASES
        for dtype in STEPS
    ]
    rows += [
        {"part": "speed", "weighting": name, "tokens": t, "pass": kind, "dtype": "bfloat16"}
        for t in LENGTHS
        for name in NAMES
        for kind in PASSES
    ]
    return rows


def weighting(name: str, heads: int, like: Any = None) -> Any:
    """A weighting for this many heads; a sink logit that is learned, on the tensors' device."""
    import torch

    import sinkgate as sg

    if name != "sink_softmax":
        return sg.weighting.as_weighting(name)
    return sg.SinkSoftmax(
        torch.linspace(-1.0, 1.0, heads, device=like.device)
        .to(torch.promote_types(like.dtype, torch.float32))
        .requires_grad_()
    )


def accuracy(name: str, case: str, dtype: str) -> dict[str, Any]:
    """Largest relative difference of the output and of each gradient from the reference in float64."""
    import torch

    import sinkgate as sg

    more = dict(CASES[case])
    heads, hkv, t, s, d = 4, more.pop("hkv", 4), more.pop("t", 300), 300, 64
    if "cu_seqlens" in more:
        more["cu_seqlens"] = torch.tensor(more["cu_seqlens"], device="cuda")
    g = torch.Generator().manual_seed(0)
    made = [
        torch.randn(1, h, n, d, generator=g).to(getattr(torch, dtype)).cuda()
        for h, n in ((heads, t), (hkv, s), (hkv, s))
    ]
    up = torch.randn(1, heads, t, d, generator=g).to(getattr(torch, dtype)).cuda()
    found = []
    for impl, wide in (("triton", made[0].dtype), ("reference", torch.float64)):
        leaves = [x.to(wide).requires_grad_() for x in made]
        w = weighting(name, heads, leaves[0])
        learned = list(w.tensors().values())
        y = sg.attention(*leaves, weighting=w, impl=impl, **more)
        found.append([y, *torch.autograd.grad(y, [*leaves, *learned], up.to(wide))])
    errors = [float((a.double() - z).abs().max() / z.abs().max().clamp_min(1e-3)) for a, z in zip(*found, strict=True)]
    return {"error": max(errors), "errors": errors, "steps": round(max(errors) / STEPS[dtype], 2)}


def passes(q: Any, k: Any, v: Any, name: str) -> dict[str, Callable[[], Any]]:
    """Forward without gradients, and forward with the backward pass (``sdpa``: torch's flash kernel)."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import sinkgate as sg

    w = None if name == "sdpa" else weighting(name, H, q)

    def call(q: Any, k: Any, v: Any) -> Any:
        if w is None:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return sg.attention(q, k, v, weighting=w, impl="triton")

    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    wanted = leaves if w is None else [*leaves, *w.tensors().values()]
    up = torch.randn_like(q)

    def forward() -> Any:
        with torch.no_grad():
            return call(q, k, v)

    return {"fwd": forward, "fwd+bwd": lambda: torch.autograd.grad(call(*leaves), wanted, up)}


def milliseconds(function: Callable[[], Any]) -> float:
    """One call's time on the card, over a few calls."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / CALLS


def peak_mb(function: Callable[[], Any]) -> float:
    """What a call needs beyond what is allocated already."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def speed(name: str, tokens: int, kind: str) -> dict[str, Any]:
    """Times and memory of one weighting and of SDPA, in turn."""
    import torch

    g = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(1, H, tokens, D, generator=g, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    both = {"ours": passes(q, k, v, name)[kind], "sdpa": passes(q, k, v, "sdpa")[kind]}
    for function in both.values():
        for _ in range(3):
            function()
    times: dict[str, list[float]] = {side: [] for side in both}
    for _ in range(ROUNDS):
        for side, function in both.items():
            times[side].append(milliseconds(function))
    ms = {side: statistics.median(x) for side, x in times.items()}
    work = (2, 7)[kind == "fwd+bwd"] * 2 * H * tokens**2 * D / 2
    return {
        "ms": round(ms["ours"], 4), "sdpa_ms": round(ms["sdpa"], 4),
        "ratio": round(statistics.median(a / z for a, z in zip(times["ours"], times["sdpa"], strict=True)), 3),
        "tflops": round(work / ms["ours"] / 1e9, 1), "sdpa_tflops": round(work / ms["sdpa"] / 1e9, 1),
        "peak_mb": round(peak_mb(both["ours"]), 1), "sdpa_peak_mb": round(peak_mb(both["sdpa"]), 1),
    }  # fmt: skip


def run(row: dict[str, Any]) -> dict[str, Any]:
    """A planned row with its numbers, or with why there are none."""
    try:
        if row["part"] == "accuracy":
            return {**row, "status": "run", **accuracy(row["weighting"], row["case"], row["dtype"])}
        return {**row, "status": "run", **speed(row["weighting"], row["tokens"], row["pass"])}
    except (RuntimeError, ValueError) as error:  # the rows after it are still worth having
        return {**row, "status": f"failed: {str(error).splitlines()[0]}"}


def main() -> None:
    import torch

    rows = planned()
    result: dict[str, Any] = {"heads": H, "head_dim": D, "rounds": ROUNDS}
    if not torch.cuda.is_available():
        result |= {"status": "not run: no CUDA device", "rows": [{**row, "status": "not run"} for row in rows]}
        write("gpu", result)
        return
    import triton

    result |= {"status": "run", "card": torch.cuda.get_device_name(), "triton": triton.__version__, "rows": []}
    for row in rows:
        result["rows"].append(run(row))
        print(result["rows"][-1], flush=True)
    write("gpu", result)


if __name__ == "__main__":
    main()
