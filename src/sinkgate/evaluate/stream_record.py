"""What a text cost a model along a stream, as a record: one arm per policy, curves over the position."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sinkgate.errors import ArgumentError, RecordError
from sinkgate.files import BROKEN, read_json, save_json, typed
from sinkgate.record import student_interval

__all__ = ["StreamArm", "StreamRecord", "labels"]

FORMAT, VERSION = "sinkgate.stream", 1


def labels(arms: Sequence[Any]) -> list[str]:
    """Names of arms, with their positions where two have the same name."""
    names = [arm.name for arm in arms]
    return [arm.name if names.count(arm.name) == 1 else f"{arm.name}, {arm.positions}" for arm in arms]


@dataclass
class StreamArm:
    """One way to read the text.

    Args:
        name: of the arm.
        policy: what was kept, as text; empty for recomputation.
        positions: ``slots``, ``original`` or ``recomputed``.
        chunk: tokens per pass; 1: step by step.
        every: predictions per point of the curve.
        sums: per point, nats summed over its predictions.
        counts: per point, how many.
        at: where each sampled prediction stands, if not all are made.
        seconds: in the model.
        cache_bytes: allocated at the end.
        held: tokens that a head held at the end.
        resident: bytes of the process, at each point of the curve.
        complete: False where it was interrupted or had to stop.
        note: why, or what else a reader should know.
    """

    name: str
    policy: str
    positions: str
    chunk: int
    every: int
    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    at: list[int] | None = None
    seconds: float = 0.0
    cache_bytes: int = 0
    held: int = 0
    resident: list[int] = field(default_factory=list)
    complete: bool = False
    note: str = ""

    @property
    def tokens(self) -> int:
        """Predictions made."""
        return sum(self.counts)

    @property
    def loss(self) -> float:
        """Nats per prediction; NaN without any."""
        return sum(self.sums) / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """``exp(loss)``; infinite where no float holds it."""
        if not self.tokens:
            return math.nan
        return math.exp(self.loss) if self.loss < 709 else math.inf

    @property
    def tokens_per_second(self) -> float:
        """Of the text; NaN before the first."""
        return self.tokens / self.seconds if self.seconds else math.nan

    def curve(self) -> np.ndarray:
        """Mean loss of each point, nats."""
        counts = np.asarray(self.counts, float)
        return np.divide(self.sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)


_ARM = {"name": str, "policy": str, "positions": str, "chunk": int, "every": int, "sums": list, "counts": list, "at": (list, type(None)),
        "seconds": (int, float), "cache_bytes": int, "held": int, "resident": list, "complete": bool, "note": str}  # fmt: skip


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


@dataclass
class StreamRecord:
    """Result of :func:`sinkgate.stream`; prints as a table.

    Args:
        meta: model, text, settings.
        arms: the ways it was read.
    """

    meta: dict[str, Any]
    arms: list[StreamArm]

    def arm(self, name: str) -> StreamArm:
        """One arm by name.

        Raises:
            ArgumentError: there is none; names those there are.
        """
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise ArgumentError(f"no arm {name!r}; there are {', '.join(a.name for a in self.arms)}")

    def change(self, arm: StreamArm, base: StreamArm | None = None) -> Any:
        """Mean change of the loss against another arm over the points that both have, with its interval over points.

        Neighbouring points of one text are no independent samples: the interval speaks of this text.
        """
        base = base or self.arms[0]
        n = min(len(arm.sums), len(base.sums))
        a, b = arm.curve()[:n], base.curve()[:n]
        both = ~(np.isnan(a) | np.isnan(b)) & (np.asarray(arm.counts[:n]) == np.asarray(base.counts[:n]))
        return student_interval((a - b)[both]) if both.any() else student_interval(np.array([np.nan]))

    @property
    def complete(self) -> bool:
        """Whether every arm that was asked for went to the end."""
        return len(self.arms) == len(self.meta.get("wanted", self.arms)) and all(arm.complete for arm in self.arms)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As JSON, written beside and renamed.

        Raises:
            OutputError: it cannot be written.
        """
        return save_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StreamRecord:
        """Open a saved one.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        try:
            data = read_json(Path(path), "a readable stream record")
            version = data["version"]
            if data["format"] != FORMAT or version != VERSION or isinstance(version, bool):
                raise RecordError(f"{path} is no stream record of version {VERSION}: its version is {version!r}"[:300])
            typed("its text", data, {"meta": dict, "arms": list})
            typed("its text", data["meta"], {"model": dict, "tokens": int, "text": str})
            typed("its model", data["meta"]["model"], {"name": str})
            record = cls(data["meta"], [StreamArm(**arm) for arm in data["arms"]])
            for arm in record.arms:
                typed(f"arm {str(arm.name)[:80]!r}", vars(arm), _ARM)
                lists = (arm.sums, arm.counts, arm.resident, arm.at or [])
                if len(arm.sums) != len(arm.counts) or not all(_number(x) for each in lists for x in each):
                    raise RecordError(f"{path} is a damaged stream record: the numbers of {arm.name!r}")
                if arm.every < 1 or any(n < 0 for n in arm.counts) or arm.cache_bytes < 0 or arm.held < 0:
                    raise RecordError(f"{path} is a damaged stream record: a count of {arm.name!r} is below 0")
            str(record)  # asks for what a reader is promised
            return record
        except RecordError as err:
            line = str(err)
            raise (err if str(path) in line else RecordError(f"{path} is a damaged stream record: {line}")) from err
        except BROKEN as err:
            raise RecordError(f"{path} is not a readable stream record: {err}") from err

    def __str__(self) -> str:
        meta = self.meta
        lines = [
            f"{meta['model']['name']} along {meta['tokens']:,} tokens of {meta['text']}.",
            "",
            f"{'':<22} {'policy':<34} {'positions':<10} {'ppl':>8} {'tokens':>8} {'tokens/s':>9} {'cache':>10} {'held':>6}",
        ]
        for arm in self.arms:
            mark = "" if arm.complete else " (not to the end)"
            lines.append(
                f"{arm.name:<22} {arm.policy:<34} {arm.positions:<10} {arm.perplexity:8.2f} {arm.tokens:8,} "
                f"{arm.tokens_per_second:9.1f} {_bytes(arm.cache_bytes):>10} {arm.held:6}{mark}"
            )
            if arm.note:
                lines.append(f"{'':<22} {arm.note}")
        return "\n".join(lines)


def _bytes(n: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024  # type: ignore[assignment]
    return f"{n:.1f} GiB"
