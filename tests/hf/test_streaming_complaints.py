"""What people complained of in other streaming caches, each as a test that would have caught it; inputs of our own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streams import band, in_parts, masked, rotated_afresh, sinks_and_recent
from transformers import AutoModelForCausalLM

import sinkgate as sg
from models import tiny
from sinkgate.errors import ArgumentError

IDS = torch.randint(4, 96, (1, 120), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", dtype=torch.float64)


def test_an_empty_cache_is_no_key_error(model: Any) -> None:
    for cache_of in (lambda: sg.StreamingCache(model.config, "recent(8) + sinks(2)"),):
        cache = cache_of()
        assert cache.get_seq_length() == 0
        assert cache.nbytes() == 0
        assert cache.held() == 0
        assert cache.get_mask_sizes(1, 0) == (1, 0)
        assert cache.report()["seen"] == 0
        cache.reset()
        cache.reorder_cache(torch.tensor([0]))
    with sg.streaming(model, "recent(8) + sinks(2)") as cache:
        cache.crop(0)
        assert len(cache) == 3
        assert not cache.is_compileable
        assert cache.get_max_length() == -1
        assert model.generate(IDS[:, :1], max_new_tokens=3, do_sample=False, cache=cache).shape == (1, 4)


def test_a_long_prompt_into_a_small_cache(model: Any) -> None:
    """A prompt of four times the cache is what token by token would be, not garbage."""
    with sg.streaming(model, "recent(26) + sinks(4)", chunk=16) as cache:
        got = in_parts(model, IDS, cache, [120])
        assert cache.held() == 30
    assert (got - rotated_afresh(model, IDS, sinks_and_recent(26, 4))).abs().max() < 1e-12


def test_eviction_at_every_token_not_between_turns(model: Any) -> None:
    with sg.streaming(model, "recent(6) + sinks(2)") as cache, torch.no_grad():
        for t in range(120):
            model(IDS[:, t : t + 1], cache=cache)
            assert cache.held() == min(t + 1, 8)


def test_the_last_key_has_no_stale_position(model: Any) -> None:
    """After re-rotation the newest key stands where the newest query stands: the score of a token with itself is unrotated."""
    scores = []
    layer = model.model.layers[0].self_attn
    for t in (7, 8, 9, 50):
        with sg.streaming(model, "recent(1)") as cache, torch.no_grad():
            in_parts(model, IDS[:, :t], cache, [1])
            bank = cache.layers[0].layer.banks[0]
            found: list[torch.Tensor] = []
            hook = layer.register_forward_hook(lambda _m, _a, out, found=found: found.append(out[0]))
            model(IDS[:, 60:61], cache=cache)
            hook.remove()
            assert bank.held == 1
        scores.append(found[0])
    for other in scores[1:]:
        assert (other - scores[0]).abs().max() < 1e-12


def test_rotating_there_and_back(model: Any) -> None:
    """Kept keys are rotated from raw ones each time, so an hour of streaming does not wear them out."""
    with sg.streaming(model, "recent(5) + sinks(2)") as cache, torch.no_grad():
        model(IDS[:, :10], cache=cache)
        raw = [layer.layer.banks[0].raw.clone() for layer in cache.layers]
        for _ in range(20):
            model(IDS, cache=cache)
        for before, layer in zip(raw, cache.layers, strict=True):
            assert torch.equal(before, layer.layer.banks[0].raw)


def test_input_longer_than_the_window_in_one_chunk(model: Any) -> None:
    for chunk in (120, 7):
        with sg.streaming(model, "recent(5)", positions="original", chunk=chunk) as cache:
            got = in_parts(model, IDS, cache, [120])
            assert cache.held() == 5
        assert (got - masked(model, IDS, band(120, 5, 0))).abs().max() < 1e-12


@pytest.mark.parametrize("length", [7, 8, 9, 10, 11])
def test_off_by_one_at_the_windows_edge(model: Any, length: int) -> None:
    """At, before and behind the moment when the first token is evicted."""
    ids = IDS[:, :length]
    for positions, want in (
        ("original", masked(model, ids, band(length, 6, 2))), ("slots", rotated_afresh(model, ids, sinks_and_recent(6, 2))),
    ):  # fmt: skip
        for sizes in ([1], [length], [length - 1, 1], [3, length - 3]):
            with sg.streaming(model, "recent(6) + sinks(2)", positions=positions) as cache:
                assert (in_parts(model, ids, cache, sizes) - want).abs().max() < 1e-12
                assert cache.held() == min(length, 8)


def test_a_left_padded_batch_is_what_each_row_is_alone(model: Any) -> None:
    rows = torch.zeros(3, 40, dtype=torch.long)
    mask = torch.zeros(3, 40, dtype=torch.long)
    for row, n in enumerate((40, 25, 3)):
        rows[row, 40 - n :], mask[row, 40 - n :] = IDS[0, :n], 1
    with sg.streaming(model, "recent(9) + sinks(2)", chunk=11) as cache, torch.no_grad():
        got = model(rows, attention_mask=mask, cache=cache).logits
    for row, n in enumerate((40, 25, 3)):
        with sg.streaming(model, "recent(9) + sinks(2)") as cache:
            alone = in_parts(model, IDS[:, :n], cache, [1])
        assert (got[row, 40 - n :] - alone[0]).abs().max() < 1e-12


def test_a_second_generate_on_the_same_cache(model: Any) -> None:
    with sg.streaming(model, "recent(12) + sinks(2)") as cache:
        one = model.generate(IDS[:, :30], max_new_tokens=7, do_sample=False, cache=cache)
        fed = cache.columns
        two = model.generate(one, max_new_tokens=7, do_sample=False, cache=cache)
        assert cache.columns == fed + 7  # four tokens again, not thirty-two
    with sg.streaming(model, "recent(12) + sinks(2)") as cache:
        assert torch.equal(two, model.generate(IDS[:, :30], max_new_tokens=14, do_sample=False, cache=cache))


def test_a_retokenised_history_is_noticed(model: Any) -> None:
    with sg.streaming(model, "recent(12) + sinks(2)") as cache:
        one = model.generate(IDS[:, :30], max_new_tokens=7, do_sample=False, cache=cache)
        one[0, 20] = 4 + (one[0, 20] - 3) % 92
        with pytest.warns(UserWarning, match="first 20 of 36 tokens"):
            got = model.generate(one, max_new_tokens=5, do_sample=False, cache=cache)
    with sg.streaming(model, "recent(12) + sinks(2)") as cache:
        assert torch.equal(got, model.generate(one, max_new_tokens=5, do_sample=False, cache=cache))


def test_models_with_different_counts_of_layers(model: Any) -> None:
    config = tiny("llama").config
    config.num_hidden_layers = 2
    torch.manual_seed(0)
    other = AutoModelForCausalLM.from_config(config).double().eval()
    with sg.streaming(model, "recent(12) + sinks(2)") as mine, sg.streaming(other, "recent(12) + sinks(2)") as theirs:
        assert (len(mine), len(theirs)) == (3, 2)
        with pytest.raises(ArgumentError, match="belongs to another model"):
            other(IDS, cache=mine)
        a = in_parts(model, IDS, mine, [9])
        in_parts(other, IDS, theirs, [9])
    assert (a - rotated_afresh(model, IDS, sinks_and_recent(12, 2))).abs().max() < 1e-12


def test_no_causal_shortcut_where_lengths_differ(model: Any) -> None:
    """Three queries against ten keys: the first query must not see the first three keys only, nor the last ones."""
    with sg.streaming(model, "dense", positions="original") as cache:
        got = in_parts(model, IDS[:, :13], cache, [10, 3])
    assert (got - masked(model, IDS[:, :13], band(13, 13, 0))).abs().max() < 1e-12


def test_streams_side_by_side_share_no_state(model: Any) -> None:
    with sg.streaming(model, "recent(12) + sinks(2)") as one, torch.no_grad():
        two = sg.new_stream(one)
        model(IDS[:, :50], cache=one)
        model(IDS[:, 60:75], cache=two)
        a = model(IDS[:, 50:60], cache=one).logits
        assert (one.columns, two.columns) == (60, 15)
        one.reset()
        model(IDS[:, :50], cache=one)
        assert torch.equal(model(IDS[:, 50:60], cache=one).logits, a)


def test_compression_is_on_for_every_sample(model: Any) -> None:
    """The size at every step, of the second and third text too."""
    with sg.streaming(model, "quantized(recent(12) + sinks(2), bits=8, group=4)") as cache, torch.no_grad():
        sizes = set()
        for _ in range(3):
            for t in range(40):
                model(IDS[:, t : t + 1], cache=cache)
                sizes.add(cache.nbytes())
                assert cache.held() <= 14
            cache.reset()
            assert cache.nbytes() == 0
    assert len(sizes) == 1


def test_a_quantised_cache_does_not_quantise_the_sinks(model: Any) -> None:
    with sg.streaming(model, "recent(12) + sinks(2)") as whole, torch.no_grad():
        model(IDS, cache=whole)
        with_sinks = [layer.layer.banks[0] for layer in whole.layers]
        keys, values = [b.raw.clone() for b in with_sinks], [b.v[:, :, :2].clone() for b in with_sinks]
    first = []
    for keep in (True, False):
        with sg.streaming(
            model, f"quantized(recent(12) + sinks(2), bits=4, group=4, keep_sinks={str(keep).lower()})"
        ) as cache:
            in_parts(model, IDS, cache, [1])
            bank: Any = cache.layers[0].layer.banks[0]
            first.append(bank)
    assert (first[0].raw - keys[0]).abs().max() < 1e-12
    assert (first[0].v - values[0]).abs().max() < 1e-12
    assert first[1].raw.numel() == 0
    assert first[1].kept_k_codes is not None
