"""The six tables: documented, stable columns; times since the epoch; lazy reading that changes nothing."""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from stepwell import Run, StepwellError, open_run
from stepwell.reading import RecordedRun
from tests.harness.marks import others_in_full

EVERYWHERE = {
    "run": pl.String,
    "attempt": pl.Int32,
    "rank": pl.Int32,
    "process": pl.String,
    "thread": pl.String,
    "step": pl.Int64,
    "epoch": pl.Int64,
    "name": pl.String,
}
COLUMNS: dict[str, dict[str, Any]] = {
    "spans": {
        "category": pl.String,
        "id": pl.Int64,
        "parent": pl.Int64,
        "depth": pl.Int32,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "status": pl.String,
        "attributes": pl.String,
    },
    "metrics": {"time_ns": pl.Int64, "value": pl.Float64},
    "events": {"time_ns": pl.Int64, "span": pl.Int64, "attributes": pl.String},
    "open_spans": {
        "category": pl.String,
        "id": pl.Int64,
        "parent": pl.Int64,
        "depth": pl.Int32,
        "start_ns": pl.Int64,
        "attributes": pl.String,
    },
    "artifacts": {
        "time_ns": pl.Int64,
        "span": pl.Int64,
        "sha256": pl.String,
        "size": pl.Int64,
        "attributes": pl.String,
    },
    "processes": {
        "role": pl.String,
        "parent": pl.String,
        "worker": pl.Int32,
        "status": pl.String,
        "host": pl.String,
        "pid": pl.Int64,
        "local_rank": pl.Int32,
        "world_size": pl.Int32,
        "started_ns": pl.Int64,
        "heartbeat_ns": pl.Int64,
        "dropped": pl.Int64,
        "error": pl.String,
        "spool": pl.String,
    },
}


def record(run: Run) -> None:
    """A bit of everything, one span left open."""
    for step in range(20):
        run.set_step(step, epoch=step // 10)
        with run.span("step", index=step), run.span("inner"):
            run.log({"loss": step / 2, "text": "t"})
        run.event("tick", step=step)
    thread = threading.Thread(target=lambda: run.span("other").__enter__() and run.log({"x": 1}))
    thread.start()
    thread.join()
    run.artifact(b"content", "file", note="n")
    run.span("left open").__enter__()


@pytest.fixture(params=["live", "finished"])
def read(request: pytest.FixtureRequest, recorded: Run, tmp_path: Path) -> RecordedRun:
    """The run after it finished, or a copy of its folder from before."""
    record(recorded)
    if request.param == "finished":
        recorded.finish()
        return open_run(recorded.path)
    recorded.flush()
    return open_run(shutil.copytree(recorded.path, tmp_path / "copy"))


@pytest.mark.parametrize("table", COLUMNS)
def test_tables_have_the_documented_columns(read: RecordedRun, table: str) -> None:
    """Names, order and types are as documented, before and after reading."""
    expected = {**EVERYWHERE, **COLUMNS[table]}
    lazy: pl.LazyFrame = getattr(read, table)()
    assert isinstance(lazy, pl.LazyFrame)
    assert list(lazy.collect_schema().items()) == list(expected.items())
    frame = lazy.collect()
    assert list(frame.schema.items()) == list(expected.items())
    assert frame.height or (table == "open_spans")


@pytest.mark.parametrize("table", COLUMNS)
def test_a_run_without_records_has_the_same_columns(recorded: Run, table: str) -> None:
    """Empty tables are typed as full ones are."""
    recorded.finish()
    frame = getattr(open_run(recorded.path), table)().collect()
    assert dict(frame.schema) == {**EVERYWHERE, **COLUMNS[table]}
    assert frame.height == (1 if table == "processes" else 0)


def test_overwritten_metrics_have_one_more_column(read: RecordedRun) -> None:
    """``overwritten`` marks values that a later attempt replaced; here there are none."""
    frame = read.metrics(overwritten=True).collect()
    assert dict(frame.schema) == {**EVERYWHERE, **COLUMNS["metrics"], "overwritten": pl.Boolean}
    assert not frame["overwritten"].any()


def test_every_row_knows_where_it_belongs(read: RecordedRun) -> None:
    """Run, attempt, rank and process are filled in every row of every table."""
    for table in COLUMNS:
        frame = getattr(read, table)().collect()
        for column in ("run", "attempt", "rank", "process"):
            assert frame[column].null_count() == 0
        assert set(frame["run"]) <= {read.id}


def test_steps_that_spans_have_of_their_own(recorded: Run) -> None:
    """Whole numbers fill the column, whatever the other arguments; otherwise it is the run's step."""
    recorded.set_step(1)
    huge = 10**40
    beside = [{}, {"half": "\ud800"}, {"huge": huge}, {"nan": math.nan}, {"inner": {"step": 2}}]
    for attributes in beside:
        with recorded.span("own", **attributes, step=7):
            pass
    for step in (7.0, "7", 7.5, huge, -7, None, [7], math.inf, {"step": 7}):
        with recorded.span("other", step=step):
            pass
    recorded.finish()
    spans = stepwell.open_run(recorded.path).spans().collect().sort("id")
    steps = spans.filter(pl.col("name") != "gc")["step"].to_list()
    assert steps == [7] * len(beside) + [7, 7] + [1] * 7


def test_times_are_nanoseconds_since_the_epoch(recorded: Run) -> None:
    """Times of spans, metrics, events and artifacts are between the wall clock before and after the call."""
    slack = 50_000_000  # the wall clock is slewed; it is read to this precision and no better
    times = [time.time_ns()]
    with recorded.span("s"):
        time.sleep(0.01)
    times.append(time.time_ns())
    recorded.log({"m": 1.0})
    times.append(time.time_ns())
    recorded.event("e")
    times.append(time.time_ns())
    recorded.artifact(b"a")
    times.append(time.time_ns())
    read = open_run(recorded.path)
    [span] = read.spans().collect().to_dicts()
    assert times[0] - slack <= span["start_ns"]
    assert span["start_ns"] + span["duration_ns"] <= times[1] + slack
    assert span["duration_ns"] >= 10_000_000
    for i, table in enumerate([read.metrics(), read.events(), read.artifacts()], 1):
        [at] = table.collect()["time_ns"]
        assert times[i] - slack <= at <= times[i + 1] + slack


PREDICATES = [
    pl.col("step") == 3,
    pl.col("name") == "inner",
    pl.col("name").str.starts_with("l") & (pl.col("epoch") == 1),
    pl.col("step").is_null(),
    pl.col("thread") != "MainThread",
]


@pytest.mark.parametrize("table", others_in_full(COLUMNS, ["spans"]))
def test_pushing_columns_and_filters_down_changes_nothing(read: RecordedRun, table: str) -> None:
    """A lazy query gives the same rows as filtering the whole table."""
    lazy: pl.LazyFrame = getattr(read, table)()
    whole = lazy.collect()
    for column in whole.columns:
        assert lazy.select(column).collect().equals(whole.select(column)), column
    for predicate in PREDICATES:
        for columns in (["name"], ["run", "step"], whole.columns[-2:]):
            result = lazy.filter(predicate).select(columns).collect()
            assert result.equals(whole.filter(predicate).select(columns)), (predicate, columns)
    assert lazy.head(3).collect().equals(whole.head(3))
    assert lazy.select(pl.len()).collect().item() == whole.height
    grouped = lazy.group_by("name").agg(pl.len()).sort("name").collect()
    assert grouped.equals(whole.group_by("name").agg(pl.len()).sort("name"))


def test_only_what_is_asked_for_is_made(read: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that needs no attributes does not unpack them."""
    from stepwell.reading.segments import RecordedSegment

    def fail(self: RecordedSegment) -> Any:
        raise AssertionError("attributes were unpacked")

    monkeypatch.setattr(RecordedSegment, "texts", property(fail))
    assert read.spans().select("name", "duration_ns").collect().height > 40


@pytest.mark.parametrize("table", COLUMNS)
def test_to_pandas_has_the_same_rows(read: RecordedRun, table: str) -> None:
    """A pandas frame has the columns and values of the Polars one."""
    frame = read.to_pandas(table)
    expected = getattr(read, table)().collect()
    assert list(frame.columns) == expected.columns
    assert len(frame) == expected.height
    assert frame["name"].tolist() == expected["name"].to_list()
    if table == "metrics":
        assert frame["value"].tolist() == expected["value"].to_list()


def test_to_pandas_of_no_table_says_which_there_are(read: RecordedRun) -> None:
    """The message lists the tables."""
    with pytest.raises(StepwellError, match="there is no table 'span': use one of spans, metrics"):
        read.to_pandas("span")


def test_sql_runs_on_the_tables(read: RecordedRun) -> None:
    """The lazy tables join in Polars' SQL on what all of them have."""
    context = pl.SQLContext(spans=read.spans(), metrics=read.metrics())
    query = (
        "select s.step, m.value from spans s join metrics m on s.step = m.step and s.rank = m.rank "
        "where s.name = 'step' and m.name = 'loss' order by s.step"
    )
    assert context.execute(query).collect().rows() == [(i, i / 2) for i in range(20)]


def test_ids_are_unique_within_a_run(tmp_path: Path) -> None:
    """Spans of several attempts have ids of their own, and parents among them."""
    for _ in range(3):
        with stepwell.init("r", dir=tmp_path, run_id="same") as run, run.span("a"), run.span("b"):
            pass
    spans = open_run(tmp_path / "same").spans().collect()
    assert spans["id"].n_unique() == 6
    parents = {row["id"]: row for row in spans.to_dicts()}
    for row in spans.filter(pl.col("name") == "b").to_dicts():
        assert parents[row["parent"]]["attempt"] == row["attempt"]
