"""Keys and values of a token that stands alone before the text: in a causal model they depend on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from sinkgate.hf import compat
from sinkgate.hf.anatomy import reading
from sinkgate.hf.layers import attention_layers, evaluating

__all__ = ["alone", "before_text", "learned_positions"]


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
    """Whether positions are rows of a table (GPT-2) instead of rotations."""
    limit = getattr(compat.config(model).get_text_config(), "max_position_embeddings", None)
    tokens = model.get_input_embeddings()  # type: ignore[operator]
    return any(isinstance(m, nn.Embedding) and m is not tokens and m.num_embeddings == limit for m in model.modules())


def before_text(model: nn.Module) -> int:
    """The position of a token in front of the text: −1 where positions are rotations, 0 where they are learned."""
    return 0 if learned_positions(model) else -1


def half_split(q: Tensor, rotation: tuple[Tensor, Tensor]) -> bool:
    """Whether ``q [1, h, t, d]`` of one repeated token, turned back from its rotation, is the same at all positions."""
    from sinkgate.outlet.extra_key import unrotated

    back = unrotated(q.float(), rotation)
    return bool((back - back[:, :, :1]).norm() <= 1e-3 * back.norm())
