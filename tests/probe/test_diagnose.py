"""The public way in: names, shapes, options, series."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.errors import ArgumentError, NonFiniteError, RecordError, TextError
from sinkgate.probe.text import Text


def texts(n: int = 3, length: int = 120) -> list[str]:
    return [words(length, seed) for seed in range(n)]


def small(**kwargs: Any) -> Any:
    options = {"tokens": 100, "samples": 3, **kwargs}
    return sg.diagnose(tiny("llama"), tokenizer(), texts(), **options)


def test_names_and_shapes(tmp_path: Path) -> None:
    d = small()
    assert isinstance(d, sg.Diagnosis)
    assert d.shape == d.first_token_mass.shape == d.null_mass.shape == d.sink_write_ratio.shape == (3, 6)
    assert d.key_mass.shape == (3, 6, 100)
    assert np.isfinite(d.key_mass[..., : 100 - 31]).all()
    assert np.isnan(d.key_mass[..., 100 - 31 :]).all()  # fewer than 32 queries see these
    assert 0 <= d.sink_rate(eps=0.3, convention="mean") <= 1
    assert 0 <= d.sink_rate(eps=0.3, convention="sample") <= 1
    assert isinstance(d.sinks, list)
    d.save(tmp_path / "record")
    again = sg.Diagnosis.load(tmp_path / "record")
    for name in d.arrays:
        np.testing.assert_array_equal(d.arrays[name], again.arrays[name])
    assert d.to_html(tmp_path / "page" / "report.html").read_text().startswith("<!doctype html>")
    frame = d.to_frame()
    assert len(frame) == 18
    assert {"layer", "head", "first_token_mass", "null_mass", "sink_write_ratio", "head_kind"} <= set(frame.columns)
    np.testing.assert_array_equal(frame.first_token_mass.to_numpy().reshape(3, 6), d.first_token_mass)


def test_plain_causal_null_is_the_closed_form() -> None:
    d = small()
    np.testing.assert_allclose(d.null_mass, sg.geometry.uniform_null(100), rtol=1e-12)
    for k in (0, 5, 40):
        np.testing.assert_allclose(d.key_null[:, k], sg.geometry.uniform_null(100, k + 1), rtol=1e-9)


def test_the_first_query_is_left_out_by_option() -> None:
    d = small()
    with_first, without = d.mass_by_sample(), d.mass_by_sample(first_query=False)
    np.testing.assert_allclose(with_first * 100, without * 99 + 1, rtol=1e-6)
    np.testing.assert_allclose(d.null_by_sample(first_query=False)[0], (sg.geometry.harmonic(100) - 1) / 99)


def test_intervals_are_students() -> None:
    from scipy.stats import t

    d = small()
    values = d.mass_by_sample() - d.null_by_sample()
    half = t.ppf(0.975, 2) * values.std(0, ddof=1) / np.sqrt(3)
    interval = d.excess()
    np.testing.assert_allclose(interval.low, values.mean(0) - half)
    np.testing.assert_allclose(interval.high, values.mean(0) + half)
    one = small(samples=1)
    assert np.isnan(one.excess().low).all()
    assert any("one sample" in line for line in one.verdict())


def test_parts_merge_to_the_bits_of_the_whole() -> None:
    model, tok = tiny("gemma3"), tokenizer()
    several = [Text(f"text {n}", words(n, n)) for n in (100, 70, 90)]
    whole = sg.diagnose(model, tok, several, tokens=100)
    parts = [sg.diagnose(model, tok, [one], tokens=100) for one in several]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        a, b, c = (parts[i] for i in order)
        for merged in (a.merge(b).merge(c), a.merge(b.merge(c))):
            assert merged.arrays.keys() == whole.arrays.keys()
            for name, array in whole.arrays.items():
                np.testing.assert_array_equal(merged.arrays[name], array, err_msg=name)
            assert merged.verdict() == whole.verdict()
            assert merged.meta["samples"] == whole.meta["samples"]
            assert merged.meta["massive"] == whole.meta["massive"]
    with pytest.raises(RecordError, match="count twice"):
        parts[0].merge(parts[0])
    with pytest.raises(RecordError, match="different models"):
        parts[0].merge(sg.diagnose(tiny("gemma3", seed=1), tok, [several[1]], tokens=100))
    with pytest.raises(RecordError, match="different settings: threshold"):
        parts[0].merge(sg.diagnose(model, tok, [several[1]], tokens=100, threshold=0.2))


def test_batches_give_the_same_numbers() -> None:
    one, several = small(), small(batch_size=3)
    for name in ("first_token_mass", "key_mass", "entropy", "sink_write_ratio", "kurtosis"):
        np.testing.assert_allclose(getattr(one, name), getattr(several, name), rtol=1e-4, atol=1e-6)


def test_a_series(tmp_path: Path) -> None:
    names = []
    for seed in range(3):
        path = tmp_path / f"step-{seed}"
        tiny("llama", seed=seed).save_pretrained(path)
        tokenizer().save_pretrained(path)
        names.append(str(path))
    series = sg.diagnose(names, None, texts(), tokens=80, samples=2)
    assert isinstance(series, sg.Series)
    assert [n for n, _ in series] == names
    alone = sg.diagnose(names[1], None, texts(), tokens=80, samples=2)
    np.testing.assert_array_equal(series.diagnoses[1].first_token_mass, alone.first_token_mass)
    series.save(tmp_path / "out")
    again = sg.Series.load(tmp_path / "out")
    assert again.rows() == series.rows()
    assert list(series.to_frame().columns) == ["name", "first_token_mass", "low", "high", "null_mass", "sink_rate"]
    assert '"series":{' in series.to_html(tmp_path / "out" / "report.html").read_text()
    (tmp_path / "out" / "series.json").write_text(json.dumps({"items": [{"name": "x", "folder": "../../etc"}]}))
    with pytest.raises(RecordError, match="outside"):
        sg.Series.load(tmp_path / "out")


def test_learned_sinks_are_reported() -> None:
    d = sg.diagnose(tiny("gpt_oss"), tokenizer(), texts(), tokens=100)
    assert (d.learned_mass > 0).all()
    assert any("learned sink logit takes" in line for line in d.verdict())
    assert all(layer["learned_sink"] for layer in d.layers)


def test_nan_in_the_weights_is_named(tmp_path: Path) -> None:
    for name, heads in (("q_proj", "head 3:"), ("v_proj", "heads 3, 4, 5:"), ("o_proj", "heads 0, 1, 2, 3, 4, 5:")):
        model = tiny("llama")
        with torch.no_grad():
            getattr(model.model.layers[1].self_attn, name).weight[{"q_proj": 3 * 8, "v_proj": 8, "o_proj": 0}[name]] = (
                float("nan")
            )
        layer = 2 if name == "o_proj" else 1
        with pytest.raises(
            NonFiniteError, match=rf"layer {layer}, {heads}.*layers\.1\.self_attn\.{name}\.weight hold NaN"
        ):
            sg.diagnose(model, tokenizer(), texts(), tokens=64)


def test_overflow_is_told_from_bad_weights() -> None:
    model = tiny("llama", dtype=torch.float16)
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.mul_(4e4)
    with pytest.raises(NonFiniteError, match=r"layer \d.*try dtype float32"):
        sg.diagnose(model, tokenizer(), texts(), tokens=64)


@pytest.mark.parametrize(
    ("kwargs", "error", "words_in_it"),
    [
        ({"detail": "some"}, ArgumentError, "detail must be"),
        ({"threshold": 0}, ArgumentError, "threshold must be between 0 and 1"),
        ({"bos": "maybe"}, ArgumentError, "bos must be"),
        ({"batch_size": 0}, ArgumentError, "batch_size must be at least 1"),
        ({"tokens": 1}, TextError, "tokens must be at least 2"),
        ({"samples": 0}, TextError, "samples must be at least 1"),
        ({"local_window": 0}, ArgumentError, "local_window"),
    ],
)
def test_bad_settings(kwargs: dict[str, Any], error: type[Exception], words_in_it: str) -> None:
    with pytest.raises(error, match=words_in_it) as caught:
        small(**kwargs)
    assert "\n" not in str(caught.value)


def test_bad_texts_and_models() -> None:
    model, tok = tiny("llama"), tokenizer()
    with pytest.raises(TextError, match="empty"):
        sg.diagnose(model, tok, [])
    with pytest.raises(TextError, match="empty"):
        sg.diagnose(model, tok, ["   \n"])
    with pytest.raises(TextError, match="at least 2 tokens"):
        sg.diagnose(model, tok, ["w1"])
    with pytest.raises(ArgumentError, match="needs its tokenizer"):
        sg.diagnose(model, None, ["w1 w2"])
    with pytest.raises(ArgumentError, match="list of models is empty"):
        sg.diagnose([], tok, ["w1 w2"])
    d = sg.diagnose(model, tok, ["w1 w2"])
    assert d.first_token_mass.shape == (3, 6)
    assert any("short" in note for note in d.meta["notes"])


def test_more_tokens_than_positions() -> None:
    model = tiny("gpt2")
    with pytest.raises(ArgumentError, match=r"cannot take 600 tokens \(it has 512 positions\)"):
        sg.diagnose(model, tokenizer(), [words(700)], tokens=600)
    d = sg.diagnose(tiny("llama"), tokenizer(), [words(700)], tokens=600, samples=1)
    assert any("longer than the 512 positions" in note for note in d.meta["notes"])


def test_the_bos_choice() -> None:
    model = tiny("llama")
    plain, adding = tokenizer(), tokenizer(bos=True)
    for tok, bos, expected, sentence in (
        (plain, "auto", False, "none was added"),
        (adding, "auto", True, "as the tokenizer does"),
        (plain, "yes", True, "as asked"),
        (adding, "no", False, "as asked"),
    ):
        d = sg.diagnose(model, tok, texts(1), tokens=60, bos=bos)
        assert d.meta["samples"][0]["bos"] is expected
        assert d.meta["samples"][0]["length"] == 60
        assert sentence in d.meta["model"]["bos"]
        assert (d.meta["strip"]["tokens"][0] == "<s>") is expected
    nameless = tokenizer()
    nameless.bos_token = None
    with pytest.raises(TextError, match="no beginning-of-text token"):
        sg.diagnose(model, nameless, texts(1), bos="yes")


def test_what_a_cheap_record_lacks_is_said() -> None:
    d = small(detail="first")
    assert np.isfinite(d.first_token_mass).all()
    with pytest.raises(ArgumentError, match="detail='first' and lacks key_mass"):
        _ = d.key_mass
    with pytest.raises(ArgumentError, match="keys 0 to 3"):
        d.sink_rate(key=4)
    with pytest.raises(ArgumentError, match="convention must be"):
        d.sink_rate(convention="median")  # type: ignore[arg-type]
    keys = small(detail="keys")
    assert np.isfinite(keys.key_mass[..., :60]).all()
    with pytest.raises(ArgumentError, match="detail='keys' and lacks sink_write"):
        _ = keys.sink_write_ratio
    for cheap in (d, keys):
        assert "heads" in str(cheap)
        assert cheap.to_frame().shape[0] == 18


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    small(progress=lambda done, total, what: seen.append((done, total)))
    assert seen == [(i, 9) for i in range(1, 10)]  # three samples of three layers
