"""Pilots on a trained model: each outlet trained for a little while, the model itself frozen."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from sinkgate.errors import ArgumentError, NonFiniteError, RecordError, UnsupportedError
from sinkgate.files import save_json
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.layers import attention_layers
from sinkgate.hf.outlet import OUTLET_KEPT, add_outlet, remove_outlet
from sinkgate.lab.arms import split_text
from sinkgate.lab.loop import LoopConfig
from sinkgate.lab.outlet import OutletConfig
from sinkgate.lab.pieces import slug
from sinkgate.lab.train_outlet import train_outlet
from sinkgate.lab.trained import TrainedOutlet
from sinkgate.outlet import to_json
from sinkgate.planning.training_arms import OutletArm, as_outlet_arm
from sinkgate.planning.training_budget import Cost
from sinkgate.planning.training_lab import Pilots, Progress

__all__ = ["ARMS", "LOOP", "Outlets"]

# The first one is what the others are compared with; a budget that is too small drops from the end.
ARMS = (
    "unchanged", "sink_logit", "gate", "key_bias", "kv_bias", "gate(preserve=4)", "sink_logit + outlet_lr(0.3)",
    "gate + outlet_lr(0.3)", "gate(preserve=1)", "kv_bias + outlet_lr(0.3)",
)  # fmt: skip
STEPS = 6  # that an arm is timed with
LOOP: dict[str, Any] = {"steps": 150, "lr": 0.02, "warmup": 5, "save_every": 25}  # of sg.train_outlet


class Outlets:
    """A trained model as what is planned for.

    Args:
        model: without an outlet.
        tokenizer: its own.
        texts: to train on.
        held_out: to measure on; None: the last of the texts.
        arms: texts or values, the first one the reference; None: :data:`ARMS`, without those that this model cannot have.
        heads: see :func:`sinkgate.train_outlet`.
        loop_changes: fields of ``LoopConfig`` that differ from that function's own.
        task: what the outlets are trained for.
        samples: held-out texts.
        name: what the record calls the model.
        progress: called with the pilot's name and each line of its log.

    Raises:
        ArgumentError: an arm, or what does not go together.
        UnsupportedError: no attention is found in the model, or it cannot have an outlet that was asked for.
    """

    kind = "model"
    higher = False

    def __init__(
        self, model: nn.Module, tokenizer: Any, texts: Iterable[Any], held_out: Iterable[Any] | None, arms: Any, heads: Any,
        loop_changes: dict[str, Any], task: OutletConfig | None, samples: int, name: str, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.model, self.tokenizer, self.name, self.progress = model, tokenizer, name, progress
        self.texts, self.held_out = list(texts), None if held_out is None else list(held_out)
        self.heads, self.samples, self.task = heads, samples, task or OutletConfig()
        if self.task.also:
            raise ArgumentError(
                "a plan trains outlets alone: leave OutletConfig.also empty, and train the rest with the answer"
            )
        self.loop = LoopConfig.from_json({**LOOP, **loop_changes})
        self.most, self.lr = self.loop.steps, self.loop.lr
        self.headline, self.unit = ("evicted" if self.task.evict else "loss"), "nats/token"
        if OUTLET_KEPT in model.__dict__:
            raise UnsupportedError("this model has an outlet already; sg.remove_outlet(model) first")
        self.arms = [
            as_outlet_arm(arm)
            for arm in (ARMS if arms is None else split_text(arms) if isinstance(arms, str) else arms)
        ]
        if heads != "all" and (odd := [a for a in self.arms if a.sink_lr != 1]):
            raise ArgumentError(f"{str(odd[0])!r} sets sink heads apart from the rest: it needs heads='all'")
        self.notes = [
            f"an outlet is measured by the loss {'with the first tokens evicted' if self.task.evict else 'of whole texts'}, behind "
            f"{self.task.burn_in} tokens",
            "the held-out texts are the same for all seeds: the intervals say what the order of training texts does, not what "
            "other texts would",
        ]  # fmt: skip
        attention_layers(model)  # says so where there is none
        self._check(strict=arms is not None)

    def request(self) -> dict[str, Any]:
        """What the pilots are a function of; plain JSON types."""
        return json.loads(json.dumps({
            "model": self.name, "fingerprint": fingerprint(self.model), "texts": _digest(self.texts),
            "held_out": None if self.held_out is None else _digest(self.held_out), "heads": self.heads, "samples": self.samples,
            "loop": self.loop.to_json(), "for": self.task.to_json(), "lr": self.lr,
        }))  # fmt: skip

    def configs(self) -> dict[str, dict[str, Any]]:
        """Each arm as JSON."""
        return {str(arm): arm.to_json() for arm in self.arms}

    def cost(self, arm: str, seed: int) -> Cost:
        """Of one arm, by training it for a few steps; the unchanged model costs nothing, what it scores is measured beside."""
        if self._arm(arm).outlet is None:
            return Cost(arm, 0.0, 0.0)
        marks: list[float] = []
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:  # a pilot writes checkpoints, too
            note = lambda _name, _line: marks.append(time.perf_counter())  # noqa: E731
            self._train(arm, seed, min(STEPS, self.most), Path(folder), note)
        wall = time.perf_counter() - began
        steps = [b - a for a, b in itertools.pairwise(marks)]
        step = statistics.fmean(steps) if steps else wall  # some evict and some do not: their mean is what is paid
        return Cost(arm, step, max(0.0, wall - step * len(marks)))

    def pilots(self, arms: Sequence[str], seeds: Sequence[int], steps: int, folder: Path) -> Pilots:
        """Every arm with every seed, on from what is in the folder."""
        trained = [arm for arm in arms if self._arm(arm).outlet is not None]
        found = {(arm, seed): self._pilot(arm, seed, steps, folder) for seed in seeds for arm in trained}
        rows: Pilots = []
        for arm in arms:
            if arm not in trained:  # what any pilot of that seed saw before it began
                before = [next((r for a in trained if (r := found[a, seed][0]) is not None), None) for seed in seeds]
                scores = [math.nan if r is None else statistics.fmean(getattr(r.before, self.headline)) for r in before]
                rows.append({"arm": arm, "extra": 0, "seconds": None, "values": scores})
                continue
            kept = [found[arm, seed] for seed in seeds]
            values = [math.nan if r is None else statistics.fmean(getattr(r.after, self.headline)) for r, _ in kept]
            sizes = [r.meta["parameters"] for r, _ in kept if r is not None]
            times = [seconds for _, seconds in kept if seconds is not None]
            rows.append({
                "arm": arm, "extra": sizes[0] if sizes else 0, "seconds": statistics.median(times) if times else None, "values": values,
            })  # fmt: skip
        return rows

    # ---- private ------------------------------------------------------------------------------------------------

    def _arm(self, name: str) -> OutletArm:
        return next(arm for arm in self.arms if str(arm) == name)

    def _check(self, strict: bool) -> None:
        """Whether the model can have each outlet; of the default arms those that it cannot are left out, and named."""
        for arm in [a for a in self.arms if a.outlet is not None]:
            try:
                add_outlet(self.model, arm.outlet)  # type: ignore[arg-type]
                remove_outlet(self.model)
            except UnsupportedError as err:
                if strict:
                    raise
                self.arms.remove(arm)
                self.notes.append(f"{arm} was left out, this model cannot have it: {err}")

    def _settings(self, arm: OutletArm, seed: int, steps: int) -> dict[str, Any]:
        """Arguments of :func:`sinkgate.train_outlet` for one pilot."""
        warmup = min(self.loop.warmup, steps - 1)
        loop = dataclasses.replace(self.loop, lr=self.loop.lr * arm.outlet_lr, steps=steps, seed=seed, warmup=warmup)
        task = dataclasses.replace(self.task, seed=seed, multiplier=arm.sink_lr)
        return {"outlet": arm.outlet, "heads": self.heads, "loop": loop, "task": task, "samples": self.samples}

    def _train(
        self,
        arm: str,
        seed: int,
        steps: int,
        folder: Path | None,
        progress: Callable[[str, dict[str, Any]], None] | None,
    ) -> TrainedOutlet:
        found = train_outlet(
            self.model, self.tokenizer, self.texts, held_out=self.held_out, control=False, out=folder, resume=folder is not None,
            name=self.name, progress=progress, **self._settings(self._arm(arm), seed, steps),
        )  # fmt: skip
        remove_outlet(self.model)
        return found

    def _pilot(self, arm: str, seed: int, steps: int, folder: Path) -> tuple[TrainedOutlet | None, float | None]:
        """Its record (None: it diverged) and the time of a step, from the folder if it is there already."""
        place = folder / slug(arm) / f"seed{seed}"
        settings = self._settings(self._arm(arm), seed, steps)
        mine = json.loads(json.dumps({
            "outlet": to_json(settings["outlet"]), "loop": settings["loop"].to_json(), "task": settings["task"].to_json(),
        }))  # fmt: skip
        kept = place / "pilot.json"
        if kept.exists():
            try:
                there = json.loads(kept.read_text(encoding="utf-8"))
                same, diverged, seconds = there["pilot"] == mine, there["diverged"], there["seconds_per_step"]
            except (OSError, ValueError, KeyError, TypeError) as err:
                raise RecordError(f"{kept} is damaged ({err!r}); remove it, and the pilot is trained again") from err
            if not same:
                raise RecordError(f"{kept} is of another pilot; choose another out=")
            return (None if diverged else TrainedOutlet.load(place / "trained.json")), seconds
        marks: list[float] = []

        def note(_name: str, line: dict[str, Any]) -> None:
            marks.append(time.perf_counter())
            if self.progress is not None:
                self.progress(f"{arm}, seed {seed}", line)

        why: str | None = None
        found: TrainedOutlet | None = None
        try:
            found = self._train(arm, seed, steps, place, note)
            if not all(map(math.isfinite, getattr(found.after, self.headline))):
                found, why = None, "the loss on held-out texts is not finite"
        except NonFiniteError as err:
            why = str(err)
        times = [b - a for a, b in itertools.pairwise(marks)]
        seconds = statistics.median(times) if times else None
        save_json(kept, {"pilot": mine, "diverged": why, "seconds_per_step": seconds})
        return found, seconds


def _digest(texts: list[Any]) -> str:
    """Of what texts say, whatever they are called."""
    return hashlib.sha256("\0".join(getattr(t, "content", t) for t in texts).encode()).hexdigest()[:12]
