"""What a review of the planner found: each of these was wrong once."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formula import Formula, piece, space
from planned import ASKED, TEXTS
from test_plan_search import START, made  # type: ignore[import-not-found]

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.errors import NonFiniteError, OutputError, RecordError, UnsupportedError
from sinkgate.planning import bits, make, reasons, verify
from sinkgate.planning.measure import Beside, Measurer
from sinkgate.planning.promise import SPLIT
from sinkgate.planning.quantization_spec import WeightSpec
from sinkgate.planning.request import Request
from sinkgate.planning.search import search
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import Choice
from sinkgate.planning.store import Store
from sinkgate.planning.texts import Split, split
from sinkgate.planning.verify import Verdict, following
from sinkgate.probe.text import Text

# ---- the budget -----------------------------------------------------------------------------------------------------


def test_what_is_tried_after_a_failed_verification_keeps_to_the_budget() -> None:
    s = space()
    failed = Choice(sinks=2, window=100)
    wider = following(failed, [], s, 1)
    assert wider is not None
    assert following(failed, [], s, 1, budget=s.bytes(wider)) == wider
    assert following(failed, [], s, 1, budget=s.bytes(wider) - 1) is None


def test_a_plan_hands_its_budget_on(llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(verify, "following", lambda *given: asked.append(given[-1]))
    monkeypatch.setattr(make, "verify", lambda measurer, setting, *_: Verdict(setting, [0.4, 0.5], bound=1.0))
    sg.plan(llama, tokenizer(), TEXTS, **ASKED, budget=20_000, folder=tmp_path)
    assert asked == [20_000]


def test_numbers_of_numpy_are_numbers() -> None:
    found = Request(budget=np.int64(4096), context=np.int32(64), seed=np.int64(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(found.to_json()))["budget"] == 4096
    assert found == Request(budget=4096, context=64, seed=3)


def test_no_window_leaves_the_trained_positions() -> None:
    s = space(4096)  # of a model made for 512
    full = s.whole(Choice(sinks=2, window=508, bits=4))
    assert full.window == 508
    assert s.whole(Choice(sinks=2, window=500, bits=4)).window == 508
    assert following(Choice(sinks=2, window=508), [], s, 1) is None


# ---- texts ----------------------------------------------------------------------------------------------------------


def test_short_texts_do_not_hide_a_long_one() -> None:
    short = [words(40, seed=100 + i) for i in range(60)]
    found = split(tokenizer(), [*short, words(3000, seed=5)], length=128, tune=2, verify=4, least=4, seed=0)
    assert (len(found.tune), len(found.verify)) == (2, 4)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_long_texts_are_tuned_on_or_verified_on_never_both(count: int) -> None:
    texts = [Text(f"book {i}", words(2000, seed=i)) for i in range(count)]
    for seed in range(3):
        found = split(tokenizer(), texts, length=100, tune=3, verify=6, least=4, seed=seed)
        tune, verify = ({p.source.rpartition("[")[0] for p in part} for part in (found.tune, found.verify))
        assert not tune & verify
        assert (len(found.tune), len(found.verify)) == (3, 6)


def test_weights_are_not_chosen_on_the_texts_they_are_verified_on(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def arms(model: Any, tok: Any, pieces: Any, *_: Any, **__: Any) -> Any:
        seen.extend(p.id for p in pieces)
        raise KeyboardInterrupt

    monkeypatch.setattr(bits, "arms", arms)
    asked = {**ASKED, "max_increase": None, "weight_budget": bits.widths(llama).uniform[6]}
    with pytest.raises(KeyboardInterrupt):
        sg.plan(llama, tokenizer(), TEXTS, **asked, folder=tmp_path)
    found = split(tokenizer(), TEXTS, length=128, tune=2, verify=4, least=4, seed=0)
    assert seen
    assert not set(seen) & {p.id for p in found.verify}


# ---- using it -------------------------------------------------------------------------------------------------------


def test_weights_and_cache_of_a_plan_are_used_together(plan_of_llama: sg.Plan) -> None:
    llama = tiny("llama")
    plan = sg.Plan.from_json(json.loads(json.dumps(plan_of_llama.to_json())))
    spec = bits.uniform_spec(llama, 6)
    assert isinstance(spec, WeightSpec)
    plan.weights = spec.to_json()
    ids = torch.arange(2, 40)[None]
    with torch.no_grad(), plan.apply(llama), plan.streaming(llama) as cache:
        assert llama(ids, cache=cache).logits.isfinite().all()
    other = tiny("llama", seed=1)
    with plan.apply(llama), pytest.raises(RecordError, match="this plan was made for"), plan.streaming(other):
        pass
    with torch.no_grad(), plan.streaming(llama) as cache:
        llama(ids, cache=cache)


def test_a_model_of_windows_alone_is_refused_past_them(tmp_path: Path) -> None:
    """Keeping everything would show it more than it was trained for: that is not the model as it is."""
    with pytest.raises(UnsupportedError, match="has a window of 16 tokens, so its cache is bounded already"):
        sg.plan(tiny("mistral"), tokenizer(), TEXTS, **ASKED, folder=tmp_path)


# ---- what is kept ---------------------------------------------------------------------------------------------------


def test_another_record_does_not_go_on_from_the_search_of_this_one() -> None:
    work = make._Work(tiny("llama"), tokenizer(), Request(max_increase=0.1, context=128), "it", lambda *_: None)
    work.texts = Split((), (), 128, "", 1, 1)
    work.measurer = types.SimpleNamespace(dtype="float32")  # type: ignore[assignment]
    keys = set()
    for change in (
        {},
        {"sinks": ("", "sinks(1)", "sinks(4)", "sinks(2)")},
        {"layers": (2, 0, 1)},
        {"heads": ((0, 1),)},
    ):
        work.space = space(128, **change)
        keys.add(work._key())
    assert len(keys) == 4


def test_the_time_of_a_step_is_not_that_of_other_threads(
    llama: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurer = Measurer(llama, Store("x", "float32", tmp_path))
    times = iter([(1.0,), (2.0,)])
    monkeypatch.setattr(
        measurer,
        "_beside",
        lambda *_: Beside(0.0, 1.0, next(times), (1.0,), 1, 1),  # type: ignore[attr-defined]
    )
    for threads, expected in ((3, 1.0), (5, 2.0), (3, 1.0)):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        assert measurer.beside(Setting("recent(8)"), piece(0)).milliseconds == (expected,)


def test_a_cache_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OutputError, match=r"cannot keep what was measured in .*; name another folder in SINKGATE_CACHE"
    ):
        Store("x", "float32", tmp_path / "file")["key"] = 1


def test_out_is_tried_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sinkgate.cli import plan

    def refused(**_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refused)
    with pytest.raises(OutputError, match="Permission denied"):
        plan._out(tmp_path / "plan.json")


# ---- the promise ----------------------------------------------------------------------------------------------------


def beside(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[Setting, float]], dict[str, Any]]:
    """A plan's baseline that is better beyond the interval."""
    work = make._Work(tiny("llama"), tokenizer(), Request(max_increase=0.1, context=256), "it", lambda *_: None)
    work.space = space()
    worse = Setting("recent(128)")
    work.measurer = Formula(lambda s, i: (0.05 if s == worse else 0.01) + 1e-4 * i)  # type: ignore[assignment]
    work.texts = Split((), tuple(piece(i) for i in range(6)), 256, "", 6, 6)
    asked: list[tuple[Setting, float]] = []

    def verify(_: Any, setting: Setting, texts: Any, request: Any, share: float) -> Verdict:
        asked.append((setting, share))
        return Verdict(setting, kept=False)

    monkeypatch.setattr(make, "verify", verify)
    _, found = work._beside_plain(Verdict(worse, [0.05] * 6, kept=True), work.space.bytes(Choice(window=128)))
    assert found is not None
    return asked, found


def test_the_baseline_has_a_share_of_the_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, found = beside(monkeypatch)
    assert [share for _, share in asked] == [SPLIT[-1]]
    assert not found["taken"]


def test_a_baseline_that_is_better_is_not_called_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = beside(monkeypatch)
    assert found["difference"]["low"] > 0
    line = reasons._baseline(types.SimpleNamespace(baseline=found))
    assert line.endswith("nats: worse beyond the interval, but the other could not be verified to keep the tolerance.")


# ---- sentences ------------------------------------------------------------------------------------------------------


def test_none_kept_says_why(tmp_path: Path) -> None:
    it = made(lambda setting, text: 0.015 + 0.008 * (text - 1))  # within 2% on average, with too wide a spread
    search(it, START, tmp_path / "spread")
    assert not it.kept()
    assert "kept the tolerance with room for other texts; the mildest" in reasons.none_kept(it)

    def nan(setting: Setting, text: int) -> float:
        raise NonFiniteError("a loss is NaN")

    it = made(nan)
    search(it, START, tmp_path / "nan")
    assert "settings that were tried could be measured (NonFiniteError: a loss is NaN): leave it." in reasons.none_kept(
        it
    )


def test_nobody_is_sent_to_the_effort_that_was_made() -> None:
    verdict = Verdict(Setting("recent(8)"), [0.005, 0.009, 0.007, 0.001], bound=0.02, more=31)
    texts = Split((), (piece(0),), 512, "", 4, 1)
    (line,) = reasons.not_promised([verdict], texts, Request(max_increase=0.01, effort="thorough"))
    assert "reads more" not in line
    (line,) = reasons.not_promised([verdict], texts, Request(max_increase=0.01))
    assert line.endswith("effort 'thorough' reads more.")
