"""A model's key-value cache under every scheme: heads that share, latents, windows, sinks, fewer bits, fewer reads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sinkgate.cache.shape import CacheShape, LayerShape, positive
from sinkgate.cache.sizes import (
    BITS,
    kv_bytes_per_token,
    latent_bytes_per_token,
    quantised_bytes,
    quantised_bytes_per_token,
    state_bytes,
)
from sinkgate.errors import ArgumentError

__all__ = ["Options", "Scheme", "Schemes", "schemes"]


@dataclass(frozen=True)
class Options:
    """What is asked of ``schemes``.

    Args:
        context: tokens in the cache.
        batch: sequences of that length.
        bits: sizes of a stored number, of ``BITS``; the first of 16 and 32 among them (16 if neither is) is that of
            every row that does not say another, the others are a row each.
        sinks: first tokens that the streaming rows keep.
        recent: last tokens that they keep.
        window: of the window row (default: the model's own, else 4096).
        latent: of the MLA row (default: the model's own, else 512, DeepSeek's).
        rotary: of the MLA row (default: the model's own, else 64).
        share: layers that keep one cache together in the sharing row.
        retrieval: share of the key-value heads that keep every token in the row of streaming heads.
        top_k: tokens that a query reads in the sparse row.
        group: see ``quantised_bytes``.
        residual: see ``quantised_bytes``.
        state_bits: of one number of a linear layer's state.
    """

    context: int
    batch: int = 1
    bits: Sequence[int] = (16, 8, 4, 2)
    sinks: int = 4
    recent: int = 128
    window: int | None = None
    latent: int | None = None
    rotary: int | None = None
    share: int = 2
    retrieval: float = 0.5
    top_k: int = 2048
    group: int = 32
    residual: int = 128
    state_bits: int = 32

    def __post_init__(self) -> None:
        for name in ("context", "batch", "recent", "share", "top_k", "group"):
            positive(name, getattr(self, name))
        for name in ("sinks", "residual"):
            positive(name, getattr(self, name), least=0)
        for name in ("window", "latent", "rotary"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        if not 0 <= self.retrieval <= 1:
            raise ArgumentError(f"retrieval is a share of the heads, from 0 to 1, got {self.retrieval!r}")
        unknown = [bits for bits in self.bits if bits not in BITS]
        if unknown or not self.bits:
            raise ArgumentError(
                f"bits must be of {', '.join(map(str, BITS))}, got {unknown[0] if unknown else 'none'!r}"
            )
        if self.state_bits not in (16, 32):
            raise ArgumentError(f"state_bits must be 16 or 32, got {self.state_bits!r}")

    @property
    def plain_bits(self) -> int:
        """Bits of a number where a row does not say another."""
        return next((bits for bits in self.bits if bits >= 16), 16)


@dataclass(frozen=True)
class Scheme:
    """One row.

    Args:
        name: of the scheme.
        token_bytes: what one more token of one sequence adds, once every window is full.
        cache_bytes: what grows with the text, for all sequences.
        state_bytes: what does not: states of linear layers and convolutions, for all sequences.
        read_bytes: what one decoding step of all sequences reads of both.
        note: what the row changes, and what it assumes.
    """

    name: str
    token_bytes: float
    cache_bytes: int
    state_bytes: int
    read_bytes: int
    note: str

    @property
    def total_bytes(self) -> int:
        """Cache and state."""
        return self.cache_bytes + self.state_bytes


@dataclass(frozen=True)
class Schemes:
    """The rows, the model as it is first; and the schemes that it has no row for, with the reason."""

    rows: tuple[Scheme, ...]
    left_out: dict[str, str]

    def __getitem__(self, name: str) -> Scheme:
        return next(row for row in self.rows if row.name == name)


def schemes(shape: CacheShape, options: Options) -> Schemes:
    """A model's cache under every scheme: each row changes one thing of the model and leaves the rest as it is.

    >>> found = schemes(CacheShape.uniform(16, 24, 256, kv_heads=4), Options(context=262144))
    >>> [(name, human(found[name].total_bytes)) for name in ("this model", "MHA", "MQA", "sinks+recent")]
    [('this model', '16 GiB'), ('MHA', '96 GiB'), ('MQA', '4 GiB'), ('sinks+recent', '8.25 MiB')]
    """
    o, attention = options, shape.attention
    rows = [_row("this model", shape.layers, o, "as it is")]
    left_out = {}

    def add(name: str, change: Callable[[LayerShape], LayerShape], note: str) -> None:
        layers = [change(layer) if layer.attends else layer for layer in shape.layers]
        rows.append(_row(name, layers, o, note))

    if not attention:
        return Schemes(tuple(rows), {"the other schemes": "no layer of this model keeps tokens"})
    if any(layer.window for layer in attention):
        add("no window", lambda x: dataclasses.replace(x, window=0), "every layer keeps every token")
    add("MHA", lambda x: _heads(x, x.heads), "every head has its own key and value")
    groups = {_groups(layer) for layer in attention}
    if 0 in groups:
        left_out["GQA"] = "its heads fall into no groups of equal size"
    else:
        name = f"GQA-{groups.pop()}" if len(groups) == 1 else "GQA"
        add(name, lambda x: _heads(x, _groups(x)), "key-value heads that groups of heads share (arXiv 2305.13245)")
    add("MQA", lambda x: _heads(x, 1), "one key-value head for all heads (arXiv 1911.02150)")
    add(
        "MLA",
        lambda x: _latent(x, o),
        f"a latent and a rotated key for all heads: {_widths(attention, o)} (arXiv 2405.04434)",
    )
    window = o.window or max((layer.window for layer in attention), default=0) or 4096
    add(f"window {window}", lambda x: _window(x, window), "every layer keeps the last tokens alone")
    kept = o.sinks + o.recent
    add(
        "sinks+recent",
        lambda x: _window(x, kept),
        f"the first {o.sinks} and the last {o.recent} tokens (arXiv 2309.17453)",
    )
    if any(layer.latent for layer in attention):
        left_out["streaming heads"] = "a latent is one for all heads"
    elif all(layer.window or layer.shared for layer in attention):
        left_out["streaming heads"] = "every layer has a window"
    else:
        rows.append(_streaming_heads(shape, o))
    add(f"top-{o.top_k} reads", lambda x: dataclasses.replace(x, top_k=min(o.top_k, x.top_k or o.top_k)),
        "saves reads, not bytes: every token is kept; what choosing reads comes on top, but for an index key")  # fmt: skip
    rows.append(_row(f"{o.share} layers share", _sharing(shape.layers, o.share), o,
        "saves bytes, not reads: each layer still reads it all (arXiv 2405.12981)"))  # fmt: skip
    state = next((layer for layer in shape.layers if layer.state_heads), None)
    add(
        "linear", lambda x: _linear(x, state), "every layer has a state instead, whatever the length (arXiv 2006.16236)"
    )
    for bits in dict.fromkeys(o.bits):
        if bits != o.plain_bits:
            rows.append(_bits(shape, o, bits))
    return Schemes(tuple(rows), left_out)


# ---- what a row is made of


def _kept(layer: LayerShape, context: int) -> int:
    return min(context, layer.window) if layer.window else context


def _token(layer: LayerShape, item: int) -> int:
    """Bytes of one token that a layer keeps, its index key left out."""
    if layer.latent:
        return latent_bytes_per_token(1, layer.latent, layer.rotary, item=item)
    return kv_bytes_per_token(1, layer.kv_heads, layer.head_dim, item=item, v_dim=layer.v_dim)


def _row(name: str, layers: Sequence[LayerShape], o: Options, note: str, bits: int | None = None) -> Scheme:
    """The sum over layers; ``bits`` under 16: quantised."""
    bits = bits or o.plain_bits
    item = max(bits, o.plain_bits if bits < 16 else bits) // 8
    growth, cache, state, read = 0.0, 0, 0, 0
    for layer, n in Counter(layers).items():
        if layer.attends:
            tokens, index = _kept(layer, o.context), layer.index * item
            if bits < 16:
                one, held = _quantised(layer, tokens, bits, item, o)
            else:
                one, held = float(_token(layer, item)), tokens * _token(layer, item)
            seen = held if not layer.top_k else -(-held * min(tokens, layer.top_k) // tokens)
            read += n * (seen + tokens * index)
            if not layer.shared:
                cache += n * (held + tokens * index)
                growth += 0.0 if layer.window else n * (one + index)
        fixed = state_bytes(1, layer.state_heads, layer.k_dim, layer.state_v_dim, item=o.state_bits // 8)
        state += n * (fixed + layer.conv * (o.plain_bits // 8))
    return Scheme(name, growth, o.batch * cache, o.batch * state, o.batch * (read + state), note)


def _quantised(layer: LayerShape, tokens: int, bits: int, item: int, o: Options) -> tuple[float, int]:
    """Bytes that one more token adds, and bytes of all, of a quantised layer without its index keys."""
    if layer.latent:  # per token, as values are; the rotated key stays as it is
        per = quantised_bytes_per_token(1, 0, bits, v_dim=layer.latent, group=o.group)
        held = quantised_bytes(tokens, 1, 0, bits, v_dim=layer.latent, group=o.group, residual=o.residual, item=item)
        return per + layer.rotary * item, held + tokens * layer.rotary * item
    sizes = (layer.kv_heads, layer.head_dim, bits)
    per = quantised_bytes_per_token(*sizes, v_dim=layer.v_dim, group=o.group)
    return per, quantised_bytes(tokens, *sizes, v_dim=layer.v_dim, group=o.group, residual=o.residual, item=item)


def _bits(shape: CacheShape, o: Options, bits: int) -> Scheme:
    if bits >= 16:
        return _row(f"{bits} bits", shape.layers, o, "a stored number", bits)
    note = f"keys per channel ({o.group} tokens a group), values per token ({o.group} channels a group)"
    if any(layer.latent for layer in shape.attention):
        note = f"the latent per token ({o.group} channels a group); the rotated key as it is"
    note += f"; scale and zero point of 16 bits a group; the last {o.residual} tokens in {o.plain_bits} bits (arXiv 2402.02750)"
    return _row(f"{bits} bits", shape.layers, o, note, bits)


# ---- what a row changes


def _heads(layer: LayerShape, kv_heads: int) -> LayerShape:
    return dataclasses.replace(layer, kv_heads=kv_heads, latent=0, rotary=0, index=0, top_k=0)


def _groups(layer: LayerShape) -> int:
    """The layer's own number of key-value heads if they are groups, else the most up to 8 that fit; 0: none do."""
    if not layer.latent and 1 < layer.kv_heads < layer.heads:
        return layer.kv_heads
    return next((n for n in range(min(8, layer.heads - 1), 1, -1) if layer.heads % n == 0), 0)


def _latent(layer: LayerShape, o: Options) -> LayerShape:
    latent, rotary = o.latent or layer.latent or 512, o.rotary or layer.rotary or 64
    return dataclasses.replace(layer, latent=latent, rotary=rotary)


def _widths(layers: Sequence[LayerShape], o: Options) -> str:
    made = dict.fromkeys((x.latent, x.rotary) for x in (_latent(layer, o) for layer in layers))
    return ", ".join(f"{latent} + {rotary}" for latent, rotary in made)


def _window(layer: LayerShape, window: int) -> LayerShape:
    return dataclasses.replace(layer, window=min(layer.window or window, window))


def _linear(layer: LayerShape, like: LayerShape | None) -> LayerShape:
    if layer.state_heads:  # it has one beside its attention
        return LayerShape(heads=layer.heads, state_heads=layer.state_heads, k_dim=layer.k_dim,
                          state_v_dim=layer.state_v_dim, conv=layer.conv)  # fmt: skip
    if like is not None:
        return _linear(like, None)
    return LayerShape(heads=layer.heads, state_heads=layer.heads, k_dim=layer.head_dim, state_v_dim=layer.v_dim)


def _sharing(layers: Sequence[LayerShape], share: int) -> list[LayerShape]:
    """Of each ``share`` equal layers that keep something, the first keeps it for all."""
    seen: Counter[LayerShape] = Counter()
    made = []
    for layer in layers:
        again = layer.attends and not layer.shared and seen[layer] % share > 0
        seen[layer] += 1
        made.append(dataclasses.replace(layer, shared=True) if again else layer)
    return made


def _streaming_heads(shape: CacheShape, o: Options) -> Scheme:
    """Some heads keep everything, the others sinks and recent tokens, in the layers without a window of their own."""
    whole = sum(layer.kv_heads for layer in shape.attention if not layer.window and not layer.shared)
    keep = round(o.retrieval * whole)
    streaming = [_window(x, o.sinks + o.recent) if x.attends and not x.window else x for x in shape.layers]
    every, some = _row("", shape.layers, o, ""), _row("", streaming, o, "")
    mixed = [
        -(-(keep * getattr(every, name) + (whole - keep) * getattr(some, name)) // whole)
        for name in ("cache_bytes", "read_bytes")
    ]
    note = (
        f"{keep} of {whole} key-value heads without a window keep everything, the others the first {o.sinks} and the "
        f"last {o.recent} tokens (DuoAttention, arXiv 2410.10819)"
    )
    growth = every.token_bytes * keep / whole
    return Scheme("streaming heads", growth, mixed[0], every.state_bytes, mixed[1], note)


# ------------------------------------------------------------------------------------------------ numbers
