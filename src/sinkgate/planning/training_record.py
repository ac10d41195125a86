"""A training plan as a record: the pilots, what follows from them, and what to paste."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.errors import ArgumentError, RecordError
from sinkgate.files import BROKEN, open_record, save_json, typed
from sinkgate.planning.training_decision import Candidate, Decision, decide
from sinkgate.planning.training_settings import settings
from sinkgate.record import Interval, student_interval

__all__ = ["NOT_DISTINGUISHABLE", "TrainingPlan"]

FORMAT, VERSION = "sinkgate.training_plan", 1
NOT_DISTINGUISHABLE = "not distinguishable at this budget"
LARGEST = 1e100  # of a number in a record: beyond, squares overflow
_NULL = type(None)
_NUMBER = (int, float)
_META = {
    "kind": str, "name": str, "request": dict, "headline": str, "higher": bool, "unit": str, "lr": _NUMBER, "seeds": list,
    "steps": int, "whole": int, "minutes": (*_NUMBER, _NULL), "asked_steps": (int, _NULL), "spent": (*_NUMBER, _NULL),
    "costs": list, "dropped": list, "notes": list, "environment": dict,
}  # fmt: skip
_ARM = {"arm": str, "config": dict, "extra": int, "seconds": (*_NUMBER, _NULL), "values": list}
_COST = {"arm": str, "step": _NUMBER, "pilot": _NUMBER, "once": _NUMBER}


@dataclass
class TrainingPlan:
    """What :func:`sinkgate.planning.training.plan_training` found; prints as a table with its reasons.

    Args:
        meta: ``kind`` (``"recipe"`` or ``"model"``), ``name``, ``request`` (what the pilots are a function of), ``headline``
            (the number compared), ``higher``, ``unit``, ``lr``, ``seeds``, ``steps`` (of a pilot), ``whole`` (of the recipe),
            ``minutes`` and ``asked_steps`` (the budget), ``spent`` (seconds of it on timing), ``costs`` (measured, by arm),
            ``dropped`` (arm and why), ``notes``, ``environment``.
        arms: of those that were tried, the reference first: ``arm``, ``config``, ``extra`` (parameters), ``seconds`` (per step,
            None: not trained), ``values`` (one per seed, None where it diverged).
    """

    meta: dict[str, Any]
    arms: list[dict[str, Any]]

    # ---- values -------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The arms; the first is the reference."""
        return [row["arm"] for row in self.arms]

    def row(self, arm: str) -> dict[str, Any]:
        """What was found of an arm.

        Raises:
            ArgumentError: it was not tried.
        """
        for row in self.arms:
            if row["arm"] == arm:
                return row
        raise ArgumentError(f"no arm {arm!r} was tried; there are {', '.join(self.names)}")

    def values(self, arm: str) -> np.ndarray:
        """``[seeds]``: the headline with each seed; NaN where the pilot diverged."""
        return np.array([math.nan if x is None else float(x) for x in self.row(arm)["values"]])

    def difference(self, arm: str, base: str | None = None) -> Interval:
        """``arm − base``, paired over the seeds that both have, 95%, uncorrected; base None: the reference."""
        both = self.values(arm) - self.values(self.names[0] if base is None else base)
        both = both[np.isfinite(both)]
        return student_interval(both) if len(both) else Interval(*(np.array(math.nan),) * 3, 0.95, 0)

    @cached_property
    def decision(self) -> Decision:
        """Which arm, and by what."""
        rows = [Candidate(r["arm"], self.values(r["arm"]), r["extra"], r["seconds"]) for r in self.arms]
        return decide(rows, higher=self.meta["higher"])

    @property
    def answer(self) -> str | None:
        """The arm to take; None: none trained with every seed."""
        return self.decision.answer

    @property
    def distinguishable(self) -> bool:
        """Whether some arm was found better than the cheapest."""
        return bool(self.decision.tied)

    def settings(self, arm: str | None = None) -> str:
        """Python to paste: the arm (default: the answer), the recipe's ``LoopConfig`` and the multipliers.

        Raises:
            ArgumentError: no such arm, or no arm trained with every seed.
        """
        arm = self.answer if arm is None else arm
        if arm is None:
            raise ArgumentError("no arm trained with every seed, so there is none to take: lower lr and plan again")
        return settings(self.meta, self.row(arm)["config"])

    # ---- words --------------------------------------------------------------------------------------------------

    def sentences(self) -> list[str]:
        """The answer, its reasons and their limits, in plain words."""
        return [self._answer(), *self._limits(), *self._rest()]

    def _answer(self) -> str:
        d, n = self.decision, len(self.meta["seeds"])
        if d.answer is None:
            return f"No arm trained with all {n} seeds: nothing can be said."
        if d.best is None:
            return f"{d.answer}: the only arm that trained with all {n} seeds."
        against = f"{self.meta['headline']} {_signed(self.difference(d.best, d.cheapest))} against it, {n} seeds"
        if d.told[d.best] == "worse":
            return f"{d.answer}: the cheapest arm, and no other is better; {d.best}, the best of them, is worse ({against})."
        if not d.tied:
            return (
                f"{d.answer}: the cheapest arm; {d.best}, the best other one, is {NOT_DISTINGUISHABLE} ({against}); more seeds, "
                "or fewer arms, would see more."
            )
        said = (
            f"{d.answer}: better than {d.cheapest}, the cheapest arm ({self.meta['headline']} "
            f"{_signed(self.difference(d.answer, d.cheapest))}, paired over {n} seeds)"
        )
        if d.answer != d.best:
            said += (
                f"; {d.best} has the best mean, but dearer it is {NOT_DISTINGUISHABLE} from it "
                f"({_signed(self.difference(d.best, d.answer))})"
            )
        return said + "."

    def _limits(self) -> list[str]:
        d, said = self.decision, []
        if d.best is not None and math.isfinite(d.visible):
            said.append(
                f"A difference from {d.cheapest} smaller than {d.visible:.2g} could not have been seen (in {d.best}, at the level "
                "that decides)."
            )
        if d.comparisons:
            count = f"{d.comparisons} arms are" if d.comparisons > 1 else "One arm is"
            said.append(
                f"{count} compared with the cheapest, at 5% for all comparisons together (Holm); the intervals are 95% each, "
                "uncorrected."
            )
        if len(d.tied) > 1:
            said.append(
                f"Better than {d.cheapest}, and not told apart from the best: {', '.join(d.tied)}; the cheapest is taken."
            )
        gone = {r["arm"]: sum(x is None for x in r["values"]) for r in self.arms}
        said += [
            f"{arm} did not train with {k} of {len(self.meta['seeds'])} seeds (it diverged, or its loss ended no lower than it began) "
            "and is not considered."
            for arm, k in gone.items()
            if k
        ]
        return said

    def _rest(self) -> list[str]:
        meta = self.meta
        said = [f"{d['arm']} was dropped: {d['why']}." for d in meta["dropped"]]
        if meta["steps"] < meta["whole"]:
            said.append(
                f"A pilot is {meta['steps']:,} steps, {meta['steps'] / meta['whole']:.2%} of the recipe's {meta['whole']:,}, its schedule "
                "squeezed into them: which arm wins the whole training was not tried, and with more steps the order can turn round."
            )
        return said + [f"{note[:1].upper()}{note[1:]}." for note in meta["notes"]]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Column names and rows as text."""
        d, base = self.decision, self.names[0]
        both = d.cheapest not in (None, base)
        name = self.meta["headline"]
        columns = ["arm", "extra parameters", "s/step", name, f"against {base} [95%]"]
        columns += ([f"against {d.cheapest} [95%]"] if both else []) + ["told"]
        rows = []
        for row in self.arms:
            arm, values = row["arm"], self.values(row["arm"])
            there = values[np.isfinite(values)]
            told = "the cheapest" if arm == d.cheapest else d.told[arm]
            rows.append([
                arm, f"{row['extra']:,}", "—" if row["seconds"] is None else f"{row['seconds']:.3g}",
                _plain(there) if len(there) else "—", "" if arm == base else _signed(self.difference(arm)),
                *([("" if arm == d.cheapest else _signed(self.difference(arm, d.cheapest)))] if both else []),
                told + (", the answer" if arm == d.answer else ""),
            ])  # fmt: skip
        return columns, rows

    def __str__(self) -> str:
        meta, (columns, rows) = self.meta, self.table()
        widths = [max(len(r[i]) for r in [columns, *rows]) for i in range(len(columns))]
        ends = (0, len(columns) - 1)
        line = lambda row: "  ".join(  # noqa: E731
            x.ljust(w) if i in ends else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        budget = "" if meta["minutes"] is None else f", within {meta['minutes']:g} minutes"
        timing = "" if meta["spent"] is None else f" ({meta['spent']:.0f} s of them until the arms were timed)"
        better = "more" if meta["higher"] else "less"
        unit = f" ({meta['unit']})" if meta["unit"] else ""
        head = (
            f"{meta['name']}: {len(rows)} arms, {len(meta['seeds'])} seeds, {meta['steps']:,} steps each{budget}{timing}; of "
            f"{meta['headline']}{unit} {better} is better"
        )
        return "\n".join([head, "", line(columns), *map(line, rows), "", *self.sentences()])

    # ---- files --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"format": FORMAT, "version": VERSION, "meta": self.meta, "arms": self.arms}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As JSON, written beside and renamed.

        Raises:
            OutputError: it cannot be written.
        """
        return save_json(path, self.to_json(), indent=1)

    @classmethod
    def from_json(cls, data: Any) -> TrainingPlan:
        """The inverse of :meth:`to_json`.

        Raises:
            RecordError: not a training plan, or a damaged one; says what is wrong.
        """
        try:
            typed("a training plan", data, {"format": str, "version": int, "meta": dict, "arms": list})
            if data["format"] != FORMAT or data["version"] != VERSION:
                raise RecordError(
                    f"this is no training plan of version {VERSION}, but {data['format']!r} {data['version']!r}"[:300]
                )
            _check(data["meta"], data["arms"])
            plan = cls(data["meta"], data["arms"])
            str(plan)  # asks for what a reader is promised
            for name in plan.names:
                plan.settings(name)
            return plan
        except RecordError:
            raise
        except BROKEN as err:
            raise RecordError(f"this is not a readable training plan: {str(err)[:200]}") from err

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingPlan:
        """Open a saved one; a folder's ``plan.json``, too.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        path = Path(path)
        path = path / "plan.json" if path.is_dir() else path
        return open_record(path, "training plan", cls.from_json)


def _check(meta: dict[str, Any], arms: list[Any]) -> None:
    typed("its meta", meta, _META)
    if meta["kind"] not in ("recipe", "model"):
        raise RecordError(f"its kind is neither recipe nor model but {meta['kind']!r}"[:200])
    if not meta["seeds"] or any(type(s) is not int for s in meta["seeds"]):
        raise RecordError("its seeds are not whole numbers")
    for cost in meta["costs"]:
        typed("a cost", cost, _COST)
    for dropped in meta["dropped"]:
        typed("a dropped arm", dropped, {"arm": str, "why": str})
    if not all(isinstance(note, str) for note in meta["notes"]):
        raise RecordError("a note is not text")
    for row in arms:
        typed("an arm", row, _ARM)
        numbers = [x for x in [*row["values"], row["seconds"]] if x is not None]
        if len(row["values"]) != len(meta["seeds"]):
            raise RecordError(
                f"the arm {row['arm']!r} has {len(row['values'])} values for {len(meta['seeds'])} seeds"[:200]
            )
        if any(isinstance(x, bool) or not isinstance(x, int | float) or not abs(x) <= LARGEST for x in numbers):
            raise RecordError(f"a value of the arm {row['arm']!r} is not a number"[:200])
    if not arms or len({row["arm"] for row in arms}) < len(arms):
        raise RecordError("it has no arms, or one of them twice")


def _number(x: float) -> str:
    return f"{x:.4g}" if abs(x) < 1e4 else f"{x:.2e}"


def _plain(values: np.ndarray) -> str:
    found = student_interval(values)
    half = (float(found.high) - float(found.low)) / 2
    return _number(float(found.mean)) + ("" if math.isnan(half) else f" ±{half:.2g}")


def _signed(found: Interval) -> str:
    mean, low, high = (float(x) for x in dataclasses.astuple(found)[:3])
    if math.isnan(mean):
        return "—"
    return f"{mean:+.3g}" if math.isnan(low) else f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]"
