"""What each layer of a model keeps of the text, in numbers: from a Hugging Face config (a plain dict), or given outright.

No torch, no transformers. What a config leaves out is taken from the rule its format states (as many key-value heads as
heads, head size = hidden size / heads); what no rule gives is an error that names the keys that were looked for.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sinkgate.errors import ArgumentError

__all__ = ["CacheShape", "LayerShape", "positive"]

Config = Mapping[str, Any]

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
MOST_LAYERS = 10_000
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
NESTED = ("text_config", "thinker_config", "llm_config", "language_config")
# Full attention in every n-th layer, where a config of this family does not say so itself (its class does).
PATTERNS = {
    "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n": 5, "gemma3n_text": 5, "gemma4": 6, "gemma4_text": 6,
    "cohere2": 4, "gpt_oss": 2, "olmo3": 4, "qwen3_next": 4, "qwen3_5": 4, "qwen3_5_text": 4,
}  # fmt: skip
# A name in `layer_types` → what such a layer keeps.
TYPES = {
    "full_attention": "full", "attention": "full", "global": "full", "sliding_attention": "sliding", "local": "sliding",
    "chunked_attention": "chunked", "indexed_attention": "full", "deepseek_sparse_attention": "full",
    "linear_attention": "linear", "mamba": "linear", "hybrid": "hybrid", "conv": "conv", "moe": "none", "mlp": "none",
}  # fmt: skip


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps; a number that does not apply is 0.

    Args:
        heads: query heads.
        kv_heads: heads that have keys and values of their own.
        head_dim: numbers in a key of one head.
        v_dim: numbers in a value of one head.
        window: tokens that are kept; 0: all.
        latent: numbers of the latent that is kept for all heads instead of keys and values.
        rotary: numbers of the rotated key that is kept beside the latent.
        index: numbers per token that are kept only to choose what is read (the indexer's key of DeepSeek-V3.2).
        top_k: tokens that a query reads; 0: all that are kept.
        shared: keeps nothing and reads what an earlier layer of its kind keeps.
        state_heads: heads of a linear-attention or state-space layer, each with a state of ``k_dim × state_v_dim``.
        k_dim: see ``state_heads``.
        state_v_dim: see ``state_heads``.
        conv: numbers of the state of a short convolution.
    """

    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_dim: int = 0
    window: int = 0
    latent: int = 0
    rotary: int = 0
    index: int = 0
    top_k: int = 0
    shared: bool = False
    state_heads: int = 0
    k_dim: int = 0
    state_v_dim: int = 0
    conv: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if name != "shared":
                positive(name, value, least=0)
        if self.kv_heads and self.heads % self.kv_heads:
            raise ArgumentError(f"{self.heads} heads cannot share {self.kv_heads} key-value heads: no multiple")

    @property
    def attends(self) -> bool:
        """Whether it keeps (or shares) something of each token."""
        return bool(self.kv_heads or self.latent)

    @property
    def kind(self) -> str:
        """``latent``, ``sliding``, ``full``, ``linear`` (a state), ``conv`` or ``none``; ``hybrid``: two at once."""
        if self.attends and self.state_heads:
            return "hybrid"
        if self.attends:
            return "latent" if self.latent else "sliding" if self.window else "full"
        return "linear" if self.state_heads else "conv" if self.conv else "none"


@dataclass(frozen=True)
class CacheShape:
    """The layers of a model, first to last, and the longest text it is made for (``positions``; 0: not said)."""

    layers: tuple[LayerShape, ...]
    positions: int = 0

    @classmethod
    def uniform(
        cls,
        layers: int,
        heads: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        v_dim: int | None = None,
        latent: int = 0,
        rotary: int = 64,
        sliding_layers: int = 0,
        window: int = 4096,
        linear_layers: int = 0,
        linear_heads: int | None = None,
        linear_k_dim: int | None = None,
        linear_v_dim: int | None = None,
    ) -> CacheShape:
        """A model given by its numbers.

        Args:
            layers: attention layers; the linear ones are not among them.
            heads: query heads.
            head_dim: size of a key.
            kv_heads: key-value heads (default: ``heads``).
            v_dim: size of a value (default: ``head_dim``).
            latent: 0: keys and values are kept; else the width of the latent that is kept instead.
            rotary: width of the rotated key beside the latent.
            sliding_layers: how many of ``layers`` see only the last ``window`` tokens.
            window: see ``sliding_layers``.
            linear_layers: layers with a state instead of a cache, beside ``layers``.
            linear_heads: heads of those (default: ``heads``).
            linear_k_dim: size of a key there (default: ``head_dim``).
            linear_v_dim: size of a value there (default: ``linear_k_dim``).

        >>> CacheShape.uniform(16, 24, 256, kv_heads=4, linear_layers=48).kinds()
        {'full': 16, 'linear': 48}
        """
        positive("layers", layers, most=MOST_LAYERS)
        positive("heads", heads)
        positive("head_dim", head_dim)
        positive("window", window)
        if positive("sliding_layers", sliding_layers, least=0) > layers:
            raise ArgumentError(f"sliding_layers is {sliding_layers}, of {layers} layers")
        full = LayerShape(
            heads=heads,
            kv_heads=positive("kv_heads", heads if kv_heads is None else kv_heads),
            head_dim=head_dim,
            v_dim=positive("v_dim", head_dim if v_dim is None else v_dim),
            latent=latent,
            rotary=rotary if latent else 0,
        )
        k_dim = positive("linear_k_dim", head_dim if linear_k_dim is None else linear_k_dim)
        linear = LayerShape(
            heads=heads,
            state_heads=positive("linear_heads", heads if linear_heads is None else linear_heads),
            k_dim=k_dim,
            state_v_dim=positive("linear_v_dim", k_dim if linear_v_dim is None else linear_v_dim),
        )
        states = [linear] * positive("linear_layers", linear_layers, least=0, most=MOST_LAYERS)
        sliding = [dataclasses.replace(full, window=window)] * sliding_layers
        return cls((*states, *sliding, *[full] * (layers - sliding_layers)))

    @classmethod
    def from_config(cls, config: Config) -> CacheShape:
        """Read the dict of a ``config.json``.

        Raises:
            ArgumentError: a number that is needed is missing or impossible, or a layer type is not known.

        >>> CacheShape.from_config({"n_layer": 12, "n_head": 12, "n_embd": 768}).layers[0].head_dim
        64
        """
        if not isinstance(config, Mapping):
            raise ArgumentError(f"a config is a dict of names and numbers, got {type(config).__name__}")
        while nested := next((config[key] for key in NESTED if isinstance(config.get(key), Mapping)), None):
            config = nested
        if config.get("is_encoder_decoder"):
            raise ArgumentError(
                "an encoder-decoder keeps a second cache (of the encoder's output); that is not counted here"
            )
        count = positive("layers", _number(config, *LAYERS, what="the number of layers"), most=MOST_LAYERS)
        overrides = config.get("per_layer_config") or {}
        if not isinstance(overrides, Mapping) or not all(isinstance(one, Mapping) for one in overrides.values()):
            raise ArgumentError("per_layer_config in the config must be a dict of dicts, by layer")
        shared = count - (_optional(config, "num_kv_shared_layers") or 0)
        if shared < 0:
            raise ArgumentError(f"num_kv_shared_layers is {count - shared}, of {count} layers")
        layers = []
        for i, kind in enumerate(_kinds(config, count)):
            layer = _layer({**config, **overrides.get(str(i), overrides.get(i, {}))}, kind)
            layers.append(dataclasses.replace(layer, shared=True) if i >= shared and layer.attends else layer)
        return cls(tuple(layers), _optional(config, *POSITIONS) or 0)

    @property
    def attention(self) -> tuple[LayerShape, ...]:
        """The layers that keep (or share) something of each token."""
        return tuple(layer for layer in self.layers if layer.attends)

    def kinds(self) -> dict[str, int]:
        """Kind → how many layers."""
        return dict(sorted(Counter(layer.kind for layer in self.layers).items()))

    def groups(self) -> list[dict[str, Any]]:
        """Equal layers together, in the order of the first: ``count``, ``kind`` and the numbers that are not 0."""
        return [
            {"count": count, "kind": layer.kind} | {k: v for k, v in dataclasses.asdict(layer).items() if v}
            for layer, count in Counter(self.layers).items()
        ]

    def describe(self) -> str:
        """One line per group of equal layers."""
        lines = []
        for group in self.groups():
            n, kind, get = group["count"], group["kind"], group.get
            parts = []
            if get("latent"):
                parts.append(
                    f"a latent of {get('latent')} and a rotated key of {get('rotary', 0)} for {get('heads')} heads"
                )
            elif get("kv_heads"):
                sizes = (
                    f"{get('head_dim')}" if get("head_dim") == get("v_dim") else f"{get('head_dim')} + {get('v_dim')}"
                )
                parts.append(f"{get('heads')} heads, {get('kv_heads')} key-value, of size {sizes}")
            parts += [f"the last {get('window')} tokens"] if get("window") else []
            parts += [f"an index key of {get('index')}"] if get("index") else []
            parts += [f"reads {get('top_k')} tokens"] if get("top_k") else []
            parts += ["shared with an earlier layer"] if get("shared") else []
            parts += (
                [f"a state of {get('state_heads')} × {get('k_dim')} × {get('state_v_dim')}"]
                if get("state_heads")
                else []
            )
            parts += [f"a convolution state of {get('conv')}"] if get("conv") else []
            lines.append(f"{n} {kind} layer{'s' * (n > 1)}: {'; '.join(parts) or 'keeps nothing'}")
        return "\n".join(lines)


def positive(name: str, value: Any, *, least: int = 1, most: int = 2**48) -> int:
    """The value, if it is a whole number from ``least`` to ``most``.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        limit = "2**48" if most == 2**48 else most
        raise ArgumentError(f"{name} must be a whole number from {least} to {limit}, got {value!r}")
    return value


# ---------------------------------------------------------------------------------------------- reading


def _optional(config: Config, *keys: str) -> int | None:
    """The first of these keys that is there and not null."""
    for key in keys:
        if config.get(key) is not None:
            return positive(f"{key} in the config", config[key], least=0)
    return None


def _number(config: Config, *keys: str, what: str) -> int:
    """The same, but it must be there and not 0."""
    for key in keys:
        if config.get(key) is not None:
            return positive(f"{key} in the config", config[key])
    raise ArgumentError(f"the config does not say {what}: looked for {', '.join(keys)}")


def _kinds(config: Config, count: int) -> list[str]:
    """The kind of each layer, from the key that says it, else from a pattern."""
    names = config.get("layer_types") or config.get("layers_block_type")
    if names is not None:
        if not isinstance(names, list | tuple) or len(names) != count:
            raise ArgumentError(f"layer_types in the config must be a list of {count} names, one per layer")
        unknown = sorted({str(name) for name in names} - set(TYPES))
        if unknown:
            raise ArgumentError(
                f"layer type {unknown[0]!r} in the config is not known here; known are {', '.join(TYPES)}"
            )
        return [TYPES[name] for name in names]
    inner = config.get("linear_attn_config")
    if isinstance(inner, Mapping) and isinstance(inner.get("full_attn_layers"), list):  # Kimi Linear counts from 1
        return ["full" if i + 1 in inner["full_attn_layers"] else "linear" for i in range(count)]
    if isinstance(config.get("attn_layer_indices"), list):
        return ["full" if i in config["attn_layer_indices"] else "linear" for i in range(count)]
    family = PATTERNS.get(str(config.get("model_type")), 0)
    if any(key.startswith("linear_num_") for key in config) or "full_attention_interval" in config:
        every = _optional(config, "full_attention_interval") or family or 4
        return ["linear" if (i + 1) % every else "full" for i in range(count)]
    if not _optional(config, "sliding_window") or not config.get(
        "use_sliding_window", "max_window_layers" not in config
    ):
        return ["full"] * count
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or family
    if isinstance(pattern, str):  # L: local, G: global, repeated
        if set(pattern) - set("LG"):
            raise ArgumentError(
                f"sliding_window_pattern in the config must be a number or letters L and G, got {pattern!r}"
            )
        return ["full" if pattern[i % len(pattern)] == "G" else "sliding" for i in range(count)]
    every = positive("sliding_window_pattern in the config", pattern, least=0)
    first = _optional(config, "max_window_layers") or 0  # Qwen2: the layers below it see everything
    return ["sliding" if i >= first and (not every or (i + 1) % every) else "full" for i in range(count)]


def _layer(config: Config, kind: str) -> LayerShape:
    """One layer of a kind, with the numbers of its config."""
    if kind == "none":
        return LayerShape()
    if kind == "conv":
        return LayerShape(
            conv=_number(config, *HIDDEN, what="the hidden size")
            * _number(config, "conv_L_cache", what="the convolution's length")
        )
    if kind == "linear":
        return _linear(config)
    attention = _attention(config)
    if kind == "sliding":
        window = _number(config, "sliding_window", "window_size", what="the window of its sliding layers")
        return dataclasses.replace(attention, window=window)
    if kind == "chunked":
        window = _number(config, "attention_chunk_size", what="the size of its chunks")
        return dataclasses.replace(attention, window=window)
    if kind == "hybrid":
        state = dataclasses.asdict(_linear(config))
        return dataclasses.replace(attention, **{k: state[k] for k in ("state_heads", "k_dim", "state_v_dim", "conv")})
    # a size for full attention alone (Gemma 4), where the config does not spell it out layer by layer
    size = None if config.get("per_layer_config") else _optional(config, "global_head_dim")
    kv_heads = _optional(config, "num_global_key_value_heads") if size and config.get("attention_k_eq_v") else None
    if size is None:
        return attention
    return dataclasses.replace(attention, head_dim=size, v_dim=size, kv_heads=kv_heads or attention.kv_heads)


def _attention(config: Config) -> LayerShape:
    """Keys and values, or the latent, of a layer that attends."""
    heads = _number(config, *HEADS, what="the number of heads")
    latent = _optional(config, "kv_lora_rank")
    nope = _optional(config, "qk_nope_head_dim")
    if latent:
        rotary = _number(
            config, "qk_rope_head_dim", what="the size of the rotated key beside its latent (kv_lora_rank)"
        )
        head_dim = _head_dim(config, heads) if nope is None else nope + rotary
        v_dim = _optional(config, "v_head_dim") or head_dim
        index, top_k = _optional(config, "index_head_dim") or 0, _optional(config, "index_topk") or 0
        return LayerShape(
            heads=heads, kv_heads=heads, head_dim=head_dim, v_dim=v_dim, latent=latent, rotary=rotary,
            index=index, top_k=top_k if index else 0,
        )  # fmt: skip
    size = _head_dim(config, heads)
    return LayerShape(
        heads=heads, kv_heads=_kv_heads(config, heads), head_dim=size, v_dim=_optional(config, "v_head_dim") or size
    )


def _kv_heads(config: Config, heads: int) -> int:
    """Key-value heads; Falcon and GPT-BigCode say ``multi_query`` instead."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    if config.get("multi_query") is False and config.get("new_decoder_architecture") is False:
        return heads
    inner = config.get("attn_config")
    found = [c for c in (config, inner) if isinstance(c, Mapping) and any(c.get(key) is not None for key in KV_HEADS)]
    return _number(found[0], *KV_HEADS, what="the number of key-value heads") if found else heads


def _head_dim(config: Config, heads: int) -> int:
    if config.get("head_dim") is not None:
        return _number(config, "head_dim", what="the size of a head")
    hidden = _number(config, "head_dim", *HIDDEN, what="the size of a head")
    if hidden % heads:
        raise ArgumentError(
            f"the config has no head_dim, and its hidden size {hidden} is no multiple of its {heads} heads"
        )
    return hidden // heads


def _linear(config: Config) -> LayerShape:
    """The state of a linear-attention or Mamba-2 layer, and of the short convolution before it."""
    inner = config.get("linear_attn_config")
    if isinstance(inner, Mapping):  # Kimi Linear, as published
        config = {**config, "linear_num_heads": inner.get("num_heads"), "linear_head_dim": inner.get("head_dim"),
                  "linear_conv_kernel_dim": inner.get("short_conv_kernel_size")}  # fmt: skip
    kernel = _optional(config, "linear_conv_kernel_dim", "mamba_d_conv") or 0
    if config.get("mamba_n_heads") is not None:
        heads = _number(config, "mamba_n_heads", what="the heads of its state")
        k_dim = _number(config, "mamba_d_state", what="the size of its state")
        if config.get("mamba_d_head") in (None, "auto"):
            hidden = _number(config, *HIDDEN, what="the hidden size")
            v_dim = (_optional(config, "mamba_expand") or 2) * hidden // heads
        else:
            v_dim = _number(config, "mamba_d_head", what="the size of its heads")
        channels = heads * v_dim + 2 * (_optional(config, "mamba_n_groups") or 1) * k_dim
    else:
        what = "the state of its linear layers"
        heads = _number(config, "linear_num_value_heads", "linear_num_heads", what=what)
        k_dim = _number(config, "linear_key_head_dim", "linear_head_dim", what=what)
        v_dim = _number(config, "linear_value_head_dim", "linear_head_dim", what=what)
        channels = 2 * (_optional(config, "linear_num_key_heads") or heads) * k_dim + heads * v_dim
    return LayerShape(
        heads=_optional(config, *HEADS) or heads,
        state_heads=heads,
        k_dim=k_dim,
        state_v_dim=v_dim,
        conv=channels * kernel,
    )
