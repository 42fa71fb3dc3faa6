"""Several attempts of one run: all are read, and the later values win."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepwell
from stepwell import StepwellError, open_run
from stepwell.reading import RecordedRun


@pytest.fixture
def read(tmp_path: Path) -> RecordedRun:
    """Steps 0 to 5 at first; after a restart from step 3 on up to 7, with other values."""
    for attempt, steps in enumerate([range(6), range(3, 8)]):
        with stepwell.init("r", dir=tmp_path, run_id="job", config={"attempt": attempt}) as run:
            assert run.attempt == attempt
            for step in steps:
                run.set_step(step)
                with run.span("step"):
                    run.log({"loss": step + 100.0 * attempt})
            run.log({f"only {attempt}": 1.0}, step=0)
    return open_run(tmp_path / "job")


def test_a_later_attempt_s_metrics_win_step_by_step(read: RecordedRun) -> None:
    """Before the first step of the restart the old values count, from there on the new ones."""
    loss = read.metrics().filter(pl.col("name") == "loss").sort("step").collect()
    assert loss.select("step", "attempt", "value").rows() == [
        (0, 0, 0.0),
        (1, 0, 1.0),
        (2, 0, 2.0),
        (3, 1, 103.0),
        (4, 1, 104.0),
        (5, 1, 105.0),
        (6, 1, 106.0),
        (7, 1, 107.0),
    ]


def test_what_was_overwritten_stays_readable(read: RecordedRun) -> None:
    """All values are there, with a mark on those that no longer count."""
    table = read.metrics(overwritten=True).filter(pl.col("name") == "loss").collect()
    marked = table.filter("overwritten").select("attempt", "step", "value").sort("step").rows()
    assert table.height == 11
    assert marked == [(0, 3, 3.0), (0, 4, 4.0), (0, 5, 5.0)]


def test_a_filter_does_not_change_which_values_win(read: RecordedRun) -> None:
    """Asking for the first attempt, or for small values, brings no overwritten value back."""
    first = read.metrics().filter((pl.col("attempt") == 0) & (pl.col("name") == "loss")).collect()
    assert first["step"].to_list() == [0, 1, 2]
    small = read.metrics().filter((pl.col("value") < 50) & (pl.col("name") == "loss")).collect()
    assert small["value"].to_list() == [0.0, 1.0, 2.0]


def test_metrics_of_one_attempt_alone_stay(read: RecordedRun) -> None:
    """A metric is only overwritten by one of the same name."""
    names = read.metrics().filter(pl.col("name").str.starts_with("only")).collect()["name"]
    assert sorted(names) == ["only 0", "only 1"]


def test_spans_of_all_attempts_are_there(read: RecordedRun) -> None:
    """Time that was spent was spent, whatever happened later."""
    counts = read.spans().group_by("attempt").agg(pl.len()).sort("attempt").collect()
    assert counts.rows() == [(0, 6), (1, 5)]


def test_attempts_are_told_apart_in_every_document(read: RecordedRun) -> None:
    """run.json lists both, the config is the latest, and there is a process for each."""
    assert [a["attempt"] for a in read.document["attempts"]] == [0, 1]
    assert [a["config"] for a in read.document["attempts"]] == [{"attempt": 0}, {"attempt": 1}]
    assert read.config == {"attempt": 1}
    assert sorted(read.processes().collect()["attempt"]) == [0, 1]


def test_the_latest_attempt_says_how_a_run_stands(tmp_path: Path) -> None:
    """A run that failed and was restarted with success has finished."""
    stepwell.init(dir=tmp_path, run_id="job").finish("failed")
    assert open_run(tmp_path / "job").status == "failed"
    run = stepwell.init(dir=tmp_path, run_id="job")
    assert open_run(tmp_path / "job").status == "running"
    run.finish()
    assert open_run(tmp_path / "job").status == "finished"


def test_an_attempt_that_begins_after_opening_is_seen(tmp_path: Path) -> None:
    """Tables are read when they are collected, so a later attempt wins in an opened run, too."""
    with stepwell.init(dir=tmp_path, run_id="job") as run:
        run.log({"loss": 1.0}, step=0)
    read = open_run(tmp_path / "job")
    table = read.metrics()
    assert table.collect()["value"].to_list() == [1.0]
    with stepwell.init(dir=tmp_path, run_id="job") as run:
        run.log({"loss": 2.0}, step=0)
    assert read.metrics().collect()["value"].to_list() == [2.0]
    assert table.collect()["value"].to_list() == [2.0]


def test_an_id_that_exists_can_be_refused(tmp_path: Path) -> None:
    """``resume=False`` raises, and leaves the run unchanged."""
    stepwell.init(dir=tmp_path, run_id="job").finish()
    with pytest.raises(StepwellError, match="run 'job' already exists"):
        stepwell.init(dir=tmp_path, run_id="job", resume=False)
    assert open_run(tmp_path / "job").processes().collect().height == 1
