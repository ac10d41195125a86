"""Records that somebody else wrote: shown, or refused with one line, at the start and while they are served."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from sinkgate.errors import RecordError, SinkgateError
from sinkgate.files import read_json
from sinkgate.record import Diagnosis
from sinkgate.studio.records import Shelf
from studio.kept import KINDS, NAMES, diagnosis, keep, mutations
from studio.raw import ask, said
from studio.watched import Serving


def refused(path: Path) -> str:
    with pytest.raises(RecordError) as error:
        Shelf([path])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    return str(error.value)


def changed(file: Path, change: Callable[[Any], Any]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_found_in_its_folder_by_its_file_and_one_level_up(kind: str, tmp_path: Path) -> None:
    file = keep(kind, tmp_path / "all" / "one")
    for path in (file, file.parent, tmp_path / "all"):
        shelf = Shelf([path])
        (entry,) = shelf.entries()
        assert (entry.kind, entry.name, entry.payload) == (kind, "one", None)
        assert isinstance(json.loads(shelf.payload(entry.id)), dict)
        assert isinstance(shelf.record(entry.id), object)
    assert "holds no record" in refused(tmp_path)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of numbers that overflow; the command shows none
@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_is_missing_or_wrong_is_refused_or_harmless(kind: str, tmp_path: Path) -> None:
    """Never another error than ours, from reading it, from drawing it, from printing it."""
    file = keep(kind, tmp_path / "r")
    shelf = Shelf([file])
    before = shelf.payload("0")
    refusals = 0
    for what, text in mutations(json.loads(file.read_text()), 40 if kind in ("comparison", "diagnosis") else 120):
        file.write_text(text)
        try:
            record = shelf.record("0")
            shelf.payload("0")
            str(record)
            line = ""
        except RecordError as err:
            refusals += 1
            line = str(err)
        except SinkgateError as err:
            pytest.fail(f"{what}: {type(err).__name__}: {err}")
        assert "\n" not in line, what
        assert "Error:" not in line, f"{what}: a reader's surprise and not its own word: {line}"
    assert refusals > 10
    keep(kind, tmp_path / "r")
    assert shelf.payload("0") == before or kind == "diagnosis"


def tensors(file: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """The arrays of a record changed, and everything that vouches for them with it."""
    d = Diagnosis.load(file)
    arrays = {name: array.copy() for name, array in d.arrays.items()}
    change(arrays)
    Diagnosis(d.meta, arrays).save(file.parent)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e300, 1e300, -1.0])
def test_arrays_of_nothing_but_nonsense_are_drawn_or_refused(value: float, tmp_path: Path) -> None:
    file = keep("diagnosis", tmp_path / "r")
    names = [name for name, array in diagnosis().arrays.items() if array.dtype == np.float64]
    for name in (*names, None):

        def change(arrays: dict[str, np.ndarray], name: str | None = name) -> None:
            for each in names if name is None else [name]:
                arrays[each][...] = value

        keep("diagnosis", tmp_path / "r")
        tensors(file, change)
        try:
            drawn = Shelf([file]).payload("0")
        except RecordError:
            continue
        assert b"NaN" not in drawn
        assert b"Infinity" not in drawn


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "a/record-0123456789ab.safetensors",
        "",
        "record-0123456789ab.safetensors\n",
        7,
    ],
)
def test_a_path_that_leaves_the_folder_is_refused(name: Any, tmp_path: Path) -> None:
    file = keep("diagnosis", tmp_path / "r")
    changed(file, lambda data: data["tensors"].update(file=name))
    assert "does not name its tensors file" in refused(file)


def test_links_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    file = keep("diagnosis", tmp_path / "r")
    (inside,) = file.parent.glob("*.safetensors")
    inside.rename(tmp_path / "elsewhere.safetensors")
    inside.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "is a link that leaves its folder" in refused(file.parent)

    whole = keep("stream", tmp_path / "private")
    (tmp_path / "shown" / "deep").mkdir(parents=True)
    (tmp_path / "shown" / "deep" / "stream.json").symlink_to(whole)
    assert "a link that leaves" in refused(tmp_path / "shown")  # nothing else is there
    keep("recall", tmp_path / "shown" / "good")
    (tmp_path / "shown" / "away").symlink_to(whole.parent, target_is_directory=True)
    shelf = Shelf([tmp_path / "shown"])
    assert [entry.name for entry in shelf.entries()] == ["good"]
    assert len(shelf.notes) == 2
    (tmp_path / "to private").symlink_to(whole.parent)
    assert [entry.kind for entry in Shelf([tmp_path / "to private"]).entries()] == ["stream"]  # it was named


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / NAMES[kind]
    path.mkdir()
    assert "no plain file" in refused(tmp_path)
    path.rmdir()
    os.mkfifo(path)
    assert "no plain file" in refused(tmp_path)  # and nobody waits for a writer
    path.unlink()
    path.symlink_to(path)
    refused(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": 3}', b'{"format": ["sinkgate.stream"]}', b'{"format": "other"}',
     b'{"format": "sinkgate.stream", "version": NaN}', b'{"format": "sinkgate.stream", "version": 1e999}',
     b'{"format": "sinkgate.stream", "version": 1' + b"0" * 5000 + b"}"],
)  # fmt: skip
def test_what_is_no_record_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(content)
    assert "record.json" in refused(tmp_path)
    assert "record.json" in refused(tmp_path / "record.json")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [2, 99, "1", None, True, [1]])
def test_a_future_version_is_refused(kind: str, version: Any, tmp_path: Path) -> None:
    file = keep(kind, tmp_path)
    changed(file, lambda data: data.update(version=version))
    assert "version" in refused(file)


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: nothing is written
    assert "larger than" in refused(path)
    with pytest.raises(RecordError, match="larger than the 0 MiB"):
        read_json(keep("stream", tmp_path / "s"), "a record", most=100)


@pytest.mark.parametrize("damage", ["truncated", "empty", "gone", "one bit"])
def test_damaged_tensors_are_refused(damage: str, tmp_path: Path) -> None:
    file = keep("diagnosis", tmp_path)
    (data,) = tmp_path.glob("*.safetensors")
    whole = data.read_bytes()
    if damage == "gone":
        data.unlink()
    else:
        data.write_bytes(
            {"truncated": whole[:-9], "empty": b"", "one bit": whole[:-1] + bytes([whole[-1] ^ 1])}[damage]
        )
    assert "safetensors" in refused(file)


def test_tensors_whose_header_lies_are_refused(tmp_path: Path) -> None:
    import hashlib

    file = keep("diagnosis", tmp_path)
    for content in (
        b"\xff" * 8,
        (2**40).to_bytes(8, "little") + b"{}",
        safetensors.numpy.save({"first_sum": np.zeros((0, 0, 0))}),
    ):
        digest = hashlib.sha256(content).hexdigest()
        name = f"record-{digest[:12]}.safetensors"
        (tmp_path / name).write_bytes(content)
        changed(file, lambda data, n=name, d=digest: data.update(tensors={"file": n, "sha256": d}))
        refused(file)


def test_a_record_that_changes_while_it_is_served_is_read_again_and_refused_and_comes_back(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    file = keep("stream", tmp_path)
    port = serving(records=[tmp_path]).port
    good = ask(port, "/api/records/0")
    assert good[0] == 200
    whole = file.read_text()
    changed(file, lambda data: data["meta"].update(text="another text"))
    assert json.loads(ask(port, "/api/records/0")[2])["meta"]["text"] == "another text"
    for text in ("{", whole.replace('"version": 1', '"version": 2'), ""):
        file.write_text(text)
        status, _, line = ask(port, "/api/records/0")
        assert status == 400
        assert str(file) in said(line)
    file.unlink()
    assert "cannot be read any more" in said(ask(port, "/api/records/0")[2])
    file.write_text(whole)
    assert ask(port, "/api/records/0")[2] == good[2]
    assert ask(port)[0] == 200


def test_one_bad_record_below_a_folder_does_not_hide_the_others(
    serving: Callable[..., Serving], tmp_path: Path
) -> None:
    keep("stream", tmp_path / "a good one")
    bad = keep("recall", tmp_path / "bad")
    changed(bad, lambda data: data.update(arms=3))
    port = serving(records=[tmp_path]).port
    found = json.loads(ask(port, "/api/records")[2])
    assert [each["name"] for each in found] == ["a good one", "bad"]
    assert [ask(port, f"/api/records/{each['id']}")[0] for each in found] == [200, 400]


def test_a_folder_with_a_name_that_is_no_text(serving: Callable[..., Serving], tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff<script>")
    keep("stream", Path(folder))
    port = serving(records=[Path(folder)]).port
    (found,) = json.loads(ask(port, "/api/records")[2])
    assert "<script>" in found["name"]
    assert ask(port)[0] == 200
    assert b"\xff" not in ask(port)[2]


def test_many_records(tmp_path: Path) -> None:
    whole = keep("stream", tmp_path / "all" / "0").read_bytes()
    for i in range(1, 201):
        (tmp_path / "all" / str(i)).mkdir()
        (tmp_path / "all" / str(i) / "stream.json").write_bytes(whole)
    assert "more than 200 records" in refused(tmp_path / "all")
