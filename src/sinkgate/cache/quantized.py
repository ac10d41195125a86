"""The same tokens in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sinkgate.cache.base import Keep, Policy, Storage, whole
from sinkgate.errors import ArgumentError

__all__ = ["Quantized"]


@dataclass(frozen=True)
class Quantized(Policy):
    """What ``base`` keeps, stored in 8 or 4 bits: keys per channel, values per token (KIVI, Liu et al. 2024).

    Args:
        base: recent tokens, with sinks or without.
        bits: 8 or 4; two int4 numbers share a byte.
        keep_sinks: the sinks stay as the model computes them (their keys and values are outliers); False: they are packed
            after the pass in which the last of them came.
        tail: so many of the last tokens stay as they are too (rounded up to whole groups; a group that is not full yet
            always does).
        group: tokens that share a key channel's scale.
    """

    name: ClassVar[str] = "quantized"
    base: Policy
    bits: int = 8
    keep_sinks: bool = True
    tail: int = 0
    group: int = 32

    def __post_init__(self) -> None:
        if not isinstance(self.base, Policy):
            raise ArgumentError(f"quantized(base, …) needs a policy, got {self.base!r}")
        if isinstance(self.bits, bool | float) or self.bits not in (4, 8):
            raise ArgumentError(f"quantized: bits must be 8 or 4, got {self.bits!r}")
        whole("quantized: tail", self.tail, 0)
        whole("quantized: group", self.group, 2)
        for keep in self.base.kinds:
            if keep.earned or keep.rule is not None or keep.storage.bits is not None or keep.recent is None:
                raise ArgumentError(
                    f"quantized: the policy must be recent(n), with sinks or without, got {self.base}; where heads or layers "
                    "differ, put quantized(…) inside per_head or per_layer"
                )

    def keeps(self, layer: int, heads: int, kv_heads: int) -> list[Keep]:
        """The policy's banks, stored in fewer bits."""
        return [replace(k, storage=self._storage) for k in self.base.keeps(layer, heads, kv_heads)]

    @property
    def kinds(self) -> list[Keep]:
        """Those of the policy, stored in fewer bits."""
        return [replace(k, storage=self._storage) for k in self.base.kinds]

    @property
    def _storage(self) -> Storage:
        return Storage(self.bits, self.group, self.tail, self.keep_sinks)
