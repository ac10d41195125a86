"""``sinkgate diagnose MODEL``: load, read some text, print the verdict, keep the record and the report."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sinkgate.errors import ArgumentError, OutputError, TextError

__all__ = ["arguments", "run"]

DEFAULT_MODEL = "smollm2-135m"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    add = parser.add_argument
    add("model", nargs="*", default=[DEFAULT_MODEL], metavar="MODEL",
        help="known name (smollm2-135m, gemma3-270m), directory, .gguf file or Hub id; several make a series; "
        f"default: {DEFAULT_MODEL}")  # fmt: skip
    add("--text", nargs="+", metavar="FILE", help="text files, - for standard input; default: standard input if "
        "something is piped in, else the demo speeches")  # fmt: skip
    add("--out", metavar="DIR", help="write report.html and the record here")
    add("--tokens", type=int, default=1024, metavar="N", help="tokens per sample (default: %(default)s)")
    add("--samples", type=int, default=8, metavar="N", help="samples at most (default: %(default)s)")
    add("--batch-size", type=int, default=1, metavar="N", help="samples per pass (default: %(default)s)")
    add(
        "--threshold",
        type=float,
        default=0.3,
        metavar="EPS",
        help="a head sinks over this (default: %(default)s)",
    )
    add(
        "--bos",
        choices=["auto", "yes", "no"],
        default="auto",
        help="beginning-of-text token: as the tokenizer does, always, never",
    )
    add(
        "--detail",
        choices=["first", "keys", "full"],
        default="full",
        help="first four tokens; every key; everything",
    )
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto")
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")
    add("--workers", type=int, metavar="N", help="deal the samples out to N Ray workers (pip install 'sinkgate[ray]')")
    add("--ray", metavar="ADDRESS", help="the Ray cluster of --workers; default: one that is found, or this machine")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    texts = read_texts(args.text)
    out = None if args.out is None else writable(Path(args.out))
    from sinkgate.probe.text import default_texts
    from sinkgate.record import Diagnosis
    from sinkgate.schema import Settings

    Settings(threshold=args.threshold)  # refuse before anything is fetched
    diagnose = _diagnose(args)
    with progress_bar() as progress:
        result = diagnose(
            args.model if len(args.model) > 1 else args.model[0],
            texts=default_texts() if texts is None else texts,
            tokens=args.tokens,
            samples=args.samples,
            bos=args.bos,
            threshold=args.threshold,
            detail=args.detail,
            batch_size=args.batch_size,
            dtype=args.dtype,
            device=args.device,
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    if out is not None:
        result.save(out)
        result.to_html(out / "report.html")
    if isinstance(result, Diagnosis):
        print(json.dumps(summary(result), ensure_ascii=False, indent=1) if args.json else result)
    else:
        rows = result.rows()
        if args.json:
            print(json.dumps({"series": rows}, ensure_ascii=False, indent=1))
        else:
            print(f"{'first-token mass':>16}  {'null':>6}  {'sink rate':>9}  checkpoint")
            for row in rows:
                print(
                    f"{row['first_token_mass']:16.3f}  {row['null_mass']:6.3f}  {row['sink_rate']:9.1%}  {row['name']}"
                )
    if out is not None:
        print(f"\nWrote {out / 'report.html'} and the record beside it.", file=sys.stderr)
    return 0


def _diagnose(args: argparse.Namespace) -> Any:
    """In this process, or over workers."""
    if args.workers is None:
        if args.ray is not None:
            raise ArgumentError("--ray is the cluster of --workers N; say how many")
        from sinkgate.probe.diagnose import diagnose

        return diagnose
    from sinkgate.probe.spread import diagnose_with_ray

    return partial(diagnose_with_ray, workers=args.workers, address=args.ray, gpus=int(args.device != "cpu"))


def summary(d: Any) -> dict[str, Any]:
    """What ``--json`` prints: numbers with their null and interval, the strongest heads, the sinks."""
    from dataclasses import asdict

    from sinkgate.files import jsonable
    from sinkgate.report.summary import strongest

    mean = d.mean_mass()
    return jsonable(
        {
            "model": d.meta["model"],
            "settings": d.meta["settings"],
            "samples": d.samples,
            "texts": [sample["source"] for sample in d.meta["samples"]],
            "first_token_mass": {"mean": float(mean.mean), "low": float(mean.low), "high": float(mean.high)},
            "null_mass": float(d.null_mass[d.measured].mean()),
            "sink_rate": {c: d.sink_rate(d.settings.threshold, c) for c in ("mean", "sample")},
            "verdict": d.verdict(),
            "notes": d.meta["notes"],
            "unmeasured": [layer for layer in d.layers if layer["reason"]],
            "strongest": strongest(d),
            "sinks": [asdict(s) for s in d.sinks[:20]],
        }
    )


def read_texts(files: list[str] | None) -> list[Any] | None:
    """The texts named, or what is piped in; None for neither.

    Raises:
        TextError: a file that is not there, not UTF-8 text, or empty.
    """
    from sinkgate.probe.text import Text

    if files is None:
        try:
            mode = os.fstat(sys.stdin.fileno()).st_mode
        except (OSError, ValueError, AttributeError):  # closed, or not a real file
            return None
        if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
            return None
        print("sinkgate: reading the text from standard input", file=sys.stderr)
        files = ["-"]
    texts = []
    for name in files:
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as err:
            raise TextError(f"cannot read the text {name!r}: {err.strerror}") from err
        try:
            content = data.decode("utf-8-sig")
        except UnicodeDecodeError as err:
            raise TextError(
                f"{name} is not UTF-8 text (byte {err.start} is 0x{data[err.start]:02x}); convert it first"
            ) from err
        if "\0" in content:
            raise TextError(f"{name} holds NUL bytes: it is binary, not text")
        if not content.strip():
            raise TextError(f"{name if name != '-' else 'standard input'} is empty; give at least two tokens of text")
        texts.append(Text("standard input" if name == "-" else name, content))
    return texts


def writable(directory: Path) -> Path:
    """Make sure now that the result can be written later.

    Raises:
        OutputError: it cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".sinkgate-"):
            pass
    except OSError as err:
        raise OutputError(f"cannot write to --out {directory}: {err.strerror}; choose another directory") from err
    return directory


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc="reading", unit="layer", leave=False) as bar:

        def progress(done: int, total: int, what: str) -> None:
            bar.total, bar.unit = total, what.removesuffix("s")
            bar.update(done - bar.n)

        yield progress
