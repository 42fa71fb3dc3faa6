"""Links, pipes, devices and spools: a reader of an untrusted run never leaves its folder."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell._core.system import boot_id
from tests.reading.strangers import OUTSIDE, Read, place, process, read_everything, segment_files


def replace_by_link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def test_links_are_not_followed(folder: Path, tmp_path: Path, read: Read) -> None:
    """Every file of the run in turn is a link to one outside: nothing of that is read."""
    outside = tmp_path / "outside"
    shutil.copytree(folder, outside)
    for path in outside.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl"):
            path.write_bytes(
                path.read_bytes().replace(b'"outer"', OUTSIDE).replace(b'"e"', OUTSIDE)
            )
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        original = path.read_bytes()
        replace_by_link(path, outside / path.relative_to(folder))
        read(folder)
        path.unlink()
        path.write_bytes(original)


def test_linked_folders_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """Neither a process folder nor the folder of its workers may be somewhere else."""
    inside = process(folder)
    outside = Path(shutil.copytree(inside, tmp_path / "outside"))
    names = outside / "names.jsonl"
    names.write_bytes(names.read_bytes().replace(b'"outer"', OUTSIDE))
    (folder / "rank-00001.attempt-0.pid-1").symlink_to(outside)
    (tmp_path / "workers").mkdir()
    shutil.copytree(outside, tmp_path / "workers" / "w")
    (inside / "workers").symlink_to(tmp_path / "workers")
    assert read_everything(folder)["processes"] == 1


@pytest.mark.full
def test_a_spool_elsewhere_is_not_read(folder: Path, tmp_path: Path) -> None:
    """A document of this very machine cannot point a reader at another folder."""
    name = process(folder).name
    outside = tmp_path / "private" / name
    shutil.copytree(process(folder), outside)
    names = outside / "names.jsonl"
    names.write_bytes(names.read_bytes().replace(b'"outer"', OUTSIDE))
    other = tmp_path / "stepwell-0" / "another run" / name
    shutil.copytree(outside, other)
    unlike = tmp_path / "other" / folder.name / name
    shutil.copytree(outside, unlike)
    linked = tmp_path / "stepwell-1" / folder.name
    linked.parent.mkdir()
    linked.symlink_to(outside.parent)
    path = process(folder) / "process.json"
    document = json.loads(path.read_text())
    assert document["boot"] == boot_id()
    climbing = f"{tmp_path}/stepwell-0/{folder.name}/../../private/{name}"
    for spool in (outside, other, unlike, linked / name, climbing, f"{name}", "", "\0"):
        path.write_text(json.dumps({**document, "spool": str(spool)}))
        read_everything(folder)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_passed_over(
    folder: Path, make: Callable[[Path], None], read: Read
) -> None:
    """A pipe is not waited for; a folder in the place of a file is not read."""
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        original = path.read_bytes()
        path.unlink()
        make(path)
        read(folder)
        path.unlink() if path.is_fifo() else path.rmdir()
        path.write_bytes(original)


def test_endless_files_are_passed_over(folder: Path) -> None:
    """Links to devices that never end, and sparse files of a terabyte, cost no memory."""
    for name in ("names.jsonl", "events.jsonl"):
        replace_by_link(place(folder, name), Path("/dev/zero"))
    with (folder / "run.json").open("r+b") as file:
        file.truncate(1 << 40)
    for path in segment_files(folder):
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    limit = 3 << 30
    code = (
        "import sys; from tests.reading.strangers import read_everything; from pathlib import Path;"
    )
    subprocess.run(
        [sys.executable, "-c", f"{code} read_everything(Path(sys.argv[1]))", str(folder)],
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "POLARS_MAX_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
