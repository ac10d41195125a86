"""Keys and values of a token that stands alone before the text: in a causal model they depend on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.layers import attention_layers, evaluating

__all__ = ["alone", "before_text", "check_rotation", "learned_positions"]


def alone(model: nn.Module, embeddings: Tensor, position: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Per layer keys ``[n, kv, d]`` and values ``[n, kv, dv]`` of n tokens, each alone at a position.

    Args:
        model: a transformers model.
        embeddings: ``[n, D]``, as the model's embedding table has them.
        position: of each; may be negative where positions are rotations.
    """
    modules = {id(a.module): a.layer for a in attention_layers(model)}
    found: dict[int, tuple[Tensor, Tensor]] = {}

    class Keep:
        def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(module) in modules:
                k, v = (*args[1:3], *(kwargs[n] for n in ("key", "value")[max(len(args) - 1, 0) :]))
                found[modules[id(module)]] = (k[:, :, 0], v[:, :, 0])
            return function(module, *args, **kwargs)

    with evaluating(model), reading(model, Keep()):
        compat.forward_embedding(model, embeddings[:, None], position)
    return found


def learned_positions(model: nn.Module) -> bool:
    """Whether positions are rows of a table (GPT-2, OPT, GPT-J) instead of rotations that the model hands its layers."""
    return not all(a.rotary for a in attention_layers(model))


def before_text(model: nn.Module) -> int:
    """The position of a token in front of the text: −1 where positions are rotations, 0 where they are learned."""
    return 0 if learned_positions(model) else -1


def half_split(q: Tensor, rotation: tuple[Tensor, Tensor]) -> bool:
    """Whether ``q [1, h, t, d]`` of one repeated token, turned back from its rotation, is the same at all positions."""
    from sinkgate.outlet.extra_key import unrotated

    back = unrotated(q.float(), rotation)
    return bool((back - back[:, :, :1]).norm() <= 1e-3 * back.norm())


def check_rotation(model: nn.Module) -> None:
    """A fixed distance needs queries turned back from their positions, in the layout that we know.

    Raises:
        UnsupportedError: learned positions, or another layout.
    """
    if learned_positions(model):
        raise UnsupportedError(
            "this model's positions are learned, not rotations: an outlet's key has no distance; distance=None"
        )
    first = attention_layers(model)[0]
    seen: list[tuple[Tensor, tuple[Tensor, Tensor] | None]] = []
    rotations: list[Any] = []
    hook = first.module.register_forward_pre_hook(
        lambda _m, _a, kwargs: rotations.append(kwargs.get("position_embeddings")), with_kwargs=True
    )

    class Look:
        def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if module is first.module:
                seen.append((args[0] if args else kwargs["query"], rotations[-1]))
            return function(module, *args, **kwargs)

    try:
        with torch.no_grad(), evaluating(model), reading(model, Look()):
            forward(model, torch.full((1, 12), 2, device=compat.input_device(model)))
    finally:
        hook.remove()
    q, rotation = seen[0]
    if rotation is None or first.layer != 0 or not half_split(q, rotation):
        raise UnsupportedError(
            f"the rotation of {first.name} is not the half-split one of Llama that a fixed distance needs; use distance=None, "
            "which places the key before the text"
        )
