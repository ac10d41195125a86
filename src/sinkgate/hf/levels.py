"""Where each head's log-sum-exps lie: the scale on which an outlet's logit is learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.call import Call
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.call import arguments
from sinkgate.hf.layers import attention_layers
from sinkgate.hf.place import to_call
from sinkgate.outlet import Level

__all__ = ["levels", "mean_embedding"]


@torch.no_grad()
def levels(model: nn.Module, ids: Tensor, keys: dict[int, Tensor] | None) -> dict[int, Level]:
    """Each head's log-sum-exps over the queries of a text, less the scores of a key if there is one."""
    listener = _Levels({id(a.module): a.layer for a in attention_layers(model)}, keys)
    with reading(model, listener):
        forward(model, ids)
    found = {layer: torch.cat(rows, -1) for layer, rows in listener.rows.items()}
    return {layer: Level(x.median(-1).values, x.amin(-1)) for layer, x in found.items()}


@torch.no_grad()
def mean_embedding(model: nn.Module, vocabulary: int) -> Tensor:
    """``[D]``, of the embeddings as the model's own table gives them (Gemma scales what it holds)."""
    table = model.get_input_embeddings()  # type: ignore[operator]
    parts = torch.arange(vocabulary, device=compat.input_device(model)).split(8192)
    found = [table(part) for part in parts]
    return (torch.stack([x.double().sum(0) for x in found]).sum(0) / vocabulary).to(found[0].dtype)


class _Levels:
    """Log-sum-exps, a block of rows at a time."""

    def __init__(self, modules: dict[int, int], keys: dict[int, Tensor] | None) -> None:
        self.modules, self.keys = modules, keys
        self.rows: dict[int, list[Tensor]] = {}

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        layer = self.modules.get(id(module))
        if layer is not None:
            q, k, v, mask, others = arguments(args, kwargs)
            call = to_call(module, q, k, v, mask, others, layer)
            for i0 in range(0, q.shape[2], 128):
                rows = call.rows(i0, min(i0 + 128, q.shape[2]))
                key = None if self.keys is None else self.keys[layer]
                self.rows.setdefault(layer, []).append(_lse(rows, key))
        return function(module, *args, **kwargs)


def _lse(call: Call, key: Tensor | None) -> Tensor:
    """``[h, b·rows]`` of one block of rows."""
    b, h, r, d = call.q.shape
    scale = d**-0.5 if call.scale is None else call.scale
    keys = call.k.float().repeat_interleave(call.group, dim=1)
    s = call.q.float() @ keys.transpose(-1, -2) * scale
    if call.softcap:
        s = call.softcap * torch.tanh(s / call.softcap)
    if call.mask is not None:
        s = s.masked_fill(~call.mask, -torch.inf) if call.mask.dtype == torch.bool else s + call.mask.float()
    elif call.causal:
        i = torch.arange(r, device=s.device)[:, None] + call.position
        s = s.masked_fill(torch.arange(s.shape[-1], device=s.device) > i, -torch.inf)
    level = s.logsumexp(-1)
    if key is not None:
        level = (
            level - (call.q.float() @ key.float().repeat_interleave(call.group, 0).unsqueeze(-1)).squeeze(-1) * scale
        )
    return level.transpose(0, 1).reshape(h, b * r)
