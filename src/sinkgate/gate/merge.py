"""A gate at G1 written into the query projection, the form in which public models store it; and the way back.

Qiu et al. 2025 (arXiv 2505.06708), ``Y' = Y ⊙ σ(x W_θᵀ + bias)`` before the output projection. Qwen3-Next in
transformers and the authors' code keep W_θ as further rows of ``q_proj``, in the two orders of
:data:`~sinkgate.gate.layout.LAYOUTS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.gate.layout import LAYOUTS, join_query_and_gate, split_query_and_gate
from sinkgate.gate.spec import Gate

__all__ = ["MergedGate", "merge_gate", "relayout", "split_gate"]


@dataclass(frozen=True, eq=False)
class MergedGate:
    """A layer's projections with the gate inside: ``attention(q) ⊙ σ(gate rows)``, then ``o_proj``.

    Made by :func:`merge_gate`, or by hand from a public model's weights for :func:`split_gate`.

    Args:
        q_weight: rows of queries and gate, ``heads × (head_dim + head_dim)``, or ``heads × (head_dim + 1)`` where the
            gate is per head.
        q_bias: of the same rows, or None.
        o_weight: of the output projection.
        layout: order of the rows, a name in ``LAYOUTS``.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: size of a head.
        elementwise: one gate value per component; else one per head.

    Raises:
        ArgumentError: shapes, layout and head counts that do not go together.
    """

    q_weight: Float[Tensor, "rows dim"]
    q_bias: Float[Tensor, " rows"] | None
    o_weight: Float[Tensor, "out h*d"]
    layout: str
    heads: int
    kv_heads: int
    head_dim: int
    elementwise: bool

    def __post_init__(self) -> None:
        _check_layout(self.layout)
        _check_heads(self.heads, self.kv_heads)
        rows = self.heads * (self.head_dim + (self.head_dim if self.elementwise else 1))
        _check_shape("q_weight", self.q_weight, (rows, None))
        if self.q_bias is not None:
            _check_shape("q_bias", self.q_bias, (rows,))
        _check_shape("o_weight", self.o_weight, (None, self.heads * self.head_dim))


def merge_gate(
    gate: Gate,
    q_weight: Float[Tensor, "h*d dim"],
    gate_weight: Float[Tensor, "features dim"] | None,
    o_weight: Float[Tensor, "out h*d"],
    *,
    heads: int,
    kv_heads: int,
    q_bias: Float[Tensor, " h*d"] | None = None,
    gate_bias: Float[Tensor, " features"] | None = None,
    layout: str = "per_head",
) -> MergedGate:
    """One layer's query projection with a fitted gate inside, and the output projection that goes with it.

    The public form is a bare sigmoid. ``preserve=b₀``, ``σ(b₀ + xW)/σ(b₀)``, therefore puts b₀ into the bias of the
    gate's rows and ``1/σ(b₀)`` into ``o_weight``: the same function up to rounding, a few units in the last place of
    each number of ``o_weight`` (in bfloat16 some 2⁻⁸ of it: merge in float32 where the layer must not move). The bias
    of the output projection, which the gate does not touch, stays as it is. ``o_weight`` must directly follow the
    gate: a norm between them would undo the factor. All else is exact: a shared gate is repeated for every head, and a
    gate that ignores the input becomes rows of weight 0 with its logits as bias.

    Args:
        gate: multiplicative sigmoid at G1.
        q_weight: of ``q_proj``, ``head_dim`` rows per head.
        gate_weight: W_θ, ``gate.features(…)`` rows; None where ``gate.input_dependent`` is False.
        o_weight: of ``o_proj``.
        heads: query heads.
        kv_heads: key-value heads.
        q_bias: of ``q_proj``.
        gate_bias: of the gate's logits, without b₀; the logits themselves where ``gate.input_dependent`` is False.
        layout: order of the merged rows, a name in ``LAYOUTS``: ``"per_head"`` for transformers, ``"per_group"`` for
            the authors' code.

    Returns:
        Detached tensors of the dtype given. ``q_bias`` is None only where no bias is needed, so a model without one
        needs it switched on (``attention_bias=True`` in transformers, with zeros in the other projections).
        ``o_weight`` shares memory with the argument where there is no b₀.

    Raises:
        UnsupportedError: a gate that the public form cannot state: other position or activation, or additive.
        ArgumentError: shapes, dtypes or devices that do not go together; an unknown layout; ``gate_weight`` or the
            logits missing.
        NonFiniteError: ``o_weight / σ(b₀)`` leaves the dtype's range.
    """
    _check_mergeable(gate)
    _check_layout(layout)
    _check_heads(heads, kv_heads)
    _check_shape("q_weight", q_weight, (None, None))
    rows, dim = q_weight.shape
    if rows % heads:
        raise ArgumentError(f"q_weight must have a multiple of heads={heads} rows, got {rows}")
    features = gate.features(dim, heads, kv_heads, rows // heads)
    if not gate.input_dependent:
        if gate_weight is not None or gate_bias is None:
            raise ArgumentError("input_dependent=False: pass gate_weight=None and the gate's logits as gate_bias")
        gate_weight = q_weight.new_zeros(features, dim)
    elif gate_weight is None:
        raise ArgumentError("gate_weight is None, which only a gate with input_dependent=False may have")
    _check_shape("gate_weight", gate_weight, (features, dim))
    _check_shape("o_weight", o_weight, (None, rows))
    given = {"q_weight": q_weight, "gate_weight": gate_weight, "o_weight": o_weight}
    for name, bias, size in (("q_bias", q_bias, rows), ("gate_bias", gate_bias, features)):
        if bias is not None:
            _check_shape(name, bias, (size,))
            given[name] = bias
    _check_same_kind(given)

    def join(q: Tensor, g: Tensor) -> Tensor:
        q = q.detach().movedim(0, -1).unflatten(-1, (heads, -1))
        g = g.detach().movedim(0, -1).unflatten(-1, (1 if gate.shared else heads, -1))
        g = g.expand(*g.shape[:-2], heads, -1)
        return join_query_and_gate(q, g, kv_heads=kv_heads, layout=layout).movedim(-1, 0).contiguous()

    bias, out = None, o_weight.detach()
    if q_bias is not None or gate_bias is not None or gate.preserve:
        g = q_weight.new_zeros(features) if gate_bias is None else gate_bias
        bias = join(q_weight.new_zeros(rows) if q_bias is None else q_bias, g + (gate.preserve or 0.0))
    if gate.preserve is not None:
        held = torch.tensor(gate.preserve, dtype=q_weight.dtype).double()  # b₀ as the bias above holds it
        out = out / torch.sigmoid(held).item()
        if not bool(out.isfinite().all()):
            raise NonFiniteError(f"o_weight / σ({gate.preserve}) is not finite in {out.dtype}: merge in a wider dtype")
    return MergedGate(
        q_weight=join(q_weight, gate_weight), q_bias=bias, o_weight=out, layout=layout, heads=heads, kv_heads=kv_heads,
        head_dim=rows // heads, elementwise=gate.elementwise,
    )  # fmt: skip


def split_gate(
    merged: MergedGate,
) -> tuple[
    Float[Tensor, "h*d dim"],
    Float[Tensor, "features dim"],
    Float[Tensor, " h*d"] | None,
    Float[Tensor, " features"] | None,
]:
    """Query and gate weights, query and gate biases: the rows that were merged, bit for bit.

    They belong to ``Gate(elementwise=merged.elementwise)`` with ``merged.o_weight``: b₀ of a ``preserve`` is part of
    the gate's bias, a shared gate comes back once per head, and a bias that only one side had is zero on the other.

    Returns:
        ``q_weight``, ``gate_weight``, ``q_bias``, ``gate_bias``; the biases None where ``merged.q_bias`` is.
    """

    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        q, gate = split_query_and_gate(
            x.movedim(0, -1), heads=merged.heads, kv_heads=merged.kv_heads, head_dim=merged.head_dim,
            elementwise=merged.elementwise, layout=merged.layout,
        )  # fmt: skip
        return q.flatten(-2).movedim(-1, 0).contiguous(), gate.flatten(-2).movedim(-1, 0).contiguous()

    q_weight, gate_weight = split(merged.q_weight)
    q_bias, gate_bias = (None, None) if merged.q_bias is None else split(merged.q_bias)
    return q_weight, gate_weight, q_bias, gate_bias


def relayout(
    q_weight_or_bias: Shaped[Tensor, "rows ..."],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    elementwise: bool,
    layout_from: str,
    layout_to: str,
) -> Shaped[Tensor, "rows ..."]:
    """A merged projection's rows in the other order: a permutation, bit for bit, of any dtype.

    Args:
        q_weight_or_bias: merged weight ``[rows, dim]`` or bias ``[rows]``.
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: size of a head.
        elementwise: one gate value per component; else one per head.
        layout_from: the order it has, a name in ``LAYOUTS``.
        layout_to: the order it gets.

    Raises:
        ArgumentError: an unknown layout, or a shape that is not that of such a projection.
    """
    x = q_weight_or_bias
    _check_layout(layout_from)
    _check_layout(layout_to)
    _check_heads(heads, kv_heads)
    rows = heads * (head_dim + (head_dim if elementwise else 1))
    _check_shape("q_weight_or_bias", x, (rows,) if x.ndim == 1 else (rows, None))
    q, gate = split_query_and_gate(
        x.movedim(0, -1), heads=heads, kv_heads=kv_heads, head_dim=head_dim, elementwise=elementwise, layout=layout_from
    )
    return join_query_and_gate(q, gate, kv_heads=kv_heads, layout=layout_to).movedim(-1, 0).contiguous()


def _check_mergeable(gate: Gate) -> None:
    for name, wanted in (("position", "G1"), ("activation", "sigmoid"), ("additive", False)):
        if (got := getattr(gate, name)) != wanted:
            raise UnsupportedError(
                f"only Y ⊙ σ(x W_θᵀ + bias) at G1 can be merged into q_proj (position='G1', activation='sigmoid', "
                f"additive=False), got {name}={got!r}: keep this gate as a module of its own"
            )


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")


def _check_heads(heads: int, kv_heads: int) -> None:
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ArgumentError(f"kv_heads must divide heads, got heads={heads}, kv_heads={kv_heads}")


def _check_shape(name: str, x: Tensor, wanted: tuple[int | None, ...]) -> None:
    """None stands for any size."""
    if x.ndim != len(wanted) or any(w is not None and w != n for w, n in zip(wanted, x.shape, strict=True)):
        sizes = ", ".join("any" if w is None else str(w) for w in wanted)
        raise ArgumentError(f"{name} must be [{sizes}], got {list(x.shape)}")


def _check_same_kind(given: dict[str, Tensor]) -> None:
    kinds = {name: f"{x.dtype} on {x.device}" for name, x in given.items()}
    if len(set(kinds.values())) > 1 or not given["q_weight"].is_floating_point():
        listed = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise ArgumentError(f"the weights must have one floating dtype on one device, got {listed}: convert them first")
