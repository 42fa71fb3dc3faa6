"""A run that is exported and imported again is the same run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import ai
from tests.importing.reading_back import depths_agree, events_of, imported, metrics_of, tree


def record(folder: Path, iterations: int = 40) -> Any:
    """A small training with everything that a trace can hold."""

    def work(name: str) -> None:
        for i in range(iterations):
            with stepwell.span(name, i=i), stepwell.span("inner"):
                pass

    run = stepwell.init("original", dir=folder / "original")
    others = [threading.Thread(target=work, args=(f"t{n}",), name=f"worker {n}") for n in range(2)]
    for other in others:
        other.start()
    for step in range(iterations):
        stepwell.set_step(step, epoch=step // 10)
        with ai.pipeline.train, stepwell.span("step", text='quote " and \n', value=0.1):
            with ai.compute.forward:
                pass
            with ai.compute.backward, ai.comm.all_reduce:
                pass
        stepwell.log({"loss": 1 / (step + 1)})
    try:
        with stepwell.span("failing"):
            raise ValueError("no")
    except ValueError:
        pass
    stepwell.event("note", answer=42)
    for other in others:
        other.join()
    run.finish()
    return stepwell.open_run(run.path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_by_way_of_a_chrome_trace(tmp_path: Path, name: str) -> None:
    """Tree, times to the nanosecond, statuses, steps, metrics and events; categories may be filled in."""
    export = pytest.importorskip("stepwell.exporters.chrome").export_chrome
    before = record(tmp_path)
    export(before, tmp_path / name)
    after, done = imported(tmp_path, tmp_path / name)
    assert done.left_out == {}
    columns = ("start_ns", "duration_ns", "status", "step", "epoch", "depth")
    expected = tree(before, *columns)
    assert tree(after, *columns) == expected
    assert sum(map(len, expected.values())) > 80
    assert depths_agree(after)
    assert metrics_of(after) == metrics_of(before)
    assert [(e["name"], e["time_ns"], e["on"]) for e in events_of(after)] == [
        (e["name"], e["time_ns"], e["on"]) for e in events_of(before)
    ]
    one, other = before.processes().collect(), after.processes().collect()
    for column in ("rank", "role", "host", "pid", "status", "attempt"):
        assert one[column].to_list() == other[column].to_list()


@pytest.mark.parametrize("dialect", ["old", "new"])
@pytest.mark.parametrize("name", ["trace.pfw", "trace.pfw.gz"])
def test_by_way_of_a_dftracer_trace(tmp_path: Path, name: str, dialect: str) -> None:
    """The same tree; times to the microsecond, which is what the format has."""
    export = pytest.importorskip("stepwell.exporters.dftracer").export_dftracer
    before = record(tmp_path)
    (tmp_path / "out").mkdir()
    export(before, tmp_path / "out" / name, dialect=dialect)
    after, done = imported(tmp_path, tmp_path / "out")
    assert done.left_out == {}
    assert depths_agree(after)
    rows = [run.spans().sort("start_ns", "id").collect() for run in (before, after)]
    floored = [
        sorted(
            zip(r["thread"], r["name"], r["start_ns"] // 1000, r["status"], r["step"], strict=True)
        )
        for r in rows
    ]
    assert floored[0] == floored[1]
    assert metrics_of(after) == [(n, t // 1000 * 1000, v) for n, t, v in metrics_of(before)]
    if dialect == "old":
        # Levels show the nesting even of spans shorter than a microsecond.
        assert tree(after, "status", "step", "epoch", "depth") == tree(
            before, "status", "step", "epoch", "depth"
        )


def test_open_spans_stay_open(tmp_path: Path) -> None:
    """A run that never ended is exported and imported with its open spans."""
    export = pytest.importorskip("stepwell.exporters.chrome").export_chrome
    run = stepwell.init("live", dir=tmp_path / "original")
    with stepwell.span("outer"), stepwell.span("inner"):
        export(run.path, tmp_path / "t.json")
    run.finish()
    after, _ = imported(tmp_path, tmp_path / "t.json")
    found = after.open_spans().sort("depth").collect()
    assert found["name"].to_list() == ["outer", "inner"]


def test_an_imported_run_can_be_exported_again(tmp_path: Path) -> None:
    """Twice around: nothing gets lost on the way."""
    export = pytest.importorskip("stepwell.exporters.chrome").export_chrome
    before = record(tmp_path, 10)
    export(before, tmp_path / "1.json")
    first, _ = imported(tmp_path, tmp_path / "1.json")
    export(first, tmp_path / "2.json")
    second, _ = imported(tmp_path, tmp_path / "2.json")
    columns = ("category", "start_ns", "duration_ns", "status", "step", "epoch", "attributes")
    assert tree(second, *columns) == tree(first, *columns)


@pytest.mark.parametrize("name", ["trace.json", "trace.pfw"])
def test_an_attribute_that_looks_like_a_status(tmp_path: Path, name: str) -> None:
    """It is read back unchanged, and so is the status of the span."""
    from stepwell.exporters import export_chrome, export_dftracer

    run = stepwell.init("original", dir=tmp_path / "original")
    for status in ("error", "open", "fine"):
        with stepwell.span("well", status=status):
            pass
    with pytest.raises(ValueError, match="no"), stepwell.span("failing", status="fine"):
        raise ValueError("no")
    stepwell.event("told", status="error")
    run.finish()
    export = export_chrome if name == "trace.json" else export_dftracer
    [file] = export(run.path, tmp_path / name).files
    after, _ = imported(tmp_path, file)
    spans = after.spans().filter(pl.col("name").is_in(["well", "failing"])).sort("id").collect()
    found = [(row["status"], json.loads(row["attributes"])) for row in spans.to_dicts()]
    assert found == [
        ("ok", {"status": "error"}),
        ("ok", {"status": "open"}),
        ("ok", {"status": "fine"}),
        ("error", {"status": "fine"}),
    ]
    [event] = [e for e in events_of(after) if e["name"] == "told"]
    assert event["attributes"]["status"] == "error"
