"""*Write* behind the Stream page: the Writer's text, how much is said again, and that it ends with its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from models import tiny, tokenizer
from sinkgate.hf.streaming import streaming
from sinkgate.hf.writing import Sampling, Writer
from sinkgate.studio.writing import repeated
from studio.stand_in import StandIn, ends, leave_after, lines, refused
from studio.watched import Serving

ASKED = {"model": "tiny", "prompt": "w1 w2 w3 w4", "policy": "recent(12) + sinks(2)", "tokens": 40}


@pytest.fixture
def served(serving: Callable[..., Serving]) -> Serving:
    found = serving(models=["tiny"])
    found.studio.models = StandIn()
    return found


@pytest.mark.parametrize(
    "heat", [{}, {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 3}], ids=["greedy", "sampled"]
)
def test_the_text_is_the_writers(served: Serving, heat: dict[str, Any]) -> None:
    said = lines(served, "api/write", ASKED | heat)
    model, names = tiny("llama", attn="sdpa"), tokenizer()
    with streaming(model, ASKED["policy"]) as cache:  # type: ignore[arg-type]
        writer = Writer(model, names, cache, Sampling(**heat))
        writer.read(names(ASKED["prompt"], add_special_tokens=False)["input_ids"])
        wanted = "".join(writer.write(40))
        held = cache.held()
    assert "".join(line.get("text", "") for line in said) == wanted
    assert said[-1]["done"] == writer.why
    assert said[-1]["written"] == writer.written
    assert said[-1]["held"] == held == 14
    assert said[-1]["repeated"] == repeated(writer.answer)
    assert "perplexity" not in "".join(map(str, said))


def test_what_is_said_again() -> None:
    assert repeated([1, 2, 3]) is None
    assert repeated([1, 2, 3, 4]) == 0
    assert repeated([5] * 10) == pytest.approx(6 / 7)
    assert repeated(list(range(300)) * 2) == 0  # the first time is out of sight
    assert repeated(list(range(100)) * 3) == pytest.approx(1 - 100 / 253)


def test_a_prompt_longer_than_a_pass_is_read_in_parts(served: Serving) -> None:
    said = lines(served, "api/write", {**ASKED, "prompt": "w1 w2 w3 w4 " * 150, "tokens": 3})
    assert [line["read"] for line in said if "read" in line] == [256, 512, 600]
    assert said[-1]["written"] == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "recent(0)"}, "recent(n): n must be a whole number"),
        ({"policy": "forget()"}, "there is no policy 'forget'"),
        ({"policy": "sinks(4)"}, "keeps no recent token"),
        ({"policy": "recent(100000)"}, "keeps 100,000 tokens"),
        ({"policy": "recent(4)" + " + sinks(1)" * 100}, "policy has 1,109 characters"),
        ({"model": "other"}, "was not started with the model 'other'"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": None}, "the prompt is empty"),
        ({"prompt": {"a": 1}}, "prompt must be text"),
        ({"tokens": 0}, "tokens must be a whole number from 1 to 4,096"),
        ({"tokens": 10**6}, "tokens must be a whole number"),
        ({"tokens": 2.5}, "tokens must be a whole number"),
        ({"temperature": -1}, "temperature must be a number from 0"),
        ({"temperature": "hot"}, "temperature must be a number from 0"),
        ({"top_p": 0}, "top_p must be over 0"),
        ({"top_p": 0.5}, "need a temperature"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"positions": "both"}, "positions must be one of"),
        ({"stop": ["a"]}, "the request has 'stop'"),
    ],
)
def test_bad_input_is_one_line(served: Serving, change: dict[str, Any], words: str) -> None:
    assert words in refused(served, "api/write", ASKED | change)


def test_a_job_that_fails_leaves_the_server_up(served: Serving) -> None:
    model = served.studio.models.get("tiny").model

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("out of order")

    hook = model.model.layers[1].register_forward_pre_hook(broken)
    assert "out of order" in refused(served, "api/write", ASKED)
    hook.remove()
    assert httpx.get(served.address + "api/records").status_code == 200
    assert lines(served, "api/write", ASKED)[-1]["written"] == 40


def test_a_generation_ends_with_its_page(served: Serving) -> None:
    leave_after(served, "api/write", {**ASKED, "tokens": 4096}, lambda line: line.get("written", 0) > 3)
    assert ends(served.studio)


def test_reading_goes_on_while_it_writes(served: Serving) -> None:
    """Between two tokens the model is free: another job of the same model comes to its end in between."""
    said = []

    def until(line: dict[str, Any]) -> bool:
        if line.get("written") == 3 and not said:
            said.extend(
                lines(
                    served, "api/read", {"model": "tiny", "text": "w1 w2 w3 " * 20, "arms": ["recent(8)"], "every": 8}
                )
            )
        return bool(said)

    leave_after(served, "api/write", {**ASKED, "tokens": 4096}, until)
    assert said[-1]["done"]
    assert ends(served.studio)
