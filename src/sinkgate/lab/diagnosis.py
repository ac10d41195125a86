"""A lab model shown to the probe: the same record and page as of any other model."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinkgate.blocks import head_output
from sinkgate.errors import UnsupportedError
from sinkgate.lab.decoder import Decoder
from sinkgate.lab.measure import band
from sinkgate.masks import Visibility
from sinkgate.nn import Seen
from sinkgate.probe.probe import Probe
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings
from sinkgate.site import OutputMap, Site

__all__ = ["diagnose_decoder", "site_of"]

SOFTMAX = ("softmax", "sink_softmax", "softmax1")  # what a record's split p_s, g, β is defined for


def site_of(seen: Seen, layer: int) -> Site:
    """One attention call of a lab model as a site.

    Raises:
        UnsupportedError: its weighting is no softmax; :func:`sinkgate.lab.measure.read` reads every one.
    """
    module, weighting = seen.module, seen.module.weighting
    if weighting.name not in SOFTMAX:
        raise UnsupportedError(
            f"a record splits the weights of {', '.join(SOFTMAX)}, not of {weighting.name}; sinkgate.lab.measure.read reads it"
        )
    (_, heads, t, _), s = seen.q.shape, seen.k.shape[2]
    z = getattr(weighting, "z", 0.0 if weighting.name == "softmax1" else None)
    mask = None if not module.keep_first else band(t, s, module.window, module.keep_first)
    visibility = Visibility(t, s, window=None if mask is not None else module.window, mask=mask, device=seen.q.device)
    changed = module.head_gain is not None or (module.gate is not None and module.gate.gate.position == "G1")
    site = Site(
        layer=layer, q=seen.q, k=seen.k, v=seen.v, out=seen.heads, visibility=visibility,
        sink_logit=None if z is None else torch.as_tensor(z, dtype=torch.float32).detach().expand(heads),
    )  # fmt: skip
    if module.head_gain is not None or (
        module.gate is not None and (module.gate.gate.additive or module.gate.gate.position == "G5")
    ):
        site.no_map_reason = (
            "a norm over each head's output, an additive gate or one behind the map: what a key writes is no sum"
        )
    else:
        site.output_map = OutputMap.from_weight(module.o_proj.weight.T, heads)
    if changed:
        site.out = head_output(site)
        if site.output_map is not None:
            site.output_map = OutputMap(site.output_map.gram, gated=True)
            site.mapped = seen.heads
    return site


@torch.no_grad()
def diagnose_decoder(
    model: Decoder,
    ids: Int[Tensor, "b t"],
    *,
    name: str = "decoder",
    tokens: list[list[str]] | None = None,
    **settings: Any,
) -> Diagnosis:
    """A :class:`~sinkgate.record.Diagnosis` of a lab model on a batch.

    Args:
        model: of an arm whose weights are a softmax's, sink logits included.
        ids: tokens.
        name: what the record calls it.
        tokens: their strings; default: the ids.
        settings: fields of :class:`~sinkgate.schema.Settings`.

    Raises:
        UnsupportedError: the arm's weighting is no softmax.
        NonFiniteError: NaN or infinity; the message names the layer.
    """
    sinks = model.arm.sink_tokens
    names = tokens or [[str(i) for i in row] for row in ids.tolist()]
    probe = Probe(Settings(**{"tokens": ids.shape[1] + sinks, **settings}))
    samples = [
        {"id": f"{name}:{b}", "source": name, "tokens": [f"<sink {i}>" for i in range(sinks)] + row, "bos": sinks > 0}
        for b, row in enumerate(names)
    ]
    reasons: dict[int, str | None] = {}

    def see(layer: int, seen: Seen) -> None:
        site = site_of(seen, layer)
        reasons[layer] = site.no_map_reason
        probe.site(site)

    depth = iter(range(model.config.layers + 1))
    with probe.sample(samples), model.watched(see):
        model.hidden(ids, lambda x: probe.stream(next(depth), x))
    layers = [
        {"index": i, "name": f"blocks.{i}.attention", "kind": "window" if model.arm.window else "full", "window": model.arm.window,
         "reason": None, "write_reason": reasons[i], "learned_sink": model.arm.weighting.name != "softmax"}
        for i in range(model.config.layers)
    ]  # fmt: skip
    config = model.config
    about = {
        "name": name, "class": f"Decoder, {model.arm}", "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.norm.weight.dtype).removeprefix("torch."), "device": str(model.norm.weight.device),
        "heads": config.heads, "kv_heads": config.kv_heads, "head_dim": config.dim // config.heads, "attention": "sinkgate",
        "fingerprint": f"{name}:{model.arm}",
    }  # fmt: skip
    return probe.finish(model=about, layers=layers)
