"""The few rows of attention weights a person wants to see, without the rest of the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkgate.blocks import weight_blocks
from sinkgate.errors import ArgumentError, TextError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import trace
from sinkgate.hf.reading import Reader
from sinkgate.masks import Visibility
from sinkgate.probe.text import bos_prefix
from sinkgate.site import Site

__all__ = ["Pattern", "one_head", "pattern", "rows_of"]

ROWS = 64  # queries whose weights are worked out at once


@dataclass(frozen=True, eq=False)
class Pattern:
    """Rows of one head's weights: ``weights[i, j]`` is what query ``queries[i]`` gives to key ``j``.

    ``learned`` is what a learned sink logit takes of each row; the rest of the row sums to one minus it.
    """

    layer: int
    head: int
    queries: list[int]
    tokens: list[str]
    weights: np.ndarray
    learned: np.ndarray

    def top(self, k: int = 5) -> list[list[tuple[int, str, float]]]:
        """Per query, the ``k`` keys with most weight: (position, token, weight)."""
        order = np.argsort(-self.weights, axis=1, kind="stable")[:, :k]
        return [
            [(int(j), self.tokens[j], float(row[j])) for j in keys]
            for row, keys in zip(self.weights, order, strict=True)
        ]


@torch.no_grad()
def pattern(
    model: str | nn.Module,
    tokenizer: Any,
    text: str,
    layer: int,
    head: int,
    queries: Sequence[int] | None = None,
    *,
    bos: str = "auto",
) -> Pattern:
    """The weights that some queries of one head give to every key.

    Args:
        model: a loaded transformers model or a name (its tokenizer may then be None).
        tokenizer: of the model.
        text: what the model reads, whole.
        layer: from 0.
        head: query head, from 0.
        queries: positions, negative ones from the end; default: the last.
        bos: as in :func:`sinkgate.diagnose`.

    Raises:
        ArgumentError: a layer, head or query that is not there, or a layer that cannot be measured.
        TextError: the text is empty.
    """
    if isinstance(model, str):
        from sinkgate.hf.load import load

        loaded = load(model)
        return pattern(loaded.model, tokenizer or loaded.tokenizer, text, layer, head, queries, bos=bos)
    ids = bos_prefix(tokenizer, bos)[0] + list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not ids:
        raise TextError("the text is empty")
    wanted = [len(ids) - 1] if queries is None else [q + len(ids) if q < 0 else q for q in queries]
    if not wanted or not all(0 <= q < len(ids) for q in wanted):
        raise ArgumentError(f"queries must lie within the {len(ids)} tokens of the text, got {list(queries or [])}")
    where = compat.input_device(model)
    anatomy = trace(model, torch.tensor([ids[:32]], device=where))
    if not 0 <= layer < len(anatomy.layers):
        raise ArgumentError(f"layer must be between 0 and {len(anatomy.layers) - 1}, got {layer}")
    if anatomy.layers[layer].attention is None:
        raise ArgumentError(f"layer {layer} cannot be measured: {anatomy.layers[layer].reason}")
    if not 0 <= head < anatomy.layers[layer].heads:
        raise ArgumentError(f"head must be between 0 and {anatomy.layers[layer].heads - 1}, got {head}")
    rows = _Rows(layer, head, wanted)
    with Reader(anatomy, rows, stream=False, writes=False).open() as reader:
        reader.run(torch.tensor([ids], device=where))
    tokens = [tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in ids]
    assert rows.weights is not None
    assert rows.learned is not None
    return Pattern(layer, head, wanted, tokens, rows.weights.cpu().numpy(), rows.learned.cpu().numpy())


class _Rows:
    """Watches one layer and keeps some rows of one head."""

    def __init__(self, layer: int, head: int, queries: list[int]) -> None:
        self.layer, self.head, self.queries = layer, head, queries
        self.weights: Tensor | None = None
        self.learned: Tensor | None = None

    def site(self, site: Site) -> None:
        """Keep the wanted rows if this is the wanted layer."""
        if site.layer == self.layer:
            weights, learned = rows_of(site, self.head, self.queries)
            self.weights, self.learned = weights.cpu(), learned.cpu()

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """Hidden states are not wanted here."""


@torch.no_grad()
def rows_of(site: Site, head: int, queries: Sequence[int]) -> tuple[Float[Tensor, "r s"], Float[Tensor, " r"]]:
    """The weights of some queries of one head over every key, and what a learned sink logit takes of each row; float32.

    Peak memory is ``min(r, 64) × s`` floats, a few times, beside the result.
    """
    rows = torch.as_tensor(list(queries), device=site.q.device)
    keys, seen = site.k.shape[-2], site.visibility
    mask = seen.mask
    if mask is not None:
        mask = mask[:, head if mask.shape[1] > 1 else 0, rows][:, None]
    else:
        position = rows[:, None] + keys - site.q.shape[-2]
        mask = ((position >= torch.arange(keys, device=rows.device)) | (not seen.causal))[None, None]
    kv = head // site.group
    picked = Site(
        layer=0, q=site.q[:, head : head + 1, rows], k=site.k[:, kv : kv + 1], v=site.v[:, kv : kv + 1],
        out=site.out[:, head : head + 1, rows], scale=site.scale, softcap=site.softcap,
        visibility=Visibility(len(rows), keys, causal=False, mask=mask.expand(1, 1, -1, -1)),
        sink_logit=_sink_of(site, head, rows),
    )  # fmt: skip
    weights = torch.zeros(len(rows), keys, device=site.q.device)
    learned = torch.zeros(len(rows), device=site.q.device)
    for block in weight_blocks(picked, rows=min(len(rows), ROWS), logs=False):
        span = block.span
        weights[span.i0 : span.i1, span.k0 : span.k1] = block.weights[0]
        if block.log2_sink is not None:
            learned[span.i0 : span.i1] = block.log2_sink[0].exp2()
    return weights, learned


@torch.no_grad()
def one_head(site: Site, head: int) -> Site:
    """What :func:`rows_of` needs of one head (head 0 of the result), copied, so that the rest of the pass can go.

    Values are left out. A mask of the model's own stays as it is: it is as large as the model made it.
    """
    kv, one = head // site.group, slice(head, head + 1)
    nothing = site.q.new_zeros(()).expand(site.q.shape[0], 1, site.k.shape[-2], 1)
    seen = site.visibility
    if seen.mask is not None and seen.mask.shape[1] > 1:
        seen = Visibility(seen.queries, seen.keys, causal=seen.causal, mask=seen.mask[:, one])
    return Site(
        layer=site.layer, q=site.q[:, one].clone(), k=site.k[:, kv : kv + 1].clone(), v=nothing,
        out=nothing[:, :, : site.q.shape[-2]], visibility=seen, scale=site.scale, softcap=site.softcap,
        sink_logit=_sink_of(site, head, torch.arange(site.q.shape[-2], device=site.q.device)),
    )  # fmt: skip


def _sink_of(site: Site, head: int, rows: Tensor) -> Tensor | None:
    """A head's learned sink logit, for these queries where there is one for each."""
    if site.sink_logit is None or site.sink_logit.ndim == 1:
        return None if site.sink_logit is None else site.sink_logit[head : head + 1]
    return site.sink_logit[:, head : head + 1, rows]
