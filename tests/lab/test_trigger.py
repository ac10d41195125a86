"""The trigger task: its data, its model against one written anew, its rule to stop, what it reports and claims."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.gate import POSITIONS, Gate
from sinkgate.lab.arms import GATES, Arm, as_arm
from sinkgate.lab.config import LoopConfig
from sinkgate.lab.loop import train
from sinkgate.lab.tasks import as_task, from_json
from sinkgate.lab.tasks.base import Specification
from sinkgate.lab.tasks.trigger import Trigger, sequences
from sinkgate.lab.tasks.trigger_claims import Claim, claims, construction, construction_error
from sinkgate.lab.tasks.trigger_model import generator
from sinkgate.weighting import names

SMALL = Trigger(length=6, dim=5, batch=8, position=4, examples=20)


# ---- the value ----------------------------------------------------------------------------------------------------


def test_the_task_is_a_value() -> None:
    task = Trigger(layers=2, heads=3, bos=False, relu_over="keys", stop=0.25)
    assert isinstance(task, Specification)
    assert from_json(json.loads(json.dumps(task.to_json()))) == task
    assert as_task("trigger") == Trigger()
    assert as_task("trigger", layers=2).loop().lr == 1e-4
    loop = Trigger().loop(7, None, 3)
    want = LoopConfig(steps=7, lr=1e-3, schedule="constant", betas=(0.9, 0.95), clip=None, seed=3, save_every=1000)
    assert loop == want
    assert (loop.weight_decay, loop.warmup, loop.accumulate) == (0, 0, 1)
    assert Trigger().loop().steps == 50_000
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"layers": 0}, "layers must be"), ({"heads": 1.0}, "heads must be"), ({"length": 2}, "length must be"),
        ({"dim": 3}, "dim must be"), ({"batch": 0}, "batch must be"), ({"position": 2}, "position must be"),
        ({"position": 17}, "position must be from 3 to length=16, got 17"), ({"examples": 0}, "examples must be"),
        ({"bos": 1}, "bos must be"), ({"stop": math.nan}, "stop must be"), ({"stop": True}, "stop must be"),
        ({"relu_over": "rows"}, "relu_over must be tokens or keys"), ({"depth": 1}, "has no depth"),
    ]  # fmt: skip
    for fields, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            from_json({"name": "trigger", **fields})


# ---- the data -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 9), st.integers(4, 8), st.integers(0, 10_000), st.booleans(), st.data())
def test_sequences_are_what_the_paper_says(length: int, dim: int, seed: int, residual: bool, data: Any) -> None:
    at = data.draw(st.lists(st.integers(2, length - 1), min_size=1, max_size=4))
    found = sequences(
        torch.tensor(at), length, dim, torch.Generator().manual_seed(seed), residual=residual, dtype=torch.float64
    )
    for x, y, j in zip(found.x.tolist(), found.y.tolist(), at, strict=True):
        for i, token in enumerate(x):
            kind = "bos" if i == 0 else "trigger" if i == j else "content"
            assert [token[0], token[1], token[-1]] == [
                float(kind == "bos"),
                float(kind == "trigger"),
                float(kind == "content"),
            ]
            assert all(v == 0 for v in token[2:-1]) if kind == "bos" else all(-1 <= v < 1 != 0 for v in token[2:-1])
        for i in range(length):
            want = [sum(x[t][c] for t in range(1, j + 1)) / j if i == j else 0.0 for c in range(dim)]
            if residual:
                want = [a + b for a, b in zip(want, x[i], strict=True)]
            assert y[i] == pytest.approx(want, abs=1e-12)


def test_what_is_drawn_is_uniform_and_independent() -> None:
    task = Trigger(batch=2000)
    batch = task.make(Arm(), 0).batch(0)
    drawn = batch.x[:, 1:, 2:15].flatten(1).double()  # 195 numbers of each sequence
    assert drawn.shape[1] == 15 * 13
    assert float(drawn.mean()) == pytest.approx(0, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1 / 3, abs=0.01)
    assert 0.999 < float(drawn.abs().max()) <= 1
    of = torch.corrcoef(drawn.T)
    assert float((of - torch.eye(195)).abs().max()) < 0.11  # 19,000 pairs of 1/√2000 = .022: five of them
    counts = torch.bincount(batch.at, minlength=16)
    assert counts[:2].tolist() == [0, 0]
    assert float((counts[2:] - 2000 / 14).abs().max()) < 60  # five standard deviations of 11.5
    trigger = batch.x[torch.arange(2000), batch.at]
    assert float(trigger[:, 2:15].abs().mean()) == pytest.approx(0.5, abs=0.01)


def test_data_is_a_function_of_seed_and_step() -> None:
    one, two, other = (
        SMALL.make(as_arm(arm), seed) for arm, seed in (("softmax", 1), ("relu + g1", 1), ("softmax", 2))
    )
    torch.rand(3)
    first = one.batch(5)
    one.batch(6)
    assert all(torch.equal(a, b) for a, b in zip(first, two.batch(5), strict=True))
    assert not torch.equal(first.x, one.batch(6).x)
    assert not torch.equal(first.x, other.batch(5).x)
    deep = Trigger(layers=2, length=6, dim=5, batch=8, position=4).make(Arm(), 1).batch(5)
    assert torch.equal(deep.x, first.x)
    assert torch.equal(deep.y, first.y + first.x)


def test_arms_share_the_start_of_what_they_share() -> None:
    state = torch.get_rng_state()
    plain, gated = (SMALL.make(as_arm(arm), 4) for arm in ("softmax", "sink_softmax(z=1.5) + g1 + head_norm + qk_norm"))
    assert torch.equal(torch.get_rng_state(), state)
    for name, p in plain.parameters().items():
        assert torch.equal(p, gated.parameters()[name])
    assert not torch.equal(plain.model.layers[0].q, plain.model.layers[0].k)
    assert not torch.equal(plain.model.layers[0].q, SMALL.make(Arm(), 5).model.layers[0].q)
    assert gated.parameters()["layers.0.learned.z"].tolist() == [1.5]
    big = Trigger(dim=64, length=8).make(as_arm("softmax + g1 + sink_token(2)"), 0)
    for name, p in big.parameters().items():
        assert float(p.detach().std()) == pytest.approx(0.02, rel=0.25), name
    same = SMALL.make(Arm(gate=Gate(preserve=2.0)), 4)  # a gate that is 1 at the start
    assert not bool(same.model.layers[0].gate.proj.weight.any())
    x = plain.batch(0).x
    assert torch.equal(same.model(x), plain.model(x))


# ---- the model against one written anew ---------------------------------------------------------------------------


def row_of(name: str, s: Tensor, i: int, z: Tensor | None) -> Tensor:
    """Weights of one row's visible keys, from the papers' formulas."""
    e = s.exp()
    if name == "softmax":
        return e / e.sum()
    if name == "softmax1":
        return e / (1 + e.sum())
    if name == "sink_softmax":
        assert z is not None
        return e / (z.exp() + e.sum())
    if name == "relu":
        return s.clamp_min(0) / max(i, 1)
    if name == "sigmoid":
        return 1 / (1 + len(s) * (-s).exp())
    assert name == "softpick"
    return (e - 1).clamp_min(0) / ((e - 1).abs().sum() + 1e-6)


def eager(experiment: Any, x: Tensor) -> Tensor:
    """One sequence at a time, one head at a time, one row at a time; row vectors times matrices."""
    task, arm, p = experiment.task, experiment.arm, experiment.parameters()
    n, d, heads = arm.sink_tokens, task.dim, task.heads
    done = []
    for tokens in x:
        h = torch.cat([p["sink_tokens"], tokens]) if n else tokens
        for layer in range(task.layers):
            at = f"layers.{layer}."
            gate = None if arm.gate is None else torch.sigmoid(h @ p[f"{at}gate.proj.weight"].T)
            out = torch.zeros_like(h)
            for head in range(heads):
                part = slice(head * d, (head + 1) * d)
                mine = None if gate is None else gate[:, part] if arm.gate.elementwise else gate[:, head : head + 1]
                q, k, v = (h @ p[at + name][:, part] for name in "qkv")
                if arm.qk_norm:
                    q, k = (
                        y
                        / (y.square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).sqrt()
                        * p[f"{at}{name}_norm.weight"]
                        for y, name in ((q, "q"), (k, "k"))
                    )
                if arm.gate is not None:
                    q, k, v = (y * mine if arm.gate.position == g else y for y, g in ((q, "G4"), (k, "G3"), (v, "G2")))
                rows = []
                for i in range(n + task.length):
                    seen = [j for j in range(i + 1) if arm.window is None or i - j < arm.window or j < arm.keep]
                    if not task.bos:
                        seen = [j for j in seen if j != n or i == n]
                    z = p[at + "learned.z"][head] if arm.weighting.name == "sink_softmax" else None
                    w = row_of(arm.weighting.name, q[i] @ k[seen].T, i - n, z)
                    y = w @ v[seen]
                    if arm.head_norm:
                        y = y / (y.square().mean() + torch.finfo(y.dtype).eps).sqrt() * p[at + "head_gain"][head, 0]
                    rows.append(y * mine[i] if arm.gate is not None and arm.gate.position == "G1" else y)
                out = out + torch.stack(rows) @ p[at + "o"][part]
            if arm.gate is not None and arm.gate.position == "G5":
                out = out * gate
            h = h + out if task.layers > 1 else out
        done.append(h[n:])
    return torch.stack(done)


@pytest.mark.parametrize(
    ("arm", "settings"),
    [
        ("softmax", {}),
        ("softmax", {"bos": False}),
        ("relu", {}),
        ("relu", {"bos": False}),
        ("relu + sink_token(2)", {"heads": 2}),
        ("softpick + g1_head", {"heads": 2}),
        ("softmax1 + g1", {"layers": 2, "heads": 2}),
        ("sink_softmax", {"layers": 2, "heads": 3, "bos": False}),
        ("sigmoid + g2", {"heads": 2}),
        ("sigmoid + g3", {}),
        ("softmax + g4", {"layers": 2}),
        ("softmax + g5", {"heads": 2}),
        ("softmax + window(3) + keep(1)", {"heads": 2}),
        ("softmax + window(2) + keep(2) + sink_token", {"bos": False}),
        ("softmax + head_norm + qk_norm + g1_head", {"layers": 2, "heads": 2}),
    ],
)
def test_values_and_gradients_are_those_of_the_formulas(arm: str, settings: dict[str, Any]) -> None:
    task = Trigger(length=6, dim=5, batch=3, position=4, **settings)
    experiment = task.make(as_arm(arm), 3)
    experiment.model.double()
    with torch.no_grad():
        for name, p in experiment.parameters().items():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))) * 0.7)
    batch = experiment.batch(2)
    assert batch.x.dtype == torch.float64
    parameters = list(experiment.parameters().values())
    found = experiment.loss(batch, 2)
    y = eager(experiment, batch.x)
    torch.testing.assert_close(experiment.model(batch.x), y, rtol=1e-9, atol=1e-10)
    loss = (y - batch.y).pow(2).sum() / batch.y.numel()
    torch.testing.assert_close(found["loss"], loss, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found["linf"], (y - batch.y).abs().max().detach(), rtol=1e-9, atol=1e-12)
    for a, b in zip(torch.autograd.grad(found["loss"], parameters), torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


def test_relu_is_divided_as_asked() -> None:
    counts = {"tokens": [1, 1, 2, 3, 4, 5], "keys": [1, 2, 3, 4, 5, 6]}
    for over, count in counts.items():
        task = Trigger(length=6, dim=5, position=4, relu_over=over)
        raw, divided, fixed = (task.make(as_arm(arm), 0) for arm in ("relu(normalize=False)", "relu", "relu(n=6)"))
        x = raw.batch(0).x
        torch.testing.assert_close(divided.model(x) * torch.tensor(count)[:, None], raw.model(x))
        torch.testing.assert_close(fixed.model(x) * 6, raw.model(x))


# ---- training -----------------------------------------------------------------------------------------------------


ARMS = [
    *names(), "topk_softmax(k=2)", "relu(normalize=False)", "relu(squared=true)", *(f"softmax + {g}" for g in GATES),
    "softmax + head_norm", "softmax + qk_norm", "softmax + sink_token(2)", "softmax + window(2) + keep(1)",
]  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"layers": 2, "heads": 2}, {"bos": False}], ids=str)
def test_every_arm_trains_and_reports(settings: dict[str, Any]) -> None:
    extra = [
        Arm(gate=Gate(position, shared=True, additive=True, activation="centred_sigmoid")) for position in POSITIONS
    ]
    for arm in [*map(as_arm, ARMS), *extra, Arm(gate=Gate(preserve=2.0))]:
        task = Trigger(length=6, dim=5, batch=4, position=4, examples=5, **settings)
        experiment = task.make(arm, 0)
        start = {name: p.detach().clone() for name, p in experiment.parameters().items()}
        history = train(experiment, task.loop(3, None, 0))
        assert history.final_step == 2
        assert list(history.steps[0]) == ["step", "loss", "lr", "grad_norm", "linf"]
        assert all(bool(torch.isfinite(p).all()) for p in experiment.parameters().values()), arm
        assert not all(torch.equal(start[name], p) for name, p in experiment.parameters().items()), arm
        for name, p in experiment.parameters().items():
            unmoved = torch.equal(start[name], p)
            assert not unmoved or name.rpartition(".")[2] in ("q", "k") or "gate" in name, f"{arm}: {name}"
        found = experiment.final("test")
        assert next(iter(found)) == "linf"
        assert {Trigger.headline, *Trigger.shown} <= set(found)
        assert (found["taken"], found["solved"]) == (3, 0)
        assert math.isnan(found["steps"])
        assert all(isinstance(x, float | int | list) for x in found.values())
        absent = {"steps"} | ({"sink_token"} if not arm.sink_tokens else set())
        absent |= {n for n in found if n.startswith("gate_")} if arm.gate is None else set()
        absent |= {"bos_over_null"} if not task.bos else set()
        assert {n for n, x in found.items() if not isinstance(x, list) and not math.isfinite(x)} == absent, arm


def test_what_has_no_place_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"no MLP to be made wider: leave wider\(…\) out of softmax \+ wider\(g1\)"):
        Trigger().make(as_arm("softmax + wider(g1)"), 0)
    with pytest.raises(ArgumentError, match="split must be select or test, got 'train'"):
        SMALL.make(Arm(), 0).final("train")


def test_training_ends_under_the_rule(tmp_path: Path) -> None:
    whole = SMALL.make(Arm(), 0)
    errors = train(whole, SMALL.loop(30, 0.02, 0)).column("linf")
    assert not whole.solved
    assert whole.taken == 30
    first = next(i for i, e in enumerate(errors) if e < 0.9 * errors[0])
    task = Trigger(length=6, dim=5, batch=8, position=4, examples=20, stop=0.9 * errors[0])
    short = task.make(Arm(), 0)
    history = train(short, task.loop(30, 0.02, 0), tmp_path)
    assert history.column("linf") == errors[: first + 1]
    assert history.steps[-1]["done"] is True
    assert (short.solved, short.taken) == (True, first + 1)
    again = task.make(Arm(), 0)  # of a finished run the state comes from its checkpoint
    assert train(again, task.loop(30, 0.02, 0), tmp_path, resume=True) == history
    assert again.final("test") == short.final("test")
    assert again.final("test")["steps"] == first + 1


@pytest.mark.parametrize("arm", ["softmax", "sink_softmax + g1_head + sink_token"])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, arm: str) -> None:
    config = LoopConfig.from_json({**SMALL.loop(12, None, 0).to_json(), "save_every": 3})
    whole, killed, resumed = (SMALL.make(as_arm(arm), 0) for _ in range(3))
    history = train(whole, config, tmp_path / "whole")

    def kill(line: dict[str, Any]) -> None:
        if line["step"] == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(killed, config, tmp_path / "killed", progress=kill)
    with torch.no_grad():
        for p in resumed.parameters().values():
            p.add_(1)  # whatever it began with
    assert train(resumed, config, tmp_path / "killed", resume=True) == history
    for name in ("log.jsonl", "checkpoint.safetensors", "config.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    for name, p in whole.parameters().items():
        assert torch.equal(p, resumed.parameters()[name])
    assert str(resumed.final("test")) == str(whole.final("test"))  # as text, where NaN is NaN


def test_softmax_that_solves_it_has_a_sink_and_relu_has_none() -> None:
    task = Trigger(length=8, dim=6, batch=64, stop=0.02, position=6)
    found, said = {}, {}
    for name in ("softmax", "relu", "softmax + g1_head", "softmax1"):
        experiment = task.make(as_arm(name), 0)
        train(experiment, task.loop(3000, 5e-3, 0))
        found[name] = experiment.final("test")
        assert found[name]["solved"] == 1, name
        assert found[name]["linf"] < 0.1, name
        said[name] = claims(task, as_arm(name), found[name], exact=construction_error(task))
    assert found["softmax"]["bos_least"] > 0.99
    assert said["softmax"]["single_layer"].state == "held"
    assert found["relu"]["bos_highest"] == 0
    assert said["relu"]["relu_trained"].state == "held"
    assert found["softmax + g1_head"]["bos_least"] > 0.9  # a gate suffices elsewhere; here it takes nothing away
    assert said["softmax + g1_head"]["single_layer"].state == "not applicable"
    assert found["softmax1"]["bos_least"] > 0.9


# ---- what is reported ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["sigmoid + g1_head", "sink_softmax + g5 + sink_token(2)", "softmax1 + g2 + window(3)"])
def test_reported_numbers_are_those_of_a_loop_over_everything(arm: str) -> None:
    task = Trigger(layers=2, heads=2, length=6, dim=5, position=4, examples=3)
    experiment = task.make(as_arm(arm), 1)
    with torch.no_grad():
        for p in experiment.parameters().values():
            p.mul_(30)
    before = {name: p.detach().clone() for name, p in experiment.parameters().items()}
    found = experiment.final("test")
    assert all(torch.equal(p, before[name]) for name, p in experiment.parameters().items())
    assert str(experiment.final("test")) == str(found)
    select = experiment.final("select")
    assert select["linf"] != found["linf"]
    n, off = experiment.model.sinks, [1, 2, 4, 5]

    noted: list[Any] = []
    drawn = []
    original = experiment._sequences  # the sequences that were measured, seen on their way
    experiment._sequences = lambda at, source: drawn.append(original(at, source)) or drawn[-1]  # type: ignore[method-assign, func-returns-value]
    experiment.final("test")
    data = drawn[0]
    assert data.at.tolist() == [3, 3, 3]
    with torch.no_grad():
        y = experiment.model(data.x, noted)
    assert found["linf"] == float((y - data.y).abs().max())
    assert found["mse"] == pytest.approx(float((y - data.y).pow(2).mean()))

    bos, null, mass, tokens, largest, by_head, by_place = [], [], [], [], [], [], []
    for layer in noted:
        for h in range(2):
            mine = [[float(layer.weights[b, h, n + i, n]) for i in range(6)] for b in range(3)]
            by_place += [sum(column) / 3 for column in zip(*mine, strict=True)]
            by_head.append([row[i] for row in mine for i in off])
            bos += by_head[-1]
            for b in range(3):
                for i in off:
                    row = layer.weights[b, h, n + i].tolist()
                    mass.append(sum(row))
                    tokens.append(sum(row[:n]))
                    seen = [j for j in range(n + i + 1) if experiment.arm.window is None or n + i - j < 3]
                    null.append((n in seen) / len(seen))
    for b in range(3):
        largest.append(max(float(x.weights[b, h, n + i, n]) for x in noted for h in range(2) for i in off))

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    assert found["bos"] == pytest.approx(mean(bos))
    assert found["bos_least"] == pytest.approx(min(bos))
    assert [found[k] for k in ("bos_most", "bos_most_least", "bos_highest")] == pytest.approx(
        [mean(largest), min(largest), max(largest)]
    )
    assert found["null"] == pytest.approx(mean(null))
    assert found["bos_over_null"] == pytest.approx(mean(bos) / mean(null))
    assert found["mass"] == pytest.approx(mean(mass))
    assert found["sink_token"] == pytest.approx(mean(tokens)) if n else math.isnan(found["sink_token"])
    assert found["bos_head"] == pytest.approx([mean(x) for x in by_head])
    assert found["bos_least_head"] == pytest.approx([min(x) for x in by_head])
    assert found["bos_position"] == pytest.approx(by_place)
    assert found["out_off"] == pytest.approx([mean([float(x.out[b, n + i].norm()) for b in range(3) for i in off]) for x in noted])  # fmt: skip
    assert found["out_at"] == pytest.approx([mean([float(x.out[b, n + 3].norm()) for b in range(3)]) for x in noted])

    gate = experiment.model.layers[0].gate
    hidden = data.x if not n else torch.cat([experiment.parameters()["sink_tokens"].expand(3, -1, -1), data.x], 1)
    first = torch.sigmoid(hidden @ gate.proj.weight.T)[:, n:].detach()  # the first layer's, from the tokens
    torch.testing.assert_close(
        noted[0].gate.flatten().sort().values[-1], torch.sigmoid(hidden @ gate.proj.weight.T).max()
    )
    assert found["gate_low"] <= float(first.min()) <= float(first.max()) <= found["gate_high"]
    one = Trigger(length=6, dim=5, position=4, examples=3).make(as_arm("softmax + g1_head"), 1)
    with torch.no_grad():
        one.model.layers[0].gate.proj.weight.copy_(torch.tensor([[1.0, 2.0, 0, 0, 3.0]]))  # by kind of token
    gates = one.final("test")
    want = {"gate_bos": 1.0, "gate_at": 2.0, "gate_off": 3.0, "gate_low": 1.0, "gate_high": 3.0}
    assert {k: gates[k] for k in want} == pytest.approx({k: 1 / (1 + math.exp(-x)) for k, x in want.items()})


def test_written_lengths_and_learned_logits() -> None:
    experiment = Trigger(layers=2, heads=2, length=6, dim=5, position=4, examples=2).make(as_arm("sink_softmax"), 0)
    with torch.no_grad():
        for i, layer in enumerate(experiment.model.layers):
            layer.o.zero_()  # the second layer reads the tokens themselves
            layer.v.copy_(torch.cat([torch.eye(5), 2 * torch.eye(5)], 1))
            layer.learned["z"].copy_(torch.tensor([i + 0.25, i + 0.5]))
    assert experiment.final("test")["written_others"] == [0.0] * 4
    assert experiment.final("test")["learned_z"] == [0.25, 0.5, 1.25, 1.5]
    with torch.no_grad():
        experiment.model.layers[1].o.copy_(torch.cat([torch.eye(5), 3 * torch.eye(5)]))
    found = experiment.final("test")
    assert found["written_bos"] == pytest.approx([0, 0, 1, 6])  # ‖e_1‖ through both maps
    x = experiment._sequences(torch.tensor([3, 3]), generator(0, "trigger/test")).x
    length = float(x[:, 1:].norm(dim=-1).mean())
    assert found["written_others"] == pytest.approx([0, 0, length, 6 * length])


# ---- the construction and the claims -------------------------------------------------------------------------------


def test_the_construction_is_exact() -> None:
    assert construction_error() < 1e-15
    assert construction_error(Trigger(bos=False), seed=2) < 1e-15
    assert construction_error(Trigger(length=40, dim=6, position=9), count=200) < 2e-15
    layer = construction(Trigger()).layers[0]
    q = torch.zeros(16, 16, dtype=torch.float64)
    q[1, 1] = q[1, 15] = 1
    assert torch.equal(layer.q, q)
    for wrong in (Trigger(relu_over="keys"), Trigger(layers=2), Trigger(heads=2)):
        with pytest.raises(ArgumentError, match="one layer of one head"):
            construction_error(wrong)
    model = construction(Trigger())
    with torch.no_grad():
        model.layers[0].k[3, 3] = 1.001  # only the flags' rows are looked at: nothing changes
        data = sequences(torch.tensor([7]), 16, 16, torch.Generator().manual_seed(0), dtype=torch.float64)
        assert float((model(data.x) - data.y).abs().max()) < 1e-15
        model.layers[0].k[15, 15] = 1.001
        assert float((model(data.x) - data.y).abs().max()) > 1e-5


FOUND = {"solved": 1.0, "linf": 0.004, "taken": 800, "bos_least": 0.995, "bos_most_least": 0.999, "bos_highest": 1.0}


def test_claims_on_numbers_by_hand() -> None:
    one, many, heads = Trigger(), Trigger(layers=2, heads=2), Trigger(heads=2)
    softmax, relu = Arm(), as_arm("relu")

    def state(task: Trigger, arm: Arm, claim: str, exact: float | None = None, **change: float | None) -> str:
        return claims(task, arm, FOUND | change, exact=exact)[claim].state

    assert state(one, softmax, "single_layer") == "held"
    assert state(one, softmax, "single_layer", bos_least=0.9899) == "did not hold"
    assert state(one, softmax, "single_layer", bos_least=0.99) == "held"
    assert state(one, softmax, "single_layer", solved=0.0) == "not applicable"
    assert state(one, softmax, "single_layer", bos_least=0.1, bos_most_least=1.0) == "did not hold"
    assert state(one, softmax, "multilayer") == "not applicable"
    assert state(Trigger(bos=False), softmax, "single_layer") == "not applicable"
    for arm in ("softmax + g1_head", "sink_softmax", "softmax1", "sparsemax", "softmax + sink_token", "relu"):
        assert state(one, as_arm(arm), "single_layer") == state(many, as_arm(arm), "multilayer") == "not applicable"
    for task in (many, heads):
        assert state(task, softmax, "single_layer") == "not applicable"
        assert state(task, softmax, "multilayer") == "held"
        assert state(task, softmax, "multilayer", bos_least=0.0) == "held"  # some layer, head and row
        assert state(task, softmax, "multilayer", bos_most_least=0.98) == "did not hold"
        assert state(task, softmax, "multilayer", solved=0.0) == "not applicable"
    assert state(one, relu, "relu_trained", bos_highest=0.0) == "held"
    assert state(one, relu, "relu_trained", bos_highest=0.02) == "did not hold"
    assert state(one, relu, "relu_trained", bos_highest=0.0, solved=0.0) == "not applicable"
    assert state(one, as_arm("relu + g1"), "relu_trained") == state(one, softmax, "relu_trained") == "not applicable"
    assert state(Trigger(bos=False), relu, "relu_trained", bos_highest=0.0) == "not applicable"
    assert state(one, softmax, "relu") == "not applicable"
    assert state(one, softmax, "relu", exact=3e-16) == "held"
    assert state(one, softmax, "relu", exact=1e-9) == "did not hold"

    said = claims(one, softmax, FOUND | {"solved": 0.0, "linf": 0.19, "taken": 10_000, "steps": None})
    assert str(said["single_layer"]) == "not applicable: did not solve it (largest error 0.19 after 10,000 steps)"
    wide = claims(one, softmax, FOUND | {"bos_least": 0.96}, epsilon=0.05)["single_layer"]
    assert wide == Claim("held", "least weight on the BOS off the trigger 0.9600, to be at least 0.95")
    with pytest.raises(ArgumentError, match="epsilon must be above 0"):
        claims(one, softmax, FOUND, epsilon=0.5)
