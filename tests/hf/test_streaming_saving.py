"""A stream on disk, and two streams from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from streams import in_parts

import sinkgate as sg
from models import tiny
from sinkgate.errors import ArgumentError, OutputError, RecordError, UnsupportedError

IDS = torch.randint(0, 96, (2, 70), generator=torch.Generator().manual_seed(1))
POLICIES = [
    "recent(16) + sinks(3)", "dense", "heavy(5) + recent(8) + sinks(2)", "quantized(recent(20) + sinks(2), group=4)",
    "recent(9) + sinks(folded=5)", "recent(9) + sinks(2, token_ids=[4, 5])", "per_head(recent(9), [[1, 2]])",
    "dynamic(recent(9) + sinks(2), after=20, share=0.6)", "dynamic(recent(9) + sinks(2), rule='query', share=0.6)",
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "qwen3_next"])
def test_saved_restored_forked(name: str, policy: str, tmp_path: Path) -> None:
    m = tiny(name, attn="sdpa", dtype=torch.float64)
    positions = "original" if name == "gpt2" or "dynamic" in policy else "slots"
    file = tmp_path / "stream.safetensors"
    with sg.streaming(m, policy, positions=positions) as cache:
        m(IDS[:, :50], cache=cache)
        sg.save_stream(cache, file)
        fork = cache.fork()
        want = in_parts(m, IDS[:, 50:], cache, [5, 1])
        report = cache.report()
        m(IDS[:, 3:9], cache=cache)
        assert (in_parts(m, IDS[:, 50:], fork, [5, 1]) - want).abs().max() < 1e-12
        assert fork.report() == report
    with sg.streaming(m, policy, positions=positions) as cache:
        m(IDS[:, :9], cache=cache)  # forgotten
        sg.load_stream(cache, file)
        assert (in_parts(m, IDS[:, 50:], cache, [5, 1]) - want).abs().max() < 1e-12
        assert cache.report() == report
        assert torch.equal(cache.ids, IDS)  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["stream.safetensors"]


def test_what_does_not_fit(tmp_path: Path) -> None:
    m: Any = tiny("llama")
    file = tmp_path / "stream.safetensors"
    with sg.streaming(m, "recent(8) + sinks(2)") as cache:
        m(IDS, cache=cache)
        sg.save_stream(cache, file)
        with pytest.raises(OutputError, match="cannot write"):
            sg.save_stream(cache, file / "under")
        with pytest.raises(RecordError, match="not a readable stream"):
            sg.load_stream(cache, tmp_path / "nothing")
        (tmp_path / "broken").write_bytes(file.read_bytes()[:500])
        with pytest.raises(RecordError, match="not a readable stream"):
            sg.load_stream(cache, tmp_path / "broken")
    for other, policy, positions, what in (
        (tiny("llama", seed=1), "recent(8) + sinks(2)", "slots", "another model"),
        (m, "recent(8) + sinks(1)", "slots", "another policy"), (m, "recent(8) + sinks(2)", "original", "another positions"),
    ):  # fmt: skip
        with sg.streaming(other, policy, positions=positions) as cache, pytest.raises(ArgumentError, match=what):
            sg.load_stream(cache, file)
    alone = sg.StreamingCache(m.config, "recent(8)")
    with pytest.raises(UnsupportedError, match="only a whole stream"):
        sg.save_stream(alone, file)
    with pytest.raises(ArgumentError, match="a cache alone"):
        sg.load_stream(alone, file)
    with pytest.raises(ArgumentError, match="made alone"):
        sg.new_stream(alone)
