"""Weights in few bits: four ways to spend the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sinkgate.errors import ArgumentError
from sinkgate.hf import compat
from sinkgate.hf.head_parts import LayerParts, Spans
from sinkgate.hf.layers import decoder_blocks
from sinkgate.hf.linears import find_linears
from sinkgate.hf.quantized_mixed import Part
from sinkgate.planning.quantization_found import Group, Outliers, outliers, promoted
from sinkgate.planning.quantization_record import CONTROL, Arms, Planned
from sinkgate.planning.quantization_spec import WeightSpec
from sinkgate.quantization import Quantization
from sinkgate.record import Diagnosis

__all__ = ["Matrix", "fitting", "matrices", "matrix_bytes", "uncounted_bytes", "weight_arms", "weight_bytes"]

SCALE = 2  # bytes of a scale
ITEM = 2  # bytes of a number that is not quantised
MORE = Quantization(8, granularity="channel")
COARSEST = 2  # doublings: groups become at most four times as large


@dataclass(frozen=True)
class Matrix:
    """A linear layer's weight ``[rows, columns]``: outputs and inputs."""

    name: str
    rows: int
    columns: int


def matrices(model: nn.Module) -> list[Matrix]:
    """The weights that are quantised, in the order of the model: every linear layer but the one to the vocabulary."""
    found = []
    for layer in find_linears(model).linears:
        assert layer.weight is not None
        rows, columns = layer.weight.shape[::-1] if layer.transposed else layer.weight.shape
        found.append(Matrix(layer.name, int(rows), int(columns)))
    return found


def uncounted_bytes(model: nn.Module) -> int:
    """Bytes of the parameters that no arm quantises, shared ones once, at 2 bytes a number."""
    return ITEM * (sum(p.numel() for p in model.parameters()) - sum(m.rows * m.columns for m in matrices(model)))


def fitting(columns: int, group: int, bits: int) -> Quantization:
    """The least group of at least this size that divides a row; the whole row where there is none."""
    size = next((n for n in range(group, columns) if columns % n == 0), columns)
    return Quantization(bits, granularity="channel") if size == columns else Quantization(bits, group=size)


def matrix_bytes(rows: int, columns: int, how: Quantization) -> int:
    """Bytes of so many numbers in one quantization, packed, with a scale of 2 bytes for each group or row.

    Raises:
        ArgumentError: one that is not symmetric, or whose scales are not counted here.
    """
    if not how.symmetric or how.granularity not in ("channel", "group"):
        raise ArgumentError(f"bytes are counted of symmetric weights per channel or in groups, got {how}")
    scales = rows if how.group is None else rows * (columns // how.group)
    return -(-rows * columns * how.bits // 8) + (scales * SCALE if columns else 0)


def weight_bytes(found: Sequence[Matrix], spec: WeightSpec) -> int:
    """Bytes of all the weights a spec names, parts by themselves; the prefix is not counted."""
    hows, total = dict(spec.modules), 0
    for m in found:
        if m.name not in hows:
            continue
        mine = [p for p in spec.parts if p.module == m.name]
        rows, columns = _left(m, mine)
        total += matrix_bytes(rows, columns, hows[m.name]) if rows and columns else 0
        for p in mine:
            total += matrix_bytes(*((p.count, m.columns) if p.axis == "rows" else (m.rows, p.count)), p.how)
    return total


def weight_arms(
    model: nn.Module, diagnosis: Diagnosis | None, parts: list[LayerParts], *, bits: int, group: int, first: int
) -> Arms:
    """The arms: what is in 8 bits, or kept beside the weights, is paid for by larger groups elsewhere.

    Groups get at most four times as large, and no larger than is needed: what does not fit is not in more bits. The middle of
    the model pays first, since the first and the last layers are the sensitive ones (which is why llama.cpp's mixes give these
    more bits); that is the same rule in all arms.

    Args:
        model: with linear layers.
        diagnosis: None: what needs it is skipped, with the reason.
        parts: of the model's attention layers.
        bits: 2 to 7.
        group: of ``uniform``.
        first: tokens whose keys and values the full model makes in ``preserve-first-n``.
    """
    found = matrices(model)
    uniform = WeightSpec(tuple((m.name, fitting(m.columns, group, bits)) for m in found))
    limit = weight_bytes(found, uniform)
    arms = Arms()
    arms.add(Planned("uniform", f"all in {bits} bits, groups of {group} or the next that divides", uniform, limit))
    plan = _Paid(found, bits, group, limit)

    extra = first * sum(p.kv_numbers for p in parts) * ITEM
    name = f"preserve-first-{first}"
    spec = plan.spec((), extra)
    if spec is None:
        arms.skipped[name] = f"{extra:,} bytes of keys and values cannot be paid for by larger groups"
    else:
        words = (
            f"the same, the keys and values of the first {first} tokens made by the full-precision model: "
            f"{extra:,} bytes, counted; for texts that do not begin alike that model has to be kept too"
        )
        spec = WeightSpec(spec.modules, prefix=first)
        arms.add(Planned(name, words, spec, weight_bytes(found, spec) + extra))
    if diagnosis is None:
        arms.skipped |= dict.fromkeys(("sink-aware", "per-head"), "there is no record: give a diagnosis of this model")
        return arms
    try:
        there = outliers(diagnosis)
        made = {module for p in parts for module, _ in p.made}
        _by_layer(arms, plan, there, _carriers(model, found, there, made))
    except ArgumentError as err:
        arms.skipped["sink-aware"] = str(err)
    try:
        chosen = promoted(diagnosis, parts)
        known = {p.layer: p for p in parts}
        count = _by_head(
            arms, plan, "per-head", f"{chosen.words}: their rows and columns in 8 bits", chosen.groups, known
        )
        if count and chosen.others:
            _by_head(arms, plan, CONTROL, "as many other key-value heads in 8 bits", chosen.others[:count], known)
    except ArgumentError as err:
        arms.skipped.setdefault("per-head", str(err))
    return arms


def _by_layer(arms: Arms, plan: _Paid, there: Outliers, carriers: list[Matrix]) -> None:
    taken: list[Part] = []
    for m in carriers:
        more = [*taken, Part(m.name, "rows", ((0, m.rows),), MORE)]
        if plan.spec(more) is not None:
            taken = more
    if not taken:
        raise ArgumentError(
            f"none of {', '.join(m.name for m in carriers)} fits in 8 bits: smaller groups leave more room"
        )
    spec = plan.spec(taken)
    assert spec is not None
    whole = {p.module for p in taken}  # a weight that is wholly in 8 bits is no part
    spec = WeightSpec(tuple((n, MORE if n in whole else how) for n, how in spec.modules))
    where = f"behind block {there.first - 1}" if there.first else "in the embeddings"
    words = (
        f"massive activations (up to {there.largest:.3g}, channels {', '.join(map(str, there.channels))}) first stand {where}: "
        f"{len(taken)} of {len(carriers)} linear layers that write the stream there and where they end in 8 bits, larger groups elsewhere"
    )
    arms.add(Planned("sink-aware", words, spec, weight_bytes(plan.found, spec)))


def _carriers(model: nn.Module, found: list[Matrix], there: Outliers, made: set[str]) -> list[Matrix]:
    """The linear layers that write the stream in the block behind which the outliers first stand, and in the one that ends them.

    Raises:
        ArgumentError: no block makes them: they stand in the embeddings and stay to the end.
    """
    blocks = decoder_blocks(model)
    names = {id(m): n for n, m in model.named_modules()}
    width = compat.width(model)
    where = [i for i in (there.first - 1, there.last) if 0 <= i < len(blocks)]
    prefixes = [f"{names[id(blocks[i])]}." for i in where]
    carriers = [m for prefix in prefixes for m in found if m.name.startswith(prefix) and m.rows == width]
    # a square projection is as wide as the stream: that it makes queries, keys or values is known
    carriers = [m for m in carriers if m.name not in made]
    if not carriers:
        raise ArgumentError(
            "the massive activations stand in the embeddings and stay to the end: no linear layer makes them"
        )
    return carriers


def _by_head(
    arms: Arms, plan: _Paid, name: str, words: str, groups: Sequence[Group], known: dict[int, LayerParts]
) -> int:
    """The strongest heads that can be paid for; returns how many."""
    chosen: list[Group] = []
    for g in groups:
        layer = known[g.layer]
        if not layer.made or layer.output not in plan.names:
            continue
        if plan.spec(_parts([*chosen, g], known)) is None:
            break
        chosen.append(g)
    if not chosen:
        reason = next((known[g.layer].reason for g in groups if known[g.layer].reason), None)
        arms.skipped[name] = reason or "no head fits in 8 bits: smaller groups leave more room"
        return 0
    parts = _parts(chosen, known)
    spec = plan.spec(parts)
    assert spec is not None
    spec = WeightSpec(spec.modules, tuple(parts), heads=tuple((g.layer, g.kv_head) for g in chosen))
    left = "" if len(chosen) == len(groups) else f" ({len(chosen)} of them fit)"
    arms.add(Planned(name, f"{words}{left}, larger groups elsewhere", spec, weight_bytes(plan.found, spec)))
    return len(chosen)


def _parts(groups: Sequence[Group], known: dict[int, LayerParts]) -> list[Part]:
    """Rows that make the queries, keys and values of these heads, and columns that take their outputs."""
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for g in groups:
        layer = known[g.layer]
        share = layer.heads // layer.kv_heads
        queries = range(g.kv_head * share, (g.kv_head + 1) * share)
        for (module, rows), heads in zip(layer.made, (queries, (g.kv_head,), (g.kv_head,)), strict=True):
            spans.setdefault((module, "rows"), []).extend(s for h in heads for s in rows[h])
        assert layer.output is not None
        width = layer.output_width // layer.heads
        columns = [(h * width, (h + 1) * width) for h in queries]
        spans.setdefault((layer.output, "columns"), []).extend(columns)
    return [Part(module, axis, _merged(found), MORE) for (module, axis), found in spans.items()]


def _merged(spans: list[tuple[int, int]]) -> Spans:
    found: list[tuple[int, int]] = []
    for a, b in sorted(set(spans)):
        if found and found[-1][1] == a:
            found[-1] = (found[-1][0], b)
        else:
            found.append((a, b))
    return tuple(found)


def _left(m: Matrix, parts: Sequence[Part]) -> tuple[int, int]:
    """Rows and columns that no part takes."""
    taken = sum(p.count for p in parts)
    rows_of = not parts or parts[0].axis == "rows"
    return (m.rows - taken, m.columns) if rows_of else (m.rows, m.columns - taken)


@dataclass(frozen=True)
class _Paid:
    """Chooses the groups of what is not in more bits, so that the whole fits."""

    found: list[Matrix]
    bits: int
    group: int
    limit: int

    @property
    def names(self) -> set[Any]:
        return {m.name for m in self.found}

    def spec(self, parts: Sequence[Part], extra: int = 0) -> WeightSpec | None:
        """The finest groups that fit, with ``parts`` in more bits and ``extra`` bytes beside; None: none does."""
        mine = {m.name: [p for p in parts if p.module == m.name] for m in self.found}
        for doubled in range(COARSEST + 1):
            hows = {m.name: self._how(m, mine[m.name], doubled) for m in self.found}
            left = self.limit - extra - weight_bytes(self.found, WeightSpec(tuple(hows.items()), tuple(parts)))
            if left >= 0:
                break
        else:
            return None
        middle = (len(self.found) - 1) / 2
        ends = sorted(self.found, key=lambda m: -abs(self.found.index(m) - middle))
        for m in ends if doubled else ():  # finer groups again, from both ends of the model, as long as there is room
            rows, columns = _left(m, mine[m.name])
            finer = self._how(m, mine[m.name], doubled - 1)
            if rows and columns:
                costs = matrix_bytes(rows, columns, finer) - matrix_bytes(rows, columns, hows[m.name])
                if costs <= left:
                    hows[m.name], left = finer, left - costs
        return WeightSpec(tuple(hows.items()), tuple(parts))

    def _how(self, m: Matrix, parts: Sequence[Part], doubled: int) -> Quantization:
        columns = _left(m, parts)[1] or m.columns
        return fitting(columns, self.group << doubled, self.bits)
