"""Where a text may be cut so that every token sees what it would see in single steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sinkgate.cache.base import Policy
from sinkgate.cache.sinks import Sinks
from sinkgate.hf.quantized_mixed import kept_tokens

__all__ = ["CHUNK", "spans"]

CHUNK = 256  # tokens of a pass where nothing is packed


def spans(policy: Policy, ids: Sequence[int]) -> list[tuple[int, int]]:
    """(begin, end) of each pass.

    A pass sees its own tokens as the model computed them. That is what single steps see unless the cache packs: then a pass
    ends behind the pinned tokens, and where a group is full.

    Args:
        policy: of the cache.
        ids: of the text.
    """
    packed = [keep for keep in policy.kinds if keep.storage.bits is not None]
    n = len(ids)
    if not packed:
        ends = [*range(CHUNK, n, CHUNK), n]
    else:
        group = min(keep.storage.group for keep in packed)
        row = torch.tensor([list(ids)])
        parts = [p for p in packed[0].pinned if isinstance(p, Sinks)]
        pinned = kept_tokens(parts, torch.arange(n)[None], row)[0].tolist()
        ends, filled = [], 0
        for i, mine in enumerate(pinned):
            filled += not mine
            last = mine and not (i + 1 < n and pinned[i + 1])
            if last or (not mine and filled % group == 0):
                ends.append(i + 1)
        ends = sorted({*ends, n})
    return list(zip([0, *ends[:-1]], ends, strict=True))
