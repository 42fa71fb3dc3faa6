"""Reading a run while another process writes it: soon, complete, and without ever failing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepwell import Run, open_run
from stepwell.journal.state import local
from stepwell.reading import RecordedRun, segments
from tests.harness import start_script

ROUNDS = 500
BUSY = f"""
import sys, threading, time
import stepwell

def work(run):
    for i in range({ROUNDS}):
        with run.span("outer", i=i):
            for k in range(50):
                with run.span("inner", i=i, k=k):
                    run.log({{"x": float(i)}})
        run.event("round", i=i)
        time.sleep(0.003)

run = stepwell.init("busy", dir=sys.argv[1], run_id="busy")
print("ready", flush=True)
threads = [threading.Thread(target=work, args=(run,), name=f"w{{n}}") for n in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.stdin.read()
"""

STEPWISE = """
import sys
import stepwell
run = stepwell.init("stepwise", dir=sys.argv[1], run_id="stepwise")
print("ready", flush=True)
for line in sys.stdin:
    i = int(line)
    run.set_step(i)
    run.log({"x": float(i)})
    run.event("e", i=i)
    run.artifact(str(i).encode(), f"a{i}")
    run.span(f"open {i}", i=i).__enter__()
    with run.span("closed", i=i):
        pass
    print("done", flush=True)
"""

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        writer = start_script(code, tmp_path, **pipes)
        started.append(writer)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        return writer

    yield start
    for writer in started:
        writer.kill()
        writer.communicate()


def test_records_are_seen_as_soon_as_their_call_has_returned(start: Start, tmp_path: Path) -> None:
    """A reader in another process sees metric, event, artifact and spans at once, which is within 2 s."""
    writer = start(STEPWISE)
    assert writer.stdin is not None
    assert writer.stdout is not None
    read = open_run(tmp_path / "stepwise")
    for i in range(5):
        writer.stdin.write(f"{i}\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "done\n"
        assert read.metrics().collect()["value"].to_list() == [float(n) for n in range(i + 1)]
        assert read.events().collect()["step"].to_list() == list(range(i + 1))
        assert read.artifacts().collect()["name"].to_list() == [f"a{n}" for n in range(i + 1)]
        closed = read.spans().filter(pl.col("name") == "closed").collect()
        assert closed["attributes"].to_list() == [f'{{"i":{n}}}' for n in range(i + 1)]
        assert closed["status"].to_list() == ["ok"] * (i + 1)
        opened = read.open_spans().sort("depth").collect()
        assert opened["name"].to_list() == [f"open {n}" for n in range(i + 1)]
        assert opened["depth"].to_list() == list(range(i + 1))
    assert read.status == "running"


def check(read: RecordedRun) -> int:
    """Check all invariants of the tables while a run is recorded; return the number of spans."""
    spans = read.spans().collect()
    assert set(spans["name"]) <= {"outer", "inner"}
    assert spans["attributes"].null_count() == 0
    assert spans["id"].n_unique() == spans.height
    inner = spans.filter(pl.col("name") == "inner")
    both = inner.join(spans, left_on="parent", right_on="id", how="left")
    assert set(both["name_right"]) <= {"outer"}
    own, outer = both["attributes"], both["attributes_right"]
    assert own.str.json_path_match("$.i").equals(outer.str.json_path_match("$.i"), null_equal=True)
    assert (inner["depth"] == 1).all()
    assert (spans["duration_ns"].drop_nulls() >= 0).all()
    assert spans.filter(pl.col("status") == "ok")["duration_ns"].null_count() == 0
    assert read.open_spans().collect()["depth"].is_in([0, 1]).all()
    metrics = read.metrics().collect()
    assert set(metrics["name"]) <= {"x"}
    for (_,), part in metrics.group_by("thread"):
        assert part.sort("time_ns")["value"].is_sorted()
    for text in read.events().collect()["attributes"]:
        assert set(json.loads(text)) == {"i"}
    return spans.height


def test_a_reader_at_full_speed_never_fails_nor_sees_half_a_record(
    start: Start, tmp_path: Path
) -> None:
    """Two threads write through many segments, sealing included, while everything is read again and again."""
    writer = start(BUSY)
    read = open_run(tmp_path / "busy")
    seen = [0]
    while seen[-1] < 2 * ROUNDS * 51:
        seen.append(check(read))
        assert writer.poll() is None
    assert seen == sorted(seen)
    assert list((tmp_path / "busy").glob("*/spans-*.zst"))


def test_a_span_that_begins_during_reading_has_its_attributes(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans are read before their attributes, which were written before them."""
    with recorded.span("first", n=1):
        pass
    lane, read_live = local.lane, segments._read_live

    def interrupted(path: Path, process: str) -> Any:
        local.lane = lane  # Polars reads in a thread of its own, while this one waits
        with recorded.span("during", n=2):
            pass
        segment = read_live(path, process)
        with recorded.span("during", n=2):
            pass
        return segment

    monkeypatch.setattr(segments, "_read_live", interrupted)
    spans = open_run(recorded.path).spans().collect()
    assert spans.height >= 2
    assert spans["attributes"].null_count() == 0


def test_an_open_span_is_seen_though_it_moves_on_during_reading(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll-over between listing the files and reading them hides nothing that is open."""
    span = recorded.span("open", n=1)
    span.__enter__()
    lane, read_live = local.lane, segments._read_live
    left = [3]

    def interrupted(path: Path, process: str) -> Any:
        if left[0]:
            left[0] -= 1
            assert lane.roll()
        return read_live(path, process)

    monkeypatch.setattr(segments, "_read_live", interrupted)
    rows = open_run(recorded.path).open_spans().collect()
    assert rows.select("name", "attributes").rows() == [("open", '{"n":1}')]


def test_a_segment_that_is_sealed_during_reading_loses_no_parent(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent that continues in a new segment while files are read is still in the table."""
    outer = recorded.span("outer", n=1)
    outer.__enter__()
    with recorded.span("inner", n=2):
        pass
    lane, sealed = local.lane, segments.sealed_segments

    def later(folder: Path) -> Any:
        assert lane.roll()
        assert recorded.flush()
        return sealed(folder)

    monkeypatch.setattr("stepwell.reading.process.sealed_segments", later)
    spans = open_run(recorded.path).spans().collect()
    assert spans.select("name", "depth", "status").rows() == [
        ("outer", 0, "open"),
        ("inner", 1, "ok"),
    ]
    assert spans["parent"][1] == spans["id"][0]


def test_an_archive_that_is_dropped_during_reading_is_no_failure(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size cap may remove the oldest file while a reader has it in its list."""
    with recorded.span("old", n=1):
        pass
    assert local.lane.roll()
    recorded.flush()
    with recorded.span("new", n=1):
        pass
    sealed = segments.sealed_segments

    def vanish(folder: Path) -> Any:
        segments = sealed(folder)
        for path in folder.glob("spans-*.zst"):
            path.unlink()
        return segments

    monkeypatch.setattr("stepwell.reading.process.sealed_segments", vanish)
    spans = open_run(recorded.path).spans().collect()
    assert spans["name"].to_list() == ["new"]
