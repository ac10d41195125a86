"""Reproductions: each module trains small models and writes ``experiments/results/NAME.json``, from which its page in
``docs/experiments/`` is rendered (``python -m benchmarks.render``).

``python -m experiments.NAME`` runs what is missing; a kill loses at most the steps since the last checkpoint.
"""
