"""Whether a model computes the same through a stream that forgets nothing: asked of the model, once."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import NonFiniteError, SinkgateError, UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.layers import evaluating

__all__ = ["prove"]

TOKENS, PARTS = 14, (6, 1, 7)  # a first pass, a single step, a later pass of several tokens
LOOSE = {torch.float16: 0.05, torch.bfloat16: 0.1}  # of the logits' norm; 1e-3 in wider ones

_proven: weakref.WeakKeyDictionary[nn.Module, tuple[Any, ...]] = weakref.WeakKeyDictionary()


@torch.inference_mode(False)
@torch.no_grad()
def prove(model: nn.Module, stream: Any) -> None:
    """Compare a few tokens, whole and in parts, with what the model makes of them itself.

    Args:
        model: to be streamed.
        stream: ``stream(model)``, a context that gives a cache which keeps everything at original positions.

    Raises:
        UnsupportedError: they differ, by name: a model that is not causal, whose masks are its own, whose state does not take
            a second pass, or whose output is no logit per token.
    """
    weight = next(model.parameters())
    key = (weight.dtype, weight.device, *(id(module) for module in model.modules()))
    if _proven.get(model) == key:
        return
    name = type(model).__name__
    vocabulary = compat.config(model).get_text_config().vocab_size
    ids = (torch.arange(TOKENS, device=compat.input_device(model)) * 7 % max(vocabulary - 2, 1))[None] + 1
    with evaluating(model):
        try:
            want = _logits(model(ids, use_cache=False), name)
            if not bool(torch.isfinite(want).all()):
                raise NonFiniteError(
                    f"the logits of {name} hold NaN or infinity by themselves: fetch the model again, or try float32 or bfloat16"
                )
            with stream(model) as cache:
                whole = _logits(model(ids, cache=cache), name)
            with stream(model) as cache:
                parts, i = [], 0
                for n in PARTS:
                    parts.append(_logits(model(ids[:, i : i + n], cache=cache), name))
                    i += n
        except SinkgateError:
            raise
        except Exception as err:
            raise UnsupportedError(f"{name} cannot be streamed: {type(err).__name__}: {err}") from err
    loose = LOOSE.get(weight.dtype, 1e-3)
    for got, what in (
        (whole, "a pass (it is not causal, or builds masks of its own)"),
        (
            torch.cat(parts, 1),
            "passes one behind the other (a layer's state does not take a later pass of several tokens)",
        ),
    ):
        off = float((got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-30))
        if not off <= loose:
            raise UnsupportedError(
                f"{name} does not compute the same through a stream that forgets nothing: {what} differs by {off:.1%} of its logits"
            )
    _proven[model] = key


def _logits(out: Any, name: str) -> Tensor:
    found = out[0] if isinstance(out, tuple) else getattr(out, "logits", None)
    if found is None or found.ndim != 3:
        raise UnsupportedError(f"{name} gives no logits per token: stream a model with its language head")
    return found
