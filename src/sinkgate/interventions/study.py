"""What an intervention study keeps between its arms: the texts, their sinks, the constants, one text's logits at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, TextError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward
from sinkgate.hf.layers import decoder_blocks
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import Evict, ScalarGate, SetMassive, Transplant
from sinkgate.interventions.constants import Constants, capture
from sinkgate.interventions.effects import HeadEffect, Row
from sinkgate.interventions.screen import screen
from sinkgate.probe.diagnose import diagnose
from sinkgate.probe.text import Piece, Text, bos_prefix, default_texts, pieces
from sinkgate.record import Diagnosis, student_interval

__all__ = ["DONORS", "Arm", "Metric", "Progress", "Sample", "Study"]

DONORS = 4  # texts that constants are taken from; nothing is scored on them

Metric = Callable[[Tensor, Tensor], float]
Progress = Callable[[int, int, str], None]


@dataclass(eq=False)
class Sample:
    """One text, its sink and a random other position."""

    ids: Tensor
    target: int
    control: int
    corrupted: Tensor | None = None
    logits: Tensor | None = None


@dataclass(frozen=True)
class Arm:
    """``build(sample, position)`` makes the act; the control is the same at another position."""

    label: str
    build: Callable[[Sample, int], Any]
    control: bool = True


class Study:
    """A model, its texts and what is remembered between the arms."""

    def __init__(
        self, model: nn.Module, tokenizer: Any, bos: str, tokens: int, burn_in: int, start: int, seed: int,
        metric: Metric | None, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.bos, self.tokens, self.burn_in = model, tokenizer, bos, tokens, burn_in
        self.start, self.metric, self.progress = start, metric, progress
        self.random = np.random.default_rng(seed)
        self.device = compat.input_device(model)
        self.notes: list[str] = []
        self.corrupted_metric: list[float] = []
        self.done = self.total = 0

    # ---- texts --------------------------------------------------------------------------------------------------

    def read(self, texts: Any, pairs: Any, samples: int, position: int | str) -> None:
        """Choose the texts to score, those that constants are taken from, and each text's sink."""
        prefix, self.bos_sentence = bos_prefix(self.tokenizer, self.bos)
        self.prefix = prefix
        if pairs is not None:
            self._read_pairs(pairs, prefix)
            return self._place(None, position)
        texts = list(default_texts()) if texts is None else [texts] if isinstance(texts, str | Text) else list(texts)
        parts, _ = pieces(self.tokenizer, texts, tokens=self.tokens, samples=samples + DONORS, bos=self.bos)
        parts = [p for p in parts if len(p.ids) >= self.start + 2]
        if not parts:
            raise TextError(
                f"no text is long enough: {self.start + 2} tokens are needed behind a burn-in of {self.start}; give longer "
                "text or a smaller burn-in"
            )
        scored, donors = parts[:samples], parts[samples:]
        if not donors and len(scored) > 2:  # too little text for both: a third of it gives the constants
            keep = max(1, len(scored) - max(1, len(scored) // 3))
            scored, donors = scored[:keep], scored[keep:]
        self._donors([torch.tensor(p.ids[len(prefix) :]) for p in donors], [p.source for p in donors])
        self.sources = [p.source for p in scored]
        self.samples = [Sample(torch.tensor(p.ids, device=self.device), 0, 1) for p in scored]
        self.longest = max(len(p.ids) for p in scored)
        return self._place(scored, position)

    def _read_pairs(self, pairs: Sequence[tuple[str, str]], prefix: list[int]) -> None:
        self.samples, self.sources = [], []
        for i, pair in enumerate(pairs):
            if len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
                raise TextError(f"pairs must be (clean, corrupted) prompts, two strings each; pair {i} is {pair!r}")
            clean, corrupted = (
                torch.tensor(
                    prefix + list(self.tokenizer(p, add_special_tokens=False)["input_ids"]), device=self.device
                )
                for p in pair
            )
            if min(len(clean), len(corrupted)) < 2:
                raise TextError(f"pair {i} has a prompt of fewer than 2 tokens")
            self.samples.append(Sample(clean, 0, 1, corrupted))
            self.sources.append(f"pair {i}")
        if not self.samples:
            raise TextError("pairs is empty; give at least one (clean, corrupted)")
        self.longest = max(len(s.ids) for s in self.samples)
        self._donors([s.corrupted[len(prefix) :] for s in self.samples if s.corrupted is not None], self.sources)

    def _donors(self, donors: list[Tensor], sources: list[str]) -> None:
        self.donor_sources = sources
        self.donors = donors
        if not donors:
            vocabulary = int(compat.config(self.model).get_text_config().vocab_size)
            self.donors = [torch.from_numpy(self.random.integers(0, vocabulary, self.tokens)) for _ in range(DONORS)]
            self.notes.append("There is too little text to take constants from: they come from random tokens.")

    def _place(self, scored: list[Piece] | None, position: int | str) -> None:
        """Each sample's sink and its control."""
        self.diagnosis: Diagnosis | None = None
        sinks: dict[str, list[dict[str, Any]]] = {}
        if scored is not None:
            contents = [Text(p.source, self.tokenizer.decode(p.ids[len(self.prefix) :])) for p in scored]
            found = diagnose(
                self.model, self.tokenizer, contents, tokens=self.longest, samples=len(scored), bos=self.bos
            )
            assert isinstance(found, Diagnosis)
            self.diagnosis = found
            sinks = {s["source"].split("[")[0]: s["sinks"] for s in found.meta["samples"]}
        for i, sample in enumerate(self.samples):
            here = [] if scored is None else sinks.get(scored[i].source, sinks.get(scored[i].source.split("[")[0], []))
            within = [s for s in here if s["position"] < max(self.burn_in, 1)]
            if position == "auto":
                strongest = max(within or here, key=lambda s: s["mass"] * max(s["heads"], 1e-9), default=None)
                sample.target = 0 if strongest is None else int(strongest["position"])
            else:
                sample.target = int(position)
            if not 0 <= sample.target < len(sample.ids) - 1:
                raise ArgumentError(f"position must be a token of the text with others behind it, got {sample.target}")
            taken = {s["position"] for s in here} | {sample.target, 0}
            limit = min(max(self.burn_in, 4), len(sample.ids) - 1)
            free = [p for p in range(1, limit) if p not in taken] or [p for p in range(limit) if p != sample.target]
            sample.control = int(self.random.choice(free))
        if scored is not None and position == "auto" and not any(sinks.values()):
            self.notes.append("No position is over the sink threshold in any head; the first token was acted on.")

    def target(self) -> str:
        """The sink in words."""
        where = {s.target for s in self.samples}
        if len(where) > 1:
            return "each text's strongest sink"
        position = where.pop()
        return "the first token" if position == 0 else f"the token at position {position}"

    # ---- constants ----------------------------------------------------------------------------------------------

    def constants(self, sample: Sample, which: str, position: int) -> Constants:
        """Key and value at a position, of one other text (``other``), of the beginning-of-text token, or a mean."""
        if sample.corrupted is not None and which == "other":
            return capture(self.model, [sample.corrupted.cpu()], min(position, len(sample.corrupted) - 1))
        index = self.samples.index(sample) % len(self.donors)
        if which == "other":
            texts, key = [self.donors[index]], f"other {index}"
        elif which == "bos":
            texts, key = [torch.tensor([int(self.tokenizer.bos_token_id)])], "bos"
        else:
            texts, key = self.donors, "mean"
        cache: dict[tuple[str, int], Constants] = self.__dict__.setdefault("_constants", {})
        if (key, position) not in cache:
            cache[(key, position)] = capture(self.model, texts, position)
        return cache[(key, position)]

    def transplants(self, burn_in: int) -> list[Arm]:
        """Another text's key and value, BOS's, their mean, and the key alone with a value of 0."""

        def arm(label: str, which: str, control: bool = True) -> Arm:
            return Arm(label, lambda s, p: Transplant((p,), burn_in, self.constants(s, which, p)), control)

        arms = [arm("transplant: another text", "other"), arm("transplant: mean of other texts", "mean")]
        first = all(s.target == 0 for s in self.samples)
        if first and getattr(self.tokenizer, "bos_token_id", None) is not None:
            arms.insert(1, arm("transplant: BOS", "bos", control=False))
        if first:
            arms.append(Arm("transplant: key kept, value 0", lambda _, p: ScalarGate((p,), 1), control=False))
        return arms

    def massive(self) -> list[Arm]:
        """The massive activations behind the first layer that has any: zeroed, and set to their mean elsewhere."""
        found = None if self.diagnosis is None else _massive(self.diagnosis)
        if found is None:
            self.notes.append("No activation is massive (over 100 and 1000 times the median), so none was changed.")
            return []
        layer, dimensions, threshold, seen = found
        means = self._massive_means(layer, dimensions, threshold)

        def entries(s: Sample) -> tuple[tuple[int, int], ...]:
            width = int(compat.config(self.model).get_text_config().hidden_size)
            rng = np.random.default_rng(s.control)
            return tuple((s.control, int(rng.integers(width))) for _ in dimensions)

        def build(values: tuple[float, ...] | None) -> Callable[[Sample, int], Any]:
            def make(s: Sample, position: int) -> SetMassive:
                if position == s.control:
                    chosen_entries = entries(s)
                    ordinary = None if values is None else (0.0,) * len(chosen_entries)
                    return SetMassive(layer, (), threshold, ordinary, chosen_entries)
                return SetMassive(layer, dimensions, threshold, values)

            return make

        self.notes.append(
            f"Massive activations: dimensions {', '.join(map(str, dimensions))} behind layer {layer}, up to {seen:.4g}; an "
            f"entry over {threshold:.4g} counts. Their control sets as many random entries of another token to 0."
        )
        return [Arm("massive activations to 0", build(None)), Arm("massive activations to their mean", build(means))]

    def _massive_means(self, layer: int, dimensions: tuple[int, ...], threshold: float) -> tuple[float, ...]:
        totals = {d: [0.0, 0] for d in dimensions}

        def hook(_m: nn.Module, _a: Any, output: Any) -> None:
            hidden = (output[0] if isinstance(output, tuple) else output)[0].float()
            for d in dimensions:
                over = hidden[:, d][hidden[:, d].abs() > threshold]
                totals[d][0] += float(over.sum())
                totals[d][1] += int(over.numel())

        handle = decoder_blocks(self.model)[layer].register_forward_hook(hook)
        try:
            with torch.no_grad():
                for ids in self.donors:
                    forward(self.model, ids[None, : self.tokens].to(self.device), last_only=True)
        finally:
            handle.remove()
        return tuple(total / n if n else 0.0 for total, n in totals.values())

    # ---- measuring ----------------------------------------------------------------------------------------------

    def arms(self, arms: list[Arm], heads: list[list[int]] | None) -> list[Row]:
        """All arms, sample by sample, so that one text's untouched logits are held at a time."""
        rows = [Row("untouched", "untouched", "untouched")]
        for arm in arms:
            rows.append(Row(arm.label, "act", arm.label))
            if arm.control:
                rows.append(Row(f"{arm.label}", "control", arm.label))
        self.total += len(rows) * len(self.samples)
        for sample in self.samples:
            sample.logits = self._logits(sample.ids)
            self._record(rows[0], sample, sample.logits)
            i = 1
            for arm in arms:
                for position in (sample.target, sample.control)[: 2 if arm.control else 1]:
                    act = arm.build(sample, position)
                    on = None if hasattr(act, "stream") else heads
                    rows[i].act = rows[i].act or _json(act)
                    self._record(rows[i], sample, self._under(act, sample.ids, on))
                    i += 1
            sample.logits = None
        return rows

    def heads(self, confirm: int) -> tuple[list[dict[str, Any]], list[HeadEffect]]:
        """Estimate every head's eviction, then evict for real at the top ones and at as many random others."""
        totals: dict[tuple[int, int], list[float]] = {}
        self.total += len(self.samples)
        for sample in self.samples:
            for layer, values in screen(self.model, sample.ids, self._evict(sample), start=self.start).items():
                for head, value in enumerate(values.tolist()):
                    totals.setdefault((layer, head), []).append(value)
            self._step("screening")
        estimates = {where: float(np.mean(values)) for where, values in totals.items()}
        order = sorted(estimates, key=lambda where: -abs(estimates[where]))
        top, rest = order[:confirm], order[confirm:]
        picked = [rest[i] for i in self.random.permutation(len(rest))[:confirm]]
        measured: dict[tuple[int, int], tuple[list[float], list[float]]] = {w: ([], []) for w in (*top, *picked)}
        self.total += len(measured) * len(self.samples)
        for sample in self.samples:
            base = self._logits(sample.ids)
            plain = score(base, sample.ids, start=self.start)
            for where, (loss, kl) in measured.items():
                found = score(
                    self._under(self._evict(sample), sample.ids, [list(where)]),
                    sample.ids,
                    start=self.start,
                    untouched=base,
                )
                loss.append(found.loss - plain.loss)
                kl.append(found.kl)
                self._step("heads")
        d, single = self.diagnosis, []
        assert d is not None
        nan = float("nan")
        first = all(s.target == 0 for s in self.samples)  # the probe's predictions are about the first token
        writes = d.arrays["sink_write"].sum(0) / np.maximum(d.arrays["first_n"].sum(0)[:, None], 1)
        for (layer, head), (loss, kl) in measured.items():
            interval = student_interval(np.array(loss))
            single.append(
                HeadEffect(
                    layer, head, "top" if (layer, head) in top else "random", estimates[(layer, head)], float(np.mean(kl)),
                    float(interval.mean), float(interval.low), float(interval.high),
                    float(d.amplification[layer, head]) if first else nan, float(writes[layer, head]) if first else nan,
                )
            )  # fmt: skip
        listed = [{"layer": layer, "head": head, "value": value} for (layer, head), value in sorted(estimates.items())]
        return listed, single

    def _evict(self, sample: Sample) -> Evict:
        return Evict((sample.target,), self.burn_in)

    def _under(self, act: Any, ids: Tensor, heads: list[list[int]] | None) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(acting(self.model, act, heads=heads))
            return self._logits(ids)

    @torch.no_grad()
    def _logits(self, ids: Tensor) -> Tensor:
        return forward(self.model, ids[None])[0]

    def _record(self, row: Row, sample: Sample, logits: Tensor) -> None:
        found = score(
            logits, sample.ids, start=self.start, untouched=sample.logits if row.kind != "untouched" else None
        )
        row.loss.append(found.loss)
        row.kl.append(found.kl)
        row.agreement.append(found.agreement)
        metric = self.metric
        if sample.corrupted is not None:
            if metric is None:
                other = self._logits(sample.corrupted)[-1]
                assert sample.logits is not None
                clean, wrong = int(sample.logits[-1].argmax()), int(other.argmax())

                def metric(at: Tensor, _ids: Tensor) -> float:
                    return float(at[-1, clean] - at[-1, wrong])

            if row.kind == "untouched":
                self.corrupted_metric.append(float(metric(self._logits(sample.corrupted), sample.corrupted)))
        if metric is not None:
            row.metric.append(float(metric(logits, sample.ids)))
        self._step(row.label)

    def _step(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total, what)


def _json(act: Any) -> dict[str, Any]:
    return act.to_json() if hasattr(act, "to_json") else {"act": getattr(act, "name", type(act).__name__)}


def _massive(d: Diagnosis) -> tuple[int, tuple[int, ...], float, float] | None:
    """First layer behind which something is massive (Sun et al.: over 100 and 1000 × the median), its dimensions, a
    threshold between them and the rest, the largest value."""
    if not d.massive or "stream_histogram" not in d.arrays:
        return None
    median = d.stream_median
    over = [m for m in d.massive if m["layer"] > 0 and abs(m["value"]) > max(100.0, 1000 * median[m["layer"]])]
    if not over:
        return None
    depth = min(m["layer"] for m in over)
    here = [m for m in over if m["layer"] == depth]
    largest = max(abs(m["value"]) for m in here)
    threshold = max(100.0, 1000 * float(median[depth])) / 2
    return depth - 1, tuple(sorted({m["dimension"] for m in here})), threshold, largest
