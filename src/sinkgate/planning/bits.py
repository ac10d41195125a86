"""The quantization part of a plan: the four arms, and weights that keep to a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sinkgate.cache.sizes import human
from sinkgate.errors import ArgumentError
from sinkgate.planning.quantization import measure_quantization
from sinkgate.planning.quantization_record import QuantizationArms
from sinkgate.planning.quantization_spec import WeightSpec, spec_from_json
from sinkgate.planning.quantization_weights import fitting, matrices, weight_bytes
from sinkgate.planning.store import Store
from sinkgate.probe.text import Piece
from sinkgate.quantization import Quantization
from sinkgate.record import Diagnosis

__all__ = ["GROUP", "Widths", "arms", "widths"]

GROUP = 32  # inputs of a weight that share a scale, under 8 bits
WINDOW = 256  # recent tokens of the uniform cache
TOKENS = 512  # of a text
WHOLE = 8  # bits, with a scale for each output channel


@dataclass(frozen=True)
class Widths:
    """What the weights of linear layers weigh in so many bits.

    Args:
        as_is: bytes as the model holds them.
        uniform: bits → bytes, of the uniform arm.
    """

    as_is: int
    uniform: dict[int, int]

    def fitting(self, budget: int) -> int | None:
        """The most bits that keep to a budget; None: the weights fit as they are.

        Raises:
            ArgumentError: not even the fewest do; says the least.
        """
        if self.as_is <= budget:
            return None
        found = [bits for bits, size in self.uniform.items() if size <= budget]
        if not found:
            least = min(self.uniform.values())
            raise ArgumentError(
                f"a weight budget of {human(budget)} cannot be met: the linear layers are {human(least)} ({least:,} bytes) in "
                f"{min(self.uniform)} bits, and {human(self.as_is)} as they are"
            )
        return max(found)


def uniform_spec(model: nn.Module, bits: int) -> WeightSpec:
    """Every linear layer in so many bits."""
    return WeightSpec(
        tuple(
            (m.name, Quantization(bits, granularity="channel") if bits == WHOLE else fitting(m.columns, GROUP, bits))
            for m in matrices(model)
        )
    )


def widths(model: nn.Module) -> Widths:
    """Of a model's linear layers, the one to the vocabulary apart."""
    found = matrices(model)
    item = next(model.parameters()).element_size()
    sizes = {bits: weight_bytes(found, uniform_spec(model, bits)) for bits in (8, 7, 6, 5, 4, 3, 2)}
    return Widths(item * sum(m.rows * m.columns for m in found), sizes)


def arms(
    model: nn.Module, tokenizer: Any, pieces: Sequence[Piece], record: Diagnosis, store: Store, *, name: str, positions: str,
    weight_bits: int, say: Callable[[str, int, int], None],
) -> QuantizationArms:  # fmt: skip
    """The four arms for cache, weights and activations, on the beginnings of some texts."""
    texts = [p.ids[:TOKENS] for p in pieces]
    shortest = min(map(len, texts))
    return measure_quantization(
        model, tokenizer, texts, record, window=max(GROUP, min(WINDOW, shortest // 2 // GROUP * GROUP)), first=min(4, shortest // 8),
        weight_bits=min(weight_bits, 7), positions=positions, name=name, cache=store,
        progress=lambda done, of, what: say(f"fewer bits: {what}", done, of),
    )  # fmt: skip


def chosen(model: nn.Module, found: QuantizationArms, bits: int) -> tuple[WeightSpec, str]:
    """The weights in so many bits: the arm that won, else uniform; and why."""
    if bits == WHOLE:
        return uniform_spec(model, bits), "every output channel in 8 bits with a scale of its own"
    won = found.won("weights")
    arm = won or found.arm("weights", "uniform")
    if arm is None:
        return uniform_spec(model, bits), f"uniform in {bits} bits: the arms could not be measured"
    spec = spec_from_json(arm.spec)
    assert isinstance(spec, WeightSpec)
    return spec, f"{arm.name} in {bits} bits: {found.verdict('weights')}"
