"""The search: Optuna proposes, what is decided without measuring is decided so, the rest is measured text by text.

A setting's bytes are known to the byte before it runs. So no setting is measured that weighs as much as one that keeps the
tolerance already, and none that keeps less than one that was found to break it. One that is measured ends at the first text
that shows it breaks the tolerance. Every trial, also one that was not measured, stays in the study with its reason; a killed
search goes on from the study and from what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.planning.cost import Latency
from sinkgate.planning.measure import Measurer, out_of_memory
from sinkgate.planning.promise import SPLIT, Mean, factor, mean_of
from sinkgate.planning.request import Request
from sinkgate.planning.setting import Setting
from sinkgate.planning.space import SHARES, Choice, Space
from sinkgate.probe.text import Piece

__all__ = ["FORMAT", "Search", "Trial", "expected", "search"]

FORMAT = 4  # of a study; another search would not go on from this one's
SKIPS = 25  # proposals per measured trial that may be decided without measuring
GUESSED = 0.8  # of the measured trials at most are guesses of ours, the rest the sampler's
NEAR = 1.2  # two windows that are closer than this are not told apart
LIGHTER = 0.9  # of the bytes: what is worth a trial with other bits
LIKELY = 0.84  # standard errors: a setting is kept that four in five times can be verified
LEAST_SPREAD = 0.25  # of the mean: what few tuning texts are believed to differ by at least


@dataclass(frozen=True)
class Trial:
    """One setting that was proposed.

    Args:
        number: in the study.
        setting: which.
        choice: as a point of the space.
        bytes: of its cache, predicted.
        milliseconds: of a step, predicted; None: not known.
        state: ``kept`` (within the tolerance on the tuning texts, or there is none), ``refuted``, ``skipped``,
            ``out of memory`` or ``failed``.
        why: in words; empty where it was kept.
        nats: loss differences on the tuning texts that were read.
        late: of them, in the last quarter of each text.
    """

    number: int
    setting: Setting
    choice: dict[str, Any]
    bytes: int
    milliseconds: float | None
    state: str
    why: str = ""
    nats: tuple[float, ...] = ()
    late: tuple[float, ...] = ()

    @property
    def increase(self) -> Mean | None:
        """Relative increase of the perplexity on the tuning texts."""
        return mean_of(self.nats).map(math.expm1) if self.nats else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        data = dataclasses.asdict(self) | {"setting": self.setting.to_json()}
        return data | {"increase": None if self.increase is None else self.increase.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trial:
        """The inverse of :meth:`to_json`."""
        given = {f.name: data[f.name] for f in dataclasses.fields(cls)}
        given |= {
            "setting": Setting.from_json(data["setting"]),
            "nats": tuple(data["nats"]),
            "late": tuple(data["late"]),
        }
        return cls(**given)


@dataclass
class Search:
    """What the search is about, and what it found.

    Args:
        request: what is asked.
        space: what can be chosen.
        pieces: tuning texts.
        measurer: of the model.
        latency: predicts a step; None: not fitted.
        trials: every one.
    """

    request: Request
    space: Space
    pieces: Sequence[Piece]
    measurer: Measurer
    latency: Latency | None
    trials: list[Trial] = field(default_factory=list)

    @property
    def measured(self) -> list[Trial]:
        """Those with losses."""
        return [t for t in self.trials if t.nats]

    def bytes(self, choice: Choice) -> int:
        """At the context, for the whole batch."""
        return self.space.bytes(choice, self.request.batch)

    def milliseconds(self, setting: Setting) -> float | None:
        """Of a step."""
        if self.latency is None:
            return None
        return self.latency(self.space.shape.reads(setting.value, context=self.space.context))

    def goal(self, trial: Trial) -> float:
        """What is made small among the settings that keep to the request."""
        if self.request.aim == "quality":
            return mean_of(trial.nats).mean
        return float(trial.bytes if self.request.aim == "memory" or trial.milliseconds is None else trial.milliseconds)

    def kept(self) -> list[Trial]:
        """Trials that keep to the request on the tuning texts, best first."""
        return sorted((t for t in self.trials if t.state == "kept"), key=lambda t: (self.goal(t), t.bytes))


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """Optuna without its log lines, and as it was afterwards."""
    try:
        import optuna
    except ModuleNotFoundError as err:
        raise UnsupportedError("a plan is searched with Optuna: pip install 'sinkgate[plan]'") from err
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def search(
    it: Search, start: Sequence[Choice], folder: Path, *, progress: Callable[[Trial, int], None] | None = None
) -> None:
    """Fill ``it.trials``.

    Args:
        it: what is searched.
        start: choices that are tried first.
        folder: where the study is kept; the same request finds it there again.
        progress: called with every trial and how many were measured.

    Raises:
        UnsupportedError: Optuna is not installed, or another process searches in this folder.
    """
    from filelock import FileLock, Timeout

    with _quiet() as optuna:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(folder / "lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UnsupportedError(
                f"another process searches for this plan in {folder}; wait for it, or give another seed"
            ) from None
        try:
            storage = JournalStorage(JournalFileBackend(str(folder / "study.log")))
            study = optuna.create_study(
                storage=storage, study_name="plan", load_if_exists=True, pruner=_pruner(optuna, it)
            )
            _mend(optuna, study)
            _go(optuna, it, study, start, progress)
        finally:
            lock.release()


def _pruner(optuna: Any, it: Search) -> Any:
    """Ends a trial whose texts so far show that it breaks the tolerance."""

    class Refuted(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            values = [trial.intermediate_values[i] for i in sorted(trial.intermediate_values)]
            return it.request.nats is not None and _breaks(values, it.request.nats)

    return Refuted()


def _breaks(nats: Sequence[float], tolerance: float) -> bool:
    """Whether the mean is over the tolerance beyond doubt: by its interval, or with one text by twice as much."""
    if not nats:
        return False
    found = mean_of(nats)
    return found.mean > 2 * tolerance if found.low is None else found.low > tolerance


def _mend(optuna: Any, study: Any) -> None:
    """A trial that a killed search left running is closed; it is proposed again, as the same trials lead to it."""
    for state in (optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING):
        for trial in study.get_trials(deepcopy=False, states=(state,)):
            if state == optuna.trial.TrialState.WAITING:
                study.ask()  # which takes it
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


def _go(optuna: Any, it: Search, study: Any, start: Sequence[Choice], progress: Any) -> None:
    states = optuna.trial.TrialState
    it.trials = [Trial.from_json(json.loads(t.user_attrs["trial"])) for t in study.get_trials(deepcopy=False)
                 if "trial" in t.user_attrs]  # fmt: skip
    most, skipped = it.request.much.trials, 0
    while len(it.measured) < most and skipped < SKIPS * most:
        # the sampler starts from the count of finished trials, so that a search that was killed proposes what it would have
        study.sampler = optuna.samplers.TPESampler(
            seed=1000 * it.request.seed + len(it.trials), n_startup_trials=min(6, most // 2)
        )
        guess = _guess(it, start) if len(it.measured) < GUESSED * most else None
        if guess is not None:
            study.enqueue_trial(it.space.parameters(guess))
        asked = study.ask()
        suggested = it.space.suggest(asked)  # of a guess: its parameters as the space counts them
        trial = _try(it, asked, it.space.whole(guess or suggested))
        it.trials.append(trial)
        asked.set_user_attr("trial", json.dumps(trial.to_json()))
        if trial.state in ("kept", "refuted"):
            study.tell(asked, _value(it, trial))
            skipped = 0
        else:
            study.tell(asked, state=states.PRUNED if trial.state == "skipped" else states.FAIL)
            skipped += 1
        if progress is not None:
            progress(trial, len(it.measured))


def _guess(it: Search, start: Sequence[Choice]) -> Choice | None:
    """What a person would try next: what is near the best so far; while there is none, the start."""
    best = it.kept()[:1]
    near = _near(it, Choice(**best[0].choice)) if best and it.request.aim != "quality" else []
    for choice in [*near, *start]:
        fitted = _fitted(it, choice)
        if fitted is not None and _decided(it, fitted, it.space.setting(fitted)) is None:
            return fitted
    return None


def _near(it: Search, choice: Choice) -> list[Choice]:
    """The best so far with fewer bits, or with more where that is lighter; half way (in octaves) to a window that was too short; then with one thing changed.

    Half the layers in 8 bits, other sinks, sinks packed too, positions counted otherwise; some heads or layers that keep the whole
    context beside a window half as long.
    """
    found = []
    alike = choice.spread not in ("bits", "heavy")
    fewer = {0: 8, 8: 4}.get(choice.bits) if alike else None
    if fewer in it.space.bits:
        found.append(dataclasses.replace(choice, bits=fewer))
    if alike:  # of short windows the groups that fill weigh more than the bits save
        for more in (b for b in it.space.bits if (b or 16) > (choice.bits or 16)):
            lighter = it.space.fitting(
                dataclasses.replace(choice, bits=more), round(LIGHTER * it.bytes(choice)), it.request.batch
            )
            if lighter is not None and 2 * lighter.window >= choice.window:
                found.append(lighter)
    if choice.bits == 8 and choice.spread == "alike" and "bits" in it.space.spreads:
        found.append(dataclasses.replace(choice, spread="bits", share=SHARES[-1], bits=4))
    short = [Choice(**t.choice).window for t in it.trials
             if t.state == "refuted" and Choice(**t.choice).keeps_less(choice)]  # fmt: skip
    low = max(short, default=min(it.space.windows[0], choice.window))
    if choice.window > NEAR * low:
        found.append(dataclasses.replace(choice, window=round(math.sqrt(low * choice.window))))
    found += [dataclasses.replace(choice, sinks=i) for i in range(len(it.space.sinks)) if i != choice.sinks]
    if choice.bits and choice.keep_sinks and it.space.sinks[choice.sinks]:
        found.append(dataclasses.replace(choice, keep_sinks=False))
    found += [dataclasses.replace(choice, positions=p) for p in it.space.positions if p != choice.positions]
    if choice.spread == "alike":
        half = max(1, choice.window // 2)
        found += [dataclasses.replace(choice, spread=s, share=SHARES[1], window=half)
                  for s in ("heads", "layers") if s in it.space.spreads]  # fmt: skip
    return found


def _value(it: Search, trial: Trial) -> float:
    """Small is good; a broken tolerance weighs more than anything saved."""
    mean = mean_of(trial.nats).mean
    if it.request.aim == "quality":
        value = mean
    elif it.request.aim == "memory" or trial.milliseconds is None:
        value = math.log(max(trial.bytes, 1))
    else:
        value = math.log(trial.milliseconds)
    if it.request.nats is not None:
        value += 4 * max(0.0, expected(it.request, trial.nats) / it.request.nats - 1)
    return value


def expected(request: Request, nats: Sequence[float]) -> float:
    """What the verification's bound will hardly be above, of a setting with these differences on the tuning texts."""
    found = mean_of(nats)
    spread = max(found.sd or 0.0, LEAST_SPREAD * abs(found.mean))
    ahead = request.much.looks[-1]
    return found.mean + (factor(ahead, SPLIT[0]) + LIKELY * math.sqrt(1 / found.n + 1 / ahead)) * spread


def _try(it: Search, asked: Any, choice: Choice) -> Trial:
    """One proposal."""
    fitted = _fitted(it, choice)
    if fitted is None:
        return _trial(it, asked, choice, "skipped", "no window fits the budget")
    choice = fitted
    setting = it.space.setting(choice)
    why = _decided(it, choice, setting)
    if why is not None:
        return _trial(it, asked, choice, "skipped", why)
    nats: list[float] = []
    late: list[float] = []
    try:
        for piece in it.pieces:
            whole, parts = it.measurer.difference(setting, piece)
            nats.append(whole)
            late.append(parts[-1])
            asked.report(whole, len(nats) - 1)
            if len(nats) < len(it.pieces) and asked.should_prune():
                why = f"over the tolerance after {len(nats)} of {len(it.pieces)} texts"
                return _trial(it, asked, choice, "refuted", why, nats, late)
    except NonFiniteError as err:
        return _trial(it, asked, choice, "failed", _line(err), nats, late)
    except (MemoryError, RuntimeError) as err:
        if not out_of_memory(err):
            raise
        return _trial(it, asked, choice, "out of memory", _line(err), nats, late)
    if it.request.nats is not None and expected(it.request, nats) > it.request.nats:
        why = "with its spread over texts it would hardly be verified within the tolerance"
        return _trial(it, asked, choice, "refuted", why, nats, late)
    return _trial(it, asked, choice, "kept", "", nats, late)


def _fitted(it: Search, choice: Choice) -> Choice | None:
    """With a window that keeps to the budget: shorter where it has to be, and as long as can be where the loss is the goal."""
    budget = it.request.budget
    choice = it.space.whole(choice)
    if budget is None or (it.request.aim != "quality" and it.bytes(choice) <= budget):
        return choice
    return it.space.fitting(choice, budget, it.request.batch)


def _decided(it: Search, choice: Choice, setting: Setting) -> str | None:
    """Why a proposal need not be measured; None: it has to be."""
    same = next((t for t in it.trials if t.setting == setting and t.state != "skipped"), None)
    if same is not None:
        return f"the same setting as trial {same.number}"
    if it.request.nats is not None:
        less = next((t for t in it.trials if t.state == "refuted" and choice.keeps_less(Choice(**t.choice))), None)
        if less is not None:
            return f"keeps less than trial {less.number}, which breaks the tolerance"
    best = it.kept()[:1]
    if best and it.request.aim != "quality":
        ours: float | None = it.bytes(choice) if it.request.aim == "memory" else it.milliseconds(setting)
        if ours is not None and ours >= it.goal(best[0]):
            return f"no better than trial {best[0].number}, which keeps the tolerance"
    return None


def _trial(
    it: Search, asked: Any, choice: Choice, state: str, why: str, nats: Sequence[float] = (), late: Sequence[float] = ()
) -> Trial:
    try:
        setting = it.space.setting(choice)
    except ArgumentError as err:  # a window too short for its parts
        raise ArgumentError(f"trial {asked.number}: {err}") from err
    return Trial(asked.number, setting, dataclasses.asdict(choice), it.bytes(choice), it.milliseconds(setting), state, why,
                 tuple(nats), tuple(late))  # fmt: skip


def _line(err: BaseException) -> str:
    return f"{type(err).__name__}: {' '.join(str(err).split())}"[:200]
