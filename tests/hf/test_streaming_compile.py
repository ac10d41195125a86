"""One decode step compiles whole, and is not compiled again however far the stream goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streams import in_parts
from torch._dynamo.utils import counters

import sinkgate as sg
from models import tiny

IDS = torch.randint(0, 96, (1, 60), generator=torch.Generator().manual_seed(1))


def model(dtype: torch.dtype) -> Any:
    m = tiny("llama", dtype=dtype)
    m.config.max_position_embeddings = 10**9
    return m


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize("positions", ["slots", "original"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_ten_thousand_steps_without_compiling_again(dtype: torch.dtype, positions: str) -> None:
    m = model(dtype)
    tokens = 10_000 if (dtype, positions) == (torch.bfloat16, "slots") else 1_000
    with sg.streaming(m, "recent(16) + sinks(3)", positions=positions) as cache, torch.no_grad():
        m(IDS[:, :30], cache=cache)
        step = torch.compile(m, fullgraph=True, backend="eager")
        bytes_before = None
        for t in range(tokens):
            step(IDS[:, t % 60 : t % 60 + 1], cache=cache)
            bytes_before = bytes_before or cache.nbytes()
        assert cache.columns == 30 + tokens
        assert cache.nbytes() == bytes_before
        assert cache.held() == 19
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["recompiles"]
    assert not counters["graph_break"]


@pytest.mark.filterwarnings("ignore:The distutils package is deprecated:DeprecationWarning")  # setuptools, for inductor
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("positions", "backend"), [("slots", "eager"), ("original", "eager"), ("slots", "inductor")])
def test_compiled_steps_are_the_eager_ones(positions: str, backend: str) -> None:
    m = model(torch.float64)
    with sg.streaming(m, "recent(16) + sinks(3)", positions=positions) as cache:
        want = in_parts(m, IDS, cache, [1])
    with sg.streaming(m, "recent(16) + sinks(3)", positions=positions) as cache, torch.no_grad():
        got = [m(IDS[:, :1], cache=cache).logits]
        step = torch.compile(m, fullgraph=True, backend=backend)
        got += [step(IDS[:, t : t + 1], cache=cache).logits.clone() for t in range(1, 40)]  # pinned tokens among them
        got.append(m(IDS[:, 40:55], cache=cache).logits)  # and eager again
        got += [step(IDS[:, t : t + 1], cache=cache).logits.clone() for t in range(55, 60)]
    # the model's own norms are float32, which inductor sums in another order
    assert (torch.cat(got, 1) - want).abs().max() < (1e-11 if backend == "eager" else 1e-5)
    assert counters["stats"]["unique_graphs"] == 1
