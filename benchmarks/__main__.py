"""Run benchmarks by name, all of them without one."""

import importlib
import sys

NAMES = (
    "startup",
    "load",
    "models",
    "diagnose",
    "long",
    "ops",
    "gpu",
    "intervene",
    "fold",
    "outlets",
    "train_outlet",
    "aids",
    "lab",
    "lab_comparison",
    "callback",
    "studio",
    "plan",
    "plan_time",
    "kvpress",
)

for name in sys.argv[1:] or NAMES:
    if name not in NAMES:
        raise SystemExit(f"unknown benchmark {name!r}; there are {', '.join(NAMES)}")
    importlib.import_module(f"benchmarks.{name}").main()
