"""What one arm of a comparison changes in a model: its weighting, its gate, and what stands beside them.

``"softmax + g1"``, ``"softpick"``, ``"softmax + window(128) + keep(4)"``, ``"softmax + sink_token"``,
``"sigmoid(bias=-4) + g1_head"``, ``"softmax + g1_head(preserve=2) + outlet_lr(3)"``: a weighting, then what is added, in
any order.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.gate import Gate
from sinkgate.weighting import REGISTRY, Weighting, as_weighting, from_json
from sinkgate.weighting.softmax import Softmax

__all__ = ["ADDITIONS", "GATES", "Arm", "as_arm", "number_text", "split_arms", "split_text"]

# name in an arm's text → the gate
GATES: dict[str, Gate] = {
    "g1": Gate("G1"),
    "g1_head": Gate("G1", elementwise=False),
    "g1_shared": Gate("G1", shared=True),
    "g1_silu": Gate("G1", activation="silu"),
    "g1_half": Gate("G1", activation="half_sigmoid"),
    "g1_constant": Gate("G1", input_dependent=False),
    "g2": Gate("G2"),
    "g2_head": Gate("G2", elementwise=False),
    "g3": Gate("G3"),
    "g4": Gate("G4"),
    "g5": Gate("G5"),
}

_GATE_LINES = {
    "g1": "σ(XW) on each component of the head outputs",
    "g1_head": "one value per head",
    "g1_shared": "the same for all heads",
    "g1_silu": "with SiLU for the sigmoid",
    "g1_half": "½ + ½σ, which never closes",
    "g1_constant": "logits that no input moves",
    "g2": "on the values",
    "g2_head": "on the values, one per key-value head",
    "g3": "on the keys",
    "g4": "on the queries",
    "g5": "behind the output projection",
}

# name in an arm's text → what it does there; with its argument's default where it takes one
ADDITIONS: dict[str, str] = {
    "window(n)": "a query sees the last n keys, its own included",
    "keep(n)": "under a window, the first n keys stay visible",
    "sink_token(n=1)": "n learned vectors stand before every sequence (StreamingLLM, arXiv 2309.17453)",
    "head_norm": "each head's output is RMS-normalised before the output projection (arXiv 2605.06611)",
    "qk_norm": "queries and keys are RMS-normalised per head before the rotation",
    "wider(gate)": "no gate, but its parameters spent on a wider MLP: the control of a gate",
    "outlet_lr(m)": "what the arm adds to softmax learns at m times the rate of the rest",
    **{name: f"gate: {_GATE_LINES[name]}" for name in GATES},
}


@dataclass(frozen=True)
class Arm:
    """One arm of a comparison.

    Args:
        weighting: scores → weights.
        gate: on the output of attention (or where it says), or None.
        window: keys that a query sees; None: all before it.
        keep: first keys that stay visible under the window.
        sink_tokens: learned vectors before every sequence.
        head_norm: RMS norm over each head's output, with a gain per component.
        qk_norm: RMS norm over queries and keys per head.
        wider: a gate that is not there, but whose parameters the MLP has.
        outlet_lr: learning rate of the parameters that plain softmax does not have, in times that of the rest.

    Raises:
        ArgumentError: a value is out of range, or two parts do not go together.
    """

    weighting: Weighting = field(default_factory=Softmax)
    gate: Gate | None = None
    window: int | None = None
    keep: int = 0
    sink_tokens: int = 0
    head_norm: bool = False
    qk_norm: bool = False
    wider: Gate | None = None
    outlet_lr: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighting", as_weighting(self.weighting))
        for name, least in (("keep", 0), ("sink_tokens", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise ArgumentError(f"window must be a whole number of at least 1, got {self.window!r}")
        if self.keep and self.window is None:
            raise ArgumentError(f"keep({self.keep}) keeps first keys visible under a window, and there is no window")
        if self.gate is not None and self.wider is not None:
            raise ArgumentError("wider(…) stands for a gate that is not there: give a gate or wider, not both")
        rate = self.outlet_lr
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise ArgumentError(f"outlet_lr must be a finite number of 0 or more, got {rate!r}")
        for name in ("gate", "wider"):
            if not isinstance(getattr(self, name), Gate | None):
                raise ArgumentError(f"{name} must be a Gate or None, got {type(getattr(self, name)).__name__}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; ``outlet_lr`` only where it is not 1."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        if self.outlet_lr == 1:  # records from before there was one stay the same
            del data["outlet_lr"]
        return data | {
            "weighting": self.weighting.to_json(),  # type: ignore[attr-defined]
            "gate": None if self.gate is None else self.gate.to_json(),
            "wider": None if self.wider is None else self.wider.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Arm:
        """The inverse of :meth:`to_json`.

        Raises:
            ArgumentError: not an arm's description.
        """
        if not isinstance(data, dict) or "weighting" not in data:
            raise ArgumentError(f"an arm's description is an object with a weighting, got {data!r}")
        gates = {name: None if data.get(name) is None else Gate(**data[name]) for name in ("gate", "wider")}
        try:
            return cls(**{**data, **gates, "weighting": from_json(data["weighting"])})
        except TypeError as err:
            raise ArgumentError(f"{data!r} is no arm: {err}") from None

    def __str__(self) -> str:
        parts = [_weighting_text(self.weighting)]
        if self.gate is not None:
            parts.append(_gate_text(self.gate))
        parts += [f"{n}({x})" for n, x in (("window", self.window), ("keep", self.keep)) if x]
        if self.sink_tokens:
            parts.append("sink_token" if self.sink_tokens == 1 else f"sink_token({self.sink_tokens})")
        parts += [name for name in ("head_norm", "qk_norm") if getattr(self, name)]
        if self.wider is not None:
            parts.append(f"wider({_gate_text(self.wider)})")
        if self.outlet_lr != 1:
            parts.append(f"outlet_lr({number_text(self.outlet_lr)})")
        return " + ".join(parts)


def as_arm(arm: str | Arm | Weighting) -> Arm:
    """An arm from its text, a weighting, or itself.

    Raises:
        ArgumentError: unknown or malformed; the message lists what there is.
    """
    if isinstance(arm, Arm):
        return arm
    if not isinstance(arm, str):
        return Arm(as_weighting(arm))
    try:
        tree = ast.parse(arm.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArgumentError(f"cannot read the arm {arm!r}; {_grammar()}") from None
    first, *rest = _summands(tree)
    name, args, named = _part(first, arm)
    if name not in REGISTRY:
        what = "an arm begins with its weighting" if name in GATES or name in _MODIFIERS else f"no weighting {name!r}"
        raise ArgumentError(f"{what} (in {arm!r}); {_grammar()}")
    if args:
        raise ArgumentError(f"write the fields of {name} by name, as in entmax(alpha=1.5) (in {arm!r})")
    weighting = from_json({"name": name, **REGISTRY[name][1], **named})
    fields: dict[str, Any] = {}
    for node in rest:
        name, args, named = _part(node, arm)
        if name in GATES and not args and named.keys() <= {"preserve"}:
            found: dict[str, Any] = {"gate": _gate(name, named, arm)}
        elif name in _MODIFIERS:
            try:
                found = _MODIFIERS[name](*args, **named)
            except TypeError:
                raise ArgumentError(f"{name} does not take that (in {arm!r}); {_grammar()}") from None
        else:
            raise ArgumentError(f"no addition {name!r} (in {arm!r}); {_grammar()}")
        if twice := fields.keys() & found.keys():
            raise ArgumentError(f"{', '.join(twice)} is given twice in {arm!r}")
        fields |= found
    return Arm(weighting, **fields)


def split_arms(text: str) -> list[Arm]:
    """Arms from a list such as ``"softmax, softmax+g1, softmax+window(128)"``: split at commas outside brackets.

    Raises:
        ArgumentError: an arm is malformed, empty, or there twice.
    """
    arms = [as_arm(part) for part in split_text(text)]
    if len(set(map(str, arms))) < len(arms):
        raise ArgumentError(f"an arm is there twice in {text!r}; name each once")
    return arms


def split_text(text: str) -> list[str]:
    """The parts of a list of arms, split at commas outside brackets.

    Raises:
        ArgumentError: one is empty.
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if not all(part.strip() for part in parts):
        raise ArgumentError(f"an arm is empty in {text!r}; name each between two commas")
    return parts


# ---- private -----------------------------------------------------------------------------------------------------


def _wider(gate: Any) -> dict[str, Any]:
    if gate not in GATES:
        raise ArgumentError(f"wider(gate) takes one of {', '.join(GATES)}, got {gate!r}")
    return {"wider": GATES[gate]}


def _gate(name: str, named: dict[str, Any], arm: str) -> Gate:
    start = named.get("preserve")
    if start is not None and (
        isinstance(start, bool) or not isinstance(start, int | float) or not math.isfinite(start)
    ):
        raise ArgumentError(f"preserve must be a finite number, got {start!r} (in {arm!r})")
    return GATES[name] if start is None else dataclasses.replace(GATES[name], preserve=float(start))


_MODIFIERS: dict[str, Any] = {
    "window": lambda n: {"window": n},
    "keep": lambda n: {"keep": n},
    "sink_token": lambda n=1: {"sink_tokens": n},
    "head_norm": lambda: {"head_norm": True},
    "qk_norm": lambda: {"qk_norm": True},
    "wider": _wider,
    "outlet_lr": lambda m: {"outlet_lr": m},
}


def _grammar() -> str:
    return (
        f"an arm is a weighting ({', '.join(REGISTRY)}; fields as in sigmoid(bias=-4)) and what is added with +: "
        f"{', '.join(ADDITIONS)}; a gate that is 1 at its start: g1_head(preserve=2)"
    )


def _summands(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_summands(node.left), *_summands(node.right)]
    return [node]


def _part(node: ast.AST, text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Name and arguments of ``name`` or ``name(1, field=2)``."""
    if isinstance(node, ast.Name):
        return node.id, (), {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and all(k.arg for k in node.keywords):
        args = tuple(_value(x, text) for x in node.args)
        return node.func.id, args, {str(k.arg): _value(k.value, text) for k in node.keywords}
    raise ArgumentError(f"cannot read the arm {text!r}; {_grammar()}")


def _value(node: ast.AST, text: str) -> Any:
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "none": None}.get(node.id.lower(), node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ArgumentError(f"cannot read the arm {text!r}; {_grammar()}") from None


def _weighting_text(weighting: Weighting) -> str:
    """As short as it can be: a field is named only where it is not what the bare name stands for."""
    usual = as_weighting(weighting.name) if weighting.name in REGISTRY else None
    fields = []
    for name, value in weighting.to_json().items():  # type: ignore[attr-defined]
        if name != "name" and (usual is None or usual.to_json().get(name) != value):  # type: ignore[attr-defined]
            fields.append(f"{name}={value}")
    return f"{weighting.name}({', '.join(fields)})" if fields else weighting.name


def _gate_text(gate: Gate) -> str:
    plain = dataclasses.replace(gate, preserve=None)
    start = "" if gate.preserve is None else f"(preserve={number_text(gate.preserve)})"
    return next((name + start for name, spec in GATES.items() if spec == plain), repr(gate))


def number_text(x: float) -> str:
    """As short as it can be without losing a digit."""
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)
