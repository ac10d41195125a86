"""Everything that depends on a transformers version, in one file.

Tested with 5.24. What is relied on: the two interfaces and their ``register``; that a config keeps its
attention implementation in ``_attn_implementation_internal``; that a modeling file defines or imports
``eager_attention_forward``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sinkgate.errors import UnsupportedError

__all__ = [
    "cached_tokens",
    "config",
    "configs",
    "eager_function",
    "forward_embedding",
    "hold",
    "implementation",
    "input_device",
    "interfaces",
    "layer_types",
    "linear_state",
    "module_lists",
    "other_caches",
    "output_embeddings",
    "reentrant_checkpointing",
    "release",
    "rotary_frequencies",
    "rotary_kinds",
    "rotary_scales",
    "set_implementation",
    "set_linear_state",
    "stock_function",
    "told",
    "trained_context",
    "trainer_of",
]


def interfaces() -> tuple[Any, Any]:
    """transformers' registries of attention functions and of the masks they expect."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS


def config(model: torch.nn.Module) -> Any:
    """The config of a transformers model."""
    return model.config


def configs(model: torch.nn.Module) -> list[Any]:
    """Every distinct config object in a model, sub-configs too: each names its own implementation."""
    found: dict[int, Any] = {}

    def walk(config: Any) -> None:
        if config is None or id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            return
        found[id(config)] = config
        for name in getattr(config, "sub_configs", {}) or {}:
            walk(getattr(config, name, None))

    for module in model.modules():
        walk(getattr(module, "config", None))
    return list(found.values())


def implementation(config: Any) -> str | None:
    """The attention implementation a config names; None stands for the class's own choice."""
    return config._attn_implementation_internal


def set_implementation(config: Any, name: str | None) -> None:
    """Write it without the checks and side effects of ``set_attn_implementation``."""
    config._attn_implementation_internal = name


@dataclass
class _Held:
    config: Any
    original: str | None
    holders: list[tuple[object, str | None]]  # who, and the name that was written for them


_held: dict[int, _Held] = {}  # id of a config -> who needs our name in it


def hold(config: Any, holder: object, name: Callable[[str | None], str | None]) -> None:
    """Write the name that ``name`` makes of a config's implementation, until the last holder lets go.

    Swaps, acts, outlets and readings of one model (or of several that share a config) come and go in any order.
    """
    ours = name(implementation(config))  # may refuse
    found = _held.setdefault(id(config), _Held(config, implementation(config), []))
    found.holders.append((holder, ours))
    set_implementation(config, ours)


def release(config: Any, holder: object, stock: dict[str, str]) -> None:
    """Let go; the last holder brings the original back. ``stock``: our name → theirs, for a copied model's config."""
    found = _held.get(id(config))
    if found is None:
        current = implementation(config)
        set_implementation(config, stock.get(current or "", current))
        return
    found.holders = [(h, name) for h, name in found.holders if h is not holder and h != holder]
    if not found.holders:
        del _held[id(config)]
    set_implementation(config, found.holders[-1][1] if found.holders else found.original)


def stock_function(name: str) -> Callable[..., Any]:
    """A registered attention function by name."""
    return interfaces()[0][name]


def eager_function(module: torch.nn.Module) -> Callable[..., Any]:
    """The eager attention of the file that defines an attention module: each model has its own.

    Raises:
        UnsupportedError: the file has none.
    """
    for cls in type(module).__mro__:
        function = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if function is not None:
            return function
    raise UnsupportedError(
        f"{type(module).__name__} runs with eager attention, but its file has no eager_attention_forward to call; "
        "load the model with attn_implementation='sdpa'"
    )


def input_device(model: torch.nn.Module) -> torch.device:
    """Where token ids go in; the CPU for weights that are kept elsewhere and moved in for each call."""
    devices = [p.device for p in model.parameters()]
    return next((d for d in devices if d.type != "meta"), torch.device("cpu"))


def cached_tokens(kwargs: dict[str, Any]) -> int:
    """How many tokens the cache among a forward's arguments has seen (``cache``, before 5.20 ``past_key_values``)."""
    for name in ("cache", "past_key_values"):
        if hasattr(kwargs.get(name), "get_seq_length"):
            return int(kwargs[name].get_seq_length())
    return 0


def forward_embedding(model: torch.nn.Module, embedding: torch.Tensor, position: int) -> None:
    """One pass over one token given as an embedding ``[1, 1, D]``, at a position, without a cache."""
    where = torch.tensor([[position]], device=embedding.device)
    model(inputs_embeds=embedding, position_ids=where, use_cache=False)


def told(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that are given a 2-D attention mask: the model, and the one inside it, which may be called alone."""
    inner = getattr(model, getattr(model, "base_model_prefix", "") or " ", None)
    return [model, inner] if isinstance(inner, torch.nn.Module) and inner is not model else [model]


def module_lists(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.ModuleList]]:
    """Every ModuleList of a model, by name."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList):
            yield name, module


def reentrant_checkpointing(model: torch.nn.Module) -> bool:
    """Whether a layer in training is checkpointed the old way, which backpropagates through each layer alone."""
    for module in model.modules():
        if module.training and getattr(module, "gradient_checkpointing", False):
            function = getattr(module, "_gradient_checkpointing_func", None)
            if (getattr(function, "keywords", None) or {}).get("use_reentrant"):
                return True
    return False


def rotary_frequencies(model: torch.nn.Module) -> list[torch.Tensor]:
    """The angles per position that a model's rotary modules work with: 1-D tensors that are called ``…inv_freq``."""
    found = []
    for module in model.modules():
        for name, tensor in {**vars(module), **module._buffers}.items():
            if name.endswith("inv_freq") and isinstance(tensor, torch.Tensor) and tensor.ndim == 1:
                found.append(tensor)
    return found


def rotary_scales(model: torch.nn.Module) -> list[float]:
    """What a model's rotary modules multiply their cosines and sines with, and 1."""
    found = [1.0]
    for module in model.modules():
        found += [
            float(x) for n, x in vars(module).items() if n.endswith("attention_scaling") and isinstance(x, float | int)
        ]
    return found


def rotary_kinds(model: torch.nn.Module) -> set[str]:
    """The kinds of rotation that a model's rotary modules name, such as ``dynamic``: some change with the length."""
    found: set[str] = set()
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        found |= set(kind.values()) if isinstance(kind, dict) else {kind} if isinstance(kind, str) else set()
    return found


def trained_context(config: Any) -> int | None:
    """How many positions a model was made for; None where its config does not say."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    value = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(value) if value else None


def layer_types(config: Any) -> list[str] | None:
    """What the config calls its layers, in order; None where it does not."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    found = getattr(text, "layer_types", None)
    return None if found is None else list(found)


def other_caches(config: Any) -> list[Any]:
    """The cache layers transformers itself would use, in order: a linear-attention layer's state is one of them."""
    from transformers import DynamicCache

    return list(DynamicCache(config=config).layers)


def width(model: torch.nn.Module) -> int:
    """How many numbers a token has in the residual stream, as the config says."""
    text = config(model).get_text_config(decoder=True)
    return int(text.hidden_size)


def output_embeddings(model: torch.nn.Module) -> torch.nn.Module | None:
    """The layer that a model says leads to its vocabulary; None where it has none or does not say."""
    ask = getattr(model, "get_output_embeddings", None)
    found = ask() if callable(ask) else None
    return found if isinstance(found, torch.nn.Module) else None


def linear_state(layer: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a linear-attention layer's cache, and what else it remembers."""
    tensors = {
        f"{name}.{i}": x
        for name in ("conv_states", "recurrent_states")
        for i, x in (getattr(layer, name, None) or {}).items()
        if x is not None
    }
    return tensors, {
        "previous": {str(i): bool(x) for i, x in (getattr(layer, "has_previous_state", None) or {}).items()},
        "kernel": {str(i): x for i, x in (getattr(layer, "conv_kernel_size", None) or {}).items()},
    }


def set_linear_state(layer: Any, tensors: dict[str, torch.Tensor], flags: dict[str, Any]) -> None:
    """Give it back."""
    for key, x in tensors.items():
        name, _, i = key.rpartition(".")
        getattr(layer, name)[int(i)] = x
        getattr(layer, f"is_{name}_initialized")[int(i)] = True
        layer.device, layer.dtype = x.device, x.dtype
    for i, value in flags["previous"].items():
        layer.has_previous_state[int(i)] = value
        layer.conv_kernel_size[int(i)] = flags["kernel"].get(i)


def trainer_of(callback: Any) -> Any:
    """The Trainer that is calling a callback: among the callers, the one whose callbacks it is among; None without.

    transformers hands a callback the model, the optimizer and more, but not the Trainer.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        handler = getattr(owner, "callback_handler", None)
        if any(one is callback for one in getattr(handler, "callbacks", ())):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None
