"""Artifacts: contents are copied into the run folder, once each, under their sha256."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, open_run


def rows_of(run: Run) -> list[dict[str, Any]]:
    return open_run(run.path).artifacts().collect().to_dicts()


def kept(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run.path / "artifacts").iterdir()}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_kept(recorded: Run, kind: Any) -> None:
    """Bytes are stored as they are, under the name given, or "bytes"."""
    recorded.artifact(kind(b"\x00content\xff"), "weights", epoch=3)
    recorded.artifact(b"")
    first, second = rows_of(recorded)
    digest = sha256(b"\x00content\xff")
    assert (first["name"], first["sha256"], first["size"]) == ("weights", digest, 9)
    assert first["attributes"] == '{"epoch": 3}'
    assert (second["name"], second["sha256"], second["size"]) == ("bytes", sha256(b""), 0)
    assert kept(recorded) == {digest: b"\x00content\xff", sha256(b""): b""}


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_copied_before_the_call_returns(recorded: Run, tmp_path: Path, kind: Any) -> None:
    """A checkpoint that is overwritten or deleted afterwards is kept as it was."""
    file = tmp_path / "model.pt"
    content = os.urandom(3_000_000)
    file.write_bytes(content)
    recorded.artifact(kind(file))
    file.write_bytes(b"changed")
    recorded.artifact(kind(file), name="last")
    file.unlink()
    first, second = rows_of(recorded)
    assert (first["name"], first["sha256"], first["size"]) == (
        "model.pt",
        sha256(content),
        3_000_000,
    )
    assert (second["name"], second["sha256"]) == ("last", sha256(b"changed"))
    assert kept(recorded) == {sha256(content): content, sha256(b"changed"): b"changed"}


def test_a_folder_is_kept_file_by_file(recorded: Run, tmp_path: Path) -> None:
    """Each file below it is an artifact, named from the folder on, or from the name given."""
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"a")
    (folder / "deep" / "b.txt").write_bytes(b"b")
    recorded.artifact(folder, kind="results")
    recorded.artifact(folder, name="renamed")
    rows = rows_of(recorded)
    assert [row["name"] for row in rows] == [
        "out/a.txt",
        "out/deep/b.txt",
        "renamed/a.txt",
        "renamed/deep/b.txt",
    ]
    assert [row["sha256"] for row in rows] == [sha256(b"a"), sha256(b"b")] * 2
    assert rows[0]["attributes"] == '{"kind": "results"}'


def test_the_same_content_is_stored_once(recorded: Run, tmp_path: Path) -> None:
    """Two artifacts of equal content are two records and one file."""
    (tmp_path / "x").write_bytes(b"same")
    recorded.artifact(tmp_path / "x")
    recorded.artifact(b"same", "y")
    assert [row["name"] for row in rows_of(recorded)] == ["x", "y"]
    assert kept(recorded) == {sha256(b"same"): b"same"}


def test_a_missing_file_is_one_warning_and_counted(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises nothing; each is counted as dropped, and no partial file remains."""
    run.artifact(tmp_path / "nowhere.pt")
    run.artifact(tmp_path / "nowhere else.pt")
    run.artifact(b"fine", "fine")
    run.finish()
    [said] = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "nowhere.pt" in said
    assert [row["name"] for row in rows_of(run)] == ["fine"]
    assert open_run(run.path).processes().collect()["dropped"].to_list() == [2]
    assert kept(run) == {sha256(b"fine"): b"fine"}


def test_one_unreadable_file_of_a_folder_costs_itself_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files before and after it are stored, and one drop is counted."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(name.encode())
    opened = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "b":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    run.artifact(folder)
    monkeypatch.undo()
    run.finish()
    assert [row["name"] for row in rows_of(run)] == ["out/a", "out/c"]
    assert open_run(run.path).processes().collect()["dropped"].to_list() == [1]


@pytest.mark.parametrize("source", [5, None, object(), "a\0b", ["list"]])
def test_what_is_no_file_raises_nothing(run: Run, source: Any) -> None:
    """A wrong argument gives a warning; recording continues."""
    run.artifact(source)
    run.artifact(b"fine", "fine")
    assert [row["name"] for row in rows_of(run)] == ["fine"]


def test_an_artifact_knows_its_place(recorded: Run) -> None:
    """It carries step, epoch, thread and the span that it was made in."""
    recorded.set_step(4, epoch=1)
    with recorded.span("checkpoint"):
        recorded.artifact(b"x", "x")
    [row] = rows_of(recorded)
    [span] = open_run(recorded.path).spans().collect().to_dicts()
    assert (row["step"], row["epoch"], row["thread"]) == (4, 1, "MainThread")
    assert row["span"] == span["id"]
    assert span["start_ns"] <= row["time_ns"] <= span["start_ns"] + span["duration_ns"]
