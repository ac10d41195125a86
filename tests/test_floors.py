"""A module imports only from floors below its own, and importing the package does nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sinkgate"

# the first part of a module's name under sinkgate → its floor (docs/architecture.md has the same table)
FLOORS = {
    "weighting": 0, "gate": 0, "geometry": 0, "masks": 0, "rope": 0, "quantization": 0,
    "ops": 1,
    "call": 1.5,  # one operation, asked for
    "nn": 2, "cache": 2, "site": 2,
    "blocks": 2.5,  # the weights of a site
    "testing": 2.5,  # the conformance suite of one weighting
    "outlet": 2.5,  # modules that add to a call
    "hf": 3,
    "probe": 4,
    "evaluate": 5, "interventions": 5.5,  # an effect is a difference of scores
    "lab": 6,
    "planning": 7,
    "report": 8, "studio": 8.5,  # serves the pages of report
    "cli": 9, "__main__": 10,
}  # fmt: skip
# Beside the floors: what everybody may import, in this order among themselves.
BESIDE = ["errors", "files", "schema", "record", "storage", "series", "workers"]
PLAIN = ("errors", "files")  # no records in them: for every floor
# A record shows itself (`to_html`, `verdict`, `__str__`), is kept by `storage`; imported when asked, not before.
UPWARD = {("record", "report"), ("record", "storage"), ("record", "geometry"), ("record", "probe"),
          ("series", "report"), ("lab", "report")}  # fmt: skip


def imports(path: Path) -> list[tuple[str, bool]]:
    """(first part under sinkgate, whether at the top level) of every import of our own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sinkgate"):
            parts = (node.module or "").split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1] for a in node.names if a.name.startswith("sinkgate.")]
        top = node in tree.body
        found += [(name, top) for name in names if name != "__version__"]
    return found


def modules() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    mine = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert mine in FLOORS or mine in BESIDE, f"{mine} has no floor: add it to the table"
    for name, top in imports(path):
        if name == mine:
            continue
        if (mine, name) in UPWARD:
            assert not top, f"{mine} imports {name} when it is loaded; only when asked is allowed"
            continue
        if mine in BESIDE:
            assert name in BESIDE, f"{mine} stands beside the floors and must not import {name}"
            assert BESIDE.index(name) < BESIDE.index(mine), f"{mine} must not import {name}"
        elif name not in BESIDE:
            assert FLOORS[name] < FLOORS[mine], f"{mine} (floor {FLOORS[mine]}) imports {name} (floor {FLOORS[name]})"
        elif name not in PLAIN:
            assert FLOORS[mine] >= 4, f"{mine} (floor {FLOORS[mine]}) must not know records"


def test_only_the_hf_floor_knows_transformers() -> None:
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if any(n.split(".")[0] == "transformers" for n in names):
                assert path.relative_to(SOURCE).parts[0] == "hf", f"{path} imports transformers"


def test_import_does_nothing() -> None:
    code = (
        "import sys, os, warnings; warnings.simplefilter('error'); before = dict(os.environ); import sinkgate;"
        "assert dict(os.environ) == before; bad = {'torch', 'transformers', 'numpy'} & set(sys.modules); assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


def test_help_opens_without_torch() -> None:
    code = (
        "import sys; from sinkgate.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: assert e.code == 0\n"
        "assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "diagnose" in done.stdout


def test_registering_is_idempotent_and_only_on_request() -> None:
    code = (
        "import sinkgate as sg\n"
        "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as A\n"
        "from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as M\n"
        "assert not [n for n in A.valid_keys() if 'sinkgate' in n]\n"
        "sg.register(); first = A.valid_keys(); sg.register(); assert A.valid_keys() == first\n"
        "ours = [n for n in first if 'sinkgate' in n]; assert ours and all(n in M.valid_keys() for n in ours)\n"
        "assert not [n for n in ours if any(w in n for w in ('sdpa', 'flash', 'flex'))]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
