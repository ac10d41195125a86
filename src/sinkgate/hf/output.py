"""From head outputs to the residual stream: the map, a gate before it, a norm behind it, found by trying.

Shape alone cannot tell (q_proj may be square too), names are not trusted: the map is the first module inside
the attention module that is called after the attention function returned, and everything claimed of it is
checked on numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.hf.place import at
from sinkgate.outlet import GateOutlet
from sinkgate.site import OutputMap

__all__ = ["OutputFinder"]


class OutputFinder:
    """Looks for one layer's output map in a watched forward pass; listens to the re-runs it makes itself."""

    def __init__(self, model: nn.Module, watch: Any) -> None:
        self.model = model
        self.watch = watch
        self._replacement: Tensor | None = None

    def attend(self, function: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Give the attention module the head outputs we choose instead of its own."""
        if self._replacement is None:
            return function(module, *args, **kwargs)
        return self._replacement, None

    def describe(self, layer: Any, call: Any) -> None:
        """Fill in ``output_map``, ``output_module``, ``norm_module`` and ``norm_gain``, or ``no_map_reason``."""
        try:
            self._describe(layer, call)
        except _NoMap as reason:
            layer.output_map, layer.no_map_reason = None, str(reason)

    def _describe(self, layer: Any, call: Any) -> None:
        attention = layer.attention
        outlet = at(attention)[1]
        if isinstance(outlet, GateOutlet) and outlet.spec.position == "G5":
            raise _NoMap(f"the outlet of {layer.name} gates what all its heads write together")
        width = call.out.shape[-2] * call.out.shape[-1]
        inside = {id(m) for m in attention.modules() if m is not attention}
        later = [m for m in self.watch.modules if m[0] > call.time]
        candidates = [m for m in later if id(m[1]) in inside and m[2].shape[-1] == width]
        if not candidates:
            raise _NoMap(f"no module of {layer.name} takes its {width} head outputs")
        failed: list[str] = []
        within: set[int] = set()  # parts of a candidate that failed are no candidates
        for candidate in candidates:
            _, module, _, written = candidate
            if id(module) in within:
                continue
            within |= {id(m) for m in module.modules()}
            weight = _affine_weight(module, width, call.out)
            if weight is None:
                failed.append(f"{type(module).__name__} takes the head outputs of {layer.name}, but is not linear")
                continue
            try:
                gated = self._is_gated(attention, module, call.out)
            except _NoMap as reason:  # of the right width by chance, a gate's own projection for one
                failed.append(str(reason))
                continue
            break
        else:
            raise _NoMap(failed[0])
        taken = candidate[2]
        inner = {id(m) for m in module.modules()}
        others = [
            m[1] for m in candidates
            if m[1] is not module and id(m[1]) not in inner and not any(part is module for part in m[1].modules())
            and m[2].data_ptr() == taken.data_ptr() and m[2].shape == taken.shape
            and not isinstance(m[1], nn.Dropout | nn.Identity)
        ]  # fmt: skip
        if others:
            raise _NoMap(
                f"{1 + len(others)} modules of {layer.name} take its head outputs: "
                + ", ".join(type(m).__name__ for m in (module, *others))
            )
        norm, gain = self._norm_behind(later, module, written, inside)
        if norm is not None and gain is None:
            composed = _affine_weight(nn.Sequential(module, norm), width, call.out)
            if composed is None:
                raise _NoMap(
                    f"what {layer.name} writes goes through {type(norm).__name__}, which is neither a norm with a plain gain nor linear"
                )
            weight, norm = composed, None
        if gain is not None:
            weight = weight * gain
        plain = OutputMap.from_weight(weight, call.out.shape[-2])
        layer.output_map = OutputMap(plain.gram, gated=gated, frozen_norm=norm is not None)
        layer.output_module, layer.norm_module, layer.norm_gain = module, norm, gain

    def _is_gated(self, attention: nn.Module, module: nn.Module, out: Tensor) -> bool:
        """Run the attention module on head outputs of our choice and see what reaches the map."""
        generator = torch.Generator().manual_seed(0)
        other = torch.randn(out.shape, generator=generator).to(out)
        first, second, zero = (self._reaching(attention, module, o) for o in (out, other, torch.zeros_like(out)))
        if torch.equal(first, out.reshape(first.shape)) and torch.equal(second, other.reshape(second.shape)):
            return False
        if torch.equal(first, second):
            raise _NoMap(f"{type(module).__name__} is not fed by the head outputs of {type(attention).__name__}")
        gate = first.float() / torch.where(out == 0, 1, out).reshape(first.shape).float()
        expected = gate * other.reshape(first.shape).float()
        known = (out != 0).reshape(first.shape)
        error = ((second.float() - expected) * known).norm() / second.float().norm().clamp_min(1e-30)
        if bool(zero.any()) or not error < (1e-3 if out.dtype == torch.float32 else 3e-2):
            raise _NoMap(
                f"{type(attention).__name__} changes its head outputs before the output map by something that is not a gate"
            )
        return True

    def _reaching(self, attention: nn.Module, module: nn.Module, out: Tensor) -> Tensor:
        args, kwargs = self.watch.inputs[id(attention)]
        seen: list[Tensor] = []
        hook = module.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].detach().clone()))
        self._replacement = out
        try:
            attention(*args, **kwargs)
        finally:
            self._replacement = None
            hook.remove()
        if not seen or seen[0].numel() != out.numel():
            raise _NoMap(
                f"{type(attention).__name__} does not hand its head outputs to {type(module).__name__} unchanged in size"
            )
        return seen[0]

    def _norm_behind(
        self,
        later: list[tuple[int, nn.Module, Tensor, Tensor]],
        module: nn.Module,
        written: Tensor,
        inside: set[int],
    ) -> tuple[nn.Module | None, Tensor | None]:
        """The module that takes exactly what the map wrote, and its gain if it is a root-mean-square norm."""
        start = next(m[0] for m in later if m[1] is module)
        for time, consumer, taken, _ in later:
            same = taken.data_ptr() == written.data_ptr() and taken.shape == written.shape
            if time <= start or not same or id(consumer) in inside or isinstance(consumer, nn.Dropout | nn.Identity):
                continue
            return consumer, _rms_gain(consumer, written)
        return None, None


class _NoMap(Exception):
    """Why what a head writes cannot be told; the text goes on the page."""


def _affine_weight(module: nn.Module, width: int, like: Tensor) -> Tensor | None:
    """``[width, D]`` with ``module(x) = x @ weight + bias``, by probing with unit vectors; None if not affine."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 1, 1, width, generator=generator).to(like).unbind(0)
    zero = module(torch.zeros_like(x)).float()
    left = module(x + 2 * y).float() - zero
    right = (module(x).float() - zero) + 2 * (module(y).float() - zero)
    if not (left - right).norm() <= (1e-3 if like.dtype in (torch.float32, torch.float64) else 3e-2) * right.norm():
        return None
    hooked = bool(module._forward_hooks or module._forward_pre_hooks)
    if type(module) is nn.Linear and module.weight.device.type != "meta" and not hooked:
        return module.weight.detach().float().T
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    return torch.cat([module(rows.unsqueeze(0)).float().squeeze(0) - zero[0] for rows in eye.split(1024)])


def _rms_gain(module: nn.Module, like: Tensor) -> Tensor | None:
    """γ with ``module(x) = γ ⊙ x / rms(x)``; None if the module is anything else."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, like.shape[-1], generator=generator).to(like) * 8
    rms = x.float().square().mean(-1, keepdim=True).sqrt()
    gains = module(x).float() * rms / x.float()
    gain = gains.median(dim=1).values.flatten()
    tolerance = 1e-3 if like.dtype in (torch.float32, torch.float64) else 3e-2
    close = (module(x).float() - gain * x.float() / rms).norm() <= tolerance * module(x).float().norm()
    return gain if bool(close) else None
