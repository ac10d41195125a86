"""Plans made by hand: every number is written here or a formula of a trial's number; nothing is run."""

from __future__ import annotations

import math
from typing import Any

from sinkgate.evaluate.recall_record import RecallArm, RecallRun
from sinkgate.evaluate.recall_score import Outcome, RecallResult
from sinkgate.planning.promise import mean_of
from sinkgate.planning.quantization_spec import ActivationSpec, KVSpec
from sinkgate.planning.record import Plan
from sinkgate.planning.request import Request
from sinkgate.planning.search import Trial
from sinkgate.planning.setting import LEAVE, Setting
from sinkgate.quantization import Quantization

TOLERANCE, BUDGET, CONTEXT = 0.02, 48 << 20, 8192
DENSE = 192 << 20
CHOSEN = "quantized(recent(1020) + sinks(4), bits=8)"

# policy, MiB, milliseconds, state, why, percent on each tuning text, percent in its last quarter
TRIED: list[tuple[str, float, float | None, str, str, list[float], list[float]]] = [
    ("recent(4092) + sinks(4)", 96, 40.0, "kept", "", [0.2, 0.1, 0.3], [0.5, 0.4, 0.3]),
    ("recent(2044) + sinks(4)", 48, 35.5, "kept", "", [0.5, 0.6, 0.7], [0.9, 1.1, 1.0]),
    ("quantized(recent(2044) + sinks(4), bits=8)", 27, 38.25, "kept", "", [0.6, 0.5, 0.85], [1.0, 1.2, 1.4]),
    (CHOSEN, 13.5, 33.0, "kept", "", [0.9, 1.0, 1.1], [1.5, 1.6, 1.7]),
    ("quantized(recent(1020) + sinks(4), bits=4)", 7.5, 33.125, "refuted", "mean over 80% of the tolerance", [1.8, 1.9, 2.0], [2.4, 2.5, 2.2]),
    ("recent(2048)", 48, 35.25, "refuted", "over the tolerance after 2 of 3 texts", [310.0, 290.0], [500.0, 400.0]),
    ("quantized(recent(508) + sinks(4), bits=4)", 4, 31.0, "refuted", "over the tolerance after 2 of 3 texts", [4.5, 4.25], [6.0, 5.0]),
    ("recent(1020) + sinks(4)", 24, 32.5, "skipped", "no better than trial 3, which keeps the tolerance", [], []),
    ("recent(100)", 2.5, 30.0, "skipped", "keeps less than trial 5, which breaks the tolerance", [], []),
    ("recent(7000) + sinks(4)", 165, None, "out of memory", "MemoryError: no room", [0.05], [0.1]),
    ("recent(8000) + sinks(4)", 188, None, "failed", "NonFiniteError: no number in layer 3", [], []),
]  # fmt: skip


def nats(percent: list[float]) -> tuple[float, ...]:
    return tuple(math.log1p(x / 100) for x in percent)


def trials() -> list[Trial]:
    return [
        Trial(i, Setting(policy), {"window": i}, round(mib * 2**20), ms, state, why, nats(whole), nats(late))
        for i, (policy, mib, ms, state, why, whole, late) in enumerate(TRIED)
    ]


def relative(percent: list[float]) -> dict[str, Any]:
    return mean_of(nats(percent)).map(math.expm1).to_json()


def recalled() -> RecallRun:
    def outcome(distance: int, right: bool) -> Outcome:
        return Outcome("stream", distance, distance, right, -1.0, 0.1, 0.0, False)

    near, far = [outcome(40, True)] * 3, [outcome(900, False)] * 3
    meta = {
        "model": {"name": "small"}, "edges": [128, 512], "texts": [{"tokens": 1200, "questions": 6}], "tasks": ["stream"], "seeds": [0],
        "wanted": ["as it is", "the plan"],
    }  # fmt: skip
    arms = [
        RecallArm("as it is", "dense", "original", RecallResult((*near, *[outcome(900, True)] * 3)), 1.0, 1200, True),
        RecallArm("the plan", CHOSEN, "slots", RecallResult((*near, *far), 512), 1.0, 1200, True),
    ]
    return RecallRun(meta, arms)


ARMS = [("uniform", [0.03, 0.02, 0.025]), ("sink-aware", [0.01, 0.004, 0.006]), ("per-head", [0.031, 0.018, 0.024])]


SPECS = {
    "kv": KVSpec("quantized(recent(64) + sinks(4), bits=4)"),
    "activations": ActivationSpec(
        ("a",), Quantization(8, granularity="channel"), Quantization(8, granularity="tensor")
    ),
}


def arms() -> dict[str, Any]:
    """One list of arms, each with what its loss rises by on every text."""
    return {
        "format": "sinkgate.quantization_arms", "version": 1, "meta": {"model": "small", "texts": 3, "tokens": 512, "notes": []},
        "arms": [
            {"place": place, "name": name, "words": f"{name}, in words", "spec": SPECS[place].to_json(), "size": size, "rises": rises, "kls": rises}
            for place, size in (("kv", 13 << 20), ("activations", 8.25))
            for name, rises in ARMS
        ],
        "skipped": {"weights": {"sink-aware": "the record has no sink"}},
    }  # fmt: skip


def by_place() -> dict[str, Any]:
    """The same said by place, with means."""
    named = {name: mean_of(rises).to_json() for name, rises in ARMS}
    kept = [
        {"name": name, "how": "how", "bytes": 1000, "increase": m, "to_uniform": m, "kl": 0.5}
        for name, m in named.items()
    ]
    return {"places": {"kv": {"arms": kept, "won": "sink-aware"}}}


def change(**other: Any) -> Plan:
    """A plan that changes the cache, with every part."""
    request = Request(budget=BUDGET, max_increase=TOLERANCE, context=CONTEXT, batch=2, goal="memory")
    text = {"id": "0123456789abcdef", "source": "speech 7[0:2048]", "tokens": 2048}
    meta = {
        "model": {"name": "small", "class": "LlamaForCausalLM", "fingerprint": "0123456789ab", "dtype": "bfloat16", "shape": {}},
        "context": CONTEXT, "texts": {"tune": [text] * 3, "verify": [text] * 6, "length": 2048, "bos": "", "sources": 9},
        "threads": 2, "record": {"samples": 3, "tokens": 512, "sinks": "sinks(4)"},
        "forgetting": {str(i): 0.4 / (1 + i) for i in range(6)}, "versions": {"sinkgate": "0.1.0", "torch": "2.13.0"}, "seconds": 600.0, "reused": 0,
    }  # fmt: skip
    predicted = {
        "bytes": round(13.5 * 2**20), "dense_bytes": DENSE, "milliseconds": 33.0, "dense_milliseconds": 52.0, "increase": relative([0.9, 1.0, 1.1]), "latency": {},
    }  # fmt: skip
    measured = {
        "increase": relative([0.8, 1.0, 1.1, 1.2, 0.9, 1.0]), "late": relative([1.2, 1.5, 1.9, 1.4, 1.3, 1.6]), "promise": 0.0175, "looked": [6],
        "nats": list(nats([0.8, 1.0, 1.1, 1.2, 0.9, 1.0])), "length": 2048, "kl": mean_of([0.02, 0.03, 0.025]).to_json(),
        "agreement": mean_of([0.95, 0.94, 0.96]).to_json(), "bytes": 3_500_000, "dense_bytes": 50_331_648, "predicted_bytes": 3_500_000,
        "milliseconds": 30.5, "dense_milliseconds": 41.25, "ratio": mean_of([0.73, 0.75, 0.74]).to_json(), "predicted_ratio": 0.72,
    }  # fmt: skip
    baseline = {
        "setting": {"policy": "recent(572) + sinks(4)", "positions": "slots"}, "bytes": round(13.49 * 2**20),
        "difference": mean_of([-0.004, -0.006, -0.005]).to_json(), "increase": relative([1.4, 1.5, 1.6, 1.7, 1.5, 1.4]), "taken": False,
    }  # fmt: skip
    parts: dict[str, Any] = {
        "baseline": baseline, "trials": trials(), "quantization": arms(), "recall": recalled().to_json(),
        "reasons": [
            f"{CHOSEN}, positions: slots keeps 13.5 MiB of 192 MiB (7%) at 8,192 tokens.",
            "On 6 texts that the search never saw the perplexity rises by +1.00% (95% interval +0.85% to +1.15%).",
            "A sentence that nobody translated.",
        ],
        "refused": ["The text is too short for this tolerance: recent(8) would need about 40 verification texts of 2,048 tokens (81,920 tokens; 6 were read)."],
        "notes": ["The record shows no sink in half of its texts over its threshold."],
    }  # fmt: skip
    return Plan(meta, request, "change", Setting(CHOSEN), predicted, measured, **(parts | other))


def leave() -> Plan:
    """One that found nothing to promise: no setting, nothing measured on other texts."""
    plan = change()
    predicted = plan.predicted | {"bytes": DENSE, "milliseconds": 52.0, "increase": None}
    kept = [t for t in plan.trials if t.state == "refuted"]
    why = "No setting could be promised to stay within 2.00% on other texts (recent(8), positions: slots +1.50% over 6 texts, promised for others +3.10%): leave it."
    return Plan(plan.meta, plan.request, "leave it", LEAVE, predicted, {}, None, kept, [why], plan.refused, [])
