"""What a setting costs on a text, beside the model as it is: losses, divergence, the time of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkgate.cache.quantized_bank import opened
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

__all__ = ["TOGETHER", "Beside", "Loss", "Measurer", "out_of_memory", "step_times"]

PARTS = 4  # of a text, to see whether the loss grows along it
STEPS = 24  # timed
TOGETHER = 8  # texts of one pass, where passes are short


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
        return self._known(setting, [piece], self.tag)[0]

    def untouched(self, piece: Piece) -> Loss:
        """The losses of the model as it is."""
        return self._known(LEAVE, [piece], "")[0]

    def _known(self, setting: Setting, pieces: Sequence[Piece], tag: str) -> list[Loss]:
        """Each text's, as far as it is not known read together with others."""
        keys = [f"loss|{tag}{setting.key}|{piece.id}" for piece in pieces]
        missing = {key: piece for key, piece in zip(keys, pieces, strict=True) if key not in self.store}
        self.store.reused += len(keys) - len(missing)
        for some in _together(setting, missing):
            with self.around() if tag else nullcontext():
                found = self._losses(setting, [missing[key] for key in some])
            for key, loss in zip(some, found, strict=True):
                self.store[key] = asdict(loss)
        known = [self.store[key] for key in keys]
        return [Loss(x["mean"], tuple(x["parts"]), x["seconds"]) for x in known]

    def difference(self, setting: Setting, piece: Piece) -> tuple[float, tuple[float, ...]]:
        """Nats that the setting adds to a text's loss, whole and by quarter."""
        return self.differences(setting, [piece])[0]

    def differences(self, setting: Setting, pieces: Sequence[Piece]) -> list[tuple[float, tuple[float, ...]]]:
        """The same for several texts, which are read together where a pass is short: sooner, and the same up to rounding."""
        both = zip(self._known(setting, pieces, self.tag), self._known(LEAVE, pieces, ""), strict=True)
        return [(one.mean - dense.mean, tuple(a - b for a, b in zip(one.parts, dense.parts, strict=True)))
                for one, dense in both]  # fmt: skip

    def beside(self, setting: Setting, piece: Piece) -> Beside:
        """Divergence and the time of steps, on one text."""
        found = self.store.measured(
            f"beside|{self.tag}{setting.key}|{piece.id}|{self._machine()}", lambda: asdict(self._beside(setting, piece))
        )
        times = {n: tuple(found[n]) for n in ("milliseconds", "dense_milliseconds")}
        return Beside(**{**found, **times})

    def _machine(self) -> str:
        """What the time of a step depends on beside the model."""
        return f"{compat.input_device(self.model)}, {torch.get_num_threads()} threads"

    # ---- passes -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _losses(self, setting: Setting, pieces: Sequence[Piece]) -> list[Loss]:
        """Texts that are cut alike, as one batch; one by one where memory does not hold them."""
        try:
            return self._batch(setting, pieces)
        except (MemoryError, RuntimeError) as err:
            if len(pieces) == 1 or not out_of_memory(err):
                raise
        return [self._batch(setting, [piece])[0] for piece in pieces]

    def _batch(self, setting: Setting, pieces: Sequence[Piece]) -> list[Loss]:
        text = torch.tensor([piece.ids for piece in pieces], device=compat.input_device(self.model))
        policy = setting.within(text.shape[1]).value
        rows: list[list[np.ndarray]] = [[] for _ in pieces]
        start = time.perf_counter()
        with (
            opened(),
            evaluating(self.model),
            streaming(self.model, policy, positions=setting.positions) as cache,
        ):
            for i, j in spans(policy, pieces[0].ids[:-1]):
                logits = self.model(text[:, i:j], cache=cache).logits
                for row, found in enumerate(rows):
                    found.append(losses(logits[row], text[row, i + 1 : j + 1]))
        seconds = (time.perf_counter() - start) / len(pieces)
        result = []
        for piece, found in zip(pieces, rows, strict=True):
            nats = np.concatenate(found)
            if not np.isfinite(nats).all():
                raise NonFiniteError(f"{setting}: a loss is NaN or infinite on {piece.source}")
            self.tokens += len(nats)
            self.seconds += seconds
            parts = tuple(float(p.mean()) for p in np.array_split(nats, min(PARTS, len(nats))))
            result.append(Loss(float(nats.mean()), parts, seconds))
        return result

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
                with self.around():
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


def _together(setting: Setting, pieces: Mapping[str, Piece]) -> list[list[str]]:
    """Keys of texts that are cut alike, so many that a pass of all of them is no longer than one where nothing is packed."""
    alike: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for key, piece in pieces.items():
        alike.setdefault(tuple(spans(setting.value, piece.ids[:-1])), []).append(key)
    found = []
    for cuts, keys in alike.items():
        most = max(1, min(TOGETHER, CHUNK // max(j - i for i, j in cuts)))
        found += [keys[i : i + most] for i in range(0, len(keys), most)]
    return found


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
