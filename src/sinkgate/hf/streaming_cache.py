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
        self.cache.check_running()
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
        self.padded = False  # whether any token was padding
        self.passes: list[Tensor | int] = []  # of each pass how many tokens, or which were real
        self.history: list[Tensor] = []  # ids that went through, so that a resumed text can be compared
        if self.alone:
            from sinkgate.hf.stream_alone import Alone

            self._made: Any = Alone(config, self)
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
        self.layers = self._made.layers(self)  # fresh ones: a state that is only zeroed keeps its rows
        self.tracks, self.counts, self.padding, self.history = None, None, 0, []
        self.broken, self.padded, self.passes = False, False, []
        if self.alone:
            self._made.step, self._made.seen_by = None, set()

    def fork(self) -> StreamingCache:
        """A second stream that goes on from here; neither sees what the other does."""
        return copy.deepcopy(self)

    @torch.inference_mode(False)
    def __deepcopy__(self, memo: dict[int, Any]) -> StreamingCache:
        twin = type(self).__new__(type(self))
        memo[id(self)], memo[id(self._made)] = twin, self._made  # the model is shared
        for name, value in self.__dict__.items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
        return twin

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows of the batch in another order, for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times."""
        if self.counts is not None:
            self.batch_select_indices(torch.arange(len(self.counts)).repeat_interleave(repeats))

    @torch.inference_mode(False)
    def batch_select_indices(self, indices: Tensor) -> None:
        """These rows of the batch, in this order."""
        if self.counts is None or self.tracks is None:
            return
        rows = indices.long().cpu()
        columns = self.columns
        self.counts = self.counts[rows.to(self.counts.device)]
        self.padding = columns - int(self.counts[0])
        self.history = [x[rows.to(x.device)] for x in self.history]
        self.passes = [x if isinstance(x, int) else x[rows] for x in self.passes]
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

    @torch.inference_mode(False)
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
        ids, columns = self.ids, self.columns
        gone = self._real_among_last(n)
        if n > columns or bool((gone > self.counts).any()):
            raise ArgumentError(f"cannot take {n} tokens back, a row has {int(self.counts.min())}")
        left = (self.counts - gone).tolist()
        self.check_crop(n, left)
        for layer in self._streaming():
            if layer.layer is not None:
                layer.layer.each(lambda bank: bank.crop(left))  # first, as some refuse
        self.counts = self.counts - gone
        self.padding = columns - n - int(self.counts[0])
        self._forget(n)
        for track in self.tracks.all.values():
            track.crop(left)
        self.history = [] if ids is None else [ids[:, : ids.shape[1] - n]]

    def _real_among_last(self, n: int) -> Tensor:
        """How many of the last n columns of each row were no padding."""
        assert self.counts is not None
        found = torch.zeros_like(self.counts)
        if not self.padded:
            return found + n
        known = sum(x if isinstance(x, int) else x.shape[1] for x in self.passes)
        if known != self.columns:
            raise UnsupportedError("compiled steps of padded rows cannot be taken back; reset() the cache")
        for x in reversed(self.passes):
            some = min(n, x if isinstance(x, int) else x.shape[1])
            if some == 0:
                break
            found += some if isinstance(x, int) else x[:, x.shape[1] - some :].sum(1).to(found.device)
            n -= some
        return found

    def _forget(self, n: int) -> None:
        """The last n columns of what is known of the passes."""
        while n and self.passes:
            x = self.passes.pop()
            length = x if isinstance(x, int) else x.shape[1]
            if length > n:
                self.passes.append(x - n if isinstance(x, int) else x[:, : length - n])
            n = max(0, n - length)

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
        except (ArgumentError, UnsupportedError):
            self.reset()
            again = "what was evicted cannot be had back, so the whole text is read again"
        return f"the text agrees with what went through in its first {same} of {same + back} tokens: {again}"

    def check_crop(self, n: int, left: list[int]) -> None:
        """Whether everything is still there that ``left`` tokens per row would see.

        Raises:
            UnsupportedError: it is not.
        """
        assert self.tracks is not None
        why = "a linear-attention layer cannot go back" if self.has_state else None
        for track in self.tracks.all.values():
            if why is None and not track.holds(left):
                why = f"what was evicted for them is gone (rollback={self.rollback})"
        if why is not None:
            raise UnsupportedError(
                f"the last {n} tokens cannot be taken back: {why}; make the cache with rollback={n} or more, or reset() it and "
                "give the text again"
            )

    def check_running(self) -> None:
        """New keys come in a pass of the model that streams through this cache.

        Raises:
            ArgumentError: they do not.
        """
        if self._made.step is None or self._made.now is not self:
            raise ArgumentError(
                "this cache belongs to a `with sg.streaming(…)`: use it inside, with that model; StreamingCache(config, policy) makes "
                "one that stands alone"
            )

    def adopt(self, made: Any) -> None:
        """Go on in a later ``with`` of the same model.

        Raises:
            ArgumentError: another policy, scheme or rollback.
        """
        for what, mine, theirs in (
            ("policy", self.policy, made.policy), ("positions", self.positions, made.positions),
            ("rollback", self.rollback, made.rollback),
        ):  # fmt: skip
            if mine != theirs:
                raise ArgumentError(
                    f"this cache was made with {what}={mine}, and this sg.streaming has {what}={theirs}"
                )
        self._made, self.chunk = made, made.chunk

    def compiles(self) -> bool:
        """Whether a single step can be compiled."""
        return bool(self._made.compilable)

    @property
    def has_state(self) -> bool:
        """Whether some layers have a state instead of keys."""
        return any(self.is_linear)

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
        return Step(positions, before, ids)

    def end(self, step: Step) -> None:
        """The pass went through every layer."""
        assert self.counts is not None
        if torch.compiler.is_compiling():
            self.counts.add_(1)
            return
        real = step.positions != FAR
        before = int(self.counts[0])
        self.counts = self.counts + real.sum(1)
        self.padding += before + step.length - int(self.counts[0])
        if step.padded:
            self.padded = True
            self.passes.append(real.cpu())
        elif self.passes and isinstance(self.passes[-1], int):
            self.passes[-1] += step.length
        else:
            self.passes.append(step.length)
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
