"""Passes of a model that streams: cut into chunks, given positions, and attended through the cache."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.cache.bank import Ask
from sinkgate.cache.base import Policy
from sinkgate.cache.track import FAR, Step
from sinkgate.call import EXTRA
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf.place import to_call
from sinkgate.hf.rotary import KEYWORD
from sinkgate.hf.stream_setup import Setup
from sinkgate.hf.streaming_cache import StreamingCache
from sinkgate.rope import Rotation

__all__ = ["Running"]

OUTPUTS = ("output_hidden_states", "output_router_logits")  # a pass that asks for these is not cut


class Running(Setup):
    """A model while it streams: stands in front of its ``forward`` and its ``generate``, and behind its attention."""

    def __init__(
        self, model: nn.Module, policy: Policy, positions: str, chunk: int, rollback: int, *, quiet: bool = False
    ) -> None:
        super().__init__(model, policy, positions, chunk, rollback, quiet=quiet)
        self.stock = model.forward
        self.signature = inspect.signature(self.stock)
        self.lock = threading.Lock()
        self.step: Step | None = None
        self.now: StreamingCache | None = None
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Running:
        raise UnsupportedError("a model is copied outside sg.streaming; a stream by cache.fork()")

    def __reduce__(self) -> Any:
        raise UnsupportedError("a stream is saved by sg.save_stream(cache, file), a model outside sg.streaming")

    def wrapped(self) -> Callable[..., Any]:
        """:meth:`forward` with the signature of the model's own, which ``generate`` looks at."""

        @functools.wraps(self.stock)
        def forward(*args: Any, **kwargs: Any) -> Any:
            """The model's own ``forward``, through the cache it is given."""
            return self.forward(*args, **kwargs)

        return forward

    def generating(self) -> Callable[..., Any]:
        """The model's ``generate``, which first compares the text it is given with what went through."""
        stock: Any = self.model.generate

        @functools.wraps(stock)
        def generate(*args: Any, **kwargs: Any) -> Any:
            """The model's own ``generate``, behind that comparison."""
            if "past_key_values" in kwargs:
                kwargs["cache"] = kwargs.pop("past_key_values")
            cache = kwargs.get("cache")
            ids = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
            mask = kwargs.get("attention_mask")
            settings = kwargs.get("generation_config")
            drafts = kwargs.get("assistant_model") is not None or any(
                getattr(x, "prompt_lookup_num_tokens", None) for x in (settings, self.model.generation_config)
            )
            drafts = drafts or bool(kwargs.get("prompt_lookup_num_tokens"))
            if isinstance(cache, StreamingCache) and drafts and not cache.is_croppable:
                raise UnsupportedError(
                    "assisted decoding takes tokens back, and what was evicted for them is gone: sg.streaming(…, rollback=32) keeps "
                    "so many beyond the policy; a policy by mass, a dynamic or a quantised one cannot"
                )
            if isinstance(cache, StreamingCache) and isinstance(ids, Tensor) and ids.ndim == 2:
                only_new = isinstance(mask, Tensor) and mask.shape[1] == ids.shape[1] + cache.columns
                said = None if only_new else cache.rewind(ids)
                if said is not None:
                    warnings.warn(said, UserWarning, stacklevel=2)
            return stock(*args, **kwargs)

        return generate

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward, through the cache it is given."""
        given = self.signature.bind_partial(*args, **kwargs)
        kwargs = dict(given.arguments)
        kwargs.update(kwargs.pop("kwargs", {}))
        old, cache = kwargs.pop("past_key_values", None), kwargs.get("cache")
        if old is not None and cache is not None and old is not cache:
            raise ArgumentError("give cache or past_key_values, not two different ones")
        cache = old if cache is None else cache
        if not isinstance(cache, StreamingCache):
            raise ArgumentError(
                f"inside sg.streaming every pass takes the cache it yields, got {'none' if cache is None else type(cache).__name__}: "
                "model(ids, cache=cache), model.generate(…, cache=cache)"
            )
        if cache.alone or cache.fingerprint != self.fingerprint:
            whose = "was made alone" if cache.alone else "belongs to another model"
            raise ArgumentError(f"this cache {whose}; use the one that this sg.streaming yields, or new_stream(cache)")
        if cache._made is not self:  # kept from an earlier `with` of the same model
            cache.adopt(self)
        kwargs["cache"] = cache
        ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        tokens = ids if ids is not None else embeds
        if tokens is None:
            raise ArgumentError("give input_ids or inputs_embeds")
        if self.model.training or (torch.is_grad_enabled() and tokens.requires_grad):
            raise UnsupportedError(
                "a stream carries no gradients: model.eval() and torch.no_grad(), or train outside sg.streaming"
            )
        if torch.compiler.is_compiling():
            with torch.no_grad():
                return self._compiled(kwargs, tokens, cache)
        if tokens.ndim < 2 or 0 in tokens.shape:
            raise ArgumentError(f"the input has no tokens: give [rows, tokens], got {list(tokens.shape)}")
        if not self.lock.acquire(blocking=False):
            raise UnsupportedError(
                "this model is in a pass already (another thread?): one pass at a time, or a model each"
            )
        try:
            with torch.inference_mode(False), torch.no_grad():  # what is kept must outlive a caller's inference mode
                return self._eager(kwargs, tokens, ids, cache)
        finally:
            self.lock.release()

    def _eager(self, kwargs: dict[str, Any], tokens: Tensor, ids: Tensor | None, cache: StreamingCache) -> Any:
        length = tokens.shape[1]
        if cache.broken:
            raise UnsupportedError(
                "an earlier pass of this stream failed half way; reset() the cache, or restore a saved one"
            )
        if kwargs.get("output_attentions") or getattr(self.config, "output_attentions", False):
            raise UnsupportedError(
                "a stream keeps no attention weights; read them outside sg.streaming (sg.diagnose, sg.pattern)"
            )
        mask = self._real(kwargs.pop("attention_mask", None), cache, length)
        given = kwargs.pop("position_ids", None)
        real = None if mask is None else mask[:, -length:]
        real = None if real is None or bool(real.all()) else real
        self._fits(cache, length, real, given, tokens.shape[0])
        text = self.config.get_text_config(decoder=True)
        more = (
            any(kwargs.get(name) or getattr(text, name, False) for name in OUTPUTS) or kwargs.get("labels") is not None
        )
        if more or length <= cache.chunk:
            return self._pass(kwargs, tokens, ids, cache, real, mask)
        keep = kwargs.pop("logits_to_keep", 0)
        outputs, logits = None, []
        takes = "logits_to_keep" in self.signature.parameters
        for i in range(0, length, cache.chunk):
            j = min(i + cache.chunk, length)
            part = {**kwargs, **({"input_ids": ids[:, i:j]} if ids is not None else {"inputs_embeds": tokens[:, i:j]})}
            wanted: Any = 0
            if isinstance(keep, int) and keep > 0:
                wanted = max(0, min(j, length) - max(i, length - keep))
                if takes:
                    part["logits_to_keep"] = max(wanted, 1)
            outputs = self._pass(
                part, tokens[:, i:j], None if ids is None else ids[:, i:j], cache, None if real is None else real[:, i:j],
                None if mask is None else mask[:, : mask.shape[1] - length + j],
            )  # fmt: skip
            found = outputs[0] if isinstance(outputs, tuple) else outputs.logits
            if isinstance(keep, int) and keep > 0:
                logits += [found[:, -wanted:]] if wanted else []
            else:
                logits.append(found)
        whole = torch.cat(logits, 1)
        if isinstance(keep, Tensor):
            whole = whole[:, keep]
        if isinstance(outputs, tuple):
            return (whole, *outputs[1:])
        assert outputs is not None
        outputs.logits = whole
        return outputs

    def _real(self, mask: Tensor | None, cache: StreamingCache, length: int) -> Tensor | None:
        if mask is None:
            return None
        if mask.ndim != 2:
            raise UnsupportedError(
                f"a stream builds its own visibility and takes a 2-D attention_mask of padding, got {list(mask.shape)}"
            )
        if mask.shape[1] != cache.columns + length:
            raise ArgumentError(
                f"attention_mask has {mask.shape[1]} columns, but {cache.columns} tokens went through and {length} come now: give "
                f"{cache.columns + length}"
            )
        if mask.is_floating_point() and bool((mask < 0).any()):
            raise ArgumentError("attention_mask is 1 at tokens and 0 at padding; an additive one is none of padding")
        if cache.columns and not cache.padded and not bool(mask[:, :-length].all()):
            raise ArgumentError(
                "attention_mask hides tokens that went through already as real ones; a stream cannot unread them"
            )
        return mask.bool()

    def _pass(self, kwargs: dict[str, Any], tokens: Tensor, ids: Tensor | None, cache: StreamingCache, real: Tensor | None,
              mask: Tensor | None) -> Any:  # fmt: skip
        rows, length = tokens.shape[:2]
        step = cache.begin(length, real, ids, rows, tokens.device)
        if "position_ids" in self.signature.parameters:
            kwargs = {**kwargs, "position_ids": self._where(step)}
        if mask is not None and cache.has_state and not bool(mask.all()):
            kwargs = {**kwargs, "attention_mask": mask}
        self.step, self.now, self.tables = step, cache, {}
        try:
            out = self.stock(**kwargs)
        except BaseException:
            cache.broken = True
            raise
        finally:
            self.step = self.now = None
        cache.end(step)
        return out

    def _where(self, step: Step) -> Tensor:
        """Positions for the model itself; the layers are handed exact angles whatever they are."""
        where = torch.where(step.positions == FAR, 0, step.positions)
        if self.changing:  # their frequencies must stay as they are
            where = where.clamp_max(max(self.original() - 1, 0))
        return where

    def _compiled(self, kwargs: dict[str, Any], tokens: Tensor, cache: StreamingCache) -> Any:
        """One token per row, traced: nothing that depends on where the stream is, so nothing that only then can be refused."""
        if kwargs.pop("attention_mask", None) is not None or kwargs.pop("position_ids", None) is not None:
            raise UnsupportedError(
                "a compiled step takes one token per row and counts positions itself: no mask, no position_ids"
            )
        if tokens.shape[1] != 1 or cache.counts is None or cache.broken:
            raise UnsupportedError("a compiled step takes one token per row, behind a first pass that is not compiled")
        if not cache.compiles():
            raise UnsupportedError(f"a step under {cache.policy} cannot be compiled: recent(n) with first sinks can")
        step = cache.begin(1, None, None, tokens.shape[0], tokens.device)
        if "position_ids" in self.signature.parameters:
            kwargs["position_ids"] = self._where(step)
        self.step, self.now, self.tables = step, cache, {}
        out = self.stock(**kwargs)
        self.step = self.now = None
        cache.end(step)
        return out

    # ---- what a pass must not do ----------------------------------------------------------------------------------------------

    def _fits(self, cache: StreamingCache, length: int, real: Tensor | None, given: Tensor | None, rows: int) -> None:
        """Refuse a pass as a whole, before any of it went through."""
        name = type(self.model).__name__
        if cache.counts is not None and len(cache.counts) != rows:
            raise ArgumentError(
                f"this stream has {len(cache.counts)} rows and the input {rows}; reset() the cache, or make one per batch"
            )
        if (
            real is not None
            and cache.has_state
            and (cache.columns or length == 1 or bool((~real[:, cache.chunk :]).any()))
        ):
            raise UnsupportedError(
                f"{name} has layers with a state of their own, which padding would change; pad in front of the first pass only, "
                f"within its first {cache.chunk} tokens"
            )
        if real is not None and self.learned and "position_ids" not in self.signature.parameters:
            raise UnsupportedError(
                f"{name} takes no position_ids, so rows with padding would stand at wrong positions; give rows alone"
            )
        if given is not None:
            self._counted(cache, length, real, given)
        before = 0 if cache.counts is None else int(cache.counts.max())
        last = before + (length if real is None else int(real.sum(1).max()))
        bounded = self.positions == "slots" and self.policy.budget is not None
        if (
            self.context is None
            or last <= min(self.context, self.original() if self.changing else self.context)
            or bounded
        ):
            return
        if self.learned and last > self.context:
            raise UnsupportedError(
                f"{name} has {self.context} learned positions and the text reaches token {last}: it cannot go on; use a model with "
                "rotary positions"
            )
        if self.changing:
            raise UnsupportedError(
                f"{name}'s {self.changing[0]} rotation changes beyond {self.original()} tokens and would make the kept keys stale at "
                f"token {last}; use positions='slots' with a policy that keeps no more"
            )
        far = self.policy.budget is None or any(k.pinned for a in self.attention for k in self.keeps(a))
        if far and "context" not in cache.warned:
            cache.warned.add("context")
            warnings.warn(
                f"{name} was made for {self.context} positions and the text reaches token {last}: with positions='{self.positions}' "
                f"kept tokens are up to {last - 1} positions away, further than it ever saw; positions='slots' with a bounded "
                "policy does not", UserWarning, stacklevel=5,
            )  # fmt: skip

    def _counted(self, cache: StreamingCache, length: int, real: Tensor | None, given: Tensor) -> None:
        """Positions that a caller gives must be those that the stream counts."""
        if given.ndim != 2 or given.shape[1] != length:
            raise UnsupportedError(f"a stream counts positions itself; got position_ids of shape {list(given.shape)}")
        counts = torch.zeros(1, dtype=torch.long, device=given.device) if cache.counts is None else cache.counts
        seen = torch.ones_like(given, dtype=torch.bool) if real is None else real
        wanted = counts[:, None] + seen.long().cumsum(1) - 1
        if bool(((given != wanted) & seen).any()):
            raise ArgumentError(
                f"position_ids begin at {int(given[0, 0])}, but the stream is at token {int(counts[0])}: a text that went through is "
                "given again (a second turn of assisted decoding, or use_cache=False, does that), or positions are not counted "
                "from each row's first token; reset() the cache, or leave position_ids out"
            )

    # ---- inside the layers ----------------------------------------------------------------------------------------------------

    def rotate(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before an attention module: cosines and sines from exact angles."""
        rotation = self.rotations[self.index[id(module)]]
        given = kwargs.get(KEYWORD)
        if self.step is None or not isinstance(rotation, Rotation) or given is None:
            return None
        key = id(rotation)
        if key not in self.tables:
            positions = torch.where(self.step.positions == FAR, 0, self.step.positions)
            self.tables[key] = rotation.cos_sin(positions, given[0].dtype)
        return args, {**kwargs, KEYWORD: self.tables[key]}

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """The attention function's part."""
        if self.step is None or self.now is None:
            raise ArgumentError("inside sg.streaming call the whole model, with cache=: model(ids, cache=cache)")
        index = self.index[id(module)]
        layer = self.now.layers[index]
        if not layer.handed or key.shape[2] != query.shape[2]:
            raise UnsupportedError(
                f"layer {index} of {type(self.model).__name__} attends to keys that it did not make (shared between layers); such "
                "models cannot be streamed"
            )
        call = to_call(module, query, key, value, None, kwargs, index)
        scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        sinks = kwargs.get("s_aux")
        ask = Ask(
            query,
            key,
            value,
            scale,
            call.softcap or None,
            None if sinks is None else sinks.reshape(-1),
            kwargs.get(EXTRA),
        )
        return self.now.attend(index, ask, self.step).transpose(1, 2).contiguous(), None
