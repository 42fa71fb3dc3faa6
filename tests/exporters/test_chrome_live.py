"""The Chrome trace exporter: a trace that can be opened at any moment of a run."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.exporters import ChromeExporter, EventRecord, Source, SpanRecord
from stepwell.exporters.trace.fields import format_micros, time_base
from stepwell.telemetry.exporter_config import load_exporters
from tests.exporters.reading_back import recorded_spans, train

START = 1_700_000_000_000_000_000
SOURCE = Source("r-1", 0, 0, 4, "rank-00000.attempt-0.pid-7", "node", 7, "app", {}, START)


def begun(id: int, parent: int | None, start: int, **attributes: Any) -> SpanRecord:
    name, thread = f"s{id}", "MainThread"
    return SpanRecord(
        "start", id, parent, name, None, thread, START + start, None, "open", attributes
    )


def ended(id: int, parent: int | None, start: int, end: int, **attributes: Any) -> SpanRecord:
    name, thread = f"s{id}", "MainThread"
    return SpanRecord(
        "stop", id, parent, name, None, thread, START + start, START + end, "ok", attributes
    )


def ns(event: dict[str, Any]) -> int:
    """The time of an event, in nanoseconds from START on."""
    return round(event["ts"] * 1000) - (START - time_base(START))


def read(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    found = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return [event for event in found if event["ph"] != "M"]


def opened(path: Path) -> ChromeExporter:
    exporter = ChromeExporter(file_path=path)
    exporter.open(SOURCE)
    return exporter


def test_the_events_word_for_word(tmp_path: Path) -> None:
    """A span that is over, one that lasts longer than a batch, and an event."""
    exporter = opened(tmp_path / "t.json")
    exporter.export([begun(1, None, 0, a=1), begun(2, 1, 1001), ended(2, 1, 1001, 2003, x="y")])
    event = EventRecord("event", "tick", 1, "MainThread", START + 3000, {"i": 4})
    exporter.export([event, ended(1, None, 0, 5000, a=1, b=2)])
    exporter.close()
    where = '"pid":7,"tid":1,"ts":'
    at = [format_micros(START - time_base(START) + time) for time in (0, 1001, 3000, 5000)]
    assert (tmp_path / "t.json").read_text().splitlines() == [
        "[",
        '{"ph":"M","name":"process_name","pid":7,"tid":0,"args":{"name":"rank 0"}},',
        '{"ph":"M","name":"process_labels","pid":7,"tid":0,"args":{"labels":"node pid 7"}},',
        '{"ph":"M","name":"process_sort_index","pid":7,"tid":0,"args":{"sort_index":0}},',
        '{"ph":"M","name":"thread_name","pid":7,"tid":1,"args":{"name":"MainThread"}},',
        '{"ph":"M","name":"thread_sort_index","pid":7,"tid":1,"args":{"sort_index":1}},',
        f'{{"ph":"B","name":"s1",{where}{at[0]},"args":{{"a":1}}}},',
        f'{{"ph":"X","name":"s2",{where}{at[1]},"dur":1.002,"args":{{"x":"y"}}}},',
        f'{{"ph":"i","name":"tick","cat":"event","s":"t",{where}{at[2]},"args":{{"i":4}}}},',
        f'{{"ph":"E","name":"s1",{where}{at[3]},"args":{{"b":2}}}}',
        "]",
    ]


def test_a_span_that_outlives_the_one_around(tmp_path: Path) -> None:
    """It ends with its parent and continues on another line: viewers could not draw it otherwise."""
    exporter = opened(tmp_path / "t.json")
    exporter.export([begun(1, None, 0), begun(2, 1, 10), begun(3, 2, 20)])
    exporter.export([ended(1, None, 0, 50)])
    exporter.export([ended(3, 2, 20, 60), ended(2, 1, 10, 70)])
    exporter.close()
    found = [(e["ph"], e["name"], ns(e), e["args"]) for e in read(tmp_path / "t.json")]
    assert found == [
        ("B", "s1", 0, {}),
        ("B", "s2", 10, {}),
        ("B", "s3", 20, {}),
        ("E", "s3", 50, {"goes_on": True}),
        ("E", "s2", 50, {"goes_on": True}),
        ("E", "s1", 50, {}),
        ("B", "s2", 50, {"went_on": True}),
        ("B", "s3", 50, {"went_on": True}),
        ("E", "s3", 60, {}),
        ("E", "s2", 70, {}),
    ]


def test_a_span_that_is_seen_to_outlive_the_one_around(tmp_path: Path) -> None:
    """Where both ends are known in time it is drawn in one piece."""
    exporter = opened(tmp_path / "t.json")
    exporter.export([begun(1, None, 0)])
    exporter.export([begun(2, 1, 10), ended(1, None, 0, 50), ended(2, 1, 10, 70)])
    exporter.close()
    found = [(e["ph"], e["name"], ns(e), e["tid"]) for e in read(tmp_path / "t.json")]
    assert found == [("B", "s1", 0, 1), ("X", "s2", 10, 2), ("E", "s1", 50, 1)]


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_run(recorded: Run, tmp_path: Path, name: str) -> None:
    """All spans, short ones too, are there once, as long as the tables say; the file is strict JSON."""
    recorded.add_exporter(ChromeExporter(file_path=tmp_path / name))
    for part in range(3):
        train(20 * part, 20)
        with stepwell.span("model_forward"):
            recorded.flush()
    recorded.finish()
    began: list[dict[str, Any]] = []
    found = []
    for event in read(tmp_path / name):
        if event["ph"] == "X":
            found.append((event["name"], round(event["dur"] * 1000)))
        elif event["ph"] == "B":
            began.append(event)
        elif event["ph"] == "E":
            found.append((event["name"], ns(event) - ns(began.pop())))
    assert not began
    assert sorted(found) == sorted((s[0], s[4]) for s in recorded_spans(recorded).values())


def test_each_rank_and_each_run_has_a_file(tmp_path: Path) -> None:
    """Rank 3 writes beside rank 0; what stood there stays."""
    (tmp_path / "t.json").write_text("mine")
    exporter = ChromeExporter(tmp_path / "t.json")
    paths = []
    for rank in (0, 3, 3):
        source = Source("r", 1, rank, 4, "p", "h", 5, "a")
        exporter.open(source)
        exporter.flush()
        exporter.close()
        paths.append(exporter.path.name)
        assert (
            json.loads(exporter.path.read_text())[0]["args"]["name"] == f"rank {rank} (attempt 1)"
        )
    assert paths == ["t-2.json", "t.rank-3.json", "t.rank-3-2.json"]
    assert (tmp_path / "t.json").read_text() == "mine"
    packed = ChromeExporter(tmp_path / "t.json.gz")
    packed.open(Source("r", 0, 2, 4, "p", "h", 5, "a"))
    packed.close()
    assert packed.path.name == "t.rank-2.json.gz"


def test_a_disk_that_is_full_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that did not fit is written once, from where it was cut."""
    exporter = opened(tmp_path / "t.json")
    write, room = os.write, [40, 0, 3]

    def full(fd: int, data: bytes) -> int:
        if room:
            size = room.pop()
            if not size:
                raise OSError(errno.ENOSPC, "full")
            return write(fd, data[:size])
        return write(fd, data)

    monkeypatch.setattr("stepwell.exporters.trace.file.os.write", full)
    batch = [begun(1, None, 0), ended(1, None, 0, 9)]
    with pytest.raises(OSError, match="full"):
        exporter.export(batch)
    exporter.export(batch)
    exporter.export([begun(2, None, 10), ended(2, None, 10, 12)])
    exporter.close()
    assert [event["name"] for event in read(tmp_path / "t.json")] == ["s1", "s2"]


@pytest.mark.parametrize("path", ["t.txt", "", 5, "t"])
def test_a_path_that_is_none(path: Any) -> None:
    with pytest.raises(StepwellError, match="file_path must"):
        ChromeExporter(file_path=path)


def test_by_name(tmp_path: Path) -> None:
    """A configuration finds both exporters of traces."""
    entries = [
        {"name": "chrome", "options": {"file_path": str(tmp_path / "t.json")}},
        {"name": "dftracer", "options": {"file_path": str(tmp_path / "t.pfw"), "dialect": "old"}},
    ]
    chrome, dftracer = (found.exporter for found in load_exporters(entries))
    assert chrome == ChromeExporter(tmp_path / "t.json")
    assert (dftracer.file_path, dftracer.dialect) == (tmp_path / "t.pfw", "old")
    assert chrome != dftracer
    assert not list(tmp_path.iterdir())
