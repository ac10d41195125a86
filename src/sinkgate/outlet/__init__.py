"""Outlets: what a trained layer can be given so that its surplus has somewhere to go.

One file per kind: a small frozen value that says what it is, and a module that owns its parameters at one layer.
"""

from sinkgate.outlet.base import LayerOutlet, Level, Sizes
from sinkgate.outlet.extra_key import ExtraKey, KeyBias, KVBias, SinkToken
from sinkgate.outlet.gate import GateOutlet
from sinkgate.outlet.registry import KINDS, as_outlet, from_json, to_json
from sinkgate.outlet.sink_logit import SinkLogit, SinkLogitOutlet

__all__ = [
    "KINDS", "ExtraKey", "GateOutlet", "KVBias", "KeyBias", "LayerOutlet", "Level", "SinkLogit", "SinkLogitOutlet", "SinkToken",
    "Sizes", "as_outlet", "from_json", "to_json",
]  # fmt: skip
