"""Several checkpoints of one model, diagnosed on the same text."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sinkgate.errors import RecordError
from sinkgate.files import write_atomically
from sinkgate.record import Diagnosis
from sinkgate.schema import VERSION

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Series"]


@dataclass
class Series:
    """Several checkpoints of one model, diagnosed on the same text, in order."""

    names: list[str]
    diagnoses: list[Diagnosis]

    def __iter__(self) -> Any:
        return iter(zip(self.names, self.diagnoses, strict=True))

    def __len__(self) -> int:
        return len(self.names)

    def rows(self) -> list[dict[str, Any]]:
        """Per checkpoint: name, mean first-token mass with interval, null, sink rate."""
        rows = []
        for name, d in self:
            mean = d.mean_mass()
            rows.append(
                {
                    "name": name,
                    "first_token_mass": float(mean.mean),
                    "low": float(mean.low),
                    "high": float(mean.high),
                    "null_mass": float(np.nanmean(d.null_mass)),
                    "sink_rate": d.sink_rate(d.settings.threshold),
                }
            )
        return rows

    def to_frame(self) -> pd.DataFrame:
        """:meth:`rows` as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """One record per checkpoint in numbered folders, and ``series.json`` that lists them."""
        directory = Path(directory)
        folders = []
        for i, (name, d) in enumerate(self):
            folder = f"{i:03d}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[-60:]}"
            d.save(directory / folder)
            folders.append({"name": name, "folder": folder})
        text = json.dumps({"format": "sinkgate.series", "version": VERSION, "items": folders}, indent=1)
        write_atomically(directory / "series.json", text.encode())
        return directory

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Series:
        """Open a saved series."""
        directory = Path(directory)
        try:
            meta = json.loads((directory / "series.json").read_text(encoding="utf-8"))
            items = [(str(i["name"]), str(i["folder"])) for i in meta["items"]]
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise RecordError(f"{directory} is not a readable series: {err}") from err
        if any(Path(folder).name != folder for _, folder in items):
            raise RecordError(f"{directory}/series.json points outside its own folder")
        return cls([n for n, _ in items], [Diagnosis.load(directory / folder) for _, folder in items])

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """The last checkpoint's report with the curve over checkpoints on it."""
        from sinkgate.report.html import render
        from sinkgate.report.payload import payload

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, render(payload(self.diagnoses[-1], series=self)).encode())
        return path
