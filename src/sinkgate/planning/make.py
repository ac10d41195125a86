"""``sg.plan``: from a diagnosis and a budget to a verified setting, with its reasons; or "leave it"."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sinkgate import __version__
from sinkgate.cache.sizes import human
from sinkgate.errors import ArgumentError, RecordError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.fetch import cache_dir
from sinkgate.hf.load import load
from sinkgate.planning import bits, reasons
from sinkgate.planning.cost import Latency, Shape, fit_latency
from sinkgate.planning.measure import STEPS, Measurer, step_times
from sinkgate.planning.promise import SPLIT, Mean, mean_of
from sinkgate.planning.quantization_spec import apply_quantization
from sinkgate.planning.record import Plan, refuse_goal
from sinkgate.planning.request import EFFORTS, Request
from sinkgate.planning.screen import far_mass, forgetting, order
from sinkgate.planning.search import FORMAT, Search, Trial, search
from sinkgate.planning.setting import LEAVE, Setting
from sinkgate.planning.space import SPREADS, Choice, Space, least_bytes, sink_options
from sinkgate.planning.store import Store
from sinkgate.planning.texts import Split, split
from sinkgate.planning.verify import Verdict, compared, in_order, verify
from sinkgate.probe.diagnose import diagnose
from sinkgate.probe.policy import sinks_policy
from sinkgate.probe.text import Piece, Text
from sinkgate.record import Diagnosis

__all__ = ["plan"]

Progress = Callable[[str, int, int], None]
KL_TEXTS = 3  # that are read beside the untouched model
DIAGNOSED = 4  # texts of a diagnosis made here
LATENCY_TOKENS = 768  # behind which steps are timed for the fit


def plan(
    model: str | os.PathLike[str] | nn.Module,
    tokenizer: Any = None,
    texts: Iterable[str | Text] | str | None = None,
    *,
    budget: int | None = None,
    max_increase: float | None = None,
    context: int | None = None,
    batch: int = 1,
    weight_budget: int | None = None,
    goal: str | None = None,
    effort: str = "default",
    seed: int = 0,
    record: Diagnosis | None = None,
    quantization: bool = True,
    recall: bool = True,
    name: str | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Plan:
    """What a model's cache should keep: searched on some texts, verified on others, with reasons; it may be "leave it".

    Args:
        model: a name, path or Hub id (see :func:`sinkgate.load`), or a loaded transformers model.
        tokenizer: of a loaded model.
        texts: to tune and to verify on; None: the demo speeches. A setting is promised for texts like these.
        budget: bytes of keys and values at ``context`` × ``batch``.
        max_increase: of the perplexity over held-out texts, relative: 0.01 for 1%.
        context: tokens; None: as many as the model was trained for.
        batch: sequences at once.
        weight_budget: bytes of the weights of linear layers.
        goal: ``memory``, ``latency`` or ``quality``; see :class:`~sinkgate.planning.request.Request`.
        effort: ``quick``, ``default`` or ``thorough``.
        seed: of the choice of texts and of the search.
        record: a diagnosis of this model; None: one is made.
        quantization: measure the four arms of fewer bits too.
        recall: measure what is recalled at which distance too.
        name: what the plan calls the model.
        folder: where the search is kept, to go on from; None: the cache folder.
        progress: called with (what, done, of).
        dtype: of a model given by name.
        device: the same.
        trust_remote_code: the same.

    Returns:
        A :class:`~sinkgate.planning.record.Plan`.

    Raises:
        ArgumentError: a request out of range, or one that nothing can meet; says the least that is possible.
        TextError: too little text; says how much is needed.
        RecordError: a record of another model.
        UnsupportedError: a model whose cache cannot be changed, or Optuna is not installed.

    >>> p = sg.plan("smollm2-135m", max_increase=0.02, context=2048)       # doctest: +SKIP
    >>> with p.streaming(model) as cache: ...                               # doctest: +SKIP
    """
    request = Request(budget, max_increase, context, batch, weight_budget, goal, effort, seed)
    if budget is not None or max_increase is not None:
        refuse_goal(request)
    say: Progress = progress or (lambda *_: None)
    start = time.perf_counter()
    if not isinstance(model, nn.Module):
        found = load(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        name, model, tokenizer = name or os.fspath(model), found.model, found.tokenizer
    elif tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: sg.plan(model, tokenizer, …)")
    assert isinstance(model, nn.Module)
    if not compat.configs(model):
        raise UnsupportedError(
            f"{type(model).__name__} is no transformers model; only these have a cache that can be planned for"
        )
    work = _Work(model, tokenizer, request, name or type(model).__name__, say)
    work.prepare(texts, record, None if folder is None else Path(folder))
    result = work.decide()
    if quantization or weight_budget is not None:
        work.fewer_bits(result)
    if recall:
        work.recalled(result)
    result.meta["seconds"] = time.perf_counter() - start
    result.meta["reused"] = work.measurer.store.reused
    return result


class _Work:
    """One plan being made."""

    def __init__(self, model: nn.Module, tokenizer: Any, request: Request, name: str, say: Progress) -> None:
        self.model, self.tokenizer, self.request, self.name, self.say = model, tokenizer, request, name, say
        self.shape = Shape.of(model)
        self.fingerprint = fingerprint(model)
        self.refused: list[str] = []
        self.notes: list[str] = []
        trained = self.shape.context
        if request.context is None and trained is None:
            raise ArgumentError("the model does not say what context it was trained for: give one (--context 4096)")
        self.context = request.context or trained or 0
        self.length = min(self.context, trained or self.context, request.much.tokens)
        if not self.shape.free:
            raise UnsupportedError(
                f"every layer of {name} has a cache that no policy can change; there is nothing to plan"
            )
        if self.shape.window is not None and self.shape.window < self.context:
            raise UnsupportedError(
                f"every layer of {name} has a window of {self.shape.window:,} tokens, so its cache is bounded already, and nothing that "
                f"keeps all {self.context:,} tokens is the model as it is: give a context of at most {self.shape.window:,}"
            )
        positions = ("slots", "original") if self.shape.slots else ("original",)
        if trained is not None and self.context > trained:
            if not self.shape.slots:
                raise ArgumentError(
                    f"{name} was made for {trained:,} positions and cannot count them inside a cache, so it cannot read a context of "
                    f"{self.context:,} tokens: give at most {trained:,}"
                )
            positions = ("slots",)  # those of the text would leave what it was trained on
        if not self.shape.slots:
            self.refused.append(
                f"{name} hands its layers no rotation that could be turned to another position, so positions cannot be counted "
                "inside the cache: only those of the text were tried, and a stream ends where its trained positions end"
            )
        self.space = Space(self.shape, self.context, ("", "sinks(1)", "sinks(4)"), (), (), positions)
        self.dense_bytes = self.shape.bytes(LEAVE.value, LEAVE.positions, context=self.context, batch=request.batch)
        self.widths = bits.widths(model)
        self.weight_bits = None if request.weight_budget is None else self.widths.fitting(request.weight_budget)
        least, lightest = least_bytes(self.space, request.batch)
        if request.budget is not None and request.budget < least:
            raise ArgumentError(
                f"a budget of {human(request.budget)} cannot be met: the least that {name} can do with is {human(least)} "
                f"({least:,} bytes: {lightest}); its whole cache at {self.context:,} tokens is {human(self.dense_bytes)}"
            )

    # ---- before the search --------------------------------------------------------------------------------------------

    def prepare(self, texts: Any, record: Diagnosis | None, folder: Path | None) -> None:
        """Texts, record, order of heads and layers, the fit of a step's time."""
        much = self.request.much
        self.texts: Split = split(
            self.tokenizer, texts, length=self.length, tune=much.tune, verify=much.looks[-1], least=min(4, much.looks[0]),
            seed=self.request.seed,
        )  # fmt: skip
        if self.texts.repeated:
            self.notes.append(
                f"{self.texts.repeated} pieces of text repeat what is tuned on, and were not verified on: parts of the texts are the same."
            )
        if self.length < self.context:
            self.notes.append(
                f"Losses were measured on texts of {self.length:,} tokens, bytes are those of {self.context:,}: what is said of the "
                "loss holds for texts of the measured length"
                + ("; effort 'thorough' reads longer ones." if self._longer() else ".")
            )
        if record is not None:
            theirs = record.meta["model"].get("fingerprint")
            if theirs != self.fingerprint:
                raise RecordError(
                    f"the record is of another model ({record.meta['model'].get('name')}, fingerprint {str(theirs)[:12]}; this one is "
                    f"{self.fingerprint[:12]}): diagnose this model, or leave the record out and the plan does"
                )
        self.measurer = Measurer(self.model)
        self.store: Store = self.measurer.store
        self.record = self._diagnosed() if record is None else record
        try:
            part = str(sinks_policy(self.record, self.tokenizer))
        except ArgumentError:
            part = ""
            self.notes.append("The record shows no sink in half of its texts over its threshold.")
        self.part = part
        window = max(8, min(124, self.length // 8))
        self.cost = forgetting(
            self.model, self.shape, self.texts.tune[0], f"recent({window}) + sinks(4)", much.screen, self.store,
            lambda done, of: self.say("one layer forgets", done, of),
        )  # fmt: skip
        heads, layers = order(self.cost, far_mass(self.record, self.shape))
        self.space = dataclasses.replace(self.space, sinks=sink_options(part), heads=heads, layers=layers)
        self.folder = (cache_dir() / "plans" if folder is None else folder) / f"search-{self._key()}"
        self.latency = self._latency()

    def _diagnosed(self) -> Diagnosis:
        """A record of the tuning texts; kept, as whatever else is the same for all that can be asked."""
        how: dict[str, Any] = {
            "tokens": min(512, self.length),
            "samples": DIAGNOSED,
            "local_window": min(64, max(1, self.length // 4)),
        }
        of = [self.fingerprint, self.measurer.dtype, [p.id for p in self.texts.tune], how, self.store.path.stem]
        kept = self.store.path.parent / f"record-{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]}"
        with contextlib.suppress(RecordError):
            return Diagnosis.load(kept)
        self.say("diagnosis", 0, 1)
        texts = [Text(p.source, self._content(p)) for p in self.texts.tune]
        made = diagnose(self.model, self.tokenizer, texts, **how)
        assert isinstance(made, Diagnosis)
        made.save(kept)
        self.say("diagnosis", 1, 1)
        return made

    def _longer(self) -> bool:
        """Whether the most thorough effort would read longer texts."""
        return self.length < min(self.context, self.shape.context or self.context, EFFORTS["thorough"].tokens)

    def _content(self, piece: Piece) -> str:
        return str(self.tokenizer.decode(piece.ids, skip_special_tokens=True))

    def _key(self) -> str:
        asked = json.dumps(
            [
                self.request.to_json(),
                self.fingerprint,
                self.measurer.dtype,
                [p.id for p in self.texts.tune],
                [self.space.sinks, self.space.heads, self.space.layers],  # what the numbers in its trials mean
                [__version__, FORMAT],
            ]
        )
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def _latency(self) -> Latency:
        """A few steps behind one text."""
        ids = self.texts.tune[0].ids[: max(1, min(LATENCY_TOKENS, self.length) - STEPS)]  # and the steps themselves
        n = len(ids)
        tried = [
            LEAVE,
            Setting(f"recent({max(1, n // 8)})", "original"),
            Setting(f"recent({max(1, n // 2)})", "original"),
        ]
        tried += [Setting(f"quantized(recent({max(1, n // k)}), bits=8)", "original") for k in (1, 4)]
        reads, times = [], []
        for i, setting in enumerate(tried):
            self.say("time of a step", i, len(tried))
            reads.append(self.shape.reads(setting.value, context=n))
            key = f"step|{setting.key}|{n}|{self.texts.tune[0].id}|{self.measurer.machine}"
            times.append(
                self.store.measured(key, lambda s=setting: float(np.median(step_times(self.model, s, ids))))  # type: ignore[misc]
            )
        self.say("time of a step", len(tried), len(tried))
        return fit_latency(reads, times)

    # ---- search and verification --------------------------------------------------------------------------------------

    def decide(self) -> Plan:
        """The cache."""
        asked = self.request
        if asked.budget is None and asked.max_increase is None:
            return self._result("leave it", LEAVE, None, [], reasons=["Nothing was asked of the cache."])
        if asked.aim == "quality" and asked.budget is not None and self.dense_bytes <= asked.budget:
            why = f"The whole cache, {human(self.dense_bytes)}, fits the budget of {human(asked.budget)}: nothing has to be given up."
            return self._result("leave it", LEAVE, None, [], reasons=[why])
        it = Search(asked, self.space, self.texts.tune, self.measurer, self.latency)
        search(it, self._start(), self.folder, progress=self._tried)
        kept = it.kept()
        if not kept:
            return self._result("leave it", LEAVE, None, it.trials, reasons=[reasons.none_kept(it)])
        verdicts, last = in_order(it, kept, self._verify)
        if last is None:
            self.refused += reasons.not_promised(verdicts, self.texts, asked)
            return self._result("leave it", LEAVE, None, it.trials, reasons=[reasons.none_verified(verdicts, asked)])
        size = self.shape.bytes(last.setting.value, last.setting.positions, context=self.context, batch=asked.batch)
        last, baseline = self._beside_plain(last, size)
        found = self._result("change", last.setting, last, it.trials, baseline=baseline, reasons=[])
        found.reasons = reasons.chosen(found, it, last, verdicts, self.record, self.part)
        return found

    def _verify(self, setting: Setting, share: float) -> Verdict:
        return verify(self.measurer, setting, self.texts.verify, self.request, share,
                      lambda done, of: self.say(f"verifying {setting}", done, of))  # fmt: skip

    def _tried(self, trial: Trial, measured: int) -> None:
        if trial.state != "skipped":
            self.say(f"trial {trial.number}: {trial.setting.policy}", measured, self.request.much.trials)

    def _start(self) -> list[Choice]:
        """The whole context in 4 and in 8 bits; then windows down the range, and what differs over the model."""
        positions = self.space.positions[0]
        four = self.space.sinks.index("sinks(4)")
        windows = self.space.windows
        whole = max(1, self.space.reach - 4)
        at = [windows[round(f * (len(windows) - 1))] for f in (1.0, 0.9, 0.75)]
        start = [Choice(sinks=four, window=whole, bits=b, positions=positions) for b in (4, 8) if b in self.space.bits]
        start += [Choice(sinks=four, window=w, bits=8, positions=positions) for w in at]
        start.append(Choice(sinks=four, window=at[0], positions=positions))
        for spread in SPREADS[1:3]:
            if spread in self.space.spreads:
                start.append(Choice(spread=spread, share=0.25, sinks=four, window=at[2], bits=8, positions=positions))
        return start

    def _beside_plain(self, verdict: Verdict, size: int) -> tuple[Verdict, dict[str, Any] | None]:
        """``recent + sinks(4)`` of the same bytes on the same texts; it is taken where it is better beyond the interval.

        It is one more candidate, with a share of the error kept for it.
        """
        four = Choice(sinks=self.space.sinks.index("sinks(4)"), positions=self.space.positions[0])
        fitted = self.space.fitting(four, size, self.request.batch)
        if fitted is None:
            self.notes.append(
                "No recent(n) + sinks(4) weighs as little as the plan, so there is none to set beside it."
            )
            return verdict, None
        plain = self.space.setting(fitted)
        if plain == verdict.setting:
            self.notes.append("The plan is itself a recent(n) + sinks(4), so there is none to set beside it.")
            return verdict, None
        pieces = self.texts.verify[: len(verdict.nats)]
        self.say(f"beside {plain}", 0, 1)
        found = compared(self.measurer, verdict.setting, plain, pieces)
        self.say(f"beside {plain}", 1, 1)
        beside = {
            "setting": plain.to_json(), "bytes": self.space.bytes(fitted, self.request.batch),
            "difference": found.to_json(),
            "increase": mean_of([d for d, _ in self.measurer.differences(plain, pieces[: found.n])]).map(math.expm1).to_json(),
            "taken": False,
        }  # fmt: skip
        if found.low is not None and found.low > 0:
            other = verify(self.measurer, plain, self.texts.verify, self.request, SPLIT[-1])
            if other.kept:
                beside["taken"] = True
                return other, beside
        return verdict, beside

    def _result(
        self, answer: str, setting: Setting, verdict: Verdict | None, trials: list[Trial], *, reasons: list[str],
        baseline: dict[str, Any] | None = None,
    ) -> Plan:  # fmt: skip
        shape, asked = self.shape, self.request
        size = shape.bytes(setting.value, setting.positions, context=self.context, batch=asked.batch)
        predicted: dict[str, Any] = {
            "bytes": size, "dense_bytes": self.dense_bytes,
            "milliseconds": self.latency(shape.reads(setting.value, context=self.context)),
            "dense_milliseconds": self.latency(shape.reads(LEAVE.value, context=self.context)),
            "increase": self._tuned(setting, trials),
            "latency": self.latency.to_json(),
        }  # fmt: skip
        measured: dict[str, Any] = {}
        if verdict is not None:
            measured = self._measured(verdict)
        meta = {
            "model": {
                "name": self.name, "class": type(self.model).__name__, "fingerprint": self.fingerprint, "dtype": self.measurer.dtype,
                "shape": shape.to_json(),
            },
            "context": self.context, "texts": self.texts.to_json(), "threads": torch.get_num_threads(),
            "record": {"samples": self.record.samples, "tokens": self.record.settings.tokens, "sinks": self.part},
            "forgetting": {str(i): x for i, x in self.cost.items()},
            "versions": {"sinkgate": __version__, "torch": torch.__version__, "transformers": version("transformers")},
        }  # fmt: skip
        return Plan(
            meta, asked, answer, setting, predicted, measured, baseline, trials, reasons, self.refused, self.notes
        )

    def _tuned(self, setting: Setting, trials: list[Trial]) -> dict[str, Any] | None:
        """The perplexity's increase on the tuning texts, where a trial read all of them."""
        trial = next((t for t in trials if t.setting == setting and len(t.nats) == len(self.texts.tune)), None)
        return None if trial is None or trial.increase is None else trial.increase.to_json()

    def _measured(self, verdict: Verdict) -> dict[str, Any]:
        found: dict[str, Any] = {
            "increase": verdict.increase.to_json() | {"sd": None}, "late": mean_of(verdict.late).map(math.expm1).to_json(),
            "promise": None if verdict.bound is None else math.expm1(verdict.bound), "looked": verdict.looked,
            "nats": list(verdict.nats), "length": self.length,
        }  # fmt: skip
        pieces: Sequence[Piece] = self.texts.verify[:KL_TEXTS]
        rows = []
        for i, piece in enumerate(pieces):
            self.say("beside the model as it is", i, len(pieces))
            rows.append(self.measurer.beside(verdict.setting, piece))
        self.say("beside the model as it is", len(pieces), len(pieces))
        found["kl"] = mean_of([r.kl for r in rows]).to_json()
        found["agreement"] = mean_of([r.agreement for r in rows]).to_json()
        found["bytes"], found["dense_bytes"] = rows[0].bytes, rows[0].dense_bytes
        ours, dense = ([float(np.median(getattr(r, n))) for r in rows] for n in ("milliseconds", "dense_milliseconds"))
        ratio: Mean = mean_of([a / b for a, b in zip(ours, dense, strict=True)])
        found |= {
            "milliseconds": float(np.median(ours)),
            "dense_milliseconds": float(np.median(dense)),
            "ratio": ratio.to_json(),
        }
        found["predicted_bytes"] = self.shape.bytes(
            verdict.setting.value, verdict.setting.positions, context=self.length
        )
        reads = [self.shape.reads(s.value, context=self.length) for s in (verdict.setting, LEAVE)]
        found["predicted_ratio"] = self.latency(reads[0]) / self.latency(reads[1])
        return found

    # ---- beside the cache ---------------------------------------------------------------------------------------------

    def recalled(self, result: Plan) -> None:
        """Recall by distance, with the plan and as it is."""
        from sinkgate.evaluate.recall_run import recall

        far = max(16, self.length // 2)
        distances = tuple(sorted({d for d in (32, 128, 512, 2048, 8192) if d < far} | {far}))
        arms: list[Any] = [("as it is", LEAVE.policy, LEAVE.positions)]
        if not result.setting.dense:
            arms.append(("the plan", result.setting.policy, result.setting.positions))
        window = max(1, min((k.recent or self.context) for k in result.setting.value.kinds))
        try:
            found = recall(
                self.model, self.tokenizer, arms, window=window, distances=distances, per_distance=self.request.much.recall,
                seeds=(self.request.seed,), name=self.name, progress=lambda arm, done, of: self.say(f"recall, {arm.name}", done, of),
            )  # fmt: skip
        except ArgumentError as err:  # a tokenizer that does not tell the facts apart
            result.notes.append(f"Recall was not measured: {err}.")
            return
        result.recall = found.to_json()
        result.reasons += reasons.recalled(found)

    def fewer_bits(self, result: Plan) -> None:
        """The four arms; and the weights where they have a budget, verified together with the cache."""
        texts = [*self.texts.verify, *self.texts.tune]
        if self.weight_bits is not None:  # an arm is chosen by them, so none that it is verified on
            texts = list(self.texts.tune)
        texts = texts[: self.request.much.arms]
        found = bits.arms(
            self.model, self.tokenizer, texts, self.record, self.measurer.store, name=self.name, positions=self.space.positions[0],
            weight_bits=self.weight_bits or 4, say=self.say,
        )  # fmt: skip
        result.quantization = found.to_json()
        result.reasons += found.sentences()
        if self.request.weight_budget is None:
            return
        if self.weight_bits is None:
            result.reasons.append(
                f"The weights of linear layers, {human(self.widths.as_is)}, fit their budget as they are."
            )
            return
        spec, why = bits.chosen(self.model, found, self.weight_bits)
        data = spec.to_json()
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
        measurer = Measurer(self.model, self.measurer.store, lambda: apply_quantization(self.model, spec), digest)
        verdict = verify(measurer, result.setting, self.texts.verify, self.request, 1.0,
                         lambda done, of: self.say("verifying the weights", done, of))  # fmt: skip
        size = self.widths.uniform[self.weight_bits]
        both = {"increase": verdict.increase.to_json(), "promise": None if verdict.bound is None else math.expm1(verdict.bound),
                "nats": list(verdict.nats), "bytes": size, "as_is": self.widths.as_is}  # fmt: skip
        result.measured["with_weights"] = both
        if not verdict.kept:
            result.refused.append(
                f"Weights within {human(self.request.weight_budget)} ({why}) raise the perplexity by {verdict.increase.mean:+.2%} together "
                f"with the cache, which cannot be promised to stay within {self.request.max_increase:.2%}: the weights are left."
            )
            return
        result.weights, result.answer = data, "change"
        result.reasons.append(
            f"Weights: {why}. They keep {human(size)} of {human(self.widths.as_is)}; together with the cache the perplexity rises by "
            f"{verdict.increase.mean:+.2%} on {verdict.increase.n} texts that the search never saw."
        )
