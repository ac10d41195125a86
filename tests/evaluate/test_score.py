"""Loss, divergence and agreement against plain sums in float64, with tokens that are never said, and NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, rel_entr

from sinkgate.errors import NonFiniteError
from sinkgate.evaluate import score as module
from sinkgate.evaluate.score import score
from sinkgate.evaluate.stream import losses

VOCABULARY, TOKENS = 37, 23


def made(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    here, there = (torch.randn(TOKENS, VOCABULARY, generator=g) * 3 for _ in range(2))
    return here.to(dtype), there.to(dtype), torch.randint(0, VOCABULARY - 2, (TOKENS,), generator=g)


@pytest.mark.parametrize("numbers", [1, 5 * VOCABULARY, 2**21])  # one position at a time, five, all
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_plain_sums(numbers: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS", numbers)
    here, there, ids = made(dtype)
    here[:, -1] = there[:, -1] = -torch.inf  # said by neither
    there[3:9, -2] = -torch.inf  # by the other alone
    given = here.clone(), there.clone()
    found = score(here, ids, start=2, untouched=there)
    assert torch.equal(given[0], here)
    assert torch.equal(given[1], there)
    a, b = (log_softmax(x.double().numpy(), axis=-1)[2:-1] for x in (here, there))
    nats = -a[np.arange(len(a)), ids[3:].numpy()]
    assert found.tokens == TOKENS - 3
    assert found.loss == pytest.approx(nats.mean(), rel=1e-6)
    assert found.kl == pytest.approx(rel_entr(np.exp(b), np.exp(a)).sum(-1).mean(), rel=1e-5)
    assert found.agreement == (a.argmax(-1) == b.argmax(-1)).mean()
    np.testing.assert_allclose(losses(here[2:-1], ids[3:]), nats, rtol=1e-5)


def test_what_is_said_and_cannot_be_is_infinitely_far() -> None:
    here, there, ids = made()
    here[4, -2] = -torch.inf
    assert score(here, ids, untouched=there).kl == float("inf")


@pytest.mark.parametrize("which", [0, 1])
def test_nan_is_refused_wherever_it_is(which: int) -> None:
    given = made()
    given[which][7, 11] = torch.nan
    with pytest.raises(NonFiniteError, match="NaN"):
        score(given[0], given[2], untouched=given[1])
