"""What acts did, as a record: per sample, beside its control, with intervals and a verdict that follows from them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkgate.errors import ArgumentError, OutputError, RecordError
from sinkgate.files import BROKEN, jsonable, read_json, typed, write_atomically
from sinkgate.record import Interval, student_interval

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Effects", "HeadEffect", "Row"]

FORMAT, VERSION = "sinkgate.effects", 1


@dataclass
class Row:
    """One arm: an act (or its control) on every text.

    Args:
        label: what was done.
        kind: ``untouched``, ``act``, ``own`` (a caller's act) or ``control``.
        pair: the label of the act whose control this is (an act: its own).
        act: its settings, on the first text.
        loss: per text, nats per token.
        kl: per text, KL(untouched ‖ this) in nats per token.
        agreement: per text, share of positions with the same most likely token.
        metric: per text, the caller's metric.
    """

    label: str
    kind: str
    pair: str
    act: dict[str, Any] = field(default_factory=dict)
    loss: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    metric: list[float] = field(default_factory=list)


@dataclass
class HeadEffect:
    """Eviction at one head alone.

    Args:
        layer: from 0.
        head: from 0.
        chosen: ``top`` (of the screening) or ``random`` (the control).
        screened: estimated change of the loss, to first order.
        amplification: predicted by the probe: geometric mean of 1/(1−p_s); NaN if the sink is not the first token.
        sink_write: the same: mean ``p_s‖W_O v_s‖``.
        loss: measured, per text, as in :class:`Row`; so are the following.
        kl: see there.
        agreement: see there.
        metric: see there.
    """

    layer: int
    head: int
    chosen: str
    screened: float
    amplification: float
    sink_write: float
    loss: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    agreement: list[float] = field(default_factory=list)
    metric: list[float] = field(default_factory=list)


@dataclass
class Effects:
    """Result of :func:`sinkgate.intervene`; prints as a table and a verdict.

    Args:
        meta: model, settings, texts, targets, controls, notes.
        rows: the arms, a control behind its act.
        heads: heads acted on one by one.
        estimates: the screening's estimate for every head: ``{"layer": …, "head": …, "value": …}``.
    """

    meta: dict[str, Any]
    rows: list[Row]
    heads: list[HeadEffect] = field(default_factory=list)
    estimates: list[dict[str, Any]] = field(default_factory=list)

    # ---- numbers ------------------------------------------------------------------------------------------------

    def row(self, label: str, kind: str | None = None) -> Row:
        """One arm; without a kind, any but the controls.

        Raises:
            ArgumentError: there is none of this label; names those there are.
        """
        there = [r for r in self.rows if (r.kind == kind if kind else r.kind != "control")]
        for row in there:
            if row.label == label:
                return row
        raise ArgumentError(f"no {kind or 'act'} {label!r} was measured; there are {', '.join(r.label for r in there)}")

    @property
    def untouched(self) -> Row:
        """The model as it is."""
        return next(row for row in self.rows if row.kind == "untouched")

    @property
    def samples(self) -> int:
        """How many texts were scored."""
        return len(self.untouched.loss)

    def control(self, row: Row) -> Row | None:
        """An act's matched control."""
        return next((r for r in self.rows if r.kind == "control" and r.pair == row.label), None)

    def mean(self, row: Row | HeadEffect, of: str) -> Interval:
        """Mean of ``loss``, ``kl``, ``agreement`` or ``metric`` with its 95% interval over texts."""
        return student_interval(np.asarray(getattr(row, of), float))

    def change(self, row: Row | HeadEffect, of: str = "loss") -> Interval:
        """Mean change against the untouched model with its 95% interval over texts (paired)."""
        return student_interval(np.asarray(getattr(row, of)) - np.asarray(getattr(self.untouched, of)))

    def excess(self, row: Row, of: str = "loss") -> Interval | None:
        """The same against the control, text by text; None without one."""
        control = self.control(row)
        if control is None:
            return None
        return student_interval(np.asarray(getattr(row, of)) - np.asarray(getattr(control, of)))

    def kept(self, row: Row) -> Interval | None:
        """For pairs: ``(m(act) − m(corrupted)) / (m(clean) − m(corrupted))``, 1 where nothing is lost.

        Over the pairs whose two prompts differ in the metric; None where none does.
        """
        corrupted = self.meta.get("corrupted_metric")
        if not corrupted or not row.metric:
            return None
        clean, acted, other = (np.asarray(x, float) for x in (self.untouched.metric, row.metric, corrupted))
        differ = clean != other
        if not differ.any():
            return None
        return student_interval(((acted - other)[differ]) / ((clean - other)[differ]))

    def rank_correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's ρ over the heads acted on, of each prediction with the measured KL; with p-value and n."""
        from scipy.stats import spearmanr

        measured = np.array([np.mean(h.kl) for h in self.heads])
        found = {}
        for name, values in (
            ("screening", np.abs([h.screened for h in self.heads])),
            ("amplification 1/(1−p_s)", np.array([h.amplification for h in self.heads])),
            ("sink write p_s‖W_O v_s‖", np.array([h.sink_write for h in self.heads])),
        ):
            ok = ~np.isnan(values) & ~np.isnan(measured)
            if ok.sum() >= 4 and len(set(values[ok])) > 1 and len(set(measured[ok])) > 1:
                rho, p = spearmanr(values[ok], measured[ok])
                found[name] = {"rho": float(rho), "p": float(p), "n": int(ok.sum())}
        return found

    # ---- keeping ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, written beside and renamed; a directory gets ``effects.json``.

        Raises:
            OutputError: it cannot be written.
        """
        path = Path(path)
        path = path / "effects.json" if path.is_dir() else path
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(jsonable(data), ensure_ascii=False, allow_nan=False, indent=1).encode())
        except OSError as err:
            raise OutputError(
                f"cannot write the effects to {path}: {err.strerror or err}; choose another --out"
            ) from err
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Effects:
        """Open a saved record, without the model.

        Raises:
            RecordError: there is none, it is damaged, or of another version.
        """
        path = Path(path)
        path = path / "effects.json" if path.is_dir() else path
        try:
            data = read_json(path, "a readable record")
        except FileNotFoundError:
            raise RecordError(f"no effects at {path}") from None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise RecordError(f"{path} holds no sinkgate effects")
        version = data.pop("version", None)
        if version != VERSION or isinstance(version, bool):
            raise RecordError(f"{path} is a record of version {version!r}; this sinkgate reads version {VERSION}")
        try:
            rows = [Row(**fields) for fields in data["rows"]]
            heads = [HeadEffect(**fields) for fields in data["heads"]]
            found = cls(data["meta"], rows, heads, data["estimates"])
            for row in rows:
                _numbers(row, found.samples)
            for head in heads:
                _numbers(head, found.samples)
            for name in ("model", "settings", "target", "notes", "targets", "bos", "where"):
                found.meta[name]
            typed(
                "its text",
                found.meta,
                {"model": dict, "settings": dict, "target": str, "notes": list, "where": (str, list, tuple, dict)},
            )
            typed("its model", found.meta["model"], {"name": str})
            for head in heads:
                typed("a head", vars(head), {"layer": int, "head": int, "chosen": str})
            for row in rows:
                typed("an arm", vars(row), {"label": str, "kind": str, "pair": str, "act": dict})
            for estimate in found.estimates:
                typed("an estimate", estimate, {"layer": int, "head": int, "value": (int, float, type(None))})
            found.meta["settings"]["burn_in"]
            str(found)  # asks for what a reader is promised
        except (*BROKEN, RecordError, StopIteration) as err:
            raise RecordError(f"{path} is damaged: {err}") from err
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per arm (``pip install 'sinkgate[frame]'``)."""
        try:
            import pandas as pd
        except ModuleNotFoundError as err:
            raise ArgumentError("to_frame needs pandas: pip install 'sinkgate[frame]'") from err
        return pd.DataFrame([self.summary(row) for row in self.rows])

    def summary(self, row: Row) -> dict[str, Any]:
        """The numbers of one arm."""
        found = {"label": row.label, "kind": row.kind, "perplexity": float(np.exp(np.mean(row.loss)))}
        found |= _interval("loss_change", self.change(row))
        found |= _interval("kl", self.mean(row, "kl"))
        found |= _interval("agreement", self.mean(row, "agreement"))
        found["samples"] = self.samples
        if (excess := self.excess(row)) is not None:
            found |= _interval("over_control", excess)
        if row.metric:
            found |= _interval("metric", self.mean(row, "metric"))
            found |= _interval("metric_change", self.change(row, "metric"))
        if (kept := self.kept(row)) is not None:
            found |= _interval("kept", kept)
        return found

    def head_summary(self, head: HeadEffect) -> dict[str, Any]:
        """The numbers of one head."""
        names = ("layer", "head", "chosen", "screened", "amplification", "sink_write")
        found = {name: getattr(head, name) for name in names}
        found |= _interval("loss_change", self.change(head)) | _interval("kl", self.mean(head, "kl"))
        return found | _interval("agreement", self.mean(head, "agreement"))

    def verdict(self) -> list[str]:
        """What the numbers say the sink is."""
        from sinkgate.interventions.verdict import verdict

        return verdict(self)

    def __str__(self) -> str:
        from sinkgate.interventions.table import text

        return text(self)


def _interval(name: str, interval: Interval) -> dict[str, float]:
    return {name: float(interval.mean), f"{name}_low": float(interval.low), f"{name}_high": float(interval.high)}


def _numbers(row: Row | HeadEffect, samples: int) -> None:
    """What was kept as null is NaN again.

    Raises:
        ValueError: an entry that is no number, or not one for each text.
    """
    nan = float("nan")
    for name in ("loss", "kl", "agreement", "metric"):
        values = [nan if x is None else float(x) for x in getattr(row, name)]
        if len(values) != samples and (values or name != "metric"):
            raise ValueError(f"{name} has {len(values)} numbers for {samples} texts")
        setattr(row, name, values)
    if isinstance(row, HeadEffect):
        for name in ("screened", "amplification", "sink_write"):
            value = getattr(row, name)
            setattr(row, name, nan if value is None else float(value))
