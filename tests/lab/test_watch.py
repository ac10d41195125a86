"""A watch's numbers against dense attention and `sg.diagnose`, and the training beside it: nothing may have happened."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.errors import ArgumentError, OutputError, RecordError, TextError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.lab.lines import Lines
from sinkgate.lab.spikes import SpikeDetector

TEXTS = [words(90, seed) for seed in range(3)]


def ids(b: int = 3, t: int = 80, seed: int = 0) -> Tensor:
    return torch.randint(0, 96, (b, t), generator=torch.Generator().manual_seed(seed))


# ---- the numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
def test_numbers_are_those_of_a_diagnosis(name: str) -> None:
    model, words_of = tiny(name), tokenizer(bos=True)
    watch = sg.SinkWatch(model.train(), TEXTS, words_of, tokens=64, samples=3, eps=0.1)
    line, record = watch.step(0), watch.read()
    model.eval()
    how: dict[str, Any] = {"tokens": 64, "samples": 3, "batch_size": 3, "threshold": 0.1}
    keys, full = (sg.diagnose(model, words_of, TEXTS, detail=detail, **how) for detail in ("keys", "full"))
    assert isinstance(keys, sg.Diagnosis)
    assert isinstance(full, sg.Diagnosis)
    for array, values in keys.arrays.items():
        np.testing.assert_array_equal(record.arrays[array], values)
    for array in ("stream_moments", "stream_histogram", "stream_first"):
        np.testing.assert_array_equal(record.arrays[array], full.arrays[array])
    assert line is not None
    mass = full.mean_mass()
    assert line["first_token_mass"] == pytest.approx(float(mass.mean), rel=1e-6)
    assert line["first_token_mass_interval"] == pytest.approx([float(mass.low), float(mass.high)], rel=1e-5)
    assert line["first_token_mass_null"] == pytest.approx(float(np.nanmean(full.null_mass)))
    assert line["sink_rate"] == full.sink_rate(0.1)
    assert line["layers"]["kurtosis"] == pytest.approx(full.kurtosis.tolist())
    assert line["layers"]["median_activation"] == pytest.approx(full.stream_median.tolist())
    if name == "gpt_oss":
        assert line["learned_mass"] == pytest.approx(float(full.learned_mass.mean()), rel=1e-5)
        assert line["learned_mass_null"] == pytest.approx(float(np.mean([1 / (n + 1) for n in visible()])))
    else:
        assert "learned_mass" not in line
    assert ("unmeasured" in line) == (name == "qwen3_next")


def visible() -> list[int]:
    """How many keys a query of 64 sees in GPT-OSS: windows of 16 in two of three layers."""
    return [n for window in (16, 64, 16) for n in (min(i + 1, window) for i in range(64))]


def dense(model: Any, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Attention ``[b, h, t, t]`` of every layer, and the residual stream before each and after the last."""
    streams: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _m, a: streams.append(a[0])) for block in model.model.layers]
    hooks.append(model.model.norm.register_forward_pre_hook(lambda _m, a: streams.append(a[0])))
    with torch.no_grad():
        found = model(x, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    return list(found), streams


def test_numbers_against_dense_attention() -> None:
    model, x, eps = tiny("llama", attn="eager"), ids(), 0.06
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight.mul_(30)  # some head of a few prefers some key
    line = sg.SinkWatch(model, x, eps=eps).step(0)
    assert line is not None
    weights, streams = dense(model, x)
    b, h, t, _ = weights[0].shape
    seen = torch.arange(t, 0, -1).double()  # how many queries see a key
    alpha = torch.stack([w.double().sum(2) / seen for w in weights], 1)  # [b, l, h, t]
    first = alpha[..., 0].mean(0)
    null = float((1 / torch.arange(1, t + 1).double()).mean())
    enough = alpha[..., : t - 31]
    other = enough[..., 1:].amax(-1).mean(0)
    assert line["first_token_mass"] == pytest.approx(float(first.mean()), rel=1e-5)
    assert line["first_token_mass_null"] == pytest.approx(null)
    assert line["layers"]["first_token_mass"] == pytest.approx(first.mean(-1).tolist(), rel=1e-5)
    assert line["sink_rate"] == float((first > eps).double().mean())
    assert line["sink_rate_null"] == float(null > eps) == 1.0
    rate = float((torch.maximum(first, other) > eps).double().mean())
    assert line["sink_rate_any_key"] == rate
    assert line["layers"]["sink_rate_any_key"] == (torch.maximum(first, other) > eps).double().mean(-1).tolist()
    assert float((first > eps).double().mean()) != rate  # the two are told apart here
    layer, head = np.unravel_index(int(first.argmax()), first.shape)
    assert (line["strongest_head"]["layer"], line["strongest_head"]["head"]) == (layer, head)
    assert line["strongest_head"]["first_token_mass"] == pytest.approx(float(first.max()), rel=1e-5)
    for depth, hidden in enumerate(streams):
        z = hidden.double().flatten()
        z = z - z.mean()
        assert line["layers"]["max_activation"][depth] == pytest.approx(float(hidden.abs().max()))
        assert line["layers"]["kurtosis"][depth] == pytest.approx(float((z**4).mean() / (z**2).mean() ** 2), rel=1e-4)
        assert line["layers"]["median_activation"][depth] == pytest.approx(float(hidden.abs().median()), rel=0.07)
    assert line["max_activation"] == max(line["layers"]["max_activation"])
    assert line["max_kurtosis"] == line["layers"]["kurtosis"][line["max_kurtosis_depth"]]
    assert (line["samples"], line["tokens"], line["eps"]) == (b, b * t, eps)
    assert h == 6


def test_padding_is_no_text() -> None:
    model, x = tiny("llama"), ids(2, 70)
    plain = sg.SinkWatch(model, x).step(0)
    for left in (True, False):
        wide = torch.zeros(2, 90, dtype=torch.long)
        mask = torch.zeros_like(wide)
        part = slice(20, 90) if left else slice(0, 70)
        wide[:, part], mask[:, part] = x, 1
        line = sg.SinkWatch(model, {"input_ids": wide, "attention_mask": mask, "labels": wide}).step(0)
        assert plain is not None
        assert line is not None
        for name in ("first_token_mass", "first_token_mass_null", "sink_rate", "max_activation", "max_kurtosis"):
            assert line[name] == pytest.approx(plain[name], rel=1e-4), name
        assert line["tokens"] == 140


@pytest.mark.parametrize(
    "gate",
    [sg.Gate("G1", preserve=2.0), sg.Gate("G1", elementwise=False, preserve=1.0, input_dependent=False),
     sg.Gate("G2", preserve=2.0), sg.Gate("G3", shared=True, preserve=2.0), sg.Gate("G4", preserve=2.0),
     sg.Gate("G5", preserve=2.0), sg.Gate("G1", additive=True, activation="silu")],
    ids=lambda g: f"{g.position}{'+' if g.additive else ''}{'s' if g.shared else ''}{'' if g.elementwise else 'h'}",
)  # fmt: skip
def test_gates_that_were_added(gate: sg.Gate) -> None:
    """Against the formula on the hidden states that the attention modules are given."""
    model, x = tiny("llama"), ids(2, 40)
    outlets = sg.add_outlet(model, gate)
    watch = sg.SinkWatch(model, x, closed=0.5)
    line = watch.step(0)
    assert line is not None
    assert line["gate_mean"] == line["gate_mean_null"] == (0.0 if gate.additive else 1.0)
    with torch.no_grad():
        for p in outlets.named_parameters().values():
            p.normal_(0, 1.5)
    inputs: list[Tensor] = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _m, a, k: inputs.append(a[0] if a else k["hidden_states"]), with_kwargs=True
        )
        for layer in model.model.layers
    ]
    line = watch.step(100)
    for hook in hooks:
        hook.remove()
    assert line is not None
    values = []
    for outlet, hidden in zip(outlets.layers.values(), inputs, strict=True):
        logits = (hidden @ outlet.gate.proj.weight.T) if gate.input_dependent else outlet.gate.logits
        act = torch.nn.functional.silu if gate.activation == "silu" else torch.sigmoid
        b0 = 0.0 if gate.additive else gate.preserve
        v = act(logits + b0).detach().double() / (1.0 if gate.additive else float(act(torch.tensor(b0))))
        values.append(v.expand(2, 40, -1))
    for name, want in (("gate_mean", [float(v.mean()) for v in values]),
                       ("gate_closed", [float((v.abs() < 0.5).double().mean()) for v in values])):  # fmt: skip
        if gate.additive and name == "gate_closed":
            assert line["layers"][name] == [None] * 3
            assert line[name] is None
            continue
        assert line["layers"][name] == pytest.approx(want, rel=1e-5)
        assert line[name] == pytest.approx(float(np.mean(want)), rel=1e-5)
    assert all(outlet.seen.show is None for outlet in outlets.layers.values())


def test_only_the_heads_a_gate_is_for_count() -> None:
    model = tiny("llama")
    outlets = sg.add_outlet(model, sg.Gate("G1", preserve=2.0, input_dependent=False), heads=[(1, 2), (1, 4)])
    with torch.no_grad():
        logits = outlets.layers[1].gate.logits.view(6, 8)
        logits[2], logits[4] = -20.0, 0.0  # the other heads' would be 1
    line = sg.SinkWatch(model, ids()).step(0)
    assert line is not None
    assert line["layers"]["gate_closed"] == [None, 0.5, None]
    assert line["gate_mean"] == pytest.approx(0.5)


def test_a_models_own_gate() -> None:
    """Qwen3-Next's: a sigmoid of half of what its query projection gives."""
    model, x = tiny("qwen3_next"), ids(2, 40)
    values: list[Tensor] = []

    def gate(_module: nn.Module, _args: Any, output: Tensor) -> None:
        values.append(output.unflatten(-1, (6, -1)).chunk(2, -1)[1].sigmoid())

    hooks = [layer.self_attn.q_proj.register_forward_hook(gate) for layer in model.model.layers[1:]]
    with torch.no_grad():
        model(x, use_cache=False)
    for hook in hooks:
        hook.remove()
    line = sg.SinkWatch(model, x, closed=0.3).step(0)
    assert line is not None
    assert line["layers"]["gate_mean"][0] is None
    assert line["layers"]["gate_mean"][1:] == pytest.approx([float(v.double().mean()) for v in values], rel=1e-5)
    closed = [float((v < 0.3).double().mean()) for v in values]
    assert line["layers"]["gate_closed"][1:] == pytest.approx(closed, abs=1e-3)
    assert line["gate_mean_null"] is None


# ---- the training beside it ---------------------------------------------------------------------------------------


def randoms() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), torch.rand(2).tolist()


def test_a_reading_leaves_everything_as_it_was() -> None:
    model = tiny("gpt2").train()
    model.transformer.h[1].attn.eval()  # somebody froze this one
    model(ids(1, 20), labels=ids(1, 20)).loss.backward()
    modes = [m.training for m in model.modules()]
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    state = copy.deepcopy(model.state_dict())
    names = [compat.implementation(c) for c in compat.configs(model)]

    def hooks() -> list[int]:
        return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]

    before = hooks()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    expected = randoms()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    watch = sg.SinkWatch(model, ids())
    watch.step(0)
    assert randoms() == expected
    assert [m.training for m in model.modules()] == modes
    assert not all(modes[1:])
    assert all(torch.equal(grads[n], p.grad) for n, p in model.named_parameters())
    assert all(torch.equal(state[n], x) for n, x in model.state_dict().items())
    assert [compat.implementation(c) for c in compat.configs(model)] == names
    assert hooks() == before
    assert torch.is_grad_enabled()


def test_random_state_is_restored_where_a_model_draws_in_eval_mode() -> None:
    model = tiny("llama")

    def draw(*_: Any) -> None:
        randoms()

    model.model.layers[0].register_forward_pre_hook(draw)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    expected = randoms()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    sg.SinkWatch(model, ids()).step(0)
    assert randoms() == expected


def trained(watched: bool, how: str) -> tuple[dict[str, Tensor], list[Any]]:
    torch.manual_seed(0)
    model = tiny("gpt2" if how == "dropout" else "llama")
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.1
    if how == "checkpointed":
        model.activation_checkpointing_enable({"use_reentrant": False})
    if how == "reentrant":
        model.activation_checkpointing_enable({"use_reentrant": True})
    call: Any = model
    if how == "compiled":
        torch._dynamo.reset()
        call = torch.compile(model, backend="aot_eager")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    torch.manual_seed(1)
    watch = sg.SinkWatch(call, ids(), every=2) if watched else None
    lines = [watch.step(0)] if watch else []
    for step in range(5):
        x = ids(2, 30, seed=step)
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            if watch and how == "autocast":
                lines.append(watch.step(step))  # inside: weights cast without gradients must not serve the step
            loss = call(x, labels=x, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch and how != "autocast":
            lines.append(watch.step(step + 1, loss))
    return {n: p.detach().clone() for n, p in model.state_dict().items()}, lines


@pytest.mark.parametrize(
    "how",
    ["dropout", "plain", "checkpointed", "reentrant", "autocast", pytest.param("compiled", marks=pytest.mark.slow)],
)
def test_parameters_are_the_same_bits_with_and_without_it(how: str) -> None:
    with_it, lines = trained(True, how)
    without, _ = trained(False, how)
    assert sum(line is not None for line in lines) == 3
    assert all(torch.equal(with_it[n], without[n]) for n in without)
    assert lines[0]["first_token_mass"] != next(line for line in lines[1:] if line)["first_token_mass"]


@pytest.mark.slow
def test_nothing_is_compiled_again() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter = CompileCounter()
    model = tiny("llama")
    compiled = torch.compile(model, backend=counter)
    x = ids(2, 30)
    with torch.no_grad():
        compiled(x, use_cache=False)
        first, calls = counter.frame_count, counter.op_count
        line = sg.SinkWatch(compiled, ids()).step(0)
        assert counter.frame_count == first
        compiled(x, use_cache=False)
    assert (counter.frame_count, counter.op_count) == (first, calls)
    assert line == sg.SinkWatch(model, ids()).step(0)
    for block in model.model.layers:  # the blocks alone, in place
        block.compile(backend=counter)
    with torch.no_grad():
        model(x, use_cache=False)
        first = counter.frame_count
        assert sg.SinkWatch(model, ids()).step(0) == line
        model(x, use_cache=False)
    assert counter.frame_count == first


def test_autocast_is_asked_for_or_as_around() -> None:
    model = tiny("llama")
    plain, asked = sg.SinkWatch(model, ids()).step(0), sg.SinkWatch(model, ids(), autocast=torch.bfloat16).step(0)
    with torch.autocast("cpu", torch.bfloat16):
        around = sg.SinkWatch(model, ids()).step(0)
    assert plain is not None
    assert asked is not None
    assert asked == around
    assert asked["first_token_mass"] != plain["first_token_mass"]
    assert asked["first_token_mass"] == pytest.approx(plain["first_token_mass"], rel=1e-2)


def test_the_probes_own_products_are_not_half() -> None:
    """The same sites, inside autocast and outside."""
    from sinkgate.probe.probe import Probe

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 8, generator=generator).bfloat16() for _ in range(3))
    hidden = torch.randn(1, 64, 16, generator=generator)
    found = []
    for enabled in (False, True):
        probe = Probe(sg.Settings())
        seen = sg.Visibility(64, 64, real=torch.ones(1, 64, dtype=torch.bool))
        site = sg.Site(layer=0, q=q, k=k, v=v, out=v, visibility=seen)
        with (
            probe.sample([{"id": "a", "source": "a", "tokens": ["x"] * 64, "bos": False}]),
            torch.autocast("cpu", torch.bfloat16, enabled=enabled),
        ):
            site.output_map = sg.OutputMap.from_weight(torch.arange(16 * 5.0).view(16, 5) / 7, 2)
            probe.site(site)
            probe.stream(0, hidden)
        found.append(probe.finish(model={"name": "a"}).arrays)
    for name, values in found[0].items():
        np.testing.assert_array_equal(found[1][name], values, err_msg=name)


# ---- when, and what goes wrong ------------------------------------------------------------------------------------


def test_every_so_many_steps_and_each_once() -> None:
    watch = sg.SinkWatch(tiny("llama"), ids(1, 40), every=3)
    found = [step for step in range(8) if watch.step(step) is not None]
    assert found == [0, 3, 6]
    assert watch.step(7) is None
    with pytest.raises(ArgumentError, match="step 5 comes after step 7"):
        watch.step(5)
    assert len(watch.seconds) == 3
    assert watch.cost > 0
    resumed = sg.SinkWatch(tiny("llama"), ids(1, 40), every=3, start=6)
    assert [step for step in range(6, 13) if resumed.step(step) is not None] == [9, 12]


def test_spikes() -> None:
    rule = sg.Spikes(window=3, factor=2.0)
    detector = SpikeDetector(rule)
    losses = [1.0, 9.0, 2.0, 3.9, 8.0, 7.9, 16.1, math.nan, 8.1, math.inf, -1.0]
    #  medians of three before:     2.0  3.9  3.9  7.9
    assert [detector.see(x) for x in losses] == [False] * 4 + [True, True, True, True, False, True, False]
    assert detector.median == 8.1  # of 16.1, 8.1, −1
    for wrong in ({"window": 0}, {"window": 2.0}, {"factor": 1.0}, {"factor": math.inf}):
        with pytest.raises(ArgumentError):
            sg.Spikes(**wrong)  # type: ignore[arg-type]


def test_spikes_are_written_at_once_and_told_by_the_next_reading(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sinks.jsonl"
    with sg.SinkWatch(tiny("llama"), ids(1, 40), every=4, path=path, spikes=sg.Spikes(2, 1.5)) as watch:
        for step, loss in enumerate([1.0, 1.0, 1.6, 1.0, torch.tensor(9.0), 1.0, float("nan"), 1.0, 1.0]):
            watch.step(step, loss)
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert lines[-1]["step"] == {0: 0, 1: 0, 2: 2, 3: 2, 4: 4, 5: 4, 6: 6, 7: 6, 8: 8}[step]
    assert [(x["step"], x.get("spikes"), x.get("loss")) for x in lines if "spike" not in x] == [
        (0, [], 1.0), (4, [2, 4], 9.0), (8, [6], 1.0)
    ]  # fmt: skip
    assert [x for x in lines if "spike" in x] == [
        {"step": 2, "spike": {"loss": 1.6, "median": 1.0, "window": 2, "factor": 1.5}},
        {"step": 4, "spike": {"loss": 9.0, "median": 1.3, "window": 2, "factor": 1.5}},
        {"step": 6, "spike": {"loss": None, "median": 5.0, "window": 2, "factor": 1.5}},
    ]
    with pytest.raises(ArgumentError, match="a loss is one number"):
        watch.step(9, torch.ones(2))


def test_numbers_that_are_no_longer_finite_end_no_training() -> None:
    model = tiny("llama")
    watch = sg.SinkWatch(model, ids(), every=1)
    kept = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[0, 0] = math.nan
    with pytest.warns(UserWarning, match=r"step 0 cannot be read: layer 1, heads? 0"):
        line = watch.step(0)
    assert line is not None
    assert "layer 1" in line["non_finite"]
    assert "first_token_mass" not in line
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.step(1) is not None  # said once
        model.load_state_dict(kept)
        line = watch.step(2)
    assert line is not None
    assert line["first_token_mass"] > 0


def test_no_error_is_raised_inside_the_pass() -> None:
    """It would leave FSDP's bookkeeping in the middle of a forward."""
    model = tiny("llama")
    watch = sg.SinkWatch(model, ids(), every=1)
    ended: list[bool] = []
    model.register_forward_hook(lambda *_: ended.append(True))
    with torch.no_grad():
        model.model.layers[0].self_attn.v_proj.weight.fill_(math.nan)
    with pytest.warns(UserWarning, match="cannot be read"):
        watch.step(0)
    assert ended == [True]


def test_refusals(tmp_path: Path) -> None:
    model, words_of = tiny("llama"), tokenizer()
    for wrong, error, message in (
        ({"every": 0}, ArgumentError, "every must be"),
        ({"start": -1}, ArgumentError, "start must be"),
        ({"samples": 0}, ArgumentError, "samples must be"),
        ({"closed": 0.0}, ArgumentError, "closed must be"),
        ({"eps": 1.5}, ArgumentError, "threshold must be"),
        ({"batch": TEXTS, "tokenizer": None}, ArgumentError, "texts need a tokenizer"),
        ({"batch": ["   "], "tokenizer": words_of}, TextError, "empty"),
        ({"batch": torch.rand(2, 8)}, ArgumentError, "whole numbers"),
        ({"batch": ids(1, 1)}, ArgumentError, "at least 2 tokens"),
        ({"batch": {"input_ids": ids(2, 8), "pixels": 1}}, ArgumentError, "pixels is not known"),
        ({"batch": {"labels": ids(2, 8)}}, ArgumentError, "input_ids must be whole numbers"),
        ({"batch": {"input_ids": ids(2, 8), "attention_mask": torch.ones(2, 7).long()}}, ArgumentError, "must have the shape"),
        ({"batch": {"input_ids": ids(2, 8), "attention_mask": torch.eye(8).long()[:2]}}, ArgumentError, "less than 2 tokens"),
    ):  # fmt: skip
        arguments = {"batch": ids(), **wrong}
        with pytest.raises(error, match=message):
            sg.SinkWatch(model, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="Linear has no config"):
        sg.SinkWatch(nn.Linear(2, 2), ids())
    model.set_attn_implementation("sinkgate_softpick" if sg.register() is None else "")
    with pytest.raises(UnsupportedError, match="sinkgate_softpick"):
        sg.SinkWatch(model, ids())
    assert not list(tmp_path.iterdir())


# ---- the file -------------------------------------------------------------------------------------------------------


def watched(path: Path, steps: range, **options: Any) -> None:
    with sg.SinkWatch(tiny("llama"), ids(1, 40), every=2, path=path, **options) as watch:
        for step in steps:
            watch.step(step, 3.0)


def test_a_resumed_training_leaves_the_file_of_the_whole_one(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    watched(whole, range(9))
    watched(cut, range(8))  # killed behind step 7; its last checkpoint is of step 4
    with cut.open("ab") as file:
        file.write(b'{"step": 8, "lo')
    watched(cut, range(5, 9), start=4)
    assert cut.read_bytes() == whole.read_bytes()
    watched(tmp_path / "new.jsonl", range(5, 9), start=4)
    assert [json.loads(x)["step"] for x in (tmp_path / "new.jsonl").read_text().splitlines()] == [6, 8]


def test_remembered_losses_make_the_same_detector(tmp_path: Path) -> None:
    losses = [1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 2.1, 1.0, 1.0]

    def run(path: Path, start: int, stop: int) -> None:
        options: dict[str, Any] = {"every": 2, "path": path, "spikes": sg.Spikes(4, 2.0), "start": start}
        with sg.SinkWatch(tiny("llama"), ids(1, 40), **options) as watch:
            first = start + 1 if start else 0
            for step in range(first):
                watch.remember(step, losses[step], reported=step <= start - start % 2)
            for step in range(first, stop):
                watch.step(step, losses[step])

    run(tmp_path / "whole", 0, 9)
    run(tmp_path / "cut", 0, 6)
    run(tmp_path / "cut", 3, 9)
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    assert b'"spikes": [6]' in (tmp_path / "cut").read_bytes()


def test_another_trainings_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "sinks.jsonl"
    watched(path, range(3))
    before = path.read_bytes()
    with pytest.raises(OutputError, match="already holds readings"):
        watched(path, range(3))
    with pytest.raises(RecordError, match=r"is of another watch: eps is 0\.3 there and 0\.2 here"):
        watched(path, range(3, 5), start=2, eps=0.2)
    with pytest.raises(RecordError, match="is of another watch: batch is"), sg.SinkWatch(
        tiny("llama"), ids(1, 40, seed=1), every=2, path=path, start=2
    ):  # fmt: skip
        pass
    assert path.read_bytes() == before
    watched(path, range(1), overwrite=True)
    assert len(path.read_text().splitlines()) == 1
    path.write_bytes(b"no json\n" + before)
    with pytest.raises(RecordError, match="is damaged"):
        watched(path, range(3, 5), start=2)


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        watched(tmp_path / "file" / "sinks.jsonl", range(1))
    with pytest.raises(OutputError, match="cannot write"):
        watched(tmp_path, range(1))


class Disk:
    """A file whose disk is full for a while, and takes half of a line before it says so."""

    def __init__(self, file: Any) -> None:
        self.file, self.full = file, False

    def write(self, data: bytes) -> int:
        if self.full:
            self.file.write(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return self.file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_disk_that_fails_on_the_way_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = Lines(path, start=0, same={})
    disk = lines._file = Disk(lines._file)  # type: ignore[assignment]

    def steps() -> list[int]:
        return [json.loads(line)["step"] for line in path.read_bytes().splitlines()]

    lines.append({"step": 0})
    disk.full = True
    with pytest.warns(
        UserWarning, match=r"cannot be written at step 1 \(No space left on device\); the training goes on"
    ):
        lines.append({"step": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines.append({"step": 2})  # said once
        disk.full = False
        lines.append({"step": 3})
    assert steps() == [0, 1, 2, 3]
    disk.full = True
    with pytest.warns(UserWarning, match="step 4"):
        lines.append({"step": 4})
    with pytest.warns(UserWarning, match="1 lines are lost"):
        lines.close()
    assert os.fspath(path)


def test_every_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "x", start=0, same={})
    lines.append({"step": 0, "nan": math.nan, "numpy": np.float32(0.5)})
    assert json.loads((tmp_path / "x").read_text()) == {"step": 0, "nan": None, "numpy": 0.5}
    lines.close()
