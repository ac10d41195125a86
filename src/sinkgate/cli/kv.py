"""``sinkgate kv CONFIG --context N``: what a model's key-value cache weighs, under every scheme. Needs no weights."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

from sinkgate.cache.schemes import Options, Scheme, Schemes, schemes
from sinkgate.cache.shape import CacheShape
from sinkgate.cache.sizes import BITS, human, parse_count
from sinkgate.errors import ArgumentError

__all__ = ["arguments", "run", "summary"]

# flag of a shape → what it is called in CacheShape.uniform
SHAPE = ("layers", "heads", "kv_heads", "head_dim", "v_dim", "sliding_layers", "linear_layers", "linear_heads", "linear_k_dim", "linear_v_dim")  # fmt: skip
OPTIONS = ("batch", "sinks", "recent", "window", "latent", "rotary", "share", "retrieval", "top_k", "group", "residual", "state_bits")  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG",
        help="a Hugging Face config.json, a folder with one, or a known model that is on this machine (sinkgate ls models)",
    )  # fmt: skip
    add = parser.add_argument
    add("--context", metavar="N", help="tokens: 262144, 256k, 1m, 2**20 (default: the longest the config speaks of)")
    add("--batch", type=int, default=1, metavar="N", help="sequences of that length (default: %(default)s)")
    add("--bits", nargs="+", default=[str(bits) for bits in Options.bits], metavar="B",
        help=f"of a stored number, of {', '.join(map(str, BITS))}: a row each; under 16 with its scales (default: 16 8 4 2)")  # fmt: skip
    add("--json", action="store_true", help="print JSON instead of text")
    add = parser.add_argument_group("a model without a config").add_argument
    add("--layers", type=int, metavar="N", help="attention layers, the linear ones not among them")
    add("--heads", type=int, metavar="N", help="query heads")
    add("--head-dim", type=int, metavar="N", help="size of a key of one head")
    add("--kv-heads", type=int, metavar="N", help="key-value heads (default: as many as heads)")
    add("--v-dim", type=int, metavar="N", help="size of a value of one head (default: that of a key)")
    add("--sliding-layers", type=int, metavar="N", help="how many of the layers keep only the last --window tokens")
    add("--linear-layers", type=int, metavar="N", help="layers with a state instead, beside --layers")
    add("--linear-heads", type=int, metavar="N", help="heads of those (default: as many as heads)")
    add("--linear-k-dim", type=int, metavar="N", help="rows of their states (default: the size of a key)")
    add("--linear-v-dim", type=int, metavar="N", help="columns of their states (default: as many as rows)")
    add = parser.add_argument_group("the schemes").add_argument
    add("--latent", type=int, metavar="N",
        help="width of the latent in the MLA row (default: the model's own, else 512); without CONFIG and --kv-heads, the model has it")  # fmt: skip
    add(
        "--rotary", type=int, metavar="N", help="width of the rotated key beside it (default: the model's own, else 64)"
    )
    add("--window", type=int, metavar="N", help="of the window row (default: the model's own, else 4096)")
    add("--state-bits", type=int, default=Options.state_bits, metavar="B", help="of a number of a state: 16 or 32 (default: %(default)s)")  # fmt: skip
    for name, kind, line in (
        ("sinks", int, "first tokens that the streaming rows keep"),
        ("recent", int, "last tokens that they keep"),
        ("retrieval", float, "share of the key-value heads that keep everything in the row of streaming heads"),
        ("share", int, "layers that keep one cache together"),
        ("top-k", int, "tokens that a query reads in the sparse row"),
        ("group", int, "numbers that share a scale in the quantised rows"),
        ("residual", int, "last tokens that the quantised rows leave as they are"),
    ):
        value = getattr(Options, name.replace("-", "_"))
        add(f"--{name}", type=kind, default=value, metavar="N", help=f"{line} (default: {value})")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    given = {name: getattr(args, name) for name in SHAPE if getattr(args, name) is not None}
    if args.config is not None and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ArgumentError(f"give a config or the numbers of a model, not both ({flags})")
    name = args.config or "a model of these numbers"
    shape = _from_flags(args, given) if args.config is None else _from_config(args.config)
    if args.context is None and not shape.positions:
        raise ArgumentError("how long is the text? give --context, such as --context 256k")
    options = Options(
        context=shape.positions if args.context is None else parse_count(args.context),
        bits=tuple(_bits(bits) for bits in args.bits),
        **{name: getattr(args, name) for name in OPTIONS},
    )
    found = schemes(shape, options)
    if args.json:
        print(json.dumps(summary(name, shape, options, found), ensure_ascii=False, indent=1))
    else:
        print(_text(name, shape, options, found))
    return 0


def summary(name: str, shape: CacheShape, options: Options, found: Schemes) -> dict[str, Any]:
    """What ``--json`` prints; sizes in bytes."""
    whole = found.rows[0].total_bytes
    return {
        "model": name,
        "layers": shape.groups(),
        "options": dataclasses.asdict(options) | {"plain_bits": options.plain_bits},
        "rows": [
            dataclasses.asdict(row)
            | {"total_bytes": row.total_bytes, "of_model": row.total_bytes / whole if whole else None}
            for row in found.rows
        ],
        "left_out": found.left_out,
    }


def _text(name: str, shape: CacheShape, options: Options, found: Schemes) -> str:
    """The table for people."""
    many = f"{options.batch} sequences" if options.batch > 1 else "one sequence"
    lines = [name, textwrap.indent(shape.describe(), "  ")]
    lines += [
        f"{many} of {options.context:,} tokens, {options.plain_bits} bits a number where a row does not say another",
        "",
    ]
    lines += [f"{'scheme':<18}{'a token adds':>13}{'kept':>12}{'read a step':>13}{'of model':>11}"]
    said = ""
    for row in found.rows:
        lines += _line(row, found.rows[0].total_bytes, "as above" if row.note == said else row.note)
        said = row.note
    state = found.rows[0].state_bytes
    lines += [
        "",
        "Each row changes one thing of this model. kept: for all sequences; a token adds: to one, once windows are full.",
    ]
    lines += [f"{human(state)} of what this model keeps are states, whatever the length."] if state else []
    lines += [f"No row for {scheme}: {why}." for scheme, why in found.left_out.items()]
    return "\n".join(lines)


def _line(row: Scheme, whole: int, note: str) -> list[str]:
    share = f"{row.total_bytes / whole:.3g}×" if whole else ""
    head = (
        f"{row.name:<18}{human(row.token_bytes):>13}{human(row.total_bytes):>12}{human(row.read_bytes):>13}{share:>11}"
    )
    notes = textwrap.wrap(note, 60)
    return [f"{head}  {notes[0]}", *(" " * 69 + more for more in notes[1:])]


def _bits(text: str) -> int:
    if text not in map(str, BITS):
        raise ArgumentError(f"bits must be of {', '.join(map(str, BITS))}, got {text!r}")
    return int(text)


def _from_flags(args: argparse.Namespace, given: dict[str, int]) -> CacheShape:
    missing = [f"--{name.replace('_', '-')}" for name in ("layers", "heads", "head_dim") if name not in given]
    if missing:
        raise ArgumentError(
            f"give a config (config.json, its folder or a known model), or the numbers of a model: {', '.join(missing)} missing"
        )
    if args.latent is not None and "kv_heads" not in given:
        given |= {"latent": args.latent} | ({} if args.rotary is None else {"rotary": args.rotary})
    if args.window is not None:
        given["window"] = args.window
    return CacheShape.uniform(**given)


def _from_config(name: str) -> CacheShape:
    """The shape from a file, a folder, or a known model's copy on this machine."""
    path = Path(name)
    try:
        path = path if path.exists() else _known(name)
        path = path / "config.json" if path.is_dir() else path
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as err:
        raise ArgumentError(f"cannot read {str(path)!r}: {err.strerror}") from err
    except ArgumentError:
        raise
    except (ValueError, RecursionError) as err:
        raise ArgumentError(f"{str(path)!r} is not JSON ({err}); a Hugging Face config.json is wanted") from err
    try:
        return CacheShape.from_config(config)
    except ArgumentError as err:
        raise ArgumentError(f"{path}: {err}") from err


def _known(name: str) -> Path:
    """Where a known model's config is, if it was fetched before; nothing is downloaded for this."""
    from sinkgate.hf.fetch import cache_dir, known_models

    model = known_models().get(name)
    if model is None:
        raise ArgumentError(
            f"no file or folder {name!r}, and no known model of that name ({', '.join(known_models())}); "
            "give a config.json, or the numbers as flags (--layers, --heads, --head-dim)"
        )
    path = cache_dir() / "models" / f"{model.name}-{model.gguf_sha256[:12]}" / "config.json"
    if not path.exists():
        size = sum(wheel.megabytes for wheel in model.wheels)
        raise ArgumentError(
            f"{name} is not on this machine, and {size} MB are not fetched for its config alone: `sinkgate diagnose {name}` "
            "fetches it, or give a config.json, or the numbers as flags (--layers, --heads, --head-dim)"
        )
    return path
