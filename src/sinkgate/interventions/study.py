"""Every act on every text, scored on the same predictions; and single heads, screened and then acted on for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.errors import NonFiniteError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import Evict
from sinkgate.interventions.arms import Arm
from sinkgate.interventions.effects import HeadEffect, Row
from sinkgate.interventions.screen import screen
from sinkgate.interventions.texts import Sample
from sinkgate.record import Diagnosis

__all__ = ["Metric", "Progress", "Study"]

Metric = Callable[[Tensor, Tensor], float]
Progress = Callable[[int, int, str], None]


@dataclass(eq=False)
class Study:
    """A model, the texts it is acted on with, and how it is scored.

    Args:
        model: in eval mode.
        samples: each with its sink and its control.
        start: the first position whose prediction counts.
        metric: of ``(logits, ids)``; for pairs without one, the difference of two logits.
        progress: called with (done, total, what).
        corrupted_metric: per pair, the metric on its corrupted prompt.
    """

    model: nn.Module
    samples: list[Sample]
    start: int
    metric: Metric | None = None
    progress: Progress | None = None
    corrupted_metric: list[float] = field(default_factory=list)
    done: int = 0
    total: int = 0

    def arms(self, arms: Sequence[Arm], where: list[list[int]] | None) -> list[Row]:
        """All arms, text by text, so that the untouched logits of one text are held at a time."""
        rows = [Row("untouched", "untouched", "untouched")]
        built: list[tuple[Row, Callable[[Sample], Any]]] = []
        for arm in arms:
            built.append((Row(arm.label, "own" if arm.own else "act", arm.label), arm.act))
            if arm.control is not None:
                built.append((Row(arm.label, "control", arm.label), arm.control))
        self.total += (1 + len(built)) * len(self.samples)
        for sample in self.samples:
            base = self._logits(sample.ids)
            metric = self._metric_of(sample, base)
            self._measure(rows[0], sample, base, None, metric)
            for row, make in built:
                act = make(sample)
                row.act = row.act or _json(act)
                logits = self._under(act, sample.ids, None if hasattr(act, "stream") else where)
                self._measure(row, sample, logits, base, metric)
        return rows + [row for row, _ in built]

    def heads(
        self, confirm: int, burn_in: int, diagnosis: Diagnosis, *, layers: set[int] | None, random: np.random.Generator
    ) -> tuple[list[dict[str, Any]], list[HeadEffect]]:
        """Estimate every head's eviction, then evict for real at the strongest and at as many random others."""
        found: dict[tuple[int, int], list[float]] = {}
        self.total += len(self.samples)
        for sample in self.samples:
            act = _evict(sample, burn_in)
            for layer, values in screen(self.model, sample.ids.to(self._device), act, start=self.start).items():
                for head, value in enumerate(values.tolist() if layers is None or layer in layers else ()):
                    found.setdefault((layer, head), []).append(value)
            self._step("screening")
        estimates = {where: float(np.mean(values)) for where, values in found.items()}
        order = sorted(estimates, key=lambda where: -abs(estimates[where]))
        top, rest = order[:confirm], order[confirm:]
        picked = [rest[i] for i in random.permutation(len(rest))[:confirm]]
        first = all(sample.target == 0 for sample in self.samples)  # what the probe predicts about
        writes = diagnosis.arrays["sink_write"].sum(0) / np.maximum(diagnosis.arrays["first_n"].sum(0)[:, None], 1)
        nan = float("nan")
        single = [
            HeadEffect(
                layer, head, kind, estimates[layer, head],
                float(diagnosis.amplification[layer, head]) if first else nan,
                float(writes[layer, head]) if first else nan,
            )
            for kind, chosen in (("top", top), ("random", picked)) for layer, head in chosen
        ]  # fmt: skip
        self.total += len(single) * len(self.samples)
        for sample in self.samples:
            base = self._logits(sample.ids)
            for effect in single:
                logits = self._under(_evict(sample, burn_in), sample.ids, [[effect.layer, effect.head]])
                self._measure(effect, sample, logits, base, self.metric)
        return [{"layer": a, "head": h, "value": value} for (a, h), value in sorted(estimates.items())], single

    # ---- private ------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return compat.input_device(self.model)

    @torch.no_grad()
    def _logits(self, ids: Tensor) -> Tensor:
        return forward(self.model, ids[None].to(self._device))[0]

    def _under(self, act: Any, ids: Tensor, where: list[list[int]] | None) -> Tensor:
        with acting(self.model, act, heads=where):
            return self._logits(ids)

    def _metric_of(self, sample: Sample, base: Tensor) -> Metric | None:
        """The metric of one text; for a pair it is measured on the corrupted prompt here."""
        metric = self.metric
        if sample.corrupted is None:
            return metric
        corrupted = self._logits(sample.corrupted)
        if metric is None:
            clean, wrong = int(base[-1].argmax()), int(corrupted[-1].argmax())

            def metric(logits: Tensor, _ids: Tensor) -> float:
                return float(logits[-1, clean] - logits[-1, wrong])

        self.corrupted_metric.append(float(metric(corrupted, sample.corrupted.to(corrupted.device))))
        return metric

    def _measure(
        self, row: Row | HeadEffect, sample: Sample, logits: Tensor, base: Tensor | None, metric: Metric | None
    ) -> None:
        ids = sample.ids.to(logits.device)
        what = row.label if isinstance(row, Row) else f"head {row.layer}.{row.head}"
        try:
            found = score(logits, ids, start=self.start, untouched=base)
        except NonFiniteError as err:
            raise NonFiniteError(f"{what}: {err}") from err
        row.loss.append(found.loss)
        row.kl.append(found.kl)
        row.agreement.append(found.agreement)
        if metric is not None:
            row.metric.append(float(metric(logits, ids)))
        self._step(what)

    def _step(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, what)


def _evict(sample: Sample, burn_in: int) -> Evict:
    return Evict((sample.target,), burn_in)


def _json(act: Any) -> dict[str, Any]:
    return act.to_json() if hasattr(act, "to_json") else {"act": getattr(act, "name", type(act).__name__)}
