"""What training an outlet did, as a record: before, after, and on random heads."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.errors import RecordError
from sinkgate.files import save_json
from sinkgate.record import student_interval

__all__ = ["Measured", "TrainedOutlet"]

FORMAT, VERSION = "sinkgate.trained_outlet", 1


def _text_of(piece: str) -> str:
    """The text that a piece, ``name[start:end]``, was cut from."""
    return piece.rpartition("[")[0] or piece


def _nats(interval: Any) -> str:
    mean, low, high = (float(x) for x in (interval.mean, interval.low, interval.high))
    return f"{mean:+.3f}" if math.isnan(low) else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"


@dataclass
class Measured:
    """A model on held-out texts, per text.

    Args:
        loss: nats per token behind the burn-in.
        evicted: the same with the first tokens evicted from the burn-in on.
        first_mass: mean weight on the first token over layers, heads and queries.
        outlet_mass: mean weight that the outlet takes.
    """

    loss: list[float]
    evicted: list[float]
    first_mass: list[float]
    outlet_mass: list[float]


@dataclass
class TrainedOutlet:
    """Result of :func:`sinkgate.train_outlet`.

    Args:
        meta: model, outlet, settings, heads, texts.
        before: without the outlet.
        after: with the trained outlet.
        control: with the same outlet trained as long on random other heads; None where there was none.
    """

    meta: dict[str, Any]
    before: Measured
    after: Measured
    control: Measured | None = None
    control_heads: list[list[int]] = field(default_factory=list)

    def cost(self, of: Measured) -> Any:
        """What evicting the first tokens costs: mean change of the loss, with its interval over texts."""
        return student_interval(self._by_text(np.array(of.evicted) - np.array(of.loss)))

    def change(self, of: Measured) -> Any:
        """Change of the held-out loss against the model without an outlet, paired by text."""
        return student_interval(self._by_text(np.array(of.loss) - np.array(self.before.loss)))

    def _by_text(self, values: np.ndarray) -> np.ndarray:
        """Means over the pieces of each text: two pieces of one text are not two independent samples.

        Of a single text the pieces themselves, which :meth:`__str__` says.
        """
        texts: dict[str, list[float]] = {}
        for source, value in zip(self.meta["held_out"], values, strict=True):
            texts.setdefault(_text_of(source), []).append(value)
        return values if len(texts) == 1 else np.array([np.mean(pieces) for pieces in texts.values()])

    def taken_over(self, of: Measured) -> float:
        """Share of the eviction's cost, against the untouched model with everything, that is gone."""
        whole = np.mean(self.before.evicted) - np.mean(self.before.loss)
        left = np.mean(of.evicted) - np.mean(self.before.loss)
        return float(1 - left / whole) if whole > 0 else math.nan

    def save(self, path: Path) -> None:
        """As JSON, written beside and renamed."""
        data = {"format": FORMAT, "version": VERSION, **asdict(self)}
        save_json(path, data, indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainedOutlet:
        """Open a saved one.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT or data.pop("version") != VERSION:
                raise RecordError(f"{path} is no trained outlet of version {VERSION}")
            for name in ("before", "after", "control"):
                data[name] = None if data[name] is None else Measured(**data[name])
            return cls(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            raise RecordError(f"{path} is not a readable record of a trained outlet: {err}") from err

    def verdict(self) -> str:
        """The answer in a sentence."""
        cost, share = self.cost(self.before), self.taken_over(self.after)
        end = f"After {self.meta['loop']['steps']} steps eviction leaves {np.mean(self.after.evicted) - np.mean(self.before.loss):+.3f} nats over the untouched model"
        if not float(cost.low) > 0 or math.isnan(share):  # NaN, with one text, too
            return "Evicting the first tokens costs nothing that can be told here, so there is nothing to take over."
        told = "takes over" if share > 0.8 else "takes over in part" if share > 0.2 else "does not take over"
        beside = ""
        if self.control is not None:
            beside = f"; on {len(self.control_heads)} random other heads: {self.taken_over(self.control):.0%}"
        return f"{end}: the outlet {told} ({share:.0%} of what eviction cost is gone{beside})."

    def __str__(self) -> str:
        rows = [("without", self.before), ("with the outlet", self.after)]
        rows += [("on random heads", self.control)] if self.control is not None else []
        meta = self.meta
        texts = len({_text_of(s) for s in meta["held_out"]})
        heads = "all heads" if meta["heads"] is None else f"{len(meta['heads'])} heads"
        lines = [
            f"{meta['model']['name']}: {meta['outlet']['kind']} on {heads}, {meta['parameters']:,} parameters, "
            f"{meta['loop']['steps']} steps of {meta['task']['tokens']} tokens; {len(self.before.loss)} held-out pieces of "
            + ("one text, the intervals over its pieces" if texts == 1 else f"{texts} texts, the intervals over texts"),
            "", self.verdict(), "",
            f"{'':>16} {'loss':>8} {'change [95%]':>26} {'first evicted':>14} {'its cost [95%]':>26} {'first token':>11} {'outlet':>7}",
        ]  # fmt: skip
        for name, row in rows:
            change = "" if row is self.before else _nats(self.change(row))
            lines.append(
                f"{name:>16} {np.mean(row.loss):8.4f} {change:>26} {np.mean(row.evicted):14.4f} {_nats(self.cost(row)):>26} "
                f"{np.mean(row.first_mass):11.3f} {np.mean(row.outlet_mass):7.3f}"
            )
        return "\n".join(lines)
