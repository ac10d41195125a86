"""``sg.stream``: the loss along a text under bounded caches, beside a dense cache and recomputation."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.cache.base import Policy
from sinkgate.cache.registry import as_policy, budget
from sinkgate.errors import ArgumentError, NonFiniteError, TextError
from sinkgate.evaluate.score import rows
from sinkgate.evaluate.stream_record import StreamArm, StreamRecord
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint, forward
from sinkgate.hf.layers import evaluating
from sinkgate.hf.streaming import resumed, streaming
from sinkgate.probe.text import bos_prefix

__all__ = ["ARMS", "follow", "following", "recompute", "started", "stream", "wanted_arms"]

Progress = Callable[[StreamArm, int], None]
ARMS = ("dense", "window", "recompute", "sinks")


def stream(
    model: nn.Module,
    tokenizer: Any,
    text: str | Sequence[int] | Tensor,
    arms: str | Policy | Sequence[str | Policy | tuple[str, str | Policy, str]] = "sinks",
    *,
    window: int = 256,
    sinks: int = 4,
    positions: str = "slots",
    tokens: int | None = None,
    chunk: int = 256,
    every: int = 256,
    samples: int = 300,
    seed: int = 0,
    source: str = "text",
    name: str | None = None,
    record: StreamRecord | None = None,
    progress: Progress | None = None,
) -> StreamRecord:
    """Perplexity along one text, for one policy or several side by side.

    Args:
        model: a transformers model.
        tokenizer: of the model; with ids it only says whether a beginning-of-text token goes first.
        text: a text, or its ids.
        arms: of ``dense``, ``window``, ``recompute``, ``sinks`` (a comma list does), a policy's text, or
            ``(name, policy, positions)``. ``dense`` stops where the model's context ends; ``recompute`` reads ``window`` tokens
            afresh for each of ``samples`` predictions, which is the sliding window that StreamingLLM is compared with.
        window: tokens of the window, and of the sinks with what is recent.
        sinks: first tokens kept.
        positions: of policies, ``slots`` or ``original``.
        tokens: only so many of the text.
        chunk: tokens per pass; 1: step by step, as when writing.
        every: predictions per point of the curves.
        samples: recomputed predictions.
        seed: of their choice.
        source: what the record calls the text.
        name: what it calls the model.
        record: to be filled, so that an interrupted run leaves what it has.
        progress: called with the arm and its tokens after each pass.

    Raises:
        ArgumentError: an unknown arm or policy, sizes that do not fit.
        TextError: fewer than two tokens.
    """
    ids, wanted, meta = started(
        model, tokenizer, text, arms, window=window, sinks=sinks, positions=positions, tokens=tokens, chunk=chunk,
        every=every, samples=samples, seed=seed, source=source, name=name,
    )  # fmt: skip
    record = StreamRecord({}, []) if record is None else record
    record.meta.update(meta)
    with evaluating(model):
        for label, policy, scheme in wanted:
            arm = StreamArm(label, "" if policy is None else str(policy), scheme, chunk, every)
            record.arms.append(arm)
            if policy is None:
                recompute(model, ids, window, arm, samples=samples, seed=seed, progress=progress)
            else:
                follow(model, ids, policy, scheme, arm, progress=progress)
    return record


def started(
    model: nn.Module, tokenizer: Any, text: str | Sequence[int] | Tensor, arms: Any, *, window: int, sinks: int, positions: str,
    tokens: int | None, chunk: int, every: int, samples: int = 300, seed: int = 0, source: str = "text", name: str | None = None,
) -> tuple[list[int], list[tuple[str, Policy | None, str]], dict[str, Any]]:  # fmt: skip
    """What :func:`stream` reads, in which ways, and what its record says of that; the arguments are its own.

    Returns:
        The ids; (name, policy, positions) of every arm, no policy being recomputation; the record's ``meta``.

    Raises:
        ArgumentError: an unknown arm or policy, sizes that do not fit.
        TextError: fewer than two tokens.
    """
    for what, value in (("window", window), ("every", every), ("chunk", chunk), ("samples", samples)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{what} must be a whole number of at least 1, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ArgumentError(f"seed must be a whole number of at least 0, got {seed!r}")
    prefix, bos = bos_prefix(tokenizer, "auto") if tokenizer is not None else ([], "none")
    if isinstance(text, str):
        ids = [*prefix, *tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]
    else:
        ids = [int(i) for i in (text.flatten().tolist() if isinstance(text, Tensor) else text)]
    ids = ids if tokens is None else ids[:tokens]
    if len(ids) < 2:
        raise TextError(f"the text has {len(ids)} tokens; at least 2 are needed for one to predict another")
    wanted = wanted_arms(arms, window, sinks, positions)
    meta = {
        "model": {
            "name": name or getattr(compat.config(model), "_name_or_path", "") or type(model).__name__,
            "class": type(model).__name__, "fingerprint": fingerprint(model), "bos": bos,
        },
        "text": source, "tokens": len(ids), "wanted": [label for label, _, _ in wanted], "window": window, "sinks": sinks, "chunk": chunk, "every": every, "seed": seed,
        "threads": torch.get_num_threads(), "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }  # fmt: skip
    return ids, wanted, meta


def wanted_arms(arms: Any, window: int, sinks: int, positions: str) -> list[tuple[str, Policy | None, str]]:
    """(name, policy, positions) of every arm; no policy: recomputation.

    Raises:
        ArgumentError: an unknown arm or policy, the same one twice, or none.
    """
    if isinstance(arms, str):
        arms = arms.split(",") if "(" not in arms else [arms]
    found = [_arm(a, window, sinks, positions) for a in ([arms] if isinstance(arms, Policy) else arms)]
    names = [(name, scheme) for name, _, scheme in found]
    if not names or len(set(names)) < len(names):
        raise ArgumentError(f"give at least one arm, and each once: got {', '.join(n for n, _ in names) or 'none'}")
    return found


def _arm(arm: Any, window: int, sinks: int, positions: str) -> tuple[str, Policy | None, str]:
    if isinstance(arm, tuple):
        return arm[0], as_policy(arm[1]), arm[2]
    if isinstance(arm, Policy):
        return str(arm), arm, positions
    arm = arm.strip()
    if arm == "dense":
        return arm, as_policy("dense"), "original"
    if arm == "window":
        return arm, as_policy(f"recent({window})"), positions
    if arm == "recompute":
        return arm, None, "recomputed"
    if arm == "sinks":
        return f"{sinks} sinks", budget(window, sinks), positions
    if "(" not in arm:
        raise ArgumentError(
            f"there is no arm {arm!r}; there are {', '.join(ARMS)}, or a policy such as recent(252) + sinks(4)"
        )
    return arm, as_policy(arm), positions


def follow(
    model: nn.Module, ids: Sequence[int], policy: str | Policy, positions: str, arm: StreamArm, *,
    progress: Progress | None = None, nats: list[float] | None = None,
) -> StreamArm:  # fmt: skip
    """Every next token of ``ids`` predicted under a policy; fills ``arm`` as it goes.

    A chunk is exact: the numbers are those of single steps. A policy without a bound stops at the model's context. ``nats`` gets
    every single loss.
    """
    policy = as_policy(policy)
    last = _last(model, ids, policy, arm)
    with streaming(model, policy, positions=positions, chunk=arm.chunk) as cache:
        for i in range(0, last, arm.chunk):
            done = _read(model, ids, i, min(i + arm.chunk, last), cache, arm, nats)
            if progress is not None:
                progress(arm, done)
    arm.complete = last == len(ids) - 1
    return arm


def following(
    model: nn.Module, ids: Sequence[int], policy: str | Policy, positions: str, arm: StreamArm
) -> Iterator[int]:
    """:func:`follow` a pass at a time, yielding how many predictions are made.

    Between two passes the model is as it was, so that several arms can take turns.
    """
    policy = as_policy(policy)
    last = _last(model, ids, policy, arm)
    with streaming(model, policy, positions=positions, chunk=arm.chunk) as cache:
        pass
    for i in range(0, last, arm.chunk):
        with resumed(cache):
            done = _read(model, ids, i, min(i + arm.chunk, last), cache, arm, None)
        arm.complete = done == len(ids) - 1
        yield done


def _last(model: nn.Module, ids: Sequence[int], policy: Policy, arm: StreamArm) -> int:
    """How many predictions can be made; says in the arm why not all."""
    last, context = len(ids) - 1, compat.trained_context(compat.config(model))
    if policy.budget is None and context is not None and last > context:
        last, arm.note = context, f"stopped at the {context} positions that the model was made for"
    return last


@torch.no_grad()
def _read(
    model: nn.Module, ids: Sequence[int], i: int, j: int, cache: Any, arm: StreamArm, nats: list[float] | None
) -> int:
    """One pass over tokens ``i:j``, each predicting the next."""
    text = torch.tensor([list(ids[i : j + 1])], device=compat.input_device(model))
    start = time.perf_counter()
    logits = model(text[:, :-1], cache=cache).logits[0]
    arm.seconds += time.perf_counter() - start
    found = losses(logits, text[0, 1:])
    add(arm, i, found)
    if nats is not None:
        nats += found.tolist()
    arm.cache_bytes, arm.held = cache.nbytes(), cache.held()
    return j


@torch.no_grad()
def recompute(
    model: nn.Module, ids: Sequence[int], window: int, arm: StreamArm, *, samples: int = 300, seed: int = 0,
    progress: Progress | None = None, nats: list[float] | None = None,
) -> StreamArm:  # fmt: skip
    """Predictions whose last ``window`` tokens are read afresh, at random places: exact, and as slow as a window squared.

    The places are spread evenly over the text, one drawn from each stretch.
    """
    text = torch.tensor([list(ids)], device=compat.input_device(model))
    last = text.shape[1] - 1
    edges = np.linspace(0, last, min(samples, last) + 1).astype(int)
    rng = np.random.default_rng(seed)
    places = [int(rng.integers(a, b)) for a, b in itertools.pairwise(edges) if b > a]
    arm.at = []
    for done, t in enumerate(places):
        start = time.perf_counter()
        logits = forward(model, text[:, max(0, t - window + 1) : t + 1], last_only=True)
        arm.seconds += time.perf_counter() - start
        found = losses(logits.reshape(1, -1), text[0, t + 1 : t + 2])
        add(arm, t, found)
        arm.at.append(t)
        if nats is not None:
            nats += found.tolist()
        if progress is not None:
            progress(arm, done + 1)
    arm.complete, arm.note = True, f"{len(places)} predictions, one from each {last / len(places):.0f} tokens"
    return arm


def losses(logits: Tensor, targets: Tensor) -> np.ndarray:
    """Nats of each target under the logits before it, float64."""
    found = []
    step = rows(logits.shape[-1])
    for i in range(0, len(targets), step):
        some = logits[i : i + step].float()
        found.append((some.logsumexp(-1) - some.gather(-1, targets[i : i + step, None])[:, 0]).double().cpu())
    return torch.cat(found).numpy()


def add(arm: StreamArm, begin: int, nats: np.ndarray) -> None:
    """Losses of predictions from position ``begin`` on, into the curve.

    Raises:
        NonFiniteError: one is NaN or infinite.
    """
    if not np.isfinite(nats).all():
        at = begin + int(np.flatnonzero(~np.isfinite(nats))[0]) + 1
        raise NonFiniteError(
            f"{arm.name}: the loss of token {at} is NaN or infinite; fetch the model again, or try dtype float32 or bfloat16"
        )
    for k, x in enumerate(nats):
        point = (begin + k) // arm.every
        while len(arm.sums) <= point:
            arm.sums.append(0.0)
            arm.counts.append(0)
            arm.resident.append(resident())
        arm.sums[point] += float(x)
        arm.counts[point] += 1


def resident() -> int:
    """Bytes of this process that are in memory now; where the system does not say, the most there ever were."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
