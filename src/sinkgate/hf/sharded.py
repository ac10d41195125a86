"""Models whose parameters are spread over processes: what FSDP2 (``fully_shard``) does is known, the rest is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sinkgate.errors import UnsupportedError

__all__ = ["check_whole", "gathered", "resharded"]


def check_whole(model: nn.Module) -> None:
    """Refuse a model whose parts cannot be called one by one, or hold only some of the heads.

    Raises:
        UnsupportedError: FSDP version 1 or DeepSpeed's ZeRO-3; tensor parallelism without FSDP2.
    """
    if any(hasattr(p, "ds_id") for p in model.parameters()):
        raise UnsupportedError(
            "a model under DeepSpeed's ZeRO-3 cannot be read; train with FSDP2 (fully_shard) or ZeRO-2"
        )
    if not _distributed():
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(m, FullyShardedDataParallel) for m in model.modules()):
        raise UnsupportedError(
            "a model under FSDP version 1 cannot be read; use fully_shard (with a Trainer fsdp_config={'version': 2})"
        )
    if not _units(model):
        _check_heads(model)


@contextmanager
def gathered(model: nn.Module, module: nn.Module) -> Iterator[None]:
    """Inside, the parameters of one module are whole, so that its parts can be called outside the model's own pass.

    Every process has to come here: it is a collective.

    Raises:
        UnsupportedError: they are still split, by tensor parallelism: a process then sees only some heads.
    """
    units = _units(module)
    if module not in units:  # it may belong to the nearest unit around it
        around = [u for u in _units(model) if any(m is module for m in u.modules())]
        units += sorted(around, key=lambda u: sum(1 for _ in u.modules()))[:1]
    try:
        for unit in units:
            unit.unshard()
        if units:
            _check_heads(module)
        yield
    finally:
        for unit in units:
            unit.reshard()


@contextmanager
def resharded(model: nn.Module) -> Iterator[None]:
    """Left, every unit of FSDP2 is sharded, as it is between two steps: a pass alone leaves the root whole."""
    try:
        yield
    finally:
        for unit in _units(model):
            unit.reshard()


# ---- private ---------------------------------------------------------------------------------------------------


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _units(model: nn.Module) -> list[Any]:
    """The modules that ``fully_shard`` was called on."""
    if not _distributed():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [m for m in model.modules() if isinstance(m, FSDPModule)]


def _check_heads(module: nn.Module) -> None:
    from torch.distributed.tensor import DTensor

    if any(isinstance(p, DTensor) for p in module.parameters()):
        raise UnsupportedError(
            "the parameters are split by tensor parallelism, where a process sees only some of the heads; read the model "
            "in processes that hold whole layers (FSDP2 and DDP do)"
        )
