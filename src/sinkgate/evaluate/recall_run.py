"""Recall of a model under bounded caches: the same questions for every policy, in chunks that are exact."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.cache.base import Policy
from sinkgate.errors import ArgumentError
from sinkgate.evaluate.needles import RecallText, common_words, multi_key, single_needle, variable_tracking
from sinkgate.evaluate.recall import RecallResult, distance_grid, score, stream_recall
from sinkgate.evaluate.recall_record import RecallArm, RecallRun
from sinkgate.evaluate.stream import wanted_arms
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint, forward
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.hf.streaming import streaming
from sinkgate.probe.text import bos_prefix

__all__ = ["TASKS", "answers", "recall", "recall_texts"]

Progress = Callable[[RecallArm, int, int], None]
TASKS = ("stream", "single", "multikey", "variable", "words")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # where needles stand


def recall(
    model: nn.Module,
    tokenizer: Any,
    arms: str | Policy | Sequence[str | Policy | tuple[str, str | Policy, str]] = "sinks",
    *,
    window: int = 256,
    sinks: int = 4,
    positions: str = "slots",
    tasks: Sequence[str] = ("stream",),
    distances: Sequence[int] | None = None,
    per_distance: int = 20,
    length: int | None = None,
    seeds: Sequence[int] = (0,),
    chunk: int = 256,
    name: str | None = None,
    record: RecallRun | None = None,
    progress: Progress | None = None,
) -> RecallRun:
    """Ask a model for facts some tokens back, under one policy or several side by side.

    The texts are those of :mod:`sinkgate.evaluate.recall`; every arm reads the same ones, and is scored on each answer's
    tokens behind the true ones. What a bounded cache evicted is gone: expect a cliff at the window.

    Args:
        model: a transformers model.
        tokenizer: its own.
        arms: as in :func:`sinkgate.stream`.
        window: tokens of the window, and by default what the distances are chosen by.
        sinks: first tokens kept, of the arm ``sinks``.
        positions: of policies, ``slots`` or ``original``.
        tasks: of ``stream`` (questions along one text) and ``single``, ``multikey``, ``variable``, ``words`` (one question
            at the end of a text of ``length`` tokens, the fact at five depths).
        distances: tokens between a fact and its question to aim at; from 16 tokens to four windows if None.
        per_distance: questions for each of them.
        length: tokens of a text at most; None: as many as the questions take, four windows for the needles.
        seeds: one text, or one set of needles, for each; their questions are put together.
        chunk: tokens per pass.
        name: what the record calls the model.
        record: to be filled, so that an interrupted run leaves what it has.
        progress: called with the arm, its texts read and all there are.

    Raises:
        ArgumentError: an unknown arm, task or policy, or texts that cannot be made so.
    """
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ArgumentError(f"chunk must be a whole number of at least 1, got {chunk!r}")
    wanted = wanted_arms(arms, window, sinks, positions)
    aims = distance_grid(window) if distances is None else tuple(sorted(set(distances)))
    texts = recall_texts(
        tokenizer, tasks, window=window, distances=aims, per_distance=per_distance, length=length, seeds=seeds
    )
    # a column for each distance aimed at: questions come a little early, so columns end between two aims
    edges = [round(math.sqrt(a * b)) for a, b in itertools.pairwise(aims)]
    record = RecallRun({}, []) if record is None else record
    record.meta.update(
        {
            "model": {
                "name": name or getattr(compat.config(model), "_name_or_path", "") or type(model).__name__,
                "class": type(model).__name__, "fingerprint": fingerprint(model), "bos": bos_prefix(tokenizer, "auto")[1],
            },
            "texts": [{"task": task, "seed": seed, "tokens": len(t.ids), "questions": len(t.scored)} for task, seed, t in texts],
            "tasks": list(tasks), "seeds": list(seeds), "window": window, "sinks": sinks, "chunk": chunk,
            "distances": list(aims), "edges": sorted(set(edges)), "per_distance": per_distance, "wanted": [n for n, _, _ in wanted],
            "threads": torch.get_num_threads(), "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        }
    )  # fmt: skip
    with evaluating(model):
        for label, policy, scheme in wanted:
            seen = window if policy is None else shown(model, policy)
            arm = RecallArm(label, "" if policy is None else str(policy), scheme, RecallResult((), seen))
            record.arms.append(arm)
            out_of_reach = 0
            for done, (_, _, text) in enumerate(texts):
                part, missed = _within(model, text, policy)
                out_of_reach += missed
                if part.scored:
                    start = time.perf_counter()
                    said, logs = answers(model, part, policy, scheme, window=window, chunk=chunk)
                    arm.seconds += time.perf_counter() - start
                    arm.tokens += len(part.ids)
                    arm.result = arm.result.merge(score(part, said, logs, window=seen))
                if progress is not None:
                    progress(arm, done + 1, len(texts))
            arm.complete = out_of_reach == 0
            if out_of_reach:
                context = compat.trained_context(compat.config(model))
                arm.note = f"{out_of_reach} questions lie beyond the {context} positions that the model was made for"
    return record


def recall_texts(
    tokenizer: Any, tasks: Sequence[str], *, window: int, distances: Sequence[int], per_distance: int, length: int | None,
    seeds: Sequence[int],
) -> list[tuple[str, int, RecallText]]:  # fmt: skip
    """(task, seed, text) of every text, with the token in front that the tokenizer puts there.

    Raises:
        ArgumentError: an unknown task, no task or seed, or sizes that do not fit.
    """
    for task in tasks:
        if task not in TASKS:
            raise ArgumentError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    if not tasks or not seeds:
        raise ArgumentError("give at least one task and one seed")
    prefix, _ = bos_prefix(tokenizer, "auto")
    needles: dict[str, Callable[..., RecallText]] = {
        "single": single_needle,
        "multikey": multi_key,
        "variable": variable_tracking,
    }
    found: list[tuple[str, int, RecallText]] = []
    for task in dict.fromkeys(tasks):
        for seed in seeds:
            if task == "stream":
                text = stream_recall(
                    tokenizer, distances=distances, per_distance=per_distance, length=length, seed=seed, prefix=prefix
                )
                found.append((task, seed, text))
                continue
            size = 4 * window if length is None else length
            if task == "words":
                found.append((task, seed, common_words(tokenizer, length=size, seed=seed, prefix=prefix)))
                continue
            for i, depth in enumerate(DEPTHS):
                own = seed * len(DEPTHS) + i
                found.append((task, seed, needles[task](tokenizer, length=size, depth=depth, seed=own, prefix=prefix)))
    return found


def shown(model: nn.Module, policy: Policy) -> int | None:
    """The recent tokens that a policy keeps where it keeps most; None: all of them in some head."""
    kept = [k.recent for a in attention_layers(model) for k in policy.keeps(a.layer, a.heads, a.kv_heads)]
    return None if any(n is None for n in kept) else max(n for n in kept if n is not None)


def _within(model: nn.Module, text: RecallText, policy: Policy | None) -> tuple[RecallText, int]:
    """The text up to its last question that the policy can reach, and how many scored ones it cannot."""
    context = compat.trained_context(compat.config(model))
    bounded = policy is None or policy.budget is not None or context is None
    reach = len(text.ids) if bounded or context is None else context
    kept = tuple(q for q in text.questions if q.position + len(q.answer_ids) - 1 <= reach)
    end = max((q.position + len(q.answer_ids) for q in kept), default=0)
    part = dataclasses.replace(text, ids=text.ids[:end], questions=kept)
    return part, len(text.scored) - len(part.scored)


@torch.no_grad()
def answers(
    model: nn.Module, text: RecallText, policy: Policy | None, positions: str, *, window: int, chunk: int
) -> tuple[list[list[int]], list[list[float]]]:
    """For each question, the most likely token and the log-probability of the true one at each of its answer's tokens.

    Row ``position − 1 + j`` predicts an answer's token j; ``policy=None`` reads the last ``window`` tokens afresh for it.
    """
    ids = torch.tensor([text.ids], device=compat.input_device(model))
    rows = [q.position - 1 + j for q in text.questions for j in range(len(q.answer_ids))]
    found: dict[int, tuple[int, float]] = {}

    def take(at: Sequence[int], logits: Tensor) -> None:
        wide = logits.float()
        truth = ids[0, torch.tensor(at, device=ids.device) + 1]
        logs = wide.gather(-1, truth[:, None])[:, 0] - wide.logsumexp(-1)
        found.update(zip(at, zip(wide.argmax(-1).tolist(), logs.tolist(), strict=True), strict=True))

    if policy is None:
        for t in rows:
            take([t], forward(model, ids[:, max(0, t - window + 1) : t + 1], last_only=True)[0, -1:])
    else:
        with streaming(model, policy, positions=positions, chunk=chunk) as cache:
            for i in range(0, max(rows) + 1, chunk):
                j = min(i + chunk, max(rows) + 1)
                logits = model(ids[:, i:j], cache=cache).logits[0]
                at = [t for t in rows if i <= t < j]
                if at:
                    take(at, logits[torch.tensor(at, device=logits.device) - i])
    said = [[found[q.position - 1 + j][0] for j in range(len(q.answer_ids))] for q in text.questions]
    logs = [[found[q.position - 1 + j][1] for j in range(len(q.answer_ids))] for q in text.questions]
    return said, logs
