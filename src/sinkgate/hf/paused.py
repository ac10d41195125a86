"""A model in the middle of its training, put aside for a reading and given back as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import nn

from sinkgate.hf import compat
from sinkgate.hf.layers import evaluating
from sinkgate.hf.sharded import resharded

__all__ = ["inner", "paused"]


def inner(model: nn.Module) -> nn.Module:
    """The model inside ``torch.compile``'s and DDP's wrappers: a reading needs neither."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(found := model.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            model = found
        else:
            return model


@contextmanager
def paused(model: nn.Module, autocast: torch.dtype | None = None) -> Iterator[None]:
    """Inside, ``model`` is in eval mode, without gradients and not compiled; outside, nothing has happened.

    Kept: the mode of every module, gradients, the random state of Python, NumPy and torch (the CPU and the model's cards),
    what ``torch.compile`` has compiled, which parameters are sharded.

    Args:
        model: any.
        autocast: run under autocast to this dtype; None: as it is around here (and in the model's own forward).
    """
    device = compat.input_device(model)
    cards = sorted({p.get_device() for p in model.parameters() if p.is_cuda})
    python, numpy = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.callback(torch.clear_autocast_cache)  # where torch keeps weights it cast without gradients
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        stack.enter_context(torch.random.fork_rng(devices=cards))
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if autocast is not None:
            stack.enter_context(torch.autocast(device.type, autocast))
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        stack.enter_context(resharded(model))
        yield
