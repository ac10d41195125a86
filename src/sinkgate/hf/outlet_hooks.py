"""The hooks of an outlet: objects, so that a copied model has hooks of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import UnsupportedError
from sinkgate.hf import compat
from sinkgate.hf.layers import evaluating
from sinkgate.hf.place import aside
from sinkgate.hf.projections import Columns
from sinkgate.hf.register import is_ours, register
from sinkgate.outlet import ExtraKey, GateOutlet

__all__ = ["Before", "Guard", "Hook", "MakeToken", "Positions", "Projected", "Written"]


class Hook:
    """A hook of an outlet: an object, so that a copied model has one of its own."""

    def __init__(self, outlet: Any = None) -> None:
        self.outlet = outlet

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        register()  # an unpickled model names us in its config


class Before(Hook):
    """Notes the layer's hidden state (and the rotation of its queries) for the outlet."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the attention module."""
        _ours(module)
        self.outlet.seen.x = args[0] if args else kwargs["hidden_states"]
        if isinstance(self.outlet, ExtraKey):
            self.outlet.seen.rotation = kwargs.get("position_embeddings")


class Guard(Hook):
    """Notices that a model was set to an attention implementation that knows nothing of its outlet."""

    def __call__(self, module: nn.Module, _args: Any, _kwargs: dict[str, Any]) -> None:
        """Before the attention module."""
        _ours(module)


def _ours(module: nn.Module) -> None:
    config = getattr(module, "config", None)
    if config is not None and not is_ours(name := compat.implementation(config)):
        raise UnsupportedError(
            f"this model has an outlet, and attn_implementation={name!r} would leave it out without a word; "
            "sg.remove_outlet(model) before you set another"
        )


class Projected(Hook):
    """Gates queries, keys or values where the projection leaves them."""

    def __init__(self, outlet: GateOutlet, columns: Columns) -> None:
        super().__init__(outlet)
        self.index, self.contiguous = columns.index, columns.contiguous

    def __call__(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        """Behind the projection."""
        if not self.outlet.active:
            return output
        heads, width = self.index.shape
        if self.contiguous:
            return self.outlet.apply_to(output.unflatten(-1, (heads, width)), heads).flatten(-2)
        index = self.index.to(output.device).flatten()
        gated = self.outlet.apply_to(output[..., index].unflatten(-1, (heads, width)), heads)
        return output.index_copy(-1, index, gated.flatten(-2))


class Written(Hook):
    """Gates what the layer writes."""

    def __call__(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        """Behind the output projection."""
        return self.outlet.apply_to(output.unsqueeze(-2), 1).squeeze(-2) if self.outlet.active else output


class MakeToken(Hook):
    """Runs the sink token alone before every pass, so that each layer has its key and value.

    Args:
        model: the whole model; the hook also stands at the one inside it, which may be called alone.
        position: of the token.
    """

    def __init__(self, model: nn.Module, position: int) -> None:
        super().__init__()
        self.model, self.busy, self.made, self.position = [model], False, False, position

    def __call__(self, model: nn.Module, _args: Any, _kwargs: dict[str, Any]) -> None:
        """Before the model."""
        whole = self.model[0]
        if self.busy:
            return
        if model is not whole and self.made:  # the whole model has just made them
            self.made = False
            return
        self.made = model is whole and len(compat.told(whole)) > 1
        layers = [m for m in whole.modules() if isinstance(m, ExtraKey) and m.active]
        if not layers:
            return
        if torch.is_grad_enabled() and compat.reentrant_checkpointing(whole):
            raise UnsupportedError(
                "a sink token's key and value are shared by all layers, and reentrant checkpointing frees them behind the "
                "first; turn checkpointing on with {'use_reentrant': False}"
            )
        token: Tensor = whole.sinkgate_token  # type: ignore[assignment]
        self.busy = True
        try:
            for layer in layers:
                layer.recording = True
            with aside(whole), evaluating(whole):
                compat.forward_embedding(whole, token[None, None], self.position)
        finally:
            self.busy = False
            for layer in layers:
                layer.recording = False


class Positions(Hook):
    """Counts positions from each row's first token where padding stands in front and nobody said where they are.

    Rotations know differences only, so the text does not notice; an outlet's key, which stands before the text, would.
    """

    def __call__(self, _model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the model."""
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if kwargs.get("position_ids") is not None or not isinstance(mask, Tensor) or mask.ndim != 2:
            return None
        if bool(mask[:, 0].all()):
            return None
        given = (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        length = next(x.shape[1] for x in given if isinstance(x, Tensor))
        positions = (mask.long().cumsum(-1) - 1).clamp_min(0)[:, -length:]
        return args, {**kwargs, "position_ids": positions}
