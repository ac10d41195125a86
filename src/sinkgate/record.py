"""What a measurement leaves behind: sums and counts that merge exactly, saved as JSON + safetensors.

Reading a record needs neither the model nor torch. Arrays are NumPy; ``NaN`` marks what could not be measured.

Two kinds of array, so that records from several texts or processes merge to the same bits in any order:

* one row per sample (axis 0): merging puts the rows together, ordered by the sample's id;
* sums over samples: integers (counts, or fixed-point numbers), whose sum does not depend on the order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sinkgate.errors import ArgumentError, OutputError
from sinkgate.schema import (
    FIXED,
    FLOAT_BINS,
    HEAD_KINDS,
    LOCAL_MASS,
    LOCAL_OVER_NULL,
    PREVIOUS_MASS,
    SHARE_BINS,
    SHARE_FIXED,
    SPECIFIC_KEYS,
    UNIFORM_ENTROPY,
    Settings,
    curve_edges,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Array", "Diagnosis", "Interval", "Sink", "student_interval", "top_massive"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Sink:
    """A position that takes more than the threshold in at least one head."""

    position: int
    token: str
    kind: str  # bos, first, delimiter, other
    mass: float  # mean α over measurable heads and the samples it was found in
    heads: float  # heads over the threshold, mean over those samples
    top: float  # the largest α of any head
    samples: int
    write: float | None  # what the key writes over what its heads write, mean over heads over the threshold
    secondary: bool  # its hidden state stays within the cosine rule of the first token's


@dataclass(frozen=True)
class Interval:
    """A mean over samples with its Student-t confidence interval (NaN bounds with one sample)."""

    mean: Array
    low: Array
    high: Array
    level: float
    samples: int


def student_interval(values: Array, level: float = 0.95) -> Interval:
    """Student-t interval of the mean along axis 0."""
    n = values.shape[0]
    mean = values.mean(0)
    if n < 2:
        nothing = np.full_like(mean, np.nan)
        return Interval(mean, nothing, nothing, level, n)
    from scipy.stats import t

    half = t.ppf(0.5 + level / 2, n - 1) * values.std(0, ddof=1) / np.sqrt(n)
    return Interval(mean, mean - half, mean + half, level, n)


@dataclass(eq=False)
class Diagnosis:
    """Where a model's heads put their attention, how much of it is surplus, and what that writes.

    ``meta`` is JSON (model, layers, settings, samples with their sinks, notes); ``arrays`` follow
    :data:`SCHEMA`. Everything else is derived. Index ``[layer, head]``; a layer that cannot be measured is NaN.
    """

    meta: dict[str, Any]
    arrays: dict[str, Array] = field(repr=False)

    # ---- the sizes ----------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """How it was made."""
        return Settings(**self.meta["settings"])

    @property
    def samples(self) -> int:
        """How many pieces of text were read."""
        return len(self.meta["samples"])

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads)."""
        return self.arrays["first_sum"].shape[1:3]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Per layer: name, kind (full, window, unmeasured), window, reason, write_reason, learned_sink, heads."""
        return self.meta["layers"]

    @property
    def measured(self) -> NDArray[np.bool_]:
        """``[layer, head]``: True where there is something to read."""
        return np.asarray(np.isfinite(self.arrays["first_sum"]).all(0))

    # ---- mass on the first token ----------------------------------------------------------------------------------

    def mass_by_sample(self, *, first_query: bool = True) -> Array:
        """``[sample, layer, head]``: mean weight on the first token over the queries that see it.

        ``first_query=False`` leaves out the first token's own query, which has no choice (weight 1).
        """
        total, n = self.arrays["first_sum"], self.arrays["first_n"][..., None]
        if first_query:
            return _ratio(total, n)
        return _ratio(total - self.arrays["first_query0"], n - self.arrays["first_query0_n"][..., None])

    def null_by_sample(self, *, first_query: bool = True) -> Array:
        """``[sample, layer, 1]``: the same mean for uniform attention, window and padding known."""
        total, n = self.arrays["null_sum"], self.arrays["first_n"]
        if not first_query:
            total, n = total - self.arrays["null_query0"], n - self.arrays["first_query0_n"]
        return _ratio(total, n)[..., None]

    @cached_property
    def first_token_mass(self) -> Array:
        """``[layer, head]``: mean weight on the first token (Gu's α_1), over queries, then samples."""
        return self.mass_by_sample().mean(0)

    @cached_property
    def null_mass(self) -> Array:
        """``[layer, head]``: what uniform attention gives it; ``H_T/T`` under plain causality."""
        return np.where(self.measured, self.null_by_sample().mean(0), np.nan)

    def excess(self, *, level: float = 0.95, first_query: bool = True) -> Interval:
        """``[layer, head]``: mass over its null, with a confidence interval over samples."""
        values = self.mass_by_sample(first_query=first_query) - self.null_by_sample(first_query=first_query)
        return student_interval(values, level)

    def mean_mass(self, *, level: float = 0.95) -> Interval:
        """Mean of the first-token mass over all measurable heads, with its interval over samples."""
        return student_interval(self.mass_by_sample()[:, self.measured].mean(1), level)

    def mass_quantiles(self, q: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> Array:
        """``[q, layer, head]``: quantiles over queries of p_s, from a histogram with bins of 0.01."""
        counts = self.arrays["share_histogram"].astype(float)
        return _histogram_quantiles(counts, np.linspace(0, 1, SHARE_BINS + 1), q)

    def sink_rate(self, eps: float = 0.3, convention: Literal["mean", "sample"] = "mean", *, key: int = 0) -> float:
        """Share of measurable heads with ``α_key > eps`` (Gu et al., ICLR 2025).

        ``"mean"`` averages α over samples, then thresholds; ``"sample"`` thresholds every sample, then averages,
        as the authors' code does. ``key`` counts positions from 0; the first four are kept.
        """
        if convention not in ("mean", "sample"):
            raise ArgumentError(f"convention must be 'mean' or 'sample', got {convention!r}")
        if not 0 <= key < 4:
            raise ArgumentError(f"the sink rate is kept for keys 0 to 3, got key={key}; see key_mass for the others")
        alpha = self.arrays["alpha4"][:, self.measured, key]
        alpha = alpha[np.isfinite(alpha).all(1)]
        if alpha.size == 0:
            return float("nan")
        return float((alpha.mean(0) > eps).mean() if convention == "mean" else (alpha > eps).mean())

    def sink_rates(self, eps: Iterable[float] = tuple(np.arange(1, 20) / 20)) -> list[dict[str, float]]:
        """The sweep over ε, in both conventions."""
        return [{"eps": float(e), "mean": self.sink_rate(e), "sample": self.sink_rate(e, "sample")} for e in eps]

    # ---- every key ------------------------------------------------------------------------------------------------

    @cached_property
    def key_mass(self) -> Array:
        """``[layer, head, position]``: α_k, mean over samples; NaN where too few queries see the key."""
        self._need("key_mass", "keys")
        mass = _ratio(self.arrays["key_mass"] / SHARE_FIXED, self.arrays["key_n"][:, None].astype(float))
        return np.where(self.measured[..., None], mass, np.nan)

    @cached_property
    def key_null(self) -> Array:
        """``[layer, position]``: the null of :attr:`key_mass`."""
        self._need("key_null", "keys")
        return _ratio(self.arrays["key_null"] / SHARE_FIXED, self.arrays["key_n"].astype(float))

    @cached_property
    def top_other_mass(self) -> Array:
        """``[layer, head]``: the largest α of any key but the first, mean over samples."""
        self._need("top_mass", "keys")
        mass = self.arrays["top_mass"]
        return _ratio(np.nan_to_num(mass).sum(0), np.isfinite(mass).sum(0).astype(float))

    @cached_property
    def sinks(self) -> list[Sink]:
        """Positions over the threshold in some head, strongest first; equal position and token are one entry."""
        groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for sample in self.meta["samples"]:
            for sink in sample["sinks"]:
                groups.setdefault((sink["position"], sink["token"]), []).append(sink)
        found = []
        for (position, token), items in groups.items():
            writes = [item["write"] for item in items if item["write"] is not None]
            found.append(
                Sink(
                    position=position,
                    token=token,
                    kind=items[0]["kind"],
                    mass=float(np.mean([item["mass"] for item in items])),
                    heads=float(np.mean([item["heads"] for item in items])),
                    top=max(item["top"] for item in items),
                    samples=len(items),
                    write=float(np.mean(writes)) if writes else None,
                    secondary=any(item["secondary"] for item in items),
                )
            )
        return sorted(found, key=lambda s: (-s.mass * s.samples, s.position, s.token))

    # ---- the split ------------------------------------------------------------------------------------------------

    @cached_property
    def margin(self) -> Array:
        """``[layer, head]``: mean over queries of ``z_s − LSE(everything else) = logit p_s``."""
        return self._per_query("margin_sum", "margin_n")

    @cached_property
    def amplification(self) -> Array:
        """``[layer, head]``: what evicting the first token multiplies the rest by, ``1/(1−p_s)``, geometric mean."""
        return np.exp(self._per_query("amplification_sum", "margin_n"))

    @cached_property
    def sink_write_ratio(self) -> Array:
        """``[layer, head]``: ``Σ‖p_s · write(v_s)‖ / Σ‖write(o)‖``: what the sink writes over what the head writes."""
        self._need("sink_write", "full")
        return _ratio(self.arrays["sink_write"].sum(0), self.arrays["head_write"].sum(0))

    @cached_property
    def content_write_ratio(self) -> Array:
        """``[layer, head]``: the same for everything but the first token."""
        self._need("content_write", "full")
        return _ratio(self.arrays["content_write"].sum(0), self.arrays["head_write"].sum(0))

    @cached_property
    def learned_mass(self) -> Array:
        """``[layer, head]``: mean weight that a learned sink logit takes; the rows sum to one minus this."""
        return self._per_query("learned_sum", "queries")

    @cached_property
    def value_norm_ratio(self) -> Array:
        """``[layer, head]``: ``‖v_s‖`` over the mean ``‖v‖`` of the other tokens."""
        self._need("value_first", "full")
        return _ratio(self.arrays["value_first"].mean(0), self.arrays["value_rest"].mean(0))

    # ---- head kinds -----------------------------------------------------------------------------------------------

    @cached_property
    def entropy(self) -> Array:
        """``[layer, head]``: mean entropy of the weights (with a learned sink counted as one more key), nats."""
        self._need("entropy_sum", "full")
        return self._per_query("entropy_sum", "queries")

    @cached_property
    def entropy_ratio(self) -> Array:
        """``[layer, head]``: mean of entropy over ``ln(visible keys)``; 1 is uniform."""
        self._need("entropy_ratio_sum", "full")
        return self._per_query("entropy_ratio_sum", "entropy_n")

    @cached_property
    def local_mass(self) -> Array:
        """``[layer, head]``: mean mass on the last ``settings.local_window`` tokens, own token included."""
        self._need("local_sum", "full")
        return self._per_query("local_sum", "queries")

    @cached_property
    def local_null(self) -> Array:
        """``[layer, head]``: the same for uniform attention."""
        self._need("local_null_sum", "full")
        null = _ratio(self.arrays["local_null_sum"], self.arrays["queries"]).mean(0)
        return np.where(self.measured, null[:, None], np.nan)

    @cached_property
    def previous_mass(self) -> Array:
        """``[layer, head]``: mean mass on the token before."""
        self._need("previous_sum", "full")
        return self._per_query("previous_sum", "queries")

    @cached_property
    def query_key_cosine(self) -> Array:
        """``[layer, head]``: cosine of the mean query with the first token's key."""
        self._need("query_key_cosine", "full")
        return self.arrays["query_key_cosine"].mean(0)

    @cached_property
    def head_kind(self) -> NDArray[np.str_]:
        """``[layer, head]``: sink, previous, local, uniform, specific, none or unmeasured (docs/measures.md)."""
        self._need("entropy_sum", "full")
        strongest = np.fmax(np.fmax(self.first_token_mass, self.top_other_mass), self.learned_mass)
        rules = {
            "unmeasured": ~self.measured,
            "sink": strongest > self.settings.threshold,
            "previous": self.previous_mass > PREVIOUS_MASS,
            "local": (self.local_mass > LOCAL_MASS) & (self.local_mass > LOCAL_OVER_NULL * self.local_null),
            "uniform": self.entropy_ratio > UNIFORM_ENTROPY,
            "specific": np.exp(self.entropy) < SPECIFIC_KEYS,
        }
        return np.select([rules[kind] for kind in HEAD_KINDS[:-1]], HEAD_KINDS[:-1], default=HEAD_KINDS[-1])

    # ---- by query position ----------------------------------------------------------------------------------------

    def curve(self, layer: int, head: int) -> dict[str, Array]:
        """By query position (bins with something in them): ``t`` (bin centre), mass, null, margin, and the law.

        ``law`` is the margin that would hold the head's own mean mass at every length, were all content
        scores equal: ``ln(t) + logit(r)`` for the query at position t (t content keys).
        """
        n = self.arrays["curve_n"][layer].astype(float)
        keep = n > 0
        n = n[keep]
        edges = curve_edges()
        centre = (edges[:-1] + edges[1:])[keep] / 2
        mass = self.arrays["curve_mass"][layer, head][keep] / FIXED / n
        share = self.mass_by_sample(first_query=False).mean(0)[layer, head]
        from sinkgate.geometry import margin as logit

        margin = np.full_like(mass, np.nan)
        if "curve_margin" in self.arrays:
            margin = np.where(centre > 0, self.arrays["curve_margin"][layer, head][keep] / FIXED / n, np.nan)

        return {
            "t": centre,
            "mass": mass,
            "null": self.arrays["curve_null"][layer][keep] / FIXED / n,
            "margin": margin,
            "law": np.where(centre > 0, np.log(np.maximum(centre, 1e-9)) + logit(share), np.nan),
            "n": n,
        }

    # ---- the residual stream ----------------------------------------------------------------------------------------

    @property
    def massive(self) -> list[dict[str, Any]]:
        """The largest activations: layer, value, dimension, position, token, sample; largest first in a layer."""
        return self.meta["massive"]

    @cached_property
    def kurtosis(self) -> Array:
        """``[R]``: of all entries of the residual stream before each layer and after the last (normal: 3)."""
        self._need("stream_moments", "full")
        n, s1, s2, s3, s4 = np.moveaxis(self.arrays["stream_moments"].sum(0), -1, 0)
        m1, m2, m3, m4 = s1 / n, s2 / n, s3 / n, s4 / n
        variance = m2 - m1**2
        return (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2

    @cached_property
    def stream_median(self) -> Array:
        """``[R]``: median of |h|, from sixteen bins an octave (the bin is at most 6.3% wide)."""
        self._need("stream_histogram", "full")
        octave, step = np.divmod(np.arange(FLOAT_BINS + 1), 16)
        edges = 2.0 ** (octave - 64.0) * (1 + step / 16)
        return _histogram_quantiles(self.arrays["stream_histogram"].astype(float), edges, [0.5])[0]

    # ---- keeping ------------------------------------------------------------------------------------------------------

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``record.json`` and its tensors into a directory; the JSON, renamed last, makes it whole.

        Raises:
            OutputError: the directory cannot be written.
        """
        from sinkgate.storage import save

        return save(self, Path(directory))

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Diagnosis:
        """Open a saved record; neither the model nor torch is needed.

        Raises:
            RecordError: it is missing, damaged, or of a version this sinkgate does not read.
        """
        from sinkgate.storage import load

        return load(Path(directory))

    def merge(self, other: Diagnosis) -> Diagnosis:
        """This record and another of the same model as one; the same bits in whichever order.

        Raises:
            RecordError: another model, other settings, or a sample that is in both.
        """
        from sinkgate.storage import merge

        return merge(self, other)

    # ---- showing ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row per head, as a pandas frame (``pip install 'sinkgate[frame]'``)."""
        try:
            import pandas as pd
        except ModuleNotFoundError as err:
            raise ArgumentError("to_frame needs pandas: pip install 'sinkgate[frame]'") from err
        layer, head = np.indices(self.shape)
        low, high = self.excess().low, self.excess().high
        columns: dict[str, Array] = {
            "layer": layer,
            "head": head,
            "first_token_mass": self.first_token_mass,
            "null_mass": self.null_mass,
            "excess_low": low,
            "excess_high": high,
            "margin": self.margin,
            "amplification": self.amplification,
            "learned_mass": self.learned_mass,
        }
        if self.settings.detail != "first":
            columns["top_other_mass"] = self.top_other_mass
        if self.settings.detail == "full":
            for name in ("sink_write_ratio", "content_write_ratio", "value_norm_ratio", "query_key_cosine",
                         "entropy", "entropy_ratio", "local_mass", "local_null", "previous_mass", "head_kind"):  # fmt: skip
                columns[name] = getattr(self, name)
        return pd.DataFrame({name: values.reshape(-1) for name, values in columns.items()})

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report: one HTML file that works offline and asks no host for anything."""
        from sinkgate.files import write_atomically
        from sinkgate.report.html import render
        from sinkgate.report.payload import payload

        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, render(payload(self)).encode())
        except OSError as err:
            raise OutputError(f"cannot write the report to {path}: {err.strerror or err}") from err
        return path

    def verdict(self) -> list[str]:
        """What was found, in a few plain sentences with their numbers and null."""
        from sinkgate.report.summary import verdict

        return verdict(self)

    def sinks_policy(self, tokenizer: Any = None, *, share: float = 0.5) -> Any:
        """What a cache should keep: see :func:`sinkgate.probe.policy.sinks_policy`; add ``Recent(n)`` to it."""
        from sinkgate.probe.policy import sinks_policy

        return sinks_policy(self, tokenizer, share=share)

    def __str__(self) -> str:
        from sinkgate.report.summary import text

        return text(self)

    def _repr_html_(self) -> str:
        from sinkgate.report.html import render_frame
        from sinkgate.report.payload import payload

        return render_frame(payload(self))

    # ---- private ------------------------------------------------------------------------------------------------------

    def _per_query(self, total: str, n: str) -> Array:
        return _ratio(self.arrays[total], self.arrays[n][..., None]).mean(0)

    def _need(self, name: str, detail: str) -> None:
        if name not in self.arrays:
            raise ArgumentError(
                f"this record was made with detail={self.settings.detail!r} and lacks {name}; diagnose with detail={detail!r}"
            )


# ---- helpers -------------------------------------------------------------------------------------------------------------


def top_massive(items: list[dict[str, Any]], keep: int = 5) -> list[dict[str, Any]]:
    """The largest ``keep`` of each layer, in one fixed order."""
    items = sorted(items, key=lambda m: (m["layer"], -abs(m["value"]), m["sample"], m["dimension"], m["position"]))
    kept: dict[int, int] = {}
    result = []
    for item in items:
        kept[item["layer"]] = kept.get(item["layer"], 0) + 1
        if kept[item["layer"]] <= keep:
            result.append(item)
    return result


def _ratio(a: Array, b: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(b > 0, a / np.where(b > 0, b, 1), np.nan)


def _histogram_quantiles(counts: Array, edges: Array, q: Sequence[float]) -> Array:
    """Quantiles along the last axis, linear inside a bin."""
    total = counts.sum(-1, keepdims=True)
    cumulative = counts.cumsum(-1)
    result = []
    for level in q:
        target = level * total
        i = (cumulative < target).sum(-1, keepdims=True).clip(max=counts.shape[-1] - 1)
        inside = np.take_along_axis(counts, i, -1)
        before = np.take_along_axis(cumulative, i, -1) - inside
        fraction = _ratio(target - before, inside)
        value = edges[i] + (edges[i + 1] - edges[i]) * fraction
        result.append(np.where(total > 0, value, np.nan)[..., 0])
    return np.stack(result)
