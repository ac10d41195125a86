"""What a setting weighs, to the byte, and how long a step of it takes, by a fit.

Bytes follow from what the banks of ``cache/`` allocate; a test holds them to ``cache.nbytes()``. Times come from a few
measured steps: a step costs something whatever is kept, something for every number that is read, and more for one that has
to be unpacked first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sinkgate.cache.base import Keep, Policy
from sinkgate.cache.recent import Recent
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.fold import _windows
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.hf.rotary import find_rotations
from sinkgate.rope import Rotation

__all__ = ["CacheLayer", "Latency", "Shape", "fit_latency"]


@dataclass(frozen=True)
class CacheLayer:
    """One attention layer.

    Args:
        index: its number.
        heads: query heads.
        kv_heads: heads with keys and values of their own.
        k_dim: numbers of a key.
        v_dim: of a value.
        window: of its own, which no policy changes; None: there is none, or all layers have one.
        rotary: whether its keys can be turned to another position.
    """

    index: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None
    rotary: bool

    def keeps(self, policy: Policy) -> list[Keep]:
        """The banks that a stream gives it."""
        mine = policy if self.window is None else Recent(self.window)
        return mine.keeps(self.index, self.heads, self.kv_heads)


@dataclass(frozen=True)
class Shape:
    """The caches of a model.

    Args:
        layers: those that attend.
        item: bytes of a number as the model computes.
        context: positions that it was trained for; None: it does not say.
        window: of the layers where every one has its own; policies may show it more.
    """

    layers: tuple[CacheLayer, ...]
    item: int
    context: int | None
    window: int | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Shape:
        """A model's, found by one short pass.

        Raises:
            UnsupportedError: there is no attention that could be read.
        """
        found = attention_layers(model)
        windows = {i: w for i, w in _windows(model).items() if w is not None}
        every = min(windows.values()) if len(windows) == len(found) else None
        windows = {} if every is not None else windows
        rotations = find_rotations(model)
        ids = torch.arange(2, 6, device=compat.input_device(model))[None]
        sizes = _sizes(model, ids)
        layers = tuple(
            CacheLayer(a.layer, a.heads, a.kv_heads, *sizes[a.layer], windows.get(a.layer),
                       isinstance(rotations[a.layer], Rotation))
            for a in found
        )  # fmt: skip
        item = next(model.parameters()).element_size()
        return cls(layers, item, compat.trained_context(compat.config(model)), every)

    @property
    def free(self) -> tuple[CacheLayer, ...]:
        """Layers whose cache a policy can change."""
        return tuple(layer for layer in self.layers if layer.window is None)

    @property
    def slots(self) -> bool:
        """Whether positions can be counted inside the cache."""
        return all(layer.rotary for layer in self.free)

    def bytes(self, policy: Policy, positions: str, *, context: int, batch: int = 1) -> int:
        """What a stream of that many tokens keeps; an unbounded bank is counted without the room it grows into."""
        return batch * sum(
            _bank_bytes(keep, layer, self.item, context, slots=positions == "slots" and layer.window is None and layer.rotary)
            for layer in self.layers
            for keep in layer.keeps(policy)
        )  # fmt: skip

    def reads(self, policy: Policy, *, context: int) -> tuple[int, int]:
        """Numbers that a step reads as they are, and numbers that it unpacks first."""
        plain = packed = 0
        for layer in self.layers:
            for keep in layer.keeps(policy):
                numbers = len(keep.kv) * (layer.k_dim + layer.v_dim)
                kept = min(context, (keep.budget or context))
                if keep.storage.bits is None:
                    plain += kept * numbers
                else:
                    packed += kept * numbers
        return plain, packed

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"layers": [asdict(layer) for layer in self.layers], "item": self.item, "context": self.context}


def _sizes(model: nn.Module, ids: torch.Tensor) -> dict[int, tuple[int, int]]:
    """Sizes of a key and a value, per layer."""
    index = {id(a.module): a.layer for a in attention_layers(model)}
    found: dict[int, tuple[int, int]] = {}

    class Look:
        def attend(self, function: Any, module: nn.Module, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) in index:
                found[index[id(module)]] = (int(k.shape[-1]), int(v.shape[-1]))
            return function(module, q, k, v, *args, **kwargs)

    with evaluating(model), torch.no_grad(), reading(model, Look()):
        forward(model, ids)
    return found


def _bank_bytes(keep: Keep, layer: CacheLayer, item: int, context: int, *, slots: bool) -> int:
    """One bank of one sequence."""
    kv, k_dim, v_dim = len(keep.kv), layer.k_dim, layer.v_dim
    both, wide = k_dim + v_dim, max(item, 4)
    pinned = sum(p.slots for p in keep.pinned)
    if keep.storage.bits is not None:
        return _packed_bytes(keep, kv, k_dim, v_dim, item, pinned, slots=slots)
    earned = sum(p.slots for p in keep.earned)
    kept = pinned + earned
    tokens = kept + (context if keep.recent is None else keep.recent)
    size = kv * tokens * both * item + (kv * kept * k_dim * wide if slots else 0)
    return size + kv * tokens * (8 + wide) if earned else size  # positions and masses of each head's own


def _packed_bytes(keep: Keep, kv: int, k_dim: int, v_dim: int, item: int, pinned: int, *, slots: bool) -> int:
    """One quantised bank: groups, the tail as computed, sinks as they are or packed too."""
    how, both, wide = keep.storage, k_dim + v_dim, max(item, 4)
    assert how.bits is not None
    assert keep.recent is not None
    groups = math.ceil(keep.recent / how.group) + 1
    tails = min(math.ceil(how.tail / how.group) + 1, groups)
    size = groups * how.group * both * how.bits // 8  # codes
    size += groups * (k_dim + how.group) * 2 * 2  # scale and zero, half precision: a key's channel, a value's token
    size += tails * how.group * both * item
    if pinned and how.keep_sinks:
        size += pinned * both * item + (pinned * k_dim * wide if slots else 0)
    elif pinned:
        size += pinned * both * how.bits // 8 + (k_dim + pinned) * 2 * 2
    return kv * size + 8  # and a count


# ---- time -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a decoding step: ``fixed + plain · read + packed · unpacked`` (numbers in millions).

    Args:
        fixed: whatever is kept.
        plain: for a million numbers that are read as they are.
        packed: for a million that are unpacked.
        error: root mean square of the fit's relative errors on what it was fitted to.
        points: how many.
    """

    fixed: float
    plain: float
    packed: float
    error: float
    points: int

    def __call__(self, reads: tuple[int, int]) -> float:
        """Predicted milliseconds."""
        return self.fixed + self.plain * reads[0] / 1e6 + self.packed * reads[1] / 1e6

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def fit_latency(reads: Sequence[tuple[int, int]], milliseconds: Sequence[float]) -> Latency:
    """Non-negative least squares of relative errors.

    Args:
        reads: of :meth:`Shape.reads`.
        milliseconds: what a step took, measured.

    >>> fit = fit_latency([(0, 0), (10**6, 0), (0, 10**6)], [10.0, 12.0, 15.0])
    >>> round(fit.fixed, 3), round(fit.plain, 3), round(fit.packed, 3)
    (10.0, 2.0, 5.0)
    """
    from scipy.optimize import nnls

    time = np.asarray(milliseconds, float)
    x = np.array([[1.0, plain / 1e6, packed / 1e6] for plain, packed in reads]) / time[:, None]
    found, _ = nnls(x, np.ones(len(time)))
    error = float(np.sqrt(np.mean((x @ found - 1) ** 2)))
    return Latency(float(found[0]), float(found[1]), float(found[2]), error, len(time))
