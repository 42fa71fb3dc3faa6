"""Files of nv-one-logger's FileExporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.importing.reading_back import depths_agree, events_of, imported, shape, write_lines

T0 = 1794765321000


def at(ms: int, name: str = "e", **attributes: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {**attributes, "timestamp_msec": T0 + ms}}


def record(kind: str, count: int, pid: int = 25720, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields, "count": count, "pid": pid}


def start(count: int, id: str, name: str, ms: int, **attributes: Any) -> dict[str, Any]:
    fields = {"id": id, "name": name, "attributes": attributes, "start_event": at(ms)}
    return record("start", count, **fields)


def stop(count: int, id: str, name: str, ms: int, **attributes: Any) -> dict[str, Any]:
    fields = {"id": id, "name": name, "attributes": attributes, "stop_event": at(ms)}
    return record("stop", count, **fields)


def complete(count: int, id: str, name: str, begin: int, end: int) -> dict[str, Any]:
    events = {"start_event": at(begin), "stop_event": at(end)}
    return record("complete", count, id=id, name=name, attributes={"d": end - begin}, **events)


def test_a_training_run(tmp_path: Path) -> None:
    """Spans, events on their spans, errors; parents from times and, where these coincide, from the order."""
    known = {"rank": 3, "world_size": 8, "node_name": "n7"}
    known["one_logger_training_telemetry_version"] = "2.3.1"
    error = at(70, "error", exception_type="ValueError", exception_message="bad")
    file = write_lines(
        tmp_path / "one_logger.json",
        start(1, "a", "application", 0),
        record("event", 2, span_id="a", event=at(0, "one_logger_initialization", **known)),
        complete(3, "m", "model_initialization", 0, 2),
        complete(4, "z", "nothing", 2, 2),
        start(5, "t", "training_loop", 2, target=12),
        start(6, "s", "checkpoint_save_sync", 60),
        record(
            "event", 7, span_id="t", event=at(62, "training_metrics_update", current_iteration=4)
        ),
        record("application_error", 8, span_id="s", event=error),
        stop(9, "s", "checkpoint_save_sync", 80, size=9),
        complete(10, "l", "last", 80, 80),
        stop(11, "t", "training_loop", 80, target=12, duration_msec=78),
        start(12, "v", "validation_loop", 90),
        record("telemetry_data_error", 13, error=at(95, "telemetry_data_error", error_message="x")),
        record("stop", 14, id="unknown", name="?", stop_event=at(99)),
        record("strange", 15),
        "{not json",
    )
    run, done = imported(tmp_path, file)
    assert done.kinds == ["nv-one-logger"]
    assert shape(run, "name", "in", "start_ns", "duration_ns", "status") == [
        ("application", None, T0 * 10**6, None, "open"),
        ("model_initialization", "application", T0 * 10**6, 2_000_000, "ok"),
        ("training_loop", "application", (T0 + 2) * 10**6, 78_000_000, "ok"),
        ("nothing", "training_loop", (T0 + 2) * 10**6, 0, "ok"),
        ("checkpoint_save_sync", "training_loop", (T0 + 60) * 10**6, 20_000_000, "error"),
        ("last", "training_loop", (T0 + 80) * 10**6, 0, "ok"),
        ("validation_loop", "application", (T0 + 90) * 10**6, None, "open"),
    ]
    assert depths_agree(run)
    assert [(e["name"], e["on"]) for e in events_of(run)] == [
        ("one_logger_initialization", "application"),
        ("training_metrics_update", "training_loop"),
        ("error", "checkpoint_save_sync"),
        ("telemetry_data_error", "validation_loop"),
    ]
    assert events_of(run)[2]["attributes"] == {
        "exception_type": "ValueError",
        "exception_message": "bad",
    }
    [process] = run.processes().collect().to_dicts()
    assert (process["rank"], process["world_size"], process["host"]) == (3, 8, "n7")
    assert run.document["imported_from"]["tool_version"] == "2.3.1"
    assert done.left_out == {
        "end without a begin": 1,
        "unknown type 'strange'": 1,
        "invalid JSON": 1,
    }


def test_each_process_is_nested_by_itself(tmp_path: Path) -> None:
    """Two processes that wrote into one file do not become each other's parents."""
    file = write_lines(
        tmp_path / "o.json",
        {**complete(1, "a", "outer", 0, 100), "pid": 1},
        {**complete(1, "a", "inner", 10, 20), "pid": 2},
        {**complete(2, "b", "inside", 10, 20), "pid": 1},
    )
    run, _ = imported(tmp_path, file)
    assert sorted(shape(run, "name", "rank", "in"), key=str) == [
        ("inner", 1, None),
        ("inside", 0, "outer"),
        ("outer", 0, None),
    ]
