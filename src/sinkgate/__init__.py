"""sinkgate: measure attention sinks, prove what they do, and give the surplus a proper outlet.

>>> import sinkgate as sg
>>> d = sg.diagnose("smollm2-135m", texts=["..."])      # doctest: +SKIP
>>> d.first_token_mass.shape                             # doctest: +SKIP
(30, 9)

Importing the package does nothing but define these names: no torch, no patch, no registration.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> the module that defines it, imported when the name is first used
_WHERE = {
    "Diagnosis": "sinkgate.record",
    "Series": "sinkgate.series",
    "Settings": "sinkgate.schema",
    "Visibility": "sinkgate.masks",
    "Site": "sinkgate.site",
    "OutputMap": "sinkgate.site",
    "diagnose": "sinkgate.probe.diagnose",
    "measure": "sinkgate.probe.measure",
    "Probe": "sinkgate.probe.probe",
    "pattern": "sinkgate.probe.pattern",
    "Pattern": "sinkgate.probe.pattern",
    "register": "sinkgate.hf.register",
    "load": "sinkgate.hf.load",
    "SinkgateError": "sinkgate.errors",
}

__all__ = ["__version__", "errors", "geometry", *_WHERE]

if TYPE_CHECKING:  # the same names, for readers and type checkers
    from sinkgate import errors as errors
    from sinkgate import geometry as geometry
    from sinkgate.errors import SinkgateError as SinkgateError
    from sinkgate.hf.load import load as load
    from sinkgate.hf.register import register as register
    from sinkgate.masks import Visibility as Visibility
    from sinkgate.probe.diagnose import diagnose as diagnose
    from sinkgate.probe.measure import measure as measure
    from sinkgate.probe.pattern import Pattern as Pattern
    from sinkgate.probe.pattern import pattern as pattern
    from sinkgate.probe.probe import Probe as Probe
    from sinkgate.record import Diagnosis as Diagnosis
    from sinkgate.schema import Settings as Settings
    from sinkgate.series import Series as Series
    from sinkgate.site import OutputMap as OutputMap
    from sinkgate.site import Site as Site


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in ("errors", "geometry"):
        return importlib.import_module(f"sinkgate.{name}")
    raise AttributeError(f"module 'sinkgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
