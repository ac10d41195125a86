"""A stream against one pass under a mask, and against raw keys rotated afresh for every query."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import band, in_parts, masked, rotated_afresh, sinks_and_recent
from test_reading import assert_same, state
from torch import Tensor

import sinkgate as sg
from models import tiny
from sinkgate.cache import Dense, Recent, Sinks
from sinkgate.errors import ArgumentError, UnsupportedError

NAMES = ["llama", "qwen3", "gemma2", "gemma3", "gpt_neox", "gpt_oss", "qwen3_next", "gpt2"]
ROTARY = [n for n in NAMES if n != "gpt2"]
CLOSE = {"gemma2": 1e-6, "qwen3_next": 1e-4}  # eager softmax in float32; a state in float32, summed in another order
IDS = torch.randint(0, 96, (1, 70), generator=torch.Generator().manual_seed(1))


def model(name: str) -> Any:
    return tiny(name, attn="eager" if name in ("gpt_oss", "gemma2") else "sdpa", dtype=torch.float64)


@pytest.mark.parametrize("sizes", [[1], [70], [7], [30, 1], [1, 40, 5]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_original_positions_equal_one_pass_under_the_mask(name: str, sizes: list[int]) -> None:
    m = model(name)
    want = masked(m, IDS, band(70, 16, 3))
    with sg.streaming(m, Recent(16) + Sinks(3), positions="original") as cache:
        got = in_parts(m, IDS, cache, sizes)
        assert cache.held() == 19
    assert (got - want).abs().max() < CLOSE.get(name, 1e-12)


@pytest.mark.parametrize("sizes", [[1], [70], [7], [30, 1], [1, 40, 5]], ids=str)
@pytest.mark.parametrize("name", ROTARY)
def test_cache_positions_equal_raw_keys_rotated_afresh(name: str, sizes: list[int]) -> None:
    m = model(name)
    want = rotated_afresh(m, IDS, sinks_and_recent(16, 3))
    with sg.streaming(m, Recent(16) + Sinks(3), positions="slots") as cache:
        got = in_parts(m, IDS, cache, sizes)
    assert (got - want).abs().max() < CLOSE.get(name, 1e-12)


@pytest.mark.parametrize("positions", ["slots", "original"])
def test_every_layer_not_only_the_last(positions: str) -> None:
    """The residual stream behind each layer, not only what the last one makes of it."""
    m = model("llama")
    want: list[Tensor] = []
    hooks = [b.register_forward_hook(lambda _m, _a, out: want.append(out)) for b in m.model.layers]
    (masked(m, IDS, band(70, 16, 3)) if positions == "original" else rotated_afresh(m, IDS, sinks_and_recent(16, 3)))
    whole = want[-3:]
    want.clear()
    with sg.streaming(m, "recent(16) + sinks(3)", positions=positions) as cache:
        want.clear()
        in_parts(m, IDS, cache, [10])
    for hook in hooks:
        hook.remove()
    for depth in range(3):
        assert (torch.cat(want[depth::3], 1) - whole[depth]).abs().max() < 1e-12


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    recent=st.integers(1, 30), sinks=st.integers(0, 6), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    positions=st.sampled_from(["slots", "original"]), chunk=st.integers(1, 50),
)  # fmt: skip
def test_any_policy_in_any_parts(recent: int, sinks: int, sizes: list[int], positions: str, chunk: int) -> None:
    m = model("llama")
    policy = Recent(recent) + Sinks(sinks) if sinks else Recent(recent)
    if positions == "original":
        want = masked(m, IDS, band(70, recent, sinks))
    else:
        want = rotated_afresh(m, IDS, sinks_and_recent(recent, sinks))
    with sg.streaming(m, policy, positions=positions, chunk=chunk) as cache:
        got = in_parts(m, IDS, cache, sizes)
        assert cache.held() == min(70, recent + sinks)
    assert (got - want).abs().max() < 1e-11


def test_a_window_alone_forgets_the_first_token() -> None:
    """The off-by-one at the window's edge: recent(n) counts the current token."""
    m = model("llama")
    one = IDS.clone()
    one[0, 0] = (one[0, 0] + 1) % 96
    with sg.streaming(m, Recent(1), positions="original") as cache:
        a = in_parts(m, IDS, cache, [70])
    with sg.streaming(m, Recent(1), positions="original") as cache:
        b = in_parts(m, one, cache, [70])
    assert (a - b)[:, 0].abs().max() > 1e-3
    assert (a - b)[:, 1:].abs().max() == 0  # each token sees itself alone
    with sg.streaming(m, Recent(2), positions="original") as cache:
        c = in_parts(m, one, cache, [70])
    assert (c - masked(m, one, band(70, 2, 0))).abs().max() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_dense_is_the_model_itself(name: str) -> None:
    m = model(name)
    want = masked(m, IDS, band(70, 70, 0))
    with sg.streaming(m, Dense(), positions="original") as cache:
        got = in_parts(m, IDS, cache, [3, 20, 1])
    assert (got - want).abs().max() < CLOSE.get(name, 1e-12)


@pytest.mark.parametrize("positions", ["slots", "original"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
def test_left_padding(name: str, positions: str) -> None:
    """Each row is what it is alone; pads are never sinks; a second padded turn too."""
    m = model(name)
    first, second = IDS[0, :33], IDS[0, 33:70]
    with sg.streaming(m, "recent(10) + sinks(2)", positions=positions) as cache:
        alone = in_parts(m, IDS, cache, [33, 37])
    rows = torch.zeros(3, 40 + 45, dtype=torch.long)
    mask = torch.zeros(3, 40 + 45, dtype=torch.long)
    for row, (a, b) in enumerate(((7, 8), (0, 8), (2, 0))):
        ids = IDS[0, :40] if a == 0 else first if a == 7 else IDS[0, :38]
        rows[row, a:40], mask[row, a:40] = ids, 1
        tail = second if row == 0 else IDS[0, 3 : 3 + 45 - b]
        rows[row, 40 + b :], mask[row, 40 + b :] = tail, 1
    with sg.streaming(m, "recent(10) + sinks(2)", positions=positions) as cache, torch.no_grad():
        one = m(rows[:, :40], attention_mask=mask[:, :40], cache=cache).logits
        two = m(rows[:, 40:], attention_mask=mask, cache=cache).logits
    assert (one[0, 7:] - alone[0, :33]).abs().max() < CLOSE.get(name, 1e-11)
    assert (two[0, 8:] - alone[0, 33:]).abs().max() < CLOSE.get(name, 1e-11)


@pytest.mark.parametrize("rows", [2])
def test_rows_of_different_length_step_by_step(rows: int) -> None:
    m = model("llama")
    with sg.streaming(m, "recent(6) + sinks(2)") as cache:
        alone = in_parts(m, IDS[:, :30], cache, [30])
    ids = torch.stack([IDS[0, :30], torch.cat([torch.zeros(5, dtype=torch.long), IDS[0, :25]])])
    mask = torch.ones(rows, 30, dtype=torch.long)
    mask[1, :5] = 0
    out = []
    with sg.streaming(m, "recent(6) + sinks(2)") as cache, torch.no_grad():
        for t in range(30):
            out.append(m(ids[:, t : t + 1], attention_mask=mask[:, : t + 1], cache=cache).logits)
    got = torch.cat(out, 1)
    assert (got[0] - alone[0]).abs().max() < 1e-12
    assert (got[1, 5:] - alone[0, :25]).abs().max() < 1e-12


def test_the_model_comes_back_bit_for_bit() -> None:
    m = tiny("llama")
    was, want = state(m), m(IDS).logits
    forward = m.forward
    with sg.streaming(m, "recent(9) + sinks(2)") as cache:
        m(IDS, cache=cache)
    assert_same(was, state(m))
    assert m.forward == forward
    assert torch.equal(m(IDS).logits, want)
    hook = m.model.layers[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), sg.streaming(m, "recent(9) + sinks(2)") as cache:
        m(IDS, cache=cache)
    hook.remove()
    assert_same(was, state(m))
    assert torch.equal(m(IDS).logits, want)
    assert m.config._attn_implementation == "sdpa"


def test_a_pass_that_fails_marks_the_stream() -> None:
    m = model("llama")

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with sg.streaming(m, "recent(9)") as cache:
        m(IDS[:, :20], cache=cache)
        hook = m.model.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            m(IDS[:, 20:], cache=cache)
        hook.remove()
        with pytest.raises(UnsupportedError, match="failed half way"):
            m(IDS[:, 20:], cache=cache)
        cache.reset()
        assert (cache.columns, cache.nbytes()) == (0, 0)
        got = in_parts(m, IDS, cache, [70])
    with sg.streaming(m, "recent(9)") as cache:
        assert torch.equal(got, in_parts(m, IDS, cache, [70]))


def test_parallel_streams_share_nothing() -> None:
    m = model("llama")
    other = IDS.flip(1)
    with sg.streaming(m, "recent(8) + sinks(2)") as one:
        want = in_parts(m, IDS, one, [5])
        one.reset()
        two = sg.new_stream(one)
        a, b = [], []
        with torch.no_grad():
            for t in range(0, 70, 5):
                a.append(m(IDS[:, t : t + 5], cache=one).logits)
                b.append(m(other[:, t : t + 5], cache=two).logits)
        fork = two.fork()
        left = in_parts(m, IDS, two, [5])
        right = in_parts(m, IDS, fork, [5])
    assert torch.equal(torch.cat(a, 1), want)
    assert torch.equal(left, right)
    assert (torch.cat(b, 1) - want).abs().max() > 1e-3


def test_outlets_stream_too() -> None:
    """A folded sink as an outlet stands before the text in every scheme that keeps original positions."""
    m = model("llama")
    from sinkgate.hf.fold import fold

    fold(m, [7])
    with torch.no_grad():
        want = m(IDS).logits
    with sg.streaming(m, Recent(70), positions="original") as cache:
        got = in_parts(m, IDS, cache, [1, 20])
    assert (got - want).abs().max() < 1e-5  # the model's own rotations are float32
    sg.remove_outlet(m)
    sg.add_outlet(m, sg.Gate("G1", preserve=2.0))
    with sg.streaming(m, "recent(9) + sinks(2)") as cache:
        got = in_parts(m, IDS, cache, [1, 20])
    sg.remove_outlet(m)
    with sg.streaming(m, "recent(9) + sinks(2)") as cache:
        assert (got - in_parts(m, IDS, cache, [1, 20])).abs().max() < 1e-12


def test_half_precision_is_as_good_as_the_models_own() -> None:
    m = tiny("llama", dtype=torch.bfloat16)
    wide = tiny("llama", dtype=torch.float64)
    for p, q in zip(m.parameters(), wide.parameters(), strict=True):
        q.data.copy_(p.data)
    for scheme in ("slots", "original"):
        want = (
            masked(wide, IDS, band(70, 16, 3))
            if scheme == "original"
            else rotated_afresh(wide, IDS, sinks_and_recent(16, 3))
        )
        own = (masked(m, IDS, band(70, 16, 3)).double() - masked(wide, IDS, band(70, 16, 3))).norm()
        for sizes in ([1], [70], [9]):
            with sg.streaming(m, "recent(16) + sinks(3)", positions=scheme) as cache:
                got = in_parts(m, IDS, cache, sizes)
            assert (got.double() - want).norm() < 1.5 * own


def test_a_stream_outlives_inference_mode() -> None:
    m = model("llama")
    with sg.streaming(m, "recent(9) + sinks(2)") as cache:
        with torch.inference_mode():
            one = m(IDS[:, :30], cache=cache).logits
        two = m(IDS[:, 30:], cache=cache).logits
        cache.reset()
        assert (torch.cat([one, two], 1) - in_parts(m, IDS, cache, [30, 40])).abs().max() < 1e-12


def test_logits_to_keep_and_tuples() -> None:
    m = model("llama")
    with sg.streaming(m, "recent(9) + sinks(2)", chunk=13) as cache, torch.no_grad():
        whole = m(IDS, cache=cache).logits
        for keep in (1, 5, 20, 69):
            cache.reset()
            assert (m(IDS, cache=cache, logits_to_keep=keep).logits - whole[:, -keep:]).abs().max() < 1e-12
        cache.reset()
        assert torch.equal(m(IDS, cache=cache, logits_to_keep=torch.tensor([3, 40])).logits, whole[:, [3, 40]])
        cache.reset()
        assert torch.equal(m(IDS, cache=cache, return_dict=False)[0], whole)
        cache.reset()
        out = m(IDS, cache=cache, labels=IDS)
        assert (out.logits - whole).abs().max() < 1e-12
        assert torch.isfinite(out.loss)
        cache.reset()
        assert (m(inputs_embeds=m.get_input_embeddings()(IDS), cache=cache).logits - whole).abs().max() < 1e-12


def test_what_does_not_fit_together() -> None:
    m = model("llama")
    with sg.acting(m, sg.Evict()), pytest.raises(UnsupportedError, match="swapped or acted upon"):
        sg.streaming(m, "recent(4)").__enter__()
    with sg.streaming(m, "recent(4)") as cache:
        with pytest.raises(UnsupportedError, match="inside another"):
            sg.streaming(m, "recent(4)").__enter__()
        with sg.acting(m, sg.Evict()), pytest.raises(UnsupportedError, match="acts and swaps"):
            m(IDS, cache=cache)
        cache.reset()
        with pytest.raises(ArgumentError, match="call the whole model"):
            m.model(IDS)
        m.train()
        with pytest.raises(UnsupportedError, match="no gradients"):
            m(IDS, cache=cache)
        m.eval()
    with pytest.raises(ArgumentError, match="'slots' or 'original'"):
        sg.streaming(m, "recent(4)", positions="relative").__enter__()
    for name in ("chunk", "rollback"):
        with pytest.raises(ArgumentError, match=name):
            sg.streaming(m, "recent(4)", **{name: -1}).__enter__()


def test_a_left_stream_is_resumed_and_only_one_at_a_time() -> None:
    from sinkgate.hf.streaming import resumed

    model, ids = tiny("llama", attn="sdpa"), torch.arange(24)[None] + 5
    with torch.no_grad(), sg.streaming(model, "recent(6) + sinks(2)") as cache:
        wanted = model(ids, cache=cache).logits
    with sg.streaming(model, "recent(6) + sinks(2)") as cache:
        pass
    parts = []
    for i in range(0, 24, 5):
        with torch.no_grad(), resumed(cache):
            parts.append(model(ids[:, i : i + 5], cache=cache).logits)
        assert "forward" not in model.__dict__
    torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=1e-4, atol=1e-4)
    with resumed(cache), pytest.raises(UnsupportedError, match="inside another"), resumed(cache):
        pass
    with pytest.raises(ArgumentError, match="made alone"), resumed(sg.StreamingCache(model.config, "recent(4)")):
        pass
