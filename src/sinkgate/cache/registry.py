"""Policies by name: a new one is its file and one line here."""

from __future__ import annotations

import ast
from typing import Any

from sinkgate.cache.base import Policy, Sum
from sinkgate.cache.dynamic import Dynamic
from sinkgate.cache.heavy import HeavyHitters
from sinkgate.cache.per_head import PerHead, PerLayer
from sinkgate.cache.quantized import Quantized
from sinkgate.cache.recent import Dense, Recent
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError

__all__ = ["POLICIES", "as_policy", "budget", "from_json"]

POLICIES: dict[str, type[Policy]] = {
    p.name: p for p in (Recent, Sinks, HeavyHitters, Dense, PerHead, PerLayer, Dynamic, Quantized)
}
GRAMMAR = (
    "a policy is written as 'recent(1020) + sinks(4)', 'sinks(token_ids=[1, 2])', 'sinks(folded=1)', 'heavy(64)', 'dense', "
    "'budget(1024, sinks=4)', 'per_head(recent(252) + sinks(4), [[5, 3]], dense)', 'per_layer(…, [0, 1], …)', "
    "'dynamic(recent(252) + sinks(4), rule=\"head\")' or 'quantized(recent(252) + sinks(4), bits=4)'"
)


def budget(total: int, sinks: int = 4) -> Policy:
    """``sinks`` first tokens and as many recent ones as fit into ``total``.

    Raises:
        ArgumentError: no room is left for a recent token.
    """
    if not isinstance(total, int) or total <= sinks:
        raise ArgumentError(f"a budget of {total} tokens has no room for {sinks} sinks and at least one recent token")
    return Sum.of(Recent(total - sinks), Sinks(sinks)) if sinks else Recent(total)


def as_policy(policy: str | dict[str, Any] | Policy) -> Policy:
    """A policy from its text, its JSON or itself.

    Raises:
        ArgumentError: unknown or malformed; the message shows the grammar.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, dict):
        return from_json(policy)
    if not isinstance(policy, str):
        raise ArgumentError(f"a policy is a value such as Recent(1020) + Sinks(4) or its text, got {policy!r}")
    try:
        found = _read(ast.parse(policy.strip(), mode="eval").body, policy)
    except ArgumentError:  # which says what is wrong
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        raise ArgumentError(f"cannot read the policy {policy!r}; {GRAMMAR}") from err
    if not isinstance(found, Policy):
        raise ArgumentError(f"{policy!r} is no policy; {GRAMMAR}")
    return found


def from_json(data: Any) -> Policy:
    """The policy of :meth:`Policy.to_json`.

    Raises:
        ArgumentError: unknown or malformed.
    """
    found = _from_json(data)
    if not isinstance(found, Policy):
        raise ArgumentError(f"{data!r} is no policy; it needs a 'policy' of {', '.join(POLICIES)} or 'sum'")
    return found


def _from_json(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_from_json(x) for x in data)
    if not isinstance(data, dict):
        return data
    rest = dict(data)
    name = rest.pop("policy", None)
    try:
        if name == "sum":
            of = rest.pop("of")
            return Sum.of(*(from_json(p) for p in of), **rest)  # anything else beside it is an error
        return POLICIES[name](**{n: _from_json(x) for n, x in rest.items()})
    except (KeyError, TypeError) as err:
        raise ArgumentError(f"{data!r} is no policy; it needs a 'policy' of {', '.join(POLICIES)} or 'sum'") from err


def _read(node: ast.AST, text: str) -> Any:
    """The value of an expression of calls, sums, numbers, words and lists."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _read(node.left, text), _read(node.right, text)
        if isinstance(left, Policy) and isinstance(right, Policy):
            return left + right
    elif isinstance(node, ast.Name):
        if node.id in ("true", "false"):
            return node.id == "true"
        return _call(node.id, (), {}, text)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {str(k.arg): _read(k.value, text) for k in node.keywords}
        return _call(node.func.id, tuple(_read(a, text) for a in node.args), named, text)
    elif isinstance(node, ast.List | ast.Tuple):
        return tuple(_read(x, text) for x in node.elts)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _read(node.operand, text)
        if isinstance(value, int | float):
            return -value
    elif isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return node.value
    raise ArgumentError(f"cannot read the policy {text!r}; {GRAMMAR}")


def _call(name: str, args: tuple[Any, ...], named: dict[str, Any], text: str) -> Any:
    maker: Any = budget if name.lower() == "budget" else POLICIES.get(name.lower())
    if maker is None:
        raise ArgumentError(f"there is no policy {name!r} (in {text!r}); {GRAMMAR}")
    try:
        return maker(*args, **named)
    except TypeError as err:
        raise ArgumentError(f"{name} does not take that (in {text!r}); {GRAMMAR}") from err
