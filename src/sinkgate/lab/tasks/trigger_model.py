"""The model of the trigger task: causal attention and nothing else, with whatever an arm puts into it.

Heads are as wide as the token; there are no positions, no MLP, no norm, no bias and no ``1/√d``; layers have a residual
where there are several of them (Ran-Milo 2026, arXiv 2603.11487, and the author's code).
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sinkgate.errors import ArgumentError
from sinkgate.lab.arms import Arm
from sinkgate.nn.gate import OutputGate
from sinkgate.weighting import Weighting
from sinkgate.weighting.base import field_names
from sinkgate.weighting.elementwise import Relu

__all__ = ["INIT", "Noted", "TriggerModel", "generator"]

INIT = 0.02  # standard deviation of every matrix at the start


def generator(seed: int, name: str) -> torch.Generator:
    """Random numbers of one thing of one seed: whatever else there is, this thing gets the same ones."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@dataclass(frozen=True)
class Noted:
    """What one layer did with one batch.

    Args:
        weights: of every head; the keys begin with the learned sink tokens, if there are any.
        gate: values of the layer's gate, token by token; None without one.
        out: what the layer writes.
        written: what each token's value would write at weight 1, by head: ``v_j W_O`` (a gate on the output left out).
    """

    weights: Float[Tensor, "b h s s"]
    gate: Tensor | None
    out: Float[Tensor, "b s d"]
    written: Float[Tensor, "b h s d"]


class TriggerLayer(nn.Module):
    """Attention of full-width heads: ``s_ij = (x_i W_Q)·(x_j W_K)``, output ``Σ_h (a_h x W_V^h) W_O^h``.

    Args:
        arm: its weighting, gate and norms.
        heads: each of width ``dim``.
        dim: of a token.
        over: ReLU's divisor by row, ``[s, 1]``; None: the weighting's own.
    """

    over: Tensor | None

    def __init__(self, arm: Arm, heads: int, dim: int, over: Tensor | None) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Parameter(torch.zeros(dim, heads * dim)) for _ in range(3))
        self.o = nn.Parameter(torch.zeros(heads * dim, dim))
        self.q_norm = nn.RMSNorm(dim) if arm.qk_norm else None
        self.k_norm = nn.RMSNorm(dim) if arm.qk_norm else None
        self.head_gain = nn.Parameter(torch.ones(heads, 1, dim)) if arm.head_norm else None
        self.gate = None if arm.gate is None else OutputGate(dim, heads, heads, dim, arm.gate)
        self._weighting = arm.weighting
        self.register_buffer("over", None, persistent=False)
        if isinstance(arm.weighting, Relu) and arm.weighting.normalize and arm.weighting.n is None and over is not None:
            self._weighting = dataclasses.replace(arm.weighting, normalize=False)
            self.over = over
        self.learned = nn.ParameterDict()
        if arm.weighting.name == "sink_softmax" and "z" in field_names(arm.weighting):
            start = torch.as_tensor(arm.weighting.z, dtype=torch.float32)  # type: ignore[attr-defined]
            self.learned["z"] = nn.Parameter(start.expand(heads).clone())

    @property
    def weighting(self) -> Weighting:
        """The weighting with its learned fields."""
        return self._weighting.with_tensors(**self.learned) if len(self.learned) else self._weighting

    def _split(self, x: Tensor) -> Tensor:
        """``[b, s, h·d]`` → ``[b, h, s, d]``."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self, x: Float[Tensor, "b s d"], visible: Bool[Tensor, "s s"], noted: list[Noted] | None = None
    ) -> Float[Tensor, "b s d"]:
        """What the layer writes; what it did is added to ``noted``."""
        q, k, v = (self._split(x @ w) for w in (self.q, self.k, self.v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        gate = self.gate
        at = None if gate is None else gate.gate.position
        if gate is not None:
            if at == "G2":
                v = gate(v, x)
            elif at == "G3":
                k = gate(k, x)
            elif at == "G4":
                q = gate(q, x)
        weights = self.weighting.weights(q @ k.transpose(-1, -2), visible)
        if self.over is not None:
            weights = weights / self.over
        y = weights @ v
        if self.head_gain is not None:  # before the gate: behind it, it would undo it
            y = nn.functional.rms_norm(y, y.shape[-1:]) * self.head_gain
        if gate is not None and at == "G1":
            y = gate(y, x)
        out = y.transpose(1, 2).flatten(2) @ self.o
        if gate is not None and at == "G5":
            out = gate(out, x)
        if noted is not None:
            value = None if gate is None else gate.value(x)
            noted.append(Noted(weights, value, out, v @ self.o.view(self.heads, -1, self.o.shape[1])))
        return out


class TriggerModel(nn.Module):
    """All layers, begun from (seed, name of the parameter): every matrix N(0, .02²), the rest where it starts by itself.

    Args:
        arm: what is compared.
        layers: with a residual around each where there is more than one.
        heads: per layer, each of width ``dim``.
        length: of a sequence, its BOS included.
        dim: of a token.
        bos: whether queries behind the BOS see it. It sees itself in any case, so that no row is empty.
        relu_over: see :class:`~sinkgate.lab.tasks.trigger.Trigger`.
        seed: of the start.

    Raises:
        ArgumentError: the arm asks for what this model has no place for.
    """

    visible: Tensor

    def __init__(
        self, arm: Arm, *, layers: int, heads: int, length: int, dim: int, bos: bool, relu_over: str, seed: int
    ) -> None:
        super().__init__()
        if arm.wider is not None:
            raise ArgumentError(f"the trigger task's model has no MLP to be made wider: leave wider(…) out of {arm}")
        self.sinks, self.residual = arm.sink_tokens, layers > 1
        self.register_buffer("visible", visibility(arm, length, bos), persistent=False)
        over = None
        if relu_over == "tokens":  # without a window: max(i, 1) for the row at position i
            over = self.visible[:, self.sinks + 1 :].sum(-1, keepdim=True).clamp_min(1).float()
        with torch.random.fork_rng(devices=[]):  # modules start themselves before they are started anew below
            self.layers = nn.ModuleList(TriggerLayer(arm, heads, dim, over) for _ in range(layers))
        self.sink_tokens = nn.Parameter(torch.zeros(self.sinks, dim)) if self.sinks else None
        drawn = {"q", "k", "v", "o", "sink_tokens"}
        if arm.gate is not None and arm.gate.preserve is None:  # else the gate is 1, at W = 0
            drawn.add("weight")
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.rpartition(".")[2] in drawn and p.ndim > 1:
                    p.copy_(torch.randn(p.shape, generator=generator(seed, name)) * INIT)

    def forward(self, x: Float[Tensor, "b t d"], noted: list[Noted] | None = None) -> Float[Tensor, "b t d"]:
        """Sequences → what stands at their positions at the end; each layer adds to ``noted`` what it did."""
        if self.sink_tokens is not None:
            x = torch.cat([self.sink_tokens.expand(x.shape[0], -1, -1), x], dim=1)
        for layer in self.layers:
            out = layer(x, self.visible, noted)
            x = x + out if self.residual else out
        return x[:, self.sinks :]


def visibility(arm: Arm, length: int, bos: bool) -> Bool[Tensor, "s s"]:
    """Which keys each row sees: causal, the arm's window, and without BOS a hidden column but for its own row."""
    s = arm.sink_tokens + length
    i, j = torch.arange(s)[:, None], torch.arange(s)[None]
    seen = j <= i
    if arm.window is not None:
        seen &= (i - j < arm.window) | (j < arm.keep)
    if not bos:
        seen &= (j != arm.sink_tokens) | (i == j)
    return seen
