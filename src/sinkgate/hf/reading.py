"""A transformers model at work, shown to a probe: sites of its attention layers, its hidden states.

The model's own attention makes every output; nothing in the model is replaced, and on leaving, after an
exception too, its configs and hooks are what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sinkgate.errors import UnsupportedError
from sinkgate.hf.anatomy import Anatomy, Layer, forward, reading
from sinkgate.hf.call import arguments, call_visibility, to_site
from sinkgate.hf.kernel_lse import KernelLSE
from sinkgate.hf.place import is_aside
from sinkgate.masks import Visibility
from sinkgate.site import Site

__all__ = ["Reader", "Watcher"]

MASKS_KEPT = 4  # a model has one mask per kind of layer; one that makes a new one each time must not pile them up


class Watcher(Protocol):
    """Whom a reading shows what it sees."""

    def site(self, site: Site) -> None:
        """One attention layer."""

    def stream(self, depth: int, hidden: Tensor, real: Tensor | None = None) -> None:
        """The residual stream before a layer, or after the last."""


class Reader:
    """Runs forward passes of a model and shows them to a watcher.

    Args:
        anatomy: of the model, from :func:`sinkgate.hf.anatomy.trace`.
        watcher: gets a :class:`Site` per measurable layer and the hidden states.
        stream: whether hidden states are wanted.
        writes: whether what the heads write is wanted (gates and norms are then followed).
    """

    def __init__(self, anatomy: Anatomy, watcher: Watcher, *, stream: bool = True, writes: bool = True) -> None:
        self.anatomy = anatomy
        self.watcher = watcher
        self._want_stream = stream and anatomy.has_stream
        self._want_writes = writes
        self._layers = anatomy.by_attention()
        self._real: Tensor | None = None
        self._seen: set[int] = set()
        self._streamed: set[int] = set()
        self._tokens: int | None = None
        self._visibilities: dict[tuple[Any, ...], tuple[Tensor | None, Visibility]] = {}
        self._pending: dict[int, Site] = {}

    @contextmanager
    def open(self) -> Iterator[Reader]:
        """Inside, :meth:`run` may be called as often as wanted."""
        with ExitStack() as stack:
            stack.enter_context(reading(self.anatomy.model, self))
            for hook in self._hooks():
                stack.callback(hook.remove)
            yield self

    @torch.no_grad()
    def run(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """One pass over ``ids`` ``[b, t]``; returns the last position's logits.

        Args:
            ids: token ids.
            attention_mask: ``[b, t]``, 0 at padding; None if there is none.
        """
        self._real = None if attention_mask is None or bool(attention_mask.all()) else attention_mask.bool()
        self._seen.clear()
        self._streamed.clear()
        self._tokens = ids.shape[1]
        self._visibilities.clear()
        self._pending.clear()
        logits = forward(self.anatomy.model, ids, attention_mask, last_only=True)
        for site in self._pending.values():  # no module was called behind these
            self.watcher.site(site)
        self._pending.clear()
        missed = [layer.name for layer in self._layers.values() if layer.index not in self._seen]
        if missed:
            raise UnsupportedError(
                f"these attention layers attended in the trace but not in this pass: {', '.join(missed)}"
            )
        return logits

    def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The listener's part: make the call, then show it."""
        layer = self._layers.get(id(module))
        if layer is None or layer.index in self._seen:
            return function(module, *args, **kwargs)
        with KernelLSE() as kernel:
            result = function(module, *args, **kwargs)
        self._seen.add(layer.index)
        q, k, v, mask, kwargs = arguments(args, kwargs)
        if self._tokens is not None and (q.shape[-2], k.shape[-2]) != (self._tokens, self._tokens):
            raise UnsupportedError(
                f"{layer.name} has {q.shape[-2]} queries and {k.shape[-2]} keys for {self._tokens} tokens, "
                "so its keys are not these tokens"
            )
        site = to_site(
            layer.index, q, k, v, result[0], self._visibility(module, q, k, mask, kwargs), kwargs,
            lse=kernel.lse, output_map=layer.output_map, no_map_reason=layer.no_map_reason,
        )  # fmt: skip
        output_map = layer.output_map
        if self._want_writes and output_map is not None and (output_map.gated or output_map.frozen_norm):
            self._pending[layer.index] = site
        else:
            self.watcher.site(site)
        return result

    # ---- private ------------------------------------------------------------------------------------------------

    def _visibility(
        self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any]
    ) -> Visibility:
        """One object per mask and pass: layers that share a mask share what follows from it."""
        key = (
            id(mask),
            q.shape[-2],
            k.shape[-2],
            q.device,
            kwargs.get("is_causal"),
            getattr(module, "is_causal", True),
        )
        if key not in self._visibilities:
            while len(self._visibilities) >= MASKS_KEPT:
                self._visibilities.pop(next(iter(self._visibilities)))
            real = None if self._real is None else self._real.to(q.device)
            self._visibilities[key] = (mask, call_visibility(module, q, k, mask, kwargs, real))
        return self._visibilities[key][1]

    def _hooks(self) -> Iterator[Any]:
        for layer in self.anatomy.layers:
            if self._want_stream:
                yield layer.block.register_forward_pre_hook(self._before(layer.index), with_kwargs=True)
            output_map = layer.output_map
            if not self._want_writes or output_map is None or not (output_map.gated or output_map.frozen_norm):
                continue
            assert layer.output_module is not None
            yield layer.output_module.register_forward_pre_hook(self._mapping(layer))
            if layer.norm_module is not None:
                yield layer.norm_module.register_forward_hook(self._normed(layer))
        if self._want_stream:
            last = self.anatomy.layers[-1]
            yield last.block.register_forward_hook(self._after(last.index + 1))

    def _before(self, depth: int) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if is_aside():
                return
            hidden = args[0] if args else kwargs.get("hidden_states")
            self._show_stream(depth, hidden)

        return hook

    def _after(self, depth: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if not is_aside():
                self._show_stream(depth, output[0] if isinstance(output, tuple) else output)

        return hook

    def _show_stream(self, depth: int, hidden: Any) -> None:
        if (
            isinstance(hidden, Tensor) and hidden.ndim == 3 and depth not in self._streamed
        ):  # a looped block: its first pass
            self._streamed.add(depth)
            self.watcher.stream(depth, hidden, None if self._real is None else self._real.to(hidden.device))

    def _mapping(self, layer: Layer) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            site = self._pending.get(layer.index)
            if site is None:
                return
            assert layer.output_map is not None
            if layer.output_map.gated:
                b, h, t, dv = site.out.shape
                site.mapped = args[0].reshape(b, t, h, dv).transpose(1, 2)
            if layer.norm_module is None:
                self.watcher.site(self._pending.pop(layer.index))

        return hook

    def _normed(self, layer: Layer) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            site = self._pending.pop(layer.index, None)
            if site is None:
                return
            assert layer.norm_gain is not None
            scaled = args[0].float() * layer.norm_gain.to(args[0].device)
            site.write_scale = (output.float() * scaled).sum(-1) / scaled.square().sum(-1).clamp_min(1e-30)
            self.watcher.site(site)

        return hook
