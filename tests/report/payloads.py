"""Synthetic report payloads: seeded, shaped like a small model's diagnosis, hard cases on request."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

TEXT = (
    "The river kept its own calendar. In spring it rose over the lower meadow, and the mill wheel, "
    "which had not turned since the war, began to move again.\n"
    "Nobody had asked it to. Anna wrote the date in the margin of the ledger and crossed out the word "
    "“still”, twice, as her father used to do when a sum came out wrong.\n\n"
    "Later the engineers came with their poles and their patience. They measured the bank, the depth, "
    "the speed of a cork between two stakes; they drank her tea and said that the river would have to "
    "be told. It was not, in the end, a matter of telling."
)

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u202c",
    "zero\u200bwidth\u200d",
    "line\u2028sep\u2029",
    "\n\n\t",
    "   ",
    "\x00\x1b[31m",
    "=HYPERLINK(1)",
    "x" * 5000,
    "Z\u0351\u0352\u0353\u0354\u0355\u0356\u0357algo",
    "{{script}}",
    "\ud800",
    "",
    "日本語 العربية",
    "<!--",
]

TOKENS = 512


def payload(
    layers: int = 30,
    heads: int = 9,
    kv_heads: int = 3,
    *,
    points: int = 64,
    seed: int = 0,
    hostile: bool = False,
    unmeasured: tuple[int, ...] = (),
    windows: tuple[int, ...] = (),
    series: bool = False,
) -> dict[str, Any]:
    """Return a payload of the page's version 1; the same arguments give the same payload."""
    rng = random.Random(seed)
    words = re.findall(r"\n| ?\w+| ?[^\w\s]", TEXT)
    if hostile:
        words = [w for pair in zip(words, HOSTILE * 20, strict=False) for w in pair]
    mass = [[_sigmoid(_level(i / max(layers - 1, 1), rng)) for _ in range(heads)] for i in range(layers)]
    write = [[min(1.4, math.exp(rng.gauss(-3.2, 0.9))) for _ in range(heads)] for _ in range(layers)]
    rest = ["local", "previous", "uniform", "specific", "none"]
    kind = [["sink" if p > 0.3 else rng.choice(rest) for p in row] for row in mass]
    measured = [i for i in range(layers) if i not in unmeasured]
    record = {
        f"{i}.{j}": _head(rng, words, points, mass[i][j], write[i][j], kind[i][j])
        for i in measured
        for j in range(heads)
    }
    return {
        "version": 1,
        "title": "</title><script>alert('t')</script> & \u202e\u2028" if hostile else "Sinks in small-135m",
        "created": "2025-01-01 12:00 UTC",
        "model": {
            "name": 'evil</title><script>alert("m")</script>\u202emodel' if hostile else "example/small-135m",
            "class": "LlamaForCausalLM",
            "parameters": 134515008,
            "dtype": "float32",
            "device": "cpu",
            "layers": layers,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": 64,
            "attention": "eager",
            "fingerprint": "9f31c02ab77e",
        },
        "settings": {
            "tokens": TOKENS,
            "samples": 4,
            "bos": "none was added (the tokenizer adds none)",
            "threshold": 0.3,
            "detail": "full",
            "local_window": 64,
            "text": "the packaged sample, 4 passages",
        },
        "verdict": [
            "142 of 270 heads (53%) put more than 30% of their weight on the first token; "
            "uniform attention would put 1.3% there.",
            "At that token the heads write little: the median sink write ratio is 0.04, "
            "so the weight is mostly a closed gate.",
            "Two more positions act as secondary sinks, both full stops.",
            *(["<b>not bold</b> \u202ereversed"] if hostile else []),
        ],
        "notes": [
            "The first token of each sample is an ordinary word: no begin token was added.",
            "Keys that fewer than 32 queries see are left out.",
        ],
        "layers": [_layer(i, i in unmeasured, i in windows) for i in range(layers)],
        "metrics": _metrics(rng, mass, write, kind, unmeasured, windows),
        "heads": record,
        "sinks": [
            _sink(0, words, "first", 0.55, 142, 0.04),
            _sink(15, words, "delimiter", 0.08, 11, 0.31),
            _sink(43, words, "secondary", 0.05, 4, None),
        ],
        "strip": _strip(rng, words),
        "residual": _residual(layers, words[0]),
        "rates": [
            {"eps": e / 20, "mean": max(0.0, 0.9 - 0.055 * e), "sample": max(0.0, 0.88 - 0.052 * e)}
            for e in range(1, 20)
        ],
        "series": _series() if series else None,
    }


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))


def _harmonic(n: int) -> float:
    return sum(1 / i for i in range(1, n + 1))


NULL = _harmonic(TOKENS) / TOKENS


def _level(depth: float, rng: random.Random) -> float:
    return -2.2 + 4.2 * math.sin(math.pi * min(1, depth * 1.15)) + rng.gauss(0, 1.3)


def _layer(i: int, lost: bool, window: bool) -> dict[str, Any]:
    return {
        "index": i,
        "name": f"model.layers.{i}.self_attn",
        "kind": "unmeasured" if lost else "window" if window else "full",
        "window": 128 if window else None,
        "reason": "linear attention: it has no weights per key" if lost else None,
        "write_reason": "a norm follows the output map; its factor was not recorded" if window else None,
        "learned_sink": window and i % 2 == 1,
    }


def _metrics(
    rng: random.Random,
    mass: list[list[float]],
    write: list[list[float]],
    kind: list[list[str]],
    unmeasured: tuple[int, ...],
    windows: tuple[int, ...],
) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def add(name: str, unit: str, scale: str, lo: float, hi: float, help: str, f: Callable[[int, int], Any]) -> None:
        rows = [[None if i in unmeasured else f(i, j) for j in range(len(row))] for i, row in enumerate(mass)]
        made.append(
            {"id": name.replace(" ", "_"), "label": name, "unit": unit, "scale": scale, "lo": lo, "hi": hi}
            | {"help": help, "values": rows}
        )

    add("mass over null", "×", "log", 0.5, 80, "Mean weight on the first token over what uniform attention "
        "would give it. 1× is no preference.", lambda i, j: mass[i][j] / NULL)  # fmt: skip
    add("first-token mass", "", "linear", 0, 1, "Mean weight on the first token.", lambda i, j: mass[i][j])
    add("sink write ratio", "", "linear", 0, 1, "What the sink writes over what the head writes.",
        lambda i, j: None if i in windows else write[i][j])  # fmt: skip
    add("margin", "nats", "diverging", -6, 10, "The sink’s score less the log-sum-exp of the rest.",
        lambda i, j: _logit(mass[i][j]) + 1)  # fmt: skip
    add("entropy", "nats", "linear", 0, 5, "Entropy of the weights, mean over queries.",
        lambda i, j: 5 * (1 - mass[i][j]) * rng.uniform(0.4, 1))  # fmt: skip
    add("local mass", "", "linear", 0, 1, "Mass on the last 64 keys.", lambda i, j: 0.8 * (1 - mass[i][j]))
    add("top other key", "", "linear", 0, 0.5, "Mass on the strongest key that is not the first.",
        lambda i, j: 0.4 * (1 - mass[i][j]) * rng.random())  # fmt: skip
    add("head kind", "", "category", 0, 1, "What the head mostly reads.", lambda i, j: kind[i][j])
    return made


def _head(rng: random.Random, words: list[str], points: int, mass: float, write: float, kind: str) -> dict[str, Any]:
    base = _logit(mass)
    ts = [1]
    while len(ts) < points:
        ts.append(max(ts[-1] + 1, round(TOKENS ** (len(ts) / (points - 1)))))
    margin = [None if t == 1 else base + 3.5 * math.exp(-t / 4) + rng.gauss(0, 0.15) for t in ts]
    hist = [0] * 20
    for _ in range(500):
        hist[min(19, int(20 * _sigmoid(base + rng.gauss(0, 1.1))))] += 1
    keys = [{"position": 0, "token": words[0], "kind": "first", "mass": mass, "null": NULL, "write": write}]
    for i in sorted(rng.sample(range(1, len(words)), 5)):
        keys.append({"position": i, "token": words[i], "kind": "other", "mass": rng.random() * 0.1})
        keys[-1] |= {"null": 0.008, "write": None}
    return {
        "kind": kind,
        "values": [
            ["mass on first token", mass, "", "mean over 4 samples"],
            ["null", NULL, "", "H_T / T"],
            ["mass over null", mass / NULL, "×", ""],
            ["margin", base, "nats", "mean over queries"],
            ["sink write ratio", write, "", "judged after the output map, not on the value"],
            ["learned sink mass", None, "", "this model has no learned sink"],
        ],
        "curve": {
            "t": ts,
            "p": [1.0 if m is None else _sigmoid(m) for m in margin],
            "null": [1 / t for t in ts],
            "margin": margin,
            "law": [None if t == 1 else math.log(t - 1) + base - 2.4 for t in ts],
        },
        "hist": hist,
        "keys": keys,
        "split": {
            "p": mass,
            "g": 1 - mass,
            "amplification": 1 / (1 - mass),
            "sink_write_ratio": write,
            "v_sink": 0.02 + 0.03 * rng.random(),
            "v_content": 1.1 + rng.random(),
        },
    }


def _sink(position: int, words: list[str], kind: str, mass: float, heads: int, write: float | None) -> dict[str, Any]:
    return {"position": position, "token": words[position], "kind": kind, "mass": mass, "heads": heads} | {
        "samples": 4,
        "write": write,
    }


def _strip(rng: random.Random, words: list[str]) -> dict[str, Any]:
    count = len(words)
    null = [(_harmonic(count) - _harmonic(k)) / (count - k) for k in range(count)]
    raised = [6.0 if w.strip() in {".", ",", ";", ""} else 1.0 for w in words]
    mass = [n * b * math.exp(rng.gauss(-0.9, 0.5)) for n, b in zip(null, raised, strict=True)]
    mass[0] = 0.55
    kept = [n if count - k >= 32 else None for k, n in enumerate(null)]
    return {"tokens": words, "mass": mass, "null": kept, "position0": 0}


def _residual(layers: int, token: str) -> dict[str, Any]:
    depths = range(layers + 1)
    spot = {"position": 0, "token": token}
    return {
        "layer": list(depths),
        "norm_first": [1.0 if i < 2 else 620.0 if i < layers else 40.0 for i in depths],
        "norm_rest": [0.9 + 0.55 * i for i in depths],
        "kurtosis": [3.2 if i < 2 else 410 + 10 * math.sin(i) for i in depths],
        "max": [0.6 if i < 2 else 590.0 for i in depths],
        "median": [0.02 + 0.02 * i for i in depths],
        "massive": [
            {"layer": 2, "value": 588.1, "dimension": 1446, "ratio": 9820.0} | spot,
            {"layer": 3, "value": -212.4, "dimension": 77, "ratio": 2655.0} | spot,
        ],
    }


def _series() -> dict[str, Any]:
    return {
        "names": ["step 512", "step 1k", "step 2k", "step 4k", "step 8k", "step 143k"],
        "first_token_mass": [0.02, 0.06, 0.22, 0.41, 0.5, 0.55],
        "null": [NULL] * 6,
        "sink_rate": [0.0, 0.04, 0.25, 0.44, 0.5, 0.53],
        "lo": [0.015, 0.05, 0.19, 0.38, 0.47, 0.52],
        "hi": [0.026, 0.075, 0.26, 0.45, 0.54, 0.58],
    }
