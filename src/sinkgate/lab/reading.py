"""One reading of a model in training: the numbers, each beside its null, by layer and overall."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkgate.errors import NonFiniteError
from sinkgate.hf.anatomy import Anatomy
from sinkgate.hf.place import at
from sinkgate.outlet import GateOutlet
from sinkgate.probe.probe import Probe
from sinkgate.record import Array, Diagnosis
from sinkgate.site import Site

__all__ = ["GateStats", "Observer", "reading_line", "scalars"]

NORMAL_KURTOSIS = 3.0


@dataclass
class GateStats:
    """The values of one layer's output gate over tokens, heads and components, summed.

    Args:
        null: the value of a gate that says nothing (1 of one that multiplies, 0 of one that adds); None for a model's own
            gate, where it is not known.
        adds: it adds what it says, so that none is closed.
    """

    null: float | None
    adds: bool = False
    total: float = 0.0
    closed: int = 0
    count: int = 0

    def see(self, values: Tensor, limit: float) -> None:
        """More values, any shape; those with ``|value| < limit`` count as closed."""
        values = values.double()
        self.total += float(values.sum())
        self.closed += int((values.abs() < limit).sum())
        self.count += values.numel()

    @property
    def mean(self) -> float:
        """Of all values."""
        return self.total / self.count if self.count else float("nan")

    @property
    def share_closed(self) -> float:
        """Of all values, those under the limit; NaN where a gate adds."""
        return self.closed / self.count if self.count and not self.adds else float("nan")


class Observer:
    """What a reading is shown: everything goes to a probe, and the gates are counted.

    An error is kept until the pass is over. Raised inside it, it would leave the bookkeeping of FSDP in the middle of a
    forward pass, and the next training step would not be what it is.

    Args:
        probe: gets sites and streams.
        anatomy: of the model.
        real: ``[b, t]`` bool, the tokens that are no padding.
        closed: a gate under this is closed.
    """

    def __init__(self, probe: Probe, anatomy: Anatomy, real: Tensor, closed: float) -> None:
        self.probe, self.anatomy, self.closed = probe, anatomy, closed
        self._real = real
        self.gates: dict[int, GateStats] = {}
        self.learned_null: dict[int, float] = {}
        self.error: NonFiniteError | None = None

    @torch.no_grad()
    def site(self, site: Site) -> None:
        """One attention layer."""
        if self.error is not None:
            return
        try:
            self.probe.site(site)
        except NonFiniteError as err:
            self.error = err
            return
        if site.sink_logit is not None:
            counts = site.visibility.counts[:, 0].double().expand(*site.real.shape)[site.real]
            self.learned_null[site.layer] = float((1 / (counts + 1)).mean())  # one key more, all equal
        if site.mapped is not None:
            out, mapped = (x.transpose(1, 2)[site.real].double() for x in (site.out, site.mapped))
            self.gates.setdefault(site.layer, GateStats(None)).see((mapped / out)[out != 0], self.closed)

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """The residual stream before a layer, or after the last."""
        if self.error is None:
            self.probe.stream(depth, hidden, real)

    @contextmanager
    def outlets(self) -> Iterator[None]:
        """Inside, gates that ``add_outlet`` added show their values."""
        with ExitStack() as stack:
            for layer in self.anatomy.layers:
                outlet = None if layer.attention is None else at(layer.attention)[1]
                if isinstance(outlet, GateOutlet):
                    adds = outlet.spec.additive
                    stats = self.gates[layer.index] = GateStats(0.0 if adds else 1.0, adds)
                    outlet.seen.show = partial(self._gate, stats)
                    stack.callback(setattr, outlet.seen, "show", None)
            yield

    def _gate(self, stats: GateStats, values: Tensor) -> None:
        stats.see(values[self._real.to(values.device)], self.closed)


def reading_line(d: Diagnosis, observer: Observer, eps: float) -> dict[str, Any]:
    """The numbers of a reading as plain JSON; NaN where a layer is not measured or there is nothing to measure.

    ``layers`` holds one list per number: an entry per layer, of the residual stream one before each layer and one after
    the last. A head sinks where its share is over ``eps``; ``…_any_key`` looks at every key that enough queries see.
    """
    mass, null, heads = d.first_token_mass, d.null_mass, d.measured
    top = np.fmax(mass, d.top_other_mass)
    top_null = np.fmax(null, _largest(d.key_null[:, 1:])[:, None])
    first = d.mean_mass()
    strong = np.unravel_index(int(np.nanargmax(np.where(heads, mass, -1))), mass.shape)
    line: dict[str, Any] = {
        "first_token_mass": float(first.mean),
        "first_token_mass_interval": [float(first.low), float(first.high)],
        "first_token_mass_null": _mean(null, heads),
        "sink_rate": d.sink_rate(eps),
        "sink_rate_null": _mean(null > eps, heads),
        "sink_rate_any_key": _mean(top > eps, heads),
        "sink_rate_any_key_null": _mean(top_null > eps, heads),
        "strongest_head": {
            "layer": int(strong[0]), "head": int(strong[1]), "first_token_mass": float(mass[strong]),
            "null": float(null[strong]),
        },
    }  # fmt: skip
    layers: dict[str, Any] = {
        "first_token_mass": _by_layer(mass, heads),
        "first_token_mass_null": _by_layer(null, heads),
        "sink_rate": _by_layer(mass > eps, heads),
        "sink_rate_any_key": _by_layer(top > eps, heads),
        "strongest_head_mass": _largest(np.where(heads, mass, np.nan)).tolist(),
    }
    if observer.learned_null:
        found = sorted(observer.learned_null)
        line["learned_mass"] = float(np.nanmean(d.learned_mass[found]))
        line["learned_mass_null"] = float(np.mean([observer.learned_null[i] for i in found]))
        layers["learned_mass"] = _by_layer(d.learned_mass, heads)
    if "stream_moments" in d.arrays:
        _stream(d, line, layers)
    if observer.gates:
        _gates(observer.gates, line, layers, len(d.layers))
    unmeasured = {str(entry["index"]): entry["reason"] for entry in d.layers if entry["reason"]}
    return line | {"layers": layers} | ({"unmeasured": unmeasured} if unmeasured else {})


def scalars(line: dict[str, Any], prefix: str = "sinks/") -> dict[str, float]:
    """What a logger takes of a line: the overall numbers, by name."""
    names = (
        "first_token_mass", "first_token_mass_null", "sink_rate", "sink_rate_null", "sink_rate_any_key",
        "sink_rate_any_key_null", "max_activation", "median_activation", "max_kurtosis", "learned_mass",
        "learned_mass_null", "gate_mean", "gate_closed",
    )  # fmt: skip
    found = {name: line[name] for name in names if name in line}
    if "strongest_head" in line:
        found["strongest_head_mass"] = line["strongest_head"]["first_token_mass"]
    found["spikes"] = float(len(line["spikes"]))
    return {prefix + name: float(x) for name, x in found.items() if x is not None and np.isfinite(x)}


# ---- private ---------------------------------------------------------------------------------------------------


def _stream(d: Diagnosis, line: dict[str, Any], layers: dict[str, Any]) -> None:
    largest = np.full(len(d.kurtosis), np.nan)
    for entry in d.massive:
        largest[entry["layer"]] = np.fmax(largest[entry["layer"]], abs(entry["value"]))
    deepest, heaviest = int(np.nanargmax(largest)), int(np.nanargmax(d.kurtosis))
    line |= {
        "max_activation": float(largest[deepest]),
        "max_activation_depth": deepest,
        "median_activation": float(d.stream_median[deepest]),
        "max_kurtosis": float(d.kurtosis[heaviest]),
        "max_kurtosis_depth": heaviest,
        "kurtosis_null": NORMAL_KURTOSIS,
    }
    layers |= {
        "max_activation": largest.tolist(),
        "median_activation": d.stream_median.tolist(),
        "kurtosis": d.kurtosis.tolist(),
    }


def _gates(gates: dict[int, GateStats], line: dict[str, Any], layers: dict[str, Any], count: int) -> None:
    total = sum(g.count for g in gates.values())
    multiplying = [g for g in gates.values() if not g.adds]
    nulls = {g.null for g in gates.values()}
    line |= {
        "gate_mean": sum(g.total for g in gates.values()) / total if total else float("nan"),
        "gate_mean_null": nulls.pop() if len(nulls) == 1 else None,
        "gate_closed": sum(g.closed for g in multiplying) / n if (n := sum(g.count for g in multiplying)) else None,
        "gate_closed_null": 0.0 if multiplying and all(g.null is not None for g in multiplying) else None,
    }
    layers["gate_mean"] = [gates[i].mean if i in gates else float("nan") for i in range(count)]
    layers["gate_closed"] = [gates[i].share_closed if i in gates else float("nan") for i in range(count)]


def _mean(values: Array, heads: Array) -> float:
    return float(values[heads].mean()) if heads.any() else float("nan")


def _by_layer(values: Array, heads: Array) -> list[float]:
    return [_mean(row, some) for row, some in zip(values, heads, strict=True)]


def _largest(values: Array) -> Array:
    """The largest along the last axis; NaN where there is none."""
    return np.where(np.isfinite(values).any(-1), np.max(np.where(np.isfinite(values), values, -np.inf), -1, initial=-np.inf), np.nan)  # fmt: skip
