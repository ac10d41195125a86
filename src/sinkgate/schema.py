"""What a record is made of: the names and axes of its arrays, and the settings it was made with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sinkgate.errors import ArgumentError

__all__ = [
    "CURVE_BINS",
    "FIXED",
    "FLOAT_BINS",
    "FORMAT",
    "HEAD_KINDS",
    "INTEGER_ROWS",
    "LOCAL_MASS",
    "LOCAL_OVER_NULL",
    "PREVIOUS_MASS",
    "SCHEMA",
    "SHARE_BINS",
    "SHARE_FIXED",
    "SPECIFIC_KEYS",
    "UNIFORM_ENTROPY",
    "VERSION",
    "Settings",
    "bins",
    "curve_edges",
    "required",
    "settings_dict",
]

FORMAT = "sinkgate.diagnosis"
VERSION = 1
SHARE_FIXED = float(2**44)  # fixed-point sums of shares (α and its null): 5.7e-14 per sample, 500,000 samples
FIXED = float(2**32)  # fixed-point sums: 2.3e-10 per sample, room for 2^31 in magnitude
CURVE_BINS = 96  # query positions, four bins an octave: position t goes to floor(4·log2(t+1))
SHARE_BINS = 100  # p_s over [0, 1]
FLOAT_BINS = 2048  # |activation|, sixteen bins an octave from 2^-64

# Head kinds, in the order in which their rules are tried; docs/measures.md has the same table.
HEAD_KINDS = ("unmeasured", "sink", "previous", "local", "uniform", "specific", "none")
PREVIOUS_MASS = 0.5  # on the token before
LOCAL_MASS = 0.5  # on the last tokens …
LOCAL_OVER_NULL = 2.0  # … and over so many times its null
UNIFORM_ENTROPY = 0.9  # of ln(visible keys)
SPECIFIC_KEYS = 8  # exp(entropy) under this

# name -> (axes, what it is). S sample, L layer, H head, T key position, B bin. A leading S means one row per
# sample; everything else is a sum over samples and is an integer.
SCHEMA: dict[str, tuple[str, str]] = {
    "first_sum": ("SLH", "Σ over queries of the weight on the first token"),
    "first_query0": ("SLH", "that weight at the first token's own query"),
    "first_query0_n": ("SL", "whether that query is among these (it is not when decoding)"),
    "null_query0": ("SL", "uniform attention's weight there"),
    "first_n": ("SL", "how many queries see the first token"),
    "null_sum": ("SL", "the same sum for uniform attention"),
    "alpha4": ("SLH4", "Gu's α of the first four tokens"),
    "learned_sum": ("SLH", "Σ over queries of the weight a learned sink logit takes"),
    "queries": ("SL", "how many queries were counted"),
    "margin_sum": ("SLH", "Σ over queries of z_s − LSE(everything else), the first query apart"),
    "amplification_sum": ("SLH", "Σ over queries of −ln(1 − p_s), the first query apart"),
    "margin_n": ("SL", "how many queries these two count"),
    "entropy_sum": ("SLH", "Σ over queries of the entropy of the weights, nats"),
    "entropy_ratio_sum": ("SLH", "Σ over queries of entropy / ln(visible keys), rows with one key apart"),
    "entropy_n": ("SL", "how many queries see more than one key"),
    "local_sum": ("SLH", "Σ over queries of the mass on the last w tokens, the query's own included"),
    "local_null_sum": ("SL", "the same for uniform attention"),
    "previous_sum": ("SLH", "Σ over queries of the mass on the token before"),
    "self_sum": ("SLH", "Σ over queries of the mass on the query's own token"),
    "sink_write": ("SLH", "Σ ‖p_s · write(v_s)‖ over the queries that see the first token"),
    "head_write": ("SLH", "Σ ‖write(o)‖ over the same queries"),
    "content_write": ("SLH", "Σ ‖write(o − p_s v_s)‖ over the same queries"),
    "value_first": ("SLH", "‖v‖ of the first token"),
    "value_rest": ("SLH", "mean ‖v‖ of the others"),
    "key_first": ("SLH", "‖k‖ of the first token"),
    "key_rest": ("SLH", "mean ‖k‖ of the others"),
    "query_key_cosine": ("SLH", "cosine of the mean query with the first token's key"),
    "top_mass": ("SLH", "the largest α of any other key that enough queries see"),
    "top_position": ("SLH", "where it is"),
    "key_mass": ("LHT", "Σ over samples of α_k, fixed point"),
    "key_null": ("LT", "Σ over samples of its null, fixed point"),
    "key_n": ("LT", "how many samples count for this key (enough queries see it)"),
    "curve_mass": ("LHB", "weight on the first token by query position, fixed point"),
    "curve_margin": ("LHB", "margin by query position, fixed point"),
    "curve_null": ("LB", "1/(visible keys) by query position, fixed point"),
    "curve_n": ("LB", "queries in the bin"),
    "share_histogram": ("LHB", "how many queries gave the first token this share, the first query apart"),
    "stream_moments": (
        "SR5",
        "residual stream: n, Σx, Σx², Σx³, Σx⁴ (R: before each layer, and after the last)",
    ),
    "stream_first": ("SR", "‖h‖ of the first token"),
    "stream_rest": ("SR", "mean ‖h‖ of the others"),
    "stream_histogram": ("RB", "|h| of all entries, sixteen bins an octave"),
}
INTEGER_ROWS = frozenset({"first_n", "first_query0_n", "queries", "margin_n", "entropy_n", "top_position"})


@dataclass(frozen=True)
class Settings:
    """How a diagnosis was made. Two records merge only when these are equal."""

    detail: Literal["first", "keys", "full"] = "full"
    threshold: float = 0.3
    local_window: int = 64
    min_queries: int = 32
    tokens: int = 1024
    bos: str = "auto"

    def __post_init__(self) -> None:
        if self.detail not in ("first", "keys", "full"):
            raise ArgumentError(f"detail must be 'first', 'keys' or 'full', got {self.detail!r}")
        if not 0 < self.threshold < 1:
            raise ArgumentError(f"threshold must be between 0 and 1, got {self.threshold}")
        if self.local_window < 1 or self.min_queries < 1:
            raise ArgumentError("local_window and min_queries must be at least 1")
        if self.bos not in ("auto", "yes", "no"):
            raise ArgumentError(f"bos must be auto, yes or no, got {self.bos!r}")


def curve_edges() -> NDArray[np.float64]:
    """Edges of the query-position bins: bin i holds the positions t with ``edges[i] ≤ t < edges[i+1]``."""
    return np.ceil(2.0 ** (np.arange(CURVE_BINS + 1) / 4) - 1 - 1e-9) - 0.5


def settings_dict(settings: Settings) -> dict[str, Any]:
    """The JSON form of settings."""
    return asdict(settings)


def required(detail: str) -> set[str]:
    """The arrays a record of this detail must hold (a residual stream is not found in every model)."""
    optional = {name for name in SCHEMA if name.startswith("stream_")}
    keys = {"key_mass", "key_null", "key_n", "top_mass", "top_position", "curve_margin"}
    first = {name for name in SCHEMA if name.startswith(("first_", "null_", "curve_", "margin_", "amplification_"))}
    first = first - keys | {"alpha4", "learned_sum", "queries", "share_histogram"}
    return {"first": first, "keys": first | keys}.get(detail, set(SCHEMA) - optional)


def bins(name: str) -> int:
    """The length of an array's B axis."""
    return {"share_histogram": SHARE_BINS, "stream_histogram": FLOAT_BINS}.get(name, CURVE_BINS)
