"""Recall under caches: predictions against a plain pass, the cliff against a reader that knows what it may see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import models as hf

from evaluate.test_recall import bpe
from hf.streams import band, masked
from models import GROUPED
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError, OutputError, RecordError
from sinkgate.evaluate import recall_run
from sinkgate.evaluate.recall import Outcome, RecallResult
from sinkgate.evaluate.recall_record import RecallArm, RecallRun
from sinkgate.evaluate.recall_run import answers, recall, recall_texts, shown

WINDOW = 64
SHORT: dict[str, Any] = {"window": WINDOW, "per_distance": 2, "distances": (16, 32, 64, 128)}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=bpe("bytes"))


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    sizes = {**GROUPED, "vocab_size": len(tokenizer), "max_position_embeddings": 2048}
    return AutoModelForCausalLM.from_config(hf.llama.LlamaConfig(**sizes)).eval()


def expected(logits: Tensor, text: Any) -> tuple[list[list[int]], list[list[float]]]:
    """From one pass: what row ``position − 1 + j`` says of answer token j."""
    logs = torch.log_softmax(logits[0].double(), -1)
    said, found = [], []
    for q in text.questions:
        rows = range(q.position - 1, q.position - 1 + len(q.answer_ids))
        said.append([int(logits[0, t].argmax()) for t in rows])
        found.append([float(logs[t, token]) for t, token in zip(rows, q.answer_ids, strict=True)])
    return said, found


def same(got: Any, wanted: Any) -> None:
    assert got[0] == wanted[0]
    for a, b in zip(got[1], wanted[1], strict=True):
        assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.parametrize("chunk", [1, 50, 256])
def test_answers_are_those_of_a_plain_pass(model: Any, tokenizer: Any, chunk: int) -> None:
    ((_, _, text),) = recall_texts(
        tokenizer, ["stream"], window=WINDOW, distances=(16, 64), per_distance=2, length=None, seeds=[0]
    )
    ids = torch.tensor([text.ids])
    with torch.no_grad():
        whole = model(ids).logits
    same(answers(model, text, as_policy("dense"), "original", window=WINDOW, chunk=chunk), expected(whole, text))
    policy = as_policy("recent(60) + sinks(4)")
    got = answers(model, text, policy, "original", window=WINDOW, chunk=chunk)
    same(got, expected(masked(model, ids, band(len(text.ids), 60, 4)), text))


def test_answers_of_the_window_read_afresh(model: Any, tokenizer: Any) -> None:
    ((_, _, text),) = recall_texts(
        tokenizer, ["stream"], window=WINDOW, distances=(16, 64), per_distance=1, length=None, seeds=[0]
    )
    logits = torch.zeros(1, len(text.ids), len(tokenizer))
    for t in range(len(text.ids)):
        with torch.no_grad():
            logits[0, t] = model(torch.tensor([text.ids[max(0, t - WINDOW + 1) : t + 1]])).logits[0, -1]
    same(answers(model, text, None, "recomputed", window=WINDOW, chunk=256), expected(logits, text))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> list[Any]:
    """Instead of a model: it says the right token wherever the whole fact is among the recent tokens of the policy."""
    texts: list[Any] = []
    made = recall_run.recall_texts

    def kept(*args: Any, **options: Any) -> Any:
        texts[:] = made(*args, **options)
        return texts

    @contextmanager
    def streaming(model: Any, policy: Any, **_: Any) -> Iterator[list[int]]:
        recent = policy.budget and policy.keeps(0, 1, 1)[0].recent
        seen: list[int] = []

        def forward(ids: Tensor, cache: list[int]) -> Any:
            begin = len(cache)
            cache += ids[0].tolist()
            (text,) = (t for _, _, t in texts if t.ids[: len(cache)] == cache)
            logits = torch.zeros(1, ids.shape[1], len(tokenizer))
            for q in text.questions:
                for j, token in enumerate(q.answer_ids):
                    t = q.position - 1 + j
                    if begin <= t < len(cache) and (recent is None or q.fact[0] > t - recent):
                        logits[0, t - begin, token] = 20.0
            return SimpleNamespace(logits=logits)

        monkeypatch.setattr(model, "forward", forward)
        yield seen
        monkeypatch.undo()
        monkeypatch.setattr(recall_run, "streaming", streaming)
        monkeypatch.setattr(recall_run, "recall_texts", kept)

    monkeypatch.setattr(recall_run, "streaming", streaming)
    monkeypatch.setattr(recall_run, "recall_texts", kept)
    return texts


def test_the_cliff_is_where_the_window_ends(model: Any, tokenizer: Any, reader: Any) -> None:
    run = recall(
        model, tokenizer, ["dense", "sinks", ("wide", "recent(128)", "slots")], seeds=(0, 1),
        **SHORT | {"distances": (16, 32, 64, 128, 256)},
    )  # fmt: skip
    dense, sinks, wide = run.arms
    assert dense.result.window is None
    assert (sinks.result.window, wide.result.window) == (60, 128)
    assert dense.result.accuracy()[::2] == (1.0, 20)
    for arm in (sinks, wide):
        assert arm.result.accuracy("inside")[0] == 1.0
        assert arm.result.accuracy("outside")[0] == 0.0
        assert arm.complete
    assert wide.result.accuracy("inside")[2] > sinks.result.accuracy("inside")[2]
    cells = run.cells(sinks, "stream")
    assert [cells[i].n for i in sorted(cells)] == [4] * 5, "a column for each distance that was aimed at"
    assert [c.right for c in cells.values()][-2:] == [0, 0]
    assert [c.place for c in cells.values()][-2:] == ["outside", "outside"]
    text = str(run)
    assert "0%×" in text
    assert "4 sinks: still kept 100% [" in text
    assert "evicted 0% [0%, " in text
    assert "dense: any distance 100%" in text
    assert run.column(0) == "0–22"
    assert run.column(4) == "181–"


def test_the_same_questions_for_every_arm(model: Any, tokenizer: Any) -> None:
    run = recall(
        model, tokenizer, "dense,window,recompute,sinks", tasks=("stream", "single", "words"), seeds=(3,), **SHORT
    )
    facts = [[(o.kind, o.distance, o.reach, o.chance) for o in arm.result.outcomes] for arm in run.arms]
    assert facts[0] == facts[1] == facts[2] == facts[3]
    assert run.kinds == ["stream", "single", "words"]
    assert [t["task"] for t in run.meta["texts"]] == ["stream", *["single"] * 5, "words"]
    assert sum(t["questions"] for t in run.meta["texts"]) == len(facts[0])
    assert run.complete
    assert run.meta["wanted"] == ["dense", "window", "recompute", "4 sinks"]
    assert run.arm("window").policy == "recent(64)"
    assert run.arm("recompute").result.window == WINDOW
    with pytest.raises(ArgumentError, match="no arm 'x'"):
        run.arm("x")


def test_seeds_are_put_together(model: Any, tokenizer: Any) -> None:
    both, first, second = (
        recall(model, tokenizer, "sinks", seeds=seeds, **SHORT).arms[0].result for seeds in ((0, 1), (0,), (1,))
    )
    assert both == first.merge(second)
    assert first != second


def test_dense_leaves_out_what_its_context_does_not_reach(tokenizer: Any) -> None:
    torch.manual_seed(0)
    context = _text(tokenizer).scored[3].position + 20
    sizes = {**GROUPED, "vocab_size": len(tokenizer), "max_position_embeddings": context}
    small = AutoModelForCausalLM.from_config(hf.llama.LlamaConfig(**sizes)).eval()
    run = recall(small, tokenizer, "dense,sinks", **SHORT)
    dense, sinks = run.arms
    missing = len(sinks.result.outcomes) - len(dense.result.outcomes)
    assert missing > 0
    assert dense.note == f"{missing} questions lie beyond the {context} positions that the model was made for"
    assert (dense.complete, sinks.complete, run.complete) == (False, True, False)
    assert dense.tokens <= context < sinks.tokens
    assert "(not every question)" in str(run)
    with torch.no_grad():
        logits = small(torch.tensor([_text(tokenizer).ids[: dense.tokens]])).logits
    right = expected(logits, SimpleNamespace(questions=_text(tokenizer).questions[: len(dense.result.outcomes) + 2]))
    assert dense.result.outcomes[-1].logprob == pytest.approx(sum(right[1][-1]) / len(right[1][-1]), abs=1e-4)
    nothing = recall(small, tokenizer, "dense", **SHORT | {"distances": (context,)})
    assert nothing.arms[0].result.outcomes == ()
    assert "no question was answered" in str(nothing)


def _text(tokenizer: Any) -> Any:
    return recall_texts(tokenizer, ["stream"], length=None, seeds=[0], **SHORT)[0][2]


def test_a_head_that_sees_everything_has_no_window(model: Any) -> None:
    assert shown(model, as_policy("recent(9) + sinks(4)")) == 9
    assert shown(model, as_policy("dense")) is None
    assert shown(model, as_policy("per_head(recent(8), [[0, 1]], dense)")) is None
    assert shown(model, as_policy("per_head(recent(8), [[0, 1]], recent(30))")) == 30


def test_an_interrupt_leaves_what_there_is(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    record = RecallRun({}, [])
    calls = []

    def progress(arm: RecallArm, done: int, total: int) -> None:
        calls.append((arm.name, done, total))
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recall(model, tokenizer, "window,sinks", seeds=(0, 1), record=record, progress=progress, **SHORT)
    assert calls == [("window", 1, 2), ("window", 2, 2), ("4 sinks", 1, 2)]
    assert [len(a.result.outcomes) for a in record.arms] == [16, 8]
    assert [a.complete for a in record.arms] == [True, False]
    assert not record.complete
    back = RecallRun.load(record.save(tmp_path / "recall.json"))
    assert back == record


def test_a_run_is_kept(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    run = recall(model, tokenizer, "dense,sinks", tasks=["stream", "variable"], name="tiny", **SHORT)
    path = run.save(tmp_path / "deep" / "recall.json")
    back = RecallRun.load(path)
    assert back == run
    assert str(back) == str(run)
    assert str(run).startswith("tiny: ")
    with pytest.raises(OutputError, match="cannot write"):
        run.save(path / "below")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="sinkgate.recall"),
        lambda d: d.update(version=2),
        lambda d: d.pop("meta"),
        lambda d: d["meta"].pop("edges"),
        lambda d: d["meta"].update(edges=[3, 2]),
        lambda d: d["meta"].update(edges=["a"]),
        lambda d: d["arms"][0].update(more=1),
        lambda d: d["arms"][0]["result"].update(version=0),
        lambda d: d["arms"][0].pop("result"),
    ],
)
def test_a_damaged_run_is_refused(tmp_path: Path, change: Any) -> None:
    result = RecallResult((Outcome("stream", 20, 30, True, -0.1, 0.1, 0.0, False),), 64)
    meta = {"model": {"name": "x"}, "edges": [20], "texts": []}
    path = RecallRun(meta, [RecallArm("a", "recent(64)", "slots", result)]).save(tmp_path / "recall.json")
    data = json.loads(path.read_text())
    assert RecallRun.load(path).arms[0].result == result
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"recall\.json"):
        RecallRun.load(path)
    path.write_bytes(b"\xff")
    with pytest.raises(RecordError, match="not a readable recall run"):
        RecallRun.load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ["memory"]}, "there is no task 'memory'; there are stream, single"),
        ({"tasks": []}, "at least one task"),
        ({"seeds": ()}, "one seed"),
        ({"arms": "all"}, "there is no arm 'all'"),
        ({"chunk": 0}, "chunk must be"),
        ({"window": 0, "distances": None, "arms": "dense"}, "window must be"),
        ({"length": 50}, "longer than the text"),
        ({"distances": (0,)}, "each distance"),
    ],
)
def test_what_is_refused(model: Any, tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        recall(model, tokenizer, **{"arms": "sinks", **SHORT, **options})


def test_the_last_answer_that_a_context_reaches(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = _text(tokenizer)
    third = text.scored[2]
    fed = third.position + len(third.answer_ids) - 1  # its last answer token is predicted, and need not be fed
    for context, reached in ((fed, 3), (fed - 1, 2)):
        monkeypatch.setattr(recall_run.compat, "trained_context", lambda _config, c=context: c)
        part, missed = recall_run._within(model, text, as_policy("dense"))
        assert len(part.scored) == reached
        assert missed == len(text.scored) - reached
        bounded, none = recall_run._within(model, text, as_policy("recent(9)"))
        assert (bounded.questions, none) == (text.questions, 0)
