"""A streaming cache with the model's own attention, which knows nothing of slots: exact for single steps of one row."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from sinkgate.cache.bank import Ask
from sinkgate.cache.layer import Layer, Tracks
from sinkgate.cache.track import Step
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.rotary import find_rotations
from sinkgate.hf.streaming_cache import StreamingCache, StreamingLayer
from sinkgate.rope import Rotation

__all__ = ["Alone"]


class Alone:
    """A cache with the model's own attention, which knows nothing of slots."""

    def __init__(self, config: Any, cache: StreamingCache) -> None:
        self.config, self.windows = config, dict[int, int]()
        if not hasattr(config, "get_text_config"):
            raise ArgumentError(f"StreamingCache needs the model's config, got {type(config).__name__}")
        text = config.get_text_config(decoder=True)
        self.count = int(text.num_hidden_layers)
        keeps = cache.policy.kinds
        way_out = "use sg.streaming(model, policy), which can"
        one = (
            cache.plain
            and all(p.by_count and not getattr(p, "folded", ()) for p in keeps[0].pinned)
            and cache.policy.name in ("recent", "sum")
        )
        if not one:
            raise UnsupportedError(
                f"alone, a cache can keep recent(n) and first sinks(n), not {cache.policy}; {way_out}"
            )
        kinds = set(compat.layer_types(config) or ["full_attention"])
        if kinds != {"full_attention"} or (
            getattr(text, "sliding_window", None) and compat.layer_types(config) is None
        ):
            raise UnsupportedError(
                f"alone, a cache has one length for all layers; this model mixes {sorted(kinds)}; {way_out}"
            )
        self.keep = keeps[0]
        self.rotation: Rotation | None = None
        if cache.positions == "slots" and self.keep.pinned:
            self.rotation = _rotation_of(config)
        self.step: Step | None = None
        self.seen_by: set[int] = set()

    def layers(self, cache: StreamingCache) -> list[Any]:
        """One per decoder layer."""
        return [StreamingLayer(cache, i) for i in range(self.count)]

    def layer(self, index: int, tracks: Tracks) -> Layer:
        """Not asked: alone, layers are made when their keys come."""
        raise AssertionError("not alone")

    def fits(self, cache: StreamingCache, length: int) -> bool:
        """Whether a pass of this length is exact with the model's own mask."""
        assert self.keep.budget is not None
        return length == 1 or cache.columns + length <= self.keep.budget

    def mask_sizes(self, cache: StreamingCache, length: int) -> tuple[int, int]:
        """Keys that attention will be given, and the position of the first."""
        held = min(cache.columns, self.keep.budget or 0)
        if length == 1:
            held = min(held, (self.keep.budget or 0) - 1)
        return held + length, cache.columns - held

    def update(self, cache: StreamingCache, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take a layer's new keys and values; return those that attention is to be given."""
        b, length = k.shape[0], k.shape[2]
        way_out = "use sg.streaming(model, policy), which builds what each query sees from the slots' own positions"
        if b > 1:
            raise UnsupportedError(
                f"alone, a cache takes one row (got {b}): it cannot know the padding of several; {way_out}"
            )
        if not self.fits(cache, length) and cache.prefill != "dense":
            raise UnsupportedError(
                f"alone, a cache is exact for single-token steps and for a prompt within its budget of {self.keep.budget} tokens; "
                f"{cache.columns} are held or seen and {length} came at once; {way_out}, or ask for prefill='dense' by name"
            )
        if index in self.seen_by and len(self.seen_by) < self.count:
            raise ArgumentError(
                f"this cache was made for {self.count} layers, and the model asks for {len(self.seen_by)} of them; make one from its "
                "own config"
            )
        if self.step is None:
            self.seen_by = set()
            self.step = cache.begin(length, None, None, b, k.device)
        self.seen_by.add(index)
        layer = cache.layers[index]
        if layer.layer is None:
            assert cache.tracks is not None
            layer.layer = Layer([self.keep_of(k)], cache.tracks, self.rotation)
        bank = layer.layer.banks[0]
        ask = Ask(k, k, v, 1.0)
        whole = not self.fits(cache, length)
        before = None
        if whole and bank.k is not None:  # everything held and everything new, then evicted
            before = (bank.k.clone(), bank.v.clone())
        if bank.k is None:
            bank._allocate(ask)
        move = bank.track.move(self.step)
        if move.index is None:
            bank._kept(ask, self.step, move)
            bank._store(ask, move)
        else:
            _write_one(bank, ask, self.step, move)
        if len(self.seen_by) == self.count:
            cache.end(self.step)
            self.step, self.seen_by = None, set()
        if whole:
            held = [] if before is None else list(before)
            if not held:
                return k, v
            n = min(cache.columns - (length if self.step is None else 0), self.keep.budget or 0)
            return torch.cat([held[0][:, :, :n], k], 2), torch.cat([held[1][:, :, :n], v], 2)
        n = min(self.step_count(cache, length), self.keep.budget or 0)
        assert bank.k is not None and bank.v is not None
        return bank.k[:, :, :n], bank.v[:, :, :n]

    def step_count(self, cache: StreamingCache, length: int) -> int:
        """Tokens that went through, those of the pass under way counted."""
        return cache.columns + (length if self.step is not None else 0)

    def keep_of(self, k: Tensor) -> Any:
        """What is kept, for as many heads as the layer has."""
        return dataclasses.replace(self.keep, kv=tuple(range(k.shape[1])))


def _write_one(bank: Any, ask: Ask, step: Step, move: Any) -> None:
    """One new token, and the kept keys turned to where they stand for it."""
    kept, index = bank.track.pinned, move.index
    bank.k[:, :, index], bank.v[:, :, index] = ask.k[:, :, 0], ask.v[:, :, 0]
    if bank.raw is not None and bank.rotation is not None:
        bank._pin_one(ask, step, index)
        bank.k[:, :, :kept] = bank.rotation.apply(bank.raw, *bank._angles(move)).to(bank.k.dtype)


def _rotation_of(config: Any) -> Rotation:
    """The rotation of a config's layers: one small layer of that model is made and asked."""
    from transformers import AutoModelForCausalLM

    small = copy.deepcopy(config)
    text = small.get_text_config(decoder=True)
    text.num_hidden_layers = 1
    for name, value in (("vocab_size", 64), ("intermediate_size", 16), ("pad_token_id", None), ("bos_token_id", None), ("eos_token_id", None)):  # fmt: skip
        if hasattr(text, name):
            setattr(text, name, value)
    if compat.layer_types(small) is not None:
        text.layer_types = text.layer_types[:1]
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(small, attn_implementation="sdpa").eval()
    found = find_rotations(model)[0]
    if not isinstance(found, Rotation):
        raise UnsupportedError(
            f"positions='slots' re-rotates the sinks' keys, and {found or 'this model has no rotation'}; use positions='original'"
        )
    return found
