"""What reading costs: wall time and peak memory over the model's own plain sdpa forward, SmolLM2, fp32.

Both sides compute the logits of the last position only, so that neither the vocabulary's product nor its
memory flatters the ratio. The peer is the way everybody else goes: ``output_attentions=True`` in eager.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

from benchmarks.common import in_process, paired, peak_rss_mb, reset_peak, write
from sinkgate.ops.native.build import Unavailable

LENGTHS = (2048, 4096)
LEVELS = ("first", "keys", "full")
WITHOUT = ("keys_torch", "full_torch")  # the same without the compiled kernels
BOUNDS = {"first": 1.10, "keys": 1.35, "full": 1.70, "memory": 1.25}


def setup(length: int, attn: str = "sdpa") -> tuple[Any, Any]:
    import torch

    import sinkgate as sg
    from sinkgate.probe.text import default_texts

    loaded = sg.load("smollm2-135m", dtype="float32", attn_implementation=attn)
    text = max(default_texts(), key=lambda t: len(t.content)).content
    ids = torch.tensor([loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][:length]])
    assert ids.shape[1] == length
    return loaded.model, ids


def functions(model: Any, ids: Any) -> dict[str, Callable[[], Any]]:
    import torch

    from sinkgate.hf.anatomy import forward, trace
    from sinkgate.hf.reading import Reader
    from sinkgate.probe import rows
    from sinkgate.probe.probe import Probe
    from sinkgate.schema import Settings

    anatomy = trace(model, ids[:, :32])
    length = ids.shape[1]

    def plain() -> Any:
        with torch.no_grad():
            return forward(model, ids, last_only=True)

    def level(name: str) -> Callable[[], Any]:
        detail = name.removesuffix("_torch")

        def run() -> Any:
            with patch.object(rows, "library", no_library) if name != detail else nullcontext():
                return read()

        def read() -> Any:
            probe = Probe(Settings(detail=detail, tokens=length))  # type: ignore[arg-type]
            reader = Reader(anatomy, probe, stream=detail == "full", writes=detail == "full")
            with reader.open(), probe.sample([{"id": "x", "source": "", "tokens": ["x"] * length, "bos": False}]):
                reader.run(ids)
            return probe.finish(model={"name": "x"})

        return run

    return {"plain": plain, **{name: level(name) for name in (*LEVELS, *WITHOUT)}}


def no_library() -> Any:
    raise Unavailable("left out for the comparison")


def alone(what: str, length: int) -> dict[str, Any]:
    """One pass in a process of its own: peak memory, and for the peer its time too."""
    import time

    import torch

    model, ids = setup(length, "eager" if what == "output_attentions" else "sdpa")
    run = None if what == "output_attentions" else functions(model, ids)[what]
    reset_peak()
    before = peak_rss_mb()
    start = time.perf_counter()
    if what == "output_attentions":
        with torch.no_grad():
            out = model(ids, output_attentions=True, use_cache=False, logits_to_keep=1)
        torch.stack([a.mean((0, 2))[:, 0] for a in out.attentions])
    else:
        assert run is not None
        run()
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "peak_mb": round(peak_rss_mb()),
        "before_mb": round(before),
    }


def median_peak(what: str, length: int, runs: int = 3) -> dict[str, Any]:
    """The run with the median peak: what the allocator keeps differs from process to process."""
    found = [in_process("benchmarks.diagnose", what, str(length)) for _ in range(runs)]
    return sorted(found, key=lambda run: run["peak_mb"])[runs // 2]


def main() -> None:
    rows = []
    for length in LENGTHS:
        model, ids = setup(length)
        times = paired(functions(model, ids), base="plain")
        del model
        memory = {what: median_peak(what, length) for what in times}
        memory["output_attentions"] = in_process("benchmarks.diagnose", "output_attentions", str(length))
        for what, row in times.items():
            growth = memory[what]["peak_mb"] / memory["plain"]["peak_mb"]
            rows.append(
                {
                    "tokens": length,
                    "what": what,
                    **row,
                    "peak_mb": memory[what]["peak_mb"],
                    "memory_ratio": round(growth, 3),
                }
            )
        peer = memory["output_attentions"]
        if "failed" in peer:
            rows.append({"tokens": length, "what": "output_attentions", **peer})
        else:
            rows.append(
                {"tokens": length, "what": "output_attentions", "seconds": peer["seconds"], "runs": 1,
                 "ratio": round(peer["seconds"] / times["plain"]["seconds"], 2), "peak_mb": peer["peak_mb"],
                 "memory_ratio": round(peer["peak_mb"] / memory["plain"]["peak_mb"], 2)}
            )  # fmt: skip
    write("diagnose", {"model": "smollm2-135m", "dtype": "float32", "rounds": 5, "bounds": BOUNDS, "rows": rows})


if __name__ == "__main__":
    print(json.dumps(alone(sys.argv[1], int(sys.argv[2]))))
