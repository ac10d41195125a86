"""``sinkgate chat MODEL``: a conversation without an end; only new tokens go through the model."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from sinkgate.cli.generate import (
    asked_cache,
    cache_flags,
    loaded,
    model_flags,
    noted,
    one_line_report,
    sampling_flags,
    stoppable,
)
from sinkgate.errors import ArgumentError, SinkgateError, UnsupportedError

__all__ = ["INTERRUPTED", "arguments", "run"]

INTERRUPTED = "the conversation ends here"
DONE = {"save": "saved", "load": "loaded"}
COMMANDS = {
    "/state": "what the cache holds",
    "/save FILE": "keep the conversation",
    "/load FILE": "go on with a kept one",
    "/reset": "forget everything",
    "/quit": "end (so does Ctrl-D); Ctrl-C stops an answer",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    model_flags(add)
    add("--system", metavar="TEXT", help="what the model is told first")
    cache_flags(add)
    sampling_flags(add, 512)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.max_new_tokens < 1:
        raise ArgumentError(f"--max-new-tokens must be at least 1, got {args.max_new_tokens}")
    from sinkgate.hf.turns import turns
    from sinkgate.hf.writing import Sampling, Writer, end_ids
    from sinkgate.probe.text import bos_prefix

    streaming = asked_cache(args)  # refused before anything is fetched
    sampling = Sampling(args.temperature, args.top_p, args.top_k, args.seed)
    with noted():
        found = loaded(args)
        around = turns(found.tokenizer, args.system, bos_prefix(found.tokenizer, "auto")[0])
        _say(f"{around.note}. " * bool(around.note) + "Commands: " + ", ".join(COMMANDS))
        with streaming(found.model) as cache:
            ends = end_ids(found.model, found.tokenizer) | around.ends
            writer = Writer(found.model, found.tokenizer, cache, sampling, stop=[*around.stop, *args.stop], ends=ends)
            return _Conversation(writer, around, args.max_new_tokens).hold(_lines())


def _say(text: str) -> None:
    print(f"sinkgate: {text}", file=sys.stderr, flush=True)


def _lines() -> Iterator[str]:
    """What is typed, or piped in, a line at a time; Ctrl-C at the prompt only drops the line."""
    typed = sys.stdin.isatty()
    if typed:
        import contextlib

        with contextlib.suppress(ImportError):  # arrow keys, where there are any
            import readline  # noqa: F401
    while True:
        try:
            if typed:
                yield input("> ")
            elif line := sys.stdin.readline():
                yield line.rstrip("\n")
            else:
                return
        except EOFError:
            print()
            return
        except UnicodeDecodeError as err:
            raise ArgumentError(f"standard input is not UTF-8 text (byte 0x{err.object[err.start]:02x})") from err
        except KeyboardInterrupt:
            if not typed:
                raise
            print("\n(/quit or Ctrl-D ends)", file=sys.stderr)


class _Conversation:
    def __init__(self, writer: Any, around: Any, most: int) -> None:
        self.writer, self.around, self.most = writer, around, most
        self.rest = ""

    def hold(self, lines: Iterator[str]) -> int:
        failed = False
        for line in lines:
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if line.strip() == "/quit":
                        break
                    self._command(*line.strip().partition(" ")[::2])
                else:
                    self._answer(line.strip())
            except SinkgateError as err:
                failed = True
                _say(" ".join(str(err).split()))
        _say(one_line_report(self.writer.cache.report()))
        return 1 if failed else 0

    def _answer(self, said: str) -> None:
        writer = self.writer
        ids = self.around.ids(writer.tokenizer, said, begun=writer.cache.columns > 0, rest=self.rest)
        self.rest = ""
        with stoppable() as asked:
            read = writer.read(ids, asked)
            if read < len(ids):
                _say(f"stopped after reading {read:,} of {len(ids):,} tokens")
                return
            first = True
            for piece in writer.write(self.most, asked):
                piece = piece.lstrip() if first else piece
                first = first and not piece
                print(piece, end="", flush=True)
            print(flush=True)
        self.rest = writer.rest
        if writer.why in ("interrupted", "length"):
            _say("stopped" if writer.why == "interrupted" else f"stopped at --max-new-tokens {self.most}")

    def _command(self, name: str, argument: str) -> None:
        cache = self.writer.cache
        commands: dict[str, Callable[[], None]] = {
            "/state": lambda: print(json.dumps(cache.report(), indent=1), flush=True),
            "/reset": self._reset,
            "/save": lambda: self._file("save", argument.strip()),
            "/load": lambda: self._file("load", argument.strip()),
        }
        if name not in commands:
            listed = ", ".join(f"{command}: {what}" for command, what in COMMANDS.items())
            raise ArgumentError(f"there is no command {name}; {listed}. A space in front sends it as text")
        commands[name]()

    def _reset(self) -> None:
        self.writer.cache.reset()
        self.rest = ""
        _say("everything is forgotten")

    def _file(self, what: str, path: str) -> None:
        if not path:
            raise ArgumentError(f"/{what} needs a file: /{what} FILE")
        try:
            function = getattr(importlib.import_module("sinkgate.hf.stream_files"), f"{what}_stream")
        except (ImportError, AttributeError):
            raise UnsupportedError(f"a cache cannot be {DONE[what]} here: this sinkgate has no stream files") from None
        function(self.writer.cache, os.path.expanduser(path))  # noqa: PTH111 - a text, as the function takes it
        self.rest = "" if what == "load" else self.rest
        _say(f"{DONE[what]}: {one_line_report(self.writer.cache.report())}")
