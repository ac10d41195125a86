"""``sg.train_outlet``: an outlet trained, what it took over, and the same on random heads beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, TextError
from sinkgate.evaluate.score import score
from sinkgate.gate import Gate
from sinkgate.hf import compat
from sinkgate.hf.anatomy import Anatomy, fingerprint, forward, trace
from sinkgate.hf.layers import evaluating
from sinkgate.hf.outlet import OUTLET_KEPT, add_outlet, outlets, remove_outlet
from sinkgate.hf.outlet_files import save_outlet
from sinkgate.hf.reading import Reader
from sinkgate.interventions.acting import acting
from sinkgate.interventions.acts import Evict
from sinkgate.lab.loop import LoopConfig, train
from sinkgate.lab.outlet import OutletConfig, OutletTask, frozen
from sinkgate.lab.trained import Measured, TrainedOutlet
from sinkgate.outlet import as_outlet, to_json
from sinkgate.outlet.registry import Spec
from sinkgate.probe.diagnose import diagnose
from sinkgate.probe.rows import read_rows
from sinkgate.probe.text import Text, bos_prefix, pieces
from sinkgate.record import Diagnosis
from sinkgate.site import Site

__all__ = ["train_outlet"]

Progress = Callable[[str, dict[str, Any]], None]


def train_outlet(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: Iterable[str | Text] | None = None,
    *,
    held_out: Iterable[str | Text] | None = None,
    outlet: str | Spec = "kv_bias",
    heads: str | Sequence[Sequence[int]] = "sinks",
    loop: LoopConfig | None = None,
    task: OutletConfig | None = None,
    samples: int = 8,
    control: bool = True,
    threshold: float = 0.3,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
    **loading: Any,
) -> TrainedOutlet:
    """Train an outlet (and nothing else, unless ``task.also`` says so) and report what it took over from the first token.

    The model keeps the trained outlet. The paired control is the same outlet on as many random heads that are no sink
    heads, trained for the same steps on the same texts, then taken away.

    Args:
        model: a name or a loaded model without an outlet.
        tokenizer: of a loaded model.
        texts: to train on.
        held_out: to report on; default: the last texts are held out of training.
        outlet: see :func:`sinkgate.add_outlet`.
        heads: ``sinks`` (those whose first-token mass is over the threshold), ``all``, or ``(layer, head)`` pairs.
        loop: steps, learning rate, schedule; default: 150 steps at 0.02.
        task: lengths, losses, eviction, aids.
        samples: held-out texts.
        control: whether to train the control too.
        threshold: of a sink head.
        out: gets the outlet (with ``task.also``: the whole model in ``model/``, whose weights it belongs to), the logs and
            checkpoints of both runs, and ``trained.json``.
        resume: go on after a kill.
        name: what the record calls the model.
        progress: called with the run's name and each line of its log.
        loading: dtype, device, trust_remote_code of a model given by name.

    Raises:
        ArgumentError: a setting; no head is a sink (say ``heads="all"``).
        TextError: too little text.
        OutputError: ``out`` holds another run and ``resume`` is False.
    """
    loop = loop or LoopConfig(steps=150, lr=0.02, warmup=5, save_every=25)
    task = task or OutletConfig()
    spec = as_outlet(outlet)
    source: dict[str, Any] = {}
    if isinstance(model, str):
        from sinkgate.hf.load import load

        name = name or model
        loaded = load(model, **loading)
        net, tokenizer, source = loaded.model, tokenizer or loaded.tokenizer, loaded.source
    else:
        net = model
    if tokenizer is None:
        raise ArgumentError("a loaded model needs its tokenizer: train_outlet(model, tokenizer, texts)")
    folder = None if out is None else Path(out)
    prefix, bos = bos_prefix(tokenizer, "auto")
    training, held = _texts(texts, held_out)
    if OUTLET_KEPT in net.__dict__:
        raise ArgumentError(f"this model has an outlet already ({outlets(net)!r}); sg.remove_outlet(model) first")
    ids = torch.tensor([i for t in training for i in _tokens(tokenizer, t)])
    parts, _ = pieces(tokenizer, held, tokens=task.tokens, samples=samples)
    parts = [p for p in parts if len(p.ids) > task.burn_in + 1]
    if not parts:
        raise TextError(f"no held-out text reaches behind the burn-in of {task.burn_in} tokens; give longer text")
    held_ids = [torch.tensor(p.ids, device=compat.input_device(net)) for p in parts]
    with evaluating(net):
        anatomy = trace(net, held_ids[0][None, :32])
        d = diagnose(net, tokenizer, training, tokens=task.tokens, samples=4, detail="first")
        assert isinstance(d, Diagnosis)
        chosen = _heads(d, heads, threshold)
        before = _measure(anatomy, held_ids, task)
        pieces_of = [ids[i : i + 256] for i in range(0, min(len(ids) - 256, 1024), 256)] or [ids]
        levels = torch.stack([torch.cat([torch.tensor(prefix, dtype=torch.long), p]) for p in pieces_of])
        marked = _sinks(d, threshold)

        def run(which: str, some: list[tuple[int, int]] | None) -> Measured:
            place = _places(spec, some, anatomy)
            add_outlet(net, spec, ids=levels.to(compat.input_device(net)), **place)
            # the control's own heads learn at the same rate as the outlet's
            job = OutletTask(net, ids, task, loop.steps, marked if some is None else some, prefix)
            where = None if folder is None else folder / which
            with frozen(net, list(job.parameters().values())):
                train(
                    job, loop, where, resume=resume and where is not None, multipliers=job.multipliers(),
                    progress=None if progress is None else lambda line: progress(which, line),
                )  # fmt: skip
            return _measure(anatomy, held_ids, task)

        kept = {n: p.detach().clone() for n, p in net.named_parameters()} if task.also else {}

        def undo() -> None:
            if OUTLET_KEPT in net.__dict__:
                remove_outlet(net)
            with torch.no_grad():
                for n, p in net.named_parameters():
                    if n in kept:
                        p.copy_(kept[n])

        other, original = None, fingerprint(net, outlets=False)
        others = _random_others(d, chosen, threshold, task.seed) if control else []
        try:
            if others:
                other = run("control", others)
                undo()
            after = run("outlet", chosen)
        except BaseException:  # what the caller gave comes back as it was; the checkpoints are in the folder
            undo()
            raise
    meta = {
        "model": {
            "name": name or getattr(compat.config(net), "_name_or_path", "") or type(net).__name__,
            "class": type(net).__name__, "fingerprint": original, "source": source, "bos": bos,
        },
        "outlet": to_json(spec), "heads": None if chosen is None else [list(h) for h in chosen],
        "parameters": outlets(net).parameters, "loop": loop.to_json(), "task": task.to_json(),
        "training_tokens": len(ids), "prefix": len(prefix), "held_out": [p.source for p in parts],
        "control": "none" if not others else f"{len(others)} random heads that are no sinks",
    }  # fmt: skip
    result = TrainedOutlet(meta, before, after, other, [list(h) for h in others])
    if folder is not None:
        if task.also:  # the outlet belongs to weights that were trained beside it: it is kept with them
            net.save_pretrained(str(folder / "model"))
        else:
            save_outlet(net, folder)
        result.save(folder / "trained.json")
    return result


def _texts(texts: Any, held_out: Any) -> tuple[list[str | Text], list[str | Text]]:
    if texts is None:
        from sinkgate.probe.text import default_texts

        texts = default_texts(24)
    given: list[str | Text] = [texts] if isinstance(texts, str | Text) else list(texts)
    if not given:
        raise TextError("there is no text to train on; give at least one")
    if held_out is not None:
        held: list[str | Text] = [held_out] if isinstance(held_out, str | Text) else list(held_out)
        if {_content(t) for t in given} & {_content(t) for t in held}:
            raise ArgumentError("a held-out text is among those to train on; hold out others")
        return given, held
    if len(given) > 1:
        keep = max(1, len(given) // 3)
        return given[:-keep], given[-keep:]
    content = _content(given[0])
    source = "text" if isinstance(given[0], str) else given[0].source
    cut = int(len(content) * 0.8)
    return [Text(source, content[:cut])], [Text(f"{source}, its last fifth", content[cut:])]


def _content(text: str | Text) -> str:
    return text if isinstance(text, str) else text.content


def _places(spec: Spec, heads: list[tuple[int, int]] | None, anatomy: Anatomy) -> dict[str, Any]:
    """Where an outlet meant for these query heads stands: key heads for gates at G2 and G3, layers for G5."""
    if heads is None or not isinstance(spec, Gate) or spec.position in ("G1", "G4"):
        return {"heads": heads}
    if spec.position == "G5":
        return {"layers": sorted({layer for layer, _ in heads})}
    group = {layer.index: layer.heads // layer.kv_heads for layer in anatomy.layers if layer.attention is not None}
    return {"heads": sorted({(layer, head // group[layer]) for layer, head in heads})}


def _tokens(tokenizer: Any, text: str | Text) -> list[int]:
    return [int(i) for i in tokenizer(_content(text), add_special_tokens=False, verbose=False)["input_ids"]]


def _heads(d: Diagnosis, heads: Any, threshold: float) -> list[tuple[int, int]] | None:
    if isinstance(heads, str):
        if heads == "all":
            return None
        if heads != "sinks":
            raise ArgumentError(f"heads must be 'sinks', 'all' or (layer, head) pairs, got {heads!r}")
        found = _sinks(d, threshold)
        if not found:
            raise ArgumentError(
                f"no head puts more than {threshold} on the first token; say heads='all' or a lower threshold"
            )
        return found
    return [(int(i), int(h)) for i, h in heads]


def _sinks(d: Diagnosis, threshold: float) -> list[tuple[int, int]]:
    return [(int(i), int(h)) for i, h in np.argwhere(np.nan_to_num(d.first_token_mass) > threshold)]


def _random_others(
    d: Diagnosis, chosen: list[tuple[int, int]] | None, threshold: float, seed: int
) -> list[tuple[int, int]]:
    """As many heads that are no sinks, or all of them if they are fewer; none where the outlet is everywhere."""
    if chosen is None:
        return []
    mass = np.nan_to_num(d.first_token_mass, nan=1.0)
    rest = [(int(i), int(h)) for i, h in np.argwhere(mass <= threshold) if (int(i), int(h)) not in set(chosen)]
    order = np.random.default_rng(seed).permutation(len(rest))[: len(chosen)]
    return sorted(rest[i] for i in order)


class _Masses:
    """Mean weight on the first token and on the outlet, over layers, heads and queries."""

    def __init__(self) -> None:
        self.first, self.outlet, self.sites = 0.0, 0.0, 0

    def site(self, site: Site) -> None:
        rows = read_rows(site, full=False)
        self.first += float(rows.first.mean())
        self.outlet += 0.0 if rows.learned is None else float(rows.learned.mean())
        self.sites += 1

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """Not looked at."""


@torch.no_grad()
def _measure(anatomy: Anatomy, texts: list[Tensor], task: OutletConfig) -> Measured:
    """Loss with and without the first tokens, and where the weight goes."""
    model, found = anatomy.model, Measured([], [], [], [])
    for ids in texts:
        found.loss.append(score(forward(model, ids[None])[0], ids, start=task.burn_in).loss)
        with acting(model, Evict(task.evicted, task.burn_in)):
            found.evicted.append(score(forward(model, ids[None])[0], ids, start=task.burn_in).loss)
        masses = _Masses()
        reader = Reader(anatomy, masses, stream=False, writes=False)
        with reader.open():
            reader.run(ids[None])
        found.first_mass.append(masses.first / masses.sites)
        found.outlet_mass.append(masses.outlet / masses.sites)
    return found
