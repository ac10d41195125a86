"""Beside kvpress, at equal bytes: a prefix is read, B bytes are kept of it, and the loss of what follows is measured.

kvpress asks for an older transformers, so it lives in an environment of its own and answers through a pipe
(:mod:`benchmarks.kvpress_worker`)::

    python3 -m venv ENV
    ENV/bin/pip install torch==2.13.0         # first, and from where your torch comes: a CPU wheel does
    ENV/bin/pip install -r benchmarks/kvpress_requirements.txt
    SINKGATE_KVPRESS_PYTHON=ENV/bin/python python -m benchmarks.kvpress

Every (text, arm) is a piece of its own, kept when it is done and not run again. ``--plan FILE.json`` adds the policy of a plan
(``setting.policy`` and ``setting.positions``), ``--texts N`` reads so many. Where only arms of ours are missing, kvpress's
environment is not needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, write

MODEL, TEXTS, PREFIX, SCORED, PASS, CHUNK, SINKS = "smollm2-135m", 8, 2048, 256, 32, 512, 4
OTHER = "gemma3-270m"  # asked only whether presses run on it
BUDGETS = (128, 256, 512, 1024)  # tokens' worth of bytes
TIMED = (512,)  # budgets at which kvpress's arms are timed, one reading each
BLOCK = 64  # predictions per point that is kept of the losses
THEIRS = ("streaming", "rerotated", "expected")
OURS: dict[str, tuple[str, str]] = {  # the policy with what fits put in, and where keys stand
    "slots": ("recent({n}) + sinks(4)", "slots"),
    "original": ("recent({n}) + sinks(4)", "original"),
    "8 bits": ("quantized(recent({n}) + sinks(4), bits=8, group=32)", "slots"),
    "4 bits": ("quantized(recent({n}) + sinks(4), bits=4, group=32)", "slots"),
}
VARIABLE = "SINKGATE_KVPRESS_PYTHON"
HOW = (
    f"kvpress is not measured: {VARIABLE} names no Python that has it. Make one: python3 -m venv ENV; ENV/bin/pip install "
    f"torch==2.13.0; ENV/bin/pip install -r benchmarks/kvpress_requirements.txt; then set {VARIABLE}=ENV/bin/python"
)


class Missing(RuntimeError):
    """kvpress's environment is needed and not there."""


def main(argv: Sequence[str] = ()) -> None:
    """By default quietly nothing where kvpress's environment is missing: one line says how to make it."""
    try:
        run(argv)
    except Missing as err:
        print(err)


def run(argv: Sequence[str]) -> None:
    """Run what is missing.

    Raises:
        Missing: kvpress's environment is needed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kvpress")
    parser.add_argument("--plan", type=Path, action="append", default=[], help="a plan whose policy is one more arm")
    parser.add_argument("--texts", type=int, default=TEXTS)
    asked = parser.parse_args(list(argv))
    path = RESULTS / "kvpress.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else begun()
    found.pop("environment", None)
    found.setdefault("others", {})
    plans = {f"plan {p.stem}": plan_of(p) for p in asked.plan}
    theirs = [f"{name} {kept}" for kept in BUDGETS for name in THEIRS]
    if missing(found, asked.texts, ["dense of kvpress", *theirs]) and not interpreter():
        raise Missing(HOW)

    import torch

    import sinkgate as sg

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    loaded = sg.load(MODEL, dtype="float32")
    model = loaded.model
    found["token_bytes"] = token_bytes(model.config)
    for name, (pattern, scheme) in OURS.items():
        for kept in BUDGETS:
            if f"{name} {kept}" not in found["policies"]:
                policy = fitted(model.config, pattern, scheme, kept)
                found["policies"][f"{name} {kept}"] = {"policy": policy, "positions": scheme}
    found["policies"].update(plans)
    texts = chosen(loaded.tokenizer, asked.texts)
    for i, (source, ids) in enumerate(texts):
        if i == len(found["texts"]):
            found["texts"].append({"source": source, "arms": {}})
        text = found["texts"][i]
        if text["source"] != source:
            raise SystemExit(f"text {i} of the result is {text['source']}, not {source}; remove {path} to begin anew")
        for step in (kvpress_arms, kvpress_timed, our_arms):
            if step(model, found, text, ids):
                kept_result(found)
    if interpreter() and OTHER not in found["others"]:
        found["others"][OTHER] = other_model()
        kept_result(found)


def begun() -> dict[str, Any]:
    """An empty result."""
    return {
        "model": MODEL, "prefix": PREFIX, "scored": SCORED, "pass": PASS, "chunk": CHUNK, "budgets": list(BUDGETS), "block": BLOCK,
        "kvpress": {}, "same_model": {}, "policies": {}, "texts": [], "timing": {}, "others": {}, "summary": {},
    }  # fmt: skip


def plan_of(path: Path) -> dict[str, Any]:
    """The policy that a plan chose."""
    from sinkgate.cache.registry import as_policy

    setting = json.loads(path.read_text(encoding="utf-8"))["setting"]
    return {"policy": str(as_policy(setting["policy"])), "positions": setting["positions"]}


def missing(found: dict[str, Any], texts: int, arms: Sequence[str]) -> bool:
    """Whether any of these arms is still to be run."""
    there = found["texts"][:texts]
    return len(there) < texts or not found["timing"] or any(arm not in text["arms"] for text in there for arm in arms)


def chosen(tokenizer: Any, count: int) -> list[tuple[str, list[int]]]:
    """The last demo speeches that are long enough, from the end: what was tuned elsewhere was tuned on the first."""
    from sinkgate.probe.text import bos_prefix, default_texts

    length, (first, _), found = PREFIX + SCORED + 1, bos_prefix(tokenizer, "auto"), list[tuple[str, list[int]]]()
    for text in reversed(default_texts(10**6)):
        ids = [*first, *tokenizer(text.content, add_special_tokens=False, verbose=False)["input_ids"]]
        if len(ids) >= length:
            found.append((text.source, ids[:length]))
        if len(found) == count:
            return found
    raise SystemExit(f"only {len(found)} speeches have {length} tokens")


# ---- bytes ------------------------------------------------------------------------------------------------------------------


def token_bytes(config: Any) -> int:
    """Keys and values of one token in float32, all layers."""
    from sinkgate.cache.sizes import kv_bytes_per_token

    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return kv_bytes_per_token(config.num_hidden_layers, config.num_key_value_heads, size, item=4)


def one_layer(config: Any) -> Any:
    """A small model of one layer with the same keys and values, to ask for the size of caches."""
    import copy

    from transformers import AutoModelForCausalLM

    small = copy.deepcopy(config)
    small.num_hidden_layers, small.vocab_size, small.intermediate_size = 1, 64, 16
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:1]
    return AutoModelForCausalLM.from_config(small).eval()


def allocated(model: Any, policy: str, scheme: str) -> int:
    """Bytes of a cache once its sinks are in it and one token more."""
    import torch

    import sinkgate as sg

    with sg.streaming(model, policy, positions=scheme) as cache:
        model(torch.tensor([[5] * (SINKS + 2)]), cache=cache)
        model(torch.tensor([[5]]), cache=cache)
        return cache.nbytes()


def fitted(config: Any, pattern: str, scheme: str, kept: int) -> str:
    """The policy with the most recent tokens whose cache, as allocated, fits into the bytes of so many tokens."""
    small = one_layer(config)
    budget = kept * token_bytes(small.config)
    low, high = 1, PREFIX + SCORED - SINKS + 1  # the first fits; more than there is, nobody needs
    while high - low > 1:
        middle = (low + high) // 2
        if allocated(small, pattern.format(n=middle), scheme) <= budget:
            low = middle
        else:
            high = middle
    return pattern.format(n=low)


# ---- their side -------------------------------------------------------------------------------------------------------------


def interpreter() -> str | None:
    """The Python of kvpress's environment, where there is one."""
    python = os.environ.get(VARIABLE, "")
    return python if python and Path(python).is_file() else None


class Worker:
    """The other process; one question at a time."""

    def __init__(self, folder: str) -> None:
        python = interpreter()
        if python is None:
            raise Missing(HOW)
        script = Path(__file__).with_name("kvpress_worker.py")
        self.process = subprocess.Popen(
            [python, "-I", str(script), folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """Its answer.

        Raises:
            SystemExit: it failed.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"failed": "it ended"}
        if "failed" in answer:
            raise SystemExit(f"kvpress's process, asked for {do}: {answer['failed']}")
        return answer


OPEN: list[Worker] = []


def worker(model: Any, found: dict[str, Any], ids: list[int]) -> Worker:
    """The other process, started at the first call; the two models are compared before anything else."""
    if not OPEN:
        OPEN.append(Worker(model.config._name_or_path))
        found["kvpress"] = OPEN[0].ask("hello")
        found["same_model"] = agreement(model, OPEN[0], ids[:512])
    return OPEN[0]


def agreement(model: Any, other: Worker, ids: list[int]) -> dict[str, Any]:
    """The logits of one text's last position in both environments.

    Raises:
        SystemExit: they differ, so that nothing could be compared.
    """
    import torch

    ours = model(torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
    difference = float((ours - torch.tensor(other.ask("logits", ids=ids)["logits"])).abs().max())
    if difference > 1e-3:
        raise SystemExit(f"the two environments' logits differ by up to {difference}")
    return {"tokens": len(ids), "largest_logit_difference": difference}


def kvpress_arms(model: Any, found: dict[str, Any], text: dict[str, Any], ids: list[int]) -> bool:
    """Every press on one text."""
    if all(a in text["arms"] for a in ["dense of kvpress", *(f"{n} {kept}" for kept in BUDGETS for n in THEIRS)]):
        return False
    answer = worker(model, found, ids).ask(
        "text", ids=ids, prefix=PREFIX, budgets=list(BUDGETS), sinks=SINKS, pass_tokens=PASS
    )
    for name, row in answer.items():
        text["arms"]["dense of kvpress" if name == "dense" else name] = shortened(row)
    print(text["source"], "kvpress", {n: r["loss"] for n, r in text["arms"].items()}, flush=True)
    return True


def kvpress_timed(model: Any, found: dict[str, Any], text: dict[str, Any], ids: list[int]) -> bool:
    """Processor time of its arms over that of everything kept, in its own process; on the first text, for some budgets.

    kvpress runs here as it is meant to be used, one pass per press; its losses have to be those of the pass that was shared.
    """
    if found["timing"]:
        return False
    gap, ratios = 0.0, dict[str, list[float]]()
    for kept in TIMED:
        rows = worker(model, found, ids).ask("timed", ids=ids, prefix=PREFIX, kept=kept, sinks=SINKS, pass_tokens=PASS)
        for name, row in rows.items():
            shared = text["arms"]["dense of kvpress" if name == "dense" else name]
            gap = max(gap, abs(shortened(row)["loss"] - shared["loss"]))
            if name != "dense":
                ratio = round(row["seconds"] / rows["dense"]["seconds"], 3)
                ratios.setdefault(name.rsplit(" ", 1)[0], []).append(ratio)
    found["timing"] = {
        "budgets": list(TIMED),
        "cpu_over_dense": ratios,
        "largest_difference_to_the_shared_pass": gap,
    }
    return True


def other_model() -> dict[str, Any]:
    """Whether kvpress runs on a model with sliding windows; more tokens than a window holds."""
    import sinkgate as sg

    loaded = sg.load(OTHER)
    ids = chosen(loaded.tokenizer, 1)[0][1]
    prefix = 700
    return Worker(loaded.model.config._name_or_path).ask(
        "tried", ids=ids[: prefix + PASS + 1], prefix=prefix, sinks=SINKS, pass_tokens=PASS
    )


# ---- our side ---------------------------------------------------------------------------------------------------------------


def our_arms(model: Any, found: dict[str, Any], text: dict[str, Any], ids: list[int]) -> bool:
    """Every arm of ours that is missing on one text; processor time is told over that of everything kept."""
    arms = text["arms"]
    left = {n: how for n, how in found["policies"].items() if arms.get(n, {}).get("policy") != how["policy"]}
    if "dense" in arms and not left:
        return False
    dense = ours(model, ids, None)
    arms["dense"] = shortened(dense)
    for name, how in left.items():
        same = next((r for r in arms.values() if all(r.get(k) == how[k] for k in ("policy", "positions"))), None)
        if same is not None:  # everything fits into less, whatever the budget
            arms[name] = same
            continue
        row = ours(model, ids, how)
        arms[name] = shortened(row) | how | {"cpu_over_dense": round(row["seconds"] / dense["seconds"], 3)}
        print(text["source"], name, arms[name], flush=True)
        kept_result(found)
    return True


def ours(model: Any, ids: list[int], how: dict[str, Any] | None) -> dict[str, Any]:
    """Losses behind one cache: everything kept by the model's own, or a stream."""
    import torch
    from transformers import DynamicCache

    import sinkgate as sg

    start, text = time.process_time(), torch.tensor([ids])
    if how is None:
        dense = DynamicCache()
        model.model(text[:, :PREFIX], past_key_values=dense)
        row = scored(model, text, {"past_key_values": dense}, lambda: size(dense))
        return row | {"seconds": round(time.process_time() - start, 3)}
    with sg.streaming(model, how["policy"], positions=how["positions"], chunk=CHUNK) as cache:
        start = time.process_time()  # not what is proved of the model, once
        model(text[:, :PREFIX], cache=cache, logits_to_keep=1)
        row = scored(model, text, {"cache": cache}, cache.nbytes)
    return row | {"seconds": round(time.process_time() - start, 3)}


def scored(model: Any, text: Any, cache: dict[str, Any], bytes_now: Any) -> dict[str, Any]:
    """Nats of every token after the first that is read through this cache."""
    from sinkgate.evaluate.stream import losses

    first, nats = bytes_now(), list[float]()
    for i in range(PREFIX, PREFIX + SCORED, PASS):
        part = text[:, i : min(i + PASS, PREFIX + SCORED) + 1]
        nats += losses(model(part[:, :-1], **cache).logits[0], part[0, 1:]).tolist()
    return {"nats": nats, "bytes_first": first, "bytes_end": bytes_now()}


def size(cache: Any) -> int:
    """Bytes of the keys and values that a cache of transformers holds."""
    return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it is kept: its mean, and means along the way."""
    nats = row["nats"]
    blocks = [round(statistics.fmean(nats[i : i + BLOCK]), 5) for i in range(0, len(nats), BLOCK)]
    rest = {k: v for k, v in row.items() if k not in ("nats", "seconds")}
    return {"loss": round(statistics.fmean(nats), 6), "blocks": blocks, **rest}


# ---- what it comes to -------------------------------------------------------------------------------------------------------


def kept_result(found: dict[str, Any]) -> None:
    """Write what there is, with its summary."""
    found["summary"] = summary(found)
    write("kvpress", found)


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Every arm over the texts that have them all."""
    import numpy as np

    from sinkgate.record import student_interval

    wanted = {"dense", "dense of kvpress", *found["policies"], *(f"{n} {k}" for k in BUDGETS for n in THEIRS)}
    whole = [t["arms"] for t in found["texts"] if wanted <= set(t["arms"])]
    if len(whole) < 2:
        return {}

    def change(arm: str, over: str) -> dict[str, float]:
        x = student_interval(np.array([arms[arm]["loss"] - arms[over]["loss"] for arms in whole]))
        return {"mean": round(float(x.mean), 4), "low": round(float(x.low), 4), "high": round(float(x.high), 4)}

    rows: dict[str, Any] = {}
    for arm in sorted(wanted):
        mine = arm in found["policies"] or arm == "dense"
        row: dict[str, Any] = {
            "loss": round(float(np.mean([a[arm]["loss"] for a in whole])), 4),
            "bytes_first": max(a[arm]["bytes_first"] for a in whole), "bytes_end": max(a[arm]["bytes_end"] for a in whole),
        }  # fmt: skip
        if not arm.startswith("dense"):
            row["over_dense"] = change(arm, "dense" if mine else "dense of kvpress")
            times = [a[arm]["cpu_over_dense"] for a in whole if "cpu_over_dense" in a[arm]] if mine else []
            times = times or found["timing"]["cpu_over_dense"].get(arm.rsplit(" ", 1)[0], [])
            row["cpu_over_dense"] = round(statistics.median(times), 3) if times else None
            row["budget"] = next((b for b in BUDGETS if row["bytes_first"] <= b * found["token_bytes"]), None)
        if mine and row.get("budget"):
            row["over"] = {name: change(arm, f"{name} {row['budget']}") for name in THEIRS}
        rows[arm] = row
    both = max(abs(a["dense"]["loss"] - a["dense of kvpress"]["loss"]) for a in whole)
    return {"texts": len(whole), "largest_difference_of_dense": round(both, 6), "arms": rows}


if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except Missing as problem:
        raise SystemExit(str(problem)) from None
