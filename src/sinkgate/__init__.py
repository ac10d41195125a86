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
    "attention": "sinkgate.ops.attention",
    "weights": "sinkgate.ops.attention",
    "explain": "sinkgate.ops.attention",
    "Softmax": "sinkgate.weighting.softmax",
    "SinkSoftmax": "sinkgate.weighting.softmax",
    "Softmax1": "sinkgate.weighting.softmax",
    "Sigmoid": "sinkgate.weighting.elementwise",
    "Relu": "sinkgate.weighting.elementwise",
    "Softpick": "sinkgate.weighting.softpick",
    "TopKSoftmax": "sinkgate.weighting.topk",
    "Sparsemax": "sinkgate.weighting.sparse",
    "Entmax": "sinkgate.weighting.sparse",
    "ClippedSoftmax": "sinkgate.weighting.clipped",
    "Weighting": "sinkgate.weighting",
    "register_weighting": "sinkgate.weighting",
    "Gate": "sinkgate.gate",
    "register": "sinkgate.hf.register",
    "streaming": "sinkgate.hf.streaming",
    "stream": "sinkgate.evaluate.stream",
    "StreamRecord": "sinkgate.evaluate.stream_record",
    "new_stream": "sinkgate.hf.streaming",
    "save_stream": "sinkgate.hf.stream_files",
    "load_stream": "sinkgate.hf.stream_files",
    "StreamingCache": "sinkgate.hf.streaming_cache",
    "swap": "sinkgate.hf.swap",
    "set_weighting": "sinkgate.hf.swap",
    "quantized": "sinkgate.hf.quantized",
    "Quantization": "sinkgate.quantization",
    "fold_sink": "sinkgate.interventions.fold",
    "Fold": "sinkgate.interventions.fold",
    "Window": "sinkgate.interventions.window",
    "add_outlet": "sinkgate.hf.outlet",
    "remove_outlet": "sinkgate.hf.outlet",
    "outlets": "sinkgate.hf.outlet",
    "without_outlets": "sinkgate.hf.outlet",
    "save_outlet": "sinkgate.hf.outlet_files",
    "load_outlet": "sinkgate.hf.outlet_files",
    "SinkLogit": "sinkgate.outlet",
    "KeyBias": "sinkgate.outlet",
    "KVBias": "sinkgate.outlet",
    "SinkToken": "sinkgate.outlet",
    "train_outlet": "sinkgate.lab.train_outlet",
    "TrainedOutlet": "sinkgate.lab.trained",
    "OutletConfig": "sinkgate.lab.outlet",
    "LoopConfig": "sinkgate.lab.loop",
    "compare": "sinkgate.lab.comparison",
    "write_pages": "sinkgate.report.pages",
    "Comparison": "sinkgate.lab.comparison_record",
    "Arm": "sinkgate.lab.arms",
    "SinkCallback": "sinkgate.lab.callback",
    "SinkWatch": "sinkgate.lab.watch",
    "Spikes": "sinkgate.lab.spikes",
    "acting": "sinkgate.interventions",
    "intervene": "sinkgate.interventions",
    "capture": "sinkgate.interventions",
    "repeated_tokens": "sinkgate.interventions",
    "Effects": "sinkgate.interventions",
    "Constants": "sinkgate.interventions",
    "Evict": "sinkgate.interventions",
    "ScalarGate": "sinkgate.interventions",
    "ConstantGate": "sinkgate.interventions",
    "Transplant": "sinkgate.interventions",
    "MeanValue": "sinkgate.interventions",
    "SetMassive": "sinkgate.interventions",
    "key_gradients": "sinkgate.probe.key_gradients",
    "KeyGradients": "sinkgate.probe.key_gradients",
    "plan": "sinkgate.planning.make",
    "advise": "sinkgate.planning.advise",
    "plan_training": "sinkgate.planning.training",
    "TrainingPlan": "sinkgate.planning.training_record",
    "Plan": "sinkgate.planning.record",
    "load": "sinkgate.hf.load",
    "SinkgateError": "sinkgate.errors",
}

_MODULES = ("errors", "geometry", "nn", "testing")

__all__ = ["__version__", *_MODULES, *_WHERE]

if TYPE_CHECKING:  # the same names, for readers and type checkers
    from sinkgate import errors as errors
    from sinkgate import geometry as geometry
    from sinkgate import nn as nn
    from sinkgate import testing as testing
    from sinkgate.errors import SinkgateError as SinkgateError
    from sinkgate.gate import Gate as Gate
    from sinkgate.hf.load import load as load
    from sinkgate.hf.outlet import add_outlet as add_outlet
    from sinkgate.hf.outlet import outlets as outlets
    from sinkgate.hf.outlet import remove_outlet as remove_outlet
    from sinkgate.hf.outlet import without_outlets as without_outlets
    from sinkgate.hf.outlet_files import load_outlet as load_outlet
    from sinkgate.hf.outlet_files import save_outlet as save_outlet
    from sinkgate.hf.quantized import quantized as quantized
    from sinkgate.hf.register import register as register
    from sinkgate.hf.swap import set_weighting as set_weighting
    from sinkgate.hf.swap import swap as swap
    from sinkgate.interventions import ConstantGate as ConstantGate
    from sinkgate.interventions import Constants as Constants
    from sinkgate.interventions import Effects as Effects
    from sinkgate.interventions import Evict as Evict
    from sinkgate.interventions import MeanValue as MeanValue
    from sinkgate.interventions import ScalarGate as ScalarGate
    from sinkgate.interventions import SetMassive as SetMassive
    from sinkgate.interventions import Transplant as Transplant
    from sinkgate.interventions import acting as acting
    from sinkgate.interventions import capture as capture
    from sinkgate.interventions import intervene as intervene
    from sinkgate.interventions import repeated_tokens as repeated_tokens
    from sinkgate.interventions.fold import Fold as Fold
    from sinkgate.interventions.fold import fold_sink as fold_sink
    from sinkgate.interventions.window import Window as Window
    from sinkgate.lab.arms import Arm as Arm
    from sinkgate.lab.callback import SinkCallback as SinkCallback
    from sinkgate.lab.comparison import compare as compare
    from sinkgate.lab.comparison_record import Comparison as Comparison
    from sinkgate.lab.loop import LoopConfig as LoopConfig
    from sinkgate.lab.outlet import OutletConfig as OutletConfig
    from sinkgate.lab.spikes import Spikes as Spikes
    from sinkgate.lab.train_outlet import train_outlet as train_outlet
    from sinkgate.lab.trained import TrainedOutlet as TrainedOutlet
    from sinkgate.lab.watch import SinkWatch as SinkWatch
    from sinkgate.masks import Visibility as Visibility
    from sinkgate.ops.attention import attention as attention
    from sinkgate.ops.attention import explain as explain
    from sinkgate.ops.attention import weights as weights
    from sinkgate.outlet import KeyBias as KeyBias
    from sinkgate.outlet import KVBias as KVBias
    from sinkgate.outlet import SinkLogit as SinkLogit
    from sinkgate.outlet import SinkToken as SinkToken
    from sinkgate.planning.advise import advise as advise
    from sinkgate.planning.make import plan as plan
    from sinkgate.planning.record import Plan as Plan
    from sinkgate.planning.training import plan_training as plan_training
    from sinkgate.planning.training_record import TrainingPlan as TrainingPlan
    from sinkgate.probe.diagnose import diagnose as diagnose
    from sinkgate.probe.key_gradients import KeyGradients as KeyGradients
    from sinkgate.probe.key_gradients import key_gradients as key_gradients
    from sinkgate.probe.measure import measure as measure
    from sinkgate.probe.pattern import Pattern as Pattern
    from sinkgate.probe.pattern import pattern as pattern
    from sinkgate.probe.probe import Probe as Probe
    from sinkgate.quantization import Quantization as Quantization
    from sinkgate.record import Diagnosis as Diagnosis
    from sinkgate.report.pages import write_pages as write_pages
    from sinkgate.schema import Settings as Settings
    from sinkgate.series import Series as Series
    from sinkgate.site import OutputMap as OutputMap
    from sinkgate.site import Site as Site
    from sinkgate.weighting import Weighting as Weighting
    from sinkgate.weighting import register_weighting as register_weighting
    from sinkgate.weighting.clipped import ClippedSoftmax as ClippedSoftmax
    from sinkgate.weighting.elementwise import Relu as Relu
    from sinkgate.weighting.elementwise import Sigmoid as Sigmoid
    from sinkgate.weighting.softmax import SinkSoftmax as SinkSoftmax
    from sinkgate.weighting.softmax import Softmax as Softmax
    from sinkgate.weighting.softmax import Softmax1 as Softmax1
    from sinkgate.weighting.softpick import Softpick as Softpick
    from sinkgate.weighting.sparse import Entmax as Entmax
    from sinkgate.weighting.sparse import Sparsemax as Sparsemax
    from sinkgate.weighting.topk import TopKSoftmax as TopKSoftmax


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"sinkgate.{name}")
    raise AttributeError(f"module 'sinkgate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
