"""From a record to what the page draws: plain JSON, rounded, in the order it is shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from sinkgate.record import Diagnosis
from sinkgate.report.chinese import say, translated
from sinkgate.report.samples import summary_rows
from sinkgate.report.summary import verdict
from sinkgate.schema import SHARE_BINS
from sinkgate.series import Series

__all__ = ["payload"]


def payload(d: Diagnosis, series: Series | None = None) -> dict[str, Any]:
    """Everything one page needs; NaN becomes None."""
    model, settings = d.meta["model"], d.settings
    return {
        "version": 1,
        "title": say("en", "Where {name} puts its attention", name=model["name"]),
        "created": d.meta["created"],
        "model": {
            key: model.get(key)
            for key in (
                "name",
                "class",
                "parameters",
                "dtype",
                "device",
                "heads",
                "kv_heads",
                "head_dim",
                "attention",
                "fingerprint",
            )
        }
        | {"layers": len(d.layers), "heads": d.shape[1]},
        "settings": {
            "tokens": settings.tokens,
            "samples": d.samples,
            "bos": model.get("bos", "unknown"),
            "threshold": settings.threshold,
            "detail": settings.detail,
            "local_window": settings.local_window,
            "text": _sources(d, "en"),
        },
        "verdict": verdict(d),
        "notes": d.meta["notes"],
        "chinese": _chinese(d),
        "layers": [
            {k: layer.get(k) for k in ("index", "name", "kind", "window", "reason", "write_reason", "learned_sink")}
            for layer in d.layers
        ],
        "metrics": _metrics(d),
        "heads": _heads(d),
        "sinks": _sinks(d),
        "strip": _strip(d),
        "residual": _residual(d),
        "rates": [{k: _round(v) for k, v in row.items()} for row in d.sink_rates()],
        "summary": summary_rows(d),
        "series": None if series is None else _series(series),
    }


def _sources(d: Diagnosis, language: str) -> str:
    sources = [s["source"] for s in d.meta["samples"]]
    first = ", ".join(sources[:4])
    if len(sources) <= 4:
        return first
    return say(language, "{sources} and {more} more", sources=first, more=len(sources) - 4)


def _chinese(d: Diagnosis) -> dict[str, str]:
    """English → Chinese of every sentence that this page has from Python, whatever the record made it of."""
    model = d.meta["model"]
    found = dict(zip(verdict(d), verdict(d, "zh"), strict=True))
    found[say("en", "Where {name} puts its attention", name=model["name"])] = say(
        "zh", "Where {name} puts its attention", name=model["name"]
    )
    found[_sources(d, "en")] = _sources(d, "zh")
    kept = [*d.meta["notes"], model.get("bos", "unknown")]
    kept += [layer.get(name) for layer in d.layers for name in ("reason", "write_reason")]
    return found | {text: chinese for text in kept if text and (chinese := translated(text))}


def _metrics(d: Diagnosis) -> list[dict[str, Any]]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = d.first_token_mass / d.null_mass
    made: list[tuple[str, str, str, str, float, float, Any, str]] = [
        ("excess_ratio", "mass over null", "×", "log", 0.1, 100, ratio,
         "Mean weight on the first token over what attention that ignores the text would give it. 1 is no preference."),
        ("first_token_mass", "first-token mass", "", "linear", 0, 1, d.first_token_mass,
         "Mean weight on the first token over the queries that see it (Gu's α₁)."),
        ("sink_rate", "sink rate", "", "linear", 0, 1, _sink_rate(d),
         "Share of the samples in which the head is a sink head: the first token gets more than {threshold} of its attention."),
        ("margin", "margin", "nats", "diverging", -10, 10, d.margin,
         "z_s − LSE(everything else) = logit p_s, mean over queries: how far the sink's score stands over the rest."),
    ]  # fmt: skip
    if (d.learned_mass[d.measured] > 0).any():
        made.append(("learned_mass", "learned sink mass", "", "linear", 0, 1, d.learned_mass,
                     "Mean weight that the learned sink logit takes; the rows sum to one minus this."))  # fmt: skip
    if d.settings.detail != "first":
        made.append(("top_other_mass", "strongest other key", "", "linear", 0, 1, d.top_other_mass,
                     "The largest α of any key but the first, mean over samples."))  # fmt: skip
    if d.settings.detail == "full":
        made[3:3] = [
            ("sink_write_ratio", "sink write ratio", "", "linear", 0, 1, d.sink_write_ratio,
             "What the first token's share writes to the residual stream over what the head writes: near 0 a no-op, near 1 a broadcast."),
        ]  # fmt: skip
        made += [
            ("value_norm_ratio", "value norm ratio", "×", "log", 0.01, 10, d.value_norm_ratio,
             "‖v‖ of the first token over the mean ‖v‖ of the others."),
            ("query_key_cosine", "query–key cosine", "", "diverging", -1, 1, d.query_key_cosine,
             "Cosine of the mean query with the first token's key."),
            ("entropy_ratio", "entropy", "", "linear", 0, 1, d.entropy_ratio,
             "Entropy of the weights over that of uniform attention."),
            ("local_mass", "local mass", "", "linear", 0, 1, d.local_mass,
             "Mean mass on the last {window} tokens, the query's own included."),
            ("head_kind", "head kind", "", "category", 0, 1, d.head_kind,
             "By the first rule that holds: sink, previous, local, uniform, specific, none."),
        ]  # fmt: skip
    keys = ("id", "label", "unit", "scale", "lo", "hi", "values", "help")
    return [
        dict(
            zip(
                keys,
                (*row[:6], row[6].tolist() if row[0] == "head_kind" else _rounded(row[6]), row[7]),
                strict=True,
            )
        )
        for row in made
    ]


def _heads(d: Diagnosis) -> dict[str, Any]:
    full = d.settings.detail == "full"
    excess = d.excess()
    histogram = d.arrays["share_histogram"].reshape(*d.shape, 20, SHARE_BINS // 20).sum(-1)
    quantiles = d.mass_quantiles()
    if full:
        own = (d.arrays["self_sum"] / d.arrays["queries"][..., None]).mean(0)
    heads = {}
    for layer, head in zip(*np.nonzero(d.measured), strict=True):
        at = (layer, head)
        curve = d.curve(int(layer), int(head))
        share = float(d.first_token_mass[at])
        values: list[list[Any]] = [
            ["first-token mass", _round(share), "", "null {null}", {"null": _round(d.null_mass[at])}],
            ["excess over null", _round(excess.mean[at]), "", "95% interval {low} to {high}", {"low": _round(excess.low[at]), "high": _round(excess.high[at])}]
            if np.isfinite(excess.low[at]) else ["excess over null", _round(excess.mean[at]), "", "one sample: no interval"],
            ["p_s by query, median", _round(quantiles[2][at]), "", "5% to 95%: {low} to {high}", {"low": _round(quantiles[0][at]), "high": _round(quantiles[4][at])}],
            ["margin", _round(d.margin[at]), "nats", "logit p_s, mean over queries"],
            ["predicted amplification on eviction", _round(d.amplification[at]), "×", "1/(1 − p_s), geometric mean"],
        ]  # fmt: skip
        if d.learned_mass[at] > 0:
            values.append(["learned sink mass", _round(d.learned_mass[at]), "", "rows sum to one minus this"])
        if full:
            values += [
                ["sink write ratio", _round(d.sink_write_ratio[at]), "", d.layers[layer]["write_reason"] or "Σ‖p_s write(v_s)‖ / Σ‖write(o)‖"],
                ["content write ratio", _round(d.content_write_ratio[at]), "", "the same for everything else"],
                ["entropy", _round(d.entropy[at]), "nats", "{share} of uniform", {"share": _round(d.entropy_ratio[at])}],
                ["mass on the last {window} tokens", _round(d.local_mass[at]), "", "null {null}", {"null": _round(d.local_null[at])}],
                ["mass on the token before", _round(d.previous_mass[at]), "", ""],
                ["mass on the query's own token", _round(own[at]), "", ""],
            ]  # fmt: skip
        heads[f"{layer}.{head}"] = {
            "kind": str(d.head_kind[at]) if full else "",
            "values": values,
            "curve": {
                "t": _rounded(curve["t"]), "p": _rounded(curve["mass"]), "null": _rounded(curve["null"]),
                "margin": _rounded(curve["margin"]), "law": _rounded(curve["law"]),
            },
            "hist": histogram[at].tolist(),
            "geometry": {
                part: _round(d.arrays[name][:, layer, head].mean())
                for part, name in (("k_sink", "key_first"), ("k_rest", "key_rest"), ("v_sink", "value_first"),
                                   ("v_rest", "value_rest"), ("cosine", "query_key_cosine"))
            } if full else None,
            "keys": _head_keys(d, int(layer), int(head)),
            "split": {
                "p": _round(share), "g": _round(1 - share - float(d.learned_mass[at])), "amplification": _round(d.amplification[at]),
                "sink_write_ratio": _round(d.sink_write_ratio[at]) if full else None,
                "v_sink": _round(d.arrays["value_first"][:, layer, head].mean()) if full else None,
                "v_content": _round(d.arrays["value_rest"][:, layer, head].mean()) if full else None,
            },
        }  # fmt: skip
    return heads


def _head_keys(d: Diagnosis, layer: int, head: int) -> list[dict[str, Any]]:
    """The first token and, per sample, the strongest other key."""
    from sinkgate.probe.kinds import token_kind

    first = d.meta["samples"][0]
    rows = [
        {
            "position": 0,
            "token": first["tokens_at"].get("0", ""),
            "kind": "bos" if first["bos"] else "first",
            "mass": _round(d.first_token_mass[layer, head]),
            "null": _round(d.null_mass[layer, head]),
            "write": _round(d.sink_write_ratio[layer, head]) if d.settings.detail == "full" else None,
        }
    ]
    if d.settings.detail == "first":
        return rows
    null = d.key_null[layer]
    others = []
    for i, sample in enumerate(d.meta["samples"]):
        position = int(d.arrays["top_position"][i, layer, head])
        if position < 0:
            continue
        token = sample["tokens_at"].get(str(position), "")
        others.append(
            {
                "position": position,
                "token": token,
                "kind": token_kind(token, first=False, bos=False),
                "mass": _round(d.arrays["top_mass"][i, layer, head]),
                "null": _round(null[position]),
                "write": None,
            }
        )
    return rows + sorted(others, key=lambda r: -(r["mass"] or 0))[:7]


def _sinks(d: Diagnosis) -> list[dict[str, Any]]:
    return [
        {
            "position": s.position,
            "token": s.token,
            "kind": "secondary" if s.secondary else s.kind,
            "mass": _round(s.mass),
            "heads": round(s.heads, 1),
            "samples": s.samples,
            "write": None if s.write is None else _round(s.write),
        }
        for s in d.sinks[:40]
    ]


def _strip(d: Diagnosis) -> dict[str, Any]:
    strip = d.meta["strip"]
    if d.settings.detail == "first" or not strip:
        return {"tokens": [], "mass": [], "null": [], "position0": 0}
    return {
        "tokens": strip["tokens"],
        "mass": [None if x is None else _round(x) for x in strip["mass"]],
        "null": [None if x is None else _round(x) for x in strip["null"]],
        "position0": 0,
    }


def _residual(d: Diagnosis) -> dict[str, Any]:
    names = ("layer", "norm_first", "norm_rest", "kurtosis", "max", "median")
    if "stream_first" not in d.arrays:
        return {name: [] for name in names} | {"massive": []}
    depths = d.arrays["stream_first"].shape[1]
    median = d.stream_median
    largest = [max((abs(m["value"]) for m in d.massive if m["layer"] == i), default=np.nan) for i in range(depths)]
    largest_of: dict[tuple[int, int], dict[str, Any]] = {}
    for m in sorted(d.massive, key=lambda m: -abs(m["value"])):
        largest_of.setdefault((m["layer"], m["dimension"]), m)
    massive = list(largest_of.values())[:16]
    return {
        "layer": list(range(depths)),
        "norm_first": _rounded(d.arrays["stream_first"].mean(0)),
        "norm_rest": _rounded(d.arrays["stream_rest"].mean(0)),
        "kurtosis": _rounded(d.kurtosis),
        "max": _rounded(np.array(largest)),
        "median": _rounded(median),
        "massive": [
            {k: m[k] for k in ("layer", "dimension", "position", "token")}
            | {"value": _round(m["value"]), "ratio": _round(abs(m["value"]) / median[m["layer"]])}
            for m in massive
        ],
    }


def _series(series: Series) -> dict[str, Any]:
    rows = series.rows()
    names = {
        "names": "name",
        "first_token_mass": "first_token_mass",
        "null": "null_mass",
        "sink_rate": "sink_rate",
        "lo": "low",
        "hi": "high",
    }
    return {ours: [row[key] if key == "name" else _round(row[key]) for row in rows] for ours, key in names.items()}


def _sink_rate(d: Diagnosis) -> np.ndarray:
    """``[layer, head]``: share of samples with α_1 over the threshold."""
    alpha = d.mass_by_sample()
    return np.where(d.measured, (alpha > d.settings.threshold).mean(0), np.nan)


def _round(x: Any) -> float | None:
    """Four significant digits; None for NaN and infinity."""
    return float(f"{float(x):.4g}") if np.isfinite(x) else None


def _rounded(values: np.ndarray) -> list[Any]:
    return [_rounded(v) if isinstance(v, np.ndarray) else _round(v) for v in values]
