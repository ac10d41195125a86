"""Output gates: granularity × sharing × activation × position (Qiu et al. 2025, arXiv 2505.06708)."""

from sinkgate.gate.layout import LAYOUTS, join_query_and_gate, split_query_and_gate
from sinkgate.gate.merge import MergedGate, merge_gate, relayout, split_gate
from sinkgate.gate.spec import ACTIVATIONS, POSITIONS, Gate

__all__ = [
    "ACTIVATIONS",
    "LAYOUTS",
    "POSITIONS",
    "Gate",
    "MergedGate",
    "join_query_and_gate",
    "merge_gate",
    "relayout",
    "split_gate",
    "split_query_and_gate",
]
