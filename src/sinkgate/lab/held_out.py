"""The fixed batch that a training is watched on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.probe.diagnose import padded
from sinkgate.probe.text import Text, pieces

__all__ = ["HeldOut", "held_out"]

_USELESS = ("labels",)  # of a batch made for training: a reading has no use for it


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Token ids ``[b, t]`` on the CPU, their mask (None: no padding), and what a probe is told of each row."""

    ids: Int[Tensor, "b t"]
    mask: Int[Tensor, "b t"] | None
    samples: list[dict[str, Any]]

    @property
    def digest(self) -> str:
        """Twelve hex digits of ids and mask: which batch a reading is of."""
        mask = torch.ones_like(self.ids) if self.mask is None else self.mask
        return hashlib.sha256(repr((self.ids.tolist(), mask.tolist())).encode()).hexdigest()[:12]

    @property
    def lengths(self) -> list[int]:
        """Real tokens of each row."""
        return [len(sample["tokens"]) for sample in self.samples]

    def real(self) -> Tensor:
        """``[b, t]`` bool: True where there is no padding."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.mask is None else self.mask.bool()

    def opening(self, count: int) -> Int[Tensor, "1 n"]:
        """The first ``count`` real tokens of the longest row."""
        row = max(range(len(self.samples)), key=lambda b: self.lengths[b])
        return self.ids[row][self.real()[row]][:count][None]


def held_out(
    batch: Tensor | Mapping[str, Any] | Iterable[str | Text] | str, tokenizer: Any = None, *, samples: int, tokens: int,
    bos: str,
) -> HeldOut:  # fmt: skip
    """A batch from token ids or from texts.

    Args:
        batch: ids ``[b, t]``; a mapping with ``input_ids`` and perhaps ``attention_mask`` (``labels`` are not looked at);
            or texts, which are cut as :func:`sinkgate.diagnose` does.
        tokenizer: for texts.
        samples: of texts, how many pieces.
        tokens: of texts, how long a piece is.
        bos: of texts, whether a beginning-of-text token is put first: auto, yes, no.

    Raises:
        ArgumentError: ids or mask of the wrong shape or type, an unknown entry, texts without a tokenizer.
        TextError: no text, or too little.
    """
    if not isinstance(batch, Tensor | Mapping):
        if tokenizer is None:
            raise ArgumentError("texts need a tokenizer: give tokenizer=…, or a batch of token ids [b, t]")
        parts, _ = pieces(tokenizer, batch, tokens=tokens, samples=samples, bos=bos)
        ids, mask = padded(parts)
        return HeldOut(ids, mask, [{"id": p.id, "source": p.source, "tokens": p.tokens, "bos": p.bos} for p in parts])
    given = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
    if unknown := sorted(given.keys() - {"input_ids", "attention_mask", *_USELESS}):
        raise ArgumentError(f"a held-out batch holds input_ids and attention_mask; {', '.join(unknown)} is not known")
    ids = _whole("input_ids", given.get("input_ids"))
    if ids.shape[1] < 2:
        raise ArgumentError(f"a held-out batch needs at least 2 tokens a row, got {list(ids.shape)}")
    mask = given.get("attention_mask")
    if mask is not None:
        mask = _whole("attention_mask", mask)
        if mask.shape != ids.shape:
            raise ArgumentError(f"attention_mask {list(mask.shape)} must have the shape of input_ids {list(ids.shape)}")
        mask = None if bool(mask.all()) else mask
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    if int(real.sum(-1).min()) < 2:
        raise ArgumentError("a row of the held-out batch has less than 2 tokens that are no padding")
    rows = [row[keep].tolist() for row, keep in zip(ids, real, strict=True)]
    return HeldOut(
        ids, mask,
        [{"id": f"row {b:04d}", "source": "batch", "tokens": _names(tokenizer, row), "bos": _bos(tokenizer, row)}
         for b, row in enumerate(rows)],
    )  # fmt: skip


def _whole(name: str, x: Any) -> Tensor:
    x = x if isinstance(x, Tensor) else torch.as_tensor(x) if isinstance(x, list) else x
    if not isinstance(x, Tensor) or x.ndim != 2 or x.is_floating_point() or 0 in x.shape:
        got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ArgumentError(f"{name} must be whole numbers [b, t], got {got}")
    return x.detach().to("cpu", torch.long, copy=True)


def _names(tokenizer: Any, ids: list[int]) -> list[str]:
    return [str(i) for i in ids] if tokenizer is None else [tokenizer.decode([i]) for i in ids]


def _bos(tokenizer: Any, ids: list[int]) -> bool:
    return tokenizer is not None and ids[0] == getattr(tokenizer, "bos_token_id", None)
