"""The geometry of one row of attention: closed forms, each with its formula and its worked number.

Plain functions of floats or NumPy arrays; no torch, so that a record can be read without it.
"""

from sinkgate.geometry.gradients import (
    best_scalar_gate,
    entmax_alpha_gradient,
    gate_gradients,
    key_gradient,
    residual_jacobian,
    score_gradient,
    softmax_jacobian,
    sparsemax_jacobian,
)
from sinkgate.geometry.simplex import (
    conjugate_of_lse,
    in_hull,
    inverse_softmax,
    lift,
    log_odds,
    log_ratio,
    mass_and_shares,
    one_hot_gap,
    project_on_simplex,
    project_on_subsimplex,
    sparsemax_share,
)
from sinkgate.geometry.sink import (
    Split,
    amplification,
    drop_bound,
    harmonic,
    margin,
    required_margin,
    sink_share,
    split,
    uniform_null,
)

__all__ = [
    "Split",
    "amplification",
    "best_scalar_gate",
    "conjugate_of_lse",
    "drop_bound",
    "entmax_alpha_gradient",
    "gate_gradients",
    "harmonic",
    "in_hull",
    "inverse_softmax",
    "key_gradient",
    "lift",
    "log_odds",
    "log_ratio",
    "margin",
    "mass_and_shares",
    "one_hot_gap",
    "project_on_simplex",
    "project_on_subsimplex",
    "required_margin",
    "residual_jacobian",
    "score_gradient",
    "sink_share",
    "softmax_jacobian",
    "sparsemax_jacobian",
    "sparsemax_share",
    "split",
    "uniform_null",
]
