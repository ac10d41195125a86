"""The weightings that tests run over: every registered name, and variants that take another path."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sinkgate.ops.attention import explain
from sinkgate.weighting import as_weighting, names
from sinkgate.weighting.clipped import ClippedSoftmax
from sinkgate.weighting.elementwise import Relu, Sigmoid
from sinkgate.weighting.softmax import SinkSoftmax
from sinkgate.weighting.softpick import Softpick
from sinkgate.weighting.sparse import Entmax
from sinkgate.weighting.topk import TopKSoftmax

VARIANTS: dict[str, Any] = {
    "sink_softmax(z=2)": SinkSoftmax(2.0),
    "sink_softmax(z=-inf)": SinkSoftmax(-math.inf),
    "sigmoid(bias=-1)": Sigmoid(bias=-1.0),
    "sigmoid(n=64)": Sigmoid(n=64),
    "relu(raw)": Relu(normalize=False),
    "relu(squared)": Relu(squared=True),
    "relu(n=100)": Relu(n=100),
    "softpick(eps=0)": Softpick(eps=0.0),
    "topk(3)": TopKSoftmax(3),
    "topk(3, delta)": TopKSoftmax(3, delta=0.5),
    "topk(2, rest)": TopKSoftmax(2, keep_rest=True),
    "entmax(1.25)": Entmax(1.25),
    "entmax(3)": Entmax(3.0),
    "clipped(wide)": ClippedSoftmax(zeta=1.2, gamma=-0.1),
    "clipped(n=20)": ClippedSoftmax(strength=2.0, n=20),
}
CORE: dict[str, Any] = {name: as_weighting(name) for name in names()}
ALL: dict[str, Any] = {**{name: as_weighting(name) for name in names()}, **VARIANTS}


def per_head(heads: int) -> dict[str, Any]:
    """Weightings whose learned field has one entry per head, float64."""
    ramp = torch.arange(heads, dtype=torch.float64)
    return {
        "sink_softmax[z]": SinkSoftmax(ramp - 1),
        "sigmoid[bias]": Sigmoid(bias=-ramp),
        "entmax[alpha]": Entmax(1.2 + 0.4 * ramp),
        "topk[k]": TopKSoftmax((ramp + 1).long(), delta=0.1),
    }


def cast(weighting: Any, dtype: torch.dtype) -> Any:
    """Tensors of a weighting in another dtype."""
    tensors = {n: x.to(dtype) for n, x in weighting.tensors().items() if x.is_floating_point()}
    return weighting.with_tensors(**tensors) if tensors else weighting


FAST = ["native", "stock", "blocked"]  # what runs on CPUs; test_triton.py has a process of its own


def able(impl: str, dtype: torch.dtype, weighting: Any, **more: Any) -> None:
    """Skip, with its reason, where an implementation says that it cannot."""
    b, h, t, s, d, dv = more.pop("shape", (1, 2, 4, 4, 8, 8))
    q, k, v = (
        torch.zeros(b, h, t, d, dtype=dtype),
        torch.zeros(b, h, s, d, dtype=dtype),
        torch.zeros(b, h, s, dv, dtype=dtype),
    )
    reason = explain(q, k, v, weighting=weighting, impl=impl, **more).reasons[impl]
    if reason:
        pytest.skip(f"{impl}: {reason}")
