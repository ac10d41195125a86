"""The log sent on to a tracking service, while the JSON lines in the run's folder stay the log that counts.

Anything with the API of wandb will do: ``init(project=…, name=…, group=…, config=…)`` that gives a run with
``log(numbers, step=…)`` and ``finish()``. trackio has it too.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sinkgate.errors import ArgumentError
from sinkgate.lab.pieces import Piece

__all__ = ["ApiLogger", "api_logger"]


def api_logger(module: str | ModuleType | Any, project: str, *, group: str | None = None, **init: Any) -> ApiLogger:
    """A ``progress`` callback for :func:`sinkgate.compare`, :func:`sinkgate.train_outlet` or the loop.

    Args:
        module: ``"wandb"``, ``"trackio"``, the name of another module with that API, or such an object.
        project: what the runs belong to.
        group: of these runs, such as the comparison's name.
        init: more arguments of ``init``.

    Raises:
        ArgumentError: the module cannot be imported or has no ``init``.
    """
    if isinstance(module, str):
        try:
            module = importlib.import_module(module)
        except ModuleNotFoundError as err:
            if err.name != module:
                raise
            extra = f"'sinkgate[{module}]'" if module in ("wandb", "trackio") else module
            raise ArgumentError(f"sending the log to {module} needs its package: pip install {extra}") from err
    if not callable(getattr(module, "init", None)):
        raise ArgumentError(f"{getattr(module, '__name__', module)!r} has no init(…): a logger needs the API of wandb")
    return ApiLogger(module, project, group, init)


class ApiLogger:
    """Sends lines of logs to one run per piece; made by :func:`api_logger`.

    A run begins with the first line of a piece, and is finished with the last one or when another piece begins. One that
    ended otherwise (it diverged, or training was interrupted) is finished by :meth:`close`, or by the service when the
    process ends. A line whose step was sent to the open run already is not sent again.

    If the service fails, training goes on: the rest of that run is not sent, and one warning says so. Nothing is lost: the
    lines are in ``log.jsonl``.

    Attributes:
        failures: how many runs the service failed in.
    """

    def __init__(self, module: Any, project: str, group: str | None, init: dict[str, Any]) -> None:
        self.module, self.project, self.group, self.more = module, project, group, init
        self.failures = 0
        self._of: Any = None  # whose run is open
        self._run: Any = None  # None: none is, or the service failed in it
        self._sent = -1  # the last step

    def __call__(self, *given: Any) -> None:
        """``(line)``, ``(piece, line)`` or ``(name, line)``: whatever a callback of the lab is called with."""
        *who, line = given
        of = who[0] if who else self.project
        if of != self._of:
            self.close()
            self._of, self._sent = of, -1
            self._run = self._try(lambda: self._begin(of))
        if self._run is not None and line["step"] > self._sent:
            self._sent = line["step"]
            numbers = {n: float(x) for n, x in line.items() if n != "step" and isinstance(x, int | float)}
            self._try(lambda: self._run.log(numbers, step=line["step"]))
        if line.get("done") or (isinstance(of, Piece) and line["step"] + 1 == of.loop.steps):
            self.close()

    def close(self) -> None:
        """Finish the open run, if there is one."""
        if self._run is not None:
            self._try(self._run.finish)
        self._of = self._run = None

    def __enter__(self) -> ApiLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- private ------------------------------------------------------------------------------------------------

    def _begin(self, of: Any) -> Any:
        name, config = str(of), {}
        if isinstance(of, Piece):
            name, config = f"{of.arm}, lr {of.lr:g}, seed {of.seed}", of.to_json()
        return self.module.init(project=self.project, name=name, group=self.group, config=config, **self.more)

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as err:  # noqa: BLE001 - whatever a service raises must not end a training
            self._run = None
            self.failures += 1
            if self.failures == 1:
                service = getattr(self.module, "__name__", type(self.module).__name__)
                warnings.warn(
                    f"{service} failed ({type(err).__name__}: {err}); the rest of this run is not sent there, and later "
                    "failures are not reported. The log in the run's folder is complete.",
                    stacklevel=3,
                )
            return None
