"""Chrome traces, and those of the torch profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.importing.reading_back import (
    depths_agree,
    events_of,
    imported,
    metrics_of,
    shape,
    spans_of,
)


def trace(path: Path, events: list[Any], **about: Any) -> Path:
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return path


def x(name: str, ts: float, dur: float, tid: int = 1, pid: int = 1, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid, **more}


def test_parents_come_from_nesting_in_time_on_each_thread(tmp_path: Path) -> None:
    """Whatever the order in the file; overlapping spans that are not nested are siblings."""
    events = [
        x("leaf", 2, 3),
        x("late", 90, 20),
        x("outer", 1, 99),
        x("middle", 2, 10),
        x("elsewhere", 3, 1, tid=2),
        x("in late", 101, 2),
        x("next", 100, 1, tid=3),
        x("touching", 101, 1, tid=3),
    ]
    run, done = imported(tmp_path, trace(tmp_path / "t.json", events))
    assert dict(shape(run, "name", "in")) == {
        "outer": None,
        "middle": "outer",
        "leaf": "middle",
        "late": None,
        "in late": "late",
        "elsewhere": None,
        "next": None,
        "touching": None,
    }
    assert depths_agree(run)
    assert done.taken == {"spans": 8}
    assert done.left_out == {}


def test_times_are_kept_to_the_nanosecond(tmp_path: Path) -> None:
    """Microseconds since the epoch with three decimals do not fit a float, and are kept all the same."""
    file = tmp_path / "t.json"
    file.write_text(
        '[{"ph":"X","name":"a","ts":1794786890098807.577,"dur":7519.759,"pid":1,"tid":1},\n'
        '{"ph":"X","name":"b","ts":"1794786890098807.578","dur":1,"pid":1,"tid":1},\n'
        '{"ph":"X","name":"c","ts":1.7947868900988075e15,"dur":0.5,"pid":1,"tid":1}]'
    )
    run, _ = imported(tmp_path, file)
    assert shape(run, "name", "start_ns", "duration_ns") == [
        ("c", 1794786890098807500, 500),
        ("a", 1794786890098807577, 7519759),
        ("b", 1794786890098807578, 1000),
    ]
    process = run.processes().collect().row(0, named=True)
    assert process["started_ns"] == 1794786890098807500
    assert run.created_ns == 1794786890098807500


def test_times_may_count_from_zero_or_be_negative(tmp_path: Path) -> None:
    """A trace without an origin keeps its own times."""
    run, _ = imported(tmp_path, trace(tmp_path / "t.json", [x("a", 0, 2), x("b", -5.5, 1)]))
    assert shape(run, "name", "start_ns", "duration_ns") == [("b", -5500, 1000), ("a", 0, 2000)]


@pytest.mark.parametrize("at_end", [False, True])
def test_an_origin_is_added_wherever_it_stands(tmp_path: Path, at_end: bool) -> None:
    """BaseTimeNanoseconds before or behind the events."""
    about = '"schemaVersion":1,"baseTimeNanoseconds":1790857026000000000'
    events = '"traceEvents":[{"ph":"X","name":"a","ts":12.345,"dur":1,"pid":9,"tid":9}]'
    file = tmp_path / "t.json"
    file.write_text(f" {{{events},{about}}}" if at_end else f"{{{about},{events}}}")
    run, _ = imported(tmp_path, file)
    assert shape(run, "start_ns") == [(1790857026000012345,)]


def test_begin_and_end_pairs(tmp_path: Path) -> None:
    """Ends find the innermost of their name, or the innermost; what never ends stays open."""

    def at(phase: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "ts": ts, "pid": 1, "tid": 1, **more}

    events = [
        at("B", 1, name="forever", cat="c"),
        at("B", 2, name="outer", args={"a": 1}),
        at("B", 3, name="inner"),
        at("E", 4),
        at("E", 9, name="outer", args={"b": 2}),
        at("E", 10, name="never begun"),
    ]
    run, done = imported(tmp_path, trace(tmp_path / "t.json", events))
    assert shape(run, "name", "in", "duration_ns", "status", "attributes") == [
        ("forever", None, None, "open", {}),
        ("outer", "forever", 7000, "ok", {"a": 1, "b": 2}),
        ("inner", "outer", 1000, "ok", {}),
    ]
    assert done.left_out == {"end without a begin": 1}


def test_instants_counters_names_and_what_is_left_out(tmp_path: Path) -> None:
    """Instants become events on their span, counters metrics; flows are counted, not taken."""
    where = {"pid": 5, "tid": 7}
    events = [
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "Rank 3"}},
        {"ph": "M", "name": "thread_name", **where, "args": {"name": "trainer"}},
        x("work", 10, 10, 7, 5, cat="compute", args={"step": 4, "epoch": 1, "f": 0.1}),
        {"ph": "i", "name": "hit", "ts": 12, **where, "args": {"k": [1, None]}},
        {"ph": "C", "name": "loss", "ts": 13, **where, "args": {"value": 0.5}},
        {
            "ph": "C",
            "name": "memory",
            "ts": 14,
            "pid": 5,
            "args": {"used": 3, "free": 1.5, "s": "x"},
        },
        {"ph": "C", "name": "none", "ts": 14, "pid": 5, "args": {"s": "x"}},
        {"ph": "s", "id": 1, "ts": 11, **where},
        {"ph": "f", "id": 1, "ts": 12, **where},
        {"ph": "b", "name": "async", "ts": 12, **where},
        x("backwards", 10, -1, 7, 5),
        {"ph": "X", "name": "timeless", **where},
    ]
    run, done = imported(tmp_path, trace(tmp_path / "t.json", events), name="My trace")
    assert shape(run, "name", "category", "step", "epoch", "thread", "rank") == [
        ("work", "compute", 4, 1, "trainer", 3)
    ]
    assert spans_of(run)[0]["attributes"] == {"step": 4, "epoch": 1, "f": 0.1}
    [event] = events_of(run)
    assert (event["name"], event["on"], event["attributes"]) == ("hit", "work", {"k": [1, None]})
    assert metrics_of(run) == [
        ("loss", 13000, 0.5),
        ("memory/used", 14000, 3.0),
        ("memory/free", 14000, 1.5),
    ]
    assert run.name == "My trace"
    assert done.left_out == {
        "counter without a number": 1,
        "flow arrow": 2,
        "unknown phase 'b'": 1,
        "ends before it starts": 1,
        "no timestamp": 1,
    }
    origin = run.document["imported_from"]
    assert origin["kind"] == "chrome"
    assert origin["files"] == ["t.json"]
    assert origin["left_out"] == done.left_out
    assert origin["stepwell_version"]


def test_gpu_streams_of_a_torch_profiler_trace_are_threads(tmp_path: Path) -> None:
    """Devices that the file shows as processes belong to the process that used them."""
    events = [
        {"ph": "M", "name": "process_labels", "pid": 77, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}},
        {"ph": "M", "name": "thread_name", "pid": 77, "tid": 78, "args": {"name": "thread 78"}},
        x("kernel", 5.5, 2.25, 7, 0, cat="kernel", args={"correlation": 3}),
        x("memcpy", 5, 4, 20, 0),
        x("ProfilerStep#12", 1, 9, 78, 77),
        x("aten::add", 2, 1, 78, 77),
    ]
    about = {"schemaVersion": 1, "distributedInfo": {"rank": 2, "world_size": 8, "backend": "nccl"}}
    run, done = imported(tmp_path, trace(tmp_path / "t.json", events, **about))
    assert done.kinds == ["torch profiler"]
    assert shape(run, "name", "thread", "in", "step") == [
        ("ProfilerStep#12", "thread 78", None, 12),
        ("aten::add", "thread 78", "ProfilerStep#12", None),
        ("memcpy", "GPU 0 thread 20", None, None),
        ("kernel", "GPU 0 stream 7", None, None),
    ]
    [process] = run.processes().collect().to_dicts()
    assert (process["rank"], process["world_size"], process["pid"]) == (2, 8, 77)


def test_a_real_torch_profiler_trace(tmp_path: Path) -> None:
    """Every operator is there, at the time and with the parent that the profiler itself says."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(5):
            with record_function("my step"):
                model(torch.randn(4, 8)).sum().backward()
    file = tmp_path / "torch.json.gz"
    profiler.export_chrome_trace(str(file))
    document = json.loads(gzip.decompress(file.read_bytes()))
    complete = [e for e in document["traceEvents"] if e["ph"] == "X"]

    run, done = imported(tmp_path, file)
    assert done.kinds == ["torch profiler"]
    assert done.taken["spans"] == len(complete) == len(spans_of(run))
    assert set(done.left_out) <= {"flow arrow"}
    assert depths_agree(run)
    assert shape(run, "name", "in").count(("my step", None)) == 5
    pairs = {(e.name, e.cpu_parent.name) for e in profiler.events() if e.cpu_parent is not None}
    found = {(row["name"], row["in"]) for row in spans_of(run) if row["in"] is not None}
    missing = {(n, p) for n, p in pairs if n.startswith("aten::")} - found
    assert missing == set()
    assert {e["on"] is not None for e in events_of(run) if e["name"] == "[memory]"} == {True}
    base = document["baseTimeNanoseconds"]
    first = min(complete, key=lambda e: e["ts"])
    assert abs(spans_of(run)[0]["start_ns"] - (base + first["ts"] * 1000)) < 1000
