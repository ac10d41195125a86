"""``sg.advise``: one page for the person who just wants to know."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from sinkgate.cache.sizes import human
from sinkgate.errors import ArgumentError
from sinkgate.hf.load import load
from sinkgate.interventions import Effects, intervene
from sinkgate.planning.make import Progress, plan
from sinkgate.planning.record import Plan
from sinkgate.planning.request import Request
from sinkgate.probe.diagnose import diagnose
from sinkgate.probe.text import Text
from sinkgate.record import Diagnosis

__all__ = ["Advice", "advise"]

TOLERANCE = 0.02  # of the perplexity, where none is said
TOKENS, SAMPLES = 512, 4  # of the diagnosis and of what eviction does


@dataclass(frozen=True)
class Advice:
    """Result of :func:`sinkgate.advise`; prints as one page.

    Args:
        record: what the heads do.
        effects: what evicting the sink does, beside a control.
        plan: what to do.
    """

    record: Diagnosis
    effects: Effects
    plan: Plan

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """The three records, each as it saves itself, in one folder.

        Raises:
            OutputError: it cannot be written.
        """
        folder = Path(folder)
        self.record.save(folder)
        self.effects.save(folder / "effects.json")
        self.plan.save(folder / "plan.json")
        return folder

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types: the sentences, and the plan."""
        return {
            "model": self.plan.meta["model"]["name"], "record": self.record.verdict(), "effects": self.effects.verdict(),
            "plan": self.plan.to_json(), "code": self.plan.code(),
        }  # fmt: skip

    def __str__(self) -> str:
        p = self.plan
        parts = [
            (f"What the heads of {p.meta['model']['name']} do", self.record.verdict()[:3]),
            ("What evicting the sink would do", self.effects.verdict()[:3]),
            ("What fewer bits would do", fewer_bits(p)),
            ("What to keep", recommended(p)),
            ("What was refused", p.refused),
        ]
        lines = []
        for title, sentences in parts:
            if sentences:
                lines += [title, *(f"  {line}" for line in sentences), ""]
        return "\n".join([*lines, "To paste:", "", *(f"    {line}" for line in p.code().splitlines())])


def recommended(p: Plan) -> list[str]:
    """The answer, what it costs and what it saves."""
    if p.setting.dense:
        return ["Leave the cache as it is.", *p.reasons[:1]]
    m = p.measured
    found = [
        f"{p.setting}.",
        f"It keeps {human(p.predicted['bytes'])} of {human(p.predicted['dense_bytes'])} at {p.meta['context']:,} tokens"
        + (f" × {p.request.batch}." if p.request.batch > 1 else "."),
        f"It costs {m['increase']['mean']:+.2%} of the perplexity on {m['increase']['n']} texts that the search never saw"
        + (f"; for other texts at most {m['promise']:+.2%} is promised." if m.get("promise") is not None else "."),
        f"A step takes {m['ratio']['mean']:.2f} of the time of one with the whole text kept.",
    ]
    return [*found, *(line for line in p.reasons if line.startswith("Recall"))]


def fewer_bits(p: Plan) -> list[str]:
    """What the four arms said, or that they were not measured."""
    if p.quantization is not None:
        from sinkgate.planning.quantization_record import QuantizationArms

        return QuantizationArms.from_json(p.quantization).sentences()
    return ["The arms of fewer bits were not measured."]


def advise(
    model: str | os.PathLike[str] | nn.Module,
    tokenizer: Any = None,
    texts: Iterable[str | Text] | str | None = None,
    *,
    budget: int | None = None,
    max_increase: float | None = None,
    context: int | None = None,
    effort: str = "quick",
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Advice:
    """Diagnosis, what eviction and fewer bits would do, the recommended cache, what it costs, and the lines to paste.

    Args:
        model: a name, path or Hub id (see :func:`sinkgate.load`), or a loaded transformers model.
        tokenizer: of a loaded model.
        texts: strings; None: the demo speeches.
        budget: as in :func:`sinkgate.plan`; with neither this nor ``max_increase``, an increase of 2% is allowed.
        max_increase: the same.
        context: the same.
        effort: the same.
        seed: the same.
        name: what the records call the model.
        progress: called with (what, done, of).
        dtype: of a model given by name.
        device: the same.
        trust_remote_code: the same.

    Raises:
        SinkgateError: what :func:`sinkgate.diagnose`, :func:`sinkgate.intervene` and :func:`sinkgate.plan` raise.
    """
    if budget is None and max_increase is None:
        max_increase = TOLERANCE
    Request(budget, max_increase, context, effort=effort, seed=seed)  # refused before anything is loaded
    if not isinstance(model, nn.Module):
        loaded = load(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        name, model, tokenizer = name or os.fspath(model), loaded.model, loaded.tokenizer
    elif tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: sg.advise(model, tokenizer, …)")
    texts = texts if texts is None or isinstance(texts, str | Text) else list(texts)
    say: Progress = progress or (lambda *_: None)
    name = name or type(model).__name__
    record = diagnose(
        model, tokenizer, texts, tokens=TOKENS, samples=SAMPLES, name=name,
        progress=lambda done, of, what: say(f"diagnosis: {what}", done, of),
    )  # fmt: skip
    assert isinstance(record, Diagnosis)
    longest = max(s["tokens"] if isinstance(s.get("tokens"), int) else TOKENS for s in record.meta["samples"])
    effects = intervene(
        model, tokenizer, texts, acts=["evict"], tokens=min(TOKENS, longest), samples=SAMPLES, confirm=0, seed=seed, name=name,
        progress=lambda done, of, what: say(f"eviction: {what}", done, of),
    )  # fmt: skip
    found = plan(
        model, tokenizer, texts, budget=budget, max_increase=max_increase, context=context, effort=effort, seed=seed,
        name=name, progress=progress,
    )  # fmt: skip
    return Advice(record, effects, found)
