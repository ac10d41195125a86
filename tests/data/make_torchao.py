"""Writes torchao.json, what torchao makes of some numbers: ``python tests/data/make_torchao.py``.

torchao is not installed beside the tests (docs/dependencies.md says why). Put it into a folder of its own:
``pip install --no-deps --target FOLDER torchao==0.18.0``, and run this with ``PYTHONPATH=FOLDER``.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torchao.quantization import quant_primitives as ao

BITS = (2, 3, 4, 8)
SHAPES = {"weights": (6, 16), "activations": (2, 3, 16), "kv": (1, 2, 5, 16)}
# how many numbers along each axis share a scale: the granularity in torchao's own words
BLOCKS = {
    "weights": {"channel": (1, 16), "tensor": (6, 16), "group": (1, 8)},
    "activations": {"token": (1, 1, 16), "tensor": (2, 3, 16), "group": (1, 1, 8)},
    "kv": {
        "token": (1, 1, 1, 16), "group": (1, 1, 1, 8), "channel": (1, 1, 5, 1), "head": (1, 1, 5, 16),
        "tensor": (1, 2, 5, 16),
    },
}  # fmt: skip


def case(x: torch.Tensor, block: tuple[int, ...], bits: int, symmetric: bool) -> dict[str, Any]:
    kind = ao.MappingType.SYMMETRIC if symmetric else ao.MappingType.ASYMMETRIC
    dtype = torch.int8 if symmetric else torch.uint8
    high = 2 ** (bits - 1) - 1 if symmetric else 2**bits - 1
    low = -high if symmetric else 0
    scale, zero = ao.choose_qparams_affine(x, kind, block, dtype, low, high)
    codes = ao.quantize_affine(x, block, scale, zero, dtype, low, high)
    numbers = ao.dequantize_affine(codes, block, scale, zero, dtype, low, high)
    return {
        "bits": bits, "symmetric": symmetric, "block": block, "codes": codes.flatten().tolist(),
        "scale": scale.flatten().tolist(), "zero": zero.flatten().tolist(), "sum": float(numbers.double().sum()),
    }  # fmt: skip


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = {place: torch.randn(shape, generator=generator) * 3 + 0.7 for place, shape in SHAPES.items()}
    inputs["weights"][1] = inputs["weights"][1].abs() + 0.5  # a row without negative numbers
    inputs["weights"][2] = 0.0
    cases = [
        {"place": place, "granularity": granularity, **case(inputs[place], block, bits, symmetric)}
        for place, known in BLOCKS.items()
        for granularity, block in known.items()
        for bits in BITS
        for symmetric in (True, False)
    ]
    data = {"torchao": version("torchao"), "inputs": {k: x.tolist() for k, x in inputs.items()}, "cases": cases}
    Path(__file__).with_name("torchao.json").write_text(
        json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
