"""Modules that own parameters: a gated attention layer, an output gate."""

from sinkgate.nn.attention import GatedAttention, KVCache, Seen
from sinkgate.nn.gate import OutputGate

__all__ = ["GatedAttention", "KVCache", "OutputGate", "Seen"]
