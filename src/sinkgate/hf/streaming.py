"""``sg.streaming``: a model whose every pass goes through a bounded cache, exact at any length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from sinkgate.cache.base import Policy
from sinkgate.cache.recent import Dense
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import own_name
from sinkgate.hf.place import STOCK, at
from sinkgate.hf.register import STREAM, register
from sinkgate.hf.stream_pass import Running
from sinkgate.hf.stream_proof import TOKENS, prove
from sinkgate.hf.streaming_cache import SCHEMES, StreamingCache

__all__ = ["new_stream", "resumed", "streaming"]


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
    running = Running(model, as_policy(policy), positions, chunk, rollback)
    prove(model, lambda m: _installed(Running(m, Dense(), "original", TOKENS, 0, quiet=True)))
    with _installed(running) as cache:
        yield cache


@contextmanager
def _installed(running: Running) -> Iterator[StreamingCache]:
    """The model behind its stream, and back."""
    model = running.model
    holder, held, hooks = object(), [], []
    for layer in running.attention:
        if at(layer.module)[0] is not None:
            raise UnsupportedError(
                f"{layer.name} is swapped or acted upon; leave that `with`, or undo sg.set_weighting, before streaming"
            )
    try:
        for config in _configs(model, running):
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


def _configs(model: nn.Module, running: Running) -> list[Any]:
    """The configs that the attention layers go by; a vision tower beside them keeps its own attention."""
    theirs = {id(getattr(layer.module, "config", None)) for layer in running.attention}
    found = [config for config in compat.configs(model) if id(config) in theirs]
    return found or compat.configs(model)


RUNNING = "_sinkgate_running"


@contextmanager
def resumed(cache: StreamingCache) -> Iterator[StreamingCache]:
    """Inside, the model streams once more through a cache whose ``with`` was left; outside, others may use it.

    Cheaper than a new :func:`streaming`: what that looked at is remembered, so streams of several policies can take turns
    a pass at a time.

    Raises:
        ArgumentError: a cache that was made alone.
        UnsupportedError: the model streams already.
    """
    if cache.alone:
        raise ArgumentError("this cache was made alone; give one that sg.streaming yielded")
    if RUNNING in cache._made.model.__dict__:
        raise UnsupportedError("this model is inside another sg.streaming already; leave that `with` first")
    with _installed(cache._made):
        yield cache


def new_stream(cache: StreamingCache) -> StreamingCache:
    """An empty stream beside another, for the same model and policy; they share nothing.

    Raises:
        ArgumentError: a cache that was made alone.
    """
    if cache.alone:
        raise ArgumentError("this cache was made alone; make another with StreamingCache(config, policy)")
    return cache._made.cache()
