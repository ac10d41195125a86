"""A plan: what to do with a model's cache and numbers, on which evidence, and what was refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkgate.cache.base import Policy
from sinkgate.cache.per_head import PerHead, PerLayer
from sinkgate.cache.sizes import human
from sinkgate.errors import ArgumentError, RecordError
from sinkgate.files import BROKEN, open_record, save_json, typed
from sinkgate.planning.promise import Mean
from sinkgate.planning.request import Request
from sinkgate.planning.search import Trial
from sinkgate.planning.setting import Setting
from sinkgate.planning.sound import check_parts

__all__ = ["ANSWERS", "Plan"]

FORMAT, VERSION = "sinkgate.plan", 1
ANSWERS = ("change", "leave it")
STATES = ("kept", "refuted", "skipped", "out of memory", "failed")
_PARTS = {
    "meta": dict, "request": dict, "answer": str, "setting": dict, "predicted": dict, "measured": dict, "baseline": (dict, type(None)),
    "trials": list, "reasons": list, "refused": list, "notes": list, "weights": (dict, type(None)),
    "quantization": (dict, type(None)), "recall": (dict, type(None)),
}  # fmt: skip


@dataclass
class Plan:
    """Result of :func:`sinkgate.plan`; prints as a page of text.

    Args:
        meta: model (name, class, fingerprint, dtype, shape), texts (tuned and verified on, by id and source), versions, seconds.
        request: what was asked.
        answer: ``change`` or ``leave it``.
        setting: of the cache; ``dense`` where it is left.
        predicted: ``bytes``, ``dense_bytes``, ``milliseconds``, ``dense_milliseconds``, ``increase`` (on the tuning texts).
        measured: on the verification texts: ``increase`` and ``late`` (relative, of the perplexity; late: in the last quarter of a
            text), ``promise`` (the bound for other texts; None without a tolerance), ``kl``, ``agreement``, ``milliseconds``,
            ``dense_milliseconds``, ``ratio`` (of these), ``bytes``; means over texts with intervals.
        baseline: ``recent + sinks(4)`` of the same bytes on the same texts, and the difference to it; None where it is left.
        trials: every setting that was proposed.
        reasons: sentences.
        refused: sentences: what could not be promised or tried, and why.
        notes: what else a reader should know.
        weights: what is done to weights and activations; None: nothing.
        quantization: the arms that were measured (:mod:`sinkgate.planning.quantization_record`); None: they were not.
        recall: accuracy by distance (:class:`sinkgate.evaluate.recall_record.RecallRun`); None: it was not asked for.
    """

    meta: dict[str, Any]
    request: Request
    answer: str
    setting: Setting
    predicted: dict[str, Any]
    measured: dict[str, Any]
    baseline: dict[str, Any] | None = None
    trials: list[Trial] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    weights: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None
    recall: dict[str, Any] | None = None

    # ---- using it -----------------------------------------------------------------------------------------------------

    def check(self, model: Any) -> None:
        """Whether the plan was made for this model.

        Raises:
            RecordError: it was made for another.
        """
        from sinkgate.hf.anatomy import fingerprint

        if self.__dict__.get("_applied") is model:  # its weights are as this plan says, and were checked before that
            return
        found = fingerprint(model)
        if found != self.meta["model"]["fingerprint"]:
            raise RecordError(
                f"this plan was made for {self.meta['model']['name']} (fingerprint {self.meta['model']['fingerprint'][:12]}), and the "
                f"model is another ({found[:12]}): a setting that was verified on one model says nothing about another; make a plan for it"
            )

    def streaming(self, model: Any, *, chunk: int = 512, rollback: int = 0) -> AbstractContextManager[Any]:
        """``sg.streaming`` with the plan's policy and positions.

        Raises:
            RecordError: the plan was made for another model.
        """
        from sinkgate.hf.streaming import streaming

        self.check(model)
        return streaming(model, self.setting.value, positions=self.setting.positions, chunk=chunk, rollback=rollback)

    def apply(self, model: Any) -> AbstractContextManager[Any]:
        """What the plan does to weights and activations, inside the ``with``; nothing where it leaves them.

        Raises:
            RecordError: the plan was made for another model.
        """
        self.check(model)
        if self.weights is None:
            return nullcontext()
        return self._applying(model, self.weights)

    @contextmanager
    def _applying(self, model: Any, weights: dict[str, Any]) -> Iterator[Any]:
        from sinkgate.planning.quantization_spec import apply_quantization

        with apply_quantization(model, weights) as done:
            self.__dict__["_applied"] = model
            try:
                yield done
            finally:
                self.__dict__.pop("_applied", None)

    def torchao(self, model: Any = None) -> dict[str, Any]:
        """What is done to weights and activations, as a torchao configuration in plain JSON.

        Args:
            model: to leave out layers that torchao does not know as linear.

        Returns:
            ``config`` (None where nothing is done to them), ``left_out`` with reasons, ``notes``; see
            :func:`sinkgate.planning.torchao.torchao_config`, and ``build_torchao`` beside it for the object itself.
        """
        from sinkgate.planning.quantization_spec import KVSpec, spec_from_json
        from sinkgate.planning.torchao import torchao_config

        spec = (
            KVSpec(self.setting.policy, self.setting.positions)
            if self.weights is None
            else spec_from_json(self.weights)
        )
        return torchao_config(spec, model)

    def keep_list(self, model: Any = None) -> dict[str, Any]:
        """What to keep in full precision, and what in more bits than the rest, as plain JSON.

        Args:
            model: to name also the linear layers that are not quantised at all.

        Returns:
            ``cache``: ``tokens`` in full precision, ``heads`` and ``layers`` that keep more or in more bits, each with its policy;
            ``weights``: see :func:`sinkgate.planning.quantization_spec.keep_list`; None where nothing is done to them.
        """
        from sinkgate.planning.quantization_spec import keep_list, spec_from_json

        weights = None if self.weights is None else keep_list(spec_from_json(self.weights), model)
        return {"cache": kept_by(self.setting.value), "weights": weights}

    def code(self) -> str:
        """The lines to paste."""
        name = self.meta["model"]["name"]
        lines = ["import sinkgate as sg", "", f"loaded = sg.load({name!r})"]
        inside = (
            f"with sg.streaming(loaded.model, {self.setting.policy!r}, positions={self.setting.positions!r}) as cache:"
        )
        body = "loaded.model.generate(**inputs, max_new_tokens=1000, cache=cache)"
        if self.weights is not None:
            lines.append('plan = sg.Plan.load("plan.json")')
            inside = "with plan.apply(loaded.model), plan.streaming(loaded.model) as cache:"
        elif self.setting.dense:
            return "\n".join([*lines, "loaded.model.generate(**inputs, max_new_tokens=1000)"])
        return "\n".join([*lines, inside, f"    {body}"])

    # ---- keeping ------------------------------------------------------------------------------------------------------

    @property
    def frontier(self) -> list[int]:
        """Indices of trials that no measured other beats in loss, bytes and milliseconds at once."""
        points = [
            (i, t.increase.mean, t.bytes, t.milliseconds or 0.0)
            for i, t in enumerate(self.trials)
            if t.increase is not None and t.state in ("kept", "refuted")
        ]

        def beaten(p: tuple[int, float, int, float]) -> bool:
            return any(all(b <= a for a, b in zip(p[1:], q[1:], strict=True)) and q[1:] != p[1:] for q in points)

        return [p[0] for p in points if not beaten(p)]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "format": FORMAT, "version": VERSION, "meta": self.meta, "request": self.request.to_json(), "answer": self.answer,
            "setting": self.setting.to_json(), "predicted": self.predicted, "measured": self.measured, "baseline": self.baseline,
            "trials": [t.to_json() for t in self.trials], "frontier": self.frontier, "reasons": self.reasons, "refused": self.refused,
            "notes": self.notes, "weights": self.weights, "quantization": self.quantization, "recall": self.recall,
            "code": self.code(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The inverse of :meth:`to_json`.

        Raises:
            RecordError: it is no plan, of another version, or damaged.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise RecordError("this is not a plan")
        if data.get("version") != VERSION or isinstance(data["version"], bool):
            raise RecordError(f"a plan of version {data.get('version')!r}; this sinkgate reads {VERSION}")
        try:
            typed("the plan", data, _PARTS)
            typed("its model", data["meta"].get("model"), {"name": str, "class": str, "fingerprint": str, "dtype": str})
            typed("its prediction", data["predicted"], {"bytes": int, "dense_bytes": int})
            if data["answer"] not in ANSWERS:
                raise RecordError(f"the plan is damaged: its answer is {data['answer']!r}")
            for name in ("reasons", "refused", "notes"):
                if not all(isinstance(line, str) for line in data[name]):
                    raise RecordError(f"the plan is damaged: {name} holds something that is no sentence")
            trials = []
            for given in data["trials"]:
                typed(
                    "a trial",
                    given,
                    {"number": int, "bytes": int, "state": str, "why": str, "nats": list, "late": list},
                )
                if given["state"] not in STATES or not all(
                    isinstance(x, int | float) for x in [*given["nats"], *given["late"]]
                ):
                    raise RecordError(
                        "the plan is damaged: a trial has an unknown state, or losses that are no numbers"
                    )
                trials.append(Trial.from_json(given))
            if data["weights"] is not None:
                from sinkgate.planning.quantization_spec import spec_from_json

                spec_from_json(data["weights"])
            if data["quantization"] is not None:
                from sinkgate.planning.quantization_record import QuantizationArms

                QuantizationArms.from_json(data["quantization"])
            check_parts(data)
            found = cls(
                data["meta"], Request.from_json(data["request"]), data["answer"], Setting.from_json(data["setting"]),
                data["predicted"], data["measured"], data["baseline"], trials, data["reasons"], data["refused"], data["notes"],
                data["weights"], data["quantization"], data["recall"],
            )  # fmt: skip
            str(found)  # asks for what a reader is promised
            return found
        except RecordError:
            raise
        except BROKEN as err:
            raise RecordError(f"the plan is damaged: {err}") from err

    def save(self, path: str | os.PathLike[str]) -> Path:
        """As JSON, written beside and renamed.

        Raises:
            OutputError: it cannot be written.
        """
        return save_json(path, self.to_json(), indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Open a saved one.

        Raises:
            RecordError: there is none, or it is damaged.
        """
        return open_record(Path(path), "plan", cls.from_json)

    def __str__(self) -> str:
        model, asked = self.meta["model"], self.request
        keeps = []
        if asked.budget is not None:
            keeps.append(f"at most {human(asked.budget)} of keys and values")
        if asked.max_increase is not None:
            keeps.append(f"perplexity at most {100 * asked.max_increase:.3g}% higher")
        if asked.weight_budget is not None:
            keeps.append(f"at most {human(asked.weight_budget)} of weights")
        lines = [
            f"{model['name']} ({model['class']}, {model['dtype']}): {' and '.join(keeps)}, at {self.meta['context']:,} tokens"
            + (f" × {asked.batch}" if asked.batch > 1 else ""),
            f"Answer: {self.answer}" + ("" if self.setting.dense else f": {self.setting}"),
            "",
            f"{'':<28}{'as it is':>14}{'the plan':>14}",
            _row("cache, predicted", human(self.predicted["dense_bytes"]), human(self.predicted["bytes"])),
        ]
        m = self.measured
        if m.get("milliseconds"):
            lines.append(_row("a step, measured", f"{m['dense_milliseconds']:.3g} ms", f"{m['milliseconds']:.3g} ms"))
        if m.get("increase"):
            lines.append(_row("perplexity", "", _percent(_mean(m["increase"]))))
            lines.append(_row("  in the last quarter", "", _percent(_mean(m["late"]))))
        if m.get("promise") is not None:
            lines.append(_row("  promised for other texts", "", f"≤ {m['promise']:+.2%}"))
        if m.get("with_weights"):
            w = m["with_weights"]
            lines.append(_row("weights", human(w["as_is"]), human(w["bytes"])))
            lines.append(_row("  perplexity with them", "", _percent(_mean(w["increase"]))))
        if m.get("kl"):
            lines.append(_row("KL, nats a token", "", f"{m['kl']['mean']:.3g}"))
        for title, part in (("Why", self.reasons), ("Refused", self.refused), ("Notes", self.notes)):
            if part:
                lines += ["", f"{title}:", *(f"  {line}" for line in part)]
        return "\n".join(lines)


def kept_by(policy: Policy) -> dict[str, Any]:
    """Tokens that a policy keeps as the model computes them, and heads and layers that it treats apart."""
    tokens: list[dict[str, Any]] = []
    for keep in policy.kinds:
        whole = keep.storage.bits is None or keep.storage.keep_sinks
        tokens += [p.to_json() for p in keep.pinned if whole and p.to_json() not in tokens]
    found: dict[str, Any] = {"policy": str(policy), "tokens": tokens, "heads": [], "layers": []}
    if isinstance(policy, PerHead):
        found["heads"] = [{"layer": i, "query_head": h, "policy": str(policy.other)} for i, h in policy.heads]
    elif isinstance(policy, PerLayer):
        found["layers"] = [{"layer": i, "policy": str(policy.other)} for i in policy.layers]
    return found


def _row(name: str, before: str, after: str) -> str:
    return f"{name:<28}{before:>14}{after:>14}"


def _mean(data: dict[str, Any]) -> Mean:
    return Mean(data["mean"], data["low"], data["high"], data["upper"], data["n"], data.get("sd"))


def _percent(x: Mean) -> str:
    spread = "" if x.low is None or x.high is None else f" [{x.low:+.2%}, {x.high:+.2%}]"
    return f"{x.mean:+.2%}{spread}"


def refuse_goal(request: Request) -> None:
    """A goal that has nothing to hold it.

    Raises:
        ArgumentError: memory or latency without a tolerance.
    """
    if request.max_increase is None and request.aim != "quality":
        raise ArgumentError(
            f"goal {request.aim!r} without a tolerance would keep nothing at all: give max_increase too (1%), or goal 'quality'"
        )
