"""Measured claims: every number in README and docs is rendered from ``benchmarks/results/*.json``.

``python -m benchmarks NAME…`` runs some, without names all; ``python -m benchmarks.render`` puts the results into
the documents.
"""
