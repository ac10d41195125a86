"""Keys and values in fewer bits, as attention reads them: keys after rotation, everything that lies in the cache.

Nothing of a batch's other rows, no padding and no kept token counts for a range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from sinkgate.cache.sinks import Sinks
from sinkgate.call import Call
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import own_name
from sinkgate.hf.layers import Attention, chosen
from sinkgate.hf.place import Acted, Batch, at, placed
from sinkgate.hf.register import OUR_NAMES, register
from sinkgate.masks import HIDDEN
from sinkgate.nn.attention import GatedAttention
from sinkgate.quantization import PLACES, Quantization, as_quantization, quantize

__all__ = ["Pair", "as_pair", "quantized_kv"]

ROWS = 512  # of a mask at once
GRADIENTS = (
    "rounding has no gradient, and what is rounded here asks for one; run the model under torch.no_grad(), or call "
    "requires_grad_(False) on it"
)


@dataclass(frozen=True)
class Pair:
    """How keys and values are quantised (None: not), and which tokens' stay as they are."""

    keys: Quantization | None
    values: Quantization | None
    keep: Sinks | None = None

    def apply(
        self, k: Float[Tensor, "b kv s d"], v: Float[Tensor, "b kv s dv"], kept: Bool[Tensor, "b s"] | None,
        seen: Callable[[], Bool[Tensor, "b s"] | None],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Both, quantised; ``seen`` tells which keys any query sees, and is asked where a range goes over tokens."""
        if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
            raise UnsupportedError(GRADIENTS)
        among = None
        if any(x is not None and 2 in PLACES["kv"][x.granularity or ""] for x in (self.keys, self.values)):
            among = seen()
            if kept is not None:
                among = ~kept if among is None else among & ~kept
        return self._one(k, self.keys, kept, among), self._one(v, self.values, kept, among)

    @staticmethod
    def _one(x: Tensor, spec: Quantization | None, kept: Tensor | None, among: Tensor | None) -> Tensor:
        if spec is None:
            return x
        within = among if among is not None and 2 in PLACES["kv"][spec.granularity or ""] else None
        rounded = quantize(x, spec, "kv", None if within is None else within[:, None, :, None])
        return rounded if kept is None else torch.where(kept[:, None, :, None], x, rounded)


def as_pair(kv: Any, keep: Any) -> Pair | None:
    """What a caller means: one for both, or ``(keys, values)``.

    Raises:
        ArgumentError: neither, or ``keep`` without anything to keep it from.
    """
    sinks = None if isinstance(keep, int) and not isinstance(keep, bool) and keep == 0 else keep
    if isinstance(sinks, int) and not isinstance(sinks, bool) and sinks > 0:
        sinks = Sinks(sinks)
    if sinks is not None and (not isinstance(sinks, Sinks) or sinks.folded):
        raise ArgumentError(f"keep must be a number of first tokens, or Sinks(n, token_ids=…), got {keep!r}")
    if kv is None:
        if sinks is not None:
            raise ArgumentError("keep is for keys and values: give kv= too, such as kv='int4(token)'")
        return None
    both = kv if isinstance(kv, tuple | list) else (kv, kv)
    if len(both) != 2 or both == (None, None):
        raise ArgumentError(f"kv must be one quantization, or two: (keys, values), got {kv!r}")
    keys, values = (None if x is None else as_quantization(x, "kv") for x in both)
    return Pair(keys, values, sinks)


@contextmanager
def quantized_kv(model: nn.Module, pair: Pair) -> Iterator[list[str]]:
    """Inside, the model attends to quantised keys and values; yields the names of the layers that do.

    Raises:
        UnsupportedError: neither a transformers model nor one with :class:`sinkgate.nn.GatedAttention`, or quantised already.
    """
    own = [(name, m) for name, m in model.named_modules() if isinstance(m, GatedAttention)]
    layers: list[Attention] = []
    if compat.configs(model):
        layers = [layer for layer, _ in chosen(model, None, None)]
    elif not own:
        raise UnsupportedError(
            f"{type(model).__name__} is no transformers model and has no sinkgate.nn.GatedAttention: its keys and values "
            "cannot be found; quantise its weights and activations, or call sinkgate.quantization.quantize yourself"
        )
    if own and pair.keep is not None and pair.keep.token_ids:
        raise UnsupportedError("GatedAttention is given no token ids: keep first tokens by number instead")
    with ExitStack() as stack:
        if layers:
            stack.enter_context(_acted(model, layers, pair))
        for name, module in own:
            if module.kv_map is not None:
                raise UnsupportedError(f"{name} has a kv_map already; leave it before keys and values are quantised")
            stack.callback(setattr, module, "kv_map", None)
            module.kv_map = _Map(pair)
        yield [layer.name for layer in layers] + [name for name, _ in own]


# ---- transformers ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Ids:
    """The tokens whose keys the cache holds, gathered as they are fed."""

    seen: Int[Tensor, "b s"] | None = None

    def told(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        if not isinstance(ids, Tensor):
            return
        past = compat.cached_tokens(kwargs)
        if past and (self.seen is None or self.seen.shape[1] < past or len(ids) > 1):
            self.seen = None  # tokens from elsewhere, or rows that a beam search may have reordered
            return
        self.seen = ids if not past or self.seen is None else torch.cat([self.seen[:, :past], ids], 1)


@dataclass(eq=False)
class _Quantised:
    """The act."""

    pair: Pair
    ids: _Ids = field(default_factory=_Ids)
    name: ClassVar[str] = "quantised keys and values"
    first: ClassVar[bool] = True

    def attend(self, call: Call, run: Callable[[Call], Tensor]) -> Tensor:
        """The head outputs over quantised keys and values."""
        k, v = self.pair.apply(call.k, call.v, self._kept(call), lambda: _visible(call.mask, call.k))
        return run(call.having(k=k, v=v))

    def _kept(self, call: Call) -> Tensor | None:
        keep = self.pair.keep
        if keep is None:
            return None
        b, s = call.k.shape[0], call.k.shape[2]
        positions = torch.arange(s, device=call.k.device).expand(b, -1) + call.gone
        if call.first is not None:
            positions = positions - call.first.to(positions.device)[:, None]
        if not keep.token_ids:
            return keep.pins(positions, None)
        ids = self.ids.seen
        if ids is None or len(ids) != b or ids.shape[1] < call.gone:
            raise UnsupportedError(
                f"{keep} has to know the token of every key: give the model input_ids, and go on from a cache only with one "
                "row whose tokens were all fed inside this with"
            )
        here = torch.nn.functional.pad(ids[:, : call.gone + s], (0, max(0, call.gone + s - ids.shape[1])), value=-1)
        whole = torch.arange(here.shape[1], device=here.device).expand(b, -1)
        if call.first is not None:
            whole = whole - call.first.to(whole.device)[:, None]
        wanted = keep.pins(whole, here)
        wanted &= wanted.cumsum(1) <= keep.n  # the first of them, counted from the start of the text
        return wanted[:, call.gone :].to(call.k.device)


@contextmanager
def _acted(model: nn.Module, layers: list[Attention], pair: Pair) -> Iterator[None]:
    register()
    act, batch = _Quantised(pair), Batch()
    for layer in layers:
        place = at(layer.module)[0]
        if place is not None and place.batch is not None:
            batch = place.batch
        if place is not None and any(isinstance(a.act, _Quantised) for a in place.acts):
            raise UnsupportedError(
                "this model's keys and values are quantised already; leave the first with before a second"
            )
    entries = [(layer.module, layer.layer, Acted(act)) for layer in layers]
    with ExitStack() as stack:
        stack.enter_context(placed(model, entries, lambda name: own_name(name) or OUR_NAMES["sdpa"], batch))
        hooks = [batch.told] + ([act.ids.told] if pair.keep is not None and pair.keep.token_ids else [])
        for module in compat.told(model):
            for hook in hooks:
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True).remove)
        yield


def _visible(mask: Tensor | None, k: Tensor) -> Tensor | None:
    """Which keys any query of the call sees, ``[b, s]``: not padding, not empty slots; None: all."""
    if mask is None:
        return None
    while mask.ndim < 4:
        mask = mask[None]
    found: Tensor | None = None
    for block in mask.split(ROWS, 2):
        here = (block if block.dtype == torch.bool else block > HIDDEN).any(2).any(1)
        found = here if found is None else found | here
    assert found is not None
    return found.expand(k.shape[0], k.shape[2])


# ---- sinkgate.nn ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Map:
    """The same for a :class:`~sinkgate.nn.GatedAttention`: a text begins at its first visible key, or with its document."""

    pair: Pair

    def __call__(self, k: Tensor, v: Tensor, mask: Tensor | None, document_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        visible, kept = _visible(mask, k), None
        if self.pair.keep is not None:
            b, s = k.shape[0], k.shape[2]
            where = torch.arange(s, device=k.device).expand(b, -1)
            start = torch.zeros_like(where[:, :1]) if visible is None else visible.int().argmax(1, keepdim=True)
            if document_ids is not None:
                ids = document_ids.expand(b, -1)
                new = torch.ones_like(ids, dtype=torch.bool)
                new[:, 1:] = ids[:, 1:] != ids[:, :-1]
                start = torch.maximum(start, torch.where(new, where, 0).cummax(1).values)
            kept = self.pair.keep.pins(where - start, None)
        return self.pair.apply(k, v, kept, lambda: visible)
