"""What a model recalled along streams, as a record: one arm per policy, all over the same questions."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, RecordError
from sinkgate.evaluate.recall import Outcome, RecallResult, wilson
from sinkgate.evaluate.stream_record import labels
from sinkgate.files import BROKEN, open_record, save_json, typed

__all__ = ["Cell", "RecallArm", "RecallRun"]

FORMAT, VERSION = "sinkgate.recall_run", 1
MARKS = {"inside": "", "across": "~", "outside": "×", "any": ""}

_ARM = {
    "name": str,
    "policy": str,
    "positions": str,
    "seconds": (int, float),
    "tokens": int,
    "complete": bool,
    "note": str,
}


@dataclass
class RecallArm:
    """One way to read the texts.

    Args:
        name: of the arm.
        policy: what was kept, as text; empty for recomputation.
        positions: ``slots``, ``original`` or ``recomputed``.
        result: outcomes of all questions answered so far, with the window that says which facts could be seen.
        seconds: in the model.
        tokens: that went through it.
        complete: False where it was interrupted or could not reach every question.
        note: why.
    """

    name: str
    policy: str
    positions: str
    result: RecallResult
    seconds: float = 0.0
    tokens: int = 0
    complete: bool = False
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """Questions of one arm in one column of the table.

    Args:
        n: how many.
        right: answered exactly.
        place: ``inside``, ``outside`` or ``any`` if all are; else ``across``.
        chance: what guessing gets, mean.
    """

    n: int
    right: int
    place: str
    chance: float

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95%."""
        return wilson(self.right, self.n)


@dataclass
class RecallRun:
    """Result of :func:`sinkgate.evaluate.recall_run.recall`; prints as a table.

    Args:
        meta: model, texts, settings; ``edges``: where columns begin, tokens.
        arms: the ways the same texts were read.
    """

    meta: dict[str, Any]
    arms: list[RecallArm]

    def arm(self, name: str) -> RecallArm:
        """One arm by name.

        Raises:
            ArgumentError: there is none; names those there are.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise ArgumentError(f"no arm {name!r}; there are {', '.join(a.name for a in self.arms)}")

    @property
    def complete(self) -> bool:
        """Whether every arm answered every question."""
        return len(self.arms) == len(self.meta.get("wanted", self.arms)) and all(arm.complete for arm in self.arms)

    @property
    def kinds(self) -> list[str]:
        """Of the questions, in the order they were asked for."""
        return list(dict.fromkeys(o.kind for arm in self.arms for o in arm.result.outcomes))

    @property
    def edges(self) -> list[int]:
        """Where columns begin, tokens."""
        return [0, *self.meta["edges"]]

    def column(self, i: int) -> str:
        """The distances of a column, as text."""
        edges = self.edges
        return f"{edges[i]}–{edges[i + 1] - 1}" if i + 1 < len(edges) else f"{edges[i]}–"

    def cells(self, arm: RecallArm, kind: str) -> dict[int, Cell]:
        """Column → what an arm got there; columns without a question are left out."""
        groups: dict[int, list[Outcome]] = {}
        for o in arm.result.outcomes:
            if o.kind == kind:
                groups.setdefault(bisect_right(self.edges, o.distance) - 1, []).append(o)
        found = {}
        for i, group in sorted(groups.items()):
            places = {arm.result.place(o) for o in group}
            place = places.pop() if len(places) == 1 else "across"
            chance = sum(o.chance for o in group) / len(group)
            found[i] = Cell(len(group), sum(o.right for o in group), place, chance)
        return found

    def cliff(self, arm: RecallArm) -> str:
        """What an arm recalls of facts that it still holds, and of those that it has evicted."""
        parts = []
        for place, words in (("inside", "still kept"), ("outside", "evicted"), ("any", "any distance")):
            chosen = [o for o in arm.result.outcomes if arm.result.place(o) == place]
            if chosen:
                right = sum(o.right for o in chosen)
                low, high = wilson(right, len(chosen))
                guess = sum(o.chance for o in chosen) / len(chosen)
                parts.append(
                    f"{words} {right / len(chosen):.0%} [{low:.0%}, {high:.0%}] of {len(chosen)} (guessing {guess:.0%})"
                )
        return "; ".join(parts) or "no question was answered"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        arms = [{**asdict(arm), "result": arm.result.to_json()} for arm in self.arms]
        return {"format": FORMAT, "version": VERSION, "meta": self.meta, "arms": arms}

    @classmethod
    def from_json(cls, data: Any) -> RecallRun:
        """The inverse of :meth:`to_json`.

        Raises:
            RecordError: it is no recall run, of another version, or damaged.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise RecordError("this is not a recall run")
        if data.get("version") != VERSION or isinstance(data["version"], bool):
            raise RecordError(f"a recall run of version {data.get('version')!r}; this sinkgate reads {VERSION}")
        try:
            arms = [RecallArm(**{**arm, "result": RecallResult.from_json(arm["result"])}) for arm in data["arms"]]
            meta = data["meta"]
            typed("its text", meta, {"model": dict, "edges": list, "texts": list})
            typed("its model", meta["model"], {"name": str})
            for text in meta["texts"]:
                typed("a text", text, {"tokens": int, "questions": int})
            for arm in arms:
                typed(f"arm {str(arm.name)[:80]!r}", vars(arm), _ARM)
            if any(b <= a for a, b in pairwise([0, *meta["edges"]])):
                raise RecordError("the recall run is damaged: its edges do not rise")
            record = cls(meta, arms)
            str(record)  # asks for what a reader is promised
            return record
        except BROKEN as err:
            raise RecordError(f"the recall run is damaged: {err}") from err

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As JSON, written beside and renamed.

        Raises:
            OutputError: it cannot be written.
        """
        return save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RecallRun:
        """Open a saved one.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        return open_record(Path(path), "recall run", cls.from_json)

    def __str__(self) -> str:
        meta = self.meta
        count, tokens = len(meta["texts"]), sum(t["tokens"] for t in meta["texts"])
        questions = sum(t["questions"] for t in meta["texts"])
        lines = [
            f"{meta['model']['name']}: {questions} questions in {count} text{'s' * (count != 1)} of {tokens:,} tokens; share "
            "answered exactly, by the tokens between a fact and its question"
        ]
        for kind in self.kinds:
            rows = [(arm, self.cells(arm, kind)) for arm in self.arms]
            names = labels(self.arms)
            columns = sorted({i for _, cells in rows for i in cells})
            spans = [self.column(i) for i in columns]
            lines += ["", f"{kind:<22} {'':<34} " + " ".join(f"{s:>10}" for s in spans)]
            for (arm, cells), name in zip(rows, names, strict=True):
                shown = [_cell(cells.get(i)) for i in columns]
                lines.append(f"{name:<22} {arm.policy:<34} " + " ".join(f"{s:>10}" for s in shown))
            full = max((cells for _, cells in rows), key=lambda cells: sum(c.n for c in cells.values()))
            for what, texts in (
                ("questions", [f"{full[i].n}" if i in full else "" for i in columns]),
                ("guessing among codes", [f"{full[i].chance:.0%}" if i in full else "" for i in columns]),
            ):
                lines.append(f"{what:<57} " + " ".join(f"{t:>10}" for t in texts))
        lines += ["", "×: the fact is evicted when it is asked for; ~: in part, or for some questions"]
        for arm, name in zip(self.arms, labels(self.arms), strict=True):
            lines.append(f"{name}: {self.cliff(arm)}{'' if arm.complete else ' (not every question)'}")
            lines += [f"  {arm.note}"] if arm.note else []
        lines.append("[95% interval, as if the questions were independent]")
        return "\n".join(lines)


def _cell(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell.right / cell.n:.0%}{MARKS[cell.place]}"
