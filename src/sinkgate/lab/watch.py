"""Watching a training: every N steps a reading of a fixed held-out batch, and the training never knows."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.files import jsonable
from sinkgate.hf import compat
from sinkgate.hf.anatomy import Anatomy, trace
from sinkgate.hf.paused import inner, paused
from sinkgate.hf.reading import Reader
from sinkgate.lab.held_out import HeldOut, held_out
from sinkgate.lab.lines import Lines
from sinkgate.lab.reading import Observer, reading_line
from sinkgate.lab.spikes import SpikeDetector, Spikes
from sinkgate.outlet import GateOutlet
from sinkgate.probe.diagnose import TRACE_TOKENS, layer_entries
from sinkgate.probe.probe import Probe
from sinkgate.probe.text import Text
from sinkgate.record import Diagnosis
from sinkgate.schema import Settings

__all__ = ["SinkWatch"]


class SinkWatch:
    """Reads a model's sinks while it is trained; :class:`sinkgate.SinkCallback` is this for transformers' ``Trainer``.

    A reading runs the model on one fixed batch, in eval mode, without gradients, under the same autocast as around it (or
    in the model's forward), not compiled. Afterwards modules are in the modes they were in, and the random state is what it
    was: the parameters of a training are the same, bit for bit, with and without it.

    In a training by several processes each makes its own watch and calls :meth:`step` at the same steps, because a forward
    pass under FSDP2 (``fully_shard``) needs them all; the first one (rank 0) writes the file. DDP's and ``torch.compile``'s
    wrappers are looked through. FSDP version 1, ZeRO-3 and tensor parallelism are refused.

    A model in which numbers are no longer finite gives a line that says so, and a warning.

    Args:
        model: a transformers model as :func:`sinkgate.diagnose` takes it.
        batch: the held-out batch: token ids ``[b, t]``, a mapping with ``input_ids`` (and ``attention_mask``), or texts.
        tokenizer: for texts.
        every: steps between readings.
        path: a JSON-lines file; None: lines are returned only.
        start: the step the training stands at: lines of later steps are cut from the file.
        samples: of texts, how many pieces are read …
        tokens: … of how many tokens.
        bos: of texts, whether a beginning-of-text token is put first: auto, yes, no.
        eps: a head sinks where its share is over this.
        closed: a gate is closed where it is under this.
        spikes: when a loss is a spike.
        autocast: read under autocast to this dtype; None: as it is around :meth:`step`.
        overwrite: the file may hold another training's lines.

    Raises:
        UnsupportedError: the model cannot be read; says what was looked for.
        ArgumentError: an argument out of range.
        TextError: no text, or too little.
        OutputError: the file cannot be written or holds readings already.
        RecordError: the file is damaged or of another watch.
    """

    def __init__(
        self, model: nn.Module, batch: Tensor | Mapping[str, Any] | Iterable[str | Text] | str, tokenizer: Any = None, *,
        every: int = 100, path: str | os.PathLike[str] | None = None, start: int = 0, samples: int = 4, tokens: int = 256,
        bos: str = "auto", eps: float = 0.3, closed: float = 0.1, spikes: Spikes | None = None,
        autocast: torch.dtype | None = None, overwrite: bool = False,
    ) -> None:  # fmt: skip
        for name, value, least in (("every", every, 1), ("start", start, 0), ("samples", samples, 1)):
            if type(value) is not int or value < least:
                raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not closed > 0:
            raise ArgumentError(f"closed must be above 0, got {closed!r}")
        self.model = inner(model)
        self.batch: HeldOut = held_out(batch, tokenizer, samples=samples, tokens=tokens, bos=bos)
        self.every, self.closed, self.autocast = every, closed, autocast
        self.settings = Settings("keys", eps, tokens=max(self.batch.lengths), bos=bos)
        self.seconds: list[float] = []  # what every reading took
        self._about = {
            "eps": eps, "closed": closed, "samples": len(self.batch.samples), "tokens": sum(self.batch.lengths),
            "batch": self.batch.digest,
        }  # fmt: skip
        self._anatomy = self._look()
        self._detector = SpikeDetector(spikes or Spikes())
        self._loss: float | None = None
        self._spikes: list[int] = []  # since the last reading
        self._step, self._warned = start, False
        self._last = start if start else -1  # what a checkpoint was made of was read before; every process must agree
        self._lines: Lines | None = None
        if path is not None and _rank() == 0:
            self._lines = Lines(path, start=start, same=self._about, overwrite=overwrite)

    def step(self, step: int, loss: float | Tensor | None = None) -> dict[str, Any] | None:
        """Tell the watch that ``step`` updates are made; a reading if ``step`` is a multiple of ``every``.

        Args:
            step: how many updates were made; 0 reads the model before the first.
            loss: of this step, for the spikes; to give a tensor on a card waits for it.

        Returns:
            The line, the same in every process (a NaN is None); None at the steps between, and where the step was read before.

        Raises:
            ArgumentError: a step before the last one.
        """
        if step < self._step:
            raise ArgumentError(f"step {step} comes after step {self._step}: a resumed training needs start={step}")
        self._step = step
        if loss is not None:
            self.loss(step, loss)
        if step % self.every or step <= self._last:
            return None
        self._last = step
        line: dict[str, Any] = {"step": step, "loss": self._loss, "spikes": self._spikes}
        self._spikes = []
        began = time.perf_counter()
        try:
            d, observer = self._read()
            line |= reading_line(d, observer, self.settings.threshold)
        except NonFiniteError as err:
            line["non_finite"] = str(err)
            if not self._warned:
                warnings.warn(f"step {step} cannot be read: {err}", stacklevel=2)
            self._warned = True
        self.seconds.append(time.perf_counter() - began)
        line = jsonable(line | self._about)
        self._write(line)
        return line

    def loss(self, step: int, loss: float | Tensor) -> bool:
        """One more loss of the training; whether it is a spike, which is written at once."""
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ArgumentError(f"a loss is one number, got a tensor of shape {list(loss.shape)}")
        value = float(loss.item() if isinstance(loss, Tensor) else loss)
        median = self._detector.median
        self._loss = value
        found = self._detector.see(value)
        if found:
            self._spikes.append(step)
            rule = dataclasses.asdict(self._detector.rule)
            self._write({"step": step, "spike": {"loss": value, "median": median, **rule}})
        return found

    def remember(self, step: int, loss: float, *, reported: bool = False) -> None:
        """A loss of before ``start``: the detector of a resumed training then knows what that of the whole one does.

        Args:
            step: when.
            loss: which.
            reported: if it is a spike, a reading has said so.
        """
        self._loss = float(loss)
        if self._detector.see(self._loss) and not reported:
            self._spikes.append(step)

    def read(self) -> Diagnosis:
        """A reading now, as the record that ``sg.diagnose(…, detail="keys")`` gives, with its residual stream.

        Raises:
            NonFiniteError: NaN or infinity; names layer and head.
        """
        return self._read()[0]

    @property
    def cost(self) -> float:
        """Seconds a reading takes: the median so far, NaN before the first."""
        return statistics.median(self.seconds) if self.seconds else float("nan")

    def close(self) -> None:
        """Close the file."""
        if self._lines is not None:
            self._lines.close()

    def __enter__(self) -> SinkWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- private ------------------------------------------------------------------------------------------------

    def _write(self, line: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.append(line)

    def _look(self) -> Anatomy:
        """The model's parts. Of the output maps, which go stale while it is trained, only who has a gate is kept."""
        if not hasattr(self.model, "config"):
            raise UnsupportedError(
                f"{type(self.model).__name__} has no config and is no transformers model: show its layers to sg.Probe yourself"
            )
        where = compat.input_device(self.model)
        if where.type == "mps":
            raise UnsupportedError("mps has no float64, which the sums of a record need; train on cpu or cuda")
        with paused(self.model, self.autocast):
            anatomy = trace(self.model, self.batch.opening(TRACE_TOKENS).to(where))
        for layer in anatomy.layers:
            ours = layer.attention is not None and isinstance(
                layer.attention._modules.get("sinkgate_outlet"), GateOutlet
            )
            if layer.output_map is not None and (ours or not layer.output_map.gated):
                layer.output_map = None
            elif layer.output_map is not None:
                layer.output_map = dataclasses.replace(layer.output_map, frozen_norm=False)
            layer.norm_module = layer.norm_gain = None
        return anatomy

    def _read(self) -> tuple[Diagnosis, Observer]:
        batch, where = self.batch, compat.input_device(self.model)
        probe = Probe(self.settings, stream=True)
        observer = Observer(probe, self._anatomy, batch.real(), self.closed)
        reader = Reader(self._anatomy, observer)
        mask = None if batch.mask is None else batch.mask.to(where)
        with paused(self.model, self.autocast), observer.outlets(), reader.open(), probe.sample(batch.samples):
            reader.run(batch.ids.to(where), mask)
            if observer.error is not None:
                raise observer.error
        name = type(self.model).__name__
        return probe.finish(model={"name": name}, layers=layer_entries(self._anatomy)), observer


def _rank() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if there else 0
