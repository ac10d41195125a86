"""Floor 9: the command line, one thin file per verb.

argparse, because ``--text FILE…`` takes several values and because ``sinkgate --help`` must not wait for
anything: no verb's imports are paid for until it runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from sinkgate import __version__
from sinkgate.errors import SinkgateError

__all__ = ["main"]

# verb -> one line of help; its module is sinkgate.cli.<verb> with `arguments(parser)` and `run(args) -> int`
VERBS = {
    "diagnose": "measure where a model's heads put their attention, and what the surplus writes",
    "intervene": "act on a model's sink (evict, gate, transplant) and measure what follows, beside a control",
    "train-outlet": "give a model an outlet, train it, and say what it took over from the first token",
    "compare": "train weightings, gates and windows side by side, and say what differs and what cannot be told apart",
    "stream": "perplexity or recall along an endless text, under bounded caches side by side",
    "generate": "go on from a prompt of any length, in bounded memory",
    "chat": "a conversation without an end, in bounded memory",
    "show": "print a saved record, or write its report again; needs no model",
    "merge": "put records of the same model from several texts or processes together",
    "advise": "one page: what a model does, what it would lose, what its cache should keep, the lines to paste",
    "plan": "a cache that keeps to a budget or a tolerance: searched, verified on held-out text, with its reasons",
    "kv": "what a model's key-value cache weighs, under every scheme",
    "studio": "see records and play with attention in the browser; live work on models of your choice",
    "ls": "list weightings, gates, implementations, cache policies and known models",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 a clear error, 2 wrong usage, 130 interrupted)."""
    parser = argparse.ArgumentParser(
        prog="sinkgate",
        description="Attention sinks: measure them, prove what they do, give the surplus an outlet.",
    )
    parser.add_argument("--version", action="version", version=f"sinkgate {__version__}")
    commands = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    argv = list(sys.argv[1:] if argv is None else argv)
    for verb, line in VERBS.items():
        command = commands.add_parser(verb, help=line, description=line[0].upper() + line[1:] + ".")
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if argv[:1] == [verb]:
            _module(verb).arguments(command)
    args = parser.parse_args(argv)
    try:
        return int(_module(args.verb).run(args))
    except KeyboardInterrupt:
        left = getattr(_module(args.verb), "INTERRUPTED", "nothing was written")
        return _say(f"interrupted; {left}", 130, debug=args.debug)
    except SinkgateError as err:
        return _say(str(err), err.exit_code, debug=args.debug)
    except BrokenPipeError:  # the reader of our output went away; that is its business
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MemoryError:
        return _say("out of memory; use fewer --tokens, --detail first, or a smaller --dtype", 1, debug=args.debug)
    except Exception as err:  # noqa: BLE001 - the last line of defence: a bug must not end in a traceback either
        return _say(
            f"unexpected {type(err).__name__}: {err}; this is a bug of ours or of a library: --debug shows where",
            1,
            debug=args.debug,
        )


def _module(verb: str) -> Any:
    """The file of a verb: ``train-outlet`` is in ``train_outlet.py``."""
    return importlib.import_module(f"sinkgate.cli.{verb.replace('-', '_')}")


def _say(message: str, code: int, *, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(f"sinkgate: {' '.join(message.split())}", file=sys.stderr)
    return code
