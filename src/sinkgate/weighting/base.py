"""What a weighting is: scores of one query row → weights, and what it promises about them.

A weighting is a small frozen value. Its whole mathematics is one differentiable method, :meth:`Weighting.weights`;
everything else (blocks, kernels, tables, the conformance suite) follows from that and from what it declares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkgate.errors import ArgumentError

__all__ = ["Mass", "Value", "Weighting", "field_names", "learnable", "per_head", "per_row", "row_count"]

Mass = Literal["one", "at most one", "free"]  # what the weights of a row that sees something sum to


@runtime_checkable
class Weighting(Protocol):
    """The protocol of a weighting; :class:`Value` gives all but the maths to a dataclass.

    Attributes:
        name: the registry's name.
        mass: ``"one"``, ``"at most one"`` or ``"free"``: Σ of the weights of a row that sees a key. A row that
            sees none has weights 0 and mass 0, whatever is declared here.
        shift_invariant: adding a constant to all scores of a row changes nothing.
        exact_zeros: a visible key can have weight exactly 0.
    """

    name: ClassVar[str]

    @property
    def mass(self) -> Mass: ...  # noqa: D102

    @property
    def shift_invariant(self) -> bool: ...  # noqa: D102

    @property
    def exact_zeros(self) -> bool: ...  # noqa: D102

    def weights(self, scores: Float[Tensor, "*b h t s"], visible: Bool[Tensor, "*#b #h #t s"] | None) -> Tensor:
        """Weights of the same shape and dtype; 0 where ``visible`` is False, whatever the score there.

        Differentiable (twice is not needed) in the scores and in the weighting's own tensors.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The fields that hold tensors (learned parameters), by name."""
        ...

    def with_tensors(self, **tensors: Tensor) -> Weighting:
        """The same weighting with these fields replaced."""
        ...

    def for_rows(self, i0: int, i1: int, rows: int) -> Weighting:
        """The same weighting for queries ``i0:i1`` of ``rows``; another one only where a field has an entry per row."""
        ...


def learnable(default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field that takes a float or a tensor (0-d, or one entry per head) and gets gradients."""
    return dataclasses.field(default=default, metadata={"learnable": True})


def field_names(weighting: Any) -> list[str]:
    """Names of the learnable fields, in the order of their declaration."""
    return [f.name for f in dataclasses.fields(weighting) if f.metadata.get("learnable")]


class Value:
    """Base of our weightings: promises as class attributes, tensors among the fields, a JSON round trip.

    Class attributes:
        formula: the weights in one line.
        source: where they come from.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    mass: Mass = "one"
    shift_invariant: bool = True
    exact_zeros: bool = False

    def weights(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """See :meth:`Weighting.weights`."""
        raise NotImplementedError

    def tensors(self) -> dict[str, Tensor]:
        """See :meth:`Weighting.tensors`."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {f.name: v for f in fields if isinstance(v := getattr(self, f.name), Tensor)}

    def with_tensors(self, **tensors: Tensor) -> Any:
        """See :meth:`Weighting.with_tensors`."""
        return self if not tensors else dataclasses.replace(self, **tensors)  # type: ignore[type-var]

    def for_rows(self, i0: int, i1: int, rows: int) -> Any:
        """The same weighting for queries ``i0:i1`` of ``rows``; another one only where a field has an entry per row."""
        return self

    def to_json(self) -> dict[str, Any]:
        """``{"name": …, field: value, …}``; plain JSON types.

        Raises:
            ArgumentError: a field holds a tensor that needs gradients: a parameter belongs to a module's
                ``state_dict``, not to a configuration.
        """
        config: dict[str, Any] = {"name": self.name}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                if value.requires_grad:
                    raise ArgumentError(
                        f"{type(self).__name__}.{field.name} is a tensor that is being learned and has no place in a "
                        "configuration: save the module's state_dict, or pass its .detach()"
                    )
                value = value.tolist()
            config[field.name] = value
        return config

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            a, b = getattr(self, field.name), getattr(other, field.name)
            if isinstance(a, Tensor) or isinstance(b, Tensor):
                same = isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
                if not (same and torch.equal(a.double(), b.double())):
                    return False
            elif a != b:
                return False
        return True

    def __hash__(self) -> int:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return hash((type(self), *(v if not isinstance(v := getattr(self, f.name), Tensor) else id(v) for f in fields)))

    def checked(self, field: str, ok: Callable[[Tensor], Tensor], need: str) -> None:
        """Raise unless every entry of a learnable field passes ``ok``; names the field, what came and what would do."""
        value = getattr(self, field)
        if isinstance(value, list | tuple):  # from JSON
            value = torch.tensor(value, dtype=torch.float64)
            object.__setattr__(self, field, value)
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            raise ArgumentError(f"{field} must be a number or a tensor, got {type(value).__name__}")
        tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        if tensor.is_meta or _is_traced(tensor):
            return
        if not bool(ok(tensor).all()):
            got = value if not isinstance(value, Tensor) else tensor[~ok(tensor)].reshape(-1)[0].item()
            raise ArgumentError(f"{field} must be {need}, got {got}")


def _is_traced(tensor: Tensor) -> bool:
    """Whether the numbers cannot be looked at: inside ``torch.compile``, ``export`` or ``vmap``."""
    from torch._subclasses.fake_tensor import FakeTensor

    return (
        torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or torch._C._functorch.is_batchedtensor(tensor)
    )


def per_head(value: float | Tensor, scores: Tensor, name: str) -> float | Tensor:
    """A number as it is; a tensor ``[h]`` as ``[h, 1, 1]`` beside scores ``[…, h, t, s]``, in their dtype."""
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:
        return value.to(scores.dtype)
    heads = scores.shape[-3] if scores.ndim >= 3 else None
    if value.ndim != 1 or value.shape[0] != heads:
        there = f"{heads} heads" if heads is not None else f"scores of shape {list(scores.shape)}, which have no heads"
        raise ArgumentError(
            f"{name} must be a number or a tensor with one entry per head, got {list(value.shape)} for {there}"
        )
    return value.to(scores.dtype)[:, None, None]


def per_row(value: int | Tensor, scores: Tensor, name: str) -> int | Tensor:
    """A whole number as it is; ``[h]`` per head or ``[…, h, t]`` per row as something that broadcasts over keys."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    rows = scores.shape[:-1]
    if value.ndim == 1 and scores.ndim >= 3 and value.shape[0] == scores.shape[-3]:
        return value[:, None, None]
    try:
        fits = torch.broadcast_shapes(value.shape, rows) == rows
    except RuntimeError:
        fits = False
    if not fits:
        raise ArgumentError(
            f"{name} must be a number, one per head, or one per row ({list(rows)}), got {list(value.shape)}"
        )
    return value[..., None]


def row_count(scores: Tensor, visible: Tensor | None) -> float | Tensor:
    """How many keys each row sees, ``[…, t, 1]`` in the scores' dtype, at least 1."""
    if visible is None:
        return float(max(scores.shape[-1], 1))
    return visible.sum(-1, keepdim=True).clamp_min(1).to(scores.dtype)
