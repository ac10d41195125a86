"""``sg.streaming``: a model whose every pass goes through a bounded cache, exact at any length."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.cache.bank import Ask
from sinkgate.cache.base import Keep, Policy
from sinkgate.cache.layer import Layer, Tracks
from sinkgate.cache.recent import Recent
from sinkgate.cache.registry import as_policy
from sinkgate.cache.sinks import Sinks
from sinkgate.cache.track import FAR, Step
from sinkgate.call import EXTRA
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint, own_name
from sinkgate.hf.first_token import alone
from sinkgate.hf.fold import _windows
from sinkgate.hf.layers import Attention, attention_layers
from sinkgate.hf.place import STOCK, at, to_call
from sinkgate.hf.register import STREAM, register
from sinkgate.hf.rotary import KEYWORD, find_rotations
from sinkgate.hf.streaming_cache import SCHEMES, StreamingCache, StreamingLayer
from sinkgate.rope import Rotation

__all__ = ["new_stream", "streaming"]

CHANGES = ("dynamic", "longrope")  # rotations whose frequencies depend on the length
OUTPUTS = ("labels", "output_attentions", "output_hidden_states")  # a pass that asks for these is not cut


@contextmanager
def streaming(
    model: nn.Module,
    policy: str | Policy,
    *,
    positions: str = "slots",
    chunk: int = 512,
    rollback: int = 0,
) -> Iterator[StreamingCache]:
    """Inside the ``with``, the model runs through a bounded cache; outside it is bit for bit what it was.

    Every pass inside takes the cache: ``model.generate(**inputs, cache=cache)`` or ``model(ids, cache=cache)``
    (``past_key_values=`` too). A pass of many tokens sees exactly what token by token would; a prompt of any length is
    taken in pieces of ``chunk`` tokens with eviction in between. Rotations are computed from float64 angles, so token 10⁶ is
    as right as token 10³. A bounded stream is no memory: what is evicted is gone.

    Args:
        model: a transformers model whose attention goes through the interface, in eval mode.
        policy: ``Recent(1020) + Sinks(4)``, ``"recent(1020) + sinks(4)"``, …; layers with a sliding window of their own
            keep that window, linear-attention layers their state.
        positions: ``slots``: counted inside the cache, as in StreamingLLM (Xiao et al., ICLR 2024), so that they never
            leave what the model was trained on; ``original``: those of the text.
        chunk: the most tokens that go through the model at once.
        rollback: so many of the last tokens can be cropped again exactly (assisted decoding); costs as many slots.

    Yields:
        The cache; ``cache.fork()`` and :func:`new_stream` make others for the same ``with``.

    Raises:
        ArgumentError: an unknown policy, scheme, layer or head.
        UnsupportedError: a model that cannot be streamed so, by name, with the way out.

    >>> with sg.streaming(model, "recent(1020) + sinks(4)", positions="slots") as cache:     # doctest: +SKIP
    ...     model.generate(**inputs, max_new_tokens=100_000, cache=cache)
    """
    if positions not in SCHEMES:
        raise ArgumentError(f"positions must be 'slots' or 'original', got {positions!r}")
    for name, value, least in (("chunk", chunk, 1), ("rollback", rollback, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}")
    register()
    if RUNNING in model.__dict__:
        raise UnsupportedError(
            "this model is inside another sg.streaming already; new_stream(cache) makes a second stream"
        )
    running = _Running(model, as_policy(policy), positions, chunk, rollback)
    holder, held, hooks = object(), [], []
    for layer in running.attention:
        if at(layer.module)[0] is not None:
            raise UnsupportedError(
                f"{layer.name} is swapped or acted upon; leave that `with`, or undo sg.set_weighting, before streaming"
            )
    try:
        for config in compat.configs(model):
            compat.hold(config, holder, lambda name: (own_name(name), STREAM)[1])
            held.append(config)
        for layer in running.attention:
            layer.module.__dict__[STREAM] = running
            hooks.append(layer.module.register_forward_pre_hook(running.rotate, with_kwargs=True))
        model.__dict__[RUNNING] = running
        model.__dict__["forward"] = running.wrapped()
        if hasattr(model, "generate"):
            model.__dict__["generate"] = running.generating()
        yield running.cache()
    finally:
        model.__dict__.pop("generate", None)
        model.__dict__.pop("forward", None)
        model.__dict__.pop(RUNNING, None)
        for hook in hooks:
            hook.remove()
        for layer in running.attention:
            layer.module.__dict__.pop(STREAM, None)
        for config in held:
            compat.release(config, holder, STOCK)


RUNNING = "_sinkgate_running"


def new_stream(cache: StreamingCache) -> StreamingCache:
    """An empty stream beside another, for the same model and policy; they share nothing.

    Raises:
        ArgumentError: a cache that was made alone.
    """
    if cache.alone:
        raise ArgumentError("this cache was made alone; make another with StreamingCache(config, policy)")
    return cache._made.cache()


class _Running:
    """What a model needs while it streams."""

    def __init__(self, model: nn.Module, policy: Policy, positions: str, chunk: int, rollback: int) -> None:
        self.model, self.policy, self.positions = model, policy, positions
        self.chunk, self.rollback = chunk, rollback
        self.fingerprint = fingerprint(model)
        self.config = compat.config(model)
        self.attention: list[Attention] = attention_layers(model)
        self.index = {id(a.module): a.layer for a in self.attention}
        windows = {i: w for i, w in _windows(model).items() if w is not None}
        self.window = min(windows.values()) if len(windows) == len(self.attention) else None
        self.windows = {} if self.window is not None else windows  # where all have one, the policy takes its place
        self.rotations = find_rotations(model)
        self.learned = all(r is None for r in self.rotations.values())
        self.context = compat.trained_context(self.config)
        self.stock = model.forward
        self.signature = inspect.signature(self.stock)
        self.step: Step | None = None
        self.now: StreamingCache | None = None
        self.tables: dict[int, tuple[Tensor, Tensor]] = {}
        self.folded: dict[tuple[int, ...], dict[int, tuple[Tensor, Tensor]]] = {}
        self._check()

    # ---- before it begins -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        name = type(self.model).__name__
        types = compat.layer_types(self.config) or []
        if "chunked_attention" in types:
            raise UnsupportedError(f"{name} has layers with chunked attention, whose blocks a stream would move")
        budget = self.policy.budget
        if missing := self.policy.layers_named - {a.layer for a in self.attention} | self.policy.layers_named & {
            *self.windows
        }:
            raise ArgumentError(
                f"the policy names layer {min(missing)}, but {name} has no attention layer of that number whose cache is free: "
                f"there are {sorted({a.layer for a in self.attention} - {*self.windows})}"
            )
        for layer in self.attention:
            self.policy.keeps(layer.layer, layer.heads, layer.kv_heads)
            rotation = self.rotations[layer.layer]
            if self.positions != "slots" or layer.layer in self.windows:
                continue
            if rotation is None:
                raise UnsupportedError(
                    f"{name} has learned positions, which are added to the tokens and cannot be counted inside a cache; use "
                    "positions='original'"
                )
            if isinstance(rotation, str):
                raise UnsupportedError(
                    f"{name} cannot be re-rotated ({rotation}): latent (MLA) and other layouts keep positions='original'"
                )
        changing = [k for k in compat.rotary_kinds(self.model) if any(c in k for c in CHANGES)]
        if changing and self.context and self.positions == "slots" and budget is not None and budget > self._original():
            raise UnsupportedError(
                f"{name}'s {changing[0]} rotation changes beyond {self._original()} tokens, and the policy keeps {budget}: keep fewer"
            )
        self.changing = changing
        if self.positions == "slots" and budget is not None and self.context and budget > self.context:
            warnings.warn(
                f"the policy keeps {budget} tokens, but {name} was made for {self.context} positions",
                UserWarning,
                stacklevel=5,
            )
        recent = [k.recent for a in self.attention for k in self._keeps(a)]
        if self.window is not None and any(n is None or n > self.window for n in recent):
            warnings.warn(
                f"every layer of {name} was trained with a window of {self.window} tokens, and the policy shows it more", UserWarning,
                stacklevel=5,
            )  # fmt: skip
        for part in self._folds():
            self.folded[part.folded] = self._constants(part.folded)
        tracks = Tracks(1, self.rollback)
        for layer in self.attention:  # what a bank refuses is refused before anything is changed
            self.layer(layer.layer, tracks)

    def _original(self) -> int:
        """Positions within which the frequencies are what they are."""
        text = self.config.get_text_config(decoder=True)
        parameters = getattr(text, "rope_parameters", None) or {}
        found = parameters.get("original_max_position_embeddings") if isinstance(parameters, dict) else None
        return int(found or self.context or 0)

    def _folds(self) -> list[Sinks]:
        found = []
        for layer in self.attention:
            for keep in self._keeps(layer):
                found += [p for p in keep.pinned if isinstance(p, Sinks) and p.folded]
        return list(dict.fromkeys(found))

    def _keeps(self, layer: Attention) -> list[Keep]:
        if layer.layer in self.windows:
            return Recent(self.windows[layer.layer]).keeps(layer.layer, layer.heads, layer.kv_heads)
        return self.policy.keeps(layer.layer, layer.heads, layer.kv_heads)

    @torch.no_grad()
    def _constants(self, ids: tuple[int, ...]) -> dict[int, tuple[Tensor, Tensor]]:
        """Raw key and value per layer of first tokens, each alone; their mean."""
        table = self.model.get_input_embeddings()  # type: ignore[operator]
        embeddings = table(torch.tensor(ids, device=compat.input_device(self.model)))
        found = alone(self.model, embeddings, 0)  # at position 0 a rotation turns nothing
        wide = torch.promote_types(embeddings.dtype, torch.float32)
        return {i: (k.to(wide).mean(0), v.to(wide).mean(0)) for i, (k, v) in found.items()}

    # ---- caches -----------------------------------------------------------------------------------------------------------

    def cache(self) -> StreamingCache:
        """An empty stream."""
        cache = StreamingCache(self.config, self.policy, positions=self.positions, _made=self)
        cache.rollback, cache.chunk, cache.fingerprint = self.rollback, self.chunk, self.fingerprint
        return cache

    def device(self) -> torch.device:
        """Where token ids go in."""
        return compat.input_device(self.model)

    def layers(self, cache: StreamingCache) -> list[Any]:
        """One per decoder layer: ours where it attends, transformers' own where it does not."""
        ours = {a.layer for a in self.attention}
        theirs = compat.other_caches(self.config)
        count = max(max(ours) + 1, len(theirs))
        return [StreamingLayer(cache, i) if i in ours else theirs[i] for i in range(count)]

    def layer(self, index: int, tracks: Tracks) -> Layer:
        """The banks of a layer, when its first keys have come."""
        (layer,) = (a for a in self.attention if a.layer == index)
        rotation = self.rotations[index]
        turns = (
            rotation
            if self.positions == "slots" and index not in self.windows and isinstance(rotation, Rotation)
            else None
        )
        made = Layer(self._keeps(layer), tracks, turns)
        for bank in made.banks:
            for part in bank.keep.pinned:
                if isinstance(part, Sinks) and part.folded:
                    key, value = (x[list(bank.keep.kv)] for x in self.folded[part.folded][index])
                    if turns is None and isinstance(rotation, Rotation):  # it stands in front of the text, for good
                        key = rotation.turn(key[None, :, None], torch.tensor([[[-1]]], device=key.device))[0, :, 0]
                    bank.folded = (key, value)
                    if not bank.track.folded:
                        bank.track.fold()
        return made

    # ---- a pass -----------------------------------------------------------------------------------------------------------

    def wrapped(self) -> Callable[..., Any]:
        """:meth:`forward` with the signature of the model's own, which ``generate`` looks at."""

        @functools.wraps(self.stock)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs)

        return forward

    def generating(self) -> Callable[..., Any]:
        """The model's ``generate``, which first compares the text it is given with what went through."""
        stock: Any = self.model.generate

        @functools.wraps(stock)
        def generate(*args: Any, **kwargs: Any) -> Any:
            if "past_key_values" in kwargs:
                kwargs["cache"] = kwargs.pop("past_key_values")
            cache = kwargs.get("cache")
            ids = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
            mask = kwargs.get("attention_mask")
            drafts = kwargs.get("assistant_model") is not None or kwargs.get("prompt_lookup_num_tokens")
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
        old = [kwargs.pop(n) for n in ("past_key_values",) if kwargs.get(n) is not None]
        cache = kwargs.get("cache") if kwargs.get("cache") is not None else old[0] if old else None
        if not isinstance(cache, StreamingCache):
            raise ArgumentError(
                f"inside sg.streaming every pass takes the cache it yields, got {'none' if cache is None else type(cache).__name__}: "
                "model(ids, cache=cache), model.generate(…, cache=cache)"
            )
        if cache.alone or cache.fingerprint != self.fingerprint:
            whose = "was made alone" if cache.alone else "belongs to another model"
            raise ArgumentError(f"this cache {whose}; use the one that this sg.streaming yields, or new_stream(cache)")
        kwargs["cache"] = cache
        ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
        tokens = ids if ids is not None else embeds
        if tokens is None:
            raise ArgumentError("give input_ids or inputs_embeds")
        if torch.is_grad_enabled() and self.model.training:
            raise UnsupportedError("a stream carries no gradients: model.eval(), or train outside sg.streaming")
        if torch.compiler.is_compiling():
            with torch.no_grad():
                return self._compiled(kwargs, tokens, cache)
        with torch.inference_mode(False), torch.no_grad():  # what is kept must outlive a caller's inference mode
            return self._eager(kwargs, tokens, ids, cache)

    def _eager(self, kwargs: dict[str, Any], tokens: Tensor, ids: Tensor | None, cache: StreamingCache) -> Any:
        length = tokens.shape[1]
        if length == 0:
            raise ArgumentError("the input has no tokens")
        mask = self._real(kwargs.pop("attention_mask", None), cache, length)
        given = kwargs.pop("position_ids", None)
        real = None if mask is None else mask[:, -length:]
        real = None if real is None or bool(real.all()) else real
        if any(kwargs.get(name) for name in OUTPUTS[1:]) or kwargs.get("labels") is not None or length <= cache.chunk:
            return self._pass(kwargs, tokens, ids, cache, real, mask, given)
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
                None if mask is None else mask[:, : mask.shape[1] - length + j], None if given is None else given[..., i:j],
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
        return mask.bool()

    def _pass(self, kwargs: dict[str, Any], tokens: Tensor, ids: Tensor | None, cache: StreamingCache, real: Tensor | None,
              mask: Tensor | None, given: Tensor | None) -> Any:  # fmt: skip
        rows, length = tokens.shape[:2]
        step = cache.begin(length, real, ids, rows, tokens.device)
        self._positions(step, given, cache)
        where = torch.where(step.positions == FAR, 0, step.positions)
        if self.changing:  # their frequencies must stay as they are; the layers are handed exact angles anyway
            where = where.clamp_max(max(self._original() - 1, 0))
        if "position_ids" in self.signature.parameters:
            kwargs = {**kwargs, "position_ids": where}
        linear = any(not isinstance(layer, StreamingLayer) for layer in cache.layers)
        if linear and mask is not None and not bool(mask.all()):
            kwargs = {**kwargs, "attention_mask": mask}
        self._begin(step, cache)
        try:
            out = self.stock(**kwargs)
        except BaseException:
            cache.broken = True
            raise
        finally:
            self.step = self.now = None
        cache.end(step)
        return out

    def _begin(self, step: Step, cache: StreamingCache) -> None:
        if cache.broken:
            raise UnsupportedError(
                "an earlier pass of this stream failed half way; reset() the cache, or restore a saved one"
            )
        self.step, self.now, self.tables = step, cache, {}

    def _compiled(self, kwargs: dict[str, Any], tokens: Tensor, cache: StreamingCache) -> Any:
        """One token per row, traced: no padding, nothing that depends on where the stream is."""
        step = cache.begin(1, None, None, tokens.shape[0], tokens.device)
        kwargs = {n: x for n, x in kwargs.items() if n != "attention_mask"}
        kwargs["position_ids"] = torch.zeros_like(step.positions)
        self.step, self.now, self.tables = step, cache, {}
        out = self.stock(**kwargs)
        self.step = self.now = None
        cache.end(step)
        return out

    def _positions(self, step: Step, given: Tensor | None, cache: StreamingCache) -> None:
        """Check the positions of a pass, and say what a reader should know of them."""
        real = step.positions != FAR
        if given is not None:
            if given.ndim != 2:
                raise UnsupportedError(
                    f"a stream counts positions itself; got position_ids of shape {list(given.shape)}"
                )
            if bool(((given.expand_as(real) != step.positions) & real).any()):
                raise ArgumentError("position_ids differ from what the stream counted; leave them out")
        last = max(step.before or [0]) + step.length
        name = type(self.model).__name__
        if self.context is None or last <= self.context or self.positions == "slots":
            return
        if self.learned:
            raise UnsupportedError(
                f"{name} has {self.context} learned positions and the text reaches token {last}: it cannot go on; use a model with "
                "rotary positions"
            )
        if self.changing and last > self._original():
            raise UnsupportedError(
                f"{name}'s {self.changing[0]} rotation changes beyond {self._original()} tokens and would make the kept keys stale at "
                f"token {last}; use positions='slots'"
            )
        far = self.policy.budget is None or any(k.pinned for a in self.attention for k in self._keeps(a))
        if far and "context" not in cache.warned:
            cache.warned.add("context")
            warnings.warn(
                f"{name} was made for {self.context} positions and the text reaches token {last}: with positions='original' kept "
                f"tokens are up to {last - 1} positions away, further than it ever saw; positions='slots' does not",
                UserWarning, stacklevel=6,
            )  # fmt: skip

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
        return self.now.attend(index, ask, self.step).transpose(1, 2), None
