"""A lab model's record against the lab's own reading and against transformers' Llama with the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_decoder import llama

import sinkgate as sg
from sinkgate.errors import UnsupportedError
from sinkgate.hf.anatomy import trace
from sinkgate.hf.reading import Reader
from sinkgate.lab.arms import as_arm
from sinkgate.lab.decoder import Decoder, DecoderConfig
from sinkgate.lab.diagnosis import diagnose_decoder
from sinkgate.lab.measure import read
from sinkgate.probe.probe import Probe
from sinkgate.schema import Settings

IDS = torch.randint(0, 50, (2, 60), generator=torch.Generator().manual_seed(0))


def model(text: str) -> Decoder:
    return Decoder(DecoderConfig(50, dim=32, layers=2, heads=4, kv_heads=2, context=60, std=0.4), as_arm(text), seed=2)


@pytest.mark.parametrize(
    "text",
    [
        "softmax",
        "sink_softmax",
        "softmax1 + g1",
        "softmax + window(40) + keep(2)",
        "softmax + sink_token(2)",
        "softmax + head_norm",
    ],
)
def test_the_record_says_what_the_lab_reads(text: str, tmp_path: Path) -> None:
    m = model(text)
    d, r = diagnose_decoder(m, IDS), read(m, IDS)
    np.testing.assert_allclose(d.first_token_mass, r.first.numpy(), atol=1e-6)
    np.testing.assert_allclose(d.null_mass, r.null.numpy(), atol=1e-12)
    np.testing.assert_allclose(d.kurtosis, r.kurtosis, rtol=1e-4)
    assert np.isfinite(d.sink_write_ratio).any() == ("head_norm" not in text)
    d.save(tmp_path / "d")
    assert d.to_html(tmp_path / "d.html")


def test_the_record_is_that_of_the_same_weights_in_transformers() -> None:
    m = model("softmax")
    other = llama(m)
    ids = IDS[:1]
    probe = Probe(Settings(tokens=60))
    sample = [{"id": "a", "source": "a", "tokens": [str(i) for i in ids[0].tolist()], "bos": False}]
    reader = Reader(trace(other, ids[:, :32]), probe)
    with reader.open(), probe.sample(sample):
        reader.run(ids)
    theirs = probe.finish(model={"name": "llama"})
    ours = diagnose_decoder(m, ids)
    for name in ("first_token_mass", "key_mass", "sink_write_ratio"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=2e-4, err_msg=name)


def test_a_record_of_plain_tensors_has_a_page(tmp_path: Path) -> None:
    q = torch.randn(1, 3, 40, 8, generator=torch.Generator().manual_seed(0))
    assert sg.measure(q, q, q).to_html(tmp_path / "x.html")


def test_other_weightings_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"not of softpick; sinkgate\.lab\.measure\.read reads it"):
        diagnose_decoder(model("softpick"), IDS)
