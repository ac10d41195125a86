"""The sink tokens: the first of the text, tokens with certain ids, or constants of the model in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinkgate.cache.base import Pinned, whole
from sinkgate.errors import ArgumentError

__all__ = ["Sinks"]


@dataclass(frozen=True)
class Sinks(Pinned):
    """Tokens that are never evicted (Xiao et al., ICLR 2024, arXiv 2309.17453).

    Args:
        n: how many; with ``token_ids`` the first so many of them.
        token_ids: keep tokens with these ids, wherever they stand, instead of the first of the text.
        folded: no token of the text is kept, but a constant of the model in its place: the key and value of these first
            tokens (their mean), each alone in front of the text (see :func:`sinkgate.fold_sink`).
    """

    name: ClassVar[str] = "sinks"
    n: int = 4
    token_ids: tuple[int, ...] = ()
    folded: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("token_ids", "folded"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, int) else tuple(value)
            object.__setattr__(self, name, value)
            for i in value:
                whole(f"sinks({name}=[…]): a token id", i, 0)
        if self.token_ids and self.folded:
            raise ArgumentError("sinks takes token_ids or folded, not both: a folded sink keeps no token of the text")
        if self.folded:
            if self.n not in (1, 4):
                raise ArgumentError(f"a folded sink is one constant; leave n out (got {self.n})")
            object.__setattr__(self, "n", 1)
        whole("sinks(n): n", self.n)

    @property
    def slots(self) -> int:
        """How many tokens."""
        return self.n

    @property
    def wants_ids(self) -> bool:
        """Only to find certain ids."""
        return bool(self.token_ids)

    @property
    def by_count(self) -> bool:
        """The first of the text, or none of it."""
        return not self.token_ids

    def pins(self, positions: Int[Tensor, "b c"], ids: Int[Tensor, "b c"] | None) -> Bool[Tensor, "b c"]:
        """The first tokens, or those with the ids."""
        if self.folded:
            return torch.zeros_like(positions, dtype=torch.bool)
        if not self.token_ids:
            return (positions >= 0) & (positions < self.n)
        if ids is None:
            raise ArgumentError(f"{self} has to know the tokens; give the model input_ids, not inputs_embeds")
        wanted = torch.tensor(self.token_ids, device=ids.device)
        return torch.isin(ids, wanted) & (positions >= 0)
