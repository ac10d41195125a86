"""What acts did, as a record: per sample, beside its control, with intervals and a verdict that follows from them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkgate.errors import ArgumentError, OutputError, RecordError
from sinkgate.record import Interval, student_interval
from sinkgate.storage import jsonable, write_atomically

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Effects", "HeadEffect", "Row"]

FORMAT, VERSION = "sinkgate.effects", 1


@dataclass
class Row:
    """One arm: an act (or its control) on every sample.

    Args:
        label: what was done.
        kind: ``untouched``, ``act`` or ``control``.
        pair: the label of the act whose control this is (an act: its own).
        act: its settings.
        loss: per sample, nats per token.
        kl: per sample, KL(untouched ‖ this) in nats.
        agreement: per sample, share of positions with the same most likely token.
        metric: per sample, the caller's metric.
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
    """One head, acted on alone.

    Args:
        layer: from 0.
        head: from 0.
        chosen: ``top`` (of the screening) or ``random`` (the control).
        screened: estimated change of the loss, to first order.
        kl: measured, mean over samples.
        loss: measured change of the loss, mean over samples.
        low: of its interval.
        high: of its interval.
        amplification: geometric mean of 1/(1−p_s), from the probe.
        sink_write: mean ``p_s‖W_O v_s‖``, from the probe.
    """

    layer: int
    head: int
    chosen: str
    screened: float
    kl: float
    loss: float
    low: float
    high: float
    amplification: float
    sink_write: float


@dataclass
class Effects:
    """Result of :func:`sinkgate.interventions`; prints as a table and a verdict.

    Args:
        meta: model, settings, texts, notes.
        rows: the arms.
        heads: heads acted on one by one.
        estimates: the screening's estimate for every ``(layer, head)``: ``{"layer": …, "head": …, "value": …}``.
    """

    meta: dict[str, Any]
    rows: list[Row]
    heads: list[HeadEffect] = field(default_factory=list)
    estimates: list[dict[str, Any]] = field(default_factory=list)

    # ---- numbers ------------------------------------------------------------------------------------------------

    def row(self, label: str, kind: str = "act") -> Row:
        """One arm.

        Raises:
            ArgumentError: there is none of this label; names those there are.
        """
        for row in self.rows:
            if row.label == label and row.kind == kind:
                return row
        there = ", ".join(r.label for r in self.rows if r.kind == kind)
        raise ArgumentError(f"no {kind} {label!r} was measured; there are {there}")

    @property
    def untouched(self) -> Row:
        """The model as it is."""
        return next(row for row in self.rows if row.kind == "untouched")

    def control(self, row: Row) -> Row | None:
        """An act's matched control."""
        return next((r for r in self.rows if r.kind == "control" and r.pair == row.label), None)

    def change(self, row: Row, of: str = "loss") -> Interval:
        """Mean change against the untouched model with its 95% interval over samples (paired)."""
        return student_interval(np.asarray(getattr(row, of)) - np.asarray(getattr(self.untouched, of)))

    def excess(self, row: Row, of: str = "loss") -> Interval | None:
        """The same against the control, sample by sample; None without one."""
        control = self.control(row)
        if control is None:
            return None
        return student_interval(np.asarray(getattr(row, of)) - np.asarray(getattr(control, of)))

    def kept(self, row: Row) -> Interval | None:
        """For clean/corrupted pairs: ``(m(act) − m(corrupted)) / (m(clean) − m(corrupted))``, 1 where nothing is lost."""
        corrupted = self.meta.get("corrupted_metric")
        if not corrupted or not row.metric:
            return None
        clean, acted, other = np.asarray(self.untouched.metric), np.asarray(row.metric), np.asarray(corrupted)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(clean != other, (acted - other) / (clean - other), np.nan)
        return student_interval(share[~np.isnan(share)])

    def rank_correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's ρ over the confirmed heads, of each prediction with the measured KL; with p-value and n."""
        from scipy.stats import spearmanr

        measured = np.array([h.kl for h in self.heads])
        found = {}
        for name, values in (
            ("screening", np.abs([h.screened for h in self.heads])),
            ("amplification 1/(1−p_s)", np.array([h.amplification for h in self.heads])),
            ("sink write p_s‖W_O v_s‖", np.array([h.sink_write for h in self.heads])),
        ):
            ok = np.isfinite(values) & np.isfinite(measured)
            if ok.sum() >= 4 and len(set(values[ok])) > 1 and len(set(measured[ok])) > 1:
                rho, p = spearmanr(values[ok], measured[ok])
                found[name] = {"rho": float(rho), "p": float(p), "n": int(ok.sum())}
        return found

    # ---- keeping ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """One JSON file, written beside and renamed.

        Raises:
            OutputError: it cannot be written.
        """
        path = Path(path)
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(jsonable(data), ensure_ascii=False, indent=1).encode())
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
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecordError(f"no effects at {path}") from None
        except (OSError, ValueError) as err:
            raise RecordError(f"{path} is not a readable record: {err}") from err
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise RecordError(f"{path} holds no sinkgate effects")
        version = data.pop("version", None)
        if version != VERSION:
            raise RecordError(f"{path} is a record of version {version!r}; this sinkgate reads version {VERSION}")
        nan = float("nan")
        try:
            rows = [Row(**row) for row in data["rows"]]
            filled: list[dict[str, Any]] = [{k: nan if v is None else v for k, v in h.items()} for h in data["heads"]]
            heads = [HeadEffect(**h) for h in filled]
            return cls(data["meta"], rows, heads, data["estimates"])
        except (KeyError, TypeError, AttributeError) as err:
            raise RecordError(f"{path} is damaged: {err}") from err

    def to_frame(self) -> pd.DataFrame:
        """One row per arm (``pip install 'sinkgate[frame]'``)."""
        try:
            import pandas as pd
        except ModuleNotFoundError as err:
            raise ArgumentError("to_frame needs pandas: pip install 'sinkgate[frame]'") from err
        return pd.DataFrame([self.summary(row) for row in self.rows])

    def summary(self, row: Row) -> dict[str, Any]:
        """The numbers of one arm, as the table prints them."""
        change, kl, same = (
            self.change(row),
            student_interval(np.asarray(row.kl)),
            student_interval(np.asarray(row.agreement)),
        )
        excess = self.excess(row)
        found = {
            "label": row.label, "kind": row.kind, "perplexity": float(np.exp(np.mean(row.loss))),
            "loss_change": float(change.mean), "loss_low": float(change.low), "loss_high": float(change.high),
            "kl": float(kl.mean), "kl_low": float(kl.low), "kl_high": float(kl.high),
            "agreement": float(same.mean), "agreement_low": float(same.low), "agreement_high": float(same.high),
            "samples": len(row.loss),
        }  # fmt: skip
        if excess is not None:
            found |= {
                "over_control": float(excess.mean),
                "over_low": float(excess.low),
                "over_high": float(excess.high),
            }
        if row.metric:
            found["metric"] = float(np.mean(row.metric))
        if (kept := self.kept(row)) is not None:
            found |= {"kept": float(kept.mean), "kept_low": float(kept.low), "kept_high": float(kept.high)}
        return found

    def verdict(self) -> list[str]:
        """What the numbers say the sink is."""
        from sinkgate.interventions.verdict import verdict

        return verdict(self)

    def __str__(self) -> str:
        from sinkgate.interventions.verdict import text

        return text(self)
