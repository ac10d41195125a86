"""What a model has to be to stream, and the caches it streams through."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.cache.base import Keep, Policy
from sinkgate.cache.layer import Layer, Tracks
from sinkgate.cache.recent import Recent
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.first_token import alone
from sinkgate.hf.fold import _windows
from sinkgate.hf.layers import Attention, attention_layers
from sinkgate.hf.rotary import find_rotations
from sinkgate.hf.streaming_cache import StreamingCache, StreamingLayer
from sinkgate.rope import Rotation

__all__ = ["Setup"]

CHANGES = ("dynamic", "longrope")  # rotations whose frequencies depend on the length


class Setup:
    """A model, a policy and a position scheme that go together; makes caches and their layers.

    Raises:
        ArgumentError: a policy that names layers or heads which are not there.
        UnsupportedError: a model that cannot be streamed so, by name.
    """

    def __init__(
        self, model: nn.Module, policy: Policy, positions: str, chunk: int, rollback: int, *, quiet: bool = False
    ) -> None:
        self.model, self.policy, self.positions = model, policy, positions
        self.chunk, self.rollback, self.quiet = chunk, rollback, quiet
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
                    f"{name} hands its layers no rotation (learned positions, or none), so positions cannot be counted inside a "
                    "cache; use positions='original'"
                )
            if isinstance(rotation, str):
                raise UnsupportedError(
                    f"{name} cannot be re-rotated ({rotation}): latent (MLA) and other layouts keep positions='original'"
                )
        changing = [k for k in compat.rotary_kinds(self.model) if any(c in k for c in CHANGES)]
        if changing and self.context and self.positions == "slots" and budget is not None and budget > self.original():
            raise UnsupportedError(
                f"{name}'s {changing[0]} rotation changes beyond {self.original()} tokens, and the policy keeps {budget}: keep fewer"
            )
        self.changing = changing
        if (
            not self.quiet
            and self.positions == "slots"
            and budget is not None
            and self.context
            and budget > self.context
        ):
            warnings.warn(
                f"the policy keeps {budget} tokens, but {name} was made for {self.context} positions",
                UserWarning,
                stacklevel=5,
            )
        recent = [k.recent for a in self.attention for k in self.keeps(a)]
        if not self.quiet and self.window is not None and any(n is None or n > self.window for n in recent):
            warnings.warn(
                f"every layer of {name} was trained with a window of {self.window} tokens, and the policy shows it more", UserWarning,
                stacklevel=5,
            )  # fmt: skip
        kept = [k for a in self.attention for k in self.keeps(a)]
        self.compilable = not any(
            k.recent is None
            or k.earned
            or k.rule
            or k.storage.bits
            or len(k.pinned) > 1
            or not all(p.by_count for p in k.pinned)
            for k in kept
        )
        for part in self.folds():
            self.folded[part.folded] = self._constants(part.folded)
        tracks = Tracks(1, self.rollback)
        for layer in self.attention:  # what a bank refuses is refused before anything is changed
            self.layer(layer.layer, tracks)

    def original(self) -> int:
        """Positions within which the frequencies are what they are."""
        text = self.config.get_text_config(decoder=True)
        parameters = getattr(text, "rope_parameters", None) or {}
        found = parameters.get("original_max_position_embeddings") if isinstance(parameters, dict) else None
        return int(found or self.context or 0)

    def folds(self) -> list[Sinks]:
        """Parts that keep constants of the model instead of tokens."""
        found = []
        for layer in self.attention:
            for keep in self.keeps(layer):
                found += [p for p in keep.pinned if isinstance(p, Sinks) and p.folded]
        return list(dict.fromkeys(found))

    def keeps(self, layer: Attention) -> list[Keep]:
        """The banks of a layer: its own window, or what the policy says."""
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
        made = Layer(self.keeps(layer), tracks, turns)
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
