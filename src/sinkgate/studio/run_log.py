"""What a comparison that is under way has logged, read on from where a page stopped reading."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, SinkgateError
from sinkgate.report.lab_payload import lines_to_series, metrics_of
from sinkgate.studio.orders import Order

__all__ = ["RunLog"]

POINTS = 200  # of a curve, besides evaluations and spikes
USUAL = frozenset({"step", "loss", "lr", "grad_norm", "tokens", "linf"})
CHUNK, TAIL = 1 << 20, 8192  # bytes read of a log at once; of its end for the progress
AFTER = re.compile(r"\d{1,4}:\d{1,12}(,\d{1,4}:\d{1,12}){0,99}")


class RunLog:
    """The logs of a comparison's pieces.

    Args:
        folder: of the comparison; need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._plan: Any = None
        self._ended: dict[str, dict[str, Any]] = {}

    def progress(self, order: Order, *, done: bool = False) -> dict[str, Any]:
        """Steps made and to make, pieces ended and to train, and where it stands; ``done``: no file need be read."""
        count = len(order.arms) * order.seeds
        whole = {"steps": order.budget * count, "pieces": count}
        if done:
            return {**whole, "made": whole["steps"], "ended": count, "now": None}
        made, ended, now = 0, 0, None
        for key, arm, seed in self._pieces():
            if self._record(key):
                ended, made = ended + 1, made + order.budget
            elif (step := self._last_step(key)) is not None:
                made, now = made + step + 1, {"arm": arm, "seed": seed, "step": step}
        return {**whole, "made": made, "ended": ended, "now": now}

    def curves(self, after: str | None) -> dict[str, Any]:
        """The lines logged after a place, thinned, by piece, and the place they end at (``next``).

        A piece with ``reset`` begins anew: it was taken up again, and its log was cut back to the checkpoint.

        Raises:
            ArgumentError: ``after`` is no place that this gave.
        """
        if after and not AFTER.fullmatch(after):
            raise ArgumentError(f"after must be what the last answer gave as next, got {after[:40]!r}")
        pieces = self._pieces()
        if not pieces:
            return {"plan": None, "pieces": [], "next": "", "more": False}
        before = [tuple(map(int, part.split(":"))) for part in after.split(",")] if after else []
        before = before if len(before) == len(pieces) else [(0, 0)] * len(pieces)
        found, places, more = [], [], False
        every = max(
            1,
            -(-(self._plan.steps or self._plan.piece(self._plan.arms[0], self._plan.rates[0], 0).loop.steps) // POINTS),
        )
        for (key, arm, seed), (attempt, place) in zip(pieces, before, strict=True):
            now, lines, end, reset = self._read(key, attempt, place)
            more |= end < self._size(key)
            places.append(f"{now}:{end}")
            kept = [
                line
                for line in lines
                if line["step"] % every == 0 or line.get("spike") or line.get("done") or line.keys() - USUAL
            ]
            ended = self._record(key)
            found.append({
                "arm": self._names().index(arm), "seed": seed, "reset": reset, "series": lines_to_series(kept),
                "spikes": [line["step"] for line in lines if line.get("spike")], "step": lines[-1]["step"] if lines else None,
                "ended": bool(ended), "diverged": ended.get("diverged") if ended else None,
            })  # fmt: skip
        return {"plan": self._said(found), "pieces": found, "next": ",".join(places), "more": more}

    # ---- private ----------------------------------------------------------------------------------------------------

    def _said(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        plan, task = self._plan, self._plan.task
        names = {task.headline, *task.shown, *(name for piece in found for name in piece["series"])}
        return {"task": task.name, "arms": self._names(), "seeds": list(plan.seeds), "headline": task.headline, "higher": task.higher,
                "steps": plan.steps, "metrics": metrics_of(names)}  # fmt: skip

    def _names(self) -> list[str]:
        return [str(arm) for arm in self._plan.arms]

    def _pieces(self) -> list[tuple[str, str, int]]:
        """(key, arm, seed) of every piece; none before the plan is written."""
        if self._plan is None:
            from sinkgate.lab.comparison import CONFIG, Plan

            try:
                self._plan = Plan.from_json(json.loads((self.folder / CONFIG).read_text(encoding="utf-8")))
            except (OSError, ValueError, SinkgateError, RecursionError):
                return []
        plan, lr = self._plan, self._plan.rates[0]
        return [(plan.piece(arm, lr, seed).key, str(arm), seed) for arm in plan.arms for seed in plan.seeds]

    def _record(self, key: str) -> dict[str, Any]:
        """What is needed of a piece that ended; empty while it has not."""
        if key not in self._ended:
            try:
                data = json.loads((self.folder / "pieces" / key / "piece.json").read_text(encoding="utf-8"))
                diverged = data["diverged"] and {
                    "step": data["diverged"].get("step"),
                    "why": str(data["diverged"].get("why"))[:200],
                }
                self._ended[key] = {"diverged": diverged, "there": True}
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return {}
        return self._ended[key]

    def _log(self, key: str) -> Path:
        return self.folder / "pieces" / key / "run" / "log.jsonl"

    def _size(self, key: str) -> int:
        try:
            return self._log(key).stat().st_size
        except OSError:
            return 0

    def _attempts(self, key: str) -> int:
        try:
            return (self.folder / "pieces" / key / "attempts").read_bytes().count(b"\n")
        except OSError:
            return 0

    def _read(self, key: str, attempt: int, place: int) -> tuple[int, list[dict[str, Any]], int, bool]:
        """(attempt, whole lines after the place, where they end, whether they begin the piece anew)."""
        now = self._attempts(key)
        reset = now != attempt or place > self._size(key)
        start = 0 if reset else place
        try:
            with self._log(key).open("rb") as f:
                f.seek(start)
                data = f.read(CHUNK)
        except OSError:
            return now, [], start, reset
        data = data[: data.rfind(b"\n") + 1]
        return now, [line for raw in data.splitlines() if (line := _line(raw))], start + len(data), reset

    def _last_step(self, key: str) -> int | None:
        try:
            with self._log(key).open("rb") as f:
                f.seek(max(0, f.seek(0, 2) - TAIL))
                raws = f.read().splitlines()
        except OSError:
            return None
        return next((line["step"] for raw in reversed(raws) if (line := _line(raw))), None)


def _line(raw: bytes) -> dict[str, Any] | None:
    """One line of a log; None for one that is not whole."""
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) and type(line.get("step")) is int else None
