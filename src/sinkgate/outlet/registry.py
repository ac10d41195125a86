"""Names of outlets, and their JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.gate import Gate
from sinkgate.outlet.extra_key import KeyBias, KVBias, SinkToken
from sinkgate.outlet.gate import check_start
from sinkgate.outlet.sink_logit import SinkLogit

__all__ = ["KINDS", "Spec", "as_outlet", "from_json", "to_json"]

Spec = SinkLogit | KeyBias | KVBias | SinkToken | Gate

# name → its class, and what the bare name stands for
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sink_logit": (SinkLogit, {}),
    "gate": (Gate, {"position": "G1", "elementwise": False, "preserve": 2.0}),
    "key_bias": (KeyBias, {}),
    "kv_bias": (KVBias, {}),
    "sink_token": (SinkToken, {}),
}


def as_outlet(outlet: str | Spec) -> Spec:
    """A name or a value, as a value.

    Raises:
        ArgumentError: no such outlet, or one that would change a trained model before training.
    """
    if isinstance(outlet, str):
        if outlet not in KINDS:
            raise ArgumentError(f"outlet {outlet!r} is not known; there are {', '.join(KINDS)}")
        kind, settings = KINDS[outlet]
        return kind(**settings)
    if not isinstance(outlet, tuple(kind for kind, _ in KINDS.values())):
        raise ArgumentError(
            f"outlet must be one of {', '.join(KINDS)} or a value such as sg.Gate(…, preserve=2.0), got {type(outlet).__name__}"
        )
    if isinstance(outlet, Gate):
        check_start(outlet)
    elif outlet.start is not None and not 0 < outlet.start <= 1:
        raise ArgumentError(f"start must be over 0 and at most 1, got {outlet.start}")
    distance = getattr(outlet, "distance", None)
    if distance is not None and distance < 1:
        raise ArgumentError(f"distance must be at least 1 (the token before the query), got {distance}")
    return outlet


def to_json(outlet: Spec) -> dict[str, Any]:
    """``{"kind": …, field: value, …}``."""
    kind = next(name for name, (cls, _) in KINDS.items() if isinstance(outlet, cls))
    return {"kind": kind, **dataclasses.asdict(outlet)}


def from_json(config: Any) -> Spec:
    """The way back.

    Raises:
        ArgumentError: not an outlet's description.
    """
    if not isinstance(config, dict) or config.get("kind") not in KINDS:
        raise ArgumentError(f"an outlet's description needs a kind ({', '.join(KINDS)}), got {config!r}")
    fields = {k: v for k, v in config.items() if k != "kind"}
    try:
        return as_outlet(KINDS[config["kind"]][0](**fields))
    except TypeError as err:
        raise ArgumentError(f"outlet {config['kind']!r} cannot be built from {fields}: {err}") from None
