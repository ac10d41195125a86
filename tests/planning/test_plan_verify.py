"""Which settings are verified in which order, and how many texts that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from formula import Formula, piece, space, window

from sinkgate.planning import verify as verifying
from sinkgate.planning.promise import SPLIT
from sinkgate.planning.request import Request
from sinkgate.planning.search import Search, Trial
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import Choice
from sinkgate.planning.verify import Verdict, compared, in_order, verify


def candidates(passing: Callable[[Choice], float], **request: Any) -> list[tuple[int, float]]:
    """(window, share) of every candidate; ``passing`` gives a choice's bound over the tolerance."""
    asked, small = Request(**{"max_increase": 0.1, "context": 256, **request}), space()
    seen: list[tuple[int, float]] = []

    def read(setting: Setting, share: float) -> Verdict:
        size = window(setting)
        bound = passing(Choice(window=size)) * asked.nats
        seen.append((size, share))
        return Verdict(setting, [0.01] * 6, bound=bound, kept=bound <= asked.nats)

    def trial(number: int, size: int, weight: int, state: str, *nats: float) -> Trial:
        choice = Choice(window=size)
        return Trial(number, small.setting(choice), vars(choice), weight, None, state, "", nats)

    trials = [trial(0, 100, 1, "kept", 0.01, 0.01, 0.01), trial(1, 220, 10**9, "kept", 0.0, 0.0, 0.0)]
    it = Search(asked, small, [], Formula(lambda *_: 0.0), None, [*trials, trial(2, 60, 1, "refuted", 0.5)])  # type: ignore[arg-type]
    verdicts, last = in_order(it, trials, read)
    assert (last is None) == (not any(v.kept for v in verdicts))
    if last is not None:
        assert last is [v for v in verdicts if v.kept][-1]
    return seen


def test_candidates_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    main, more, most, _ = SPLIT
    # no room: the first is taken
    assert candidates(lambda c: 0.9) == [(100, main)]
    # room: shorter, once
    assert candidates(lambda c: 0.5) == [(100, main), (80, main)]
    with monkeypatch.context() as patch:  # were more allowed: until one is known to break it, or saves too little
        patch.setattr(verifying, "LIGHTER", 5)
        assert candidates(lambda c: 0.5) == [(100, main), (80, main), (64, main)]
        patch.setattr(verifying, "SAVES", 0.5)
        assert candidates(lambda c: 0.5) == [(100, main)]
    assert candidates(lambda c: 0.5 if c.window > 90 else 2.0) == [(100, main), (80, main)]
    # it does not pass: longer, then the one that was tuned to the least loss
    assert candidates(lambda c: 2.0) == [(100, main), (125, more), (220, most)]
    assert candidates(lambda c: 0.5 if c.window > 110 else 2.0) == [(100, main), (125, more)]
    # the least loss is the goal: nothing lighter is looked for
    assert candidates(lambda c: 0.5, goal="quality", budget=10**6) == [(100, main)]


def test_hopeless_candidates_are_given_up_early() -> None:
    asked = Request(max_increase=0.01, context=256)
    texts = [piece(i) for i in range(12)]
    for level, read, kept in ((0.02, 6, False), (0.0099, 6, False), (0.005, 12, True), (0.0096, 12, False)):
        formula = Formula(lambda s, i, level=level: level + 0.0005 * (-1) ** i)  # type: ignore[misc]
        found = verify(formula, Setting("recent(8)"), texts, asked)  # type: ignore[arg-type]
        assert (len(found.nats), found.kept) == (read, kept)
        assert found.bound is not None


def test_a_difference_that_is_plain_needs_no_more_texts() -> None:
    texts = [piece(i) for i in range(12)]
    one, two = Setting("recent(8)"), Setting("recent(9)")
    plain = compared(Formula(lambda s, i: (0.1 if s == one else 0.0) + 0.001 * i * (s == one)), one, two, texts)  # type: ignore[arg-type]
    assert plain.n == 4
    assert plain.mean == pytest.approx(0.1015)
    later = compared(Formula(lambda s, i: (0.6 * (-1) ** i * (i < 4) + 0.8) * (s == one)), one, two, texts)  # type: ignore[arg-type]
    assert later.n == 8
    close = compared(Formula(lambda s, i: 0.01 * (-1) ** i * (s == one)), one, two, texts)  # type: ignore[arg-type]
    assert close.n == 12
