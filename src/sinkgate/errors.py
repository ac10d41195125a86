"""Errors a person is meant to read: one line that says what was wrong, what was got and what to do.

The command line prints the message alone and leaves with :attr:`SinkgateError.exit_code`; ``--debug``
shows the traceback. A library user catches :class:`SinkgateError` or one of its kinds.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "ModelError",
    "NonFiniteError",
    "OutputError",
    "RecordError",
    "SinkgateError",
    "TextError",
    "UnsupportedError",
    "WorkerError",
]


class SinkgateError(Exception):
    """Base of every error that sinkgate raises on purpose."""

    exit_code = 1


class ArgumentError(SinkgateError, ValueError):
    """An argument has the wrong shape, type or value."""


class ModelError(SinkgateError):
    """The model cannot be found, fetched or read."""


class UnsupportedError(SinkgateError):
    """The model or input is sound, but sinkgate cannot honour what it asks for."""


class TextError(SinkgateError):
    """The text is missing, empty, too short or not text."""


class NonFiniteError(SinkgateError):
    """NaN or infinity where a number was expected; the message names the layer and the head."""


class OutputError(SinkgateError):
    """The result cannot be written."""


class RecordError(SinkgateError):
    """A saved record is damaged, of another version, or does not go with another one."""


class WorkerError(SinkgateError):
    """A worker process, or the cluster it is in, cannot be had or was lost again and again."""
