"""What a quantization plan measured: the arms of each place, who won, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sinkgate.errors import ArgumentError, RecordError
from sinkgate.files import BROKEN, typed
from sinkgate.planning.quantization_spec import Spec, spec_from_json
from sinkgate.record import Interval, student_interval

__all__ = ["CONTROL", "NONE_BETTER", "PLACES", "Arms", "Planned", "QuantizationArms", "QuantizedArm"]

FORMAT, VERSION = "sinkgate.quantization_arms", 1
PLACES = ("kv", "weights", "activations")
CONTROL = "per-head control"
LEAST = 1e-4  # nats per token: a smaller gain (0.01% of perplexity) is not clearly better, however narrow its interval
NONE_BETTER = "no arm is clearly better than uniform"
UNITS = {"kv": "bytes", "weights": "bytes", "activations": "bits"}


@dataclass(frozen=True)
class Planned:
    """An arm that is to be measured; ``size`` in bytes, of activations in bits per number."""

    name: str
    words: str
    spec: Spec
    size: float


@dataclass
class Arms:
    """The arms of one place, the first being ``uniform``, and why others are not there."""

    planned: list[Planned] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, arm: Planned) -> None:
        """One more."""
        self.planned.append(arm)


@dataclass(frozen=True)
class QuantizedArm:
    """One arm, measured.

    Args:
        place: ``kv``, ``weights`` or ``activations``.
        name: ``uniform``, ``preserve-first-n``, ``sink-aware``, ``per-head``; ``per-head control`` is none to choose.
        words: what it does.
        spec: the same as plain JSON; :func:`sinkgate.planning.quantization_spec.spec_from_json` reads it.
        size: bytes of the full cache, bytes of the quantised weights, or mean bits of an activation.
        rises: of each text, nats per token that its loss rises by against the unquantised model.
        kls: of each text, mean KL(unquantised ‖ this), nats.
    """

    place: str
    name: str
    words: str
    spec: dict[str, Any]
    size: float
    rises: tuple[float, ...]
    kls: tuple[float, ...]

    @property
    def rise(self) -> Interval:
        """Mean over texts, nats per token, with its 95% Student-t interval (NaN bounds with one text)."""
        return student_interval(np.array(self.rises))

    @property
    def kl(self) -> float:
        """Mean over texts, nats."""
        return float(np.mean(self.kls))


@dataclass(frozen=True)
class QuantizationArms:
    """Result of :func:`sinkgate.planning.quantization.measure_quantization`; prints as a table.

    Args:
        meta: model, texts, settings; ``sizes`` has what is counted apart.
        arms: of all places, ``uniform`` first in each.
        skipped: place → name of an arm → why it was not measured.
    """

    meta: dict[str, Any]
    arms: tuple[QuantizedArm, ...]
    skipped: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def places(self) -> tuple[str, ...]:
        """Those that were measured."""
        return tuple(p for p in PLACES if any(arm.place == p for arm in self.arms))

    def at(self, place: str) -> tuple[QuantizedArm, ...]:
        """The arms of a place.

        Raises:
            ArgumentError: nothing was measured there.
        """
        found = tuple(arm for arm in self.arms if arm.place == place)
        if not found:
            raise ArgumentError(f"nothing was measured at {place!r}; there are {', '.join(self.places) or 'none'}")
        return found

    def arm(self, place: str, name: str) -> QuantizedArm | None:
        """One arm by name; None where it was not measured."""
        return next((arm for arm in self.at(place) if arm.name == name), None)

    def difference(self, arm: QuantizedArm, base: QuantizedArm | None = None) -> Interval:
        """Nats per token that an arm's loss is above another's (``uniform``'s), paired by text, 95% Student t."""
        base = self.at(arm.place)[0] if base is None else base
        return student_interval(np.array(arm.rises) - np.array(base.rises))

    def won(self, place: str) -> QuantizedArm | None:
        """The best of the arms whose interval lies wholly below ``uniform``'s loss, by 1e-4 nats at least; None: none is.

        Raises:
            ArgumentError: nothing was measured there.
        """
        return min(self._better(place), key=lambda a: float(self.difference(a).mean), default=None)

    def _better(self, place: str) -> list[QuantizedArm]:
        rivals = [(a, self.difference(a)) for a in self.at(place)[1:] if a.name != CONTROL]
        return [a for a, d in rivals if float(d.high) < 0 and float(d.mean) <= -LEAST]

    # ---- words ----------------------------------------------------------------------------------------------------------

    def verdict(self, place: str) -> str:
        """Which arm won at a place, with its numbers."""
        best, (uniform, *rest) = self.won(place), self.at(place)
        rivals = [a for a in rest if a.name != CONTROL]
        texts = len(uniform.rises)
        head = f"{_PLACE[place]}: "
        cost = f"uniform costs {_nats(uniform.rise)} (n = {texts} texts)"
        if best is None:
            only = "; one text gives no interval" if texts < 2 else ""
            nearest = min(rivals, key=lambda a: float(self.difference(a).mean), default=None)
            near = (
                "" if nearest is None else f"; the lowest, {nearest.name}, is {_nats(self.difference(nearest))} from it"
            )
            return f"{head}{NONE_BETTER}{only}; {cost}{near}."
        alike = [a.name for a in self._better(place) if a is not best and not float(self.difference(a, best).low) > 0]
        tied = f" It is not apart from {', '.join(alike)}." if alike else ""
        if best.kl > uniform.kl:
            tied += (
                f" Its predictions are further from the unquantised model's all the same (KL {best.kl:.4f} against "
                f"{uniform.kl:.4f}): it loses less without being more faithful."
            )
        return (
            f"{head}{best.name} is better than uniform by {_nats(self.difference(best))}; {cost}, "
            f"{len(rivals)} arms were compared with it, each at 95%.{tied}"
        )

    def hypothesis(self, place: str) -> str | None:
        """Whether sink heads need more bits than others here; None where it was not asked."""
        if place not in ("kv", "weights") or place not in self.places:
            return None
        sinks, control = self.arm(place, "per-head"), self.arm(place, CONTROL)
        if sinks is None:
            return None
        against = self.difference(sinks)
        said = f"against uniform at equal bytes {_nats(against)}"
        if control is None:
            return (
                f"{_PLACE[place]}: whether sink heads need more bits was not asked, there are no other heads; {said}."
            )
        beside = self.difference(sinks, control)
        said += f", against as many other heads {_nats(beside)}"
        if float(beside.high) < 0 and float(against.high) < 0:
            verdict = "sink heads need more bits here"
        elif float(beside.high) < 0:
            verdict = "bits help sink heads more than others, but not more than they cost elsewhere"
        elif float(beside.low) > 0:
            verdict = "sink heads need more bits less than others do here"
        else:
            verdict = "that sink heads need more bits is not seen here"
        return f"{_PLACE[place]}: {verdict}: {said} (n = {len(sinks.rises)} texts)."

    def sentences(self) -> list[str]:
        """What was found and why, each with its numbers."""
        found = []
        for place in PLACES:
            if place in self.places:
                found.append(self.verdict(place))
                best = self.won(place)
                if best is not None:
                    found.append(f"{best.name} is: {best.words}.")
                hypothesis = self.hypothesis(place)
                if hypothesis is not None:
                    found.append(hypothesis)
            for name, why in self.skipped.get(place, {}).items():
                found.append(f"{_PLACE[place]}: {name} was not measured: {why}.")
        return found + list(self.meta.get("notes", ()))

    def __str__(self) -> str:
        lines = [f"{self.meta['model']}, {self.meta['texts']} texts of up to {self.meta['tokens']} tokens."]
        for place in self.places:
            lines += ["", f"{_PLACE[place]:<22} {UNITS[place]:>14}  {'loss rises by (nats)':<28} "
                          f"{'above uniform (nats)':<28} {'KL':>8}"]  # fmt: skip
            for i, arm in enumerate(self.at(place)):
                size = f"{arm.size:,.0f}" if UNITS[place] == "bytes" else f"{arm.size:.3f}"
                beside = _nats(self.difference(arm), "") if i else ""
                lines.append(f"{arm.name:<22} {size:>14}  {_nats(arm.rise, ''):<28} {beside:<28} {arm.kl:8.4f}")
            lines += [f"{name:<22} {'':>14}  not measured: {why}" for name, why in self.skipped.get(place, {}).items()]
        return "\n".join([*lines, "", *self.sentences()])

    # ---- keeping ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; :meth:`from_json` is the way back."""
        arms = [
            {"place": a.place, "name": a.name, "words": a.words, "spec": a.spec, "size": a.size, "rises": list(a.rises),
             "kls": list(a.kls)}
            for a in self.arms
        ]  # fmt: skip
        skipped = {place: dict(names) for place, names in self.skipped.items()}
        return {"format": FORMAT, "version": VERSION, "meta": self.meta, "arms": arms, "skipped": skipped}

    @classmethod
    def from_json(cls, data: Any) -> QuantizationArms:
        """The way back from :meth:`to_json`.

        Raises:
            RecordError: it is damaged, or of another version.
        """
        typed(
            "a record of quantized arms",
            data,
            {"format": str, "version": int, "meta": dict, "arms": list, "skipped": dict},
        )
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise RecordError(f"this is no record of quantized arms of version {VERSION}: {data['version']!r}")
        typed("its meta", data["meta"], {"model": str, "texts": int, "tokens": int, "notes": list})
        arms = [_arm(i, entry, data["meta"]["texts"]) for i, entry in enumerate(data["arms"])]
        for place, names in data["skipped"].items():
            if (
                place not in PLACES
                or not isinstance(names, dict)
                or not all(isinstance(w, str) for w in names.values())
            ):
                raise RecordError(f"what was skipped at {place[:80]!r} is no object of reasons")
        try:
            record = cls(dict(data["meta"]), tuple(arms), {p: dict(n) for p, n in data["skipped"].items()})
            for place in record.places:
                if record.at(place)[0].name != "uniform":
                    raise RecordError(f"the arms of {place} do not begin with uniform")
            str(record)  # asks for what a reader is promised
        except BROKEN as err:
            raise RecordError(f"a damaged record of quantized arms: {str(err)[:200]}") from err
        return record


_PLACE = {"kv": "keys and values", "weights": "weights", "activations": "activations"}
_ARM = {"place": str, "name": str, "words": str, "spec": dict, "size": (int, float), "rises": list, "kls": list}


def _arm(i: int, entry: Any, texts: int) -> QuantizedArm:
    where = f"arm {i}"
    typed(where, entry, _ARM)
    if entry["place"] not in PLACES or spec_from_json(entry["spec"]).place != entry["place"]:
        raise RecordError(f"{where}: its place and that of its spec are no known place, or two")
    if not math.isfinite(entry["size"]) or entry["size"] < 0:
        raise RecordError(f"{where}: size must be a number of at least 0, got {entry['size']!r}"[:200])
    for name in ("rises", "kls"):
        numbers = entry[name]
        right = all(isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in numbers)
        if len(numbers) != texts or not texts or not right:
            raise RecordError(f"{where}: {name} must be a finite number for each of the {texts} texts")
    rises, kls = (tuple(map(float, entry[name])) for name in ("rises", "kls"))
    return QuantizedArm(entry["place"], entry["name"], entry["words"], entry["spec"], entry["size"], rises, kls)


def _nats(interval: Interval, unit: str = " nats") -> str:
    mean, low, high = (float(x) for x in (interval.mean, interval.low, interval.high))
    return f"{mean:+.4f}{unit}" if math.isnan(low) else f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]{unit}"
