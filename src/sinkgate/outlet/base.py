"""What stands at one layer, and how a weight that starts near nothing is learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkgate.call import Extra

__all__ = ["START", "LayerOutlet", "Level", "Sizes", "StartsAtNothing"]

START = 1e-6  # the largest share an outlet takes of any row before training
LEAST = 1e-30  # what w is projected to: at 0 its logit would be −∞ and have no gradient


class Level(NamedTuple):
    """Where a head's log-sum-exps lie (less what the outlet's own key scores), over the queries of some text."""

    median: Float[Tensor, " h"]
    lowest: Float[Tensor, " h"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of one attention layer.

    Args:
        layer: which, from 0.
        dim: of the hidden state X that the attention module is given.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: of queries and keys.
        value_dim: of values.
    """

    layer: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int


class Seen:
    """What an outlet's hook noted of the pass under way; plain, since setting a module's attribute takes microseconds.

    Args:
        x: the layer's hidden state.
        rotation: cosines and sines of the queries' positions.
        show: while a reading wants them, called with a gate's values.
    """

    __slots__ = ("rotation", "show", "x")

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self.rotation: tuple[Tensor, Tensor] | None = None
        self.show: Callable[[Tensor], None] | None = None

    def __deepcopy__(self, memo: Any) -> Seen:
        return Seen()

    def __reduce__(self) -> Any:
        return Seen, ()


class LayerOutlet(nn.Module):
    """An outlet at one layer; registered at its attention module as ``sinkgate_outlet``.

    Args:
        sizes: of the layer.
        heads: the heads it is for; None: all.
    """

    on: Tensor
    adds_key = True  # whether it has something to say to an attention call

    def __init__(self, sizes: Sizes, heads: Sequence[int] | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        on = torch.zeros(sizes.heads, dtype=torch.bool)
        on[list(range(sizes.heads)) if heads is None else list(heads)] = True
        self.register_buffer("on", on)
        self.everywhere = bool(on.all())
        self.active = True  # False: the layer is what it was (sg.without_outlets)
        self.seen = Seen()

    def extra(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Extra | None:
        """The key it adds to an attention call, or None."""
        return None

    def gate_output(self, out: Float[Tensor, "b t h dv"]) -> Float[Tensor, "b t h dv"]:
        """Head outputs behind its gate."""
        return out

    def project(self) -> None:
        """Bring the parameters back to where they must be, after an update."""

    def for_model(self, like: Tensor) -> LayerOutlet:
        """On a tensor's device and in its dtype."""
        return self.to(like.device, like.dtype)

    def chosen(self) -> list[int]:
        """The heads it is for."""
        return [int(h) for h in self.on.nonzero().flatten()]


class StartsAtNothing(LayerOutlet):
    """An outlet that is scored: its logit is ``c_h + ln w_h`` (plus what its key says), with w ≥ 0 learned.

    A logit z near −∞ has no gradient, ``w = e^{z − c_h}`` from 1e−6 has: ``∂/∂w`` of the denominator is ``e^{c_h}``
    whatever w is (maths.md §5). There w starts at 1e−6; but a row whose log-sum-exp lies 10 under the median would then
    give 2% away, so w starts lower by as much as the lowest row lies under it. With Adam it leaves from there as fast.

    Args:
        sizes: see the base.
        heads: see the base.
        level: ``c_h`` is each head's median; with w = 1 the outlet takes half of such a row.
        start: the largest share of any row before training.
    """

    level: Tensor

    def __init__(self, sizes: Sizes, heads: Sequence[int] | None, level: Level, start: float = START) -> None:
        super().__init__(sizes, heads)
        self.register_buffer("level", torch.empty(sizes.heads))
        self.w = nn.Parameter(torch.empty(sizes.heads))
        self.set_level(level, start)

    @torch.no_grad()
    def set_level(self, level: Level, start: float) -> None:
        """``c_h``, and w from there."""
        self.level.copy_(level.median)
        self.w.copy_(start * (level.lowest - level.median).clamp_max(0).exp())
        self.project()

    def for_model(self, like: Tensor) -> LayerOutlet:
        """As the base does it, but w and its level have at least float32: half precision has no steps for a small w."""
        level, w = self.level, self._parameters.get("w")
        super().for_model(like)
        wide = torch.promote_types(like.dtype, torch.float32)
        self.level = level.to(like.device, wide)
        if w is not None:
            self.w = nn.Parameter(w.detach().to(like.device, wide))
        return self

    def logit(self) -> Float[Tensor, " h"]:
        """``c_h + ln w_h``; −∞ at heads it is not for. In float64 where w is."""
        z = self.level.to(self.w.dtype) + self.w.clamp_min(LEAST).log()
        return z if self.everywhere else torch.where(self.on, z, float("-inf"))

    @torch.no_grad()
    def project(self) -> None:
        """w ≥ 0, where there is a w."""
        if "w" in self._parameters:
            self.w.clamp_(min=LEAST)
