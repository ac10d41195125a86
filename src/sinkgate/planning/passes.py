"""Where a text may be cut so that every token sees what it would see in single steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sinkgate.cache.base import Policy
from sinkgate.cache.sinks import Sinks
from sinkgate.hf.quantized_mixed import kept_tokens

__all__ = ["CHUNK", "spans"]

CHUNK = 512  # tokens of a pass


def spans(policy: Policy, ids: Sequence[int]) -> list[tuple[int, int]]:
    """(begin, end) of each pass, to be read inside :func:`sinkgate.cache.quantized_bank.stepwise`.

    Where sinks are packed too, a pass ends behind them, since they are packed when it ends.

    Args:
        policy: of the cache.
        ids: of the text.
    """
    n, ends = len(ids), {*range(CHUNK, len(ids), CHUNK), len(ids)}
    for keep in policy.kinds:
        if keep.storage.bits is not None and not keep.storage.keep_sinks:
            parts = [p for p in keep.pinned if isinstance(p, Sinks)]
            pinned = kept_tokens(parts, torch.arange(n)[None], torch.tensor([list(ids)]))[0].tolist()
            ends |= {i + 1 for i in range(n) if pinned[i] and not (i + 1 < n and pinned[i + 1])}
    cuts = sorted(ends)
    return list(zip([0, *cuts[:-1]], cuts, strict=True))
