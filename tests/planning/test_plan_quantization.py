"""The measurement as a whole: numbers against ones made by hand, what wins where it must, and what is said."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError, NonFiniteError, RecordError, UnsupportedError
from sinkgate.hf.anatomy import forward
from sinkgate.hf.linears import find_linears
from sinkgate.planning import quantization
from sinkgate.planning.quantization import measure_quantization
from sinkgate.planning.quantization_record import CONTROL, NONE_BETTER, QuantizationArms, QuantizedArm
from sinkgate.planning.quantization_spec import KVSpec, apply_quantization, spec_from_json

sys.path.insert(0, str(Path(__file__).parents[1] / "interventions"))
from planted import planted

WORDS = tokenizer().get_vocab()
FIRST = WORDS["w9"]


def massive_first() -> Any:
    """One unit of the first layer's MLP answers to the token w9 alone, with 3000, and writes 5000 to component 11."""
    model = planted()
    mlp, norm = model.transformer.h[0].mlp, model.transformer.h[0].ln_2
    pattern = torch.ones(48)
    pattern[1::2] = -1
    with torch.no_grad():
        mlp.c_proj.weight.mul_(30.0)
        model.transformer.ln_f.weight.mul_(0.2)  # no prediction is sure
        model.transformer.ln_f.bias.mul_(0.2)
        mlp.c_fc.weight[:, 0] = 100.0 * pattern / norm.weight
        mlp.c_fc.bias[0] = -100.0 * float((pattern / norm.weight) @ norm.bias) - 1500.0
        unit = torch.nn.functional.gelu(mlp.c_fc(norm(stream_before_mlp(model))))[0, 0, 0]
        mlp.c_proj.weight[0] = 0.0
        mlp.c_proj.weight[0, 11] = 5000.0 / unit
    return model


def stream_before_mlp(model: Any) -> torch.Tensor:
    """The stream that the first MLP's norm reads at the token w9 alone."""
    seen: list[torch.Tensor] = []
    hook = model.transformer.h[0].ln_2.register_forward_pre_hook(lambda _m, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(torch.tensor([[FIRST]]))
    hook.remove()
    return seen[0]


@torch.no_grad()
def spoken(model: Any, count: int, length: int) -> list[list[int]]:
    """Texts that the model itself writes behind w9, rather sure and no token twice: what changes it costs loss."""
    ids = torch.full((count, 1), FIRST)
    generator = torch.Generator().manual_seed(5)
    for _ in range(length - 1):
        p = (2 * forward(model, ids, last_only=True)[:, -1]).softmax(-1).scatter(1, ids, 0.0)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=generator)], 1)
    return ids.tolist()


@pytest.fixture(scope="module")
def loud() -> tuple[Any, list[list[int]], Any]:
    model = massive_first()
    ids = spoken(model, 6, 60)
    names = {i: w for w, i in WORDS.items()}
    return (
        model,
        ids,
        sg.diagnose(model, tokenizer(), [" ".join(names[i] for i in row) for row in ids], tokens=60, samples=6),
    )


@pytest.fixture(scope="module")
def measured(loud: tuple[Any, list[list[int]], Any]) -> QuantizationArms:
    model, ids, diagnosis = loud
    return measure_quantization(
        model, tokenizer(), ids, diagnosis, places=("activations", "weights"), window=64, weight_group=8, first=2
    )


def test_a_massive_first_token_spoils_the_range_of_all_others(measured: QuantizationArms) -> None:
    """One scale per tensor: 3000 at the first token leaves the others of that layer nothing, unless it is set apart."""
    uniform = measured.at("activations")[0]
    assert uniform.name == "uniform"
    for name in ("preserve-first-2", "sink-aware"):
        arm = measured.arm("activations", name)
        assert arm is not None
        assert float(measured.difference(arm).high) < -0.01
        assert arm.kl < uniform.kl / 3
    best = measured.won("activations")
    assert best is not None
    assert best.name in ("preserve-first-2", "sink-aware")
    assert measured.verdict("activations").startswith(f"activations: {best.name} is better than uniform by -")
    by_head = measured.arm("activations", "per-head")
    assert by_head is not None
    assert abs(float(measured.difference(by_head).mean)) < -float(measured.difference(best).mean) / 3


def test_numbers_are_those_made_by_hand(loud: tuple[Any, list[list[int]], Any], measured: QuantizationArms) -> None:
    model, texts, _ = loud
    for arm in measured.arms:
        rises, kls = [], []
        for ids in texts:
            row = torch.tensor([ids])
            with torch.no_grad():
                plain = forward(model, row)[0].double().log_softmax(-1)
                with apply_quantization(model, arm.spec):
                    other = forward(model, row)[0].double().log_softmax(-1)
            right = row[0, 3:, None]
            rises.append(float((plain[2:-1].gather(1, right) - other[2:-1].gather(1, right)).mean()))
            kls.append(float((plain.exp() * (plain - other))[2:-1].sum(-1).mean()))
        np.testing.assert_allclose(arm.rises, rises, atol=2e-5)
        np.testing.assert_allclose(arm.kls, kls, atol=2e-5)
        low, high = stats.t.interval(0.95, 5, np.mean(rises), stats.sem(rises))
        assert (float(arm.rise.low), float(arm.rise.high)) == pytest.approx((low, high), abs=2e-5)
        if arm.name != "uniform":
            d = np.array(rises) - np.array(measured.at(arm.place)[0].rises)
            low, high = stats.t.interval(0.95, 5, d.mean(), stats.sem(d))
            found = measured.difference(arm)
            assert (float(found.low), float(found.high), found.samples) == pytest.approx((low, high, 6), abs=4e-5)


def test_bits_of_what_is_kept(measured: QuantizationArms) -> None:
    sizes = {a.name: a.size for a in measured.at("activations")}
    assert sizes["uniform"] == sizes["per-head"] == 8
    assert sizes["preserve-first-2"] == pytest.approx(8 + 8 * 2 / 60)
    assert 8 < sizes["sink-aware"] < 8.6


def test_everything_through_json(measured: QuantizationArms) -> None:
    data = json.loads(json.dumps(measured.to_json(), allow_nan=False))
    back = QuantizationArms.from_json(data)
    assert back.to_json() == measured.to_json()
    assert str(back) == str(measured)
    assert back.sentences() == measured.sentences()
    for name in ("format", "version", "meta", "arms", "skipped"):
        for wrong in (None, 7, "x", [7], {"x": 7}, {"kv": {"x": 7}}, True, 2):
            with pytest.raises(RecordError):
                QuantizationArms.from_json({**data, name: wrong})
    for name in data["arms"][0]:
        for wrong in (None, True, "moon", -1, [], ["x"], {}, float("inf"), [float("nan")] * 6):
            broken = copy.deepcopy(data)
            if name not in ("name", "words") or not isinstance(wrong, str):
                broken["arms"][0][name] = wrong
                with pytest.raises(RecordError):
                    QuantizationArms.from_json(broken)
    with pytest.raises(RecordError, match="do not begin with uniform"):
        QuantizationArms.from_json({**data, "arms": data["arms"][1:]})


def signs(name: str) -> Any:
    """A model all of whose weights are ±7/64: every symmetric grid holds them, whatever shares a scale."""
    model = tiny(name)
    with torch.no_grad():
        for layer in find_linears(model).linears:
            assert layer.weight is not None
            layer.weight.copy_(torch.where(layer.weight < 0, -7 / 64, 7 / 64))
    return model


def test_where_nothing_differs_nothing_wins() -> None:
    model = signs("llama")
    ids = torch.randint(4, 96, (3, 40), generator=torch.Generator().manual_seed(1)).tolist()
    diagnosis = sg.diagnose(
        model, tokenizer(), [" ".join(f"w{i - 4}" for i in row) for row in ids], tokens=40, samples=3
    )
    found = measure_quantization(
        model, tokenizer(), ids, diagnosis, places=("weights",), window=64, weight_group=4, first=2
    )
    assert {a.name for a in found.arms} == {"uniform", "preserve-first-2", "per-head", CONTROL}
    assert all(abs(x) < 1e-6 for a in found.arms for x in a.rises)
    assert found.won("weights") is None
    assert found.verdict("weights").startswith(f"weights: {NONE_BETTER}; uniform costs")
    assert "is not seen here" in str(found.hypothesis("weights"))
    assert "no massive activation" in found.skipped["weights"]["sink-aware"]
    assert any("sink-aware was not measured" in line for line in found.sentences())


def test_all_places_of_one_model_untouched_and_remembered() -> None:
    model = tiny("llama")
    model.train()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    ids = torch.randint(4, 96, (2, 70), generator=torch.Generator().manual_seed(1)).tolist()
    diagnosis = sg.diagnose(
        tiny("llama"), tokenizer(), [" ".join(f"w{i - 4}" for i in row) for row in ids], tokens=70, samples=2
    )
    remembered: dict[str, Any] = {}
    told: list[tuple[int, int, str]] = []

    def progress(*x: Any) -> None:
        told.append(x)

    found = measure_quantization(
        model, tokenizer(), ids, diagnosis, window=256, weight_group=8, first=2, cache=remembered, progress=progress
    )
    assert model.training
    assert all(torch.equal(model.state_dict()[n], p) for n, p in before.items())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    assert found.places == ("kv", "weights", "activations")
    assert [t[0] for t in told] == list(range(1, 1 + told[0][1]))
    assert len(told) == len(remembered) == 2 * len(found.arms)
    assert found.at("kv")[0].name == "uniform"
    assert float(found.at("kv")[0].rise.mean) != 0
    assert any("No text is longer than the window" in line for line in found.sentences())
    assert isinstance(spec_from_json(found.at("kv")[0].spec), KVSpec)
    json.dumps(remembered)

    def never(*_: Any, **__: Any) -> None:
        pytest.fail("measured again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sinkgate.planning.quantization._logits", never)
        again = measure_quantization(
            model, tokenizer(), ids, diagnosis, window=256, weight_group=8, first=2, cache=remembered
        )
    assert again.arms == found.arms
    for line in found.sentences():
        assert "nan" not in line


def test_texts_that_memory_holds_share_the_weights_of_an_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    ids = torch.randint(4, 96, (3, 50), generator=torch.Generator().manual_seed(1)).tolist()
    diagnosis = sg.diagnose(
        model, tokenizer(), [" ".join(f"w{i - 4}" for i in row) for row in ids], tokens=50, samples=3
    )
    applied: list[Any] = []
    apply = quantization.apply_quantization
    monkeypatch.setattr(quantization, "apply_quantization", lambda m, spec: applied.append(spec) or apply(m, spec))

    def measured() -> QuantizationArms:
        return measure_quantization(model, tokenizer(), ids, diagnosis, window=64, weight_group=8, first=2)

    together = measured()
    arms = [a for a in together.arms if a.place != "kv"]
    assert len(applied) == len(arms)
    applied.clear()
    monkeypatch.setattr(quantization, "HELD", 1)
    assert measured().arms == together.arms
    assert len(applied) == 3 * len(arms)
    before = {n: p.clone() for n, p in model.state_dict().items()}
    monkeypatch.setattr(quantization, "score", lambda *_, **__: (_ for _ in ()).throw(NonFiniteError("a NaN")))
    with pytest.raises(NonFiniteError):
        measure_quantization(
            model, tokenizer(), ids, diagnosis, places=("weights",), window=64, weight_group=8, first=2
        )
    assert all(torch.equal(model.state_dict()[n], p) for n, p in before.items())


def test_without_a_record_what_needs_it_is_said() -> None:
    ids = [list(range(5, 55)), list(range(9, 59))]
    found = measure_quantization(tiny("llama"), None, ids, None, window=256, weight_group=8, first=2)
    assert {a.name for a in found.at("kv")} == {"uniform", "preserve-first-2"}
    assert {a.name for a in found.at("activations")} == {"uniform", "preserve-first-2", "per-head"}
    for place in ("kv", "weights", "activations"):
        assert "there is no record" in found.skipped[place]["sink-aware"]
    assert "not measured: there is no record" in str(found)
    assert found.hypothesis("kv") is None
    one = measure_quantization(
        tiny("llama"), None, ids[:1], None, places=["weights"], window=64, weight_group=8, first=2
    )
    assert one.won("weights") is None
    assert "one text gives no interval" in one.verdict("weights")
    QuantizationArms.from_json(one.to_json())


def arms(**rises: tuple[float, ...]) -> QuantizationArms:
    spec, called = KVSpec("quantized(recent(64))").to_json(), {"per_head": "per-head", "control": CONTROL}
    made = [
        QuantizedArm("kv", called.get(name, name), "words", spec, 100, r, tuple(0.1 for _ in r))
        for name, r in rises.items()
    ]
    return QuantizationArms({"model": "m", "texts": 4, "tokens": 9, "notes": []}, tuple(made))


BASE, NOISE = (0.20, 0.21, 0.19, 0.20), (0.001, -0.001, 0.002, 0.0)


def shifted(by: float, noise: float = 1.0) -> tuple[float, ...]:
    return tuple(b + by + noise * n for b, n in zip(BASE, NOISE, strict=True))


def test_who_wins() -> None:
    found = arms(uniform=BASE, worse=shifted(0.1), better=shifted(-0.05), best=shifted(-0.1))
    best = found.won("kv")
    assert best is not None
    assert best.name == "best"
    assert "not apart" not in found.verdict("kv")
    tied = arms(uniform=BASE, better=shifted(-0.097, -3.0), best=shifted(-0.1))
    assert "best is better" in tied.verdict("kv")
    assert "It is not apart from better." in tied.verdict("kv")
    assert arms(uniform=BASE, better=shifted(-0.01, 40.0)).won("kv") is None  # lower, and not told apart
    assert arms(uniform=BASE, better=tuple(x - 1e-6 for x in BASE)).won("kv") is None  # told apart, and nothing
    assert arms(uniform=BASE, control=shifted(-0.1)).won("kv") is None  # a control is not to be chosen
    further = arms(uniform=BASE, best=shifted(-0.1))
    further = QuantizationArms(further.meta, (further.arms[0], replace(further.arms[1], kls=(0.3,) * 4)))
    assert "without being more faithful" in further.verdict("kv")
    with pytest.raises(ArgumentError, match="nothing was measured at 'weights'; there are kv"):
        found.won("weights")


@pytest.mark.parametrize(
    ("heads", "control", "said"),
    [
        (-0.1, 0.0, "sink heads need more bits here"),
        (0.02, 0.1, "but not more than they cost elsewhere"),
        (0.1, 0.0, "less than others do here"),
        (-0.1, -0.1, "is not seen here"),
    ],
)
def test_whether_sink_heads_need_more_bits(heads: float, control: float, said: str) -> None:
    found = arms(uniform=BASE, per_head=shifted(heads), control=shifted(control, -1.0))
    assert said in str(found.hypothesis("kv"))
    assert any(said in line for line in found.sentences())
    assert "there are no other heads" in str(arms(uniform=BASE, per_head=shifted(heads)).hypothesis("kv"))


def test_bad_input() -> None:
    model, good = tiny("llama"), [list(range(5, 55))]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"first": 0}, "first must be a whole number from 1"), ({"window": 0}, "window must be"), ({"window": True}, "window must be"),
        ({"kv_bits": 2}, "kv_bits must be 4 or 8, got 2"), ({"weight_bits": 8}, "weight_bits must be a whole number from 2 to 7"),
        ({"weight_group": 1}, "weight_group"), ({"activation_bits": 9}, "activation_bits"), ({"places": "kv"}, "places must be a list"),
        ({"places": ["moon"]}, "kv, weights, activations"), ({"places": []}, "places"), ({"pieces": []}, "pieces is empty"),
        ({"pieces": [[1, 2, 3]]}, "a text has 3 tokens, 38 are needed"), ({"pieces": [[5] * 600]}, "600 tokens, the model was made for 512"),
        ({"window": 600}, "use a smaller window"),
    ]  # fmt: skip
    for more, what in cases:
        given: dict[str, Any] = {"pieces": good, "window": 64, **more}
        pieces = given.pop("pieces")
        with pytest.raises(ArgumentError, match=what):
            measure_quantization(model, tokenizer(), pieces, None, **given)
    other = sg.diagnose(tiny("llama"), tokenizer(), [" ".join(f"w{i}" for i in range(20))], tokens=20, samples=1)
    other.meta, other.arrays = other.meta, {n: x[:, :2] if x.ndim > 1 else x for n, x in other.arrays.items()}
    with pytest.raises(ArgumentError, match="2 layers of up to 6 heads, this one has 3"):
        measure_quantization(model, tokenizer(), good, other, window=64)


def test_a_model_that_cannot_be_streamed_so_is_still_measured_elsewhere() -> None:
    model, ids = tiny("gpt2"), [list(range(5, 55))]
    with pytest.raises(UnsupportedError, match="positions='original'"):
        measure_quantization(model, None, ids, None, places=["kv"], window=64, positions="slots")
    found = measure_quantization(
        model, None, ids, None, places=["kv", "weights"], window=64, weight_group=8, positions="slots"
    )
    assert found.places == ("weights",)
    assert "positions='original'" in found.skipped["kv"]["every arm"]
    assert any("keys and values: every arm was not measured" in line for line in found.sentences())
