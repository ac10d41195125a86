"""`generate` through a bounded cache: prompts longer than it, turns, batches, beams, drafts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sinkgate as sg
from models import tiny
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf.streaming_cache import StreamingCache

POLICY, BUDGET = "recent(16) + sinks(3)", 19
IDS = torch.randint(4, 96, (1, 60), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", dtype=torch.float64)


def stepwise(model: Any, ids: Tensor, new: int, policy: str = POLICY, positions: str = "slots") -> Tensor:
    """Greedy decoding, a token at a time from the first; the budget is looked at after every step."""
    with sg.streaming(model, policy, positions=positions) as cache, torch.no_grad():
        out = ids
        for t in range(ids.shape[1] + new):
            logits = model(out[:, t : t + 1], cache=cache).logits[:, -1]
            assert cache.held() == min(t + 1, cache.policy.budget or t + 1)
            if t >= ids.shape[1] - 1:
                out = torch.cat([out, logits.argmax(-1, keepdim=True)], 1)
    return out[:, : ids.shape[1] + new]


@pytest.mark.parametrize("word", ["cache", "past_key_values"])
@pytest.mark.parametrize("positions", ["slots", "original"])
@pytest.mark.parametrize("length", [5, 19, 60])
def test_generate(model: Any, positions: str, length: int, word: str) -> None:
    ids = IDS[:, :length]
    want = stepwise(model, ids, 25, positions=positions)
    for chunk in (7, 512):
        with sg.streaming(model, POLICY, positions=positions, chunk=chunk) as cache:
            got = model.generate(ids, max_new_tokens=25, do_sample=False, **{word: cache})
            assert cache.held() == min(length + 24, BUDGET)
        assert torch.equal(got, want)


def test_the_budget_holds_at_every_step_of_generate(model: Any) -> None:
    """Eviction is not off after the first sample, and not only between turns."""
    sizes: list[tuple[int, int]] = []
    with sg.streaming(model, POLICY, chunk=8) as cache:
        hook = model.model.norm.register_forward_hook(lambda *_: sizes.append((cache.held(), cache.nbytes())))
        text = IDS
        for _ in range(3):
            text = model.generate(text, max_new_tokens=30, do_sample=False, cache=cache)
            text = torch.cat([text, IDS[:, :11]], 1)
        hook.remove()
    assert len(sizes) > 90
    assert max(h for h, _ in sizes) == BUDGET
    assert len({b for _, b in sizes}) == 1
    assert cache.nbytes() == sum(b.k.nbytes + b.v.nbytes + b.raw.nbytes for b in banks(cache))


def banks(cache: StreamingCache) -> list[Any]:
    return [bank for layer in cache.layers for bank in layer.layer.banks]


def test_a_prompt_in_chunks_allocates_no_more_than_budget_and_chunk(model: Any) -> None:
    seen: list[int] = []
    with sg.streaming(model, POLICY, chunk=8) as cache:
        hook = model.model.layers[0].register_forward_pre_hook(lambda _m, args: seen.append(args[0].shape[1]))
        model.generate(IDS.repeat(1, 5), max_new_tokens=4, do_sample=False, cache=cache)
        hook.remove()
    assert max(seen) == 8


def test_turns(model: Any) -> None:
    """A second turn goes on from the first: the same as one text; no token is fed twice."""
    with sg.streaming(model, POLICY) as cache:
        one = model.generate(IDS[:, :30], max_new_tokens=12, do_sample=False, cache=cache)
        assert cache.columns == 41  # the last token was not fed yet
        again = torch.cat([one, IDS[:, 30:50]], 1)
        two = model.generate(again, max_new_tokens=12, do_sample=False, cache=cache)
        assert cache.columns == 42 + 20 + 11
    assert torch.equal(two, stepwise(model, again, 12))
    with sg.streaming(model, POLICY) as cache:  # the new tokens alone, with a mask as long as everything
        model.generate(IDS[:, :30], max_new_tokens=12, do_sample=False, cache=cache)
        new = again[:, cache.columns :]
        mask = torch.ones(1, again.shape[1], dtype=torch.long)
        three = model.generate(new, attention_mask=mask, max_new_tokens=12, do_sample=False, cache=cache)
    assert torch.equal(three[:, new.shape[1] :], two[:, again.shape[1] :])


def test_an_assistants_answer_resumed_over_budget(model: Any) -> None:
    """A long answer that somebody wrote is put in and gone on with: longer than the cache, in one turn."""
    with sg.streaming(model, POLICY, chunk=10) as cache:
        one = model.generate(IDS[:, :10], max_new_tokens=3, do_sample=False, cache=cache)
        long = torch.cat([one, IDS.repeat(1, 2)], 1)
        two = model.generate(long, max_new_tokens=8, do_sample=False, cache=cache)
        assert cache.held() == BUDGET
    assert torch.equal(two, stepwise(model, long, 8))


def test_late_prompt_tokens_see_the_sinks(model: Any) -> None:
    changed = IDS.clone()
    changed[0, 1] = (changed[0, 1] + 1) % 96
    logits = []
    for ids in (IDS, changed):
        with sg.streaming(model, POLICY, chunk=9) as cache, torch.no_grad():
            logits.append(model(ids, cache=cache).logits[0, -1])
    assert (logits[0] - logits[1]).abs().max() > 1e-6  # token 1 is a sink
    for ids in (IDS, changed):
        with sg.streaming(model, "recent(4)", chunk=9) as cache, torch.no_grad():
            logits.append(model(ids, cache=cache).logits[0, -1])
    assert (
        torch.equal(logits[2], logits[3]) or (logits[2] - logits[3]).abs().max() < (logits[0] - logits[1]).abs().max()
    )


def test_a_history_that_was_tokenised_anew(model: Any) -> None:
    with sg.streaming(model, POLICY) as cache:
        one = model.generate(IDS[:, :40], max_new_tokens=10, do_sample=False, cache=cache)
        other = torch.cat([one, IDS[:, :6]], 1)
        other[0, 35] = (other[0, 35] + 1) % 96
        with pytest.warns(UserWarning, match="agrees .* in its first 35 of 49 tokens: .*read again"):
            got = model.generate(other, max_new_tokens=6, do_sample=False, cache=cache)
    assert torch.equal(got, stepwise(model, other, 6))
    with sg.streaming(model, POLICY, rollback=20) as cache:  # what was held back can be taken back
        model.generate(IDS[:, :40], max_new_tokens=10, do_sample=False, cache=cache)
        with pytest.warns(UserWarning, match="the last 14 were taken back"):
            got = model.generate(other, max_new_tokens=6, do_sample=False, cache=cache)
    assert torch.equal(got, stepwise(model, other, 6))


def test_left_padded_batches(model: Any) -> None:
    rows = torch.cat([IDS, torch.cat([torch.zeros(1, 7, dtype=torch.long), IDS[:, :53]], 1)])
    mask = torch.ones(2, 60, dtype=torch.long)
    mask[1, :7] = 0
    for positions in ("slots", "original"):
        with sg.streaming(model, POLICY, positions=positions, chunk=16) as cache:
            got = model.generate(rows, attention_mask=mask, max_new_tokens=12, do_sample=False, cache=cache)
            more = torch.cat([got, IDS[:, :5].repeat(2, 1)], 1)
            wide = torch.cat([mask, torch.ones(2, 17, dtype=torch.long)], 1)
            again = model.generate(more, attention_mask=wide, max_new_tokens=5, do_sample=False, cache=cache)
        one = stepwise(model, IDS, 12, positions=positions)
        two = stepwise(model, IDS[:, :53], 12, positions=positions)
        assert torch.equal(got[0], one[0])
        assert torch.equal(got[1, 7:], two[0])
        assert torch.equal(again[1, 7:], stepwise(model, more[1:, 7:], 5, positions=positions)[0])


def test_beams(model: Any) -> None:
    want = model.generate(IDS[:, :20], max_new_tokens=12, num_beams=3, do_sample=False)
    with sg.streaming(model, "dense", positions="original") as cache:
        got = model.generate(IDS[:, :20], max_new_tokens=12, num_beams=3, do_sample=False, cache=cache)
    assert torch.equal(got, want)
    with sg.streaming(model, "recent(40) + sinks(2)", positions="slots") as cache:  # nothing is evicted
        got = model.generate(IDS[:, :20], max_new_tokens=12, num_beams=3, do_sample=False, cache=cache)
    assert torch.equal(got, want)
    with sg.streaming(model, POLICY) as cache:
        got = model.generate(IDS, max_new_tokens=15, num_beams=3, do_sample=False, cache=cache, return_dict_in_generate=True, output_scores=True)  # fmt: skip
    beam = got.sequences
    with sg.streaming(model, POLICY) as cache, torch.no_grad():  # the score of the best beam is that of its own text
        logits = model(beam[:, :-1], cache=cache).logits[:, IDS.shape[1] - 1 :].log_softmax(-1)
    total = logits.gather(-1, beam[:, IDS.shape[1] :, None]).sum()
    assert abs(float(total) / (beam.shape[1] - IDS.shape[1]) - float(got.sequences_scores)) < 1e-6


def test_drafts(model: Any) -> None:
    draft = tiny("llama", dtype=torch.float64)
    torch.manual_seed(0)
    with torch.no_grad():
        for p in draft.parameters():
            p.add_(torch.randn_like(p) * 0.02 * p.std())
    for positions in ("slots", "original"):
        want = stepwise(model, IDS, 30, positions=positions)
        with sg.streaming(model, POLICY, positions=positions, rollback=32) as cache:
            got = model.generate(IDS, max_new_tokens=30, do_sample=False, cache=cache, assistant_model=draft)
            assert cache.held() == BUDGET
        assert torch.equal(got, want)
        with sg.streaming(model, POLICY, positions=positions, rollback=32) as cache:
            got = model.generate(IDS, max_new_tokens=30, do_sample=False, cache=cache, prompt_lookup_num_tokens=3)
        assert torch.equal(got, want)
    for policy in (POLICY, "heavy(3) + recent(9)", "quantized(recent(9), group=4)"):
        with sg.streaming(model, policy) as cache, pytest.raises(UnsupportedError, match="rollback=32"):
            model.generate(IDS, max_new_tokens=3, do_sample=False, cache=cache, assistant_model=draft)


def test_crop(model: Any) -> None:
    for rollback, steps in ((6, (1, 5)), (0, (1,))):
        for positions in ("slots", "original"):
            with sg.streaming(model, POLICY, positions=positions, rollback=rollback) as cache, torch.no_grad():
                prompt = IDS[:, :40] if rollback else IDS[:, :10]
                model(prompt, cache=cache)
                want = model(IDS[:, 40:43], cache=cache).logits
                for n in steps:
                    cache.crop(-3)
                    model(IDS[:, :n], cache=cache)
                    cache.crop(-n)
                    got = model(IDS[:, 40:43], cache=cache).logits
                    assert (got - want).abs().max() < 1e-12
                cache.crop(0)
                with pytest.raises(ArgumentError, match="crop takes"):
                    cache.crop(3)
                if rollback:
                    with pytest.raises(UnsupportedError, match=r"last 7 tokens cannot be taken back.*rollback=7"):
                        cache.crop(-7)
    with sg.streaming(model, POLICY) as cache, torch.no_grad():
        model(IDS[:, :10], cache=cache)
        with pytest.raises(ArgumentError, match="a row has 10"):
            cache.crop(-11)


def test_inside_every_pass_takes_the_cache(model: Any) -> None:
    with sg.streaming(model, POLICY) as cache:
        with pytest.raises(ArgumentError, match="every pass takes the cache"):
            model(IDS)
        with pytest.raises(ArgumentError, match="every pass takes the cache"):
            model.generate(IDS, max_new_tokens=2)
        other = sg.streaming(tiny("llama", seed=1), POLICY)
        with other as theirs, pytest.raises(ArgumentError, match="belongs to another model"):
            model(IDS, cache=theirs)
        with pytest.raises(ArgumentError, match="was made alone"):
            model(IDS, cache=StreamingCache(model.config, POLICY, positions="original"))
        model(IDS, cache=cache)
        with pytest.raises(ArgumentError, match="has 1 rows and the input 2"):
            model(IDS.repeat(2, 1), cache=cache)
        with pytest.raises(ArgumentError, match="attention_mask has 5 columns, but 60 tokens went through"):
            model(IDS[:, :3], attention_mask=torch.ones(1, 5, dtype=torch.long), cache=cache)
        with pytest.raises(UnsupportedError, match="2-D attention_mask"):
            model(IDS[:, :3], attention_mask=torch.ones(1, 1, 3, 63), cache=cache)
        with pytest.raises(ArgumentError, match="position_ids begin at 0, but the stream is at token 60"):
            model(IDS[:, :3], position_ids=torch.arange(3)[None], cache=cache)
        with pytest.raises(ArgumentError, match="no tokens"):
            model(IDS[:, :0], cache=cache)
        model(IDS[:, :3], position_ids=torch.arange(60, 63)[None], cache=cache)
