"""The probe: it is shown sites and hidden states while a model runs, and leaves a record.

>>> probe = Probe(Settings(tokens=64))                          # doctest: +SKIP
>>> with probe.sample([{"id": "a", "source": "demo", "tokens": tokens, "bos": False}]):  # doctest: +SKIP
...     for site in my_model_run():                              # any model that can fill in a Site
...         probe.site(site)
>>> d = probe.finish(model={"name": "mine"}, layers=[...])       # doctest: +SKIP

Peak memory beyond one block of weights is ``layers × heads × T`` floats: the α of one sample's keys.
"""

from __future__ import annotations

import datetime
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkgate.errors import ArgumentError, NonFiniteError
from sinkgate.probe.kinds import token_kind
from sinkgate.probe.residual import LIKE_LAYERS, StreamStats, read_stream
from sinkgate.probe.summary import INTERIM, PER_KEY, summarise
from sinkgate.record import Diagnosis, top_massive
from sinkgate.schema import CURVE_BINS, INTEGER_ROWS, SCHEMA, SHARE_BINS, SHARE_FIXED, Settings, settings_dict
from sinkgate.site import Site

__all__ = ["Probe"]

SINKS_KEPT = 64  # positions listed per sample
STRIP_TOKENS = 512  # tokens of one sample kept for the text strip

Sample = dict[str, Any]


class Probe:
    """Reduces sites and hidden states to a :class:`~sinkgate.record.Diagnosis`.

    Args:
        settings: what to measure; its ``detail`` decides the cost.
        after_site: called after every layer, for a progress bar.
        stream: whether the residual stream is read; None: at detail ``full``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        after_site: Callable[[], None] | None = None,
        stream: bool | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._after_site = after_site
        self._want_stream = self.settings.detail == "full" if stream is None else stream
        self._samples: list[Sample] = []
        self._rows: list[dict[int, dict[str, np.ndarray]]] = []  # per sample, per layer
        self._sums: dict[int, dict[str, np.ndarray]] = {}  # per layer
        self._streams: list[dict[int, StreamStats]] = []  # per sample, per depth
        self._stream_histogram: dict[int, np.ndarray] = {}
        self._massive: list[dict[str, Any]] = []
        self._strip: dict[str, Any] = {}
        self._open: list[Sample] | None = None

    @contextmanager
    def sample(self, samples: Sequence[Sample]) -> Iterator[None]:
        """One forward pass over a batch; each sample is ``{"id", "source", "tokens", "bos"}``.

        ``tokens`` are the token strings of the real (unpadded) positions, ``bos`` says whether the first is a
        beginning-of-text token. If the pass raises, nothing of it is kept.
        """
        if self._open is not None:
            raise ArgumentError("a sample is already open; close it first")
        self._open = list(samples)
        self._batch_rows: list[dict[int, dict[str, np.ndarray]]] = [{} for _ in samples]
        self._batch_streams: list[dict[int, StreamStats]] = [{} for _ in samples]
        self._batch_sums: dict[int, dict[str, np.ndarray]] = {}
        try:
            yield
            self._close()
        finally:
            self._open = None

    @torch.no_grad()
    def site(self, site: Site) -> None:
        """See one attention layer.

        Raises:
            NonFiniteError: its queries, keys, values or output hold NaN or infinity; names layer and heads.
        """
        samples = self._expect(site.q.shape[0])
        with torch.autocast(site.q.device.type, enabled=False):  # the model's products may be half, ours are not
            self._check_finite(site)
            one, sums = summarise(site, self.settings)
        bad = np.flatnonzero(~np.isfinite(one["first_sum"]).all(0))
        if bad.size:
            raise NonFiniteError(_non_finite(site.layer, bad.tolist(), "attention weights"))
        first = site.first.tolist()
        for b, n in enumerate(one["queries"].tolist()):
            if site.visibility.queries == site.visibility.keys and n != len(samples[b]["tokens"]):
                raise ArgumentError(f"sample {b} was announced with {len(samples[b]['tokens'])} tokens, but has {n}")
        for b in range(len(samples)):
            row = {name: _aside(value[b]) for name, value in one.items()}
            for name in PER_KEY:
                if name in row:  # from padded positions to the sample's own
                    row[name] = row[name][..., first[b] : first[b] + len(samples[b]["tokens"])]
            self._batch_rows[b][site.layer] = row
        self._batch_sums[site.layer] = sums
        if self._after_site is not None:
            self._after_site()

    @torch.no_grad()
    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """See the residual stream ``[b, t, D]`` before layer ``depth`` (or after the last)."""
        if not self._want_stream:
            return
        with torch.autocast(hidden.device.type, enabled=False):
            for b in range(len(self._expect(hidden.shape[0]))):
                stats = read_stream(hidden[b], None if real is None else real[b])
                self._batch_streams[b][depth] = stats

    def finish(
        self, *, model: dict[str, Any], layers: list[dict[str, Any]] | None = None, notes: Sequence[str] = ()
    ) -> Diagnosis:
        """The record of everything seen.

        Args:
            model: what was measured; needs ``name``; ``fingerprint`` decides which records merge.
            layers: per layer its name, kind, window, reason, …; default: one plain entry per layer seen.
            notes: sentences that belong on the page.
        """
        if not self._samples:
            raise ArgumentError("nothing was measured: no sample was closed")
        layers = layers or [
            {"index": i, "name": f"layer {i}", "kind": "full", "window": None, "reason": None, "write_reason": None,
             "learned_sink": False}
            for i in range(max(self._sums) + 1)
        ]  # fmt: skip
        order = sorted(range(len(self._samples)), key=lambda i: self._samples[i]["id"])
        count = len(layers)
        heads = max(row["first_sum"].shape[0] for row in self._rows[0].values())
        arrays: dict[str, np.ndarray] = {}
        names = [n for n, (axes, _) in SCHEMA.items() if axes.startswith("SL") and n in self._anyrow]
        for name in names:
            axes = SCHEMA[name][0]
            shape = (len(order), count, *((heads,) if "H" in axes else ()), *((4,) if "4" in axes else ()))
            array = np.zeros(shape, np.int64) if name in INTEGER_ROWS else np.full(shape, np.nan)
            for s, i in enumerate(order):
                for layer, row in self._rows[i].items():
                    value = row[name]
                    array[(s, layer, slice(0, len(value))) if "H" in axes else (s, layer)] = value
            arrays[name] = array
        self._stack_sums(arrays, count, heads)
        self._stack_streams(arrays, order, count)
        meta = {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "model": {"fingerprint": "", **model},
            "settings": settings_dict(self.settings),
            "layers": layers,
            "samples": [
                {k: v for k, v in self._samples[i].items() if k != "tokens"}
                | {"length": len(self._samples[i]["tokens"])}
                for i in order
            ],
            "notes": sorted(set(notes)),
            "massive": top_massive(self._massive),
            "strip": self._strip,
        }
        return Diagnosis(meta, arrays)

    # ---- private ------------------------------------------------------------------------------------------------

    @property
    def _anyrow(self) -> dict[str, np.ndarray]:
        return next(iter(self._rows[0].values()))

    def _expect(self, batch: int) -> list[Sample]:
        if self._open is None:
            raise ArgumentError("open a sample first: with probe.sample([...]):")
        if len(self._open) != batch:
            raise ArgumentError(f"{len(self._open)} samples were announced, but the batch holds {batch}")
        return self._open

    def _check_finite(self, site: Site) -> None:
        real = site.real
        per_head = torch.where(real[:, None, :, None], site.out, 0).float().abs().sum((0, 2, 3))
        if not bool(torch.isfinite(per_head.sum())):
            bad = (~torch.isfinite(per_head)).nonzero().flatten().tolist()
            if bad:  # else only the sum over heads overflowed
                raise NonFiniteError(_non_finite(site.layer, bad, "attention output"))

    def _close(self) -> None:
        assert self._open is not None
        if not self._batch_rows[0]:
            raise ArgumentError("no attention layer was seen in this sample")
        for streams in self._batch_streams:  # attention names its heads first; this is for what comes behind the last
            bad = [depth for depth, stats in streams.items() if not np.isfinite(stats["moments"][:3]).all()]
            if bad:
                raise NonFiniteError(
                    f"NaN or infinity in the residual stream before layer {min(bad)} (or after the last)"
                )
        for b, sample in enumerate(self._open):
            rows, streams = self._batch_rows[b], self._batch_streams[b]
            sample = dict(sample)
            alpha, null, writes = _alpha(rows, self.settings)
            sample["sinks"] = self._sinks(sample, rows, streams, alpha, null, writes)
            for layer, row in rows.items():
                self._add_keys(layer, row, alpha[layer], null[layer])
                for name in INTERIM:
                    row.pop(name, None)
            sample["tokens_at"] = self._tokens_at(sample, rows)
            for depth, stats in streams.items():
                total = self._stream_histogram.setdefault(depth, np.zeros_like(stats["histogram"]))
                total += stats.pop("histogram")
                for entry in stats.pop("top"):
                    token = sample["tokens"][entry["position"]]
                    self._massive.append({"layer": depth, **entry, "token": token, "sample": sample["id"]})
            self._massive = top_massive(self._massive)
            self._keep_strip(sample, alpha, null)
            self._samples.append(sample)
            self._rows.append(rows)
            self._streams.append(streams)
        for layer, sums in self._batch_sums.items():
            mine = self._sums.setdefault(layer, {})
            for name, value in sums.items():
                mine[name] = mine[name] + value if name in mine else value

    def _add_keys(self, layer: int, row: dict[str, np.ndarray], alpha: np.ndarray, null: np.ndarray) -> None:
        """α_k of one sample into the fixed-point sums, and the largest other key of each head."""
        if self.settings.detail == "first":
            return
        mine = self._sums.setdefault(layer, {})
        counted = np.isfinite(null)
        fixed = {
            "key_mass": np.rint(np.nan_to_num(alpha) * SHARE_FIXED).astype(np.int64),
            "key_null": np.rint(np.nan_to_num(null) * SHARE_FIXED).astype(np.int64),
            "key_n": counted.astype(np.int64),
        }
        for name, value in fixed.items():
            old = mine.get(name, np.zeros_like(value[..., :0]))
            length = max(old.shape[-1], value.shape[-1])
            total = np.zeros((*value.shape[:-1], length), np.int64)
            total[..., : old.shape[-1]] += old
            total[..., : value.shape[-1]] += value
            mine[name] = total
        others = np.where(counted, alpha, -1.0)[:, 1:]
        if others.shape[1] == 0 or not counted[1:].any():
            row["top_mass"] = np.full(len(alpha), np.nan)
            row["top_position"] = np.full(len(alpha), -1)
        else:
            row["top_position"] = others.argmax(1) + 1
            row["top_mass"] = others.max(1)

    def _tokens_at(self, sample: Sample, rows: dict[int, dict[str, np.ndarray]]) -> dict[str, str]:
        """The tokens at the positions a reader of the record will ask about."""
        positions = {0} | {sink["position"] for sink in sample["sinks"]}
        for row in rows.values():
            positions |= {int(p) for p in row.get("top_position", ()) if p >= 0}
        return {str(p): sample["tokens"][p] for p in sorted(positions)}

    def _sinks(
        self,
        sample: Sample,
        rows: dict[int, dict[str, np.ndarray]],
        streams: dict[int, StreamStats],
        alpha: dict[int, np.ndarray],
        null: dict[int, np.ndarray],
        writes: dict[int, np.ndarray],
    ) -> list[dict[str, Any]]:
        layers = sorted(rows)
        everything = np.concatenate([alpha[i] for i in layers])
        limit = np.concatenate(
            [np.broadcast_to(np.fmax(null[i], self.settings.threshold), alpha[i].shape) for i in layers]
        )
        write = np.concatenate([writes[i] for i in layers])
        over = np.where(np.isfinite(everything), everything, -1) > limit
        heads = over.sum(0)
        like = sum((s["like_first"].astype(int) for s in streams.values()), np.zeros(len(sample["tokens"]), int))
        positions = np.flatnonzero(heads)
        mass = np.array([np.nanmean(everything[:, j]) for j in positions])
        found = []
        for j in positions[np.argsort(-mass, kind="stable")][:SINKS_KEPT].tolist():
            values = write[over[:, j], j]
            values = values[np.isfinite(values)]
            found.append(
                {
                    "position": j,
                    "token": sample["tokens"][j],
                    "kind": token_kind(sample["tokens"][j], first=j == 0, bos=sample["bos"]),
                    "mass": float(np.nanmean(everything[:, j])),
                    "heads": int(heads[j]),
                    "top": float(np.nanmax(everything[:, j])),
                    "write": float(values.mean()) if values.size else None,
                    "secondary": bool(j > 0 and like[j] > LIKE_LAYERS),
                }
            )
        return found

    def _keep_strip(self, sample: Sample, alpha: dict[int, np.ndarray], null: dict[int, np.ndarray]) -> None:
        if self._strip and self._strip["id"] <= sample["id"]:
            return
        n = min(STRIP_TOKENS, len(sample["tokens"]), *(a.shape[-1] for a in alpha.values()))
        mass = np.concatenate([a[:, :n] for a in alpha.values()])
        nulls = np.stack([x[:n] for x in null.values()])
        seen = np.isfinite(nulls).any(0)
        self._strip = {
            "id": sample["id"],
            "tokens": sample["tokens"][:n],
            "mass": [float(np.nanmean(mass[:, j])) if seen[j] else None for j in range(n)],
            "null": [float(np.nanmean(nulls[:, j])) if seen[j] else None for j in range(n)],
        }

    def _stack_sums(self, arrays: dict[str, np.ndarray], layers: int, heads: int) -> None:
        length = max((s["key_n"].shape[-1] for s in self._sums.values() if "key_n" in s), default=0)
        widths = {"T": length, "B": CURVE_BINS}
        for name, (axes, _) in SCHEMA.items():
            if axes[0] != "L" or not any(name in s for s in self._sums.values()):
                continue
            width = SHARE_BINS if name == "share_histogram" else widths[axes[-1]]
            array = np.zeros((layers, *((heads,) if "H" in axes else ()), width), np.int64)
            for layer, sums in self._sums.items():
                value = sums[name]
                place: Any = (layer, *(slice(n) for n in value.shape))
                array[place] = value
            arrays[name] = array

    def _stack_streams(self, arrays: dict[str, np.ndarray], order: list[int], layers: int) -> None:
        if not self._stream_histogram:
            return
        depths = range(layers + 1)
        nothing: dict[str, Any] = {"moments": np.full(5, np.nan), "first": np.nan, "rest": np.nan}
        for name in ("moments", "first", "rest"):
            arrays[f"stream_{name}"] = np.array(
                [[self._streams[i].get(depth, nothing)[name] for depth in depths] for i in order],
                dtype=np.float64,
            )
        empty = np.zeros_like(next(iter(self._stream_histogram.values())))
        arrays["stream_histogram"] = np.stack([self._stream_histogram.get(depth, empty) for depth in depths])


def _alpha(
    rows: dict[int, dict[str, np.ndarray]], settings: Settings
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Per layer: α_k ``[h, T]`` and its null ``[T]``, NaN where too few queries see the key, and what it writes."""
    alpha, null, writes = {}, {}, {}
    for layer, row in rows.items():
        if settings.detail == "first":
            alpha[layer] = row["alpha4"]
            null[layer] = np.where(row["n4"] >= settings.min_queries, row["null4"], np.nan)
            alpha[layer] = np.where(np.isfinite(null[layer]), alpha[layer], np.nan)
            writes[layer] = np.full_like(alpha[layer], np.nan)
            continue
        n = row["column_n"].astype(float)
        enough = n >= settings.min_queries
        n = np.where(enough, n, np.nan)
        alpha[layer] = row["columns"] / n
        null[layer] = row["column_null"] / n
        with np.errstate(divide="ignore", invalid="ignore"):
            writes[layer] = (
                row["key_writes"] / row["all_write"][:, None]
                if "key_writes" in row
                else np.full_like(alpha[layer], np.nan)
            )
    return alpha, null, writes


def _aside(array: np.ndarray) -> np.ndarray:
    """A copy outside the allocator's heap, if it is large.

    What is kept from layer to layer must not lie between the temporaries of one layer and of the next: the heap
    could then use none of the holes again, and grew by 300 MB over 30 layers.
    """
    if array.nbytes < 2**15:
        return np.array(array)
    copy = np.frombuffer(mmap.mmap(-1, array.nbytes), array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _non_finite(layer: int, heads: list[int], what: str) -> str:
    listed = ", ".join(map(str, heads[:8])) + (", …" if len(heads) > 8 else "")
    return f"layer {layer}, head{'s' if len(heads) > 1 else ''} {listed}: NaN or infinity in the {what}"
