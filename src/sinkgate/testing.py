"""The conformance suite for one weighting: what every weighting here has to pass, for a weighting of one's own.

>>> import sinkgate as sg
>>> sg.testing.check_weighting(sg.Softmax1())
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sinkgate.ops.attention import attention
from sinkgate.weighting import Weighting, as_weighting, from_json

__all__ = ["CHECKS", "check_weighting"]


def scores(seed: int = 0, b: int = 2, h: int = 3, t: int = 5, s: int = 7, spread: float = 2.0) -> Tensor:
    """Random float64 scores."""
    return torch.randn(b, h, t, s, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread


def some_visible(x: Tensor, seed: int = 1) -> Tensor:
    """A random mask in which row 0 of each head sees nothing and row 1 exactly one key."""
    seen = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.7
    seen[..., 0, :] = False
    seen[..., 1, :] = False
    seen[..., 1, 2] = True
    return seen


def fits(weighting: Weighting, heads: int) -> int:
    """The number of heads that a weighting with tensors per head is for."""
    sizes = [x.shape[0] for x in weighting.tensors().values() if x.ndim == 1]
    return sizes[0] if sizes else heads


def check_shape_and_dtype(w: Weighting) -> None:
    """Weights have the scores' shape and dtype, are finite and not negative."""
    for dtype in (torch.float64, torch.float32):
        x = scores(h=fits(w, 3)).to(dtype)
        found = w.weights(x, None)
        assert found.shape == x.shape, f"weights have shape {list(found.shape)} for scores {list(x.shape)}"
        assert found.dtype == dtype, f"weights are {found.dtype} for {dtype} scores"
        assert bool(torch.isfinite(found).all()), "weights of finite scores are not finite"
        assert bool((found >= 0).all()), f"a weight is negative: {float(found.min())}"


def check_mass(w: Weighting) -> None:
    """Σ of a row's weights is what ``mass`` declares, from flat rows to scores of ±1e4."""
    for spread in (0.0, 1.0, 30.0, 1e4):
        x = scores(h=fits(w, 3), spread=spread)
        for seen in (None, some_visible(x)):
            total = w.weights(x, seen).sum(-1)
            if seen is not None:
                assert bool((total[..., 0] == 0).all()), "a row that sees nothing has weights"
                total = total[..., 1:]
            if w.mass == "one":
                assert bool((total - 1).abs().max() < 1e-9), (
                    f"declared mass one, got {float(total.min())} to {float(total.max())}"
                )
            elif w.mass == "at most one":
                assert bool((total <= 1 + 1e-9).all()), f"declared mass at most one, got {float(total.max())}"


def check_shift(w: Weighting) -> None:
    """Adding a constant to a row changes nothing if, and only if, that is declared."""
    x = scores(h=fits(w, 3))
    before, after = w.weights(x, None), w.weights(x + 0.75, None)
    same = bool((before - after).abs().max() < 1e-12)
    assert same == w.shift_invariant, (
        f"shift_invariant is declared {w.shift_invariant}, but weights {'stay' if same else 'change'}"
    )


def check_zeros(w: Weighting) -> None:
    """Visible keys can have weight exactly 0 if, and only if, that is declared."""
    found = w.weights(scores(h=fits(w, 3), s=40, spread=4.0), None)
    some = bool((found == 0).any())
    assert some == w.exact_zeros, (
        f"exact_zeros is declared {w.exact_zeros}, but {'there are' if some else 'there are no'} zeros"
    )


def check_order(w: Weighting) -> None:
    """Keys in another order get the same weights in that order."""
    x = scores(h=fits(w, 3))
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(3))
    seen = some_visible(x)
    a, z = w.weights(x[..., order], seen[..., order]), w.weights(x, seen)[..., order]
    assert bool((a - z).abs().max() < 1e-12), "the order of the keys changes their weights"


def check_hidden(w: Weighting) -> None:
    """What stands at a hidden key, NaN included, changes no bit; its weight and gradient are 0."""
    x = scores(h=fits(w, 3))
    seen = some_visible(x)
    plain = w.weights(x, seen)
    assert bool((plain[~seen] == 0).all()), "a hidden key has a weight"
    for other in (1e4, -1e4, math.nan, math.inf, -math.inf):
        filled = x.masked_fill(~seen, other).requires_grad_()
        found = w.weights(filled, seen)
        assert torch.equal(found, plain), f"a score of {other} at a hidden key changes the weights"
        (g,) = torch.autograd.grad((found * x).sum(), filled)
        assert bool((g[~seen] == 0).all()), f"a hidden key with score {other} gets a gradient"
        assert bool(torch.isfinite(g).all()), f"a score of {other} at a hidden key makes a gradient that is not finite"


def check_gradient(w: Weighting) -> None:
    """The gradient is the derivative, in the scores and in every tensor; finite where a row is extreme or empty."""
    x = scores(h=fits(w, 2), b=1, t=3, s=4).requires_grad_()
    seen = some_visible(x)
    tensors = {n: v.detach().double().requires_grad_() for n, v in w.tensors().items() if v.is_floating_point()}

    def of(y: Tensor, *values: Tensor) -> Tensor:
        replaced = w.with_tensors(**dict(zip(tensors, values, strict=True))) if tensors else w
        return replaced.weights(y, seen)

    torch.autograd.gradcheck(of, (x, *tensors.values()), eps=1e-6, atol=1e-6)
    for row in ([-100.0] * 4, [-100.0, -101.0, -100.5, -130.0], [1e4, -1e4, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]):
        y = torch.tensor(row, dtype=torch.float64).expand(1, fits(w, 1), 1, 4).clone().requires_grad_()
        (g,) = torch.autograd.grad((w.weights(y, None) * torch.arange(4.0)).sum(), y)
        assert bool(torch.isfinite(g).all()), f"the gradient at scores {row} is not finite"


def check_attention(w: Weighting) -> None:
    """Block by block equals the reference, values and gradients; decoding token by token equals prefill; a query does
    not depend on what comes after it.
    """
    generator = torch.Generator().manual_seed(5)
    h = fits(w, 2)
    q, k, v = (torch.randn(1, h, 9, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    found: list[Tensor] = []
    expected: list[Tensor] = []
    for impl, into in (("reference", expected), ("blocked", found)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        y = attention(*leaves, weighting=w, impl=impl)
        into += [y, *torch.autograd.grad((y * v).sum(), leaves)]
    for a, z in zip(found, expected, strict=True):
        assert bool((a - z).abs().max() < 1e-9), "blocked and reference attention differ"
    whole = expected[0].detach()
    per_row = any(x.ndim > 1 for x in w.tensors().values())
    if not per_row:
        steps = [attention(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], weighting=w) for i in range(9)]
        assert bool((torch.cat(steps, 2) - whole).abs().max() < 1e-9), "decoding differs from prefill"
    later = k.clone()
    later[:, :, 6:] = 7.0
    after = attention(q, later, v, weighting=w, impl="reference")
    assert torch.equal(after[:, :, :6], whole[:, :, :6]), "a query depends on keys behind it"


def check_json(w: Weighting) -> None:
    """``from_json(w.to_json())`` is the same value (weightings that have ``to_json``)."""
    config: Any = getattr(w, "to_json", None)
    if config is None:
        return
    w = w.with_tensors(**{n: v.detach() for n, v in w.tensors().items()})
    back = from_json(w.to_json())  # type: ignore[attr-defined]
    x = scores(h=fits(w, 3))
    assert bool((back.weights(x, None) - w.weights(x, None)).abs().max() < 1e-6), (
        "the JSON round trip changes the weights"
    )


CHECKS: dict[str, Callable[[Weighting], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


def check_weighting(weighting: str | Weighting) -> None:
    """Run every check on one weighting; it has to be for any number of heads, or its tensors per head say for how many.

    Raises:
        AssertionError: the first thing that is not as it has to be, in a sentence.
        ArgumentError: the object lacks a part of the protocol.
    """
    found = as_weighting(weighting)
    for name, check in CHECKS.items():
        try:
            check(found)
        except AssertionError as error:
            raise AssertionError(f"{found.name}, {name}: {error}") from None
