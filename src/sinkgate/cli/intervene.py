"""``sinkgate intervene MODEL``: act on the sink, print what followed beside a control, keep the effects."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sinkgate.cli.diagnose import DEFAULT_MODEL, progress_bar, read_texts, writable
from sinkgate.errors import ArgumentError, TextError

__all__ = ["arguments", "run"]

ACTS = ("evict", "start", "scalar-gate", "constant-gate", "transplant", "mean-value", "massive")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    add("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL",
        help=f"known name (smollm2-135m, gemma3-270m), directory, .gguf file or Hub id; default: {DEFAULT_MODEL}")  # fmt: skip
    add("--text", nargs="+", metavar="FILE", help="text files, - for standard input; default: standard input if "
        "something is piped in, else the demo speeches")  # fmt: skip
    add("--pairs", metavar="FILE", help="clean and corrupted prompts instead of texts: a line each, with a tab between, "
        "or .jsonl with [clean, corrupted]")  # fmt: skip
    add("--out", metavar="DIR", help="write effects.json here")
    add("--acts", nargs="+", choices=ACTS, default=ACTS, metavar="ACT", help=f"of {', '.join(ACTS)} (default: all)")
    add("--position", type=_position, default="auto", metavar="WHERE",
        help="of the sink: auto (the first token, or each text's strongest if that is another in most texts), further (the strongest but the first token), or a number")  # fmt: skip
    add("--layers", type=int, nargs="+", metavar="L", help="act only in these layers")
    add("--heads", type=_head, nargs="+", metavar="L.H", help="act only in these heads, such as 5.3")
    add("--tokens", type=int, default=512, metavar="N", help="tokens per text (default: %(default)s)")
    add("--samples", type=int, default=4, metavar="N", help="texts at most (default: %(default)s)")
    add("--burn-in", type=int, metavar="N", help="queries that are left alone (default: 64)")
    add("--sweep", type=int, nargs="+", default=[], metavar="N", help="other burn-ins for eviction")
    add("--confirm", type=int, default=6, metavar="N",
        help="heads of the screening to evict one by one, and as many random ones (default: %(default)s)")  # fmt: skip
    add("--repeated", metavar="TOKEN", help="report on a text that repeats this token, too")
    add("--bos", choices=["auto", "yes", "no"], default="auto",
        help="beginning-of-text token: as the tokenizer does, always, never")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="of the random controls (default: %(default)s)")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto")
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.pairs is not None and args.text is not None:
        raise ArgumentError("give --text or --pairs, not both")
    pairs = None if args.pairs is None else read_pairs(Path(args.pairs))
    texts = None if pairs is not None else read_texts(args.text)
    out = None if args.out is None else writable(Path(args.out))
    from sinkgate.interventions import intervene

    with progress_bar() as progress:
        effects = intervene(
            args.model,
            None,
            texts,
            acts=[act.replace("-", " ") for act in args.acts],
            position=args.position,
            layers=args.layers,
            heads=args.heads,
            tokens=args.tokens,
            samples=args.samples,
            burn_in=args.burn_in,
            sweep=args.sweep,
            confirm=args.confirm,
            bos=args.bos,
            pairs=pairs,
            repeated=args.repeated,
            seed=args.seed,
            dtype=args.dtype,
            device=args.device,
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    path = None if out is None else effects.save(out)
    print(json.dumps(summary(effects), ensure_ascii=False, indent=1) if args.json else effects)
    if path is not None:
        print(f"\nWrote {path}.", file=sys.stderr)
    return 0


def summary(effects: Any) -> dict[str, Any]:
    """What ``--json`` prints: every number with its interval, and what follows from them."""
    from sinkgate.files import jsonable
    from sinkgate.interventions.verdict import kind

    meta = effects.meta
    names = ("model", "target", "settings", "texts", "targets", "controls", "donors", "where", "notes")
    found = {name: meta[name] for name in names} | {"kind": kind(effects), "verdict": effects.verdict()}
    found |= {
        "arms": [effects.summary(row) for row in effects.rows],
        "heads": [effects.head_summary(head) for head in effects.heads],
        "rank_correlations": effects.rank_correlations(),
    }
    return jsonable(found | ({"repeated": meta["repeated"]} if "repeated" in meta else {}))


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """One pair a line: two strings with a tab between, or in a ``.jsonl`` file ``[clean, corrupted]``.

    Raises:
        TextError: the file cannot be read, or a line is no pair.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as err:
        raise TextError(f"cannot read the pairs {str(path)!r}: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise TextError(f"{path} is not UTF-8 text (byte {err.start}); convert it first") from err
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pair = json.loads(line) if path.suffix == ".jsonl" else line.split("\t")
        except (ValueError, RecursionError) as err:
            raise TextError(f"{path}, line {number} is not JSON: {err}") from err
        pair = [pair.get("clean"), pair.get("corrupted")] if isinstance(pair, dict) else pair
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(p, str) and p for p in pair):
            form = (
                '["clean", "corrupted"]' if path.suffix == ".jsonl" else "a clean and a corrupted prompt, a tab between"
            )
            raise TextError(f"{path}, line {number} is no pair; expected {form}")
        pairs.append((pair[0], pair[1]))
    if not pairs:
        raise TextError(f"{path} holds no pairs")
    return pairs


def _position(value: str) -> str | int:
    if value in ("auto", "further"):
        return value
    try:
        return int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not auto, further or a number") from None


def _head(value: str) -> tuple[int, int]:
    try:
        layer, head = value.split(".")
        return int(layer), int(head)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not LAYER.HEAD, such as 5.3") from None
