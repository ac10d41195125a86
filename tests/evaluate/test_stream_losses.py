"""``sg.stream`` against losses computed another way: one plain pass, one masked pass, rotated afresh, slices."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinkgate as sg
from hf.streams import band, masked, rotated_afresh, sinks_and_recent
from models import tiny, tokenizer, words
from sinkgate.errors import ArgumentError, NonFiniteError, OutputError, RecordError, TextError
from sinkgate.evaluate.stream_record import StreamArm, StreamRecord, labels
from sinkgate.report.stream import render

LENGTH, WINDOW, EVERY = 150, 24, 32


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama")


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(0, 96, (1, LENGTH), generator=torch.Generator().manual_seed(3))


def nats(logits: Tensor, ids: Tensor) -> np.ndarray:
    """Of each next token, from the definition."""
    shares = torch.softmax(logits[0, :-1].double(), -1)
    return np.array([-math.log(float(shares[t, ids[0, t + 1]])) for t in range(ids.shape[1] - 1)])


def points(values: np.ndarray, every: int = EVERY) -> list[float]:
    return [float(values[i : i + every].sum()) for i in range(0, len(values), every)]


def close(found: Sequence[float], wanted: Sequence[float]) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


def test_dense_is_one_plain_pass(model: Any, ids: Tensor) -> None:
    arm = sg.stream(model, None, ids, "dense", every=EVERY, chunk=17).arms[0]
    with torch.no_grad():
        wanted = nats(model(ids).logits, ids)
    close(arm.sums, points(wanted))
    assert arm.counts == [32, 32, 32, 32, 21]
    assert arm.tokens == LENGTH - 1
    assert arm.loss == pytest.approx(wanted.mean(), rel=1e-5)
    assert arm.perplexity == pytest.approx(math.exp(wanted.mean()), rel=1e-4)
    assert (arm.complete, arm.note, arm.held) == (True, "", LENGTH - 1)
    np.testing.assert_allclose(arm.curve(), [x.mean() for x in np.split(wanted, range(32, 149, 32))], rtol=2e-5)


@pytest.mark.parametrize("sinks", [0, 4])
def test_original_positions_are_one_masked_pass(model: Any, ids: Tensor, sinks: int) -> None:
    record = sg.stream(
        model, None, ids, "sinks" if sinks else "window", window=WINDOW, positions="original", every=EVERY, chunk=40
    )
    wanted = nats(masked(model, ids, band(LENGTH, WINDOW - sinks, sinks)), ids)
    close(record.arms[0].sums, points(wanted))
    assert record.arms[0].held == WINDOW


@pytest.mark.parametrize("sinks", [0, 4])
def test_slots_are_keys_rotated_afresh_for_each_token(model: Any, ids: Tensor, sinks: int) -> None:
    found = sg.stream(model, None, ids, "sinks" if sinks else "window", window=WINDOW, every=EVERY).arms[0]
    wanted = nats(rotated_afresh(model, ids, sinks_and_recent(WINDOW - sinks, sinks)), ids)
    close(found.sums, points(wanted))


@pytest.mark.parametrize("arm", ["window", "sinks", "recent(12) + heavy(6) + sinks(2)"])
def test_chunks_are_single_steps(model: Any, ids: Tensor, arm: str) -> None:
    steps, chunks = (
        sg.stream(model, None, ids[:, :90], arm, window=WINDOW, every=EVERY, chunk=chunk).arms[0] for chunk in (1, 37)
    )
    close(chunks.sums, steps.sums)
    assert (steps.chunk, chunks.chunk) == (1, 37)


def test_recomputation_is_plain_passes_of_slices(model: Any, ids: Tensor) -> None:
    record = sg.stream(model, None, ids, "recompute", window=WINDOW, every=EVERY, samples=20, seed=5)
    arm = record.arms[0]
    assert arm.at is not None
    assert len(arm.at) == 20 == arm.tokens
    edges = np.linspace(0, LENGTH - 1, 21).astype(int)
    assert all(a <= t < b for a, b, t in zip(edges, edges[1:], arm.at, strict=False))
    wanted = np.zeros(LENGTH - 1)
    for t in arm.at:
        part = ids[:, max(0, t - WINDOW + 1) : t + 2]
        with torch.no_grad():
            wanted[t] = nats(model(part[:, :-1]).logits[:, [-1, -1]], part[:, -2:])[0]
    close(arm.sums, points(wanted))
    assert arm.counts == [sum(k * EVERY <= t < (k + 1) * EVERY for t in arm.at) for k in range(5)]
    again, other = (sg.stream(model, None, ids, "recompute", window=WINDOW, samples=20, seed=s) for s in (5, 6))
    assert again.arms[0].at == arm.at != other.arms[0].at


def test_dense_stops_where_the_context_ends(model: Any) -> None:
    long = torch.randint(0, 96, (600,), generator=torch.Generator().manual_seed(0))
    record = sg.stream(model, None, long, ["dense", "sinks"], window=WINDOW, every=100)
    dense, sinks = record.arms
    assert (dense.tokens, dense.complete) == (512, False)
    assert "512 positions" in dense.note
    assert (sinks.tokens, sinks.complete, sinks.held) == (599, True, WINDOW)
    assert not record.complete
    assert "(not to the end)" in str(record)


def test_arms_and_the_text_as_they_are_asked_for(model: Any) -> None:
    record = sg.stream(
        model, tokenizer(bos=True), words(80), ["window", ("mine", "recent(8)", "original"), sg.cache.Recent(9)],
        window=WINDOW, tokens=60, source="words", name="a llama",
    )  # fmt: skip
    assert [(a.name, a.policy, a.positions) for a in record.arms] == [
        ("window", "recent(24)", "slots"), ("mine", "recent(8)", "original"), ("recent(9)", "recent(9)", "slots"),
    ]  # fmt: skip
    assert record.meta["tokens"] == 60
    assert (record.meta["text"], record.meta["model"]["name"]) == ("words", "a llama")
    assert "<s> was put first" in record.meta["model"]["bos"]
    core = tokenizer()(words(80))["input_ids"]
    with_bos = sg.stream(model, None, [0, *core][:60], "window", window=WINDOW)
    close(record.arms[0].sums, with_bos.arms[0].sums)
    for name in ("mine", "recent(9)", "a llama along 60 tokens of words"):
        assert name in str(record)
    assert record.arm("mine").policy == "recent(8)"
    with pytest.raises(ArgumentError, match="no arm 'yours'; there are window, mine"):
        record.arm("yours")


def test_both_position_schemes_side_by_side(model: Any, ids: Tensor) -> None:
    arms = [("4 sinks", "recent(20) + sinks(4)", scheme) for scheme in ("slots", "original")]
    record = sg.stream(model, None, ids, arms, every=EVERY)
    assert [(a.name, a.positions) for a in record.arms] == [("4 sinks", "slots"), ("4 sinks", "original")]
    assert labels(record.arms) == ["4 sinks, slots", "4 sinks, original"]
    assert "4 sinks, original against 4 sinks, slots" in render(record)


def test_the_change_against_another_arm(model: Any, ids: Tensor) -> None:
    record = sg.stream(model, None, ids, "dense,window,recompute", window=WINDOW, every=10, samples=9)
    dense, window, sampled = record.arms
    change = record.change(window)
    apart = window.curve() - dense.curve()
    assert change.mean == pytest.approx(apart.mean())
    assert change.low < change.mean < change.high
    assert record.change(dense, window).mean == pytest.approx(-change.mean)
    assert math.isnan(record.change(sampled).mean), "other predictions are no pair"


def test_an_interrupt_leaves_what_there_is(model: Any, ids: Tensor, tmp_path: Path) -> None:
    record = StreamRecord({}, [])

    def progress(arm: StreamArm, done: int) -> None:
        if arm.name == "4 sinks" and done >= 100:
            raise KeyboardInterrupt

    with torch.no_grad():
        before = model(ids).logits
    with pytest.raises(KeyboardInterrupt):
        sg.stream(model, None, ids, "window,sinks,dense", window=WINDOW, chunk=25, record=record, progress=progress)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, before)
    assert [(a.name, a.tokens, a.complete) for a in record.arms] == [("window", 149, True), ("4 sinks", 100, False)]
    assert record.meta["wanted"] == ["window", "4 sinks", "dense"]
    record.arms.pop()
    assert not record.complete, "what was not begun is missing too"
    back = StreamRecord.load(record.save(tmp_path / "stream.json"))
    assert back == record


def test_a_record_is_kept(model: Any, ids: Tensor, tmp_path: Path) -> None:
    record = sg.stream(model, None, ids, "window,recompute", window=WINDOW, samples=5)
    path = record.save(tmp_path / "deep" / "stream.json")
    assert StreamRecord.load(path) == record
    assert str(StreamRecord.load(path)) == str(record)
    assert [p.name for p in path.parent.iterdir()] == ["stream.json"]
    with pytest.raises(OutputError, match="cannot write"):
        record.save(path / "below.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="sinkgate.other"),
        lambda d: d.update(version=9),
        lambda d: d.pop("arms"),
        lambda d: d["arms"][0].update(more=1),
        lambda d: d["arms"][0].update(sums=["much"]),
        lambda d: d["arms"][0].update(sums=[None, *d["arms"][0]["sums"][1:]]),
        lambda d: d["arms"][0].update(counts=[]),
        lambda d: d["arms"][0].update(seconds="long"),
        lambda d: d["meta"].pop("tokens"),
        lambda d: d["meta"].update(model="x"),
    ],
)
def test_a_damaged_record_is_refused(model: Any, ids: Tensor, tmp_path: Path, change: Any) -> None:
    path = sg.stream(model, None, ids, "window", window=WINDOW).save(tmp_path / "stream.json")
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match="stream record"):
        StreamRecord.load(path)


def test_files_that_are_no_record(tmp_path: Path) -> None:
    for content in (b"{", b"\xff", b"[1]", b"[" * 100_000, b"3"):
        (tmp_path / "stream.json").write_bytes(content)
        with pytest.raises(RecordError, match=r"stream\.json is n"):
            StreamRecord.load(tmp_path / "stream.json")
    with pytest.raises(RecordError):
        StreamRecord.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arms": "everything"}, ArgumentError, "there is no arm 'everything'; there are dense, window"),
        ({"arms": "window,window"}, ArgumentError, "each once"),
        ({"arms": []}, ArgumentError, "at least one arm"),
        ({"arms": "recent(0)"}, ArgumentError, "recent"),
        ({"arms": "window", "positions": "sideways"}, ArgumentError, "positions must be"),
        ({"arms": "sinks", "window": 4}, ArgumentError, "no room for 4 sinks"),
        ({"window": 0}, ArgumentError, "window must be a whole number"),
        ({"every": 0}, ArgumentError, "every must be"),
        ({"chunk": True}, ArgumentError, "chunk must be"),
        ({"samples": 0}, ArgumentError, "samples must be"),
        ({"tokens": 1}, TextError, "at least 2"),
    ],
)
def test_what_is_refused(model: Any, ids: Tensor, options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        sg.stream(model, None, ids, **{"arms": "window", **options})


def test_a_loss_that_is_no_number_is_an_error(ids: Tensor) -> None:
    broken = tiny("llama")
    with torch.no_grad():
        broken.lm_head.weight[5] = float("nan")
    said = {"window": "hold NaN or infinity by themselves", "recompute": r"the loss of token \d+ is NaN or infinite"}
    for arm, message in said.items():
        with pytest.raises(NonFiniteError, match=message):
            sg.stream(broken, None, ids, arm, window=WINDOW, samples=3)


def test_by_turns_is_one_after_the_other(model: Any, ids: Tensor) -> None:
    """Passes of several arms taken by turns, the model free in between, give what whole arms give."""
    from sinkgate.evaluate.stream import following

    text = ids.flatten().tolist()
    policies = ["dense", "recent(12)", "recent(10) + sinks(2)", "recent(8) + heavy(4) + sinks(2)"]
    whole = sg.stream(model, None, text, policies, every=EVERY, chunk=7)
    arms = [StreamArm(p, p, "original" if p == "dense" else "slots", 7, EVERY) for p in policies]
    steps = [following(model, text, arm.policy, arm.positions, arm) for arm in arms]
    while steps:
        steps = [step for step in steps if next(step, None) is not None]
        assert "forward" not in model.__dict__
    assert [arm.sums for arm in arms] == [arm.sums for arm in whole.arms]
    assert all(arm.complete for arm in arms)
