"""An untrusted run folder: whatever its files contain, reading succeeds."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import StepwellError, list_runs, open_run
from stepwell.reading.documents import OPTIONAL, REQUIRED
from tests.harness.marks import others_in_full
from tests.reading.strangers import Read, place, process, put, read_everything, segment_files

TEXTS = ["process.json", "names.jsonl", "events.jsonl", "run.json"]


GARBAGE: list[bytes] = [
    b"",
    b"\0" * 5000,
    b"{",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"NaN",
    b"\xff\xfe\x00garbage",
    b"[" * 20_000,
    b'{"a":' * 20_000,
    b'{"id": 1}\n{"time": 1}\n{"id": "x", "time": "y"}\n' * 10,
    b'{"id": 99999999999999, "kind": "span", "name": "far"}\n',
    b'{"id": 3, "kind": [], "category": {}, "name": "\\ud800"}\n',
    b"1" * 10_000,
    os.urandom(20_000),
]


def test_the_folder_is_readable_before_anything_is_done_to_it(folder: Path) -> None:
    """The tests below damage a run that is complete."""
    counts = read_everything(folder)
    assert counts["spans"] == 7
    assert (counts["metrics"], counts["events"], counts["artifacts"]) == (4, 3, 1)
    assert (counts["open_spans"], counts["processes"]) == (1, 1)


@pytest.mark.parametrize("name", others_in_full(TEXTS, TEXTS[:1]))
def test_garbage_in_a_text_file(folder: Path, name: str, read: Read) -> None:
    """Instead of the file, and around what was in it, garbage raises nothing."""
    path = place(folder, name)
    original = path.read_bytes()
    for garbage in GARBAGE:
        put(path, garbage)
        read(folder)
        put(path, garbage + b"\n" + original + garbage)
        read(folder)


VALUES: list[Any] = [
    None,
    True,
    -1,
    2**31,
    2**63,
    2**200,
    0.5,
    "x",
    "\ud800",
    [],
    [[1, 2]],
    {},
    {"a": []},
]


USED = [*REQUIRED, *OPTIONAL, "anchors", "drops", "error", "interval"]


@pytest.mark.full
def test_any_field_of_a_process_may_be_anything(folder: Path, read: Read) -> None:
    """Each field of process.json in turn is of a wrong type, too large, or missing."""
    path = process(folder) / "process.json"
    good = json.loads(path.read_text())
    for key in USED:
        for value in [None, -1, 2**200, 0.5, "\ud800", [[1, 2]], {"a": []}]:
            put(path, json.dumps({**good, key: value}))
            read(folder)
        put(path, json.dumps({k: v for k, v in good.items() if k != key}))
        read(folder)


@pytest.mark.parametrize("name", ["events.jsonl", "names.jsonl"])
def test_any_field_of_an_event_or_a_name_may_be_anything(
    folder: Path, name: str, read: Read
) -> None:
    """Each field of each line in turn is of a wrong type, too large, or missing."""
    path = process(folder) / name
    lines = path.read_text().splitlines()
    entries = [json.loads(line) for line in (lines[0], lines[-1])]
    missing = [{k: v for k, v in entry.items() if k != key} for entry in entries for key in entry]
    for value in VALUES:
        odd = [{**entry, key: value} for entry in entries for key in entry]
        put(path, "\n".join([*lines, *map(json.dumps, odd + missing)]))
        counts = read(folder)
        assert counts["events"] >= 3
        assert counts["artifacts"] >= 1


@pytest.mark.full
def test_any_field_of_run_json_may_be_anything(folder: Path, read: Read) -> None:
    """Id, name, config and the rest may be of any type."""
    path = folder / "run.json"
    good = json.loads(path.read_text())
    for key in good:
        for value in VALUES:
            put(path, json.dumps({**good, key: value}))
            run = open_run(folder)
            assert (read(folder)["metrics"], run.status) == (4, "running")
            assert isinstance(run.config, dict)
            assert list_runs(folder.parent)[0].name == run.name


def test_an_id_that_could_be_a_path_is_not_taken(folder: Path) -> None:
    """Exports make folders of run ids, so one that leads elsewhere is replaced by the folder's name."""
    for name in ["../../up", "/etc", "a/b", "..", ".", "a\0b", "\ud800", "x" * 999, None, []]:
        (folder / "run.json").write_text(json.dumps({"id": name}))
        assert open_run(folder).id == "run"


def test_a_digest_that_could_be_a_path_is_not_given_out(folder: Path) -> None:
    """Artifacts are opened by their sha256, so anything else under that name is null."""
    digests = [
        "../../../etc/passwd",
        "/etc/passwd",
        "",
        "A" * 64,
        "0" * 63,
        5,
        None,
        "0" * 64 + "\n",
    ]
    with (process(folder) / "events.jsonl").open("a") as file:
        for digest in digests:
            line = {"kind": "artifact", "name": "n", "time": 1, "sha256": digest, "size": 1}
            file.write(json.dumps(line) + "\n")
    listed = open_run(folder).artifacts().collect()["sha256"].to_list()
    assert listed[1:] == [None] * len(digests)


def test_random_damage_to_segments(folder: Path, read: Read) -> None:
    """Bytes changed, files cut short, swapped or replaced by noise: intact records are read."""
    dice = random.Random(5)
    originals = {path: path.read_bytes() for path in segment_files(folder)}
    assert {path.name.split("-")[0] for path in originals} == {"spans", "metrics", "attributes"}
    for _ in range(60):
        path = dice.choice(list(originals))
        data = bytearray(originals[path])
        kind = dice.randrange(5)
        if kind == 0:
            for _ in range(dice.randrange(1, 200)):
                data[dice.randrange(len(data))] = dice.randrange(256)
        elif kind == 1:
            del data[dice.randrange(len(data)) :]
        elif kind == 2:
            data = bytearray(dice.randbytes(dice.randrange(1 << 16)))
        elif kind == 3:
            data = bytearray(originals[dice.choice(list(originals))])
        else:
            begin = dice.randrange(len(data))
            data[begin:] = dice.randbytes(len(data) - begin)
        put(path, data)
        read(folder)
        put(path, originals[path])
    assert read_everything(folder)["spans"] == 7


def test_a_folder_full_of_strange_runs_is_listed(folder: Path, tmp_path: Path) -> None:
    """One damaged run does not hide the others."""
    (folder / "run.json").write_bytes(b"[" * 100_000)
    stepwell.init(dir=folder.parent, run_id="good").finish()
    assert {run.id for run in list_runs(folder.parent)} == {"good", "run"}
    for run in list_runs(folder.parent):
        assert run.status


def test_a_folder_with_nothing_but_garbage_is_empty_or_refused(tmp_path: Path) -> None:
    """With something like a process in it, it is a run without records; else no run, which is said."""
    (tmp_path / "a" / "rank-0").mkdir(parents=True)
    (tmp_path / "a" / "rank-0" / "process.json").write_text("garbage")
    assert set(read_everything(tmp_path / "a").values()) == {0}
    (tmp_path / "a" / "rank-0" / "process.json").unlink()
    with pytest.raises(StepwellError, match="is not a run folder"):
        read_everything(tmp_path / "a")
