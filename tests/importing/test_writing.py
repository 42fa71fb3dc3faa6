"""The writer of process folders writes the given records, over many segments."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell._core.files import write_json
from stepwell.follower.trace import Follower
from stepwell.journal.archive import archive_files, read_blocks
from stepwell.journal.format import ABANDONED, ERROR, SPAN_SLOTS
from stepwell.journal.process_writer import OPEN, ProcessWriter
from stepwell.journal.recovery import recover_process

NAME = "rank-00000.attempt-0.pid-7"
ORIGIN = 1_700_000_000_000_000_000


def process_document(**more: Any) -> dict[str, Any]:
    return {
        "process": NAME,
        "role": "main",
        "run": "written",
        "attempt": 0,
        "rank": 0,
        "host": "elsewhere",
        "boot": "written",
        "pid": 7,
        "start": 0,
        "started": ORIGIN,
        "heartbeat": ORIGIN + 10**9,
        "status": "finished",
        "anchors": [[1000, ORIGIN + 1000]],
        **more,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json_folder = tmp_path / "written"
    write_json_folder.mkdir()
    write_json(write_json_folder / "run.json", {"stepwell": 1, "id": "written", "name": "written"})
    return write_json_folder


def test_spans_keep_parents_and_depths_from_segment_to_segment(folder: Path) -> None:
    """A random forest of 60,000 spans, in four segments, is read back unchanged."""
    random.seed(5)
    writer = ProcessWriter(folder / NAME, NAME)
    writer.begin_lane("MainThread", 7)
    expected = {}
    path: list[tuple[int, int]] = []
    for i in range(60_000):
        del path[random.randrange(0, len(path) + 1) if random.random() < 0.3 else len(path) :]
        del path[20:]
        parent = path[-1] if path else None
        word = json.dumps({"i": i}).encode()
        id = writer.span(f"n{i % 7}", "c", 10 + i, 11 + i, parent and parent[0], word)
        depth = 0 if parent is None else parent[1] + 1
        expected[i] = (id, parent and parent[0], depth, f"n{i % 7}")
        path.append((id, depth))
    writer.close(process_document())

    rows = stepwell.open_run(folder).spans().collect()
    base = rows["id"][0] - expected[0][0]
    found = {
        json.loads(attributes)["i"]: (id - base, parent and parent - base, depth, name)
        for id, parent, depth, name, attributes in rows.select(
            "id", "parent", "depth", "name", "attributes"
        ).iter_rows()
    }
    assert found == expected
    assert rows["start_ns"].to_list() == [ORIGIN + 10 + i for i in range(60_000)]
    assert rows["status"].unique().to_list() == ["ok"]
    segments = [f for p in archive_files(folder / NAME, "spans") for f in read_blocks(p)]
    assert len([f for f in segments if f.header["kind"] == "spans"]) >= 4
    assert all(f.header["slots"] <= SPAN_SLOTS for f in segments if f.header["kind"] == "spans")


def test_open_spans_are_taken_along_and_counted_once(folder: Path) -> None:
    """Two spans that never end stay open over three segments, with their id and attributes."""
    writer = ProcessWriter(folder / NAME, NAME)
    writer.begin_lane("MainThread")
    outer = writer.span("outer", "", 1, OPEN, None, b'{"k":1}')
    inner = writer.span("inner", "", 2, OPEN, outer)
    for i in range(3 * SPAN_SLOTS):
        writer.span("leaf", "", 3 + i, 4 + i, inner)
    writer.close(process_document())

    run = stepwell.open_run(folder)
    spans = run.spans().collect()
    assert spans.group_by("name").len().sort("name").rows() == [
        ("inner", 1),
        ("leaf", 3 * SPAN_SLOTS),
        ("outer", 1),
    ]
    frames = [f for p in archive_files(folder / NAME, "spans") for f in read_blocks(p)]
    counted = [f.header["spans"] for f in frames if f.header["kind"] == "spans"]
    assert len(counted) == 4
    assert sum(counted) == 3 * SPAN_SLOTS + 2
    still = run.open_spans().select("name", "depth", "attributes").sort("depth").collect().rows()
    assert still == [("outer", 0, '{"k":1}'), ("inner", 1, None)]
    ids = dict(spans.filter(pl.col("name") != "leaf").select("name", "id").iter_rows())
    base = ids["outer"] - outer
    assert ids["inner"] - base == inner
    assert spans.filter(name="leaf")["parent"].unique().to_list() == [ids["inner"]]
    assert spans.filter(name="leaf")["depth"].unique().to_list() == [2]


def test_marks_lanes_metrics_and_events(folder: Path) -> None:
    """Statuses, threads, steps and the spans of events are kept."""
    writer = ProcessWriter(folder / NAME, NAME)
    writer.begin_lane("one", 11)
    bad = writer.span("bad", "c", 100, 200, mark=ERROR)
    writer.span("given up", "c", 300, 400, mark=ABANDONED)
    writer.event("error", 150, bad, b'{"exception_type":"ValueError"}')
    writer.begin_lane("two", 12)
    writer.metric("loss", 110, 0.5)
    writer.metric("loss", 120, float("nan"))
    writer.metric("loss", 130, 0.25, step=-3)
    for i in range(20_000):
        writer.metric("many", 200 + i, i)
    writer.close(process_document())

    run = stepwell.open_run(folder)
    assert run.spans().select("thread", "name", "status").collect().rows() == [
        ("one", "bad", "error"),
        ("one", "given up", "unfinished"),
    ]
    loss = run.metrics().filter(name="loss").select("thread", "step", "value").collect().rows()
    assert [row[:2] for row in loss] == [("two", 0), ("two", 1), ("two", -3)]
    assert [loss[0][2], str(loss[1][2]), loss[2][2]] == [0.5, "nan", 0.25]
    many = run.metrics().filter(name="many").collect()
    assert many["value"].to_list() == list(range(20_000)) == many["step"].to_list()
    event = run.events().collect().row(0, named=True)
    assert (event["thread"], event["name"], event["time_ns"]) == ("one", "error", ORIGIN + 150)
    assert event["span"] == run.spans().collect()["id"][0]


def test_what_follows_and_recovers_runs_takes_the_folder_too(folder: Path) -> None:
    """A follower gives every span once with its parent; there is nothing to recover."""
    writer = ProcessWriter(folder / NAME, NAME)
    writer.begin_lane("MainThread")
    outer = writer.span("outer", "", 1, 10**6)
    for i in range(40_000):
        writer.span("leaf", "", 3 + i, 4 + i, outer)
    writer.close(process_document())

    follower = Follower(folder / NAME)
    records = follower.poll()
    while not follower.over:
        records += follower.poll()
    stops = [r for r in records if r.type in ("stop", "complete")]
    assert len({r.id for r in stops}) == len(stops) == 40_001
    assert {r.parent for r in stops if r.name == "leaf"} == {outer}
    assert recover_process(folder / NAME).outcome != "recovered"
