"""The file exporter: lines from which the run can be put together again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell._core import errors
from stepwell.exporters import EventRecord, FileExporter, Source, SpanRecord
from tests.durability.helpers import Child, fill, mounted
from tests.exporters.reading_back import (
    lines_of,
    recorded_events,
    recorded_spans,
    spans_in_lines,
    train,
)
from tests.harness import wait_until
from tests.harness.marks import others_in_full
from tests.processes.programs import WAIT, execute, only_run, write_program

SOURCE = Source("r-1", 2, 0, 4, "rank-00000.attempt-2.pid-7", "node", 7, "app", {"a": 1}, 5)
SPAN = SpanRecord("complete", 9, 8, "fit", "cat", "MainThread", 10, 35, "ok", {"x": 1.5})
START = SpanRecord("start", 8, None, "all", None, "MainThread", 5, None, "open", {})
EVENT = EventRecord("error", "error", 9, "MainThread", 20, {"exception_type": "ValueError"})


def test_the_lines(tmp_path: Path) -> None:
    """Every field of every kind of line, written out."""
    exporter = FileExporter(file_path=tmp_path / "deep" / "er" / "t.json")
    exporter.open(SOURCE)
    exporter.export([START, SPAN, EVENT])
    exporter.close()
    place = {"run": "r-1", "attempt": 2, "rank": 0, "process": "rank-00000.attempt-2.pid-7"}
    assert lines_of(tmp_path / "deep" / "er" / "t.json") == [
        {
            "type": "source",
            **place,
            "world_size": 4,
            "host": "node",
            "pid": 7,
            "application": "app",
            "labels": {"a": 1},
            "started_ns": 5,
        },
        {
            "type": "start",
            **place,
            "thread": "MainThread",
            "id": 8,
            "parent": None,
            "name": "all",
            "category": None,
            "status": "open",
            "start_ns": 5,
            "attributes": {},
        },
        {
            "type": "complete",
            **place,
            "thread": "MainThread",
            "id": 9,
            "parent": 8,
            "name": "fit",
            "category": "cat",
            "status": "ok",
            "start_ns": 10,
            "end_ns": 35,
            "duration_ns": 25,
            "attributes": {"x": 1.5},
        },
        {
            "type": "error",
            **place,
            "thread": "MainThread",
            "span": 9,
            "name": "error",
            "time_ns": 20,
            "attributes": {"exception_type": "ValueError"},
        },
    ]


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), "\ud800", 1 << 70, "a\nb\u2028", {"x": [1, None]}, b"\xff"],
)
def test_any_value_is_a_line_of_strict_json(tmp_path: Path, value: Any) -> None:
    """Also those that a record from a journal cannot have."""
    exporter = FileExporter(tmp_path / "t.json")
    exporter.open(SOURCE)
    exporter.export([EventRecord("event", "e", None, "t", 1, {"value": value})])
    exporter.close()
    _, line = lines_of(tmp_path / "t.json")
    assert "value" in line["attributes"]


def test_a_run_from_its_file(recorded: Run, tmp_path: Path) -> None:
    """The lines have the spans and events that the run's tables have."""
    path = tmp_path / "telemetry.json"
    recorded.add_exporter(FileExporter(file_path=path))
    train(0, 50)
    assert recorded.flush()
    train(50, 50)
    recorded.finish()
    source, *lines = lines_of(path)
    assert source["type"] == "source"
    assert spans_in_lines(lines) == recorded_spans(recorded)
    events = [line for line in lines if line["type"] == "event"]
    expected = recorded_events(recorded)
    first = min(e["time_ns"] for e in events)
    found = sorted((e["name"], e["span"], e["time_ns"] - first) for e in events)
    assert found == [e[:3] for e in expected]
    assert len(expected) == 100
    assert {(e["run"], e["attempt"], e["rank"]) for e in lines} == {(recorded.id, 0, 0)}
    assert events[0]["attributes"] == {"i": 0, "nothing": None, "nonfinite": {"nothing": "nan"}}


def test_a_run_without_a_record(recorded: Run, tmp_path: Path) -> None:
    """The file says at least whose it is."""
    recorded.add_exporter(FileExporter(tmp_path / "t.json"))
    recorded.finish()
    (source,) = lines_of(tmp_path / "t.json")
    assert (source["type"], source["run"]) == ("source", recorded.id)


def test_a_restart_appends(tmp_path: Path) -> None:
    """Lines of an earlier attempt are kept, and an incomplete one does not damage new lines."""
    path = tmp_path / "t.json"
    for attempt in range(3):
        with stepwell.init(dir=tmp_path / "runs", run_id="job-1") as run:
            run.add_exporter(FileExporter(path))
            train(attempt, 1)
        if attempt == 1:
            whole = path.read_bytes()
            path.write_bytes(whole + b'{"type": "sta')
    lines = path.read_text().split("\n")
    assert lines.count('{"type": "sta') == 1
    lines.remove('{"type": "sta')
    path.write_text("\n".join(lines))
    found = lines_of(path)
    assert [x["attempt"] for x in found if x["type"] == "source"] == [0, 1, 2]
    pairs = [
        (x["attempt"], x["attributes"]["i"])
        for x in found
        if x.get("name") == "item" and x["type"] != "start"
    ]
    assert pairs == [(0, 0), (1, 1), (2, 2)]


def test_ranks_write_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has the plain name, all others have their rank in it."""
    # What other ranks than 0 switch off for this process comes back after the test.
    monkeypatch.setattr(errors, "_quiet", False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in (0, 3):
        monkeypatch.setenv("RANK", str(rank))
        with stepwell.init(dir=tmp_path / "runs", run_id="job-1") as run:
            run.add_exporter(FileExporter(tmp_path / "training_telemetry.json"))
            train(rank, 1)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "training_telemetry.json",
        "training_telemetry.rank-3.json",
    ]
    for name, rank in (("training_telemetry.json", 0), ("training_telemetry.rank-3.json", 3)):
        lines = lines_of(tmp_path / name)
        assert {line["rank"] for line in lines} == {rank}
        assert lines[0]["world_size"] == 4


def test_where_the_program_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path stays where it was when the program changes its folder."""
    monkeypatch.chdir(tmp_path)
    exporter = FileExporter("t.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    exporter.open(SOURCE)
    exporter.close()
    assert (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("given", "said"), [(3, "must be a path"), ("", "must be a path"), (".", "folder")]
)
def test_a_wrong_path(given: Any, said: str) -> None:
    """It is refused where it is written down."""
    with pytest.raises(StepwellError, match=said):
        FileExporter(given)


class Disk:
    """A disk that accepts a number of bytes and is then full; counts the calls."""

    def __init__(self) -> None:
        self.room = 1 << 30
        self.calls = 0
        self.write = os.write

    def __call__(self, fd: int, data: bytes) -> int:
        self.calls += 1
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.write(fd, data[: self.room])
        self.room -= written
        return written


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    monkeypatch.setattr(os, "write", found)
    return found


def events(*numbers: int) -> list[EventRecord]:
    return [EventRecord("event", "e", None, "t", n, {"i": n}) for n in numbers]


def written(path: Path) -> list[int]:
    return [line["attributes"]["i"] for line in lines_of(path) if line["type"] == "event"]


def test_one_write_a_batch(tmp_path: Path, disk: Disk) -> None:
    """So that processes that share a file do not write into each other's lines."""
    exporter = FileExporter(tmp_path / "t.json")
    exporter.open(SOURCE)
    exporter.export(events(*range(1000)))
    exporter.export(events(*range(1000, 2000)))
    assert disk.calls == 2
    assert written(tmp_path / "t.json") == list(range(2000))


@pytest.mark.parametrize("room", [0, 1, 100, 500, 1000])
def test_a_disk_that_is_full_in_the_midst_of_a_batch(tmp_path: Path, disk: Disk, room: int) -> None:
    """The rest follows when there is space, nothing twice and no line broken."""
    exporter = FileExporter(tmp_path / "t.json")
    exporter.open(SOURCE)
    exporter.export(events(0))
    disk.room = room
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            exporter.export(events(*range(1, 20)))
    disk.room = 1 << 30
    exporter.export(events(*range(1, 20)))
    exporter.export(events(20))
    assert written(tmp_path / "t.json") == list(range(21))


@pytest.mark.parametrize("room", [0, 50])
def test_a_disk_that_is_full_before_the_first_record(tmp_path: Path, disk: Disk, room: int) -> None:
    """When a flush finds no space for the first line, the records that come then are all written."""
    exporter = FileExporter(tmp_path / "t.json")
    exporter.open(SOURCE)
    disk.room = room
    with pytest.raises(OSError, match="No space left"):
        exporter.flush()
    with pytest.raises(OSError, match="No space left"):
        exporter.export(events(0, 1))
    disk.room = 1 << 30
    exporter.export(events(0, 1))
    exporter.flush()
    assert [line["type"] for line in lines_of(tmp_path / "t.json")] == ["source", "event", "event"]
    assert written(tmp_path / "t.json") == [0, 1]


def test_somebody_else_wrote_while_the_disk_was_full(tmp_path: Path, disk: Disk) -> None:
    """Then the broken line is written once more as a whole; the other's lines are not touched."""
    path = tmp_path / "t.json"
    exporter = FileExporter(path)
    exporter.open(SOURCE)
    exporter.export(events(0))
    disk.room = 200
    with pytest.raises(OSError, match="No space left"):
        exporter.export(events(*range(1, 20)))
    disk.room = 1 << 30
    with path.open("ab") as other:
        other.write(b"\n" + b'{"type": "other"}' + b"\n")
    exporter.export(events(*range(1, 20)))
    texts = path.read_text().split("\n")
    broken = [text for text in texts if text and not text.endswith("}")]
    assert len(broken) == 1
    path.write_text("\n".join(text for text in texts if text not in broken))
    assert written(path) == list(range(20))
    assert [line for line in lines_of(path) if line["type"] == "other"] == [{"type": "other"}]


@pytest.mark.root
@pytest.mark.parametrize("kind", others_in_full(["tmpfs", "ext4"], ["tmpfs"]))
def test_a_really_full_disk(tmp_path: Path, kind: str) -> None:
    """Training continues, and when there is space again the file gets every line once."""
    with mounted(kind, 24, tmp_path) as point, Child(tmp_path) as child:
        path = point / "t.json"
        child.do(
            "from stepwell.exporters import FileExporter\n"
            "from stepwell.telemetry import feed\n"
            "feed.QUARANTINE_DELAY = 0.5\n"
            "def train(begin, count):\n"
            "    for i in range(begin, begin + count):\n"
            "        with span('item', i=i): pass\n"
            "run = init('full', dir='runs')\n"
            f"run.add_exporter(FileExporter({str(path)!r}))\n"
            "train(0, 1000); run.flush()"
        )
        filler = fill(point)
        child.do("train(1000, 20000)")
        wait_until(lambda: child.do("answer = run.exporters[0].failures") >= 5)
        (warning,) = child.do("answer = warnings")
        filler.unlink()
        child.do("train(21000, 1000); run.finish()")
        assert child.end() == 0
        lines = lines_of(path)
    assert "No space left on device" in warning
    found = [
        x["attributes"]["i"] for x in lines if x.get("name") == "item" and x["type"] != "start"
    ]
    assert found == list(range(22000))


def test_a_file_that_may_not_be_written(
    recorded: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening is tried until it works; then all of it is there."""
    (tmp_path / "folder").write_text("in the way")
    recorded.add_exporter(FileExporter(tmp_path / "folder" / "t.json"))
    train(0, 3)
    wait_until(lambda: recorded.exporters[0].failures >= 2)
    (tmp_path / "folder").unlink()
    recorded.finish()
    assert spans_in_lines(lines_of(tmp_path / "folder" / "t.json")) == recorded_spans(recorded)


FORKING = """
from stepwell.exporters import FileExporter
import threading

run = stepwell.init("forks", dir=RUNS)
pid = os.fork()
if pid == 0:
    run.add_exporter(FileExporter(RUNS.parent / "child.json"))
    assert not run.exporters
    sys.exit(0)
wait_for(pid)
run.add_exporter(FileExporter(RUNS.parent / "t.json"))
for i in range(20):
    with stepwell.span("before", i=i):
        pass
    pid = os.fork()
    if pid == 0:
        # A worker records, looks at the exporters, and ends as a worker does or as a program does.
        with stepwell.span("child", i=i):
            pass
        assert [t.name for t in threading.enumerate()] == ["MainThread"]
        assert run.flush()
        run.add_exporter(FileExporter(RUNS.parent / "child.json"))
        run.finish()
        if i % 2:
            os._exit(0)
        sys.exit(0)
    wait_for(pid)
    with stepwell.span("after", i=i):
        pass
run.finish()
"""


def test_forked_processes_leave_the_file_alone(tmp_path: Path) -> None:
    """A child exports nothing, and its end neither closes nor repeats what its parent does."""
    execute(tmp_path, write_program(tmp_path, FORKING, WAIT))
    lines = lines_of(tmp_path / "t.json")
    found = [(x["name"], x["attributes"]["i"]) for x in lines if x["type"] in ("stop", "complete")]
    assert sorted(found) == sorted((n, i) for n in ("before", "after") for i in range(20))
    assert len({line["process"] for line in lines}) == 1
    assert not (tmp_path / "child.json").exists()
    names = only_run(tmp_path).spans().collect()["name"].to_list()
    assert names.count("child") == 20


def test_killed(tmp_path: Path) -> None:
    """After a kill, the file consists of complete lines."""
    with Child(tmp_path) as child:
        child.do(
            "from stepwell.exporters import FileExporter\n"
            "run = init('killed', dir='runs')\n"
            "run.add_exporter(FileExporter('t.json'))\n"
            "with span('done'): pass\n"
            "open_one = span('open'); open_one.__enter__()\n"
            "run.flush()"
        )
        child.kill(signal.SIGKILL)
    found = [(x["type"], x.get("name")) for x in lines_of(tmp_path / "t.json")]
    assert found == [("source", None), ("complete", "done"), ("start", "open")]


def test_files_are_closed(tmp_path: Path) -> None:
    """Twenty runs leave no file open."""
    before = len(os.listdir("/proc/self/fd"))
    for i in range(20):
        with stepwell.init(dir=tmp_path / "runs") as run:
            run.add_exporter(FileExporter(tmp_path / f"{i}.json"))
    assert len(os.listdir("/proc/self/fd")) <= before + 3
