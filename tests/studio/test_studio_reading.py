"""*Read* behind the Stream page: the numbers of ``sinkgate stream``, by turns, refused and ended as they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from models import tiny, tokenizer, words
from sinkgate.evaluate.stream import stream
from sinkgate.evaluate.stream_record import StreamRecord
from sinkgate.studio.models import Models
from studio.stand_in import StandIn, ends, leave_after, lines, refused
from studio.watched import Serving

TEXT = words(300)
ARMS = ["dense", "window", "recent(23) + sinks(1)", "recent(12) + heavy(8) + sinks(4)"]
ASKED = {"model": "tiny", "text": TEXT, "arms": ARMS, "window": 24, "tokens": 260, "every": 32}


@pytest.fixture
def served(serving: Callable[..., Serving]) -> Serving:
    found = serving(models=["tiny"])
    found.studio.models = StandIn()
    return found


def test_the_numbers_are_those_of_sinkgate_stream(served: Serving) -> None:
    said = lines(served, "api/read", ASKED)
    wanted = stream(
        tiny("llama", attn="sdpa"), tokenizer(), TEXT, ARMS, window=24, tokens=260, every=32, chunk=32, name="tiny",
        source="a text of the reader's",
    )  # fmt: skip
    assert said[-1]["done"]
    record = said[-1]["record"]
    assert record["meta"] == wanted.meta
    for arm, other in zip(record["arms"], wanted.arms, strict=True):
        for name in ("name", "policy", "positions", "sums", "counts", "held", "cache_bytes", "complete", "note"):
            assert arm[name] == getattr(other, name), (arm["name"], name)


def test_the_lines_on_the_way_add_up_to_the_record_and_the_arms_take_turns(served: Serving) -> None:
    said = lines(served, "api/read", ASKED)
    steps, record = [s for s in said if "arm" in s], said[-1]["record"]
    assert [s["arm"] for s in steps[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]
    for i, arm in enumerate(record["arms"]):
        mine = [s for s in steps if s["arm"] == i]
        assert [s["point"] for s in mine] == list(range(len(arm["sums"])))
        assert [s["sum"] for s in mine] == arm["sums"]
        assert [s["count"] for s in mine] == arm["counts"]


def test_what_comes_last_is_a_record_that_opens(served: Serving, tmp_path: Any) -> None:
    import json

    path = tmp_path / "stream.json"
    path.write_text(json.dumps(lines(served, "api/read", ASKED)[-1]["record"]))
    assert StreamRecord.load(path).complete


def test_the_model_is_what_it_was_afterwards(served: Serving) -> None:
    import torch

    model = served.studio.models.get("tiny").model
    ids = torch.arange(20)[None] + 3
    with torch.no_grad():
        before = model(ids).logits
        lines(served, "api/read", ASKED)
        assert torch.equal(model(ids).logits, before)
    assert "forward" not in model.__dict__


def test_by_default_full_window_one_sink_and_four(served: Serving) -> None:
    said = lines(served, "api/read", {"model": "tiny", "text": TEXT, "tokens": 128})
    assert [arm["policy"] for arm in said[-1]["record"]["arms"]] == [
        "dense", "recent(256)", "recent(255) + sinks(1)", "recent(252) + sinks(4)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arms": ["resent(3)"]}, "there is no policy 'resent'"),
        ({"arms": ["nonsense"]}, "there is no arm 'nonsense'"),
        ({"arms": []}, "at least one arm"),
        ({"arms": ["window", "window"]}, "each once"),
        ({"arms": "window"}, "arms must be a list"),
        ({"arms": [3]}, "arms must be a list"),
        ({"arms": ["recent(4)"] * 9}, "9 arms are asked for"),
        ({"arms": ["recompute"]}, "too slow to watch"),
        ({"arms": ["recent(20000)"]}, "keeps 20,000 tokens"),
        ({"arms": ["(" * 250]}, "cannot read the policy|there is no arm"),
        ({"model": "other"}, "was not started with the model 'other'"),
        ({"model": ["tiny"]}, "was not started with the model"),
        ({"model": None}, "was not started with the model"),
        ({"text": ""}, "the text is empty"),
        ({"text": " \n"}, "the text is empty"),
        ({"text": 3}, "text must be text"),
        ({"text": "w1"}, "the text has 1 tokens"),
        ({"tokens": 1}, "tokens must be a whole number from 2 to 16,384"),
        ({"tokens": 10**9}, "tokens must be a whole number"),
        ({"tokens": True}, "tokens must be a whole number"),
        ({"tokens": "many"}, "tokens must be a whole number"),
        ({"every": 1}, "every must be a whole number"),
        ({"window": 0}, "window must be a whole number"),
        ({"positions": "nowhere"}, "positions must be one of slots, original"),
        ({"tokns": 5}, "the request has 'tokns'"),
    ],
)
def test_bad_input_is_one_line(served: Serving, change: dict[str, Any], words: str) -> None:
    import re

    assert re.search(words, refused(served, "api/read", ASKED | change))
    assert served.studio.jobs.running == 0 or ends(served.studio)


def test_a_job_that_fails_leaves_the_server_up(served: Serving) -> None:
    model = served.studio.models.get("tiny").model

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of order")

    hook = model.model.layers[1].register_forward_pre_hook(broken)
    assert "out of order" in refused(served, "api/read", ASKED)
    hook.remove()
    assert httpx.get(served.address + "api/records").status_code == 200
    assert lines(served, "api/read", ASKED)[-1]["done"]


def test_a_policy_that_the_model_cannot_have_is_one_line(serving: Callable[..., Serving]) -> None:
    served = serving(models=["gpt2"])
    served.studio.models = StandIn({"gpt2": lambda: tiny("gpt2", attn="sdpa")})
    assert "learned positions" in refused(served, "api/read", {**ASKED, "model": "gpt2"})


def test_a_reader_who_leaves_ends_it(served: Serving) -> None:
    long = {**ASKED, "text": words(16_000), "tokens": 16_000, "every": 8, "arms": ["recent(24)"]}
    leave_after(served, "api/read", long, lambda line: "arm" in line)
    assert ends(served.studio)


@pytest.mark.slow
def test_the_window_alone_degrades_and_one_sink_saves_it(serving: Callable[..., Serving]) -> None:
    """The default model on the packaged speeches: the claim of the page, in numbers of nats per token."""
    served = serving(models=["smollm2-135m"])
    assert type(served.studio.models) is Models
    asked = {"model": "smollm2-135m", "window": 64, "tokens": 512, "every": 64}
    record = lines(served, "api/read", asked)[-1]["record"]
    full, window, one, four = (sum(arm["sums"][2:]) / sum(arm["counts"][2:]) for arm in record["arms"])
    assert window > one + 0.3
    assert abs(one - four) < 0.15
    assert full < one
    # Before the first token has left the window, all of them see the same.
    assert record["arms"][1]["sums"][0] == pytest.approx(record["arms"][0]["sums"][0], rel=1e-4)
