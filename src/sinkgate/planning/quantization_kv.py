"""Keys and values in a packed cache: four ways to spend the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.cache.base import Policy, Sum
from sinkgate.cache.per_head import PerHead
from sinkgate.cache.quantized import Quantized
from sinkgate.cache.quantized_bank import stepwise
from sinkgate.cache.recent import Recent
from sinkgate.cache.registry import as_policy
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.head_parts import LayerParts
from sinkgate.hf.streaming import streaming
from sinkgate.planning.passes import spans
from sinkgate.planning.quantization_found import Group, promoted, record_tokens
from sinkgate.planning.quantization_record import CONTROL, Arms, Planned
from sinkgate.planning.quantization_spec import KVSpec
from sinkgate.record import Diagnosis

__all__ = ["cache_bytes", "kv_arms", "kv_logits"]

GROUP = 32  # tokens that share a key channel's scale


def kv_arms(
    model: nn.Module, diagnosis: Diagnosis | None, tokenizer: Any, parts: list[LayerParts], *, window: int, bits: int,
    first: int, positions: str,
) -> Arms:  # fmt: skip
    """The arms: the same tokens at least (``first`` first ones and the last), as many recent ones as the bytes allow.

    ``uniform`` packs everything, the first tokens too; its window is rounded up to whole groups, which costs no byte. The
    others' windows are the largest whole number of groups whose cache is not larger than that of ``uniform``.

    Args:
        model: a transformers model that can be streamed.
        diagnosis: None: what needs it is skipped, with the reason.
        tokenizer: names the tokens of sinks that stand further in.
        parts: of the model's attention layers.
        window: recent tokens of ``uniform``.
        bits: 4 or 8.
        first: how many first tokens.
        positions: ``slots`` or ``original``.

    Raises:
        ArgumentError: a window that is more than the model was made for.
    """
    window = -(-window // GROUP) * GROUP
    free = [p for p in parts if p.window is None]  # a layer with a window of its own keeps it, where others have none
    own = None if free else min(p.window or 0 for p in parts)
    most = (own, compat.trained_context(compat.config(model)))

    def kept(n: int, sinks: Sequence[Sinks]) -> Policy:
        return Sum.of(Recent(n), *sinks)

    def packed(n: int, sinks: Sequence[Sinks], apart: bool, width: int = bits) -> Policy:
        return Quantized(kept(n, sinks), bits=width, keep_sinks=apart, group=GROUP)

    leading = (Sinks(first),)
    uniform = packed(window, leading, False)
    if not _within(uniform, most):
        raise ArgumentError(
            f"a window of {window} tokens (whole groups of {GROUP}) and the first {first} are more than the model was made for: "
            f"{min(x for x in most if x)}; use a smaller window"
        )
    limit = cache_bytes(model, uniform, positions)
    arms = Arms()
    arms.add(_planned("uniform", f"everything in {bits} bits, the first {first} tokens too", uniform, positions, limit))

    def spend(name: str, words: str, make: Callable[[int], Policy], tokens: tuple[Sinks, ...] = (),
              groups: tuple[Group, ...] = ()) -> None:  # fmt: skip
        found = _widest(model, make, limit, most, positions)
        if found is None:
            arms.skipped[name] = f"no window fits into {limit:,} bytes beside what is kept; use a larger window"
            return
        policy, size, n = found
        pairs = tuple((g.layer, g.kv_head) for g in groups)
        arms.add(_planned(name, f"{words}; {n} recent tokens", policy, positions, size, tokens, pairs))

    spend(f"preserve-first-{first}", f"the first {first} tokens as computed, the rest in {bits} bits",
          lambda n: packed(n, leading, True), leading)  # fmt: skip
    if diagnosis is None:
        arms.skipped |= dict.fromkeys(("sink-aware", "per-head"), "there is no record: give a diagnosis of this model")
        return arms
    try:
        sinks = record_tokens(diagnosis, tokenizer)
    except ArgumentError as err:
        arms.skipped["sink-aware"] = str(err)
    else:
        spend("sink-aware", f"the record's sinks, {' + '.join(map(str, sinks))}, as computed, the rest in {bits} bits",
              lambda n: packed(n, sinks, True), sinks)  # fmt: skip
    try:
        chosen = promoted(diagnosis, free or parts)
    except ArgumentError as err:
        arms.skipped["per-head"] = str(err)
        return arms
    sharing = {p.layer: p.heads // p.kv_heads for p in parts}
    more = "8 bits" if bits == 4 else "full precision"

    def apart(groups: tuple[Group, ...]) -> Callable[[int], Policy]:
        heads = tuple((g.layer, g.kv_head * sharing[g.layer]) for g in groups)
        return lambda n: PerHead(
            packed(n, leading, False), heads, packed(n, leading, False, 8) if bits == 4 else kept(n, leading)
        )

    words = f"{chosen.words}, in {more}, the rest in {bits} bits"
    spend("per-head", words, apart(chosen.groups), groups=chosen.groups)
    if chosen.others:
        spend(CONTROL, f"as many other key-value heads in {more}", apart(chosen.others), groups=chosen.others)
    return arms


def _planned(
    name: str, words: str, policy: Policy, positions: str, size: int, tokens: tuple[Sinks, ...] = (),
    heads: tuple[tuple[int, int], ...] = (),
) -> Planned:  # fmt: skip
    return Planned(name, words, KVSpec(str(policy), positions, tokens, heads), size)


def _widest(
    model: nn.Module, make: Callable[[int], Policy], limit: int, most: tuple[int | None, int | None], positions: str
) -> tuple[Policy, int, int] | None:
    """The policy with the most whole groups of recent tokens that fits, its bytes and its recent tokens."""
    size: dict[int, int] = {}

    def fits(groups: int) -> bool:
        if groups < 1 or not _within(make(groups * GROUP), most):
            return False
        if groups not in size:
            size[groups] = cache_bytes(model, make(groups * GROUP), positions)
        return size[groups] <= limit

    n = 1
    if fits(1) and fits(2):  # every group more costs the same: guess, then look
        n += max(0, (limit - size[1]) // max(1, size[2] - size[1]))
        while n > 1 and not _within(make(n * GROUP), most):
            n -= 1
    while n and not fits(n):
        n -= 1
    while n and fits(n + 1):
        n += 1
    return (make(n * GROUP), size[n], n * GROUP) if n else None


def _within(policy: Policy, most: tuple[int | None, int | None]) -> bool:
    """Whether it keeps no more recent tokens than the model's own window, and no more than it has positions."""
    own, context = most
    recent = max(keep.recent or 0 for keep in policy.kinds)
    return (own is None or recent <= own) and (context is None or (policy.budget or 0) <= context)


@torch.no_grad()
def cache_bytes(model: nn.Module, policy: str | Policy, positions: str = "slots") -> int:
    """What ``cache.nbytes()`` says once all pinned tokens have come: rings have their whole size from the beginning.

    Measured with a pass over so many tokens as the policy pins, and one more.

    Args:
        model: a transformers model.
        policy: packed, or recent tokens and sinks.
        positions: ``slots`` or ``original``.
    """
    policy = as_policy(policy)
    pinned = {p for keep in policy.kinds for p in keep.pinned if isinstance(p, Sinks)}
    ids = [1] * max((p.n for p in pinned if not p.token_ids), default=0)
    for part in pinned:
        if part.token_ids:
            ids += [part.token_ids[0]] * part.n
    recent = min((keep.recent or 1) for keep in policy.kinds)
    if any(keep.storage.bits is None for keep in policy.kinds):
        ids += [1] * recent  # an unpacked ring may grow
    with streaming(model, policy, positions=positions) as cache:
        model(torch.tensor([[*ids, 1]], device=compat.input_device(model)), cache=cache)
        return cache.nbytes()


@torch.no_grad()
def kv_logits(model: nn.Module, ids: Sequence[int], spec: KVSpec) -> Tensor:
    """The logits ``[t, V]`` of a text read through the cache of a spec, what is packed at each token being packed.

    Raises:
        UnsupportedError: a model that cannot be streamed.
    """
    policy = as_policy(spec.policy)
    text = torch.tensor([list(ids)], device=compat.input_device(model))
    found = []
    with stepwise(), streaming(model, policy, positions=spec.positions) as cache:
        for start, end in spans(policy, ids):
            found.append(model(text[:, start:end], cache=cache).logits[0])
    return torch.cat(found)
