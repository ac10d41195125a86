"""What a hostile reader found: each refused, or right."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from streams import in_parts
from transformers import AutoModelForCausalLM
from transformers import models as hf

import sinkgate as sg
from models import GROUPED, tiny
from sinkgate.errors import ArgumentError, RecordError, UnsupportedError

IDS = torch.randint(4, 96, (1, 60), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama", dtype=torch.float64)


def test_a_cache_outside_its_with(model: Any) -> None:
    with sg.streaming(model, "recent(8) + sinks(2)") as cache:
        model(IDS[:, :20], cache=cache)
    for other in (model, tiny("llama", seed=1, dtype=torch.float64)):
        with pytest.raises(ArgumentError, match="use it inside"):
            other(IDS[:, 20:21], cache=cache)
    with sg.streaming(model, "recent(8) + sinks(2)"):  # the same model and policy again: it goes on
        got = model(IDS[:, 20:25], cache=cache).logits
    with sg.streaming(model, "recent(8) + sinks(2)") as whole:
        assert (in_parts(model, IDS[:, :25], whole, [25])[:, 20:] - got).abs().max() < 1e-12
    with sg.streaming(model, "recent(9) + sinks(2)"), pytest.raises(ArgumentError, match="was made with policy="):
        model(IDS[:, 20:25], cache=cache)


def test_taking_back_twice_is_taking_back_more(model: Any) -> None:
    with sg.streaming(model, "recent(8) + sinks(2)", rollback=5) as cache:
        model(IDS[:, :40], cache=cache)
        cache.crop(-3)
        cache.crop(-2)
        with pytest.raises(UnsupportedError, match="cannot be taken back"):
            cache.crop(-1)
        got = model(IDS[:, 50:53], cache=cache).logits
    with sg.streaming(model, "recent(8) + sinks(2)") as cache:
        model(IDS[:, :35], cache=cache)
        assert (model(IDS[:, 50:53], cache=cache).logits - got).abs().max() < 1e-12
    gemma = tiny("gemma3", dtype=torch.float64)
    with sg.streaming(gemma, "dense", positions="original", rollback=4) as cache:
        gemma(IDS, cache=cache)
        cache.crop(-3)
        with pytest.raises(UnsupportedError, match="cannot be taken back"):
            cache.crop(-3)


def test_what_was_not_pinned_does_not_count(model: Any) -> None:
    ids = IDS.clone()
    ids[ids == 95] = 5
    with sg.streaming(model, "recent(8) + sinks(4, token_ids=[95])") as cache:
        model(ids[:, :11], cache=cache)
        with pytest.raises(UnsupportedError, match="evicted"):
            cache.crop(-3)


def test_taking_columns_back_through_padding(model: Any) -> None:
    rows, mask = IDS[:, :20].repeat(2, 1), torch.ones(2, 20, dtype=torch.long)
    mask[1, 12:16] = 0
    with sg.streaming(model, "dense", positions="original") as cache:
        model(rows, attention_mask=mask, cache=cache)
        cache.crop(-6)
        assert cache.counts is not None
        assert (cache.counts.tolist(), cache.columns) == ([14, 12], 14)
        cache.crop(-1)
        got = model(IDS[:, 30:33].repeat(2, 1), cache=cache).logits
        cache.crop(-3)
        assert cache.counts.tolist() == [13, 12]
    for row, n in ((0, 13), (1, 12)):
        with sg.streaming(model, "dense", positions="original") as cache:
            model(IDS[:, :n], cache=cache)
            assert (model(IDS[:, 30:33], cache=cache).logits[0] - got[row]).abs().max() < 1e-12


def test_compiled_steps_refuse_what_they_cannot(model: Any) -> None:
    torch._dynamo.reset()
    gpt2 = tiny("gpt2", attn="sdpa", dtype=torch.float64)
    with sg.streaming(gpt2, "recent(8) + sinks(2)", positions="original") as cache:
        want = in_parts(gpt2, IDS[:, :30], cache, [30])
        cache.reset()
        gpt2(IDS[:, :10], cache=cache)
        step = torch.compile(gpt2, fullgraph=True, backend="eager")
        got = [step(IDS[:, t : t + 1], cache=cache).logits for t in range(10, 30)]
    assert (torch.cat(got, 1) - want[:, 10:]).abs().max() < 1e-12  # learned positions count too
    for policy in ("dense", "recent(8) + sinks(2, token_ids=[3])", "heavy(3) + recent(8)"):
        torch._dynamo.reset()
        with sg.streaming(model, policy, positions="original") as cache:
            model(IDS[:, :10], cache=cache)
            step = torch.compile(model, fullgraph=True, backend="eager")
            with pytest.raises(Exception, match="cannot be compiled"):
                step(IDS[:, 10:11], cache=cache)
    torch._dynamo.reset()
    with sg.streaming(model, "recent(8) + sinks(2)") as cache:
        step = torch.compile(model, fullgraph=True, backend="eager")
        with pytest.raises(Exception, match="behind a first pass"):
            step(IDS[:, :1], cache=cache)


def test_padding_and_layers_with_a_state() -> None:
    hybrid = tiny("qwen3_next", dtype=torch.float64)
    rows, mask = IDS[:, :20].repeat(2, 1), torch.ones(2, 20, dtype=torch.long)
    mask[1, :5] = 0
    with sg.streaming(hybrid, "recent(8) + sinks(2)") as cache:
        alone = in_parts(hybrid, IDS[:, 5:20], cache, [15])
        cache.reset()
        got = hybrid(rows, attention_mask=mask, cache=cache).logits[1, 5:]
        assert (got - alone[0]).abs().max() < 1e-3
        later = torch.cat([mask, torch.tensor([[1, 1], [0, 1]])], 1)
        with pytest.raises(UnsupportedError, match="state of their own"):
            hybrid(rows[:, :2], attention_mask=later, cache=cache)
    with (
        sg.streaming(hybrid, "recent(8) + sinks(2)", chunk=3) as cache,
        pytest.raises(UnsupportedError, match="first 3"),
    ):
        hybrid(rows, attention_mask=mask, cache=cache)


def test_models_that_compute_something_else_are_refused_by_name() -> None:
    bert = hf.bert.BertConfig(
        vocab_size=96, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=64
    )
    two_way = hf.gemma3.Gemma3TextConfig(**GROUPED, use_bidirectional_attention=True, query_pre_attn_scalar=8)
    for made in (hf.bert.BertLMHeadModel(bert), AutoModelForCausalLM.from_config(two_way)):
        torch.manual_seed(0)
        with pytest.raises(UnsupportedError, match=type(made).__name__):
            sg.streaming(made.eval(), "recent(8)", positions="original").__enter__()
    base = tiny("llama").model
    with pytest.raises(UnsupportedError, match="no logits per token"):
        sg.streaming(base, "recent(8)").__enter__()


def test_padding_without_position_ids() -> None:
    torch.manual_seed(0)
    config = hf.bart.BartConfig(
        vocab_size=96, d_model=48, decoder_layers=2, decoder_attention_heads=6, decoder_ffn_dim=64, encoder_layers=1,
        encoder_attention_heads=6, encoder_ffn_dim=64, max_position_embeddings=128, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None, is_decoder=True, is_encoder_decoder=False,
    )  # fmt: skip
    bart = AutoModelForCausalLM.from_config(config).eval()
    mask = torch.ones(1, 10, dtype=torch.long)
    mask[0, :3] = 0
    with sg.streaming(bart, "recent(8) + sinks(2)", positions="original") as cache:
        with pytest.raises(UnsupportedError, match="takes no position_ids"):
            bart(IDS[:, :10], attention_mask=mask, cache=cache)
        assert cache.counts is None
        bart(IDS[:, :10], cache=cache)


def test_an_unbounded_policy_counts_positions_like_the_text() -> None:
    m = tiny("llama")
    with (
        sg.streaming(m, "dense", positions="slots") as cache,
        pytest.warns(UserWarning, match="made for 512 positions"),
    ):
        m(IDS.repeat(1, 9), cache=cache)


def test_a_refused_pass_leaves_nothing_behind() -> None:
    gpt2 = tiny("gpt2")
    with sg.streaming(gpt2, "recent(8) + sinks(2)", positions="original", chunk=100) as cache:
        with pytest.raises(UnsupportedError, match="reaches token 540"):
            gpt2(IDS.repeat(1, 9), cache=cache)
        assert cache.columns == 0
        with pytest.raises(ArgumentError, match="position_ids begin at 3"):
            gpt2(IDS.repeat(2, 1), position_ids=torch.arange(3, 63).repeat(2, 1), cache=cache)
        gpt2(IDS, cache=cache)  # the refused rows are forgotten


def test_outputs_that_would_be_cut(model: Any) -> None:
    with sg.streaming(model, "recent(16)", chunk=10) as cache:
        assert model(IDS, cache=cache, output_hidden_states=True).hidden_states[0].shape[1] == 60
        cache.reset()
        model.config.output_hidden_states = True
        try:
            assert model(IDS, cache=cache).hidden_states[0].shape[1] == 60
        finally:
            model.config.output_hidden_states = False
        cache.reset()
        with pytest.raises(UnsupportedError, match="keeps no attention weights"):
            model(IDS, cache=cache, output_attentions=True)
        with pytest.raises(ArgumentError, match="cache or past_key_values"):
            model(IDS, cache=cache, past_key_values=sg.new_stream(cache))
        for ids in (IDS[0], IDS[:0]):
            with pytest.raises(ArgumentError, match="no tokens"):
                model(ids, cache=cache)
        model(IDS, cache=cache)
        hides = torch.ones(1, 63, dtype=torch.long)
        hides[0, 4] = 0
        with pytest.raises(ArgumentError, match="cannot unread"):
            model(IDS[:, :3], attention_mask=hides, cache=cache)
        with pytest.raises(ArgumentError, match="additive"):
            model(IDS[:, :3], attention_mask=torch.full((1, 63), -1.0), cache=cache)


def test_alone_with_a_shallower_model() -> None:
    cache = sg.StreamingCache(tiny("llama").config, "recent(8)")
    config = tiny("llama").config
    config.num_hidden_layers = 2
    shallow = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ArgumentError, match="made for 3 layers, and the model asks for 2"):  # noqa: PT012
        shallow(IDS[:, :1], cache=cache)
        shallow(IDS[:, 1:2], cache=cache)


def test_copies_and_gradients(model: Any) -> None:
    with sg.streaming(model, "recent(8) + sinks(2)") as cache:
        with pytest.raises(UnsupportedError, match="copied outside"):
            copy.deepcopy(model)
        model(IDS[:, :20], cache=cache)
        twin = copy.deepcopy(cache)
        assert torch.equal(model(IDS[:, 20:30], cache=twin).logits, model(IDS[:, 20:30], cache=cache).logits)
        embeddings = model.get_input_embeddings()(IDS).detach().requires_grad_()
        with torch.enable_grad(), pytest.raises(UnsupportedError, match="no gradients"):
            model(inputs_embeds=embeddings, cache=cache)
    copy.deepcopy(model)


def test_a_model_that_shares_the_config(model: Any) -> None:
    other = type(model)(model.config).double().eval()
    with sg.streaming(model, "recent(8) + sinks(2)"), pytest.raises(UnsupportedError, match="shares its config"):
        other(IDS)


def test_everything_outlives_inference_mode(model: Any) -> None:
    for policy in ("recent(16) + sinks(3)", "quantized(recent(16) + sinks(3), group=4)"):
        with sg.streaming(model, policy) as cache:
            with torch.inference_mode():
                model(IDS.repeat(2, 1), cache=cache)
                cache.reorder_cache(torch.tensor([1, 0]))
                twin = cache.fork()
            model(IDS[:, :3].repeat(2, 1), cache=twin)
    with sg.streaming(model, "recent(16) + sinks(3)", rollback=4) as cache:
        with torch.inference_mode():
            out = model.generate(
                IDS, max_new_tokens=5, num_beams=2, num_return_sequences=2, do_sample=False, cache=cache
            )
            cache.crop(-2)
        model(out[:, -3:], cache=cache)


def test_one_pass_at_a_time(model: Any) -> None:
    said: list[str] = []
    with sg.streaming(model, "recent(8)") as cache:
        other = sg.new_stream(cache)

        def meanwhile(*_: Any) -> None:
            if not said:
                said.append("")
                thread = threading.Thread(target=second)
                thread.start()
                thread.join()

        def second() -> None:
            try:
                model(IDS[:, :4], cache=other)
            except UnsupportedError as err:
                said.append(str(err))

        hook = model.model.layers[1].register_forward_pre_hook(meanwhile)
        model(IDS[:, :5], cache=cache)
        hook.remove()
    assert "one pass at a time" in said[1]


def test_damaged_files(model: Any, tmp_path: Path) -> None:
    file = tmp_path / "s.safetensors"
    with sg.streaming(model, "recent(8) + sinks(2)") as cache:
        model(IDS, cache=cache)
        sg.save_stream(cache, file)
        with safe_open(file, "pt") as f:
            meta, tensors = f.metadata(), {n: f.get_tensor(n) for n in f.keys()}  # noqa: SIM118
        for change in (
            {n: x for n, x in tensors.items() if n != "layers.1.0.v"},
            {**tensors, "layers.1.0.k": tensors["layers.1.0.k"][:, :, :5].contiguous()},
        ):
            save_file(change, file, metadata=meta)
            with pytest.raises(RecordError, match="is damaged"):
                sg.load_stream(cache, file)
            assert cache.columns == 0
        for text in ("[1]", "{}", meta["sinkgate"].replace('"padding"', '"other"')):
            save_file(tensors, file, metadata={"sinkgate": text})
            with pytest.raises(RecordError):
                sg.load_stream(cache, file)
