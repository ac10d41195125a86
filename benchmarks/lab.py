"""The lab's training against a plain loop with ``sdpa`` of the same shape; what arms and data cost on top.

The peer is written as small training scripts are: one matrix for q, k and v, ``scaled_dot_product_attention``, RoPE from
a buffer, SwiGLU, ``torch.optim.AdamW`` as it comes, batches stacked from random places of a memory-mapped file.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.common import paired, write
from sinkgate.lab.arms import as_arm
from sinkgate.lab.decoder import DecoderConfig
from sinkgate.lab.loop import train
from sinkgate.lab.tasks import as_task

SHAPE: dict[str, Any] = {"preset": "small", "tokenizer": "bpe:8192", "batch": 8}  # 6 layers of 256, T = 256
ARMS = ("softmax", "softmax+g1_head", "softmax+g1", "sink_softmax", "softpick")
STEPS, ROUNDS = 4, 7


class PlainBlock(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, dim = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(dim, -1))

        def turned(y: Tensor) -> Tensor:
            left, right = y.chunk(2, -1)
            return y * cos + torch.cat([-right, left], -1) * sin

        y = F.scaled_dot_product_attention(turned(q).to(v.dtype), turned(k).to(v.dtype), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Plain(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList(
            PlainBlock(config.dim, config.heads, config.hidden or 0) for _ in range(config.layers)
        )
        self.norm, self.head = nn.RMSNorm(config.dim), nn.Linear(config.dim, config.vocab, bias=False)
        self.head.weight = self.embedding.weight
        width = config.dim // config.heads
        angle = torch.arange(config.context)[:, None] * config.theta ** (-torch.arange(0, width, 2) / width)
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def plain_loop(config: DecoderConfig, file: Path, batch: int, half: bool) -> Callable[[], None]:
    """``STEPS`` steps of the peer."""
    data = np.memmap(file, dtype=np.uint16, mode="r")
    model = Plain(config)
    matrices, rest = [p for p in model.parameters() if p.ndim > 1], [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    t = config.context

    def run() -> None:
        for _ in range(STEPS):
            starts = torch.randint(len(data) - t, (batch,))
            x = torch.stack([torch.from_numpy(data[i : i + t].astype(np.int64)) for i in starts])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + t].astype(np.int64)) for i in starts])
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            loss.item()

    return run


def throughput(dtype: str, folder: Path) -> dict[str, Any]:
    spec = as_task("text", dtype=dtype, **SHAPE)
    corpus = spec.corpus()  # type: ignore[attr-defined]
    file = folder / "train.bin"
    corpus.ids["train"].astype(np.uint16).tofile(file)
    config = spec.sizes(corpus.vocab)  # type: ignore[attr-defined]
    runs = {"plain loop, sdpa": plain_loop(config, file, spec.rows, dtype == "bfloat16")}  # type: ignore[attr-defined]
    loop = dataclasses.replace(spec.loop(STEPS, 1e-3, 0), evaluate_every=0, save_every=0)
    experiments = {arm: spec.make(as_arm(arm), 0) for arm in ARMS}
    for arm, experiment in experiments.items():
        runs[arm] = lambda experiment=experiment: train(experiment, loop)  # type: ignore[misc]
    times = paired(runs, rounds=ROUNDS, base="plain loop, sdpa")
    own = {name: round(1 / entry["ratio"], 3) for name, entry in times.items()}
    tokens = STEPS * spec.rows * config.context  # type: ignore[attr-defined]
    against = {  # within a round, against the lab's own softmax
        arm: round(
            statistics.median(s / a for s, a in zip(times["softmax"]["ratios"], times[arm]["ratios"], strict=True)), 3
        )
        for arm in ARMS
    }
    experiment = experiments["softmax"]
    marks = []
    for step in range(50):
        start = time.perf_counter()
        experiment.batch(step)
        marks.append(time.perf_counter() - start)
    extra = sum(p.numel() for p in experiments["softmax+g1"].model.parameters()) - config.parameters()
    return {
        "tokens_per_second": {name: round(tokens / entry["seconds"]) for name, entry in times.items()},
        "throughput_over_plain": own,
        "throughput_over_softmax": against,
        "elementwise_flop_share": round(extra / _flops(config), 4),
        "data_share": round(statistics.median(marks) * STEPS / times["softmax"]["seconds"], 5),
        "ratios": {name: entry["ratios"] for name, entry in times.items()},
    }


def _flops(config: DecoderConfig) -> float:
    """Multiply-adds per token of the forward pass: every matrix once, and the causal products of attention."""
    return config.parameters() - config.dim * (2 * config.layers + 1) + config.layers * config.context * config.dim


def tiny() -> dict[str, Any]:
    """Minutes that the preset ``tiny`` takes for its usual number of steps."""
    spec = as_task("text", preset="tiny")
    experiment = spec.make(as_arm("softmax"), 0)
    start = time.perf_counter()
    history = train(experiment, spec.loop(None, None, 0))
    return {"minutes": round((time.perf_counter() - start) / 60, 2), "steps": len(history.steps),
            "first_loss": round(history.steps[0]["loss"], 3), "loss": round(history.steps[-1]["loss"], 3)}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result: dict[str, Any] = {"shape": SHAPE, "rounds": ROUNDS}
        result |= {dtype: throughput(dtype, folder) for dtype in ("bfloat16", "float32")}
        result["tiny"] = tiny()
    write("lab", result)


if __name__ == "__main__":
    main()
