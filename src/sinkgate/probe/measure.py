"""The same measurement on plain tensors, for a model of one's own."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinkgate.blocks import head_output
from sinkgate.masks import Visibility
from sinkgate.probe.probe import Probe
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings
from sinkgate.site import OutputMap, Site

__all__ = ["measure"]


@torch.no_grad()
def measure(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b kv s d"],
    v: Float[Tensor, "b kv s dv"],
    *,
    causal: bool = True,
    window: int | None = None,
    mask: Tensor | None = None,
    real: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logit: Tensor | None = None,
    output_weight: Float[Tensor, "h*dv D"] | None = None,
    tokens: list[list[str]] | None = None,
    name: str = "tensors",
    **settings: Any,
) -> Diagnosis:
    """Diagnose one attention layer given as tensors (keys and queries after rotation).

    Args:
        q: queries; k, v: keys and values, whose head count divides that of q.
        k: keys.
        v: values.
        causal: query i sees keys up to its own position (the last query stands at the last key).
        window: only the last ``window`` keys, the query's own included.
        mask: bool (True = visible) or additive, ``[b or 1, h or 1, t, s]``.
        real: bool ``[b, s]``, False at padding.
        scale: default ``d ** -0.5``.
        softcap: ``softcap * tanh(scores / softcap)``.
        sink_logit: learned sink logit per head, ``[h]``.
        output_weight: with it, what the sink writes is measured: ``written = heads.flatten() @ output_weight``.
        tokens: token strings per sample, for the list of sinks; default: their positions.
        name: what the record calls it.
        settings: fields of :class:`sinkgate.record.Settings`.

    Returns:
        A :class:`Diagnosis` with one layer and one sample per batch row.

    Raises:
        ArgumentError: shapes that do not go together; the message names them.
        NonFiniteError: NaN or infinity in the tensors; the message names the heads.

    >>> import torch
    >>> z = torch.zeros(1, 1, 64, 4)                      # all scores equal: uniform attention
    >>> d = measure(z, z, z)
    >>> round(float(d.first_token_mass[0, 0]), 4), round(float(d.null_mass[0, 0]), 4)
    (0.0741, 0.0741)
    """
    visibility = Visibility(q.shape[-2], k.shape[-2], causal, window, mask, real, device=q.device)
    site = Site(
        layer=0, q=q, k=k, v=v, out=q[..., :1].expand(*q.shape[:-1], v.shape[-1]), visibility=visibility, scale=scale,
        softcap=softcap, sink_logit=sink_logit,
    )  # fmt: skip
    if output_weight is not None:
        site.output_map = OutputMap.from_weight(output_weight, q.shape[1])
    site.out = head_output(site)
    lengths = [k.shape[-2]] * len(k) if real is None else real.sum(-1).tolist()
    names = tokens or [[str(j) for j in range(n)] for n in lengths]
    probe = Probe(Settings(**{"tokens": k.shape[-2], **settings}))
    samples = [{"id": f"{name}:{b}", "source": name, "tokens": names[b], "bos": False} for b in range(len(k))]
    with probe.sample(samples):
        probe.site(site)
    layer = {
        "index": 0, "name": name, "kind": "window" if window else "full", "window": window, "reason": None,
        "write_reason": None if output_weight is not None else "no output_weight was given",
        "learned_sink": sink_logit is not None,
    }  # fmt: skip
    shape = "x".join(str(n) for n in (q.shape[1], k.shape[1], q.shape[-1], v.shape[-1]))
    return probe.finish(model={"name": name, "fingerprint": f"{name}:{shape}"}, layers=[layer])
