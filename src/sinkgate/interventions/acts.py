"""What can be done to a sink while a model runs. Each act is a small frozen value with one method.

``positions`` count tokens of the text from 0 (padding in front is not counted). An act concerns the queries from
``burn_in`` on, when the sink has formed; a token never loses its own key or value, so no row is left empty.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.call import Call
from sinkgate.errors import ArgumentError
from sinkgate.interventions.constants import Constants

__all__ = ["BURN_IN", "ConstantGate", "Evict", "MeanValue", "ScalarGate", "SetMassive", "Transplant"]

BURN_IN = 64
TINY = 1e-30  # floor of a share that something is divided by; such a share counts as not seen

Run = Callable[[Call], Tensor]


@dataclass(frozen=True, eq=False)
class _AtKeys:
    """An act on some keys, for the queries behind them and behind the burn-in."""

    positions: tuple[int, ...] = (0,)
    burn_in: int = BURN_IN

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        where = self.positions
        object.__setattr__(self, "positions", (where,) if isinstance(where, int) else tuple(int(p) for p in where))
        if not self.positions or min(self.positions) < 0:
            raise ArgumentError(f"positions must be tokens counted from 0, at least one; got {self.positions}")
        if self.burn_in < 0:
            raise ArgumentError(f"burn_in must be 0 or more, got {self.burn_in}")

    def attend(self, call: Call, run: Run) -> Float[Tensor, "b h t dv"]:
        """The head outputs under the act."""
        if call.first is not None and call.first.unique().numel() > 1:  # rows that begin at different keys
            return torch.cat([self.attend(call.sample(b), run) for b in range(call.q.shape[0])])
        parts = []
        for i0, i1, positions in self._segments(call):
            part = call.rows(i0, i1)
            parts.append(self.change(part, positions, run) if positions else run(part))
        return torch.cat(parts, 2) if len(parts) > 1 else parts[0]

    def change(self, call: Call, positions: list[int], run: Run) -> Tensor:
        """The head outputs of queries that are all concerned."""
        raise NotImplementedError

    def _segments(self, call: Call) -> Iterator[tuple[int, int, list[int]]]:
        """Rows with the positions that are acted on for them: those behind the burn-in and behind the key itself."""
        start = call.position + call.gone - (0 if call.first is None else int(call.first[0]))
        end = start + call.q.shape[2]
        cuts = sorted({c for c in (self.burn_in, *(p + 1 for p in self.positions)) if start < c < end})
        for a, z in pairwise([start, *cuts, end]):
            positions = [p for p in self.positions if a >= max(self.burn_in, p + 1)]
            for i0, i1 in call.in_blocks(a - start, z - start):
                yield i0, i1, positions

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a record."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            "act": self.name,
            **{k: v for k, v in fields.items() if isinstance(v, int | float | str | bool | tuple)},
        }


@dataclass(frozen=True, eq=False)
class Evict(_AtKeys):
    """The keys are hidden: the gate is opened to 1 and the rest renormalised, as when a cache drops them.

    With ``burn_in=0`` the key is masked from the start, which is another thing: the next token becomes the first.
    """

    name: ClassVar[str] = "evict"

    def change(self, call: Call, positions: list[int], run: Run) -> Tensor:
        """See the base."""
        return run(call.without(call.marked(call.keys(positions))))


@dataclass(frozen=True, eq=False)
class ScalarGate(_AtKeys):
    """The weights stay, ``v_s`` becomes 0: ``p_s v_s`` is dropped and ``g Σβv`` kept (maths.md §2)."""

    name: ClassVar[str] = "scalar gate"

    def change(self, call: Call, positions: list[int], run: Run) -> Tensor:
        """See the base."""
        marked = call.marked(call.keys(positions))
        return run(call.having(v=call.v.masked_fill(marked[:, None, :, None], 0.0)))


@dataclass(frozen=True, eq=False)
class ConstantGate(_AtKeys):
    """``g`` becomes its mean over the concerned queries of the sample: ``(1−ḡ) v_s + ḡ Σβv``.

    What is lost is the gate's dependence on the query, and nothing else; with ``write=False`` what the sink writes is lost
    too, ``ḡ Σβv``, as under the scalar gate. A query that does not see the sink (a window) keeps its output. The mean looks
    at later queries too: this is a question put to the model, not a way to run it.
    """

    write: bool = True

    name: ClassVar[str] = "constant gate"

    def attend(self, call: Call, run: Run) -> Tensor:
        """See the base."""
        if call.first is not None and call.first.unique().numel() > 1:
            return torch.cat([self.attend(call.sample(b), run) for b in range(call.q.shape[0])])
        segments = list(self._segments(call))
        shares = [self._share(call.rows(i0, i1), positions, run) for i0, i1, positions in segments if positions]
        if not shares:
            return super().attend(call, run)
        p = torch.cat(shares, 2)
        seen = p > 0
        mean = p.sum(2, keepdim=True) / seen.sum(2, keepdim=True).clamp_min(1)
        parts = []
        for i0, i1, positions in segments:
            part = call.rows(i0, i1)
            if not positions:
                parts.append(run(part))
                continue
            here, p = p[:, :, : i1 - i0], p[:, :, i1 - i0 :]
            marked = part.marked(part.keys(positions))
            content, alone = run(part.without(marked)), part.only(marked)
            # beside a learned sink logit the sink alone has less than 1
            sink = run(alone).to(mean.dtype) / self._share(alone, positions, run).clamp_min(TINY)
            mixed = (1 - mean) * content.to(mean.dtype)
            if self.write:
                mixed = mixed + mean * sink
            parts.append(torch.where(here > 0, mixed.to(content.dtype), content))
        return torch.cat(parts, 2)

    def _share(self, call: Call, positions: list[int], run: Run) -> Float[Tensor, "b h t 1"]:
        """``p_s`` of every query, as the output of attention over a value that is 1 at the sink and 0 elsewhere."""
        marked = call.marked(call.keys(positions))
        one = marked[:, None, :, None].to(call.v.dtype).expand(-1, call.k.shape[1], -1, -1)
        extra = None if call.extra is None else dataclasses.replace(call.extra, value=None)
        return run(call.having(v=one, extra=extra)).to(torch.promote_types(call.v.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class Transplant(_AtKeys):
    """Key and value at one position become those captured elsewhere (:func:`sinkgate.interventions.capture`).

    At position 0 a causal model's key and value depend on the first token alone, so those of any other text fit there.

    Args:
        constants: keys and values per layer, captured at the same position (a key is rotated to where it stands).
        key: put in the key.
        value: put in the value.
    """

    constants: Constants | None = None
    key: bool = True
    value: bool = True

    name: ClassVar[str] = "transplant"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.constants is None:
            raise ArgumentError(
                f"{self.name} needs constants=, from sinkgate.interventions.capture(model, ids, positions)"
            )
        if len(self.positions) != 1:
            raise ArgumentError(f"{self.name} is for one position at a time, got {self.positions}")
        if self.key and self.positions[0] != self.constants.position:
            where = self.constants.position
            raise ArgumentError(
                f"these keys were captured at {'several positions' if where is None else f'position {where}'} and are "
                f"rotated to it; they cannot stand at {self.positions[0]} (key=False puts in the value alone)"
            )

    def change(self, call: Call, positions: list[int], run: Run) -> Tensor:
        """See the base."""
        assert self.constants is not None
        at = int(call.keys(positions)[0, 0])
        key, value = self.constants.at(call.layer, call.key_heads)
        if self.key:
            call = call.having(k=_put(call.k, at, key))
        if self.value:
            call = call.having(v=_put(call.v, at, value))
        return run(call)


@dataclass(frozen=True, eq=False)
class MeanValue(Transplant):
    """The value becomes a mean over other texts, the key stays: for sinks further in, whose keys are rotated."""

    key: bool = False

    name: ClassVar[str] = "mean value"


def _put(x: Tensor, at: int, row: Float[Tensor, "kv d"]) -> Tensor:
    if at >= x.shape[2]:
        return x
    x = x.clone()
    x[:, :, at] = row.to(x)
    return x


@dataclass(frozen=True, eq=False)
class SetMassive:
    """Massive activations of the residual stream set to 0 or to their mean (Sun et al. 2024, arXiv 2402.17762).

    After layer ``layer``, at every token where ``|h_d|`` of one of ``dimensions`` exceeds ``threshold``.

    Args:
        layer: the layer behind which they are changed: best the first where they stand.
        dimensions: which components.
        threshold: an entry over this counts as massive.
        values: what each becomes; None: 0.
        entries: change these ``(position, dimension)`` instead, whatever they hold (a control).
    """

    layer: int
    dimensions: tuple[int, ...] = ()
    threshold: float = 100.0
    values: tuple[float, ...] | None = None
    entries: tuple[tuple[int, int], ...] | None = None

    name: ClassVar[str] = "massive activations"

    def __post_init__(self) -> None:
        if self.values is not None and len(self.values) != len(
            self.dimensions if self.entries is None else self.entries
        ):
            raise ArgumentError("values must have one number for each of the dimensions (or entries)")
        if self.entries is None and not self.dimensions:
            raise ArgumentError("dimensions is empty: name the components that hold massive activations")

    def stream(self, hidden: Float[Tensor, "b t D"]) -> Float[Tensor, "b t D"]:
        """The hidden states under the act."""
        hidden = hidden.clone()
        values = self.values or (0.0,) * len(self.dimensions if self.entries is None else self.entries)
        if self.entries is not None:
            for (position, d), value in zip(self.entries, values, strict=True):
                if position < hidden.shape[1]:
                    hidden[:, position, d] = value
            return hidden
        for d, value in zip(self.dimensions, values, strict=True):
            column = hidden[..., d]
            hidden[..., d] = torch.where(column.abs() > self.threshold, value, column)
        return hidden

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, for a record."""
        return {"act": self.name, **dataclasses.asdict(self)}
