"""How a model rotates its queries and keys: found by asking its layers, so that any position can be computed exactly."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.hf import compat
from sinkgate.hf.anatomy import forward, reading
from sinkgate.hf.layers import attention_layers, evaluating
from sinkgate.rope import Rotation

__all__ = ["find_rotations"]

POSITIONS = (0, 1, 2, 5, 17, 40)  # where cosines are compared
SHORT = (0, 1, 2, 3, 4, 5)  # where frequencies change with the length
KEYWORD = "position_embeddings"


class _Look:
    """Keeps the first queries and keys of every attention module."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        q, k = (*args[:2], *(kwargs[n] for n in ("query", "key")[len(args[:2]) :]))
        self.seen.setdefault(id(module), (q, k))
        return function(module, *args, **kwargs)


_found: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], dict[int, Rotation | str | None]]] = (
    weakref.WeakKeyDictionary()
)


def find_rotations(model: nn.Module) -> dict[int, Rotation | str | None]:
    """Layer → its rotation; None where it is handed no cosines (learned positions, or none); a reason where it is unknown.

    Each layer's cosines and sines are compared with the model's own frequencies, and its queries and keys with and without
    them with both layouts that models use. Layers with the same rotation share the object. Remembered, and looked for again
    if a module is replaced or the model moved.
    """
    weight = next(model.parameters())
    key = (weight.dtype, weight.device, *(id(module) for module in model.modules()))
    if model not in _found or _found[model][0] != key:
        _found[model] = (key, _find(model))
    return dict(_found[model][1])


@torch.no_grad()
def _find(model: nn.Module) -> dict[int, Rotation | str | None]:
    layers = attention_layers(model)
    inputs: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    hooks = []
    for layer in layers:

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            inputs.setdefault(id(module), (args, kwargs))

        hooks.append(layer.module.register_forward_pre_hook(note, with_kwargs=True))
    where = compat.input_device(model)
    vocabulary = compat.config(model).get_text_config().vocab_size
    ids = (torch.arange(len(POSITIONS), device=where) % vocabulary)[None]
    changing = any(word in kind for kind in compat.rotary_kinds(model) for word in ("dynamic", "longrope"))
    positions = torch.tensor([SHORT if changing else POSITIONS], device=where)
    turned, plain = _Look(), _Look()
    with evaluating(model), reading(model, turned):
        try:
            model(ids, position_ids=positions, use_cache=False)
        except (IndexError, TypeError, ValueError):  # a short table of positions, or none
            forward(model, ids)
        finally:
            for hook in hooks:
                hook.remove()
    with evaluating(model), reading(model, plain):
        for layer in layers:
            args, kwargs = inputs.get(id(layer.module), ((), {}))
            given: Any = kwargs.get(KEYWORD)
            if _is_pair(given):
                still = (torch.ones_like(given[0]), torch.zeros_like(given[1]))
                layer.module(*args, **{**kwargs, KEYWORD: still})
    frequencies = [f.to(where) for f in compat.rotary_frequencies(model)]
    scales = compat.rotary_scales(model)
    known: list[Rotation] = []
    found: dict[int, Rotation | str | None] = {}
    for layer in layers:
        given = inputs.get(id(layer.module), ((), {}))[1].get(KEYWORD)
        if given is None:
            found[layer.layer] = None
        elif not _is_pair(given):
            found[layer.layer] = f"{layer.name} is given its positions in a form that is not known"
        else:
            index = id(layer.module)
            tables = _tables(layer.name, given, frequencies, scales, positions)
            rotation = (
                tables
                if isinstance(tables, str)
                else _layout(layer.name, turned.seen[index], plain.seen[index], tables, positions)
            )
            if isinstance(rotation, Rotation):
                same = [r for r in known if _equal(r, rotation)]
                rotation = same[0] if same else rotation
                known += [] if same else [rotation]
            found[layer.layer] = rotation
    return found


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(x, Tensor) for x in given)


def _tables(name: str, given: tuple[Tensor, Tensor], frequencies: list[Tensor], scales: list[float], positions: Tensor
            ) -> Rotation | str:  # fmt: skip
    """Which of the model's frequencies these cosines and sines are of, and how they are laid out."""
    cos, sin = (x.double() for x in given)
    scale = float((cos.square() + sin.square()).sqrt().mean())
    near = min(scales, key=lambda x: abs(x - scale))  # what was seen is rounded to the model's dtype
    scale = near if abs(near - scale) < 0.01 * near else scale
    loose = (0.02 if given[0].dtype in (torch.bfloat16, torch.float16) else 1e-4) * max(1.0, scale)
    for omega in frequencies:
        for layout in ("halves", "pairs", "once"):
            guess = Rotation(omega.double().clone(), scale=scale, layout=layout)
            mine = guess.cos_sin(positions, torch.float64)
            if mine[0].shape[-1] == cos.shape[-1] and all(
                float((a - b).abs().max()) <= loose for a, b in zip(mine, (cos, sin), strict=True)
            ):
                return guess
    return f"the angles of {name} are none of the model's own frequencies"


def _layout(name: str, turned: tuple[Tensor, Tensor], plain: tuple[Tensor, Tensor], guess: Rotation, positions: Tensor
            ) -> Rotation | str:  # fmt: skip
    """Which components make a pair: queries and keys with the rotation and without."""
    if turned[0].shape[-1] < guess.dim:
        return f"{name} turns more than its heads have"
    if all(torch.equal(a, b) for a, b in zip(turned, plain, strict=True)):
        return Rotation(torch.zeros_like(guess.omega), guess.interleaved, 1.0, guess.layout)  # it turns nothing
    loose = 0.05 if turned[0].dtype in (torch.bfloat16, torch.float16) else 1e-3
    for interleaved in (False, True):
        rotation = Rotation(guess.omega, interleaved, guess.scale, guess.layout)
        wide = [x.float() if x.dtype != torch.float64 else x for x in plain]
        parts = [torch.cat([x[..., : rotation.dim] * guess.scale, x[..., rotation.dim :]], -1) for x in wide]
        mine = [rotation.turn(x, positions[:, None].to(x.device)) for x in parts]
        if all(float((a - b).norm()) <= loose * float(b.norm()) for a, b in zip(mine, turned, strict=True)):
            return rotation
    return f"the rotation of {name} is neither that of Llama nor that of GPT-J"


def _equal(a: Rotation, b: Rotation) -> bool:
    return (
        (a.interleaved, a.scale, a.layout) == (b.interleaved, b.scale, b.layout)
        and a.omega.shape == b.omega.shape
        and a.omega.device == b.omega.device
        and bool((a.omega == b.omega).all())
    )
