"""A tiny GPT-2 with sinks at known tokens, and texts that hold them."""

from __future__ import annotations

from typing import Any

import torch

from models import VOCABULARY, tiny, tokenizer

STRONG, WEAK = "w9", "w7"  # every head but two sinks on the one, two heads on the other


def planted(*, massive: float = 0.0) -> Any:
    """In every layer heads 0 to 3 give nearly all to the token ``STRONG``, heads 4 and 5 to ``WEAK``.

    ``massive`` is what the first layer adds to component 11 of these tokens.
    """
    model = tiny("gpt2")
    words = tokenizer().get_vocab()
    pattern = torch.ones(48)
    pattern[1::2] = -1  # no mean, so the norm in front of a layer keeps it
    other = torch.ones(48)
    other[:24] = -1
    with torch.no_grad():
        model.transformer.wte.weight[words[STRONG]] = pattern
        model.transformer.wte.weight[words[WEAK]] = other
        for layer in model.transformer.h:
            layer.mlp.c_proj.weight.mul_(0.1)  # the tokens keep what marks them
            layer.attn.c_proj.weight.mul_(0.1)
            for head in range(6):
                mark = pattern if head < 4 else other
                layer.attn.c_attn.bias[8 * head : 8 * head + 8] += 2.0  # queries
                layer.attn.c_attn.weight[:, 48 + 8 * head : 56 + 8 * head] += 2.0 * mark[:, None] / 48  # keys
        if massive:
            mlp = model.transformer.h[0].mlp
            norm = model.transformer.h[0].ln_2
            mlp.c_fc.weight[:, 0] = (pattern + other) / norm.weight  # one unit that answers to these tokens alone
            mlp.c_fc.bias[0] = -30.0
            mlp.c_proj.weight[0] = 0.0
            mlp.c_proj.weight[0, 11] = massive / 10
    return model


def texts(count: int = 10, length: int = 100, *, first: str = STRONG) -> list[str]:
    """Each begins with ``first`` and has ``WEAK`` once, at position 5, 6, …; otherwise ordinary words."""
    found = []
    marked = {int(STRONG[1:]), int(WEAK[1:])}
    for i in range(count):
        generator = torch.Generator().manual_seed(100 + i)
        numbers = [
            n for n in torch.randint(0, VOCABULARY - 4, (2 * length,), generator=generator).tolist() if n not in marked
        ]
        words = [f"w{n}" for n in numbers[:length]]
        words[0], words[5 + i] = first, WEAK
        found.append(" ".join(words))
    return found
