"""Arms of pilots on a trained model: an outlet, where it starts, and how fast it learns."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import number_text
from sinkgate.outlet import as_outlet, to_json
from sinkgate.outlet.registry import KINDS, Spec, from_json

__all__ = ["UNCHANGED", "OutletArm", "as_outlet_arm"]

UNCHANGED = "unchanged"


@dataclass(frozen=True)
class OutletArm:
    """What one arm adds to a trained model.

    Args:
        outlet: of :func:`sinkgate.add_outlet`; None: the model stays as it is.
        outlet_lr: the outlet's learning rate, in times that of the recipe.
        sink_lr: learning rate of what belongs to sink heads, in times that of the rest (``OutletConfig.multiplier``).

    Raises:
        ArgumentError: a multiplier is not a finite number of 0 or more (``outlet_lr``: above 0).
    """

    outlet: Spec | None = None
    outlet_lr: float = 1.0
    sink_lr: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("outlet_lr", "above 0"), ("sink_lr", "of 0 or more")):
            x = getattr(self, name)
            ok = isinstance(x, int | float) and not isinstance(x, bool) and 0 <= x < math.inf
            if not ok or (x == 0 and name == "outlet_lr"):
                raise ArgumentError(f"{name} must be a finite number {least}, got {x!r}")
        if self.outlet is not None:
            object.__setattr__(self, "outlet", as_outlet(self.outlet))
        elif (self.outlet_lr, self.sink_lr) != (1, 1):
            raise ArgumentError("an unchanged model has no outlet whose learning rate could be multiplied")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        outlet = None if self.outlet is None else to_json(self.outlet)
        return {"outlet": outlet, "outlet_lr": self.outlet_lr, "sink_lr": self.sink_lr}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> OutletArm:
        """The inverse of :meth:`to_json`.

        Raises:
            ArgumentError: not an arm's description.
        """
        if not isinstance(data, dict) or data.keys() != {"outlet", "outlet_lr", "sink_lr"}:
            raise ArgumentError(f"an arm's description has outlet, outlet_lr and sink_lr, got {data!r}"[:300])
        return cls(**{**data, "outlet": None if data["outlet"] is None else from_json(data["outlet"])})

    def __str__(self) -> str:
        if self.outlet is None:
            return UNCHANGED
        config = to_json(self.outlet)
        usual = to_json(as_outlet(config["kind"]))
        fields = [f"{n}={_text(x)}" for n, x in config.items() if x != usual[n]]
        parts = [f"{config['kind']}({', '.join(fields)})" if fields else config["kind"]]
        parts += [f"{n}({number_text(x)})" for n in ("outlet_lr", "sink_lr") if (x := getattr(self, n)) != 1]
        return " + ".join(parts)


def as_outlet_arm(arm: str | OutletArm | Spec) -> OutletArm:
    """An arm from its text, such as ``"gate(preserve=4) + outlet_lr(0.3)"``, from an outlet, or itself.

    Raises:
        ArgumentError: unknown or malformed; the message lists what there is.
    """
    if isinstance(arm, OutletArm):
        return arm
    if not isinstance(arm, str):
        return OutletArm(as_outlet(arm))
    try:
        tree = ast.parse(arm.strip(), mode="eval").body
        first, *rest = _summands(tree)
        kind, args, named = _part(first)
        found = [_part(node) for node in rest]
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise ArgumentError(f"cannot read the arm {arm!r}; {_grammar()}") from None
    if args or (kind != UNCHANGED and kind not in KINDS) or (kind == UNCHANGED and named):
        raise ArgumentError(f"no outlet {ast.unparse(first)!r} (in {arm!r}); {_grammar()}")
    rates: dict[str, Any] = {}
    for (name, values, fields), node in zip(found, rest, strict=True):
        if name not in ("outlet_lr", "sink_lr") or len(values) != 1 or fields or name in rates:
            raise ArgumentError(f"no addition {ast.unparse(node)!r} (in {arm!r}); {_grammar()}")
        rates[name] = values[0]
    if kind == UNCHANGED:
        return OutletArm(None, **rates)
    try:
        return OutletArm(from_json({"kind": kind, **KINDS[kind][1], **named}), **rates)
    except ArgumentError:
        raise
    except (TypeError, ValueError) as err:  # a field that is text where it should be a number
        raise ArgumentError(f"cannot read the arm {arm!r}: {err}") from None


# ---- private -----------------------------------------------------------------------------------------------------


def _summands(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _part(node: ast.AST) -> tuple[str, list[Any], dict[str, Any]]:
    """Name and arguments of ``name`` or ``name(1, field=2)``; ValueError for anything else."""
    if isinstance(node, ast.Name):
        return node.id, [], {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and all(k.arg for k in node.keywords):
        named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return node.func.id, [ast.literal_eval(x) for x in node.args], named
    raise ValueError("no name")


def _text(x: Any) -> str:
    return repr(x) if isinstance(x, str) or not isinstance(x, int | float) or isinstance(x, bool) else number_text(x)


def _grammar() -> str:
    return (
        f"an arm is {UNCHANGED} or an outlet ({', '.join(KINDS)}; fields as in gate(preserve=4)) and what is added with +: "
        "outlet_lr(m), sink_lr(m)"
    )
