"""Which columns of which module become the queries, keys and values of a layer: asked of the gradients, not of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import UnsupportedError
from sinkgate.hf.anatomy import reading
from sinkgate.hf.call import arguments

__all__ = ["Columns", "find_columns"]


@dataclass(frozen=True, eq=False)
class Columns:
    """The output of ``module`` holds, in these columns, one head's ``q``, ``k`` or ``v`` in each row."""

    module: nn.Module
    index: Tensor  # [heads, width]
    contiguous: bool  # all columns of the module, in order
    normed: bool  # what leaves the layer does not change when all of a head's columns are doubled


class _Listener:
    """Keeps the tensors of the attention call."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.tensors = arguments(args, kwargs)[:3]
        return function(module, *args, **kwargs)


@torch.enable_grad()
def find_columns(model: nn.Module, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], which: int,
                 layer: str) -> Columns:  # fmt: skip
    """Where queries (0), keys (1) or values (2) come from.

    Args:
        model: the model.
        attention: the attention module.
        args: what it was called with.
        kwargs: the same.
        which: 0, 1 or 2.
        layer: its name, for errors.

    Raises:
        UnsupportedError: no single linear-like module makes them; lists what was seen.
    """
    outputs: list[tuple[nn.Module, Tensor]] = []
    doubled: list[tuple[nn.Module, Tensor]] = []  # a module whose output is multiplied, and by what
    hidden = args[0] if args else kwargs["hidden_states"]

    def leaf(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        """Cut the graph behind every module that takes the hidden state, and ask for gradients from there on."""
        if not (inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)):
            return None
        if inputs[0].data_ptr() != hidden.data_ptr() or inputs[0].shape != hidden.shape or list(module.children()):
            return None
        cut = output.detach().requires_grad_()
        for target, factor in doubled:
            if module is target:
                cut = (output * factor).detach().requires_grad_()
        outputs.append((module, cut))
        return cut

    listener = _Listener()

    def run() -> Tensor:
        outputs.clear()
        hooks = [m.register_forward_hook(leaf) for m in attention.modules() if m is not attention]
        try:
            with reading(model, listener):
                attention(*args, **kwargs)
        finally:
            for hook in hooks:
                hook.remove()
        return listener.tensors[which]

    x = run()
    generator = torch.Generator().manual_seed(0)
    seen: dict[int, tuple[nn.Module, list[Tensor]]] = {}
    touched: dict[int, nn.Module] = {}  # what they depend on, though it be by nothing now (a fresh LoRA)
    for head in range(x.shape[1]):
        target = (x[:, head] * torch.randn(x[:, head].shape, generator=generator).to(x)).sum()
        found = torch.autograd.grad(target, [y for _, y in outputs], retain_graph=True, allow_unused=True)
        for (module, y), gradient in zip(outputs, found, strict=True):
            if gradient is None:
                continue
            touched.setdefault(id(module), module)
            columns = (gradient.reshape(-1, y.shape[-1]) != 0).any(0).nonzero().flatten()
            if len(columns):
                seen.setdefault(id(module), (module, []))[1].append(columns)
    name = ("queries", "keys", "values")[which]
    candidates = list(seen.values())
    widths = {len(c) for _, heads in candidates for c in heads}
    if len(touched) != 1 or len(candidates) != 1 or len(candidates[0][1]) != x.shape[1] or widths != {x.shape[-1]}:
        parts = [f"{type(m).__name__} ({len(c)} heads)" for m, c in candidates]
        parts += [f"{type(m).__name__} (by nothing yet)" for i, m in touched.items() if i not in seen]
        listed = ", ".join(parts) or "none that takes the hidden state"
        raise UnsupportedError(
            f"the {name} of {layer} are not made by one module with {x.shape[-1]} columns for each of {x.shape[1]} heads; "
            f"seen: {listed}"
        )
    module, rows = candidates[0]
    index = torch.stack(rows)
    width = next(y.shape[-1] for m, y in outputs if m is module)
    factor = torch.ones(width)
    factor[index.flatten().cpu()] = 2.0
    before = x.detach()
    doubled.append((module, factor.to(before)))
    after = run().detach()
    normed = bool((after - before).norm() < 1e-3 * before.norm())
    contiguous = index.numel() == width and bool((index.flatten().cpu() == torch.arange(width)).all())
    return Columns(module, index, contiguous, normed)
