"""The two real models: SmolLM2-135M against eager attention, Gemma 3 270M with and without its first token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkgate as sg
from reference import assert_agree, statistics
from sinkgate.probe.text import default_texts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smollm2() -> Any:
    return sg.load("smollm2-135m", dtype="float32")


@pytest.fixture(scope="module")
def diagnosis(smollm2: Any) -> Any:
    return sg.diagnose(
        smollm2.model, smollm2.tokenizer, default_texts()[:2], tokens=512, samples=2, name="smollm2-135m"
    )


def test_smollm2_equals_eager_at_512_tokens(smollm2: Any, diagnosis: Any) -> None:
    """Every statistic to 1e-5, on the first text (the second only tells that samples are averaged)."""
    texts = default_texts()[:2]
    samples = {}
    for text in texts:
        ids = torch.tensor([smollm2.tokenizer(text.content[:8000], add_special_tokens=False)["input_ids"][:512]])
        samples[text.source] = statistics(smollm2.model, ids)[0]
    order = [samples[s["source"].split("[")[0]] for s in diagnosis.meta["samples"]]
    assert_agree(diagnosis, order)


def test_reading_smollm2_changes_no_bit(smollm2: Any) -> None:
    from sinkgate.hf.anatomy import forward, trace
    from sinkgate.hf.reading import Reader
    from sinkgate.probe.probe import Probe

    ids = torch.tensor([smollm2.tokenizer("The quick brown fox jumps over the lazy dog. " * 20)["input_ids"]])
    with torch.no_grad():
        before = forward(smollm2.model, ids)
    anatomy = trace(smollm2.model, ids[:, :32])
    probe = Probe()
    sample = {"source": "", "tokens": ["x"] * ids.shape[1], "bos": False}
    with Reader(anatomy, probe).open(), torch.no_grad(), probe.sample([{"id": "a", **sample}]):
        during = forward(smollm2.model, ids)
    with Reader(anatomy, probe).open() as reader, probe.sample([{"id": "b", **sample}]):
        last = reader.run(ids)
    with torch.no_grad():
        after = forward(smollm2.model, ids)
    assert torch.equal(before, during)
    assert torch.equal(before, after)
    assert torch.equal(forward(smollm2.model, ids, last_only=True), last)


def test_smollm2_looks_as_it_is_known_to(diagnosis: Any) -> None:
    """A sanity check with wide bounds, not a value to tune to."""
    assert 0.35 < diagnosis.sink_rate() < 0.65
    assert 0.2 < float(diagnosis.first_token_mass.mean()) < 0.45
    assert diagnosis.sinks[0].position == 0
    assert diagnosis.measured.all()
    assert np.isfinite(diagnosis.sink_write_ratio).all()
    assert any("massive activation" in line for line in diagnosis.verdict())


def test_report_size(diagnosis: Any, tmp_path: Path) -> None:
    page = diagnosis.to_html(tmp_path / "report.html")
    assert page.stat().st_size < 2_000_000
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page.read_text())


def test_one_head_as_a_pattern(smollm2: Any, diagnosis: Any) -> None:
    layer, head = np.unravel_index(np.nanargmax(diagnosis.first_token_mass), diagnosis.shape)
    p = sg.pattern(
        smollm2.model, smollm2.tokenizer, default_texts()[0].content[:2000], int(layer), int(head), [50, 100, -1]
    )
    assert (p.weights[:, 0] > 0.9).all()
    np.testing.assert_allclose(p.weights.sum(1), 1, atol=1e-5)


def test_gemma3_sinks_on_its_first_token_only_if_it_has_one() -> None:
    loaded = sg.load("gemma3-270m", dtype="float32")
    assert "Gemma" in loaded.source["notice"]
    kwargs: dict[str, Any] = {"tokens": 256, "samples": 2, "name": "gemma3-270m"}
    with_bos = sg.diagnose(loaded.model, loaded.tokenizer, default_texts()[:2], **kwargs)
    without = sg.diagnose(loaded.model, loaded.tokenizer, default_texts()[:2], bos="no", **kwargs)
    assert 0.3 < with_bos.sink_rate() < 0.7
    assert with_bos.sinks[0].kind == "bos"
    assert without.sink_rate() == 0
    assert float(without.first_token_mass.mean()) < float(without.null_mass.mean())
    where = " ".join(without.verdict())
    assert "The first token is no sink here. Instead" in where
    assert "of the attention stays within the last 64 tokens" in where
    assert any(layer["kind"] == "window" for layer in without.layers)
    assert np.isfinite(with_bos.sink_write_ratio).all()  # through the norm behind each output map


def test_gemma3_equals_eager() -> None:
    loaded = sg.load("gemma3-270m", dtype="float32")
    text = default_texts()[0]
    d = sg.diagnose(loaded.model, loaded.tokenizer, [text], tokens=192, samples=1)
    ids = torch.tensor([loaded.tokenizer(text.content[:4000])["input_ids"][:192]])
    assert_agree(d, statistics(loaded.model, ids), stream_rtol=1e-4)
