"""What fewer bits cost a model, measured four ways at equal size, and which way won."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.evaluate.score import score
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint, forward
from sinkgate.hf.head_parts import layer_parts
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.planning.quantization_activations import activation_arms
from sinkgate.planning.quantization_found import check_record
from sinkgate.planning.quantization_kv import GROUP, kv_arms, kv_logits
from sinkgate.planning.quantization_record import PLACES, Arms, QuantizationArms, QuantizedArm
from sinkgate.planning.quantization_spec import KVSpec, Spec, apply_quantization
from sinkgate.planning.quantization_weights import uncounted_bytes, weight_arms
from sinkgate.record import Diagnosis

__all__ = ["measure_quantization"]

Progress = Callable[[int, int, str], None]
HELD = 2**31  # bytes of logits


def measure_quantization(
    model: nn.Module,
    tokenizer: Any,
    pieces: Sequence[Sequence[int]],
    diagnosis: Diagnosis | None,
    *,
    places: Sequence[str] = PLACES,
    window: int,
    kv_bits: int = 4,
    weight_bits: int = 4,
    weight_group: int = 32,
    activation_bits: int = 8,
    first: int = 4,
    positions: str | None = None,
    name: str | None = None,
    progress: Progress | None = None,
    cache: MutableMapping[str, Any] | None = None,
) -> QuantizationArms:
    """Four arms for each place: uniform, the first tokens preserved, sink-aware from the record, by head.

    Every arm reads the same texts; what it costs is the rise of the loss against the model as it is, on the predictions made
    from position ``first`` on. KV arms are at equal cache bytes, through packed caches, against the model with its whole
    context; what a window shorter than the text loses is thus in all of them alike. Weight arms are at equal weight bytes,
    activation arms at equal bits but for what they keep (``size`` says it). Beside the arm by head, as many other heads are
    given the same bits: that one is a control, and cannot win.

    Args:
        model: a transformers model; it stays bit for bit what it is.
        tokenizer: of the model; needed where the record's sinks stand further in. None: such sinks cannot be named.
        pieces: token ids of the texts, each the unit of the intervals; two at least for an interval.
        diagnosis: the record of this model; None: arms that need it are skipped, with the reason.
        places: of ``kv``, ``weights``, ``activations``.
        window: recent tokens of the uniform cache, rounded up to groups of 32; of the others it is what their bytes allow,
            in whole groups, so that a window of few groups compares coarsely.
        kv_bits: 4 or 8.
        weight_bits: 2 to 7.
        weight_group: inputs of a weight that share a scale in ``uniform``.
        activation_bits: 2 to 8.
        first: tokens that ``preserve-first-n`` keeps.
        positions: of the cache: ``slots`` or ``original``; None: ``slots`` where the model rotates by position.
        name: what the record calls the model.
        progress: called with (done, total, what) after each reading of a text.
        cache: remembers what each arm cost on each text, by a key of model, spec and ids, for another call.

    Raises:
        ArgumentError: sizes out of range, texts too short or too long, the record of another model.
        UnsupportedError: a model whose parts cannot be found, or that cannot be streamed.
        NonFiniteError: NaN among an arm's logits.
    """
    texts = _checked(model, pieces, places, first, window, kv_bits, weight_bits, weight_group, activation_bits)
    parts = layer_parts(model)
    if diagnosis is not None:
        check_record(model, diagnosis, parts)
    if positions is None:
        positions = "slots" if all(layer.rotary for layer in attention_layers(model)) else "original"
    sizes: dict[str, Any] = {}
    planned: dict[str, Arms] = {}
    skipped: dict[str, dict[str, str]] = {}
    with evaluating(model):
        for place in dict.fromkeys(places):
            try:
                if place == "kv":
                    planned[place] = kv_arms(model, diagnosis, tokenizer, parts, window=window, bits=kv_bits, first=first,
                                             positions=positions)  # fmt: skip
                elif place == "weights":
                    planned[place] = weight_arms(
                        model, diagnosis, parts, bits=weight_bits, group=weight_group, first=first
                    )
                    sizes["bytes left as they are"] = uncounted_bytes(model)
                else:
                    planned[place] = activation_arms(model, diagnosis, tokenizer, parts, texts, bits=activation_bits,
                                                     first=first)  # fmt: skip
                skipped[place] = planned[place].skipped
            except UnsupportedError as err:  # a model that cannot be streamed can still have its weights quantised
                if len(set(places)) == 1:
                    raise
                skipped[place] = {"every arm": str(err)}
        costs = _measured(model, texts, planned, first, progress, cache)
    arms = tuple(
        QuantizedArm(place, arm.name, arm.words, arm.spec.to_json(), arm.size, *map(tuple, zip(*costs[place, i], strict=True)))
        for place, some in planned.items() for i, arm in enumerate(some.planned)
    )  # fmt: skip
    meta = {
        "model": name or getattr(compat.config(model), "_name_or_path", "") or type(model).__name__,
        "fingerprint": fingerprint(model), "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "texts": len(texts), "tokens": max(map(len, texts)), "first": first, "window": window, "positions": positions,
        "sizes": sizes, "threads": torch.get_num_threads(), "notes": _notes(planned, texts, window, sizes, model),
    }  # fmt: skip
    return QuantizationArms(meta, arms, {place: dict(names) for place, names in skipped.items() if names})


def _checked(
    model: nn.Module, pieces: Sequence[Sequence[int]], places: Sequence[str], first: int, window: int, kv_bits: int,
    weight_bits: int, weight_group: int, activation_bits: int,
) -> list[list[int]]:  # fmt: skip
    """The texts, if everything is in range."""
    ranges = {
        "first": (first, 1, 10**6), "window": (window, 1, 10**8), "weight_bits": (weight_bits, 2, 7),
        "weight_group": (weight_group, 2, 10**6), "activation_bits": (activation_bits, 2, 8),
    }  # fmt: skip
    for what, (value, least, most) in ranges.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ArgumentError(f"{what} must be a whole number from {least} to {most}, got {value!r}")
    if kv_bits not in (4, 8) or isinstance(kv_bits, bool | float):
        raise ArgumentError(f"kv_bits must be 4 or 8, got {kv_bits!r}")
    if isinstance(places, str) or not places or any(p not in PLACES for p in places):
        raise ArgumentError(f"places must be a list of {', '.join(PLACES)}, got {places!r}")
    texts = [[int(i) for i in ids] for ids in pieces]
    if not texts:
        raise ArgumentError("pieces is empty: give the token ids of at least one text, of two for an interval")
    least = first + 2 + (GROUP if "kv" in places else 0)
    shortest, longest = min(map(len, texts)), max(map(len, texts))
    if shortest < least:
        raise ArgumentError(
            f"a text has {shortest} tokens, {least} are needed: {first} first ones and what comes behind"
        )
    context = compat.trained_context(compat.config(model))
    if context is not None and longest > context:
        raise ArgumentError(f"a text has {longest} tokens, the model was made for {context}; use shorter pieces")
    return texts


def _measured(
    model: nn.Module, texts: list[list[int]], planned: dict[str, Arms], first: int, progress: Progress | None,
    cache: MutableMapping[str, Any] | None,
) -> dict[tuple[str, int], list[tuple[float, float]]]:  # fmt: skip
    """(place, number of the arm) → of each text the rise of the loss and the divergence."""
    wanted = [(place, i, arm) for place, some in planned.items() for i, arm in enumerate(some.planned)]
    costs: dict[tuple[str, int], list[tuple[float, float]]] = {(place, i): [] for place, i, _ in wanted}
    total, done = len(texts) * len(wanted), 0
    mark = fingerprint(model) if cache is not None else ""
    known: MutableMapping[str, Any] = {} if cache is None else cache
    for some in _blocks(model, texts):
        untouched: dict[int, tuple[Tensor, Tensor, float]] = {}  # of a text: its ids, logits, loss
        for place, i, arm in wanted:  # weights are made less precise once for all texts of a block
            keys = [_key(mark, arm.spec, ids, first) for ids in some]
            missing = [j for j, key in enumerate(keys) if key not in known]
            for j in missing:
                if j not in untouched:
                    row = torch.tensor(some[j], device=compat.input_device(model))
                    with torch.no_grad():
                        logits = forward(model, row[None])[0]
                    untouched[j] = row, logits, score(logits, row, start=first).loss
            less = nullcontext() if isinstance(arm.spec, KVSpec) or not missing else apply_quantization(model, arm.spec)
            with less:
                for j, key in enumerate(keys):
                    if j in missing:
                        row, base, loss = untouched[j]
                        try:
                            found = score(_logits(model, some[j], arm.spec), row, start=first, untouched=base)
                        except NonFiniteError as err:
                            raise NonFiniteError(f"{place}, {arm.name}: {err}") from err
                        known[key] = [found.loss - loss, found.kl]
                    costs[place, i].append((float(known[key][0]), float(known[key][1])))
                    done += 1
                    if progress is not None:
                        progress(done, total, f"{place}, {arm.name}")
    return costs


def _blocks(model: nn.Module, texts: list[list[int]]) -> Iterator[list[list[int]]]:
    """Texts in their order, as many at once as logits of the untouched model are held; one at least."""
    row = compat.config(model).get_text_config().vocab_size * next(model.parameters()).element_size()
    some: list[list[int]] = []
    for ids in texts:
        if some and row * sum(map(len, [*some, ids])) > HELD:
            yield some
            some = []
        some.append(ids)
    yield some


@torch.no_grad()
def _logits(model: nn.Module, ids: list[int], spec: Spec) -> Tensor:
    """Of a text, through the cache of a spec or with the weights as they are now."""
    if isinstance(spec, KVSpec):
        return kv_logits(model, ids, spec)
    return forward(model, torch.tensor([ids], device=compat.input_device(model)))[0]


def _key(mark: str, spec: Spec, ids: list[int], first: int) -> str:
    return hashlib.sha256(json.dumps([mark, spec.to_json(), ids, first], sort_keys=True).encode()).hexdigest()[:32]


def _notes(
    planned: dict[str, Arms], texts: list[list[int]], window: int, sizes: dict[str, Any], model: nn.Module
) -> list[str]:
    found = []
    if len(texts) < 2:
        found.append("One text gives no interval: read at least two before anything is chosen.")
    if "kv" in planned:
        item = next(model.parameters()).element_size()
        if max(map(len, texts)) <= window:
            found.append(
                f"No text is longer than the window of {window}: that an arm's window is smaller costs little or nothing here."
            )
        found.append(f"Cache bytes are those of this model, whose numbers that are not packed have {item} bytes.")
    if "bytes left as they are" in sizes:
        found.append(
            f"Weight bytes are of the linear layers, with scales of 2 bytes; {sizes['bytes left as they are']:,} bytes of "
            "embeddings, norms and the layer to the vocabulary stay as they are in every arm and are not in them."
        )
    return found
