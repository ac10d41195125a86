"""What a setting costs on a text, beside the model as it is: losses, divergence, the time of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.cache.quantized_bank import stepwise
from sinkgate.errors import NonFiniteError, SinkgateError
from sinkgate.evaluate.score import score
from sinkgate.evaluate.stream import losses
from sinkgate.hf import compat
from sinkgate.hf.anatomy import fingerprint
from sinkgate.hf.layers import evaluating
from sinkgate.hf.streaming import resumed, streaming
from sinkgate.planning.passes import CHUNK, spans
from sinkgate.planning.setting import LEAVE, Setting
from sinkgate.planning.store import Store
from sinkgate.probe.text import Piece

__all__ = ["Beside", "Loss", "Measurer", "out_of_memory", "step_times"]

PARTS = 4  # of a text, to see whether the loss grows along it
STEPS = 24  # timed


@dataclass(frozen=True)
class Loss:
    """One pass over one text.

    Args:
        mean: nats per prediction.
        parts: the same in each quarter of the text.
        seconds: in the model.
    """

    mean: float
    parts: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class Beside:
    """A setting and the untouched model, chunk by chunk over one text.

    Args:
        kl: KL(untouched ‖ setting), nats per prediction.
        agreement: share of predictions with the same first token.
        milliseconds: of decoding steps with the setting's cache, as full as the text makes it.
        dense_milliseconds: of steps with the whole text kept, timed in turn with these.
        bytes: of the setting's cache.
        dense_bytes: of the other, with the room it grows into.
    """

    kl: float
    agreement: float
    milliseconds: tuple[float, ...]
    dense_milliseconds: tuple[float, ...]
    bytes: int
    dense_bytes: int


class Measurer:
    """Passes of one model, each done once.

    Args:
        model: in any mode; read in eval mode.
        store: what is known; None: the file of this model in the cache folder.
        around: makes what is entered around every pass but those of the untouched model: fewer bits in the weights.
        tag: says which, in the keys of what is known.
    """

    def __init__(
        self, model: nn.Module, store: Store | None = None, around: Callable[[], AbstractContextManager[Any]] | None = None,
        tag: str = "",
    ) -> None:  # fmt: skip
        self.model, self.tag = model, f"{tag}|" if tag else ""
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext if around is None else around
        self.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        self.store = Store(fingerprint(model), self.dtype) if store is None else store
        self.tokens = 0
        self.seconds = 0.0

    def loss(self, setting: Setting, piece: Piece) -> Loss:
        """The losses of a text under a setting.

        Raises:
            NonFiniteError: one is NaN or infinite.
        """
        return self._known(setting, piece, self.tag)

    def untouched(self, piece: Piece) -> Loss:
        """The losses of the model as it is."""
        return self._known(LEAVE, piece, "")

    def _known(self, setting: Setting, piece: Piece, tag: str) -> Loss:
        def make() -> dict[str, Any]:
            with self.around() if tag else nullcontext():
                return asdict(self._loss(setting, piece))

        found = self.store.measured(f"loss|{tag}{setting.key}|{piece.id}", make)
        return Loss(found["mean"], tuple(found["parts"]), found["seconds"])

    def difference(self, setting: Setting, piece: Piece) -> tuple[float, tuple[float, ...]]:
        """Nats that the setting adds to a text's loss, whole and by quarter."""
        one, dense = self.loss(setting, piece), self.untouched(piece)
        return one.mean - dense.mean, tuple(a - b for a, b in zip(one.parts, dense.parts, strict=True))

    def differences(self, setting: Setting, pieces: Sequence[Piece]) -> list[tuple[float, tuple[float, ...]]]:
        """The same for several texts."""
        return [self.difference(setting, piece) for piece in pieces]

    def beside(self, setting: Setting, piece: Piece) -> Beside:
        """Divergence and the time of steps, on one text."""
        found = self.store.measured(
            f"beside|{self.tag}{setting.key}|{piece.id}|{self.machine}", lambda: asdict(self._beside(setting, piece))
        )
        times = {n: tuple(found[n]) for n in ("milliseconds", "dense_milliseconds")}
        return Beside(**{**found, **times})

    @property
    def machine(self) -> str:
        """What the time of a step depends on beside the model."""
        return f"{compat.input_device(self.model)}, {torch.get_num_threads()} threads"

    # ---- passes -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _loss(self, setting: Setting, piece: Piece) -> Loss:
        text = torch.tensor([piece.ids], device=compat.input_device(self.model))
        policy = setting.within(text.shape[1]).value
        rows = []
        start = time.perf_counter()
        with (
            stepwise(),
            evaluating(self.model),
            streaming(self.model, policy, positions=setting.positions) as cache,
        ):
            for i, j in spans(policy, piece.ids[:-1]):
                rows.append(losses(self.model(text[:, i:j], cache=cache).logits[0], text[0, i + 1 : j + 1]))
        seconds = time.perf_counter() - start
        nats = np.concatenate(rows)
        if not np.isfinite(nats).all():
            raise NonFiniteError(f"{setting}: a loss is NaN or infinite on {piece.source}")
        self.tokens += len(nats)
        self.seconds += seconds
        parts = tuple(float(p.mean()) for p in np.array_split(nats, min(PARTS, len(nats))))
        return Loss(float(nats.mean()), parts, seconds)

    @torch.no_grad()
    def _beside(self, setting: Setting, piece: Piece) -> Beside:
        text = torch.tensor([piece.ids], device=compat.input_device(self.model))
        last = max(1, text.shape[1] - 1 - STEPS)
        kl = agree = 0.0
        times: dict[str, list[float]] = {"ours": [], "dense": []}
        with evaluating(self.model):
            ours, dense = self._cache(setting), self._cache(LEAVE)
            for i, j in spans(setting.value, piece.ids[:last]):
                there = self._through(dense, text[:, i:j])
                with self.around(), stepwise():
                    here = self._through(ours, text[:, i:j])
                found = score(here, text[0, i : j + 1], untouched=there)
                kl += found.kl * (j - i)
                agree += found.agreement * (j - i)
            for i in range(last, text.shape[1] - 1):
                for name, cache in (("ours", ours), ("dense", dense)) if i % 2 else (("dense", dense), ("ours", ours)):
                    with resumed(cache):
                        start = time.perf_counter()
                        self.model(text[:, i : i + 1], cache=cache)
                        times[name].append(1e3 * (time.perf_counter() - start))
            sizes = ours.nbytes(), dense.nbytes()
        cut = STEPS // 4 if len(times["ours"]) == STEPS else 0  # the first steps warm up
        return Beside(kl / last, agree / last, tuple(times["ours"][cut:]), tuple(times["dense"][cut:]), *sizes)

    def _cache(self, setting: Setting) -> Any:
        with streaming(self.model, setting.value, positions=setting.positions) as cache:
            return cache

    def _through(self, cache: Any, ids: Tensor) -> Tensor:
        with resumed(cache):
            return self.model(ids, cache=cache).logits[0]


def out_of_memory(err: BaseException) -> bool:
    """Whether that is what an error says."""
    if isinstance(err, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(err, RuntimeError) and not isinstance(err, SinkgateError) and "allocate memory" in str(err)


def step_times(model: nn.Module, setting: Setting, ids: Sequence[int], steps: int = STEPS) -> list[float]:
    """Milliseconds of decoding steps behind a text, the first quarter left out."""
    text = torch.tensor([list(ids)], device=compat.input_device(model))
    found = []
    with (
        torch.no_grad(),
        evaluating(model),
        streaming(model, setting.value, positions=setting.positions, chunk=CHUNK) as cache,
    ):
        for i in range(0, text.shape[1], CHUNK):
            model(text[:, i : i + CHUNK], cache=cache)
        for _ in range(steps):
            start = time.perf_counter()
            model(text[:, -1:], cache=cache)
            found.append(1e3 * (time.perf_counter() - start))
    return found[steps // 4 :]
