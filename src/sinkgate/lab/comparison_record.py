"""The result of a comparison as a record: every piece, and what follows from them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.errors import ArgumentError, RecordError
from sinkgate.files import BROKEN, read_json, save_json, typed
from sinkgate.record import Interval, student_interval

__all__ = ["Comparison"]

FORMAT, VERSION = "sinkgate.comparison", 1
PARTS = {
    "piece",
    "arm",
    "loop",
    "parameters",
    "steps",
    "diverged",
    "select",
    "test",
    "curve",
    "spikes",
    "cost",
}  # of a piece
_NULL = type(None)
_META = {
    "plan": dict,
    "environment": dict,
    "headline": str,
    "higher": bool,
    "shown": list,
    "arms": list,
    "best_lr": dict,
    "cost": dict,
}
_PIECE = {"piece": dict, "arm": str, "parameters": int, "steps": int, "diverged": (dict, _NULL), "select": dict, "test": dict,
          "curve": list, "spikes": list, "cost": dict}  # fmt: skip
MINUTES = 40  # a piece that takes longer should be cut
NO_DIFFERENCE = (
    "{arm} against {base}: no difference found at this size ({name} {difference}, {n} seeds; one smaller than {half} "
    "could not have been seen)."
)


@dataclass
class Comparison:
    """What :func:`sinkgate.compare` found; prints as a table.

    Args:
        meta: ``plan``, ``environment``, ``headline`` (what is compared), ``higher``, ``shown``, ``arms`` (names, the first is
            the baseline), ``best_lr`` by arm, ``cost`` by arm.
        pieces: records of :func:`sinkgate.lab.pieces.run_piece`.
    """

    meta: dict[str, Any]
    pieces: list[dict[str, Any]]

    # ---- values -------------------------------------------------------------------------------------------------

    @property
    def arms(self) -> list[str]:
        """Their names; the first is the baseline."""
        return list(self.meta["arms"])

    def piece(self, arm: str, lr: float, seed: int) -> dict[str, Any] | None:
        """One piece's record, or None."""
        for piece in self.pieces:
            if piece["arm"] == arm and piece["piece"]["lr"] == lr and piece["piece"]["seed"] == seed:
                return piece
        return None

    def at_best(self, arm: str) -> list[dict[str, Any]]:
        """The pieces of an arm at its best rate, one per seed, in the plan's order.

        Raises:
            ArgumentError: there is no such arm.
        """
        if arm not in self.arms:
            raise ArgumentError(f"no arm {arm!r}; there are {', '.join(self.arms)}")
        lr = self.meta["best_lr"][arm]
        found = [self.piece(arm, lr, seed) for seed in self.meta["plan"]["seeds"]]
        return [piece for piece in found if piece is not None]

    def values(self, arm: str, name: str, part: str = "test") -> np.ndarray:
        """One number per seed, at the arm's best rate; NaN where it diverged or has none."""
        found = [None if piece["diverged"] else piece[part].get(name) for piece in self.at_best(arm)]
        return np.array([math.nan if x is None or isinstance(x, list) else float(x) for x in found])

    def interval(self, arm: str, name: str) -> Interval:
        """Mean over seeds with its 95% interval; seeds without the number are left out (``samples`` says how many are there)."""
        values = self.values(arm, name)
        values = values[np.isfinite(values)]
        return student_interval(values) if len(values) else Interval(*(np.array(math.nan),) * 3, 0.95, 0)

    def difference(self, arm: str, name: str | None = None, *, base: str | None = None) -> Interval:
        """``arm − base``, paired by seed, over the seeds that both have; default: of the headline, from the first arm."""
        name = self.meta["headline"] if name is None else name
        both = self.values(arm, name) - self.values(self.arms[0] if base is None else base, name)
        both = both[np.isfinite(both)]
        return student_interval(both) if len(both) else Interval(*(np.array(math.nan),) * 3, 0.95, 0)

    def diverged(self, arm: str) -> list[dict[str, Any]]:
        """The arm's pieces that diverged, at any rate."""
        return [piece for piece in self.pieces if piece["arm"] == arm and piece["diverged"]]

    def sweep(self, arm: str) -> dict[float, list[float]]:
        """Rate → the headline on the part for choosing, by seed of the sweep; NaN where it diverged."""
        plan = self.meta["plan"]
        rates = sorted({p["piece"]["lr"] for p in self.pieces if p["arm"] == arm})
        found: dict[float, list[float]] = {}
        for lr in rates:
            tried = (self.piece(arm, lr, seed) for seed in plan["seeds"][: plan["sweep"]])
            numbers = [None if p["diverged"] else p["select"].get(self.meta["headline"]) for p in tried if p]
            found[lr] = [math.nan if x is None else x for x in numbers]
        return found

    # ---- words --------------------------------------------------------------------------------------------------

    def told_apart(self, arm: str, name: str | None = None) -> str:
        """``"better"``, ``"worse"``, ``"no difference found"``, or why nothing can be said; of a number that is not the
        headline ``"higher"`` or ``"lower"``."""
        found = self.difference(arm, name)
        if found.samples == 0:
            return "nothing to compare (diverged)"
        if found.samples == 1:
            return "one seed: no spread, nothing can be said"
        if float(found.low) <= 0 <= float(found.high):
            return "no difference found"
        more = float(found.mean) > 0
        if name is not None and name != self.meta["headline"]:
            return "higher" if more else "lower"
        return "better" if more == self.meta["higher"] else "worse"

    def sentences(self) -> list[str]:
        """What can be said, in plain words."""
        return [sentence.format(**values) for sentence, values in self.said()]

    def said(self) -> list[tuple[str, dict[str, str]]]:
        """The same as sentences with {gaps} and what belongs in them, for a page in another language."""
        base, name = self.arms[0], self.meta["headline"]
        said: list[tuple[str, dict[str, Any]]] = []
        for arm in self.arms[1:]:
            found, told = self.difference(arm), self.told_apart(arm)
            values = {"arm": arm, "base": base, "name": name, "difference": _signed(found), "n": found.samples}
            if told in ("better", "worse"):
                said.append(
                    (f"{{arm}} is {told} than {{base}}: {{name}} {{difference}}, paired over {{n}} seeds.", values)
                )
            elif told == "no difference found":
                half = f"{(float(found.high) - float(found.low)) / 2:.2g}"
                said.append((NO_DIFFERENCE, values | {"half": half}))
            else:
                said.append((f"{{arm}} against {{base}}: {told}.", values))
        for arm in self.arms:
            if gone := self.diverged(arm):
                rates = ", ".join(f"{x:g}" for x in sorted({p["piece"]["lr"] for p in gone}))
                sentence = f"{{arm}} diverged at learning rate {{rates}} ({{n}} run{'s' * (len(gone) > 1)})."
                said.append((sentence, {"arm": arm, "rates": rates, "n": len(gone)}))
            tried, best = self.sweep(arm), self.meta["best_lr"][arm]
            ends = sorted(tried)
            if len(ends) > 1 and best in (ends[0], ends[-1]) and any(math.isfinite(x) for x in tried[best]):
                end = "lowest" if best == ends[0] else "highest"
                said.append((f"{{arm}} was best at the {end} rate tried: its best one may lie beyond.", {"arm": arm}))
        slow = [p for p in self.pieces if (p["cost"]["seconds_per_step"] or 0) * p["steps"] > 60 * MINUTES]
        if slow:
            said.append(("{n} pieces took over {minutes} minutes.", {"n": len(slow), "minutes": MINUTES}))
        if lost := sum(p["cost"]["attempts"] - 1 for p in self.pieces):
            said.append(("{n} times a piece was taken up again, after a kill or a lost worker.", {"n": lost}))
        return [(sentence, {key: str(value) for key, value in values.items()}) for sentence, values in said]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and rows as text."""
        name, shown = self.meta["headline"], [n for n in self.meta["shown"] if self._any(n)]
        extra = [n for n in ("gate_mean", "dead_heads", "mass") if n not in shown and self._telling(n)]
        columns = [
            "arm",
            "lr",
            name,
            "difference [95%]",
            "told",
            *shown,
            *extra,
            "spikes",
            "diverged",
            "parameters",
            "time",
        ]
        rows = []
        for arm in self.arms:
            pieces = self.at_best(arm)
            first = arm == self.arms[0]
            cost = self.meta["cost"].get(arm, {}).get("ratio")
            rows.append([
                arm, f"{self.meta['best_lr'][arm]:g}", _plain(self.interval(arm, name)),
                "" if first else _signed(self.difference(arm)), "baseline" if first else self.told_apart(arm),
                *(_number(float(self.interval(arm, n).mean)) for n in (*shown, *extra)),
                str(sum(len(p["spikes"]) for p in pieces)), f"{len(self.diverged(arm))}/{sum(p['arm'] == arm for p in self.pieces)}",
                f"{pieces[0]['parameters']:,}" if pieces else "", "" if cost is None else f"{cost:.2f}",
            ])  # fmt: skip
        return columns, rows

    def __str__(self) -> str:
        columns, rows = self.table()
        widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
        line = lambda row: "  ".join(  # noqa: E731
            x.ljust(w) if i in (0, 4) else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        plan, env = self.meta["plan"], self.meta["environment"]
        steps = sorted({p["steps"] for p in self.pieces})
        head = (
            f"{plan['task']['name']}: {len(self.arms)} arms, {len(plan['seeds'])} seeds, {_range(steps)} steps; on {env['device']}, "
            f"{env['threads']} threads, code {env['code']}"
        )
        return "\n".join([head, "", line(columns), *map(line, rows), "", *self.sentences()])

    # ---- files --------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As JSON, written beside and renamed.

        Raises:
            OutputError: it cannot be written.
        """
        return save_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"format": FORMAT, "version": VERSION, "meta": self.meta, "pieces": self.pieces}

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report: one HTML file that works offline and asks no host for anything.

        Raises:
            OutputError: it cannot be written.
        """
        from sinkgate.report.comparison import write

        return write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Comparison:
        """Open a saved one; a folder's ``record.json``, too.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        path = Path(path)
        path = path / "record.json" if path.is_dir() else path
        try:
            data = read_json(path, "a readable comparison")
            version = data["version"]
            if data["format"] != FORMAT or version != VERSION or isinstance(version, bool):
                raise RecordError(f"{path} is no comparison of version {VERSION}: its version is {version!r}"[:300])
            typed("its text", data, {"meta": dict, "pieces": list})
            typed("its text", data["meta"], _META)
            typed("its plan", data["meta"]["plan"], {"task": dict, "seeds": list, "sweep": int})
            typed("its task", data["meta"]["plan"]["task"], {"name": str})
            if not all(isinstance(name, str) for name in (*data["meta"]["arms"], *data["meta"]["shown"])):
                raise RecordError("an arm's or a number's name is not text")
            record = cls(data["meta"], data["pieces"])
            if lacking := sorted({name for piece in record.pieces for name in PARTS - piece.keys()}):
                raise RecordError(f"{path} is a damaged comparison: a piece lacks {', '.join(lacking)}")
            for piece in record.pieces:
                typed("a piece", piece, _PIECE)
                for line in piece["curve"]:
                    typed("a curve's line", line, {"step": int})
            if not all(record.at_best(arm) for arm in record.arms):
                raise RecordError(f"{path} is a damaged comparison: an arm has no piece at its best rate")
            str(record), record.meta["environment"]["code"]  # asks for what a reader is promised
            return record
        except RecordError as err:
            line = str(err)
            raise (err if str(path) in line else RecordError(f"{path} is a damaged comparison: {line}")) from err
        except BROKEN as err:
            raise RecordError(f"{path} is not a readable comparison: {err}") from err

    # ---- private ------------------------------------------------------------------------------------------------

    def _any(self, name: str) -> bool:
        return any(np.isfinite(self.values(arm, name)).any() for arm in self.arms)

    def _telling(self, name: str) -> bool:
        """Whether a number is there, and not the same in all arms (the mass of softmax is no news)."""
        found = np.concatenate([self.values(arm, name) for arm in self.arms])
        found = found[np.isfinite(found)]
        return bool(len(found)) and bool(np.ptp(found) > 1e-3 or name == "gate_mean")


def _number(x: float) -> str:
    return "—" if not math.isfinite(x) else f"{x:.4g}" if abs(x) < 1e4 else f"{x:.2e}"


def _plain(interval: Interval) -> str:
    mean, low, high = (float(x) for x in (interval.mean, interval.low, interval.high))
    return _number(mean) if math.isnan(low) else f"{_number(mean)} ±{_number((high - low) / 2)}"


def _signed(interval: Interval) -> str:
    mean, low, high = (float(x) for x in (interval.mean, interval.low, interval.high))
    if math.isnan(mean):
        return "—"
    return f"{mean:+.3g}" if math.isnan(low) else f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]"


def _range(numbers: list[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
