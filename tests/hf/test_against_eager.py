"""Every statistic against eager attention matrices, for every architecture, padded and not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models import CONFIGS, VOCABULARY, tiny
from reference import assert_agree, statistics
from sinkgate.hf.anatomy import trace
from sinkgate.hf.reading import Reader
from sinkgate.probe.probe import Probe
from sinkgate.schema import Settings

LENGTH = 90


def batch(padding: str, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator)
    if padding == "none":
        return ids, None
    mask = torch.ones_like(ids)
    for row, missing in enumerate((0, 7, 40)):
        if missing:
            where = slice(None, missing) if padding == "left" else slice(-missing, None)
            mask[row, where] = 0
    return ids, mask


def diagnose(model: Any, ids: torch.Tensor, mask: torch.Tensor | None, detail: str = "full") -> Any:
    probe = Probe(Settings(detail=detail, tokens=ids.shape[1], local_window=16))  # type: ignore[arg-type]
    lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(-1).tolist()
    samples = [{"id": str(b), "source": "", "tokens": ["x"] * n, "bos": False} for b, n in enumerate(lengths)]
    anatomy = trace(model, ids[:1, :24])
    with Reader(anatomy, probe).open() as reader, probe.sample(samples):
        reader.run(ids, mask)
    from sinkgate.probe.diagnose import layer_entries

    return probe.finish(model={"name": "tiny"}, layers=layer_entries(anatomy))


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_statistic_equals_eager(name: str, padding: str) -> None:
    model = tiny(name)
    ids, mask = batch(padding)
    reference = statistics(model, ids, mask, window=16)
    assert_agree(diagnose(model, ids, mask), reference)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_eager_implementation_is_read_as_well(name: str) -> None:
    """Without a kernel's log-sum-exp the blocks compute their own."""
    model = tiny(name, attn="eager")
    ids, mask = batch("left")
    assert_agree(diagnose(model, ids, mask), statistics(model, ids, mask, window=16))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
def test_bfloat16_within_its_bound(name: str) -> None:
    """Both round the same inputs to eight bits of mantissa, at different places: 2^-8 of each weight, averaged."""
    model = tiny(name, dtype=torch.bfloat16)
    ids, _ = batch("none")
    ours, theirs = diagnose(model, ids, None), statistics(model, ids, window=16)
    mass = np.mean([s["mass"] for s in theirs], axis=0)
    np.testing.assert_allclose(ours.first_token_mass, mass, atol=2**-8)
    alpha = np.mean([s["alpha"] for s in theirs], axis=0)
    np.testing.assert_allclose(ours.key_mass, alpha, atol=2**-8)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_the_cheap_levels_agree_with_the_full_one(name: str, padding: str) -> None:
    model = tiny(name)
    ids, mask = batch(padding)
    full = diagnose(model, ids, mask)
    for detail in ("first", "keys"):
        cheap = diagnose(model, ids, mask, detail)
        np.testing.assert_allclose(cheap.first_token_mass, full.first_token_mass, atol=1e-6)
        np.testing.assert_allclose(cheap.margin, full.margin, atol=1e-4)
        np.testing.assert_allclose(cheap.arrays["alpha4"], full.arrays["alpha4"], atol=1e-6)
        np.testing.assert_array_equal(cheap.null_mass, full.null_mass)
        for eps in (0.05, 0.1, 0.3):
            for convention in ("mean", "sample"):
                assert cheap.sink_rate(eps, convention) == full.sink_rate(eps, convention)


def test_both_sink_rate_conventions_by_hand() -> None:
    model = tiny("llama")
    ids, _ = batch("none")
    d = diagnose(model, ids, None)
    reference = statistics(model, ids)
    alpha = np.stack([s["mass"] for s in reference])  # [sample, layer, head]
    eps = float(np.median(alpha))
    assert d.sink_rate(eps, "mean") == (alpha.mean(0) > eps).mean()
    assert d.sink_rate(eps, "sample") == pytest.approx((alpha > eps).mean())
    assert d.sink_rate(eps, "mean") != d.sink_rate(eps, "sample")
    assert [row["eps"] for row in d.sink_rates((0.1, 0.2))] == [0.1, 0.2]
