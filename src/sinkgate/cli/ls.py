"""``sinkgate ls``: what is registered, from the registries themselves."""

from __future__ import annotations

import argparse
import json

__all__ = ["arguments", "listing", "run"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "kind",
        nargs="?",
        help="only this: weightings, gates, outlets, implementations, policies, tasks, arms or models",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def listing() -> dict[str, dict[str, str]]:
    """Kind → name → one line."""
    from sinkgate.cache.registry import POLICIES
    from sinkgate.gate import ACTIVATIONS, POSITIONS
    from sinkgate.hf.fetch import known_models
    from sinkgate.lab.arms import ADDITIONS
    from sinkgate.lab.tasks import TASKS
    from sinkgate.ops.native.ops import unavailable
    from sinkgate.ops.select import IMPLEMENTATIONS
    from sinkgate.outlet import KINDS
    from sinkgate.weighting import as_weighting, names

    weightings = {}
    for name in names():
        w = as_weighting(name)
        notes = [f"mass {w.mass}"]
        notes += ["shift-invariant"] if w.shift_invariant else []
        notes += ["exact zeros"] if w.exact_zeros else []
        weightings[name] = f"{getattr(w, 'formula', '')}  ({', '.join(notes)})"
    implementations = {name: module.summary for name, module in IMPLEMENTATIONS.items()}
    if unavailable():
        implementations["native"] += f"  (not here: {unavailable()})"
    return {
        "weightings": weightings,
        "gates": {**POSITIONS, "activations": ", ".join(ACTIVATIONS)},
        "outlets": {name: _first_line(kind) for name, (kind, _) in KINDS.items()},
        "implementations": implementations,
        "policies": {name: _first_line(policy) for name, policy in POLICIES.items()},
        "tasks": {name: line for name, (_, line) in TASKS.items()},
        "arms": {f"+ {name}": line for name, line in ADDITIONS.items()},
        "models": {name: model.description for name, model in known_models().items()},
    }


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").splitlines()[0].rstrip(".").replace("``", "")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from sinkgate.errors import ArgumentError

    found = listing()
    if args.kind is not None and args.kind not in found:
        raise ArgumentError(f"there is no list of {args.kind!r}; there are {', '.join(found)}")
    kinds = found if args.kind is None else {args.kind: found[args.kind]}
    if args.json:
        print(json.dumps(kinds, ensure_ascii=False, indent=1))
        return 0
    for kind, entries in kinds.items():
        print(f"{kind}:")
        width = max((len(name) for name in entries), default=0)
        for name, line in entries.items():
            print(f"  {name:<{width}}  {line}")
        if not entries:
            print("  (none yet)")
    return 0
