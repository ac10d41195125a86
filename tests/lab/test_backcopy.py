"""Bigram-backcopy: the chain against its description, the optimum, and who is dormant when."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import as_arm
from sinkgate.lab.loop import train
from sinkgate.lab.tasks import as_task, from_json
from sinkgate.lab.tasks.backcopy import BOS, Backcopy

SPEC = Backcopy(vocab=12, triggers=2, length=20, dim=16, batch=8)


def test_the_sequences_are_the_chains() -> None:
    chain = SPEC.source()
    assert len(chain.triggers) == 2
    np.testing.assert_allclose(chain.rows.sum(1), 1)
    assert (chain.rows[:, BOS] == 0).all()  # BOS comes once
    assert (chain.rows[BOS, list(chain.triggers)] == 0).all()
    ids = chain.sample(4000, 20, seed=3).numpy()
    assert (ids[:, 0] == BOS).all()
    assert (ids[:, 1:] != BOS).all()
    trigger = np.isin(ids[:, :-1], chain.triggers)
    trigger[:, 0] = False
    follows = ids[:, 1:]
    rows, columns = np.nonzero(trigger)
    assert len(rows) > 1000
    assert (follows[rows, columns] == ids[rows, columns - 1]).all()
    for token in range(12):  # elsewhere the bigram rows, within five standard errors
        if token in chain.triggers:
            continue
        behind = follows[:, :][ids[:, :-1] == token]
        counts = np.bincount(behind, minlength=12) / len(behind)
        assert (
            np.abs(counts - chain.rows[token])
            < 5 * np.sqrt(chain.rows[token] * (1 - chain.rows[token]) / len(behind)) + 1e-9
        ).all()
    p = chain.rows[5]
    assert chain.entropy[5] == pytest.approx(-sum(x * math.log(x) for x in p if x > 0))


def test_without_bos_a_sequence_begins_in_the_chain() -> None:
    a = as_task("backcopy", bos=False, length=20).make(as_arm("softmax"), 0).batch(0)
    assert a.shape == (16, 21)
    assert (a != BOS).all()


def test_the_optimum_has_no_excess() -> None:
    """A model that knows the chain: loss − entropy is 0 up to sampling, and 0 behind triggers exactly."""
    experiment = SPEC.make(as_arm("softmax"), 0)
    chain = SPEC.source()
    rows = torch.from_numpy(chain.rows)

    def knows(ids: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        here, following = ids[:, :-1], ids[:, 1:]
        losses = -rows[here, following].clamp_min(1e-300).log()
        marked = torch.isin(here, torch.tensor(chain.triggers))
        marked[:, 0] = False
        assert (following[:, 1:][marked[:, 1:]] == ids[:, :-2][marked[:, 1:]]).all()
        return torch.where(marked, 0.0, losses)

    experiment.model.loss = knows  # type: ignore[method-assign]
    found = experiment.final("test")
    assert found["backcopy_loss"] == 0
    error = 5 * 1.5 / math.sqrt(128 * 20)  # five standard errors of losses that spread by about 1.5 nats
    assert abs(found["bigram_loss"]) < error
    assert abs(found["excess_loss"]) < error
    assert found["excess_loss"] != 0


def test_a_planted_head_is_dormant_and_active() -> None:
    """A head that looks one back at triggers and at BOS elsewhere, by construction of its scores."""
    experiment = SPEC.make(as_arm("softmax"), 0)
    ids = experiment.batch(0)[:, :-1][:4]
    trigger = torch.isin(ids, torch.tensor(SPEC.source().triggers))
    trigger[:, 0] = False
    length = ids.shape[1]
    scores = torch.zeros(4, 1, length, length)
    scores[..., 0] = 20.0
    for i in range(1, length):
        scores[:, 0, i, i - 1] = torch.where(trigger[:, i], 40.0, scores[:, 0, i, i - 1])

    class Planted:
        name = "planted"

        def weights(self, _scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
            return scores.masked_fill(~visible, -math.inf).softmax(-1)

    attention = experiment.model.blocks[0].attention
    real = attention._weighting
    from sinkgate.nn.attention import GatedAttention

    class Layer(GatedAttention):
        weighting = Planted()  # type: ignore[assignment]

    def hidden(_ids: torch.Tensor) -> None:
        from sinkgate.nn import Seen

        q = torch.zeros(4, 1, length, 16)
        attention.watcher(Seen(Layer(16, 1), q, q, q, q, None))  # type: ignore[misc]

    experiment.model.hidden = hidden  # type: ignore[method-assign, assignment]
    found = experiment._heads(ids, trigger)
    assert real is attention._weighting
    assert found["dormant_mass"] == pytest.approx(1.0, abs=1e-6)
    later = trigger[:, 2:].sum()
    assert later > 0
    assert found["back_mass"] == pytest.approx(1.0, abs=1e-6)
    assert found["active_mass"] == pytest.approx(0.0, abs=1e-6)
    assert found["dormant_heads"] == 1.0


@pytest.mark.slow
def test_a_sink_forms_where_there_is_nothing_to_copy() -> None:
    """The published finding, within a minute: dormant elsewhere, active at triggers."""
    spec = Backcopy()
    experiment = spec.make(as_arm("softmax"), 0)
    train(experiment, dataclasses.replace(spec.loop(1600, 1e-2, 0), evaluate_every=0))
    found = experiment.final("test")
    assert found["dormant_mass"] > 0.6
    assert found["active_mass"] < 0.1
    assert found["back_mass"] > 0.8
    assert found["backcopy_loss"] < 0.15


def test_settings() -> None:
    assert from_json(SPEC.to_json()) == SPEC
    for wrong, says in (
        ({"triggers": 70}, "leave no ordinary tokens"), ({"concentration": 0}, "concentration"), ({"heads": 3}, "heads must divide"),
        ({"vocab": 3}, "vocab"), ({"layers": 1.5}, "layers"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=says):
            as_task("backcopy", **wrong)
