"""The outlet task: its loss recomputed by hand, its schedule, its multipliers; a whole training with its control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import sinkgate as sg
from hf.test_reading import assert_same, state
from interventions.planted import planted, texts
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError, OutputError, RecordError, TextError
from sinkgate.evaluate.score import score
from sinkgate.hf.anatomy import forward
from sinkgate.lab.outlet import OutletTask, frozen

IDS = torch.randint(0, 96, (600,), generator=torch.Generator().manual_seed(0))


def task(model: Any, steps: int = 20, marked: Any = (), **settings: Any) -> OutletTask:
    config = sg.OutletConfig(**{"tokens": 40, "burn_in": 8, **settings})
    return OutletTask(model, IDS, config, steps, marked)


def with_outlet(kind: Any = "kv_bias", name: str = "llama") -> Any:
    model = tiny(name, dtype=torch.float64)
    found = sg.add_outlet(model, kind)
    with torch.no_grad():
        for n, p in found.named_parameters().items():
            p.copy_(torch.rand(p.shape, generator=torch.Generator().manual_seed(len(n))) * 0.5)
    return model


def test_the_loss_by_hand() -> None:
    model = with_outlet()
    original = tiny("llama", dtype=torch.float64)
    job = task(model, text=0.7, distill=0.4)
    seen = {False: 0, True: 0}
    for step in range(12):
        ids, evict = job.batch(step)
        got = job.loss((ids, evict), step)
        seen[evict] += 1
        first = 8 if evict else 0
        with torch.no_grad():
            teacher = forward(original, ids)[0, first:-1].float().log_softmax(-1)
            if evict:
                with sg.acting(model, sg.Evict(0, 8)):
                    student = forward(model, ids)[0, first:-1].float()
            else:
                student = forward(model, ids)[0, first:-1].float()
            text = F.cross_entropy(student, ids[0, first + 1 :])
            kl = ((teacher - student.log_softmax(-1)) * teacher.exp()).sum(-1).mean()
        torch.testing.assert_close(got["loss"].detach(), 0.7 * text + 0.4 * kl, rtol=1e-5, atol=1e-6)
        assert float(kl) > 1e-3
    assert min(seen.values()) >= 2


def test_a_batch_is_a_function_of_its_step() -> None:
    a, b = task(with_outlet()), task(with_outlet())
    batches = [a.batch(i) for i in range(6)]
    for i in (3, 1, 5):
        assert torch.equal(b.batch(i)[0], batches[i][0])
        assert b.batch(i)[1] == batches[i][1]
    assert len({tuple(x[0].tolist()) for x, _ in batches}) == 6
    other = task(with_outlet(), seed=1)
    assert not torch.equal(other.batch(0)[0], batches[0][0])


def test_the_teacher_stays_the_original_when_other_weights_are_trained() -> None:
    model = with_outlet()
    job = task(model, also=("*.o_proj.weight",), evict=0.0)
    names = [n for n in job.parameters() if n.endswith("o_proj.weight")]
    assert len(names) == 3
    batch = job.batch(0)
    before = job.loss(batch, 0)
    with torch.no_grad():
        for n in names:
            job.parameters()[n].mul_(1.3)
    after = job.loss(batch, 0)
    assert float(after["kl"]) > float(before["kl"])
    with torch.no_grad(), sg.without_outlets(job.teacher):
        assert torch.equal(forward(job.teacher, batch[0]), forward(tiny("llama", dtype=torch.float64), batch[0]))


def test_only_what_is_trained_wants_gradients() -> None:
    model = with_outlet()
    model.lm_head.weight.requires_grad_(False)
    was = [p.requires_grad for p in model.parameters()]
    job = task(model)
    trained = {id(p) for p in job.parameters().values()}
    with frozen(model, list(job.parameters().values())):
        assert {id(p) for p in model.parameters() if p.requires_grad} == trained
        job.loss(job.batch(0), 0)["loss"].backward()
        assert all(p.grad is None for p in model.parameters() if id(p) not in trained)
    assert [p.requires_grad for p in model.parameters()] == was


def test_progressive_context() -> None:
    job = task(with_outlet(), steps=20, context=10, evict=1.0)
    lengths = [job.batch(i)[0].shape[1] for i in range(20)]
    assert lengths[0] == 10
    assert lengths[-1] == 40
    assert lengths == sorted(lengths)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_entropy_with_its_sign(sign: float) -> None:
    model = with_outlet("sink_logit")
    plain, regular = task(model, evict=0.0), task(model, evict=0.0, entropy=sign * 0.1)
    batch = plain.batch(0)
    a, b = plain.loss(batch, 0), regular.loss(batch, 0)
    difference = float(b["loss"].detach() - a["loss"].detach())
    assert difference == pytest.approx(sign * 0.1 * float(b["entropy"]), rel=1e-5)
    assert float(b["entropy"]) > 0.1


def test_multipliers_of_marked_heads() -> None:
    job = task(with_outlet(), marked=[(0, 1), (2, 5)], multiplier=3.0)
    found = job.multipliers()
    assert torch.equal(found["outlet.0.w"].flatten(), torch.tensor([1.0, 3, 1, 1, 1, 1]))
    assert torch.equal(found["outlet.2.w"].flatten(), torch.tensor([1.0, 1, 1, 1, 1, 3]))
    assert torch.equal(found["outlet.0.key"][:, 0], torch.tensor([3.0, 1.0]))  # head 1 belongs to key head 0
    assert torch.equal(found["outlet.2.key"][:, 0], torch.tensor([1.0, 3.0]))
    assert not any(n.startswith("outlet.1") for n in found)
    assert task(with_outlet(), marked=[(0, 1)]).multipliers() == {}


TOKENS = {"tokens": 60, "burn_in": 12}


def trained(out: Path | None = None, **settings: Any) -> tuple[Any, Any]:
    model = planted()
    found = sg.train_outlet(
        model, tokenizer(), texts(9), **{"outlet": "kv_bias", "loop": sg.LoopConfig(steps=6, lr=0.05, save_every=2),
        "task": sg.OutletConfig(**TOKENS), "samples": 3, "out": out, **settings},
    )  # fmt: skip
    return model, found


def test_a_whole_training(tmp_path: Path) -> None:
    model, found = trained(tmp_path)
    assert found.meta["heads"] == [
        [layer, head] for layer in range(3) for head in range(4)
    ]  # where the sink is planted
    assert len(found.control_heads) == 6  # all that are no sinks
    assert not {tuple(h) for h in found.control_heads} & {tuple(h) for h in found.meta["heads"]}
    assert found.meta["held_out"] == [f"text {i}[0:60]" for i in range(3)]
    held = [torch.tensor(tokenizer()(t, add_special_tokens=False)["input_ids"][:60]) for t in texts(9)[6:]]
    plain = planted()
    for m, which in ((plain, found.before), (model, found.after)):
        for i, ids in enumerate(held):
            with torch.no_grad():
                assert which.loss[i] == pytest.approx(score(forward(m, ids[None])[0], ids, start=12).loss, rel=1e-6)
                with sg.acting(m, sg.Evict(0, 12)):
                    assert which.evicted[i] == pytest.approx(
                        score(forward(m, ids[None])[0], ids, start=12).loss, rel=1e-6
                    )
    assert found.before.outlet_mass == [0.0] * 3
    d = sg.diagnose(plain, tokenizer(), texts(9)[6:], tokens=60, samples=3)
    assert np.mean(found.before.first_mass) == pytest.approx(float(np.mean(d.first_token_mass)), rel=1e-4)
    after = sg.diagnose(model, tokenizer(), texts(9)[6:], tokens=60, samples=3)
    assert np.mean(found.after.outlet_mass) == pytest.approx(float(np.mean(after.learned_mass)), rel=1e-4)
    assert str(found) == str(sg.TrainedOutlet.load(tmp_path / "trained.json"))
    fresh = planted()
    sg.load_outlet(fresh, tmp_path)
    with torch.no_grad():
        assert torch.equal(forward(fresh, held[0][None]), forward(model, held[0][None]))
    logs = {
        p: [json.loads(x) for x in (tmp_path / p / "log.jsonl").read_text().splitlines()] for p in ("outlet", "control")
    }
    assert [len(x) for x in logs.values()] == [6, 6]
    assert all(p.requires_grad for p in model.parameters())


def test_the_frozen_weights_stay() -> None:
    model, _ = trained()
    sg.remove_outlet(model)
    assert_same(state(planted()), state(model))


class Stop(Exception):
    pass


def test_a_resume_gives_the_same_bits(tmp_path: Path) -> None:
    whole, found = trained(tmp_path / "whole")

    def stop(which: str, line: dict[str, Any]) -> None:
        if which == "outlet" and line["step"] == 3:
            raise Stop

    with pytest.raises(Stop):
        trained(tmp_path / "parts", progress=stop)
    again, resumed = trained(tmp_path / "parts", resume=True)
    assert resumed.after == found.after
    assert resumed.control == found.control
    for (n, p), q in zip(whole.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), n
    with pytest.raises(OutputError):
        trained(tmp_path / "parts")


def test_everywhere_without_control_and_with_other_weights(tmp_path: Path) -> None:
    model, found = trained(tmp_path, heads="all", task=sg.OutletConfig(**TOKENS, also=("*.attn.c_proj.weight",)))
    assert found.control is None
    assert found.meta["heads"] is None
    tokenizer().save_pretrained(tmp_path / "model")
    again = sg.load(str(tmp_path / "model")).model
    ids = torch.arange(2, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(forward(again, ids), forward(model, ids))
    sg.remove_outlet(model)
    changed = [n for n, p in model.named_parameters() if not torch.equal(p, dict(planted().named_parameters())[n])]
    assert changed == [f"transformer.h.{i}.attn.c_proj.weight" for i in range(3)]


def test_the_control_gives_other_weights_back() -> None:
    """Both runs begin from the original projections."""
    one, _ = trained(task=sg.OutletConfig(**TOKENS, also=("*.attn.c_proj.weight",)))
    two, _ = trained(task=sg.OutletConfig(**TOKENS, also=("*.attn.c_proj.weight",)), control=False)
    for (n, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q), n


def test_verdicts() -> None:
    def found(loss: list[float], evicted: list[float]) -> sg.TrainedOutlet:
        from sinkgate.lab.trained import Measured

        meta = {"loop": {"steps": 5}, "held_out": ["a[0:9]", "b[0:9]"]}
        return sg.TrainedOutlet(meta, Measured([1.0, 1.1], [2.0, 2.15], [], []), Measured(loss, evicted, [], []))

    assert "takes over (9" in found([1.0, 1.1], [1.05, 1.15]).verdict()
    assert "takes over in part (5" in found([1.0, 1.1], [1.5, 1.6]).verdict()
    assert "does not take over" in found([1.0, 1.1], [1.9, 2.1]).verdict()
    nothing = found([1.0, 1.1], [1.0, 1.1])
    nothing.before.evicted = [0.9, 1.3]
    assert "nothing to take over" in nothing.verdict()


def test_errors(tmp_path: Path) -> None:
    for settings, error, words_ in (
        ({"heads": "some"}, ArgumentError, "'sinks', 'all'"),
        ({"threshold": 0.9999999}, ArgumentError, "no head puts more than 0.9999999"),
        ({"tokenizer": None}, ArgumentError, "needs its tokenizer"),
        ({"task": sg.OutletConfig(**TOKENS, also=("*.q_proj",))}, ArgumentError, "no parameter matches"),
    ):
        model = planted()
        tok = settings.pop("tokenizer", tokenizer())
        with pytest.raises(error, match=words_):
            sg.train_outlet(model, tok, texts(9), **{"task": sg.OutletConfig(**TOKENS), **settings})
    with pytest.raises(TextError, match="fewer than tokens"):
        sg.train_outlet(planted(), tokenizer(), ["w9 w1 w2 " * 10], held_out=texts(2), task=sg.OutletConfig(**TOKENS))
    with pytest.raises(RecordError):
        sg.TrainedOutlet.load(tmp_path / "nothing.json")
    for settings, words_ in (
        ({"tokens": 50}, "burn-in"), ({"text": 0.0, "distill": 0.0}, "not both 0"), ({"evict": 1.5}, "share"),
        ({"multiplier": -1.0}, "multiplier"), ({"context": 900}, "context"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=words_):
            sg.OutletConfig(**settings)


def test_every_text_begins_with_the_prefix() -> None:
    model = with_outlet()
    job = OutletTask(model, IDS, sg.OutletConfig(tokens=40, burn_in=8), 20, (), (7, 8))
    for step in range(4):
        ids, _ = job.batch(step)
        assert ids.shape == (1, 40)
        assert ids[0, :2].tolist() == [7, 8]


def test_multipliers_of_gates() -> None:
    for gate, layer, rows in (
        (sg.Gate("G1", elementwise=False, preserve=2.0), 6, [1]),
        (sg.Gate("G2", preserve=2.0), 16, list(range(8))),  # head 1 belongs to key head 0
        (sg.Gate("G4", preserve=2.0), 48, list(range(8, 16))),
    ):
        model = tiny("llama", dtype=torch.float64)
        sg.add_outlet(model, gate)
        found = task(model, marked=[(0, 1)], multiplier=3.0).multipliers()["outlet.0.gate.proj.weight"]
        assert found.shape[0] == layer
        assert (found[:, 0] == 3).nonzero().flatten().tolist() == rows
    for gate in (sg.Gate("G5", preserve=2.0), sg.Gate("G1", shared=True, preserve=2.0)):
        model = tiny("llama", dtype=torch.float64)
        sg.add_outlet(model, gate)
        assert task(model, marked=[(0, 1)], multiplier=3.0).multipliers() == {}


@pytest.mark.parametrize("position", ["G2", "G5"])
def test_gates_that_are_not_for_query_heads(position: str) -> None:
    model, found = trained(outlet=sg.Gate(position, preserve=2.0))
    assert found.meta["heads"] == [[layer, head] for layer in range(3) for head in range(4)]
    expected = None if position == "G5" else [(layer, head) for layer in range(3) for head in range(4)]
    assert sg.outlets(model).heads() == expected


@pytest.mark.parametrize("where", ["control", "outlet"])
def test_an_interrupt_gives_the_model_back(where: str) -> None:
    model = planted()
    was = state(model)

    def stop(which: str, line: dict[str, Any]) -> None:
        if which == where and line["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sg.train_outlet(
            model, tokenizer(), texts(9), loop=sg.LoopConfig(steps=6, lr=0.05), samples=3, progress=stop,
            task=sg.OutletConfig(**TOKENS, also=("*.attn.c_proj.weight",)),
        )  # fmt: skip
    assert_same(was, state(model))


def test_what_is_held_out_is_not_trained_on() -> None:
    with pytest.raises(ArgumentError, match="held-out text is among"):
        sg.train_outlet(planted(), tokenizer(), texts(9), held_out=texts(2), task=sg.OutletConfig(**TOKENS))
    with pytest.raises(TextError, match="no text to train on"):
        sg.train_outlet(planted(), tokenizer(), [], task=sg.OutletConfig(**TOKENS))
    model = planted()
    sg.add_outlet(model, "sink_logit")
    with pytest.raises(ArgumentError, match="has an outlet already"):
        sg.train_outlet(model, tokenizer(), texts(9), task=sg.OutletConfig(**TOKENS))


def test_one_text_gives_no_verdict() -> None:
    from sinkgate.lab.trained import Measured

    meta = {"loop": {"steps": 2}, "held_out": ["a[0:9]"]}
    one = sg.TrainedOutlet(meta, Measured([1.0], [2.0], [], []), Measured([1.0], [1.0], [], []))
    assert "nothing to take over" in one.verdict()


def test_intervals_are_over_texts() -> None:
    from sinkgate.lab.trained import Measured

    loss, evicted = [1.0, 1.2, 3.0], [2.0, 2.4, 3.4]
    m = Measured(loss, evicted, [], [])
    meta = {"loop": {"steps": 2}, "held_out": ["a[0:9]", "a[9:18]", "b[0:9]"]}
    found = sg.TrainedOutlet(meta, m, m).cost(m)
    assert (found.samples, float(found.mean)) == (2, pytest.approx((1.1 + 0.4) / 2))
    meta["held_out"] = ["a[0:9]", "a[9:18]", "a[18:27]"]
    assert sg.TrainedOutlet(meta, m, m).cost(m).samples == 3
