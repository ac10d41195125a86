"""A cache of transformers that keeps what a policy says: alone with a model's own attention, or under ``sg.streaming``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from sinkgate.cache.bank import Ask
from sinkgate.cache.base import Policy
from sinkgate.cache.layer import Layer, Tracks
from sinkgate.cache.registry import as_policy
from sinkgate.cache.track import FAR, Step
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.rope import Rotation

__all__ = ["StreamingCache", "StreamingLayer"]

SCHEMES = ("slots", "original")


class StreamingLayer(CacheLayerMixin):
    """One attention layer of a :class:`StreamingCache`, as transformers asks for it.

    Args:
        cache: the whole.
        index: of the layer.
    """

    is_sliding = False

    def __init__(self, cache: StreamingCache, index: int) -> None:
        super().__init__()
        self.cache, self.index = cache, index
        self.layer: Layer | None = None
        self.handed = False  # new keys came, and attention has not been asked yet

    @property
    def is_croppable(self) -> bool:
        """Whether tokens can be taken back."""
        return self.cache.rollback > 0 or (self.cache.policy.budget is None and self.cache.plain)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: banks are made when the first keys come."""

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take new keys and values; return those that the attention function is to be given."""
        self.is_initialized = True
        if self.cache.alone:
            return self.cache._update_alone(self.index, key_states, value_states)
        self.handed = True
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that attention will be given, and the position of the first."""
        if self.cache.alone:
            return self.cache._mask_sizes(query_length)
        return self.cache.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens that went through, padding counted."""
        return self.cache.get_seq_length()

    def get_max_length(self) -> int:
        """−1: a stream has no end."""
        return -1

    def reset(self) -> None:
        """Forget everything."""
        self.layer = None
        self.handed = False
        self.is_initialized = False

    def offload(self) -> None:
        """Bounded caches stay where they are."""

    def prefetch(self) -> None:
        """Bounded caches stay where they are."""

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The whole cache is reordered at once."""

    def crop(self, tokens_to_remove: int) -> None:
        """The whole cache is cropped at once."""


class StreamingCache(Cache):
    """Keys and values of an endless stream in bounded memory.

    Made by :func:`sinkgate.streaming`, it is exact in every pass. Made alone and given to a model with its own attention, it is
    exact for single-token steps with one length of recent tokens and sinks for all layers, of one row without padding;
    everything else it refuses, unless ``prefill="dense"`` asks for what other tools do: a prompt sees itself whole and is
    evicted afterwards.

    Args:
        config: of the model.
        policy: what is kept, or its text.
        positions: ``slots`` (counted inside the cache) or ``original`` (those of the text).
        prefill: None or ``dense``; only alone.

    Raises:
        ArgumentError: an unknown policy, scheme or prefill.
        UnsupportedError: what a cache alone cannot do for this model.
    """

    def __init__(
        self,
        config: Any,
        policy: str | Policy,
        *,
        positions: str = "slots",
        prefill: str | None = None,
        _made: Any = None,
    ) -> None:
        self.policy = as_policy(policy)
        if positions not in SCHEMES:
            raise ArgumentError(f"positions must be 'slots' or 'original', got {positions!r}")
        if prefill not in (None, "dense"):
            raise ArgumentError(f"prefill must be None or 'dense', got {prefill!r}")
        self.positions, self.prefill = positions, prefill
        self.alone = _made is None
        self.rollback: int = 0
        self.fingerprint: str | None = None
        self.chunk: int = 512
        self.broken = False  # a pass failed half way
        self.warned: set[str] = set()
        self.tracks: Tracks | None = None
        self.counts: Tensor | None = None  # [b] real tokens per row
        self.padding = 0  # columns of the first row that were padding
        self.last_step: Step | None = None
        self.history: list[Tensor] = []  # ids that went through, so that a resumed text can be compared
        self._shape: dict[int, tuple[int, int]] = {}
        if self.alone:
            self._made: Any = _Alone(config, self)
        else:
            self._made = _made
        super().__init__(layers=self._made.layers(self))

    # ---- what is asked of it ---------------------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether one policy of recent tokens and sinks, or of everything, holds in every layer."""
        keeps = self.policy.kinds
        return len(keeps) == 1 and not keeps[0].earned and keeps[0].rule is None and keeps[0].storage.bits is None

    @property
    def columns(self) -> int:
        """Tokens per row that went through, padding counted."""
        return 0 if self.counts is None else int(self.counts[0]) + self.padding

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take a layer's new keys and values.

        Raises:
            ArgumentError: a layer that the model of this cache does not have.
        """
        if layer_idx >= len(self.layers):
            raise ArgumentError(f"this cache was made for {len(self.layers)} layers, and layer {layer_idx} asks for it")
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens per row that went through, padding counted; the same for every layer."""
        return 0 if torch.compiler.is_compiling() else self.columns  # traced, nobody may look: the mask is ours

    def nbytes(self) -> int:
        """Bytes allocated for keys and values, scales and masses included."""
        return sum(layer.layer.nbytes for layer in self._streaming() if layer.layer is not None)

    def held(self) -> int:
        """The most tokens that any head of a layer without a window of its own holds."""
        found = [bank.held for layer in self._streaming() if layer.layer is not None and layer.index not in self._made.windows
                 for bank in layer.layer.banks]  # fmt: skip
        return max(found, default=0)

    def report(self) -> dict[str, Any]:
        """Policy, tokens seen and held, bytes; for dynamic policies the heads that stream and the reads."""
        found: dict[str, Any] = {
            "policy": str(self.policy), "positions": self.positions, "seen": self.columns, "held": self.held(),
            "bytes": self.nbytes(),
        }  # fmt: skip
        reads = offered = 0
        streams = []
        for layer in self._streaming():
            for bank in layer.layer.banks if layer.layer is not None else ():
                reads, offered = reads + getattr(bank, "reads", 0), offered + getattr(bank, "offered", 0)
                streams += [[layer.index, head] for head in getattr(bank, "streams", None) or ()]
        if offered:
            found["reads"] = reads / offered
        if any(k.rule is not None and k.rule.rule == "head" for k in self.policy.kinds):
            found["streaming_kv_heads"] = streams
        return found

    def device(self) -> torch.device:
        """Where the stream's tokens come from."""
        return self._made.device()

    @property
    def ids(self) -> Tensor | None:
        """The ids ``[b, n]`` that went through, padding among them; None if embeddings did."""
        if not self.history:
            return None
        if len(self.history) > 1:
            self.history = [torch.cat(self.history, 1)]
        return self.history[0]

    # ---- what is done to it -----------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything; the cache can be used again."""
        super().reset()
        self.tracks, self.counts, self.padding, self.history, self.last_step = None, None, 0, [], None
        self.broken = False

    def fork(self) -> StreamingCache:
        """A second stream that goes on from here; neither sees what the other does."""
        made, self._made = self._made, None
        try:
            twin = copy.deepcopy(self)
        finally:
            self._made = made
        twin._made = made
        return twin

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows of the batch in another order, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times."""
        if self.counts is not None:
            self.batch_select_indices(torch.arange(len(self.counts)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """These rows of the batch, in this order."""
        if self.counts is None or self.tracks is None:
            return
        rows = indices.long().cpu()
        columns = self.columns
        self.counts = self.counts[rows.to(self.counts.device)]
        self.padding = columns - int(self.counts[0])
        self.history = [x[rows.to(x.device)] for x in self.history]
        self.tracks.rows = len(rows)
        own = [bank.track for layer in self._streaming() if layer.layer is not None for bank in layer.layer.banks]
        for track in {id(t): t for t in (*self.tracks.all.values(), *own)}.values():
            track.select(rows)
        for layer in self._streaming():
            if layer.layer is not None:
                layer.layer.each(lambda bank: bank.select(rows))
        for layer in self.layers:
            if not isinstance(layer, StreamingLayer):
                layer.reorder_cache(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens back, exactly.

        Args:
            tokens_to_remove: ``−n`` for n tokens, as transformers counts.

        Raises:
            UnsupportedError: what was evicted for them is gone.
        """
        n = -tokens_to_remove if tokens_to_remove < 0 else 0
        if tokens_to_remove > 0:
            raise ArgumentError(f"crop takes −n to remove the last n tokens, got {tokens_to_remove}")
        if n == 0 or self.counts is None or self.tracks is None:
            return
        self.check_crop(n)
        ids = self.ids
        if bool((self.counts < n).any()):
            raise ArgumentError(f"cannot take {n} tokens back, a row has {int(self.counts.min())}")
        left = (self.counts - n).tolist()
        for layer in self._streaming():
            if layer.layer is not None:
                layer.layer.each(lambda bank: bank.crop(left))  # first, as some refuse
        self.counts = self.counts - n
        for track in self.tracks.all.values():
            track.crop(left)
        self.history = [] if ids is None else [ids[:, : ids.shape[1] - n]]

    def rewind(self, ids: Tensor) -> str | None:
        """Make the cache hold a beginning of this text, whole: for a history that may have been tokenised anew.

        What the text shares with what went through stays, as far as it can be kept exactly; the rest is forgotten, to be read
        again.

        Args:
            ids: ``[b, n]`` the whole text, history included.

        Returns:
            A sentence about what had to be forgotten; None if nothing had.
        """
        known = self.ids
        if self.counts is None or self.columns == 0:
            return None
        if known is None or known.shape[1] != self.columns:
            raise UnsupportedError(
                "the ids that went through are not all known (embeddings, compiled steps); reset() the cache"
            )
        given = ids.cpu()
        if len(given) != len(known):
            raise ArgumentError(
                f"this stream has {len(known)} rows and the input {len(given)}; reset() the cache, or make one per batch"
            )
        n = min(given.shape[1], known.shape[1])
        differs = (given[:, :n] != known[:, :n]).any(0).nonzero().flatten()
        same = int(differs[0]) if len(differs) else n
        same = min(same, given.shape[1] - 1)  # one token at least is read, for its logits
        back = self.columns - same
        if back == 0:
            return None
        try:
            if same == 0:
                raise UnsupportedError("nothing is shared")
            self.crop(-back)
            again = f"the last {back} were taken back"
        except UnsupportedError:
            self.reset()
            again = "what was evicted cannot be had back, so the whole text is read again"
        return f"the text agrees with what went through in its first {same} of {same + back} tokens: {again}"

    def check_crop(self, n: int) -> None:
        """Whether the last n tokens can be taken back without a trace.

        Raises:
            UnsupportedError: they cannot.
        """
        assert self.tracks is not None and self.counts is not None
        most = int(self.counts.max())
        linear = any(not isinstance(layer, StreamingLayer) for layer in self.layers)
        for track in self.tracks.all.values():
            evicted = track.keep.recent is not None and most > track.keep.recent + track._first() and n > track.slack
            if evicted or linear:
                why = "a linear-attention layer cannot go back" if linear else (
                    f"what was evicted for them is gone (rollback={self.rollback})"
                )  # fmt: skip
                raise UnsupportedError(
                    f"the last {n} tokens cannot be taken back: {why}; make the cache with rollback={n} or more, or reset() "
                    "it and give the text again"
                )

    # ---- a pass, under sg.streaming -----------------------------------------------------------------------------------------

    def begin(self, length: int, real: Tensor | None, ids: Tensor | None, rows: int, device: torch.device) -> Step:
        """The next pass: positions of its tokens in each row.

        Args:
            length: new tokens.
            real: ``[b, length]`` False at padding; None: none is.
            ids: of the new tokens.
            rows: of the batch.
            device: of the tokens.

        Raises:
            ArgumentError: another number of rows than the stream has.
        """
        if self.counts is None:
            self.counts = torch.zeros(rows, dtype=torch.long, device=device)
            self.tracks = Tracks(rows, self.rollback, device)
        if len(self.counts) != rows:
            raise ArgumentError(
                f"this stream has {len(self.counts)} rows and the input {rows}; reset() the cache, or make one per batch"
            )
        if torch.compiler.is_compiling():
            step = Step(self.counts[:, None], None, ids)
            return step
        before = self.counts.tolist()
        if real is None:
            positions = self.counts[:, None] + torch.arange(length, device=device)
        else:
            order = self.counts[:, None] + real.long().cumsum(1) - 1
            positions = torch.where(real, order, FAR)
        self.last_step = Step(positions, before, ids)
        return self.last_step

    def end(self, step: Step) -> None:
        """The pass went through every layer."""
        assert self.counts is not None
        if torch.compiler.is_compiling():
            self.counts.add_(1)
            return
        before, real = int(self.counts[0]), (step.positions != FAR).sum(1)
        self.counts = self.counts + real
        self.padding += before + step.length - int(self.counts[0])
        if step.ids is not None:
            self.history.append(step.ids.detach().to("cpu", torch.int32))
            if len(self.history) > 256:
                self.history = [torch.cat(self.history, 1)]

    def attend(self, index: int, ask: Ask, step: Step) -> Tensor:
        """Attention of one layer's new tokens."""
        layer = self.layers[index]
        if layer.layer is None:
            assert self.tracks is not None
            layer.layer = self._made.layer(index, self.tracks)
        layer.handed = False
        return layer.layer.attend(ask, step)

    # ---- alone ----------------------------------------------------------------------------------------------------------------

    def _update_alone(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._made.update(self, index, k, v)

    def _mask_sizes(self, length: int) -> tuple[int, int]:
        return self._made.mask_sizes(self, length)

    def _streaming(self) -> Sequence[StreamingLayer]:
        return [layer for layer in self.layers if isinstance(layer, StreamingLayer)]


class _Alone:
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
        return [StreamingLayer(cache, i) for i in range(self.count)]

    def layer(self, index: int, tracks: Tracks) -> Layer:
        raise AssertionError("not alone")

    def fits(self, cache: StreamingCache, length: int) -> bool:
        assert self.keep.budget is not None
        return length == 1 or cache.columns + length <= self.keep.budget

    def mask_sizes(self, cache: StreamingCache, length: int) -> tuple[int, int]:
        held = min(cache.columns, self.keep.budget or 0)
        if length == 1:
            held = min(held, (self.keep.budget or 0) - 1)
        return held + length, cache.columns - held

    def update(self, cache: StreamingCache, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
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
        if index in self.seen_by or self.step is None:
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
        return cache.columns + (length if self.step is not None else 0)

    def keep_of(self, k: Tensor) -> Any:
        import dataclasses

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

    from sinkgate.hf.rotary import find_rotations

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
