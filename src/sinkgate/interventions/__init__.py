"""Floor 5: act on a model while it runs, and measure what follows."""

from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import ConstantGate, Evict, MeanValue, ScalarGate, SetMassive, Transplant
from sinkgate.interventions.constants import Constants, capture
from sinkgate.interventions.effects import Effects
from sinkgate.interventions.intervene import intervene
from sinkgate.interventions.repeated import Repeated, repeated_tokens

__all__ = [
    "ConstantGate",
    "Constants",
    "Effects",
    "Evict",
    "MeanValue",
    "Repeated",
    "ScalarGate",
    "SetMassive",
    "Transplant",
    "acting",
    "capture",
    "intervene",
    "repeated_tokens",
]  # fmt: skip
